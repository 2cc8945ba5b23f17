"""Amplification by shuffling: the central guarantee of anonymous epsilon0-LDP reports, and the inverse.

n users send one report each, all by one public epsilon0-LDP randomizer; a shuffler shows the multiset of the reports
and nothing else. Neighbours: one user's record is replaced. Trust: the shuffler; if only h users surely follow the
protocol, count h. Claim: the shuffled reports are (epsilon, delta)-DP with the numbers computed here: with E =
e^epsilon0, delta is at most the hockey-stick divergence D(epsilon) of (A + Y, C - A + 1 - Y) and
(A + 1 - Y, C - A + Y),

    C ~ Bin(n - 1, 2 / (E + 1)),    A ~ Bin(C, 1/2),    Y ~ Bern(E / (E + 1)).

It does NOT hold if users have different randomizers or budgets, or if later reports depend on earlier ones.

Source: Feldman, McMillan, Talwar, SODA 2023, Theorem 3.1. Proof for every randomizer, and that D grows with epsilon0
and falls with n and C: docs/proofs/amplification.md.
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
