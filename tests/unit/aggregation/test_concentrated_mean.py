"""Private means of vectors that lie close together: the test, its tails, the noise, the budget, audits of users."""

import math

import numpy as np
import pytest
from scipy import stats

from streamdp import ApproxDP, GaussianDP
from streamdp.aggregation.concentrated_mean import AboveThreshold, ConcentratedMean, QueryRun, far_share
from streamdp.aggregation.selection import WeightedMean
from streamdp.errors import ConfigError, QueriesExhaustedError
from streamdp.privacy.entropy import SeededEntropy
from studies.selected_mean import SelectedMean
from tests.support.audit import epsilon_lower_bound, mu_lower_bound
from tests.support.sizes import some

pytestmark = pytest.mark.slow

BUDGET = ApproxDP(4.0, 1e-6)


def fresh(seed: int) -> SeededEntropy:
    return SeededEntropy(seed, 1 << 16)


def planned(users: int = 600, queries: int = 4, budget: ApproxDP = BUDGET, **change: object) -> ConcentratedMean:
    settings: dict[str, object] = {"d": 2, "bound": 1.0, "distance": 0.1, "outliers": 0.01}
    mean = ConcentratedMean.planned(budget, users, queries=queries, failure=0.01, **(settings | change))
    assert mean is not None
    return mean


# --- the test


def outcomes(test: AboveThreshold, low: float, last: float, passes: int, share: float = 1.0) -> float:
    """P(`passes` scores of threshold + low pass, then one of threshold + last fails), for a share of the noise."""
    scale, level = (share * m.rows(1)[0, 0] for m in (test.score_noise, test.level_noise))
    noise = np.linspace(-30 * level, 30 * level, 8001)

    def below(x: np.ndarray) -> np.ndarray:
        tail = np.exp(-np.abs(x) / scale) / 2
        return np.where(x < 0, tail, 1 - tail)

    density = np.exp(-np.abs(noise) / level) / (2 * level)
    return float(np.trapezoid(density * below(low - noise) ** passes * below(noise - last), noise))


@pytest.mark.parametrize("epsilon", some([0.3, 1.0], 1))
def test_all_tests_together_keep_their_epsilon_and_the_papers_noise_does_not(epsilon: float) -> None:
    """The likelihood ratio of outcomes, integrated, for scores that move by 2, the last one against the others."""
    test = AboveThreshold(epsilon, 800.0, 1000)
    largest = {1.0: 0.0, 0.5: 0.0}
    for passes in (1, 5, 50, 400):
        for low in np.arange(-6, 21, 3.0) / epsilon:
            for last in np.arange(-6, 21, 2.0) / epsilon:
                for share in largest:
                    p, q = (outcomes(test, low + s, last - s, passes, share) for s in (1.0, -1.0))
                    if min(p, q) > 1e-7:
                        largest[share] = max(largest[share], abs(math.log(p / q)))
    assert 0.97 * epsilon < largest[1.0] <= epsilon * (1 + 1e-4)
    assert largest[0.5] > 1.9 * epsilon  # with the noise for a sensitivity of 1


def test_an_attack_on_the_outcomes_of_the_tests() -> None:
    """Five scores, and the sixth that moves against them: below the claim with the noise as it is, above it with that
    for the paper's sensitivity of 1. By simulation, 60,000 runs of each kind."""
    test, runs = AboveThreshold(1.0, 800.0, 1000), 60_000

    def events(move: float, share: float, seed: int) -> np.ndarray:
        level = test.level_noise.randomize(np.full((runs, 1), test.threshold), fresh(seed)) - test.threshold
        scores = test.score_noise.randomize(np.zeros((runs * 6, 1)), fresh(seed + 10)).reshape(runs, 6)
        above = share * scores + np.append(np.full(5, move), -move) - 2.0 >= share * level
        return (above[:, :-1].all(axis=1) & ~above[:, -1]).astype(float)

    found = {share: epsilon_lower_bound(events(1, share, 1), events(-1, share, 2)) for share in (1.0, 0.5)}
    assert 0.55 < found[1.0] <= 1.0
    assert found[0.5] > 1.2


def test_the_noise_of_the_tests_and_its_tail() -> None:
    """Laplace with these scales, 20 % off is rejected (Kolmogorov-Smirnov, false alarm 1e-7); the tail of both together
    is the bound's, which is exact for one query but for the smaller of two terms."""
    test = AboveThreshold(0.5, 700.0, 1000)
    runs = 60_000
    level = test.level_noise.randomize(np.full((runs, 1), test.threshold), fresh(3))[:, 0] - test.threshold
    score = test.score_noise.randomize(np.zeros((runs, 1)), fresh(4))[:, 0]
    for sample, scale in ((level, 2 / (3 / 8 * 0.5)), (score, 4 / (5 / 8 * 0.5))):
        for factor in (0.8, 1.0, 1.2):
            assert (stats.kstest(sample / (factor * scale), "laplace").pvalue > 1e-7) == (factor == 1.0)
    for chance in (0.01, 0.001):
        margin = test.margin(chance, 1)
        assert test.chance(margin, 1) == pytest.approx(chance)
        found = np.count_nonzero(score - level >= margin)
        assert stats.binom.sf(found - 1, runs, chance) > 1e-7
        assert found > 0.7 * chance * runs
    many = score.reshape(-1, 20).max(axis=1) - level.reshape(-1, 20)[:, 0]
    assert stats.binom.sf(np.count_nonzero(many >= test.margin(0.01, 20)) - 1, len(many), 0.01) > 1e-7


@pytest.mark.parametrize(("users", "share"), [(200, 0.1), (201, 0.02), (1000, 0.005)])
def test_how_many_pairs_may_be_far(users: int, share: float) -> None:
    """Two sides of users, and users far from all: 4000 windows pass the limit as rarely as is claimed."""
    limit, rng = far_share(share, users, 0.01), np.random.default_rng(5)
    assert share < limit < share + 3 * math.sqrt(share / users) + 15 / users
    outlier = 1 - math.sqrt(1 - share)  # a pair is near where neither is far from all
    alone = rng.binomial(users, outlier, size=4000)
    one_side = share / 2 / 0.5
    left = rng.binomial(users, (1 - math.sqrt(1 - 2 * one_side)) / 2, size=4000)
    for far in (users * (users - 1) - (users - alone) * (users - alone - 1), 2 * left * (users - left)):
        assert np.mean(far) == pytest.approx(share * users * (users - 1), rel=0.05)
        assert stats.binom.sf(np.count_nonzero(far > limit * users * (users - 1)) - 1, 4000, 0.01) > 1e-7


# --- the plan


@pytest.mark.parametrize("selection", [WeightedMean, SelectedMean])
@pytest.mark.parametrize("budget", some([ApproxDP(1.0, 1e-6), ApproxDP(4.0, 1e-9), ApproxDP(0.2, 1e-4)], 0, 2))
@pytest.mark.parametrize("queries", [1, 50])
def test_all_parts_of_the_plan_are_within_the_budget(
    selection: type[WeightedMean], budget: ApproxDP, queries: int
) -> None:
    mean = planned(20_000, queries, budget, selection=selection)
    answers = GaussianDP(mean.mu).delta(budget.epsilon - mean.test.epsilon)
    assert answers + mean.zeta + queries * mean.selection.failure <= budget.delta * (1 + 1e-12)
    assert answers > 0.1 * budget.delta  # and little of it is left over
    assert mean.answer.budget.mu * math.sqrt(queries) == pytest.approx(mean.mu)
    assert mean.answer.sensitivity == mean.sensitivity >= mean.distance * mean.selection.sensitivity
    margin = mean.test.threshold - (mean.users - mean.selection.far / mean.users)
    assert mean.test.chance(margin, queries) == pytest.approx(mean.zeta)
    assert mean.zeta > 0
    # Users that are all near pass but for a chance below the planned one.
    assert mean.test.chance(mean.users - mean.test.threshold, queries) < 0.005


def test_weights_need_far_less_noise_than_coins_and_both_less_with_more_users() -> None:
    for users in (2000, 20_000):
        weighted, sampled = (planned(users, selection=s) for s in (WeightedMean, SelectedMean))
        assert weighted.noise < sampled.noise / 5
        assert planned(4 * users).noise < weighted.noise / 4
    assert planned(10**6).sensitivity * 10**6 / 0.1 == pytest.approx(2.6, rel=0.05)


# --- answers


def test_the_noise_of_an_answer() -> None:
    """N(0, sensitivity^2 T / mu^2) around the mean of those that are near; 20 % off is rejected."""
    mean = planned(queries=20_000)
    points = np.full((600, 2), 0.3) + np.random.default_rng(6).uniform(-0.02, 0.02, size=(600, 2))
    answers = QueryRun(mean, fresh(7))
    found = np.array([answers.of(points) for _ in range(2500)])
    z = (found - points.mean(axis=0)).ravel() / mean.noise
    for factor in (0.8, 1.0, 1.2):
        assert (stats.kstest(z / factor, "norm").pvalue > 1e-7) == (factor == 1.0)


@pytest.mark.parametrize("selection", [WeightedMean, SelectedMean])
def test_outliers_are_left_out(selection: type[WeightedMean]) -> None:
    mean = planned(4000, 2, selection=selection)
    points = np.zeros((4000, 2))
    points[:40] = [1.0, 0.0]
    answers = QueryRun(mean, fresh(8))
    for _ in range(2):
        answer = answers.of(points)
        assert answer is not None
        assert np.abs(answer).max() < 6 * mean.noise < 0.01


def test_a_failed_test_is_the_last_and_so_is_the_last_query() -> None:
    mean = planned()
    scattered = np.column_stack([np.linspace(-1, 1, 600), np.zeros(600)])
    answers = QueryRun(mean, fresh(9))
    assert answers.of(np.zeros((600, 2))) is not None
    assert answers.of(scattered) is None
    with pytest.raises(QueriesExhaustedError):
        answers.of(np.zeros((600, 2)))
    answers = QueryRun(mean, fresh(10))
    for _ in range(4):
        assert answers.of(np.zeros((600, 2))) is not None
    with pytest.raises(QueriesExhaustedError):
        answers.of(np.zeros((600, 2)))
    with pytest.raises(ConfigError):
        QueryRun(mean, fresh(11)).of(np.zeros((599, 2)))
    for epsilon, threshold in ((1e-9, 5.0), (1.0, 0.0), (1.0, 11.0)):
        with pytest.raises(ConfigError):
            AboveThreshold(epsilon, threshold, 10)


# --- audits of a user


def ends(mean: ConcentratedMean) -> tuple[np.ndarray, np.ndarray]:
    """All others in one place, one user at one end of what is near and at the other."""
    a = np.zeros((mean.users, mean.d))
    b = a.copy()
    a[0, 0], b[0, 0] = mean.distance, -mean.distance
    return a, b


def test_an_attack_on_the_answers() -> None:
    """Centres as far apart as the bound allows, 300,000 answers each: close to the claim, above it with half the
    noise."""
    mean = planned(20_000, 1)
    centres = np.zeros((2, 300_000, 2))
    centres[1, :, 0] = mean.sensitivity
    a, b = (mean.answer.randomize(c, fresh(20 + i))[:, 0] for i, c in enumerate(centres))
    assert 0.93 * mean.mu < mu_lower_bound(a, b) <= mean.mu
    assert mu_lower_bound(a / 2, (b - mean.sensitivity) / 2 + mean.sensitivity) > 1.7 * mean.mu


@pytest.mark.campaign
def test_an_attack_on_a_user_of_whole_runs() -> None:
    """1500 runs of two queries each for a user at one end and at the other: the sum of the answers tells them apart, by
    less than is claimed, and with a quarter of the noise by more."""
    mean = planned(500, 2, ApproxDP(10.0, 1e-2), d=1)
    sums: list[list[float]] = []
    for side, points in enumerate(ends(mean)):
        sums.append([])
        for run in range(1500):
            answers = QueryRun(mean, SeededEntropy(2 * run + side, 256))
            found = [answers.of(points) for _ in range(mean.queries)]
            sums[side].append(sum(0.0 if answer is None else float(answer[0]) for answer in found))
    a, b = map(np.array, sums)
    apart = mean.distance / mean.users * mean.queries
    assert 0.45 < mu_lower_bound(a, b) <= mean.mu
    assert epsilon_lower_bound(a, b, mean.budget.delta) <= mean.budget.epsilon
    assert mu_lower_bound((a - apart) / 4 + apart, (b + apart) / 4 - apart) > mean.mu
