"""Newton's steps over the users of a window: the noise of all rounds, the reach of one user, and an attack on a run."""

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from scipy.stats import chi2

from streamdp import ApproxDP, GaussianDP, Huber, Logistic, Softmax
from streamdp.errors import ConfigError
from streamdp.optim.curvature import Curvature
from streamdp.optim.loops import INTERCEPT
from streamdp.optim.newton import Newton
from streamdp.optim.newton_state import full
from streamdp.optim.user_averages import average_gradients
from streamdp.privacy.entropy import SeededEntropy
from streamdp.reading import change
from streamdp.windows.newton import NewtonPlan, NewtonSteps
from streamdp.windows.records import WindowRecords
from streamdp.windows.task import Task
from tests.support.audit import mu_lower_bound

BUDGET = ApproxDP(4.0, 1e-3)
MU = GaussianDP.from_approx(BUDGET).mu
CURVATURE = Curvature(Huber(), 2)
RUNS = 1200
SIZE = Newton.size(CURVATURE) + 2 * 3 + 2  # of a state: its sums of squares are two triangles


def task(curvature: Curvature = CURVATURE, users: int = 5000, items: int = 4) -> Task:
    return Task(
        users=users,
        items=items,
        d=curvature.parameters,
        budget=BUDGET,
        bound=curvature.loss.bound,
        sensitivity=curvature.loss.sensitivity,
        smoothness=1.0,
        convexity=0.0,
        distance=math.inf,
        spread=curvature.loss.bound / math.sqrt(items),
        curvature=curvature,
    )


def with_intercept(loss: Any) -> np.ndarray:
    spec: np.ndarray = loss.spec()
    spec[INTERCEPT] = 1
    return spec


class Fixed:
    """Users whose sum is the same at every point."""

    def __init__(self, total: np.ndarray) -> None:
        self.total = total

    def curvatures(self, curvature: Curvature, theta: np.ndarray, grid: float) -> np.ndarray:
        return np.rint(self.total / grid) * grid

    def squares(self, curvature: Curvature, theta: np.ndarray, grid: float) -> np.ndarray:
        return np.zeros(len(curvature.squares) * curvature.columns * (curvature.columns + 1) // 2)

    def parts(self, theta: np.ndarray, count: int, grid: float) -> tuple[np.ndarray, np.ndarray]:
        return np.zeros((count, len(theta))), np.full(count, 1000.0)

    def project(self, theta: np.ndarray) -> np.ndarray:
        return theta


def sums(plan: NewtonPlan, total: np.ndarray, runs: int, seed: int, monkeypatch: pytest.MonkeyPatch) -> np.ndarray:
    """The noisy sums (runs, rounds, size) of whole runs, of which the method shows less."""
    found: list[np.ndarray] = []
    monkeypatch.setattr(Newton, "learn", lambda walk, rounds, *_: found.append(rounds[-1].total))
    rng, users, start = SeededEntropy(seed), Fixed(total), np.zeros(SIZE)
    for _ in range(runs):
        NewtonSteps().run(plan, users, start, rng)  # type: ignore[arg-type]
    return np.reshape(found, (runs, len(plan.shares), -1))


def test_the_rounds_have_this_noise_and_no_less(monkeypatch: pytest.MonkeyPatch) -> None:
    """Chi-square at 1e-8 for each round and coordinate: N(0, (S / mu_t)^2), with sum of mu_t^2 = mu^2."""
    plan = NewtonSteps(rounds=4, growth=2.0, follow=False).plan(task())
    assert plan.spread is not None
    spent = [noise.budget.mu**2 for noise in (*plan.noises, plan.spread)]  # type: ignore[union-attr]
    assert MU**2 * (1 - 1e-9) < sum(spent) <= MU**2
    assert spent[-1] == pytest.approx(MU**2 / 64)
    noise = sums(plan, np.zeros(CURVATURE.size), 500, 1, monkeypatch)
    for t, share in enumerate((1 / 15, 2 / 15, 4 / 15, 8 / 15)):
        scale = CURVATURE.sensitivity / (MU * math.sqrt(share * 63 / 64))
        total = np.sum((noise[:, t] / (scale * 1.0005)) ** 2, axis=0)
        assert np.all(np.minimum(chi2.cdf(total, 500), chi2.sf(total, 500)) > 0.5e-8)
        assert np.all(chi2.cdf(total / 4, 500) < 1e-8)


def test_the_parts_in_which_a_change_is_looked_for_have_this_noise_and_no_less(monkeypatch: pytest.MonkeyPatch) -> None:
    """Chi-square at 1e-8: N(0, (S / mu')^2), and mu'^2 with those of all rounds is mu^2. Half the noise is rejected."""
    plan = NewtonSteps().plan(task(users=50_000))
    assert plan.look is not None
    assert plan.spread is not None
    spent = sum(noise.budget.mu**2 for noise in (*plan.noises, plan.look, plan.spread))  # type: ignore[union-attr]
    assert MU**2 * (1 - 1e-9) < spent <= MU**2
    found: list[np.ndarray] = []
    monkeypatch.setattr(change, "step", lambda sums, *_: found.append(sums))
    monkeypatch.setattr(Newton, "learn", lambda *_: None)
    rng, users, start = SeededEntropy(1), Fixed(np.zeros(CURVATURE.size)), np.zeros(SIZE)
    for _ in range(60):
        NewtonSteps().run(plan, users, start, rng)  # type: ignore[arg-type]
    noise = np.reshape(found, (60 * 16, -1))
    assert noise.shape[1] == CURVATURE.columns
    scale = max(task().sensitivity, math.sqrt(2) * task().bound) / plan.look.budget.mu  # type: ignore[union-attr]
    total = np.sum((noise / (scale * 1.0005)) ** 2)
    assert min(chi2.cdf(total, noise.size), chi2.sf(total, noise.size)) > 0.5e-8
    assert chi2.cdf(total / 4, noise.size) < 1e-8


@pytest.mark.parametrize("name", ["huber", "logistic"])
def test_a_user_moves_the_parts_by_no_more_than_the_noise_covers(name: str) -> None:
    """Users of 1 to 5 records anywhere; extreme users in one part and in two reach 0.99 of what is possible."""
    loss, point, *extremes = EXTREMES[name]
    spec, theta, rng = loss.spec(), np.array(point), np.random.default_rng(6)
    claim = max(loss.sensitivity, math.sqrt(2) * loss.bound)

    def parts(X: np.ndarray, y: np.ndarray, places: np.ndarray) -> np.ndarray:
        users = WindowRecords(loss, spec, lambda t: t, X, y, np.array([len(y)]), places)
        sums, counts = users.parts(theta, 4, 2.0**-30)
        assert math.isclose(counts.sum(), 1.0)
        return sums

    for places, reached in (([0.1, 0.2], loss.sensitivity), ([0.1, 0.6], None)):
        ends = [
            parts(np.array([x]), np.array([y]), np.array([place]))
            for (x, y), place in zip(extremes, places, strict=True)
        ]
        apart = float(np.linalg.norm(ends[0] - ends[1]))
        expected = math.hypot(*(float(np.linalg.norm(end)) for end in ends)) if reached is None else reached
        assert 0.99 * expected < apart <= claim * (1 + 1e-6)
    for _ in range(1000):
        sizes, scale = rng.integers(1, 6, 2), 10 ** rng.uniform(-1, 1.5)
        users = [
            parts(rng.normal(size=(n, 2)) * scale, np.sign(rng.normal(size=n)).clip(0), np.sort(rng.random(n)))
            for n in sizes
        ]
        assert float(np.linalg.norm(users[0] - users[1])) <= claim * (1 + 1e-6)


def test_the_parts_of_users_are_the_sums_of_their_averages_and_add_up() -> None:
    """Parts are the gradients of their records over the numbers of records of users; what is dropped counts no more."""
    loss, rng = Huber(), np.random.default_rng(8)
    X, y, sizes = rng.normal(size=(9, 1)) * 0.5, rng.normal(size=9), np.array([2, 4, 3])
    places = np.array([0.0, 0.6, 0.1, 0.2, 0.7, 0.8, 0.3, 0.4, 0.45])
    theta, spec = np.array([0.3, -0.1, 0.8]), with_intercept(loss)
    users = WindowRecords(loss, spec, lambda t: t, X.copy(), y.copy(), sizes, places)
    each = CURVATURE.vectors(spec, theta, X, y)[:, :3] / np.repeat(sizes, sizes)[:, None]
    sums, counts = users.parts(theta, 2, 2.0**-40)
    late = places >= 0.5
    np.testing.assert_allclose(sums, [each[~late].sum(axis=0), each[late].sum(axis=0)], atol=1e-11)
    np.testing.assert_allclose(counts, [2.0, 1.0])
    assert users.keep_from(0.5) == 2
    kept = CURVATURE.vectors(spec, theta, X[late], y[late])
    whole = kept[0] + kept[1:].mean(axis=0)
    np.testing.assert_allclose(users.curvatures(CURVATURE, theta, 2.0**-40), whole, atol=1e-11)


def test_an_attack_on_all_rounds(monkeypatch: pytest.MonkeyPatch) -> None:
    """The attacker sees every noisy sum of a run, and one user moves each of them by S. Below the claim and close to
    it; above it with half the noise, and where every round spends the budget of the window."""
    plan = NewtonSteps(rounds=4, follow=False).plan(task())
    direction = np.zeros(CURVATURE.size)
    direction[0] = 1.0
    variances = np.array([noise.variance(CURVATURE.size) / CURVATURE.size for noise in plan.noises])

    def found(given: NewtonPlan, seed: int) -> float:
        scores = [
            (sums(given, way * CURVATURE.sensitivity / 2 * direction, RUNS, seed + way, monkeypatch) @ direction)
            @ (1 / variances)
            for way in (1, -1)
        ]
        return mu_lower_bound(scores[0], scores[1])

    def louder(factor: float) -> NewtonPlan:
        noises = [replace(n, budget=GaussianDP(n.budget.mu * factor)) for n in plan.noises]  # type: ignore[union-attr, type-var]
        return replace(plan, noises=tuple(noises))

    assert 0.5 * MU < found(plan, 10) <= MU * math.sqrt(63 / 64)
    assert found(louder(2.0), 20) > MU


EXTREMES: dict[str, Any] = {
    # As in test_newton: residuals of c and beyond all bounds; certain of the wrong class, in opposite directions.
    "huber": (Huber(), [0.0, 0.0, 1.0], ([1.0, 1.0], 1.345 * (1 - 1e-9)), ([-1.0, -1.0], 1e6)),
    "logistic": (Logistic(), [0.0, 1e6], ([1.41414, 0.01], 0.0), ([-1.41414, 0.01], 0.0)),
    "softmax": (Softmax(), [0.0, 0.0, 0.0, 1e6], ([1.5**0.5, 0.5**0.5], 0.0), ([1.5**0.5, -(0.5**0.5)], 1.0)),
}


@pytest.mark.parametrize("name", EXTREMES)
def test_a_user_moves_the_sum_by_no_more_than_the_noise_covers(name: str) -> None:
    """Users of 1 to 5 random records in place of another one; users of extreme records reach 0.99 of the claim."""
    loss, point, *extremes = EXTREMES[name]
    curvature, spec, theta = Curvature(loss, 2, 1 + (name == "softmax")), loss.spec(), np.array(point)
    rng = np.random.default_rng(5)

    def total(X: np.ndarray, y: np.ndarray, at: np.ndarray) -> np.ndarray:
        return WindowRecords(loss, spec, lambda t: t, X, y, np.array([len(y)])).curvatures(curvature, at, 2.0**-30)

    users = [total(np.tile(x, (n, 1)), np.full(n, y), theta) for n, (x, y) in zip((2, 3), extremes, strict=True)]
    apart = float(np.linalg.norm(users[0] - users[1]))
    reached = 0.948 if name == "softmax" else 0.99
    assert reached * curvature.sensitivity < apart <= curvature.sensitivity * (1 + 1e-6)
    for _ in range(2000):
        at = theta + rng.normal(size=len(theta)) * (3.0 if name != "huber" else np.array([3.0, 3.0, 0.0]))
        sizes, scale = rng.integers(1, 6, 2), 10 ** rng.uniform(-1, 1.5)
        users = [total(rng.normal(size=(n, 2)) * scale, np.sign(rng.normal(size=n)).clip(0), at) for n in sizes]
        assert float(np.linalg.norm(users[0] - users[1])) <= curvature.sensitivity * (1 + 1e-6)


def test_the_squares_of_gradients_have_this_noise_and_no_less() -> None:
    """Chi-square at 1e-8: N(0, (2 / mu')^2), mu'^2 a 64th of mu^2. Half the noise is rejected."""
    plan = NewtonSteps(rounds=1, follow=False).plan(task())
    rng, users, start = (
        SeededEntropy(4),
        Fixed(np.zeros(CURVATURE.size)),
        np.append([0.0, 0.0, 1.0], np.zeros(SIZE - 3)),
    )
    noise = np.array([NewtonSteps(rounds=1, follow=False).run(plan, users, start, rng).theta[-8:] for _ in range(400)])  # type: ignore[arg-type]
    assert np.all(noise[:, -2] == 5000)
    scale = 2 / (MU * math.sqrt(1 / 64))
    np.testing.assert_allclose(noise[:, -1], scale**2, rtol=1e-3)
    total = np.sum((noise[:, :-2] / (scale * 1.0005)) ** 2)
    assert min(chi2.cdf(total, 400 * 6), chi2.sf(total, 400 * 6)) > 0.5e-8
    assert chi2.cdf(total / 4, 400 * 6) < 1e-8


@pytest.mark.parametrize("name", ["huber", "logistic"])
def test_a_user_moves_the_squares_by_no_more_than_the_noise_covers(name: str) -> None:
    """Users of 1 to 5 records; two records in orthogonal directions reach 0.9 of the claim."""
    loss, point = EXTREMES[name][:2]
    curvature, spec, theta = Curvature(loss, 2), loss.spec(), np.array(point)
    claim, rng = math.sqrt(2 * len(curvature.squares)), np.random.default_rng(6)

    def total(X: np.ndarray, y: np.ndarray, at: np.ndarray) -> np.ndarray:
        return WindowRecords(loss, spec, lambda t: t, X, y, np.array([len(y)])).squares(curvature, at, 2.0**-30)

    ends = ([1.4, 0.0], [0.0, 1.4]) if name == "huber" else ([1.4142, 0.01], [-0.01, 1.4142])
    y, at = (1.344, theta) if name == "huber" else (0.0, np.array([1e6, 1e6]) * 4)
    apart = float(np.linalg.norm(np.subtract(*(total(np.array([x]), np.array([y]), at) for x in ends))))
    assert 0.9 * claim < apart <= claim
    for _ in range(2000):
        at = theta + rng.normal(size=len(theta)) * (3.0 if name != "huber" else np.array([3.0, 3.0, 0.0]))
        sizes, scale = rng.integers(1, 6, 2), 10 ** rng.uniform(-1, 1.5)
        users = [total(rng.normal(size=(n, 2)) * scale, np.sign(rng.normal(size=n)).clip(0), at) for n in sizes]
        assert float(np.linalg.norm(users[0] - users[1])) <= claim * (1 + 1e-6)
        assert max(float(np.linalg.norm(user)) for user in users) <= claim / math.sqrt(2) * (1 + 1e-6)


@pytest.mark.parametrize("loss", [Huber(), Logistic()])
def test_the_squares_are_those_of_averages(loss: Any) -> None:
    curvature, rng = Curvature(loss, 2), np.random.default_rng(7)
    X, y, sizes = rng.normal(size=(9, 1)) * 0.5, rng.integers(0, 2, 9) * 1.0, np.array([2, 4, 3])
    theta = np.array([0.3, -0.1, 0.4][: curvature.parameters])
    found = WindowRecords(loss, with_intercept(loss), lambda t: t, X.copy(), y.copy(), sizes).squares(
        curvature, theta, 2.0**-40
    )
    each = curvature.vectors(with_intercept(loss), theta, X, y)[:, :2]
    means = np.array([part.mean(axis=0) for part in np.split(each, np.cumsum(sizes)[:-1])])
    np.testing.assert_allclose(full(found, 2) * curvature.squares[0], means.T @ means, atol=1e-10)
    if len(curvature.squares) > 1:
        rows = np.column_stack([X[:, 0], np.ones(9)]) * (np.abs((y - X[:, 0] * 0.3 + 0.1) / 0.4) < loss.c)[:, None]
        weight = np.repeat(1 / sizes, sizes)[:, None]
        assert 0 < np.count_nonzero(rows[:, 1]) < 9
        np.testing.assert_allclose(full(found[3:], 2) * curvature.squares[1], (rows * weight).T @ rows, atol=1e-10)


def test_the_sum_is_that_of_averages() -> None:
    """Each user counts once, whatever the number of its records; the first d numbers are average gradients."""
    loss, curvature = Huber(), CURVATURE
    rng = np.random.default_rng(7)
    X, y, sizes = rng.normal(size=(9, 1)) * 0.5, rng.normal(size=9), np.array([2, 4, 3])
    spec = with_intercept(loss)
    users = WindowRecords(loss, spec, lambda t: t, X.copy(), y.copy(), sizes)
    theta = np.array([0.3, -0.1, 0.8])
    each = curvature.vectors(spec, theta, X, y)
    averages = np.array([part.mean(axis=0) for part in np.split(each, np.cumsum(sizes)[:-1])])
    np.testing.assert_allclose(users.curvatures(curvature, theta, 2.0**-40), averages.sum(axis=0), atol=1e-11)
    near = replace(loss, weighting="norm")
    gradients = average_gradients(with_intercept(near), near, theta, X, y, np.append(0, np.cumsum(sizes)), np.arange(3))
    np.testing.assert_allclose(averages[:, :3], gradients, atol=1e-12)


def test_windows_add_up_and_so_do_learners_of_disjoint_windows() -> None:
    """Two windows know twice as much as one, and learners of one window each are merged to the same averages."""
    steps, plan = NewtonSteps(), NewtonSteps().plan(task())
    rng, start = np.random.default_rng(3), np.append([0.0, 0.0, 1.0], np.zeros(steps.memory(task())))
    windows = []
    for _ in range(2):
        X = rng.normal(size=(20_000, 1)) * 0.5
        y = X[:, 0] + 0.5 + 0.1 * rng.normal(size=20_000)
        windows.append(WindowRecords(Huber(), with_intercept(Huber()), lambda t: t, X, y, np.full(5000, 4)))
    at = np.arange(Newton.size(CURVATURE))[-3:-1]  # since and changes
    first = steps.run(plan, windows[0], start, SeededEntropy(1)).theta
    both = steps.run(plan, windows[1], first, SeededEntropy(2)).theta
    other = steps.run(plan, windows[1], start, SeededEntropy(2)).theta
    np.testing.assert_allclose(both[at], 2 * first[at])
    average = (first[:3] + other[:3]) / 2
    merged = steps.merge(task(), [first, other], average, lambda t: t)
    np.testing.assert_allclose(merged[at], both[at])
    assert np.linalg.norm(merged[:2] - [1.0, 0.5]) < 0.1
    assert np.linalg.norm(both[:2] - [1.0, 0.5]) < 0.1


def test_the_sum_is_wiped_where_its_noise_fails() -> None:
    """Nothing of the users is left in the sum that was handed over."""
    plan = NewtonSteps().plan(task())
    held: list[np.ndarray] = []

    class Handed(Fixed):
        def curvatures(self, curvature: Curvature, theta: np.ndarray, grid: float) -> np.ndarray:
            held.append(np.full(curvature.size, 1e9))  # longer than any sum
            return held[-1]

    with pytest.raises(ConfigError, match="at most"):
        NewtonSteps().run(plan, Handed(np.zeros(1)), np.zeros(SIZE), SeededEntropy(1))  # type: ignore[arg-type]
    assert not held[-1].any()


def test_bad_settings_are_told() -> None:
    for bad in ({"rounds": 0}, {"rounds": True}, {"growth": 0.5}):
        with pytest.raises(ConfigError, match=next(iter(bad))):
            NewtonSteps(**bad)  # type: ignore[arg-type]
