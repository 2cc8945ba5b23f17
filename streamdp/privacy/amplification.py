"""What shuffling adds: the central guarantee of anonymous reports that are each epsilon0-LDP, and the way back.

**What is promised.** n users send one report each. All draw it, independently, by one public randomizer R that is
epsilon0-LDP: R(x) <= E R(x') for all records x, x', with E = e^epsilon0. A trusted shuffler shows the multiset of the
reports and nothing else: no order, time, address or key. Neighbours: one user's record is replaced. What is shown is
(epsilon, delta)-DP with the numbers computed here. They do NOT hold where users have randomizers or budgets of their
own (a report may then tell whose it is), where later reports depend on earlier ones, or against someone who sees who
sent what: against that one, epsilon0 holds. If only h users surely follow the protocol, count h users.

**The bound.** delta is at most the hockey-stick divergence D(epsilon) of (A + Y, C - A + 1 - Y) and
(A + 1 - Y, C - A + Y), where

    C ~ Bin(n - 1, 2 / (E + 1)),    A ~ Bin(C, 1/2),    Y ~ Bern(E / (E + 1)).

Feldman, McMillan, Talwar, "Hiding among the clones", FOCS 2021, prove it with the smaller e^-epsilon0 for 2 / (E + 1).
The same authors' "Stronger privacy amplification by shuffling for Renyi and approximate differential privacy", SODA
2023, Theorem 3.1, has the pair above; the errata in arXiv:2208.04591 keep it for a restricted class of randomizers, as
the proof of its Lemma 3.5 has an error. In the setting above it holds for every R. A proof, by the privacy blanket:

1. Let v0, v1 be the densities of R at the two records of the user in question, m the least density over these and the
   other users' records, c = int m <= 1. Each other report is drawn from m/c with probability c, else from a rest;
   reveal the rests, which can only raise the divergence. Of k + 1 reports, one the user's and k from m/c, the
   likelihood relative to k + 1 draws from m/c is c/(k+1) times the sum of g0 = v0/m (or g1 = v1/m) over them, and
   Bin(n-1, c)(k) c/(k+1) = Bin(n, c)(k+1)/n. So (Balle, Bell, Gascon, Nissim, "The privacy blanket of the shuffle
   model", CRYPTO 2019)

       delta <= mean of max(0, Z_1 + ... + Z_n) / n,   Z_i independent, each g0 - e^epsilon g1 at a draw from m/c
                                                       with probability c, and 0 with probability 1 - c.

2. To spread mass without moving its mean raises the expectation of every convex function, also of a sum of independent
   terms. (g0, g1) lies in the square [1, E]^2: spread it to the corners; Z is linear in it. Let l be the mass at (1, 1)
   and h that at (E, E). The masses at (E, 1) and (1, E) are equal, since int v0 = int v1 = 1. Z is a = E - e^epsilon at
   (E, 1) and -b = 1 - E e^epsilon at (1, E), and for epsilon <= epsilon0 its other values 1 - e^epsilon,
   E (1 - e^epsilon) and 0 lie in [-b, a]. Spread l: l/(E+1) to each of a and -b, the rest to 0. Then spread h and a
   mass of (E-1)/(E+1) h from 0: half of both to a, half to -b. Each move keeps the mean of Z and int v0. At the end a
   and -b have the same mass, which is 1/(E+1) by int v0 = 1, and 0 has (E-1)/(E+1) >= 0, so the last move found enough.
3. For these Z the bound of step 1 is D: step 1 holds with equality for the pair, with its own v0, v1 and m. QED.

Step 2 in [1, E']^2, E' > E, shows that D grows with epsilon0. D falls with n, and for given C with C, since further
reports could be revealed. Both are used below.
"""

from __future__ import annotations

import math
import operator

import numpy as np
from scipy.special import expit

from streamdp.errors import BudgetError, ConfigError
from streamdp.privacy.guarantees import ApproxDP, PureDP

MOST_USERS = 10**8
"""Further users are not counted, which is safe. So many take up to ten seconds, a million a quarter of one."""

_ROUNDING = 1e-9
"""Relative slack for SciPy's binomial tails, which are off by up to 3e-11 up to n = 10^9."""

_UNDERFLOW = 1e-290
"""Added to every delta for terms that leave the doubles; for a smaller delta there is no amplification."""

_PRECISION = 1e-9
"""Where bisections stop, relative; their result is the end that is surely private."""


def shuffled(budget: PureDP, users: int, delta: float) -> ApproxDP:
    """The central (epsilon, delta) of the shuffled reports of `users` users; the epsilon is never above the local one.

    Parameters
    ----------
    budget
        The local guarantee of the one randomizer that all users use.
    users
        At least 1, public: all who surely send a report, the one to be protected included.
    delta
        0 < delta < 1. The smallest positive epsilon is returned where epsilon = 0 would do.

    Raises `BudgetError` for a budget that is not a `PureDP` and for a bad delta, `ConfigError` for bad `users`.

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
    """The largest local epsilon whose shuffled reports of `users` users satisfy the central guarantee.

    Never below the central epsilon, which needs no shuffling; on the safe side of the largest by a relative 1e-9. Where
    users report in several rounds, give what one round may spend.

    Raises `BudgetError` for a guarantee that is not an `ApproxDP`, `ConfigError` for `users` below 1 or not an integer.

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
    """An upper bound on D(epsilon) of the pair above, for 0 < epsilon <= local; off by 1e-9 of itself and of `delta`.

    `clones` is the probability that a user is among the C: 2 / (E + 1) when None, e^-local for the theorem of 2021.

    Given C, the user's likelihood ratio exceeds e^epsilon where A + Y (or A + 1 - Y) is above k, the integral part of
    (C + 1) (E e^epsilon - 1) / ((E - 1) (e^epsilon + 1)). With F = Bin(C, 1/2), the divergence is

        (E - e^epsilon) / (E + 1) P(F = k) - (e^epsilon - 1) P(F > k).

    All C within Bernstein's bound are summed. C above count as the largest one, C below as C = 0 with the ratio E.
    """
    from scipy.stats import binom  # half of the time that `import streamdp` would take

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
        raise BudgetError(f"reports that are shuffled must each be PureDP, got {type(budget).__name__}")
    return budget.epsilon


def _users(users: int) -> int:
    try:
        number = operator.index(users)
    except TypeError:
        raise ConfigError(f"users must be an integer, got {type(users).__name__}") from None
    if isinstance(users, bool) or number < 1:
        raise ConfigError(f"users must be an integer from 1 on, got {users!r}")
    return min(number, MOST_USERS)
