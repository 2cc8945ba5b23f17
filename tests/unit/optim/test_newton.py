"""Newton's method without an estimator: batches, steps, averages, and merges."""

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from scipy.optimize import minimize
from scipy.special import expit

from streamdp import Huber, Logistic, PanPrivateRegressor, datasets
from streamdp.optim.curvature import Curvature
from streamdp.optim.loops import INTERCEPT
from streamdp.optim.newton import Newton
from streamdp.optim.newton_state import State
from streamdp.optim.shrinkage import pooled
from streamdp.reading import change
from streamdp.scaling.units import Units
from tests.support.newton import averages, with_averages

LOGISTIC, HUBER, PLAIN = Curvature(Logistic(), 4), Curvature(Huber(), 4), Curvature(Logistic(), 4, plain=True)
CURVATURES = [LOGISTIC, HUBER, PLAIN]
each = pytest.mark.parametrize("curvature", CURVATURES, ids=["logistic", "huber", "plain"])
TRUTH = np.array([1.0, -2.0, 0.5, 0.3])


def newton(curvature: Curvature, deviation: float = 0.0, batch: int | None = None, **options: Any) -> Newton:
    def project(theta: np.ndarray) -> np.ndarray:
        return theta if curvature is not HUBER else np.append(theta[:-1], max(theta[-1], 0.1))

    return Newton(
        curvature,
        curvature.loss.start(curvature.parameters),
        options.get("project", project),
        deviation,
        batch,
        follow=options.get("follow", True),
        replans=options.get("replans", True),
    )


def stream(curvature: Curvature, n: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, 3))
    u = X @ TRUTH[:3] + TRUTH[3]
    return X, (rng.random(n) < expit(u)).astype(float) if curvature is not HUBER else u + rng.normal(0, 0.5, n)


def learn(walk: Newton, X: np.ndarray, y: np.ndarray, seed: int | None = None) -> None:
    """All whole batches of the rows."""
    rng = np.random.default_rng(seed)
    spec = walk.curvature.loss.spec()
    spec[INTERCEPT] = 1.0
    at = 0
    while at + (batch := walk.batch) <= len(X):
        rows = slice(at, at + batch)
        total = walk.curvature.vectors(spec, walk.middle, X[rows], y[rows]).sum(axis=0)
        walk.move(total + walk.deviation * rng.standard_normal(len(total)), batch, batch)
        at += batch


@pytest.mark.slow
def test_without_noise_it_ends_at_the_minimum_of_the_weighted_loss() -> None:
    X, y = stream(LOGISTIC, 400)
    full = np.hstack([X, np.ones((len(X), 1))])
    sizes = np.linalg.norm(full, axis=1)
    w = np.minimum(1, np.minimum(math.sqrt(2) / sizes, math.sqrt(8) / sizes**2))
    walk = newton(LOGISTIC, batch=400)
    for _ in range(600):
        learn(walk, X, y)
    best = minimize(lambda t: np.sum(w * (np.logaddexp(0, full @ t) - y * (full @ t))), np.zeros(4), tol=1e-12).x
    np.testing.assert_allclose(walk.estimate, best, atol=4e-3)


@pytest.mark.parametrize("deviation", [0.0, 5.0, 25.0, 1e4])
@pytest.mark.parametrize(("follow", "replans"), [(True, True), (False, True), (False, False), (True, False)])
def test_batches_grow_by_the_rule(deviation: float, follow: bool, replans: bool) -> None:
    walk = newton(HUBER, deviation, follow=follow, replans=replans)
    d, V = 5, 2 * 1.345**2
    balance = deviation**2 * d / V
    first = max(32.0, 10 * d, 4 * math.sqrt(balance))
    for n in (0, 10, 10**3, 10**4, 10**5, 10**6, 10**8, 10**12, 10**18):
        walk.go((0, 0, n))
        most = max(16 * balance, n / 8) if follow and not replans else math.inf
        assert walk.batch == int(max(first, min(2 * n, 2**20, most)))
    walk.go((0, 0, 0))
    sizes = []
    for _, (size, times) in zip(range(50), walk.runs(), strict=False):
        walk.skip()
        assert times == 1
        sizes.append(size)
        assert walk.batch == size
    assert sizes == sorted(sizes)
    fixed = newton(HUBER, deviation, 7)
    assert (fixed.batch, next(fixed.runs())) == (7, (7, 10**18))


@pytest.mark.parametrize("curvature", [LOGISTIC, HUBER], ids=["logistic", "huber"])
def test_the_averages_are_weighted_means_written_out(curvature: Curvature) -> None:
    """Three batches of different sizes, of which one is short; the sums are arbitrary."""
    rng = np.random.default_rng(5)
    z, d, q, V = 3.0, curvature.parameters, curvature.columns, curvature.variance
    walk = newton(curvature, z)
    points, means, information, curved, weight, noise = [], [], [], np.zeros(curvature.size - d), 0.0, 0.0
    for size in (50, 9, 400):
        total = np.abs(rng.normal(size=curvature.size)) * size
        sigma = walk.estimate[-1] if curvature is HUBER else 4.0
        tau = 1 / (V / size + z**2 * d / size**2)
        near = bent = 0.0
        if points:  # A has the weight of the newest block, by its own error, with the way to the present point
            A, left = pooled(walk.state.hessian(q), noise / weight**2, (), np.ones(q - 1))
            ways = np.array(points)[:, :q] - walk.middle[:q]
            errors = ways**2 @ left.sum(axis=0) + 0.09 * np.sum((ways @ A) ** 2, axis=1)
            near = max(1 / (1 + information[-1] * errors[-1]), 1 - tau / weight)
            bent = near * (points[-1][-1] / walk.middle[d - 1] if curvature is HUBER else 1.0)  # A of another sigma
        points.append(walk.middle)
        information.append(tau)
        means.append(total[:d] / size)
        before, weight = bent * weight, near * weight
        noise = bent**2 * noise + (tau * z / (size * sigma * curvature.factor)) ** 2
        curved = (before * curved + tau * total[d:] / (size * sigma * curvature.factor)) / (weight + tau)
        weight += tau
        walk.move(total, size, size)
        found = averages(walk)
        np.testing.assert_allclose(found.point, np.average(points, axis=0, weights=information))
        np.testing.assert_allclose(found.gradient, np.average(means, axis=0, weights=information))
        np.testing.assert_allclose(found.curvature, curved)
    np.testing.assert_allclose(found[3:], [sum(information), weight, noise])
    assert walk.place == (0, 0, 459)


def step(
    walk: Newton, gradient: np.ndarray, matrix: np.ndarray, variance: float, bend: float = 1.0, error: float = 1e-9
) -> np.ndarray:
    """The step from a query point 0 (scale 1), of this gradient and this Hessian with this noise."""
    upper = matrix * np.where(np.eye(len(matrix)), 1, math.sqrt(2))
    curved = np.append(upper[np.triu_indices(len(matrix))], [bend] if walk.curvature is HUBER else [])
    return walk._next(walk.middle, with_averages(walk, gradient, curved, variance, error))


def test_a_step_is_newtons_and_what_noise_hides_goes_to_the_prior() -> None:
    rng = np.random.default_rng(2)
    matrix = np.diag([3.0, 1.0, 0.01, 2.0]) + 0.1 * np.diag([1.0, 0, 0], 1) + 0.1 * np.diag([1.0, 0, 0], -1)
    gradient, walk = np.array([0.3, -0.2, 0.05, 0.1]), newton(LOGISTIC, 1.0)
    exact = step(walk, gradient, matrix, 0.0)
    np.testing.assert_allclose(exact, -np.linalg.solve(matrix, gradient) * exact[0] / -0.1, rtol=0.3)
    hidden = step(walk, gradient, matrix, 0.0, error=0.05**2)
    assert abs(hidden[2]) < 0.5 < abs(exact[2])  # 5 by Newton's step, and its error is 5
    np.testing.assert_allclose(hidden[[0, 1, 3]], -(gradient / np.diag(matrix))[[0, 1, 3]], atol=0.06)
    noise = rng.normal(size=4)
    assert np.linalg.norm(step(walk, noise, -np.eye(4), 0.01, error=1.0)[:3]) < 0.5  # nothing is known
    # a decrement of 100 is shortened to 1
    long = step(walk, np.array([10.0, 0, 0, 0]), np.eye(4), 0.0)
    assert np.linalg.norm(long) <= 1 + 1e-9


def test_a_way_that_all_blocks_have_in_common_leaves_them_the_weights_of_their_information() -> None:
    walk = newton(LOGISTIC, 1.0)
    state = with_averages(walk, np.array([0.3, 0, 0, 0]), np.eye(4)[np.triu_indices(4)], 0.0)
    blocks = state.blocks.copy()
    for information, gradient in ((1e4, 0.3), (1e2, 0.9)):
        sums = (
            [0.0] * 4 + [information * gradient, 0, 0, 0] + [information] * 3 + [information**2 / 1e6, 1e-6, 1e6, 0.0]
        )
        change.add(blocks, np.array(sums))
    change.forget(blocks, 1)
    found = walk._next(walk.middle, replace(state, blocks=blocks))
    assert found[0] == pytest.approx(-(0.3 + 0.009) / 1.01, rel=0.03)  # not -.6, the mean of both


@pytest.mark.parametrize(
    ("gradient", "bend", "variance", "expected"),
    [
        (0.1, 2.0, 0.0, 1 - 0.1 / 2),
        (0.01, 1e-6, 0.0, 1 - 0.01 / 0.05),
        (0.1, 0.2, 0.25, 1 - 0.1 / 1.0),
        (5.0, 1.0, 0.0, 0.25),
        (-9.0, 1.0, 0.0, 8.0),
    ],
)
def test_the_scale_steps_alone(gradient: float, bend: float, variance: float, expected: float) -> None:
    walk = newton(HUBER, 1.0)
    found = step(walk, np.append(np.zeros(4), gradient), np.eye(4), variance, bend, error=1e-4)
    np.testing.assert_allclose(found, np.append(np.zeros(4), expected), atol=1e-12)


def test_steps_are_projected() -> None:
    walk = newton(LOGISTIC, 0.0, 50, project=lambda theta: np.clip(theta, -0.1, 0.1))
    learn(walk, *stream(LOGISTIC, 500))
    assert np.max(np.abs(walk.estimate)) == 0.1


def test_any_sum_leaves_a_finite_state() -> None:
    """Also one whose Hessian is 0 or negative."""
    for curvature in CURVATURES:
        for deviation in (0.0, 1e5):
            walk = newton(curvature, deviation)
            for total in (0.0, -1e3, 1e6, -1e6, 0.0):
                walk.move(np.full(curvature.size, total), 100, 100)
                assert np.isfinite(walk.state.numbers()).all()


@each
def test_merged_walks_without_records_know_nothing(curvature: Curvature) -> None:
    empty = newton(curvature)
    empty.merge([newton(curvature)], curvature.loss.start(curvature.parameters))
    assert np.array_equal(empty.state.numbers(), newton(curvature).state.numbers())


def test_a_change_that_probes_find_while_units_are_new_is_learned_from_them() -> None:
    """`make demo` found it: without blocks of these units the state was NaN, and the stream ended with an error."""
    names = {"hour": (0, 24), "dep_delay": (-30, 180), "distance": (0, 3000), "origin": ["EWR", "JFK", "LGA"]}
    flights = datasets.flights().head(64_000).drop_nulls(["arr_delay", "dep_delay"])
    for seed in range(6):
        model = PanPrivateRegressor(features=names, target=(-60, 180), budget="eps=1,delta=1e-8", seed=seed)
        model.learn_many(flights.select(list(names)), flights["arr_delay"])
        assert model.n_changes
        assert np.isfinite(model.theta).all()


# --- several learners


def merged(parts: list[Newton]) -> Newton:
    whole, weights = newton(parts[0].curvature, parts[0].deviation), [part.records for part in parts]
    whole.merge(parts, np.average([part.estimate for part in parts], axis=0, weights=weights))
    return whole


def learners(curvature: Curvature, count: int, n: int) -> list[Newton]:
    X, y = stream(curvature, n)
    parts = [newton(curvature, 5.0) for _ in range(count)]
    for seed, part in enumerate(parts):
        learn(part, X[seed::count], y[seed::count], seed)
    return parts


@each
def test_learners_of_parts_know_together_about_what_one_does(curvature: Curvature) -> None:
    """Blocks of many ages were one sum once: the answer of several learners was then worse than that of each."""
    parts = learners(curvature, 8, 160_000)
    errors = [float(np.linalg.norm(walk.estimate[:4] - TRUTH)) for walk in (merged(parts), *parts)]
    assert errors[0] < (0.9 if curvature is not HUBER else 0.5) * np.mean(errors[1:])


@each
def test_a_merge_is_a_sum_in_any_order(curvature: Curvature) -> None:
    a, b, c = learners(curvature, 3, 30_000)
    ways = [merged([merged([a, b]), c]), merged([a, merged([b, c])]), merged([merged([c, a]), b]), merged([b, c, a])]
    apart = max(np.linalg.norm(way.estimate[:4] - ways[0].estimate[:4]) for way in ways)
    assert apart < 0.02 * np.linalg.norm(a.estimate[:4] - b.estimate[:4])
    assert len({way.records for way in ways}) == 1
    for way in ways[1:]:
        np.testing.assert_allclose(way.state.blocks[:, change.RECORDS :], ways[0].state.blocks[:, change.RECORDS :])


@each
def test_sums_in_other_units_give_the_same_answer(curvature: Curvature) -> None:
    """A block at one query point knows as much about theta in any units, if its noise is the same on all columns."""
    state = learners(curvature, 1, 20_000)[0].state
    state = replace(state, units=np.array([np.zeros(3), np.ones(3), np.zeros(3)]))
    other = state.in_units(np.array([[0.2, -0.1, 0.0], [1.5, 1.5, 1.5], np.zeros(3)]), 1.0, curvature)

    def answer(known: State) -> np.ndarray:
        total, q = known.blocks.sum(axis=0), curvature.columns
        point, gradient = change.means(total, curvature.parameters, curvature is HUBER)
        theta = point.copy()
        theta[:q] -= np.linalg.solve(known.hessian(q), gradient[:q])
        return Units(known.units[:2]).outward(theta)[:q]

    np.testing.assert_allclose(answer(other), answer(state), rtol=1e-9)
    assert other.weight < state.weight
    back = other.in_units(state.units, 1.0, curvature)
    np.testing.assert_allclose(answer(back), answer(state), rtol=1e-9)


def test_days_that_end_soon_are_not_followed_however_much_budget_there_is() -> None:
    """With eps=8 a day of 1,500 records is a sure change. Following each makes the mean error larger than ignoring."""
    rng = np.random.default_rng(3)
    X = rng.normal(size=(150_000, 4))
    days = np.repeat(rng.normal(size=100), 1500)
    y = X @ np.array([1.0, -1.0, 0.5, 0.5]) + days + rng.normal(size=len(X))
    errors = {}
    for follow in ("follow", "ignore"):
        names = dict.fromkeys("abcd", (-5.0, 5.0))
        model = PanPrivateRegressor(features=names, target=(-10, 10), budget="eps=8,delta=1e-6", change=follow, seed=1)
        found = []
        for day, rows in enumerate(np.split(np.arange(len(X)), 100)):
            if day >= 50:
                found.append(float(np.mean(np.abs(model.predict_arrays(X[rows]) - y[rows]))))
            model.learn_arrays(X[rows], y[rows])
        errors[follow] = float(np.mean(found))
    assert errors["follow"] < 1.1 * errors["ignore"]
