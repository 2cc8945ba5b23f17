"""Amplification by shuffling: the central guarantee of anonymous epsilon0-LDP reports, and the inverse.

Assumption. n users send one report each. All draw it, independently, by one public randomizer R that is epsilon0-LDP:
R(x) <= E R(x') for all records x, x', with E = e^epsilon0. A shuffler shows the multiset of the reports and nothing
else: no order, time, address or key.

Neighbours. One user's record is replaced by any other.

Trust. The shuffler. If only h users surely follow the protocol, count h users.

Claim. The shuffled reports are (epsilon, delta)-DP with the numbers computed here. The claim does NOT hold if users
have different randomizers or budgets (a report may then show who sent it), if later reports depend on earlier ones, or
against an observer who sees the sender of each report. Against that observer, epsilon0 holds.

The bound. delta is at most the hockey-stick divergence D(epsilon) of (A + Y, C - A + 1 - Y) and
(A + 1 - Y, C - A + Y) with

    C ~ Bin(n - 1, 2 / (E + 1)),    A ~ Bin(C, 1/2),    Y ~ Bern(E / (E + 1)).

Source. Feldman, McMillan, Talwar, "Hiding among the clones", FOCS 2021, prove it with the smaller e^-epsilon0 for 2 /
(E + 1). The same authors' "Stronger privacy amplification by shuffling for Renyi and approximate differential privacy",
SODA 2023, Theorem 3.1, has the pair above. The errata in arXiv:2208.04591 keep it for a restricted class of
randomizers, because the proof of its Lemma 3.5 has an error. In the setting above it holds for every R, as follows.

Proof, by the privacy blanket.

1. Let v0, v1 be the densities of R at the two records of the user in question, m the least density over these and the
   other users' records, c = int m <= 1. Each other report is drawn from m/c with probability c, else from a rest.
   Reveal the rests, which can only raise the divergence. Of k + 1 reports, one from the user and k from m/c, the
   likelihood relative to k + 1 draws from m/c is c/(k+1) times the sum of g0 = v0/m (or g1 = v1/m) over them, and
   Bin(n-1, c)(k) c/(k+1) = Bin(n, c)(k+1)/n. So (Balle, Bell, Gascon, Nissim, "The privacy blanket of the shuffle
   model", CRYPTO 2019)

       delta <= mean of max(0, Z_1 + ... + Z_n) / n,   Z_i independent, each g0 - e^epsilon g1 at a draw from m/c
                                                       with probability c, and 0 with probability 1 - c.

2. If mass is spread without moving its mean, the expectation of every convex function grows, also that of a function of
   a sum of independent terms. (g0, g1) lies in the square [1, E]^2. Spread it to the corners; Z is linear in it. Let l
   be the mass at (1, 1) and h the mass at (E, E). The masses at (E, 1) and (1, E) are equal, because int v0 = int v1 =
   1. Z is a = E - e^epsilon at (E, 1) and -b = 1 - E e^epsilon at (1, E). For epsilon <= epsilon0 its other values
   1 - e^epsilon, E (1 - e^epsilon) and 0 lie in [-b, a]. Spread l: l/(E+1) to each of a and -b, the rest to 0. Then
   spread h and a mass of (E-1)/(E+1) h from 0: half of both to a, half to -b. Each move keeps the mean of Z and int v0.
   At the end a and -b have the same mass, which is 1/(E+1) by int v0 = 1, and 0 has the mass (E-1)/(E+1) >= 0. So there
   was enough mass at 0 for the last move.
3. For these Z the bound of step 1 is D: step 1 holds with equality for the pair, with its own v0, v1 and m. QED.

Monotonicity. Step 2 in [1, E']^2, E' > E, shows that D grows with epsilon0. D falls with n, and for given C with C,
because further reports could be revealed. Both facts are used below.
"""

from __future__ import annotations

import math

import numpy as np
from scipy.special import expit

from streamdp.errors import BudgetError, check_whole
from streamdp.privacy.guarantees import ApproxDP, PureDP

MOST_USERS = 10**8
"""Users above this number are not counted, which is safe. 10^8 users take up to ten seconds, 10^6 a quarter second."""

_ROUNDING = 1e-9
"""Relative slack for SciPy's binomial tails. Their relative error is at most 3e-11 up to n = 10^9."""

_UNDERFLOW = 1e-290
"""Added to every delta for terms that underflow. A delta below it gets no amplification."""

_PRECISION = 1e-9
"""The relative width at which bisections stop. They return the end of the interval that is surely private."""


def shuffled(budget: PureDP, users: int, delta: float) -> ApproxDP:
    """The central (epsilon, delta) of shuffled reports of users; epsilon is at most that of the local budget.

    `users` is at least 1, public: the number that surely send a report, including the user to be protected. All use the
    same randomizer. If epsilon = 0 is enough for delta, the smallest positive number is returned.

    Raises `BudgetError` if the budget is not a `PureDP` or delta is out of range, `ConfigError` if `users` is out of
    range.

    >>> round(shuffled(PureDP(1), 10_000, 1e-6).epsilon, 4)
    0.0432
    """
    local, users = _local(budget), _users(users)
    delta = ApproxDP(1.0, delta).delta
    low, high = 5e-324, local
    if pair_delta(local, users, low, delta) <= delta:
        return ApproxDP(low, delta)
    for _ in range(100):
        if high - low <= _PRECISION * high:
            break
        middle = (low + high) / 2
        low, high = (low, middle) if pair_delta(local, users, middle, delta) <= delta else (middle, high)
    return ApproxDP(high, delta)


def local_budget(central: ApproxDP, users: int) -> PureDP:
    """The largest local epsilon for which the shuffled reports satisfy the central guarantee.

    It is at least the central epsilon, which needs no shuffling, and below the largest by at most a relative 1e-9.

    If users report in several rounds, divide `central`, the guarantee of one round, first. `users` is that of
    `shuffled`. Raises `BudgetError` if the guarantee is not an `ApproxDP`, `ConfigError` if `users` is out of range.

    >>> round(local_budget(ApproxDP(0.0432, 1e-6), 10_000).epsilon, 2)
    1.0
    """
    if not isinstance(central, ApproxDP):
        raise BudgetError(f"the central guarantee must be an ApproxDP, got {type(central).__name__}")
    users, delta = _users(users), central.delta

    def private(local: float) -> bool:
        return pair_delta(local, users, central.epsilon, delta) <= delta

    low = central.epsilon
    while private(2 * low):
        low *= 2
    high = 2 * low
    for _ in range(100):
        if high - low <= _PRECISION * high:
            break
        middle = (low + high) / 2
        low, high = (middle, high) if private(middle) else (low, middle)
    return PureDP(low)


def pair_delta(local: float, users: int, epsilon: float, delta: float, clones: float | None = None) -> float:
    """An upper bound on D(epsilon) of the pair above; too large by at most 1e-9 of itself plus 1e-9 of `delta`.

    Given C, the user's likelihood ratio exceeds e^epsilon if A + Y (or A + 1 - Y) is above k, the integral part of
    (C + 1) (E e^epsilon - 1) / ((E - 1) (e^epsilon + 1)). With F = Bin(C, 1/2), the divergence is

        (E - e^epsilon) / (E + 1) P(F = k) - (e^epsilon - 1) P(F > k).

    All C within Bernstein's bound are summed. A larger C counts as the largest of them, a smaller C as C = 0 with the
    ratio E.

    `local` is epsilon0 > 0, n the number of users, 0 < epsilon <= local, and delta in (0, 1) the scale of the error
    that is allowed. `clones` is the probability that a user is among the C: 2 / (E + 1) if None, e^-local for the
    theorem of 2021.
    """
    from scipy.stats import binom  # imported here because it would double the time of `import streamdp`

    share = 2 * float(expit(-local)) if clones is None else clones
    largest = -math.expm1(epsilon - local) * float(expit(local))
    tail = -math.log(delta) + 21  # each tail is at most e^-21 delta, below 1e-9 delta
    reach = math.sqrt(2 * tail * (users - 1) * share * (1 - share)) + tail
    mean = (users - 1) * share
    low, high = max(0, math.floor(mean - reach)), min(users - 1, math.ceil(mean + reach))
    c = np.arange(low, high + 1)
    weights = binom.pmf(c, users - 1, share)
    weights[-1] += binom.sf(high, users - 1, share)
    threshold = math.expm1(-(epsilon + local)) / math.expm1(-local) * float(expit(epsilon))
    k = np.minimum(np.floor((c + 1) * threshold), c)
    gain = largest * binom.pmf(k, c, 0.5) * (1 + _ROUNDING)
    loss = math.expm1(min(epsilon, 700.0)) * binom.sf(k, c, 0.5) * (1 - _ROUNDING)
    inside = float(weights @ np.maximum(0.0, gain - loss))
    below = largest * float(binom.cdf(low - 1, users - 1, share))
    return (inside + below) * (1 + _ROUNDING) + _UNDERFLOW


def _local(budget: PureDP) -> float:
    if not isinstance(budget, PureDP):
        raise BudgetError(f"the local budget must be a PureDP, got {type(budget).__name__}")
    return budget.epsilon


def _users(users: int) -> int:
    check_whole("users", users, 1, 10**100)
    return min(int(users), MOST_USERS)
