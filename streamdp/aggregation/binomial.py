"""How much binomial noise a sum of vectors needs: about the least that is proved.

n users hold vectors of l2 norm at most Delta2 in R^d. User i moves each coordinate to [0, g], rounds it to an integer
at random, and adds b fair bits (`shuffled_sum` runs this as a protocol). The release is, for each coordinate, the sum
over users: integers plus Bin(N, 1/2), N = n b.

Neighbours: one vector is replaced by another, at l2 distance at most S <= 2 Delta2. Claim: with kappa and tail of
`gaussian_step(N)`, the sums are (epsilon, delta)-DP for delta = D(s) + d (1 + e^epsilon) tail, D(s) the delta of
mu-GDP at mu = kappa sqrt(s); several rounds with the same users have their own s.

The calibration of the paper, which takes 10^5 times the noise, is in studies/paper_sum.py.

Theorems and proofs, and why bits are fair: docs/proofs/shuffled_sum.md.
"""

import math
from collections.abc import Callable
from functools import lru_cache, partial

import numpy as np
import scipy

from streamdp.errors import BudgetError
from streamdp.privacy.guarantees import ApproxDP, GaussianDP, gdp_delta

LARGEST_EPSILON = 100.0

MOST_TRIALS = 2**36
"""The most fair bits in one coordinate's sum that a sum may have: their law must fit in memory."""

_EXCESS = 1.05  # accepted variance, relative to the analytic Gaussian mechanism
_TAIL_SHARE = 0.01  # the share of delta for the tails
_RARE = 7.0  # x of several rounds: `beyond` is then some thousandths of delta
_TOLERANCE = 1 + 2e-9  # norms are checked up to 1e-9


@lru_cache(maxsize=4096)
def gaussian_step(trials: int, log_cut: float) -> tuple[float, float]:
    """(kappa, tail) of Bin(trials, 1/2), as the theorem above uses them; (inf, 1) for one trial.

    `log_cut` is the logarithm of the wanted tail: [lo, hi] has the half-width of Hoeffding's inequality for it. Any
    value gives a valid pair; a short interval makes the tail larger and kappa smaller.
    """
    if trials < 2:
        return math.inf, 1.0
    centre = (trials + 1) // 2
    hi = min(trials, centre + 2 + math.ceil(math.sqrt(-log_cut / 2 * trials)))
    t = np.arange(centre, hi, dtype=float)
    log_ratios = np.log1p((trials - 2 * t - 1) / (t + 1))  # of w(t + 1) to w(t)
    weights = np.exp(np.concatenate([[0.0], np.cumsum(log_ratios)]))
    r = math.exp(log_ratios[-1])
    beyond = float(weights[-1] * r / (1 - r))
    above = np.cumsum(np.concatenate([[beyond], weights[::-1]]))[::-1]  # weight above t, for t = centre - 1, ..., hi
    total = float(above[0] + above[1 - trials % 2])
    h = -scipy.special.ndtri_exp(np.log(above[1:] / total))
    first = h[0] if trials % 2 else 2 * h[0]  # the step over the centre
    # 1e-11 is far above the rounding error of a difference of two h, and at most 1e-5 of a step
    return float(max(first, np.max(np.diff(h)))) + 1e-11, 2 * beyond / total


def spent_delta(trials: int, shift: float, d: int, epsilon: float, delta: float, rounds: int = 1) -> float:
    """A delta such that the sums are (epsilon, delta)-DP: the least that is proved at the head of this module.

    `trials` is N, the fair bits that honest users add to each of d coordinates, `shift` is T, and `rounds` the number
    of sums in which the same users take part. epsilon is at most `LARGEST_EPSILON`. `delta` is the expected order of
    magnitude of the answer; it decides only where the tails are cut.
    """
    kappa, tail = gaussian_step(trials, _log_cut(d * rounds, epsilon, delta))
    if not math.isfinite(kappa):
        return 1.0
    square, beyond = rounds * (shift + math.sqrt(d)) ** 2, 0.0
    if rounds == 1:
        square = _effective(kappa, shift, d, epsilon)
    else:
        likely = rounds * (shift**2 + d / 4) + _spread(shift, d, rounds)
        if likely < square and (missed := _beyond(kappa, likely, shift, d, epsilon, rounds)) is not None:
            square, beyond = likely, missed
    spent = gdp_delta(kappa * math.sqrt(square), epsilon) + beyond
    return min(1.0, spent * (1 + 1e-9) + d * rounds * (1 + math.exp(epsilon)) * tail)


def _spread(shift: float, d: int, rounds: int) -> float:
    """t, for x = `_RARE`."""
    return (shift + math.sqrt(d) / 2) * math.sqrt(2 * rounds * _RARE)


def _beyond(kappa: float, square: float, shift: float, d: int, epsilon: float, rounds: int) -> float | None:
    """`beyond` for B = `square`, at an a near the best one; None if the claim does not allow this a."""
    mu_squared = kappa**2 * square
    a = epsilon / mu_squared - 0.5
    if not 0 < a * (a + 1) * kappa**2 / 2 <= math.sqrt(2 * _RARE / rounds) / (shift + math.sqrt(d) / 2):
        return None
    constant = a * math.log(a) - (1 + a) * math.log1p(a)
    return math.exp(constant + a * (a + 1) * mu_squared / 2 - a * epsilon - _RARE)


def shift_of(g: int, d: int, share: float) -> float:
    """T for g cells and d coordinates, with room for rounding; `share` is the sensitivity over 2 Delta2, in (0, 1]."""
    return g * (share * _TOLERANCE + math.sqrt(d) * 2.0**-50)


def _log_cut(d: int, epsilon: float, delta: float) -> float:
    return math.log(_TAIL_SHARE * delta / d) - float(np.logaddexp(0.0, epsilon))


def _effective(kappa: float, shift: float, d: int, epsilon: float) -> float:
    """The least s of the theorem, to a relative 1e-9; the result always satisfies its condition."""
    base, spread = shift**2 + d / 4, (shift + math.sqrt(d) / 2) ** 2 / 2
    high = (shift + math.sqrt(d)) ** 2

    def excess(s: float) -> float:
        mu = kappa * math.sqrt(s)
        spent = gdp_delta(mu, epsilon)
        slope = kappa**2 * math.exp(-((epsilon / mu - mu / 2) ** 2) / 2) / (math.sqrt(8 * math.pi) * mu)
        return s - base - slope / spent * spread if spent > 1e-200 else -high

    if excess(high) <= 0 or excess(base) >= 0:
        return high
    near = scipy.optimize.brentq(excess, base, high, rtol=1e-10) * (1 + 1e-9)
    return near if near < high and excess(near) >= 0 else high


@lru_cache(maxsize=256)
def tight_parameters(users: int, d: int, budget: ApproxDP, share: float, rounds: int = 1) -> tuple[int, int]:
    """(g, b): about the fewest bits whose variance is at most 5 % over that of the analytic Gaussian mechanism.

    It is the first b, in steps of 1 %, for which the finest grid g that keeps the budget is fine enough; then the least
    b for that g. Raises `BudgetError` if epsilon is over `LARGEST_EPSILON` or so small that N would exceed 2^36.
    All users answer, with d coordinates each, and the budget covers all rounds. `share` is the sensitivity over 2
    Delta2, in (0, 1].

    >>> tight_parameters(1000, 6, ApproxDP(1.0, 1e-6), 1.0)
    (24, 42)
    """
    check_epsilon(budget)
    mu = GaussianDP.from_approx(budget).mu / math.sqrt(rounds)
    b = math.ceil(1 / (_EXCESS - 1))

    def keeps(b: int, g: int) -> bool:
        spent = spent_delta(users * b, shift_of(g, d, share), d, budget.epsilon, budget.delta, rounds)
        return spent <= budget.delta

    while users * b <= MOST_TRIALS:
        most = (mu / 2) ** 2 * users * b  # T^2 for Gaussian noise without rounding
        rounded = most - d / 4
        if rounds > 1:
            likely = most - d / 4 - _spread(math.sqrt(most), d, rounds) / rounds
            rounded = max(likely, max(0.0, math.sqrt(most) - math.sqrt(d)) ** 2)
        if rounded > 0 and (1 + 1 / b) * most / rounded <= _EXCESS:
            coarsest = math.ceil(math.sqrt((b + 1) * users / _EXCESS) * mu / (2 * share))
            finest = math.ceil(math.sqrt(most) / share)
            if coarsest <= finest and keeps(b, coarsest):
                g = _nearest(partial(keeps, b), finest + 1, coarsest)
                return g, _nearest(partial(keeps, g=g), 0, b)
        b = max(b + 1, b * 101 // 100)
    raise BudgetError(f"{budget} takes more than 2^36 bits of noise for each coordinate: allow more epsilon or delta")


def _nearest(keeps: Callable[[int], bool], no: int, yes: int) -> int:
    """The number nearest to `no`, and not this, that keeps the budget; `yes` does."""
    while abs(yes - no) > 1:
        middle = (no + yes) // 2
        no, yes = (no, middle) if keeps(middle) else (middle, yes)
    return yes


def least_epsilon(trials: int, shift: float, d: int, delta: float, rounds: int = 1) -> float:
    """The least epsilon at which `spent_delta` is at most `delta`, to a relative 1e-6; from 1e-9.

    For the same trials, shift, d and rounds, the spent delta falls with epsilon and then rises, because the bound on
    the tails rises; so the search goes down a grid first. Raises `BudgetError` if there is none up to
    `LARGEST_EPSILON`.
    """

    def serves(epsilon: float) -> bool:
        return spent_delta(trials, shift, d, epsilon, delta, rounds) <= delta

    found = 0.0
    for epsilon in map(float, LARGEST_EPSILON * 2.0 ** (-np.arange(75) / 2)):
        if serves(epsilon):
            found = epsilon
        elif found:
            break
    if not found:
        raise BudgetError(f"there is too little noise for any epsilon up to {LARGEST_EPSILON:g} at delta {delta:g}")
    low, high = found / math.sqrt(2), found
    while high - low > 1e-6 * high:
        middle = (low + high) / 2
        low, high = (low, middle) if serves(middle) else (middle, high)
    return high


def check_epsilon(budget: ApproxDP) -> None:
    """Raise `BudgetError` if no sum serves a budget."""
    if budget.epsilon > LARGEST_EPSILON:
        raise BudgetError(f"a shuffled sum serves epsilon up to {LARGEST_EPSILON:g}, got {budget}")
