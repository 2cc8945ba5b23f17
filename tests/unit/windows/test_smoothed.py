"""AC-SA on smoothed losses and sampled users: the bound, the noise, the sampling, audits and plans."""

import math
from dataclasses import replace

import numpy as np
import pytest
from scipy import stats

from streamdp import ApproxDP, PureDP
from streamdp.errors import BudgetError, ConfigError, TooFewUsersError
from streamdp.optim.smoothing import smoothed_gradients
from streamdp.privacy.subsampling import noise_multiplier
from streamdp.windows.smoothed import ConvolutionSmoothing, accelerate, noisy_gradient
from streamdp.windows.smoothed_plan import Run
from tests.support.audit import epsilon_lower_bound
from tests.support.sizes import some
from tests.support.smoothed import HINGE, TASK, Fixed, bound_of, fresh, run_with


class Classified:
    """Users with one record of a linear classification problem each; theta in a ball."""

    def __init__(self, n: int, d: int, radius: float, seed: int) -> None:
        rng = np.random.default_rng(seed)
        self.X = rng.standard_normal((n, d))
        truth = np.ones(d) / math.sqrt(d)
        self.y = (rng.random(n) < 1 / (1 + np.exp(-3 * self.X @ truth))).astype(float)
        self.radius = radius

    def gradients(self, theta: np.ndarray, users: np.ndarray | None = None, radius: float = 0.0) -> np.ndarray:
        rows = slice(None) if users is None else users
        return smoothed_gradients(HINGE, False, theta, self.X[rows], self.y[rows], radius)

    def project(self, theta: np.ndarray) -> np.ndarray:
        return theta * min(1.0, self.radius / max(float(np.linalg.norm(theta)), 1e-300))

    def loss(self, theta: np.ndarray) -> float:
        weight = np.minimum(1.0, 2 / np.sum(self.X**2, axis=1))
        return float(np.mean(weight * np.maximum(0, 1 - (2 * self.y - 1) * (self.X @ theta))))

    def least(self) -> float:
        """By subgradient steps without noise."""
        weight = np.minimum(1.0, 2 / np.sum(self.X**2, axis=1))[:, None]
        theta, best, sign = np.zeros(self.X.shape[1]), math.inf, (2 * self.y - 1)[:, None]
        for t in range(1, 600):
            best = min(best, self.loss(theta))
            inside = sign[:, 0] * (self.X @ theta) < 1
            theta = self.project(
                theta + 2 / math.sqrt(t) * np.mean((weight * sign * self.X)[:, :] * inside[:, None], 0)
            )
        return best


# --- one run


def sampled(first: int, last: int, rate: float, noise: float) -> Run:
    return Run(first, last, rate, 1, 1, noise, 0.0, 1.0, 0.0, 0.0, 0.0)


@pytest.mark.parametrize("convexity", [0.0, 0.02, 0.3])
@pytest.mark.parametrize("share", [1.0, 0.25])
@pytest.mark.parametrize(("sigma", "steps"), [(1e-3, 30), (0.5, 100), (2.0, 400)])
@pytest.mark.slow
def test_no_run_is_worse_than_its_bound(convexity: float, sigma: float, steps: int, share: float) -> None:
    """Quadratics with spread eigenvalues, averaged over 100 runs at once; the bound is reached to a twentieth."""
    rng, d, runs, smoothness, distance = np.random.default_rng(steps), 20, 100, 1.0, 3.0
    largest = 0.0
    for bend in (1.0, 0.1, 3 / steps):
        eigenvalues = np.clip(np.geomspace(max(convexity, 1e-4), bend, d), convexity, smoothness)
        optimum = distance * np.ones(d) / math.sqrt(d)

        def gradient(theta: np.ndarray, e: np.ndarray = eigenvalues, o: np.ndarray = optimum) -> np.ndarray:
            return e * (theta - o) + sigma / math.sqrt(d) * rng.standard_normal((runs, d))

        ramp = math.ceil(share * steps)
        excess, modulus = bound_of(steps, ramp, distance, convexity, smoothness, sigma)
        run = run_with(steps, ramp, modulus, convexity)
        found = accelerate(run, np.zeros((runs, d)), gradient, lambda theta, _: theta)
        losses = 0.5 * np.sum(eigenvalues * (found - optimum) ** 2, axis=1)
        upper = losses.mean() + 5 * losses.std() / math.sqrt(runs)
        assert upper <= excess
        largest = max(largest, losses.mean() / excess)
    assert largest > 0.05


def test_a_regulariser_pulls_to_the_start() -> None:
    """Phi(x) = ||x - 1||^2 / 2 + lambda/2 ||x - x_0||^2 has its optimum at (1 + lambda x_0) / (1 + lambda)."""
    start = np.full(3, -2.0)
    run = run_with(400, 200, 1.5, 0.5, pull=0.5)
    found = accelerate(run, start, lambda theta: theta - 1, lambda theta, _: theta)
    np.testing.assert_allclose(found, (1 + 0.5 * start) / 1.5, atol=1e-3)


def test_the_bound_without_convexity_is_that_of_acceleration_and_with_it_that_of_the_paper() -> None:
    for steps, distance, beta, sigma in ((10, 1.0, 3.0, 0.5), (500, 4.0, 0.2, 2.0), (1, 1.0, 1.0, 1.0)):
        excess, modulus = bound_of(steps, steps, distance, 0.0, beta, sigma)
        squares = steps * (steps + 1) * (2 * steps + 1) / 6
        assert 2 * modulus == pytest.approx(2 * beta + sigma / distance * math.sqrt(squares))
        lans = 2 * beta * distance**2 + 2 * distance * sigma * math.sqrt(squares)
        assert excess == pytest.approx(lans / (steps * (steps + 1)))
        for convexity in (1e-3, 0.1, 1.0):
            paper = 2 * beta * distance**2 / (steps * (steps + 1)) + 2 * sigma**2 / (convexity * steps)
            assert bound_of(steps, steps, distance, convexity, beta, sigma)[0] <= min(excess, 1.1 * paper)


@pytest.mark.parametrize("convexity", [0.0, 1e-3, 0.3])
@pytest.mark.parametrize(("steps", "ramp"), [(1, 1), (10, 3), (500, 500), (500, 63)])
def test_the_bound_is_above_its_terms_one_by_one(steps: int, ramp: int, convexity: float) -> None:
    """S of the text with c as it is, and the steps' moduli that the proof asks for."""
    beta, sigma, distance = 0.7, 1.5, 2.0
    excess, modulus = bound_of(steps, ramp, distance, convexity, beta, sigma)
    weights = np.minimum(np.arange(1, steps + 1), ramp).astype(float)
    sums = np.cumsum(weights)
    c = convexity + 2 * modulus / sums - beta * (weights / sums) ** 2
    assert np.all(c >= convexity + 2 * (modulus - beta) / sums - 1e-15)
    exact = (modulus * distance**2 + sigma**2 * float(np.sum(weights**2 / (2 * c * sums)))) / sums[-1]
    assert exact <= excess * (1 + 1e-12)


def test_a_short_ramp_costs_less_noise_and_more_steps() -> None:
    """From 1.155 D sigma / sqrt(T) to nearly 1 where noise is all there is; but more where it is none."""
    noisy = [bound_of(10**4, round(share * 10**4), 1.0, 0.0, 1e-9, 1.0)[0] * 100 for share in (1.0, 0.25, 0.125)]
    assert noisy[0] == pytest.approx(2 / math.sqrt(3), rel=1e-3)
    assert noisy[0] > noisy[1] > noisy[2]
    assert 1 < noisy[2] < 1.03
    quiet = [bound_of(10**4, round(share * 10**4), 1.0, 0.0, 1.0, 1e-9)[0] for share in (1.0, 0.25, 0.125)]
    assert quiet[0] < quiet[1] < quiet[2]


# --- one gradient


def test_gradients_are_unbiased_with_the_variance_of_the_plan() -> None:
    """4,000 gradients of 30 users: means within 5.5 standard errors, the variance within 12 % (five of its errors)."""
    rng = np.random.default_rng(1)
    rows = rng.standard_normal((30, 3))
    rows /= np.linalg.norm(rows, axis=1, keepdims=True)
    run = sampled(0, 30, 0.3, 0.8)
    entropy = fresh(2)
    found = np.array([noisy_gradient(run, 1.0, Fixed(rows), entropy, np.zeros(3)) for _ in range(4000)])
    error = found.std(axis=0) / math.sqrt(4000)
    assert np.all(np.abs(found.mean(axis=0) - rows.mean(axis=0)) < 5.5 * error)
    drawn = 0.3 * 30
    planned = (1 - 0.3) / drawn + 3 * (0.8 / drawn) ** 2
    assert np.var(found, axis=0).sum() == pytest.approx(planned, rel=0.12)


@pytest.mark.parametrize(("rate", "noise", "bound"), [(0.2, 1.5, 1.0), (1.0, 4.0, 3.0)])
def test_the_noise_has_this_scale(rate: float, noise: float, bound: float) -> None:
    """Kolmogorov-Smirnov at 1e-7 accepts the scale and rejects one that is 20 % off."""
    run = sampled(5, 25, rate, noise)
    users, entropy = Fixed(np.zeros((30, 50))), fresh(3)
    z = np.concatenate([noisy_gradient(run, bound, users, entropy, np.zeros(50)) for _ in range(400)])
    z *= rate * 20 / (noise * bound)
    assert stats.kstest(z, "norm").pvalue > 1e-7
    for scale in (0.8, 1.2):
        assert stats.kstest(z / scale, "norm").pvalue < 1e-7


def test_only_users_of_the_run_are_asked_each_with_its_rate() -> None:
    """Counts are binomial; 10 % off is refused; false alarm 1e-6."""
    asked = np.zeros(40, dtype=int)

    class Counted(Fixed):
        def gradients(self, theta: np.ndarray, users: np.ndarray | None = None, radius: float = 0.0) -> np.ndarray:
            assert users is not None
            asked[users] += 1
            return super().gradients(theta, users, radius)

    users, entropy = Counted(np.zeros((40, 2))), fresh(4)
    for _ in range(3000):
        noisy_gradient(sampled(10, 30, 0.15, 1.0), 1.0, users, entropy, np.zeros(2))
    assert not asked[:10].any()
    assert not asked[30:].any()
    assert stats.binomtest(int(asked.sum()), 60_000, 0.15).pvalue > 1e-6
    for off in (0.9, 1.1):
        assert stats.binomtest(int(asked.sum()), 60_000, 0.15 * off).pvalue < 1e-6


def test_the_sum_does_not_depend_on_the_order_of_users_and_leaves_nothing_behind() -> None:
    """Floating-point sums would: what one user adds must be what it is, whoever else is there."""
    rng = np.random.default_rng(7)
    rows = rng.standard_normal((5000, 3)) * np.exp(rng.uniform(-6, 0, (5000, 1)))
    rows /= np.maximum(1, np.linalg.norm(rows, axis=1, keepdims=True))
    run = sampled(0, 5000, 1.0, 0.5)
    first, second = Fixed(rows), Fixed(rows[::-1].copy())
    assert rows.sum(axis=0).tolist() != rows[::-1].sum(axis=0).tolist()
    a, b = (noisy_gradient(run, 1.0, users, fresh(1), np.zeros(3)) for users in (first, second))
    assert a.tolist() == b.tolist()
    assert first.given
    assert not any(given.any() for given in first.given)


def test_a_gradient_that_is_longer_than_the_bound_is_refused() -> None:
    run = sampled(0, 3, 1.0, 1.0)
    for row in ([1.1, 0.0], [math.nan, 0.0], [math.inf, 0.0]):
        with pytest.raises(ConfigError, match="norm"):
            noisy_gradient(run, 1.0, Fixed(np.tile(row, (3, 1))), fresh(1), np.zeros(2))


# --- audits


def log_ratio(x: np.ndarray, rate: float, noise: float) -> np.ndarray:
    """Of P and Q at x, in units of the noise."""
    ups, downs = ((s * x - 0.5 / noise) / noise for s in (1, -1))
    rest = math.log(max(1 - rate, 1e-300))
    return np.logaddexp(rest, math.log(rate) + ups) - np.logaddexp(rest, math.log(rate) + downs)


def attacked(sign: float, noise: float, rate: float, steps: int, trials: int, seed: int) -> np.ndarray:
    """What an attacker makes of all noisy gradients, where the last of four users has the gradient sign e_1.

    The other users have 0. The score is the log likelihood ratio; nothing of theta's path is left out.
    """
    users, entropy = Fixed(np.zeros((4, 1))), fresh(seed)
    users.rows[3] = sign
    run = sampled(0, 4, rate, noise)
    seen = [noisy_gradient(run, 1.0, users, entropy, np.zeros(1))[0] for _ in range(trials * steps)]
    x = np.array(seen).reshape(trials, steps) * (rate * 4 / noise)
    return np.asarray(log_ratio(x, rate, noise).sum(axis=1))


@pytest.mark.parametrize(("trials", "share"), [(5_000, 0.4), pytest.param(150_000, 0.8, marks=pytest.mark.campaign)])
@pytest.mark.slow
def test_an_attack_on_a_user(trials: int, share: float) -> None:
    """Below the claim and near it; above it with half the noise and where all users are taken in place of a sample."""
    budget, rate, steps = ApproxDP(1.5, 0.02), 0.4, 2
    noise = noise_multiplier(budget, rate, steps)

    def found(noise: float, rate: float, trials: int) -> float:
        a, b = (attacked(s, noise, rate, steps, trials, 10 + i) for i, s in enumerate((1.0, -1.0)))
        return epsilon_lower_bound(a, b, budget.delta)

    assert share * budget.epsilon < found(noise, rate, trials) <= budget.epsilon
    assert found(noise / 2, rate, 3500) > 1.05 * budget.epsilon
    assert found(noise, 1.0, 3500) > 1.05 * budget.epsilon


@pytest.mark.slow
def test_who_divides_by_how_many_were_drawn_tells_who_was() -> None:
    """A sum of 40 coordinates divided by the true number shows that number by the size of its noise, and so, where few
    others are, whether the user is in it: what the calibration counts on is gone."""
    budget, rate, steps, trials = ApproxDP(1.0, 0.001), 0.02, 4, 400_000
    noise = noise_multiplier(budget, rate, steps)
    rng = np.random.default_rng(3)

    def found(known: bool) -> float:
        scores = []
        for sign in (1.0, -1.0):
            drawn = rng.random((trials, steps)) < rate
            x = sign * drawn / noise + rng.standard_normal((trials, steps))
            scores.append((2 * x / noise * drawn if known else log_ratio(x, rate, noise)).sum(axis=1))
        return epsilon_lower_bound(scores[0], scores[1], budget.delta)

    assert found(known=False) <= budget.epsilon < found(known=True)


# --- plans and the whole


@pytest.mark.parametrize("objective", some(["erm", "sco"], 0))
@pytest.mark.slow
def test_plans(objective: str) -> None:
    method = ConvolutionSmoothing(objective)
    plans = [method.plan(replace(TASK, users=n)) for n in (2000, 8000, 30_000)]
    assert plans[0].excess > plans[1].excess > plans[2].excess
    assert plans[0].queries < plans[1].queries < plans[2].queries
    for plan, n in zip(plans, (2000, 8000, 30_000), strict=True):
        assert plan.excess < TASK.bound * TASK.distance
        assert plan.queries == math.ceil(sum(r.rate * (r.last - r.first) * r.steps for r in plan.runs))
        assert all(0 <= r.first < r.last <= n and r.radius > 0 for r in plan.runs)
        steps = sum(r.steps for r in plan.runs)
        if objective == "erm":
            assert all((r.first, r.last) == (0, n) for r in plan.runs)
            assert plan.runs[0].noise == noise_multiplier(TASK.budget, plan.runs[0].rate, steps)
        else:
            assert all(a.last == b.first for a, b in zip(plan.runs, plan.runs[1:], strict=False))
            assert (plan.runs[0].first, plan.runs[-1].last) == (0, n)
            assert all(r.noise == noise_multiplier(TASK.budget, r.rate, r.steps) for r in plan.runs)


@pytest.mark.parametrize("objective", ["erm", pytest.param("sco", marks=pytest.mark.campaign)])
def test_how_many_users_are_needed(objective: str) -> None:
    method = ConvolutionSmoothing(objective)
    with pytest.raises(TooFewUsersError) as error:
        method.plan(replace(TASK, users=5))
    needed = error.value.needed
    assert needed == method.least_users(TASK) > 5
    assert method.plan(replace(TASK, users=needed)).runs
    with pytest.raises(TooFewUsersError):
        method.plan(replace(TASK, users=needed - 1))


@pytest.mark.slow
@pytest.mark.parametrize("objective", some(["erm", "sco"], 0))
def test_a_cap_on_queries_is_kept_and_costs_accuracy(objective: str) -> None:
    free, capped = (ConvolutionSmoothing(objective, most_queries=most).plan(TASK) for most in (None, 5000))
    assert sum(r.queries for r in capped.runs) <= 5000 < free.queries
    assert capped.excess > 1.2 * free.excess
    with pytest.raises(ConfigError, match="queries"):
        ConvolutionSmoothing(most_queries=1).plan(TASK)


@pytest.mark.slow
def test_strongly_convex_losses_are_learned_faster() -> None:
    """The excess falls nearly with n^-2 in place of n^-1, and repeated runs take fewer queries than one would."""
    bent = replace(TASK, convexity=0.3)
    method = ConvolutionSmoothing()
    assert method.plan(replace(bent, users=40_000)).excess < method.plan(replace(TASK, users=40_000)).excess / 4
    small, large = (ConvolutionSmoothing().plan(replace(bent, users=n)) for n in (5000, 40_000))
    assert math.log(small.excess / large.excess) / math.log(8) > 1.6
    assert len(large.runs) > 1
    assert large.runs[-1].steps == pytest.approx(sum(r.steps for r in large.runs) * 4 / 7, rel=0.2)


@pytest.mark.campaign
def test_strongly_convex_expected_losses_are_learned_faster() -> None:
    method, many = ConvolutionSmoothing("sco"), replace(TASK, users=10**6)
    plan = method.plan(replace(many, convexity=0.3))
    assert plan.excess < method.plan(many).excess / 2
    assert plan.runs[0].last < 500_000 <= plan.runs[-1].last  # blocks: the last one has half of the users


def test_smooth_losses_are_not_smoothed() -> None:
    plan = ConvolutionSmoothing().plan(replace(TASK, smoothness=0.5))
    assert all(run.radius == 0 for run in plan.runs)
    assert plan.queries < ConvolutionSmoothing().plan(TASK).queries


@pytest.mark.parametrize(("objective", "n"), [("erm", 1000), pytest.param("sco", 12_000, marks=pytest.mark.campaign)])
@pytest.mark.slow
def test_the_whole_is_within_its_bound(objective: str, n: int) -> None:
    """The mean over 3 seeds, of the window's loss: for n users it is near the expected one."""
    users, method = Classified(n, 4, 2.0, 1), ConvolutionSmoothing(objective, most_queries=20 * n)
    plan = method.plan(replace(TASK, users=n))
    losses, queries = [], set()
    for seed in range(3):
        release = method.run(plan, users, np.zeros(4), fresh(seed))
        losses.append(users.loss(release.theta))
        queries.add(release.queries)
        assert release.complete
        assert np.linalg.norm(release.theta) <= 2 + 1e-12
    least, begin = users.least(), users.loss(np.zeros(4))
    assert np.mean(losses) - least < plan.excess
    assert np.mean(losses) - least < 0.5 * (begin - least)
    assert queries == {plan.queries}  # and not how many were drawn


def test_settings_and_budgets_that_cannot_be_served() -> None:
    with pytest.raises(ConfigError, match="objective"):
        ConvolutionSmoothing("population")
    with pytest.raises(ConfigError, match="most_queries"):
        ConvolutionSmoothing(most_queries=0)
    with pytest.raises(BudgetError, match="PureDP"):
        ConvolutionSmoothing().plan(replace(TASK, budget=PureDP(1.0)))  # type: ignore[arg-type]
    assert repr(ConvolutionSmoothing()) != repr(ConvolutionSmoothing("sco"))
