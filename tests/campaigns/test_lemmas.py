"""Lemmas of the papers that can be checked by numbers, as they are printed; docs/papers.md has their verdicts."""

import math

import numpy as np
import pytest
from scipy.stats import binom

from studies import printed

pytestmark = pytest.mark.campaign


def test_cheu_3_1_fails_on_a_coarse_grid() -> None:
    """One user, Delta = g = 1 and epsilon = 15: the sum 0 has more than delta, and the neighbour never has it."""
    epsilon, delta = 15, 0.01
    share = 90 * math.log(2 / delta) / epsilon**2
    bits = math.floor(2 * share) + 1
    assert share / bits < 1 / 2
    assert binom.pmf(0, bits, share / bits) > 6 * delta


def test_cheu_3_3_fails_with_the_divergence_in_one_direction() -> None:
    """A_j(X) is 0, and A_j(X') is 0 with probability e^-epsilon: all d together differ by d epsilon."""
    d, epsilon, gamma = 1000, 0.1, 1e-6
    claimed = d * epsilon * math.expm1(epsilon) + 2 * epsilon * math.sqrt(-math.log(gamma) * d)
    assert math.log1p(-gamma) + d * epsilon > 2 * claimed


@pytest.mark.parametrize("d", [1, 5, 40, 200])
@pytest.mark.parametrize("gamma", [1e-2, 1e-6, 1e-9])
def test_cheu_3_3_holds_for_randomised_responses(d: int, gamma: float) -> None:
    """The exact divergence of d randomised responses: sums of +-epsilon_j, on a grid of hundredths."""
    cells = np.random.default_rng(d).integers(1, 40, d)
    losses = np.ones(1)
    for cell in cells:
        likely = 1 / (1 + math.exp(-cell / 100))
        losses = np.convolve(losses, np.r_[1 - likely, np.zeros(2 * cell - 1), likely])
    epsilons, values = cells / 100, np.arange(-cells.sum(), cells.sum() + 1) / 100
    claimed = epsilons @ np.expm1(epsilons) + 2 * math.sqrt(-math.log(gamma) * (epsilons @ epsilons))
    assert np.sum(losses * np.maximum(0, -np.expm1(claimed - values))) <= gamma


@pytest.mark.parametrize("middle", [1.0, 0.5])
def test_bassily_sun_b_1_has_too_few_users(middle: float) -> None:
    """Algorithm 2 with its flipped bits; this share of the users is in the middle one of t intervals, the others in
    the next one. The lemma allows gamma."""
    rng, epsilon, t, gamma = np.random.default_rng(0), 0.5, 101, 0.01
    keep = 1 / (1 + math.exp(-epsilon / 2))

    def wrong(users: int) -> float:
        counts = rng.binomial(users, 1 - keep, (2000, t))
        for at, share in ((t // 2, middle), (t // 2 + 1, 1 - middle)):
            there = round(users * share)
            counts[:, at] = rng.binomial(there, keep, 2000) + rng.binomial(users - there, 1 - keep, 2000)
        return float(np.mean(np.abs(np.argmax(counts, axis=1) - t // 2) > 1))

    least = math.ceil(4 * math.log(t / gamma) / epsilon**2)
    assert wrong(least) > (10 if middle == 1 else 50) * gamma
    assert wrong(16 * least) <= gamma


def selected(points: np.ndarray) -> np.ndarray:
    """The probabilities of Algorithm 2 of Asi and Liu for points on a line and tau = 1/2."""
    near = np.sum(np.abs(points[:, None] - points) <= 1, axis=1)
    return np.clip((near - len(points) / 2) / (len(points) / 6), 0, 1)


def test_asi_liu_3_3_is_off_by_more_than_two() -> None:
    """Of 12 users one goes over from the smaller group to the larger one."""
    before, after = np.repeat([0.0, 9.0], [7, 5]), np.repeat([0.0, 9.0], [8, 4])
    assert np.abs(selected(before) - selected(after)).sum() == pytest.approx(4.5)
    rng = np.random.default_rng(1)
    for _ in range(300):
        points = rng.choice([0.0, 0.8, 1.6, 9.0], 30)
        other = points.copy()
        other[0] = rng.choice([0.0, 0.8, 1.6, 9.0])
        assert np.abs(selected(points) - selected(other)).sum() <= 7


@pytest.mark.parametrize("users", [2, 10, 10_000])
def test_asi_liu_3_4_has_a_coupling(users: int) -> None:
    """With common random numbers user j differs with probability |p_j - p'_j|, of sum 2; equal ones are the worst."""
    for zeta in np.geomspace(0.5, 1e-12, 9):
        assert binom.sf(15 - math.log(zeta), users, 2 / users) <= zeta


@pytest.mark.parametrize("records", [2, 8, 32])
def test_asi_liu_4_9_holds_up_to_two(records: int) -> None:
    """Linear losses of slope +-1 on a line, T steps of size 1 / T; one of n m records has the other sign."""
    ratios = []
    for steps in (1, records**2, 100 * records**2):
        ends = [-(signs / records) for signs in (records, records - 2)]  # theta after T steps of mean slope
        ratios.append(abs(ends[0] - ends[1]) / (1 / math.sqrt(steps) + 1 / records))
    assert max(ratios) < 2
    assert ratios[-1] > 1


def test_asi_liu_3_7_has_too_few_users() -> None:
    """One query of users who are all near each other. The proposition allows 2 gamma for a run that halts."""
    gamma = 0.01

    def halts(times_epsilon: float) -> float:
        z, A, B = times_epsilon / 5, 8, 4  # Laplace noise of the query and of the threshold, for epsilon / 2
        return (A**2 * math.exp(-z / A) - B**2 * math.exp(-z / B)) / (2 * (A**2 - B**2))

    assert halts(8 * math.log(1 / gamma)) > 20 * gamma
    assert halts(80 * math.log(2 / gamma)) <= 2 * gamma


@pytest.mark.parametrize("n", [3_000, 10_000])
@pytest.mark.parametrize("d", [5, 20])
def test_ac_sa_is_not_worse_than_the_plan_that_cheu_et_al_print(n: int, d: int) -> None:
    """The same records, and seeds are fixed; `studies/printed.md` has all sizes."""
    size = printed.Size(n, d)
    assert printed.losses("ac-sa", size).mean() < printed.losses("Theorem 4.3", size).mean()
