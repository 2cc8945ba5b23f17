"""Private ranges: the exponential mechanism exactly, its guarantee on all small cases, audits, and learning."""

import math
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from itertools import product
from typing import Any

import numpy as np
import pytest
from scipy import stats
from scipy.special import log_expit, ndtri, ndtri_exp

from streamdp import ApproxDP, GaussianDP, PureDP
from streamdp.aggregation import range_mean
from streamdp.aggregation.range_mean import RangeMean
from streamdp.errors import ConfigError, TooFewUsersError
from streamdp.privacy.entropy import SeededEntropy
from streamdp.privacy.mechanisms import Gaussian
from streamdp.privacy.subsampling import noise_multiplier
from streamdp.windows.ranges import PrivateRange, RangePlan
from streamdp.windows.task import Task
from tests.support.audit import epsilon_lower_bound, mu_lower_bound
from tests.support.sizes import some

TRIALS = 400_000
CENTRED = RangeMean.planned(2.0, 1.0, 2.0, 6, 800, 1.0, 0.02)
TASK = Task(5000, 400, 8, ApproxDP(4.0, 1e-6), 1.0, 2.0, 1.0, 0.0, 1.0, 0.01)


def fresh(seed: int) -> SeededEntropy:
    return SeededEntropy(seed, 1 << 16)


# --- the exponential mechanism


def weights(mean: RangeMean, counts: np.ndarray) -> np.ndarray:
    """The probabilities of bins, from the formula of Algorithm 6."""
    up_to = np.cumsum(counts)
    cost = np.array([max(up_to[x] - counts[x], up_to[-1] - up_to[x]) for x in range(len(counts))])
    p = np.exp(-mean.steepness * (cost - cost.min()))
    return p / p.sum()


def test_bins_have_these_probabilities() -> None:
    """Chi-square accepts the steepness at 1e-6 and rejects one that is 20 % off."""
    counts = np.array([[3, 0, 9, 14, 7, 2, 0, 5]])
    mean = replace(CENTRED, mu=0.7)
    chosen = mean.choose(np.tile(mean.costs(counts), (200_000, 1)), fresh(1))
    observed = np.bincount(chosen, minlength=8)
    assert stats.chisquare(observed, 200_000 * weights(mean, counts[0])).pvalue > 1e-6
    for factor in (0.8, 1.2):
        wrong = replace(mean, mu=0.7 * factor)
        assert wrong.steepness == pytest.approx(factor * mean.steepness, rel=0.01)
        assert stats.chisquare(observed, 200_000 * weights(wrong, counts[0])).pvalue < 1e-6


def neighbours(counts: np.ndarray) -> Iterator[tuple[bool, np.ndarray]]:
    """All histograms with one user replaced (True), and left out (False)."""
    bins = np.eye(len(counts), dtype=int)
    for a in np.flatnonzero(counts):
        yield False, counts - bins[a]
        yield from ((True, counts - bins[a] + bins[b]) for b in range(len(counts)) if b != a)


def test_a_user_moves_no_cost_by_more_than_one() -> None:
    """A search over random histograms; left out, costs only fall. Both signs are reached where one is replaced."""
    rng = np.random.default_rng(2)
    falls, moves = set(), set()
    for _ in range(300):
        counts = rng.integers(0, 4, size=rng.integers(2, 9))
        for replaced, other in neighbours(counts):
            change = RangeMean.costs(other[None])[0] - RangeMean.costs(counts[None])[0]
            if replaced:
                moves |= set(change.tolist())
            else:
                falls |= set(change.tolist())
    assert falls == {-1, 0}
    assert moves == {-1, 0, 1}


@pytest.mark.parametrize("rate", [1.0, 0.5])
@pytest.mark.parametrize("mu", [0.3, 1.0, 3.0])
@pytest.mark.slow
def test_every_small_case_keeps_the_range_and_the_mu(rate: float, mu: float) -> None:
    """All histograms of up to 5 users in 4 bins and all neighbours: the range of log ratios, and the trade-off curve,
    whose corners all lie above that of mu-GDP. Both are nearly reached, so neither can be a tenth less."""
    mean = RangeMean(mu, 1.0, 2.0, 1, 10_000, rate, 0.5, 0.5)
    spent = mu * math.sqrt(0.5)
    length = mean.steepness * (2 if rate == 1 else 1)
    assert GaussianDP.from_pure(PureDP(length / 2)).mu == pytest.approx(spent, rel=1e-6)
    widest, most = 0.0, 0.0
    for histogram in product(range(6), repeat=4):
        if not 0 < sum(histogram) <= 5:
            continue
        counts = np.array(histogram)
        p = weights(mean, counts)
        for replaced, other in neighbours(counts):
            if replaced != (rate == 1):
                continue
            q = weights(mean, other)
            ratios = np.log(p / q)
            widest = max(widest, float(np.ptp(ratios)))
            assert ratios.min() <= 1e-12
            assert ratios.max() >= -1e-12
            for a, b in ((p, q), (q, p)):
                order = np.argsort(-a / b)
                power, level = np.cumsum(a[order])[:-1], np.cumsum(b[order])[:-1]
                most = max(most, float(np.max(ndtri(power) - ndtri(level))))
    assert 0.99 * length < widest <= length * (1 + 1e-9)
    assert 0.9 * spent < most <= spent * (1 + 1e-9)


@pytest.mark.parametrize("length", [0.01, 0.5, 2.0, 8.0, 30.0])
def test_the_mu_of_a_bounded_range_is_that_of_the_worst_pair_of_coins(length: float) -> None:
    """Over all pairs with logit p - logit q = r, by a fine grid: the module's lemma, and that it is tight."""
    y = np.linspace(-6 - length, 6 + length, 40_001)

    def probit(logit: np.ndarray) -> np.ndarray:
        return -np.sign(logit) * ndtri_exp(log_expit(-np.abs(logit)))

    gaps = probit(y + length / 2) - probit(y - length / 2)
    claimed = GaussianDP.from_pure(PureDP(length / 2)).mu
    assert gaps.max() <= claimed * (1 + 1e-9)
    assert gaps[20_000] == pytest.approx(claimed, rel=1e-9)


@pytest.mark.parametrize("rate", [1.0, 0.3])
@pytest.mark.parametrize("share", [0.0, 0.1, 0.7])
def test_choices_and_sum_spend_mu(rate: float, share: float) -> None:
    mean = RangeMean(0.8, 1.0, 2.0, 6, 10_000, rate, 0.02, share)
    assert isinstance(mean.noise.budget, GaussianDP)
    spent = mean.noise.budget.mu**2
    if share:
        length = mean.steepness * (2 if rate == 1 else 1)
        spent += mean.padded * GaussianDP.from_pure(PureDP(length / 2)).mu ** 2
    assert 0.64 * (1 - 1e-6) < spent <= 0.64 * (1 + 1e-12)


# --- the sum


@pytest.mark.parametrize("mean", [CENTRED, replace(CENTRED, share=0.0), replace(CENTRED, rate=0.5)])
@pytest.mark.slow
def test_the_answer_is_the_mean_plus_gaussian_noise(mean: RangeMean) -> None:
    """Kolmogorov-Smirnov at 1e-7 accepts the scale and rejects one that is 20 % off. Vectors are equal, so that each
    centre is a bin's middle but for a chance of e^(-b k), and nothing is cut."""
    vector = np.array([0.3, -0.4, 0.2, 0.1, 0.5, -0.3])
    rng = fresh(3)
    k = round(mean.batch)
    answers = np.array([mean.estimate(np.tile(vector, (k, 1)), rng) for _ in range(1500)])
    moved = mean.radius if mean.rate < 1 else 2 * mean.radius
    assert isinstance(mean.noise.budget, GaussianDP)
    sigma = moved / mean.noise.budget.mu / mean.batch
    z = ((answers - vector) / sigma).ravel()
    assert stats.kstest(z, "norm").pvalue > 1e-7
    for scale in (0.8, 1.2):
        assert stats.kstest(z / scale, "norm").pvalue < 1e-7


class Spy:
    """In place of the noise: keeps what it is given."""

    def __init__(self) -> None:
        self.totals: list[np.ndarray] = []

    def randomize(self, total: np.ndarray, rng: SeededEntropy) -> np.ndarray:
        self.totals.append(total.copy())
        return total


def test_a_user_moves_the_sum_by_no_more_than_the_noise_covers() -> None:
    """A far user comes to 799 others, whose bins it cannot change at these words. Sums are whole numbers: the order of
    users changes nothing, not even the last bit, so a sum without noise tells nothing but the sum."""
    rng = np.random.default_rng(4)
    mean = replace(CENTRED, rate=0.999)
    vectors = rng.standard_normal((800, 6)) * 0.02 / math.sqrt(6) + 0.2
    for seed in range(20):
        spy = Spy()
        mean.__dict__["noise"] = spy
        far = rng.standard_normal(6)
        far /= np.linalg.norm(far)
        for users in (np.vstack([vectors[1:], far]), np.vstack([far, vectors[:0:-1]]), vectors[1:].copy()):
            mean.estimate(users, fresh(seed))
        whole, turned, fewer = (total / mean.grid for total in spy.totals)
        assert np.array_equal(whole, np.rint(whole))
        assert np.array_equal(whole, turned)
        moved = mean.grid * np.linalg.norm(whole - fewer)
        assert 0.99 * mean.radius < moved <= mean.radius + math.sqrt(6) * mean.grid


# --- the centre


@pytest.mark.parametrize("shape", ["ball", "line", "outliers"])
@pytest.mark.parametrize("rate", [1.0, 0.5])
@pytest.mark.slow
def test_the_centre_is_as_near_as_promised(shape: str, rate: float) -> None:
    """Whatever shape the users have: all directions alike, one only, or a few far away. `failure` is 1 %; of 60 batches
    3 or more fail with a probability of 2 %, if the promise were only just kept. Seeded."""
    mean = RangeMean.planned(0.5, 1.0, 2.0, 5, 4000, rate, 0.03)
    assert mean.share
    failures, distances = 0, []
    for seed in range(60):
        rng = np.random.default_rng(seed)
        middle = rng.standard_normal(5)
        middle *= 0.8 / np.linalg.norm(middle)
        noise = rng.standard_normal((4000, 5))
        if shape == "line":
            noise *= [1, 0, 0, 0, 0]
        if shape == "outliers":
            noise[40:] *= 1e-3
        vectors = middle + noise * (0.03 / np.sqrt(np.mean(np.sum(noise**2, axis=1))))
        drawn = vectors[rng.random(4000) < rate]
        distances.append(float(np.linalg.norm(mean.centre(drawn, fresh(seed)) - drawn.mean(axis=0))))
        failures += distances[-1] > mean.offset
    assert failures <= 2
    assert np.mean(distances) < mean.offset / 2


def test_the_slack_holds_where_users_are_spread_over_all_bins() -> None:
    """Uniform users make the flattest costs. At a failure of 30 %, with no union to hide behind (one coordinate): the
    chosen bin is above (1/2 + u) k no more often (z = 5), and at half of u it would be."""
    mean = RangeMean(0.05, 1.0, 2.0, 1, 4000, 1.0, 0.02, 0.5, 0.3)
    counts = np.full((1, mean.bins), 4000 // mean.bins)
    costs = np.tile(mean.costs(counts), (20_000, 1))
    chosen = costs[0][mean.choose(costs, fresh(5))] / counts.sum()
    assert np.mean(chosen > 0.5 + mean.slack) <= 0.3 + 5 * math.sqrt(0.21 / 20_000)
    assert np.mean(chosen > 0.5 + mean.slack / 20) > 0.3


def test_choices_are_made_only_where_they_pay() -> None:
    assert RangeMean.planned(2.0, 1.0, 2.0, 6, 800, 1.0, 1.0).share == 0  # users as far apart as can be
    assert RangeMean.planned(2.0, 1.0, 2.0, 6, 20, 1.0, 0.01).share == 0  # too few
    plain = replace(CENTRED, share=0.0)
    assert CENTRED.variance < plain.variance / 10
    assert plain.radius == 1.0
    with pytest.raises(ConfigError, match="enough users"):
        replace(CENTRED, users=20)


# --- audits


@pytest.mark.parametrize("share", [0.5, 0.0])
@pytest.mark.slow
def test_an_attack_on_one_mean(share: float) -> None:
    """Two bins, 13 users in one and 12 in the other, all at the ends; one of the 13 changes sides. The attacker sees
    the bin and the noisy sum, more than is ever shown. Below the claim and close to it; above it with half the noise,
    and where the choice is not charged for. False alarm 1e-6 each, at a fixed seed."""
    mean = RangeMean(1.0, 1.0, 2.0, 1, 25, 1.0, 1.0, share)
    rng = fresh(6)
    counts = np.array([[13, 12], [12, 13]])
    if share:
        assert mean.bins == 2
    sigma = math.sqrt(mean.noise.variance(1))
    honest, half, free = [], [], []
    for case in (0, 1):
        bins = (
            mean.choose(np.tile(mean.costs(counts[case : case + 1]), (TRIALS, 1)), rng) if share else np.zeros(TRIALS)
        )
        evidence = np.log(weights(mean, counts[1]) / weights(mean, counts[0]))[bins.astype(int)] if share else bins
        total = float(counts[case, 1] - counts[case, 0])  # less 25 times the centre, which the attacker knows
        noise = mean.noise.randomize(np.full((TRIALS, 1), total), rng)[:, 0] - total
        honest.append(evidence + 2 * (total + noise) / sigma**2)
        half.append(evidence + 2 * (total + noise / 2) / (sigma / 2) ** 2)
        uncharged = sigma * math.sqrt(1 - share)
        free.append(evidence + 2 * (total + noise * math.sqrt(1 - share)) / uncharged**2)
    assert 0.88 < mu_lower_bound(*honest) <= 1.0
    assert mu_lower_bound(*half) > 1.2
    if share:
        assert mu_lower_bound(*free) > 1.1


@dataclass
class Linear:
    """Users with the losses <v, theta>, and an observer of every point that is projected."""

    vectors: np.ndarray
    seen: list[np.ndarray] = field(default_factory=list)

    def gradients(self, theta: np.ndarray, users: np.ndarray | None = None, radius: float = 0.0) -> np.ndarray:
        return self.vectors.copy() if users is None else self.vectors[users]

    def project(self, theta: np.ndarray) -> np.ndarray:
        self.seen.append(theta)
        return theta


def answers(plan: RangePlan, vectors: np.ndarray, runs: int, seed: int) -> np.ndarray:
    """The noisy means (runs, T) of one coordinate, as they follow from the points of each run."""
    rng, out = fresh(seed), np.empty((runs, plan.steps))
    modulus = plan.phases[0].modulus
    for row in out:
        users = Linear(vectors)
        PrivateRange().run(plan, users, np.zeros(1), rng)
        points = np.concatenate([np.zeros(1), *users.seen])
        row[:] = -np.diff(points) * modulus / np.arange(1, plan.steps + 1)
    return out


@pytest.mark.parametrize(("smoothness", "queries"), some([(0.05, 2**20), (0.2, 40)], 1))
@pytest.mark.parametrize("runs", [2000, pytest.param(30_000, marks=pytest.mark.campaign)])
@pytest.mark.slow
def test_an_attack_on_a_whole_run(smoothness: float, queries: int, runs: int) -> None:
    """All users in every step, and drawn ones; the others have zero gradients, one has the largest or its opposite. The
    attacker sees all points. Below the claim and not far from it; above it with half the noise (simulated: the user is
    in a sum or not, plus normal noise). False alarm 1e-6, at a fixed seed."""
    budget = ApproxDP(1.0, 0.1)
    plan = PrivateRange(queries).plan(Task(30, 1, 1, budget, 1.0, 2.0, smoothness, 0.0, 1.0, 1.0))
    mean, q = plan.mean, plan.mean.rate
    assert not plan.centred
    assert plan.steps > 1
    assert (q == 1) == (queries > 40)
    sigma = math.sqrt(mean.noise.variance(1))

    def score(sums: np.ndarray, noise: float) -> np.ndarray:
        up, down = (np.log(1 - q + q * np.exp((s * sums - 0.5) / noise**2)) for s in (1, -1))
        total: np.ndarray = (up - down).sum(axis=1)
        return total

    honest, half, rng = [], [], np.random.default_rng(8)
    for sign in (1.0, -1.0):
        vectors = np.zeros((30, 1))
        vectors[0] = sign
        honest.append(score(answers(plan, vectors, runs, int(7 + sign)) * mean.batch, sigma))
        drawn = sign * (rng.random((30_000, plan.steps)) < q)
        half.append(score(drawn + sigma / 2 * rng.standard_normal(drawn.shape), sigma / 2))
    assert (0.2 if runs < 10_000 else 0.8) < epsilon_lower_bound(*honest, budget.delta) <= 1.0
    assert epsilon_lower_bound(*half, budget.delta) > 1.2


# --- learning


@dataclass
class Quadratic:
    """Losses |theta - x|^2 / 2 around one point (n, d) a user, all in a ball of radius 1/2, and so is theta."""

    points: np.ndarray

    def gradients(self, theta: np.ndarray, users: np.ndarray | None = None, radius: float = 0.0) -> np.ndarray:
        return theta - (self.points if users is None else self.points[users])

    def project(self, theta: np.ndarray) -> np.ndarray:
        return theta * min(1.0, 0.5 / max(float(np.linalg.norm(theta)), 1e-300))

    def excess(self, theta: np.ndarray) -> float:
        return float(np.sum((theta - self.points.mean(axis=0)) ** 2)) / 2


def quadratic(task: Task, seed: int) -> Quadratic:
    rng = np.random.default_rng(seed)
    middle = rng.standard_normal(task.d)
    middle *= 0.4 / np.linalg.norm(middle)
    points = middle + rng.standard_normal((task.users, task.d)) * (task.spread / math.sqrt(task.d))
    return Quadratic(points * np.minimum(1, 0.5 / np.linalg.norm(points, axis=1, keepdims=True)))


@pytest.mark.parametrize(("convexity", "queries"), some([(0.0, 2**20), (0.0, 2**16), (1.0, 2**20), (1.0, 2**16)], 1, 2))
@pytest.mark.slow
def test_it_learns_as_its_bound_says(convexity: float, queries: int) -> None:
    """Private ranges, on many users a step and on few; runs stay below the bound, which is below that of gradients cut
    around zero. Seeded."""
    task = replace(TASK, convexity=convexity, distance=0.5)
    method = PrivateRange(queries)
    plan, plain = method.plan(task), method.plan(replace(task, spread=1.0))
    assert plan.centred
    assert not plain.centred
    assert plan.queries <= queries
    assert len(plan.phases) == 1 if convexity == 0 else len(plan.phases) > 1
    excess = []
    for seed in range(3):
        users = quadratic(task, seed)
        release = method.run(plan, users, np.zeros(8), fresh(seed))
        assert release.queries == plan.queries  # the expected number: the true one would tell who was drawn
        excess.append(users.excess(release.theta))
    assert max(excess) < plan.excess
    assert plan.excess < plain.excess


@pytest.mark.slow
def test_a_non_smooth_loss_is_smoothed() -> None:
    """|theta - x| convolved with a uniform interval of radius r has the derivative (theta - x) / r, cut to 1."""

    class Absolute(Quadratic):
        def gradients(self, theta: np.ndarray, users: np.ndarray | None = None, radius: float = 0.0) -> np.ndarray:
            return np.clip(super().gradients(theta, users) / radius, -1.0, 1.0)

        def excess(self, theta: np.ndarray) -> float:
            x = self.points
            return float(np.mean(np.abs(theta - x)) - np.mean(np.abs(np.median(x) - x)))

    task = Task(1000, 1, 1, ApproxDP(2.0, 1e-6), 1.0, 2.0, math.inf, 0.0, 0.5, 1.0)
    plan = PrivateRange(2**16).plan(task)
    assert plan.radii[0] == pytest.approx(1.0 / plan.phases[0].beta)
    users = Absolute(np.random.default_rng(1).uniform(0.0, 0.5, (1000, 1)))
    for seed in range(4):
        assert users.excess(PrivateRange().run(plan, users, np.zeros(1), fresh(seed)).theta) < plan.excess < 0.1


@pytest.mark.parametrize("queries", [2**22, 2**16])
def test_steps_spend_the_budget(queries: int) -> None:
    plan = PrivateRange(queries).plan(TASK)
    mu, rate = plan.mean.mu, plan.mean.rate
    if queries == 2**22:
        assert rate == 1
        assert plan.steps * mu**2 == pytest.approx(GaussianDP.from_approx(TASK.budget).mu ** 2)
        assert plan.steps * mu**2 <= GaussianDP.from_approx(TASK.budget).mu ** 2 * (1 + 1e-12)
    else:
        assert rate < 1
        assert mu == 1 / noise_multiplier(TASK.budget, rate, plan.steps)


@pytest.mark.parametrize("change", [{}, {"d": 300}, {"convexity": 1.0}, {"smoothness": math.inf}, {"spread": 1.0}])
@pytest.mark.slow
def test_the_least_users_are_the_least(change: dict[str, float]) -> None:
    task = replace(TASK, **change)  # type: ignore[arg-type]
    least = PrivateRange().least_users(task)
    plan = PrivateRange().plan(replace(task, users=least))
    assert plan.excess < task.bound * task.distance
    with pytest.raises(TooFewUsersError) as caught:
        PrivateRange().plan(replace(task, users=least - 1))
    assert caught.value.needed == least


def test_the_least_users_grow_with_the_root_of_d_over_epsilon() -> None:
    """Theorem 3.1's n > sqrt(d) / epsilon, with its constant: D sigma / n < L D at sigma = 2 L sqrt(4 d / 3) / mu."""
    for d, epsilon in ((64, 1.0), (4096, 1.0), (4096, 4.0)):
        task = replace(TASK, d=d, budget=ApproxDP(epsilon, 1e-6), smoothness=1e-6)
        expected = 2 * math.sqrt(2 * d) / GaussianDP.from_approx(task.budget).mu  # one step: sqrt(4/3) becomes sqrt(2)
        assert 0.6 * expected < PrivateRange().least_users(task) <= expected * 1.01 + 1


def test_ranges_are_taken_from_some_number_of_users_on() -> None:
    assert not PrivateRange().plan(replace(TASK, users=300)).centred
    assert PrivateRange().plan(TASK).centred
    assert not PrivateRange().plan(replace(TASK, spread=0.5)).centred


# --- what is refused or forgotten


@pytest.mark.slow
def test_windows_of_about_as_many_users_share_their_accounting() -> None:
    """Few rates serve many numbers of users, and each keeps to `most_queries` without giving away 5 % of them."""
    made = [PrivateRange().plan(replace(TASK, users=n)) for n in range(20_000, 20_400, 40)]
    assert len({(plan.mean.rate, plan.steps) for plan in made}) <= 4
    assert all(0.95 * 2**20 < plan.queries <= 2**20 for plan in made)


@pytest.mark.parametrize("change", [{"budget": ApproxDP(1.0, 1e-6)}, {"users": 60, "budget": ApproxDP(500.0, 0.1)}])
def test_no_more_steps_are_made_than_the_bound_is_worth(
    change: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The least bound takes far more steps, and is hardly lower."""
    task = replace(TASK, spread=1.0, **change)
    plan = PrivateRange().plan(task)
    monkeypatch.setattr("streamdp.windows.ranges._NEAR", 1.0)
    least = PrivateRange().plan(task)
    assert plan.excess <= 1.011 * least.excess
    assert plan.steps < 0.5 * least.steps


def test_nothing_of_single_users_is_left_where_a_mean_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    def failing(self: Gaussian, total: np.ndarray, rng: object) -> np.ndarray:
        raise KeyboardInterrupt

    monkeypatch.setattr(Gaussian, "randomize", failing)
    with pytest.raises(KeyboardInterrupt) as caught:
        CENTRED.estimate(np.full((800, 6), 0.1), fresh(1))
    held = [value for entry in caught.traceback for value in entry.frame.f_locals.values()]
    arrays = [value for value in held if isinstance(value, np.ndarray) and len(value) == 800]
    assert len(arrays) == 2
    assert not any(array.any() for array in arrays)


def test_what_choices_of_bins_were_drawn_from_is_overwritten(monkeypatch: pytest.MonkeyPatch) -> None:
    """The random words, from which with the bins the counts could be computed, the counts of users, and the sum."""
    made: list[np.ndarray] = []
    draw, counts, randomize = range_mean.draw, RangeMean.counts, Gaussian.randomize

    def kept(found: np.ndarray) -> np.ndarray:
        assert found.any()
        made.append(found)
        return found

    monkeypatch.setattr(range_mean, "draw", lambda *given: kept(draw(*given)))
    monkeypatch.setattr(RangeMean, "counts", lambda *given: kept(counts(*given)))
    monkeypatch.setattr(Gaussian, "randomize", lambda self, total, rng: randomize(self, kept(total), rng))
    CENTRED.estimate(np.random.default_rng(1).normal(0.1, 0.01, (800, 6)), fresh(1))
    assert len(made) == 4
    assert not any(array.any() for array in made)


def test_vectors_are_wiped_and_bad_ones_refused_without_their_values() -> None:
    good = np.full((800, 6), 0.1)
    CENTRED.estimate(good, fresh(1))
    assert not good.any()
    for bad in (np.full((10, 6), 47.11), np.full((10, 6), np.nan), np.zeros((10, 5)), np.zeros((801, 6))):
        with pytest.raises(ConfigError) as caught:
            CENTRED.estimate(bad, fresh(1))
        assert "47" not in str(caught.value)
    assert np.isfinite(CENTRED.estimate(np.zeros((0, 6)), fresh(1))).all()  # nobody drawn


@pytest.mark.parametrize(
    "change",
    [{"bound": 0.0}, {"sensitivity": 2.5}, {"d": 0}, {"users": 0}, {"users": 2**31 + 1}, {"rate": 0.0}, {"rate": 1.5},
        {"spread": 0.0}, {"spread": 1.5}, {"share": 1.0}, {"failure": 0.0}, {"mu": 0.0}],
)  # fmt: skip
def test_bad_settings_are_refused(change: dict[str, float]) -> None:
    with pytest.raises(ConfigError):
        replace(CENTRED, **change)  # type: ignore[arg-type]


def test_a_number_of_queries_must_allow_one() -> None:
    for queries in (0, -1, True, 2**41):
        with pytest.raises(ConfigError):
            PrivateRange(queries)
    with pytest.raises(ConfigError, match="most_queries"):
        PrivateRange(1).least_users(TASK)


def test_the_users_of_ranges_grow_with_the_root_of_d_and_those_of_outlier_removal_do_not() -> None:
    """Which is why both are here: the ends of the table in studies/few_users.md."""
    from studies.few_users import needed

    low, high = needed("private ranges", 16, 1), needed("private ranges", 4096, 1)
    assert 16 < high / low < 32  # sqrt(256), and a logarithm
    constant = needed("outlier removal", 16, 1)
    assert constant == needed("outlier removal", 4096, 1)
    assert low < constant < high
