"""Amplification by sampling: the privacy of many steps, each on users drawn anew with a public probability.

In each of T steps every user is drawn with probability q, independently and anew, and the sample stays secret. A
mechanism answers from the drawn users; leaving one of them out moves the answer by no more than N(0, 1) to N(mu, 1).

Neighbours: all records of one user are replaced by any others. Trust: the party that draws the sample. Claim: all T
answers together are (epsilon, delta)-DP with the numbers computed here, because each step is dominated by the pair
(1-q) N(0, 1) + q N(mu, 1) and (1-q) N(0, 1) + q N(-mu, 1), which dp-accounting composes as REPLACE_ONE.

Proof: docs/proofs/subsampling.md.
"""

import math
from functools import lru_cache
from typing import Any

import numpy as np

from streamdp.errors import BudgetError, ConfigError
from streamdp.privacy.entropy import Rng, draw, forks
from streamdp.privacy.guarantees import ApproxDP, GaussianDP, check_serviceable

LEAST_NOISE = 0.25  # sigma / C; a smaller one would be enough only if users are hardly ever drawn
LEAST_DELTA = 1e-10  # below it, the rounding errors of the Fourier transforms could matter
MOST_STEPS = 10**6
_ROUNDING = 3e-18  # error of delta for each step by the Fourier transforms, measured against exact answers near q = 1
_PRECISION = 1e-3  # relative precision of the noise, which is rounded up
_LEAST_POINTS, _MOST_POINTS = 1200, 30_000  # grid points of one step's losses; up to 1000 dp-accounting uses no FFT


@lru_cache(maxsize=4096)
def noise_multiplier(budget: ApproxDP, rate: float, steps: int) -> float:
    """sigma / C, at least `LEAST_NOISE`, for which all steps together are (epsilon, delta)-DP.

    C bounds the norms of the users' vectors, sigma is the standard deviation of the noise on the sum over the drawn
    users. C / sigma is the largest zero-out mu of a step of any mechanism, because the proof assumes nothing else. The
    result is about 1 % above the least possible, and up to 3 % if users are hardly ever drawn in very many steps.

    `rate` is q in (0, 1]: each user is drawn in each step with this probability. At 1 the result is exact, 2 sqrt(T) /
    mu. `steps` is T, from 1 to `MOST_STEPS`. Raises `BudgetError` if the budget is out of range or its delta below
    `LEAST_DELTA`, `ConfigError` if the rate or the steps are out of range.

    >>> round(noise_multiplier(ApproxDP(1.0, 1e-6), 1.0, 1), 3)
    8.449
    >>> round(noise_multiplier(ApproxDP(1.0, 1e-6), 0.01, 100), 2)
    1.05
    """
    check_serviceable(budget)
    if budget.delta < LEAST_DELTA:
        raise BudgetError(f"delta must be at least {LEAST_DELTA:g} for sampled steps, got {budget.delta:g}")
    if not 0 < rate <= 1 or not 1 <= steps <= MOST_STEPS:
        raise ConfigError(f"expected a rate in (0, 1] and 1 to {MOST_STEPS} steps, got {rate} and {steps}")
    mu = GaussianDP.from_approx(budget).mu
    if rate == 1:
        return max(LEAST_NOISE, 2 * math.sqrt(steps) / mu)

    from scipy.optimize import brentq

    least = math.log(LEAST_NOISE)

    def excess(log_noise: float) -> float:
        """log(mu of the steps / mu): nearly linear if the steps are nearly normal."""
        delta = _delta(math.exp(log_noise), rate, steps, budget.epsilon)
        at = GaussianDP.from_approx(ApproxDP(budget.epsilon, min(max(delta, 1e-30), 1 - 1e-9))).mu
        return math.log(at / mu)

    low = high = max(least, float(np.log(nearly_normal(mu, rate, steps))))
    while excess(high) > 0:
        low, high = high, high + 0.1
    while low == high or excess(low) <= 0:
        if low == least:
            return LEAST_NOISE
        low, high = max(low - 0.1, least), low
    noise = math.exp(brentq(excess, low, high, xtol=_PRECISION / 2, rtol=1e-12))
    while _delta(noise, rate, steps, budget.epsilon) > budget.delta:
        noise *= 1 + _PRECISION
    return float(noise)


def nearly_normal(mu: float, rate: Any, steps: Any) -> Any:
    """An approximation of sigma / C in closed form, for T steps that are mu-GDP together. Only for planning.

    A sum of many small losses is nearly normal, and then T chi^2(P, Q) = mu^2 with chi^2 = 4 q^2 sinh(C^2 / sigma^2).
    The rate q in (0, 1] and the steps T >= 1 are numbers, or arrays that are broadcast together.
    """
    return np.arcsinh(mu**2 / (4 * rate**2 * steps)) ** -0.5


@lru_cache(maxsize=64)  # the search asks again about the ends of its bracket and about the root
def _delta(noise: float, rate: float, steps: int, epsilon: float) -> float:
    """An upper bound on delta at epsilon of all steps.

    The losses of a step are rounded up to a grid with cells of a quarter of their standard deviation, sqrt(chi^2(P,
    Q)). This costs half a per cent of epsilon. A much finer grid loses more to rounding than it gains. dp-accounting
    truncates the loss ten standard deviations from its centre.
    """
    from dp_accounting.pld import privacy_loss_distribution
    from dp_accounting.privacy_accountant import NeighboringRelation

    def log_ratio(x: float) -> float:
        """The log ratio of the densities of q N(1/noise, 1) + (1-q) N(0, 1) and N(0, 1) at x."""
        return float(np.logaddexp(math.log1p(-rate), math.log(rate) + (x - 0.5 / noise) / noise))

    end = 10 + 1 / noise
    span = 2 * (log_ratio(end) - log_ratio(-end))
    deviation = 2 * rate * math.sqrt(math.sinh(min(noise**-2, 300.0)))
    step = privacy_loss_distribution.from_gaussian_mechanism(
        noise,
        sampling_prob=rate,
        value_discretization_interval=float(np.clip(deviation / 4, span / _MOST_POINTS, span / _LEAST_POINTS)),
        neighboring_relation=NeighboringRelation.REPLACE_ONE,
    )
    return float(step.self_compose(steps).get_delta_for_epsilon(epsilon)) + _ROUNDING * steps


def sample(users: int, rate: float, rng: Rng) -> np.ndarray:
    """The indices (k,) of the drawn users, in increasing order.

    Each user is drawn independently, if its random word is below floor(rate 2^64), rate in (0, 1]. So the probability
    is exactly floor(rate 2^64) / 2^64, never above `rate`; at 1 all users are drawn. The words used of `rng` are
    overwritten. Raises `ConfigError` if the rate is out of range.
    """
    if not 0 < rate <= 1:
        raise ConfigError(f"expected a rate in (0, 1], got {rate}")
    if rate == 1:
        return np.arange(users)
    while True:
        before = forks()
        with rng.lock:
            words = draw(rng, users)
        drawn = np.flatnonzero(words < np.uint64(int(rate * 2.0**64)))
        words[:] = 0
        if forks() == before or not rng.private:  # otherwise a parent and its child would draw the same users
            return drawn
