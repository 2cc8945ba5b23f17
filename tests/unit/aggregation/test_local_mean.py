"""The locally private mean of vectors that lie close together: exact privacy, audits, and accuracy against theory."""

import math
from itertools import combinations

import numpy as np
import pytest
from scipy import stats

from streamdp import ApproxDP, GaussianDP, PureDP
from streamdp.aggregation.local_mean import IntervalResponse, UserMean, pure_epsilon
from streamdp.errors import BudgetError, ConfigError, SchemaError
from streamdp.privacy.entropy import SeededEntropy
from streamdp.privacy.guarantees import Budget
from studies.user_claims import mean_of
from tests.support.audit import epsilon_lower_bound, lower_bound
from tests.support.sizes import some

pytestmark = pytest.mark.slow

TRIALS = 400_000
CONCENTRATED = UserMean.planned(ApproxDP(4.0, 1e-6), 1.0, 2.0, 6, 20_000, 0.02)


def fresh(seed: int) -> SeededEntropy:
    return SeededEntropy(seed, 1 << 16)


# --- intervals


@pytest.mark.parametrize("epsilon", [0.1, 1.0, 3.0])
@pytest.mark.parametrize("intervals", [2, 3, 7, 12])
def test_likelihoods_differ_by_e_to_the_epsilon_and_no_more(epsilon: float, intervals: int) -> None:
    """The probability of every set of intervals, in whole numbers, for every pair of inputs."""
    response = IntervalResponse(epsilon, intervals)
    k, keep, one = response.picks, response.keep, 2**64
    largest = 0.0
    for named in combinations(range(intervals), k):
        likelihood = [
            keep * math.comb(intervals - 1, k) if truth in named else (one - keep) * math.comb(intervals - 1, k - 1)
            for truth in range(intervals)
        ]
        largest = max(largest, max(likelihood) / min(likelihood))
    assert math.exp(epsilon) * (1 - 1e-12) < largest <= math.exp(epsilon) * (1 + 1e-15)


@pytest.mark.parametrize(("epsilon", "intervals"), [(1.0, 5), (0.5, 8), (4.0, 6), (0.1, 2)])
def test_reports_have_these_likelihoods(epsilon: float, intervals: int) -> None:
    """Chi-square over all sets for every true interval; false alarm 1e-6 in all."""
    response = IntervalResponse(epsilon, intervals)
    k, p = response.picks, response.keep / 2**64
    sets = list(combinations(range(intervals), k))
    for truth in range(intervals):
        reports = response.randomize(np.full(100_000, truth), fresh(truth))
        assert (reports.sum(axis=1) == k).all()
        codes, counts = np.unique(reports @ (1 << np.arange(intervals)), return_counts=True)
        seen = dict(zip(codes.tolist(), counts.tolist(), strict=True))
        right, wrong = p / math.comb(intervals - 1, k - 1), (1 - p) / math.comb(intervals - 1, k)
        expected = [right if truth in s else wrong for s in sets]
        observed = [seen.get(sum(1 << j for j in s), 0) for s in sets]
        assert sum(observed) == 100_000
        assert stats.chisquare(observed, np.array(expected) * 100_000).pvalue > 1e-6 / intervals


@pytest.mark.parametrize("epsilon", [0.2, 1.0, 3.0])
@pytest.mark.parametrize("intervals", [3, 10, 40])
def test_fewer_users_than_the_papers_bits(epsilon: float, intervals: int) -> None:
    """(p - q)^2 over the variance of a vote for a wrong interval, against t bits flipped with odds e^(epsilon/2)."""
    p, q = IntervalResponse(epsilon, intervals).chances
    assert (p - q) ** 2 / (q * (1 - q)) > 0.99 * (2 * math.sinh(epsilon / 4)) ** 2


def test_a_budget_as_an_epsilon() -> None:
    assert pure_epsilon(PureDP(0.7)) == pure_epsilon(ApproxDP(0.7, 1e-6)) == 0.7
    for epsilon in (0.01, 1.0, 8.0):
        assert pure_epsilon(GaussianDP.from_pure(PureDP(epsilon))) == pytest.approx(epsilon, rel=1e-9)


# --- the coarse question


def concentrated(mean: UserMean, n: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """A mean of norm 0.9 and n vectors around it at a root mean square distance of the spread."""
    rng = np.random.default_rng(seed)
    centre = rng.standard_normal(mean.d)
    centre *= 0.9 * mean.bound / np.linalg.norm(centre)
    vectors = centre + rng.standard_normal((n, mean.d)) * (mean.spread / math.sqrt(mean.d))
    return centre, vectors


@pytest.mark.parametrize("budget", some([ApproxDP(4.0, 1e-6), PureDP(2.0), GaussianDP(1.5)], 1))
def test_the_centre_is_as_near_as_the_radius_assumes(budget: Budget) -> None:
    """25 batches with the planned number of coarse users; `FAILURE` of them may be further off. Seeded."""
    mean = UserMean.planned(budget, 1.0, 2.0, 5, 30_000, 0.03)
    assert 0 < mean.coarse <= 15_000
    half = mean.reach / mean.intervals
    failures, distances = 0, []
    for seed in range(25):
        centre, vectors = concentrated(mean, mean.coarse, seed)
        signs = mean.signs((seed,))
        coordinates = np.arange(mean.coarse) % mean.padded
        votes = np.zeros((mean.padded, mean.intervals), dtype=np.int64)
        np.add.at(votes, coordinates, mean.answer_coarse(vectors, coordinates, signs, fresh(seed)))
        distances.append(float(np.linalg.norm(mean.centre(votes, signs) - centre)))
        failures += distances[-1] > half * math.sqrt(mean.padded)
    assert failures <= 1
    assert np.sqrt(np.mean(np.square(distances))) < half * math.sqrt(mean.padded)


def test_without_noise_the_centre_is_the_middle_of_the_intervals() -> None:
    mean = CONCENTRATED
    centre, _ = concentrated(mean, 1, 3)
    signs = mean.signs((1, 2, 3))
    coordinates = np.arange(mean.padded)
    places = mean.intervals_of(np.tile(centre, (mean.padded, 1)), coordinates, signs)
    votes = np.eye(mean.intervals, dtype=np.int64)[places]
    half = mean.reach / mean.intervals
    assert np.linalg.norm(mean.centre(votes, signs) - centre) <= half * math.sqrt(mean.padded)
    assert set(signs) == {-1.0, 1.0}
    assert not np.array_equal(signs, mean.signs((1, 2, 4)))


@pytest.mark.parametrize("d", [1, 2, 3, 8, 11])
def test_the_rotation_is_one(d: int) -> None:
    from streamdp.aggregation.user_kernels import transform

    D = 1 << (d - 1).bit_length()
    H = np.eye(D)
    transform(H)
    np.testing.assert_allclose(H @ H.T, np.eye(D), atol=1e-12)
    np.testing.assert_allclose(np.abs(H), D**-0.5, atol=1e-12)
    np.testing.assert_allclose(H, H.T, atol=1e-12)


# --- the fine question


@pytest.mark.parametrize(
    ("budget", "coarse", "cut"),
    [(ApproxDP(1.0, 1e-6), 3000, None), (GaussianDP(0.5), 0, None), (GaussianDP(0.5), 0, 0.2)],
)
def test_fine_reports_are_the_cut_offset_plus_gaussian_noise(budget: Budget, coarse: int, cut: float | None) -> None:
    """Kolmogorov-Smirnov at 1e-7 a coordinate accepts the scale and rejects one that is 20 % off."""
    mean = UserMean(budget, 1.0, 2.0, 3, 100_000, 0.05, coarse, cut)
    vector, centre = np.array([0.6, -0.5, 0.4]), np.array([0.1, 0.2, -0.3]) if coarse else np.zeros(3)
    offset = vector - centre
    offset *= min(1.0, mean.radius / np.linalg.norm(offset))
    reports = mean.answer_fine(np.tile(vector, (50_000, 1)), centre, fresh(9))
    sigma = math.sqrt(mean.fine.variance(3) / 3)
    for j in range(3):
        z = (reports[:, j] - offset[j]) / sigma
        assert stats.kstest(z, "norm").pvalue > 1e-7
        for scale in (0.8, 1.2):
            assert stats.kstest(z / scale, "norm").pvalue < 1e-7


@pytest.mark.parametrize(("coarse", "cut"), [(3000, None), (0, 0.2)])
def test_offsets_are_cut_to_the_radius_for_any_vector(coarse: int, cut: float | None) -> None:
    mean = UserMean(ApproxDP(1.0, 1e-6), 1.0, 2.0, 3, 100_000, 0.05, coarse, cut)
    assert mean.radius < 0.5
    assert cut is None or mean.radius == cut
    assert mean.fine.bound == mean.radius
    assert mean.fine.sensitivity == pytest.approx(2 * mean.radius)
    rng = np.random.default_rng(4)
    vectors = rng.standard_normal((20_000, 3))
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    noise = mean.answer_fine(np.zeros((20_000, 3)), np.zeros(3), fresh(5))
    cut = mean.answer_fine(vectors, np.array([0.9, 0.0, 0.0]), fresh(5)) - noise  # the same words, so the same noise
    assert np.linalg.norm(cut, axis=1).max() <= mean.radius * (1 + 1e-5)


@pytest.mark.parametrize("rare", [0.001, 0.1, 0.25, 0.5])
def test_a_cut_moves_the_mean_by_at_most_what_is_said(rare: float) -> None:
    """E||v||^2 / (4 C) for a mean of zero, in the worst case: a few vectors twice as long as the cut, on one side."""
    mean = UserMean(ApproxDP(1.0, 1e-6), 1.0, 2.0, 2, 10, 0.1, cut=0.1)
    vectors = np.array([[0.2, 0.0], [-0.2 * rare / (1 - rare), 0.0]])
    chances = np.array([rare, 1 - rare])
    cut = vectors * np.minimum(1.0, mean.radius / np.linalg.norm(vectors, axis=1, keepdims=True))
    moved, least = np.linalg.norm(chances @ cut), chances @ np.sum(vectors**2, axis=1) / (4 * mean.radius)
    assert moved <= least * (1 + 1e-12)
    if rare == 0.001:
        assert moved > 0.99 * least
    answers = (
        mean.answer_fine(np.repeat(vectors, 200_000, axis=0), np.zeros(2), fresh(6)).reshape(2, -1, 2).mean(axis=1)
    )
    assert np.abs(answers - cut).max() < 6 * math.sqrt(mean.fine.variance(2) / 2 / 200_000)


# --- audits


def hardest(mean: UserMean, centre: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Two vectors whose offsets are as far apart as can be."""
    axis = np.eye(mean.d)[0]
    return centre + mean.radius * axis, centre - mean.radius * axis


@pytest.mark.parametrize(
    ("budget", "share", "coarse", "cut"),
    [
        (ApproxDP(1.0, 0.05), 0.85, 3000, None),
        (GaussianDP(1.0), 0.95, 0, 0.2),
        (PureDP(1.0), 0.9, 0, None),
        (PureDP(1.0), 0.9, 3000, None),
    ],
)
def test_an_attack_on_the_fine_answer(budget: Budget, share: float, coarse: int, cut: float | None) -> None:
    """Below the claim, close to it, and above it with half the noise."""
    mean = UserMean(budget, 1.0, 2.0, 3, 100_000, 0.05, coarse, cut)
    centre = np.zeros(3)
    a, b = (mean.answer_fine(np.tile(v, (TRIALS, 1)), centre, fresh(i)) for i, v in enumerate(hardest(mean, centre)))
    claim = budget.mu if isinstance(budget, GaussianDP) else budget.epsilon
    assert share * claim < lower_bound(budget, a[:, 0], b[:, 0]) <= claim
    if not isinstance(budget, PureDP):  # PrivUnit's noise has no scale to halve
        half = [(v - s * mean.radius) / 2 + s * mean.radius for v, s in ((a[:, 0], 1), (b[:, 0], -1))]
        assert lower_bound(budget, *half) > 1.2 * claim


def test_an_attack_on_the_coarse_answer() -> None:
    """Two vectors at opposite ends; the truth is told by whether the report names the first one's interval."""
    mean = UserMean(ApproxDP(1.0, 1e-6), 1.0, 2.0, 3, 100_000, 0.05, 3000)
    signs, coordinates = mean.signs((7,)), np.zeros(TRIALS, dtype=int)
    end = np.array([1.0, 1.0, 1.0]) / math.sqrt(3) * signs[:3]
    scores = []
    for i, vector in enumerate((end, -end)):
        reports = mean.answer_coarse(np.tile(vector, (TRIALS, 1)), coordinates, signs, fresh(20 + i)).astype(float)
        first, other = (int(mean.intervals_of(v[None], coordinates[:1], signs)[0]) for v in (end, -end))
        assert first != other
        scores.append(reports[:, first] - reports[:, other])
    assert 0.95 < epsilon_lower_bound(*scores) <= 1.0


def test_the_attack_finds_the_papers_budget_that_was_spent_twice() -> None:
    """Theorem 4.3: each user answers the coarse question with epsilon / 2 and the fine one with all of it. The joint
    likelihood ratio of both answers passes epsilon; that of either alone, as here, does not."""
    budget = ApproxDP(1.0, 0.05)
    mean = UserMean(budget, 1.0, 2.0, 3, 100_000, 0.05, 3000)
    half = IntervalResponse(0.5, mean.intervals)
    sigma = math.sqrt(mean.fine.variance(3) / 3)
    joint, alone = [], []
    for i, vector in enumerate(hardest(mean, np.zeros(3))):
        fine = mean.answer_fine(np.tile(vector, (TRIALS, 1)), np.zeros(3), fresh(30 + i))[:, 0]
        coarse = half.randomize(np.full(TRIALS, i * (mean.intervals - 1)), fresh(40 + i)).astype(float)
        ratio = fine * 2 * mean.radius / sigma**2
        alone.append(ratio)
        joint.append(ratio + 0.5 * (coarse[:, 0] - coarse[:, -1]))  # half of epsilon
    assert epsilon_lower_bound(*alone, delta=0.05) <= 1.0
    assert epsilon_lower_bound(*joint, delta=0.05) > 1.1


# --- accuracy


@pytest.mark.parametrize("budget", some([ApproxDP(4.0, 1e-6), PureDP(2.0)], 0))
def test_the_mean_is_unbiased_and_its_error_is_the_claimed_one(budget: Budget) -> None:
    """120 means of one batch each: z-scores of the average error, and the variance within 25 %. Seeded."""
    mean = UserMean.planned(budget, 1.0, 2.0, 3, 8000, 0.02)
    assert mean.coarse
    _, vectors = concentrated(mean, mean.users, 1)
    truth = vectors[mean.coarse :].mean(axis=0)
    errors = np.array([mean_of(mean, vectors, k, fresh(k)) - truth for k in range(120)])
    z = errors.mean(axis=0) / np.sqrt(mean.variance / mean.d / len(errors))
    assert np.abs(z).max() < 5
    assert np.mean(np.sum(errors**2, axis=1)) == pytest.approx(mean.variance, rel=0.25)


def test_the_error_falls_with_users_and_with_items() -> None:
    """By about 1/sqrt(n m): a factor of 4 in either halves it, up to the coarse users' share. Seeded."""

    def error(users: int, items: int) -> float:
        mean = UserMean.planned(ApproxDP(4.0, 1e-6), 1.0, 2.0, 3, users, 1 / math.sqrt(items))
        squares = []
        for seed in range(12):
            centre, vectors = concentrated(mean, users, seed)
            squares.append(np.sum((mean_of(mean, vectors, seed, fresh(seed)) - centre) ** 2))
        return math.sqrt(np.mean(squares))

    base, more_users, more_items = error(6000, 1000), error(24_000, 1000), error(6000, 4000)
    assert 1.5 < base / more_users < 3
    assert 1.5 < base / more_items < 3
    one_question = math.sqrt(UserMean(ApproxDP(4.0, 1e-6), 1.0, 2.0, 3, 6000, 1.0).variance)
    assert base < 0.5 * one_question


def test_the_coarse_question_is_asked_only_where_it_pays() -> None:
    budget = ApproxDP(1.0, 1e-6)
    assert UserMean.planned(budget, 1.0, 2.0, 6, 10**6).coarse == 0
    assert UserMean.planned(budget, 1.0, 2.0, 6, 1000, 0.01).coarse == 0  # too few users
    split = UserMean.planned(budget, 1.0, 2.0, 6, 10**6, 0.01)
    plain = UserMean(budget, 1.0, 2.0, 6, 10**6, 0.01)
    assert 0 < split.coarse < 10**6 / 20
    assert split.variance < plain.variance / 50
    assert plain.radius == 1.0


def test_outliers_are_only_pulled_in() -> None:
    """A tenth of the users anywhere: the centre holds, and each moves the mean by at most the radius over n."""
    mean = CONCENTRATED
    centre, vectors = concentrated(mean, mean.users, 8)
    vectors[::10] = -centre
    error = np.linalg.norm(mean_of(mean, vectors, 1, fresh(1)) - centre)
    assert error < 0.1 * 1.1 * mean.radius + 5 * math.sqrt(mean.variance)


# --- what is refused


@pytest.mark.parametrize(
    ("change", "error"),
    [
        ({"bound": 0.0}, ConfigError),
        ({"sensitivity": 2.5}, ConfigError),
        ({"d": 0}, ConfigError),
        ({"users": 0}, ConfigError),
        ({"spread": 0.0}, ConfigError),
        ({"spread": 2.0}, ConfigError),
        ({"coarse": 60}, ConfigError),
        ({"coarse": 1, "spread": 1.0}, ConfigError),
        ({"coarse": 16, "cut": 0.1}, ConfigError),
        ({"cut": 0.0}, ConfigError),
        ({"cut": 1.1}, ConfigError),
        ({"cut": math.nan}, ConfigError),
        ({"budget": PureDP(1e-9)}, BudgetError),
    ],
)
def test_bad_agreements_are_refused(change: dict[str, object], error: type[Exception]) -> None:
    settings = {
        "budget": ApproxDP(1.0, 1e-6),
        "bound": 1.0,
        "sensitivity": 2.0,
        "d": 1,
        "users": 100,
        "spread": 0.05,
        "coarse": 0,
    }
    with pytest.raises(error):
        UserMean(**(settings | change))


def test_bad_vectors_are_refused_without_their_values() -> None:
    mean = UserMean(ApproxDP(1.0, 1e-6), 1.0, 2.0, 2, 100, 0.05)
    for vectors in (np.array([[47.11, 0.0]]), np.array([[np.nan, 0.0]]), np.zeros((1, 3)), np.zeros(2)):
        with pytest.raises(ConfigError) as caught:
            mean.answer_fine(vectors, np.zeros(2), fresh(1))
        assert "47" not in str(caught.value)
    with pytest.raises(SchemaError):
        IntervalResponse(1.0, 4).randomize(np.array([4]), fresh(1))
    for intervals in (1, 5000):
        with pytest.raises(ConfigError):
            IntervalResponse(1.0, intervals)
