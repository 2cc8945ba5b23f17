"""Sampled steps: the dominating pair, its composition and calibration against independent ones, and the sampler."""

import math
from typing import Any

import numpy as np
import pytest
from scipy import stats
from scipy.special import logsumexp, ndtr

from streamdp import ApproxDP
from streamdp.errors import BudgetError, ConfigError
from streamdp.privacy.entropy import Entropy, SeededEntropy
from streamdp.privacy.guarantees import GaussianDP, gdp_delta
from streamdp.privacy.subsampling import LEAST_DELTA, LEAST_NOISE, noise_multiplier, sample
from tests.support.audit import epsilon_lower_bound
from tests.support.sizes import some

BUDGET = ApproxDP(1.0, 1e-6)


# --- the proof


def on_the_plane(noise: float) -> tuple[np.ndarray, np.ndarray, float]:
    line = np.arange(-8.0 * noise - 2, 8 * noise + 2, noise / 12)
    x, y = np.meshgrid(line, line)
    return x, y, (noise / 12) ** 2


def test_no_two_vectors_are_told_apart_better_than_the_opposite_ones() -> None:
    """Integrals over the plane for random pairs of vectors of norm at most 1, and the pair of the proof."""
    rng = np.random.default_rng(1)
    for _ in range(12):
        noise, q = rng.uniform(0.4, 3), rng.uniform(0.02, 0.95)
        alphas = np.exp(rng.uniform(-1.5, 1.5, 6))
        x, y, cell = on_the_plane(noise)

        def density(v: np.ndarray, x: np.ndarray = x, y: np.ndarray = y, s: float = noise) -> np.ndarray:
            return np.exp(-((x - v[0]) ** 2 + (y - v[1]) ** 2) / (2 * s * s)) / (2 * math.pi * s * s)

        def divergences(u: np.ndarray, v: np.ndarray) -> np.ndarray:
            none = (1 - q) * density(np.zeros(2))  # noqa: B023
            p, other = none + q * density(u), none + q * density(v)  # noqa: B023
            return np.array([np.maximum(0, p - a * other).sum() * cell for a in alphas])  # noqa: B023

        worst = divergences(np.array([1.0, 0.0]), np.array([-1.0, 0.0]))
        for _ in range(6):
            u, v = (rng.standard_normal(2) for _ in range(2))
            u, v = (w / np.linalg.norm(w) * min(1.0, rng.uniform(0, 1.5)) for w in (u, v))
            assert np.all(divergences(u, v) <= worst + 1e-9)


def log_pair(x: np.ndarray, rate: float, noise: float) -> tuple[np.ndarray, np.ndarray]:
    """Log densities of P and Q relative to N(0, 1)."""
    ups, downs = ((s * x - 0.5 / noise) / noise for s in (1, -1))
    rest = math.log1p(-rate)
    return np.logaddexp(rest, math.log(rate) + ups), np.logaddexp(rest, math.log(rate) + downs)


def renyi_epsilon(noise: float, rate: float, steps: int, delta: float) -> float:
    """epsilon from Renyi divergences of the pair by quadrature: an upper bound, independent of dp-accounting."""
    x = np.linspace(-60, 60, 60_001)
    p, q = log_pair(x, rate, noise)
    base = -0.5 * x**2 - 0.5 * math.log(2 * math.pi) + math.log(x[1] - x[0])
    best = math.inf
    for order in np.geomspace(1.05, 200, 60):
        divergence = logsumexp(base + order * p + (1 - order) * q) / (order - 1)
        best = min(
            best, steps * divergence + math.log((order - 1) / order) - (math.log(delta) + math.log(order)) / (order - 1)
        )
    return float(best)


def convolved_delta(noise: float, rate: float, steps: int, epsilon: float, width: float) -> float:
    """delta of T steps: losses on a grid, the mass of each cell split between its ends, T-th power of the transform."""
    x = np.linspace(-1 / noise - 9.5, 1 / noise + 9.5, 200_001)
    upper, lower = log_pair(x, rate, noise)
    mass = (1 - rate) * np.diff(ndtr(x)) + rate * np.diff(ndtr(x - 1 / noise))
    loss = upper - lower
    at = 0.5 * (loss[1:] + loss[:-1]) / width
    below = np.floor(at).astype(int)
    half = 1 << 19
    grid = np.zeros(2 * half)
    np.add.at(grid, below % (2 * half), mass * (1 - (at - below)))
    np.add.at(grid, (below + 1) % (2 * half), mass * (at - below))
    total = np.fft.irfft(np.fft.rfft(grid) ** steps, 2 * half)
    losses = np.arange(half) * width
    return float(np.sum(total[:half] * np.maximum(0, -np.expm1(np.minimum(0, epsilon - losses)))))


@pytest.mark.parametrize(
    ("rate", "steps", "width"),
    some(
        [(0.1, 12, 1e-3), (0.5, 5, 1e-3), (0.9, 30, 3e-4), (0.3, 1, 1e-3), (0.01, 1000, 2e-4), (1e-5, 1000, 1e-4)], 0, 4
    ),
)
@pytest.mark.slow
def test_the_noise_is_the_least_that_is_enough(rate: float, steps: int, width: float) -> None:
    """Checked by a plain convolution: this noise is enough, and 2 % less is not."""
    noise = noise_multiplier(BUDGET, rate, steps)
    assert 0.85 * BUDGET.delta < convolved_delta(noise, rate, steps, 1.0, width) <= BUDGET.delta
    assert convolved_delta(0.98 * noise, rate, steps, 1.0, width) > BUDGET.delta
    assert convolved_delta(0.5 * noise, rate, steps, 1.0, width) > 5 * BUDGET.delta


@pytest.mark.parametrize(("rate", "steps"), some([(0.01, 1000), (0.1, 100), (0.9, 50), (1e-3, 10**5)], 1, 2))
@pytest.mark.slow
def test_renyi_divergences_ask_for_more_but_not_for_much_more(rate: float, steps: int) -> None:
    noise = noise_multiplier(BUDGET, rate, steps)
    assert noise >= LEAST_NOISE
    epsilon = renyi_epsilon(noise, rate, steps, BUDGET.delta)
    assert BUDGET.epsilon < epsilon < 1.6
    assert renyi_epsilon(1.3 * noise, rate, steps, BUDGET.delta) < 1.3  # the bound is not loose by a scale


@pytest.mark.slow
def test_without_sampling_it_is_the_gaussian_of_twice_the_norm() -> None:
    for steps in (1, 10, 1000):
        noise = noise_multiplier(BUDGET, 1.0, steps)
        assert noise == pytest.approx(2 * math.sqrt(steps) / GaussianDP.from_approx(BUDGET).mu)
        assert noise_multiplier(BUDGET, 0.9999, steps) == pytest.approx(noise, rel=4e-3)
        assert gdp_delta(2 * math.sqrt(steps) / noise, 1.0) <= BUDGET.delta * (1 + 1e-9)


@pytest.mark.campaign
def test_it_grows_with_rate_and_steps_and_falls_with_the_budget() -> None:
    rates = [noise_multiplier(BUDGET, q, 200) for q in (0.003, 0.03, 0.3, 1.0)]
    steps = [noise_multiplier(BUDGET, 0.05, t) for t in (1, 30, 1000)]
    budgets = [noise_multiplier(ApproxDP(e, 1e-6), 0.05, 200) for e in (4.0, 1.0, 0.5)]
    deltas = [noise_multiplier(ApproxDP(1.0, d), 0.05, 200) for d in (1e-4, 1e-7, 1e-10)]
    for row in (rates, steps, budgets, deltas):
        assert np.all(np.diff(row) > 0)
    assert 1 / noise_multiplier(BUDGET, 1.0, 1) == pytest.approx(GaussianDP.from_approx(BUDGET).mu / 2)


def test_where_hardly_anyone_is_drawn_there_is_still_some_noise() -> None:
    assert noise_multiplier(BUDGET, 1e-9, 10) == LEAST_NOISE


def test_what_cannot_be_served() -> None:
    for rate, steps in ((0.0, 1), (1.1, 1), (0.5, 0), (0.5, 10**7)):
        with pytest.raises(ConfigError):
            noise_multiplier(BUDGET, rate, steps)
    with pytest.raises(BudgetError, match="delta"):
        noise_multiplier(ApproxDP(1.0, LEAST_DELTA / 2), 0.5, 1)


def test_cheaper_than_leaving_out_and_putting_in() -> None:
    """The alternative by group privacy: (epsilon/2, delta/(1 + e^(epsilon/2))) for leaving one user out."""
    from dp_accounting.pld import privacy_loss_distribution

    half, delta = 0.5, 1e-6 / (1 + math.exp(0.5))
    for rate, steps in ((0.01, 1000), (0.1, 100)):
        noise = noise_multiplier(BUDGET, rate, steps)
        there = privacy_loss_distribution.from_gaussian_mechanism(
            noise, sampling_prob=rate, value_discretization_interval=1e-3
        )
        assert there.self_compose(steps).get_delta_for_epsilon(half) > delta


# --- an audit of the whole


def scores(sign: float, noise: float, rate: float, steps: int, trials: int, rng: np.random.Generator) -> np.ndarray:
    """The log likelihood ratio of all steps; the user's vector is +1 or -1 if drawn."""
    x = sign * (rng.random((trials, steps)) < rate) / noise + rng.standard_normal((trials, steps))
    p, q = log_pair(x, rate, noise)
    return np.asarray((p - q).sum(axis=1))


@pytest.mark.slow
def test_an_attack_on_all_steps() -> None:
    """Below the claim and close to it; above the claim with half the noise, and with the noise for another rate."""
    budget, rate, steps, trials = ApproxDP(1.0, 0.02), 0.2, 8, 200_000
    rng = np.random.default_rng(5)
    noise = noise_multiplier(budget, rate, steps)

    def found(noise: float, rate: float) -> float:
        a, b = (scores(s, noise, rate, steps, trials, rng) for s in (1.0, -1.0))
        return epsilon_lower_bound(a, b, budget.delta)

    assert 0.8 * budget.epsilon < found(noise, rate) <= budget.epsilon
    assert found(noise / 2, rate) > 1.3 * budget.epsilon
    assert found(noise, 1 - 1e-9) > 1.3 * budget.epsilon  # the attack on an implementation that does not sample


# --- the sampler


@pytest.mark.parametrize("rate", [0.003, 0.25, 0.7])
def test_each_is_drawn_with_this_probability_on_its_own(rate: float) -> None:
    """The total counts and those of each user are binomial; a rate 5 % off is rejected; false alarm 1e-6 each."""
    rng, users, rounds = SeededEntropy(7, 1 << 14), 200, 5000
    counts = np.zeros(users, dtype=int)
    for _ in range(rounds):
        drawn = sample(users, rate, rng)
        assert np.all(np.diff(drawn) > 0)
        counts[drawn] += 1
    total = int(counts.sum())
    assert stats.binomtest(total, users * rounds, rate).pvalue > 1e-6
    for off in (0.88, 1.12):
        assert stats.binomtest(total, users * rounds, rate * off).pvalue < 1e-6
    expected = rounds * rate
    spread = float(np.sum((counts - expected) ** 2) / (expected * (1 - rate)))
    assert 1e-6 < stats.chi2.sf(spread, users) < 1 - 1e-6


def test_the_same_words_whatever_the_buffer_and_none_twice() -> None:
    small, large = SeededEntropy(3, 64), SeededEntropy(3, 1 << 15)
    for users in (1, 63, 64, 65, 1000):
        np.testing.assert_array_equal(sample(users, 0.3, small), sample(users, 0.3, large))
    before = large.position
    sample(10, 0.5, large)
    assert large.position == before + 10
    assert not large.words[before : before + 10].any()


def test_the_ends_of_the_rate() -> None:
    rng: Any = Entropy()
    np.testing.assert_array_equal(sample(5, 1.0, rng), np.arange(5))
    assert len(sample(1000, 2.0**-63, rng)) == 0
    assert len(sample(0, 0.5, rng)) == 0
    for rate in (0.0, 1.5, -0.1):
        with pytest.raises(ConfigError):
            sample(5, rate, rng)
