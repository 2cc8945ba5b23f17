"""Learning from a window with outliers removed: plans, refusals, what is asked of whom, accuracy, and halting."""

import math
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest

from streamdp import ApproxDP, GaussianDP
from streamdp.errors import ConfigError
from streamdp.privacy.entropy import SeededEntropy
from streamdp.windows.outliers import OutlierRemoval
from streamdp.windows.task import Task
from tests.support.sizes import some

TASK = Task(
    users=4000,
    items=400,
    d=3,
    budget=ApproxDP(4.0, 1e-6),
    bound=1.0,
    sensitivity=2.0,
    smoothness=1.0,
    convexity=0.0,
    distance=0.5,
    spread=0.05,
)


class Points:
    """Users who each hold one point (d,); the loss is half the squared distance, so its minimum is their mean."""

    def __init__(self, points: np.ndarray) -> None:
        self.points = points
        self.asked: list[tuple[int, ...]] = []
        self.radii: set[float] = set()
        self.given: list[np.ndarray] = []

    def gradients(self, theta: np.ndarray, users: np.ndarray | None = None, radius: float = 0.0) -> np.ndarray:
        users = np.arange(len(self.points)) if users is None else users
        self.asked.append((int(users[0]), int(users[-1]), len(users)))
        self.radii.add(radius)
        self.given.append(self.of(theta - self.points[users], radius))
        return self.given[-1]

    def of(self, offsets: np.ndarray, radius: float) -> np.ndarray:
        return offsets

    def project(self, theta: np.ndarray) -> np.ndarray:
        return theta * min(1.0, 0.5 / max(float(np.linalg.norm(theta)), 1e-300))


class Distances(Points):
    """One coordinate, and the loss is the average distance from 21 records within 1/2 of the user's point, smoothed by
    the uniform ball exactly: least at the point."""

    def of(self, offsets: np.ndarray, radius: float) -> np.ndarray:
        records = offsets[:, :, None] + np.linspace(-0.5, 0.5, 21)
        return np.clip(records / radius, -1.0, 1.0).mean(axis=2)

    def project(self, theta: np.ndarray) -> np.ndarray:
        return np.clip(theta, -1.0, 1.0)


def people(task: Task, seed: int, centre: float = 0.3) -> np.ndarray:
    """Points (n, d) around (centre, 0, ...), at a root mean square distance of the spread."""
    points = np.random.default_rng(seed).standard_normal((task.users, task.d)) * (task.spread / math.sqrt(task.d))
    points[:, 0] += centre
    return points


# --- accuracy


@pytest.mark.parametrize("convexity", some([0.0, 1.0], 1))
@pytest.mark.slow
def test_it_finds_the_mean_of_concentrated_users(convexity: float) -> None:
    """2 windows: the excess loss is below the planned bound on average, and no test fails. Seeded."""
    task = replace(TASK, convexity=convexity)
    method = OutlierRemoval(most_queries=40)
    plan = method.plan(task)
    excesses = []
    for seed in range(2):
        points = people(task, seed)
        release = method.run(plan, Points(points), np.zeros(3), SeededEntropy(seed))
        assert release.complete
        assert release.queries == sum(phase.mean.users * phase.mean.queries for phase in plan.phases)
        excesses.append(np.sum((release.theta - np.array([0.3, 0.0, 0.0])) ** 2) / 2)
    assert 0 < np.mean(excesses) < plan.excess
    assert np.mean(excesses) < 0.02 * 0.3**2 / 2


@pytest.mark.slow
def test_outliers_do_not_carry_the_answer_away() -> None:
    """1 % of the users, as far off as can be: they are left out, where the mean would have moved by 0.007."""
    points = people(TASK, 1)
    points[::100] = [-0.4, 0.0, 0.0]
    method = OutlierRemoval(outliers=0.05)
    release = method.run(method.plan(TASK), Points(points), np.zeros(3), SeededEntropy(1))
    assert release.complete
    assert abs(release.theta[0] - 0.3) < 0.004


def test_a_loss_without_a_second_derivative_is_smoothed() -> None:
    task = replace(TASK, d=1, smoothness=math.inf, distance=1.0)
    method = OutlierRemoval()
    plan = method.plan(task)
    (phase,) = plan.phases
    best, steps = phase.radius, phase.mean.queries * (phase.mean.queries + 1)
    radii = np.array([best, best / 1.1, best * 1.1])
    bounds = radii * task.bound + 2 * task.bound / radii * task.distance**2 / steps
    assert bounds[0] == bounds.min()
    users = Distances(people(task, 2, centre=0.6) * 0.5)  # gradients are twice as far apart as points
    release = method.run(plan, users, np.zeros(1), SeededEntropy(2))
    assert release.complete
    assert users.radii == {best}
    assert abs(release.theta[0] - 0.3) < 0.05


# --- who is asked, and what is left


@pytest.mark.slow
def test_phases_ask_disjoint_users_with_the_whole_budget_each() -> None:
    task = replace(TASK, users=20_001, convexity=1.0)
    method = OutlierRemoval()
    plan = method.plan(task)
    assert 1 < len(plan.phases) <= math.ceil(math.log2(math.log2(task.users * task.items)))
    sizes = [phase.mean.users for phase in plan.phases]
    assert sum(sizes) == task.users
    assert all(size == task.users >> (len(sizes) - i) for i, size in enumerate(sizes[:-1]))
    assert {phase.mean.budget for phase in plan.phases} == {task.budget}
    users = Points(people(task, 4))
    method.run(plan, users, np.zeros(3), SeededEntropy(4))
    spans = sorted(set(users.asked))
    assert len(spans) == len(sizes)
    assert spans[0][0] == 0
    assert spans[-1][1] == task.users - 1
    assert all(before[1] + 1 == after[0] for before, after in pairwise(spans))
    assert all(last - first + 1 == size for first, last, size in spans)
    excesses = [phase.excess for phase in plan.phases]
    assert excesses == sorted(excesses, reverse=True)
    assert plan.excess < method.plan(replace(task, convexity=0.0)).excess


def test_scattered_users_end_the_run_and_leave_the_start() -> None:
    points = np.random.default_rng(5).uniform(-0.5, 0.5, size=(TASK.users, 3))
    users = Points(points)
    start = np.array([0.1, 0.0, 0.0])
    release = OutlierRemoval().run(OutlierRemoval().plan(TASK), users, start, SeededEntropy(5))
    assert not release.complete
    assert len(users.asked) == 1
    assert release.queries == TASK.users
    assert np.array_equal(release.theta, start)
    assert release.theta is not start


def test_a_run_that_ends_early_keeps_what_it_has() -> None:
    class Parting(Points):
        """Users who part after five queries."""

        def of(self, offsets: np.ndarray, radius: float) -> np.ndarray:
            return offsets if len(self.asked) <= 5 else offsets * np.linspace(-5, 5, len(offsets))[:, None]

    users = Parting(people(TASK, 6))
    release = OutlierRemoval().run(OutlierRemoval().plan(TASK), users, np.zeros(3), SeededEntropy(6))
    assert not release.complete
    assert len(users.asked) == 6
    assert 0 < release.theta[0] < 0.3


def test_gradients_of_users_are_wiped() -> None:
    users = Points(people(TASK, 7))
    OutlierRemoval(most_queries=4).run(OutlierRemoval(most_queries=4).plan(TASK), users, np.zeros(3), SeededEntropy(7))
    assert users.given
    assert not any(array.any() for array in users.given)


@pytest.mark.slow
def test_the_same_words_give_the_same_release_and_others_another() -> None:
    method, points = OutlierRemoval(), people(TASK, 8)
    plan = method.plan(TASK)
    a, b, c = (method.run(plan, Points(points), np.zeros(3), SeededEntropy(seed)).theta for seed in (1, 1, 2))
    assert np.array_equal(a, b)
    assert not np.array_equal(a, c)


# --- plans


@pytest.mark.slow
def test_the_gain_is_that_over_clipping() -> None:
    """The noise of a sensitivity of S / n with the whole budget, against the plan's. It takes many records a user."""
    for users, items, pays in ((2000, 100, False), (20_000, 100, False), (20_000, 4000, True), (200_000, 1000, True)):
        task = replace(TASK, users=users, items=items, spread=items**-0.5)
        plan = OutlierRemoval().plan(task)
        mean = plan.phases[-1].mean
        mu = GaussianDP.from_approx(task.budget).mu / math.sqrt(mean.queries)
        assert plan.gain == pytest.approx(task.sensitivity / users / mu / mean.noise)
        assert (plan.gain > 1) == pays


def test_more_users_and_more_items_lower_the_bound() -> None:
    def excess(users: int, items: int) -> float:
        return OutlierRemoval().plan(replace(TASK, users=users, items=items, spread=items**-0.5)).excess

    assert excess(4000, 400) > 1.5 * excess(16_000, 400)
    assert excess(4000, 400) > 1.2 * excess(4000, 1600)


def test_tau_is_that_of_pairs() -> None:
    """Of users with 50 records that are +1 or -1, the pairs that are further apart are fewer than 1 %."""
    task = replace(TASK, d=1, items=50, spread=50**-0.5)
    tau = OutlierRemoval().plan(task).phases[0].mean.distance
    points = np.random.default_rng(9).choice([-1.0, 1.0], size=(2000, 50)).mean(axis=1)
    assert np.mean(np.abs(points[:, None] - points[None]) > tau) < 0.01
    assert OutlierRemoval().plan(replace(task, spread=1.0)).phases[0].mean.distance == task.sensitivity


@pytest.mark.parametrize(
    "change", [{"most_queries": 0}, {"outliers": 0.0}, {"outliers": 0.3}, {"failure": 0.0}, {"failure": 0.6}]
)
def test_bad_parameters_are_refused(change: dict[str, object]) -> None:
    with pytest.raises(ConfigError):
        OutlierRemoval(**change)  # type: ignore[arg-type]


def test_other_budgets_are_refused() -> None:
    with pytest.raises(ConfigError):
        OutlierRemoval().plan(replace(TASK, budget=GaussianDP(1.0)))  # type: ignore[arg-type]
    with pytest.raises(ConfigError):
        OutlierRemoval().least_users(replace(TASK, budget=ApproxDP(2.0**-18, 1e-6)))
