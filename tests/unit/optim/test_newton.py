"""Newton's method without an estimator: batches, steps, averages, and what its state may be."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from scipy.optimize import minimize
from scipy.special import expit

from streamdp import Huber, Logistic
from streamdp.errors import ConfigError
from streamdp.optim.curvature import Curvature
from streamdp.optim.loops import INTERCEPT
from streamdp.optim.newton import Newton
from streamdp.reading import change
from tests.support.newton import averages, with_averages

LOGISTIC, HUBER = Curvature(Logistic(), 4), Curvature(Huber(), 4)
CURVATURES = [LOGISTIC, HUBER]
each = pytest.mark.parametrize("curvature", CURVATURES, ids=["logistic", "huber"])
TRUTH = np.array([1.0, -2.0, 0.5, 0.3])


def newton(curvature: Curvature, deviation: float = 0.0, batch: int | None = None, **options: Any) -> Newton:
    def project(theta: np.ndarray) -> np.ndarray:
        return theta if curvature is LOGISTIC else np.append(theta[:-1], max(theta[-1], 0.1))

    return Newton(
        curvature,
        curvature.loss.start(curvature.parameters),
        options.get("project", project),
        deviation,
        batch,
        follow=options.get("follow", True),
    )


def stream(curvature: Curvature, n: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, 3))
    u = X @ TRUTH[:3] + TRUTH[3]
    return X, (rng.random(n) < expit(u)).astype(float) if curvature is LOGISTIC else u + rng.normal(0, 0.5, n)


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
    for _ in range(1500):
        learn(walk, X, y)
    best = minimize(lambda t: np.sum(w * (np.logaddexp(0, full @ t) - y * (full @ t))), np.zeros(4), tol=1e-12).x
    np.testing.assert_allclose(walk.estimate, best, atol=2e-3)


@each
def test_it_learns_within_noise(curvature: Curvature) -> None:
    """A seeded stream with the noise of about epsilon = 1."""
    walk = newton(curvature, 25.0)
    learn(walk, *stream(curvature, 60_000), seed=3)
    expected = TRUTH if curvature is LOGISTIC else np.append(TRUTH, 0.5)
    assert np.linalg.norm(walk.estimate - expected) < (0.25 if curvature is LOGISTIC else 0.1)


@pytest.mark.parametrize("deviation", [0.0, 5.0, 25.0, 1e4])
@pytest.mark.parametrize(("follow", "calm", "large"), [(True, 8, 64), (False, 16, 16)])
def test_batches_grow_by_the_rule(deviation: float, follow: bool, calm: int, large: int) -> None:
    walk = newton(HUBER, deviation, follow=follow)
    d, V = 5, 2 * 1.345**2
    balance = deviation**2 * d / V
    first = max(32.0, 10 * d, 4 * math.sqrt(balance))
    for n in (0, 10, 10**3, 10**4, 10**5, 10**6, 10**8, 10**12, 10**18):
        walk.go((0, 0, n))
        assert walk.batch == int(max(first, min(n / 3, calm * balance), min(n / large, 2**20)))
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


@each
def test_the_averages_are_weighted_means_written_out(curvature: Curvature) -> None:
    """Three batches of different sizes; the sums are arbitrary."""
    rng = np.random.default_rng(5)
    z, d, V = 3.0, curvature.parameters, curvature.variance
    walk = newton(curvature, z)
    points, means, weights, entries, information = [], [], [], [], 0.0
    for size in (50, 9, 400):
        total = np.abs(rng.normal(size=curvature.size)) * size
        sigma = walk.estimate[-1] if curvature is HUBER else 4.0
        unit = np.append(np.ones(d), np.full(curvature.size - d, 1 / (sigma * curvature.factor)))
        tau = 1 / (V / size + z**2 * d / size**2)
        information += tau
        points.append(walk.middle)
        means.append(total / size * unit)
        weights.append(tau * information / (information + 300 * d / V))
        entries.append((weights[-1] * z / (size * sigma * curvature.factor)) ** 2)
        walk.move(total, size, size)
        found, mean = averages(walk), np.average(means, axis=0, weights=weights)
        np.testing.assert_allclose(found.point, np.average(points, axis=0, weights=weights))
        np.testing.assert_allclose(np.append(found.gradient, found.curvature), mean)
    np.testing.assert_allclose(found[3:], [information, sum(weights), sum(entries)])
    assert walk.place == (0, 0, 459)


def step(walk: Newton, gradient: np.ndarray, matrix: np.ndarray, variance: float, bend: float = 1.0) -> np.ndarray:
    """The step from a query point 0 (scale 1), of this gradient and this Hessian with this noise."""
    upper = matrix * np.where(np.eye(len(matrix)), 1, math.sqrt(2))
    curved = np.append(upper[np.triu_indices(len(matrix))], [bend] if walk.curvature is HUBER else [])
    return walk._next(walk.middle, with_averages(walk, gradient, curved, variance))


def test_a_step_is_newtons_with_small_eigenvalues_raised() -> None:
    rng = np.random.default_rng(2)
    B = rng.normal(size=(4, 4))
    vectors = np.linalg.qr(B)[0]
    matrix = vectors @ np.diag([3.0, 1.0, 0.01, -0.5]) @ vectors.T
    gradient = vectors @ [0.3, -0.2, 0.1, 0.05]
    walk = newton(LOGISTIC, 1.0)
    floor = math.sqrt(2 * 4 * 0.02)
    found = step(walk, gradient, matrix, 0.02)
    expected = -vectors @ (np.array([0.3, -0.2, 0.1, 0.05]) / [3.0, 1.0, floor, floor])
    np.testing.assert_allclose(found, expected, atol=1e-12)
    # a decrement of 100 is shortened to 1
    long = step(walk, np.array([10.0, 0, 0, 0]), np.eye(4), 0.0)
    np.testing.assert_allclose(long, [-1.0, 0, 0, 0], atol=1e-12)


@pytest.mark.parametrize(
    ("gradient", "bend", "variance", "expected"),
    [
        (0.1, 2.0, 0.0, 1 - 0.1 / 2),
        (0.01, 1e-6, 0.0, 1 - 0.01 / 0.05),
        (0.1, 0.2, 0.25, 1 - 0.1 / 1.0),
        (5.0, 1.0, 0.0, 0.5),
        (-5.0, 1.0, 0.0, 2.0),
    ],
)
def test_the_scale_steps_alone(gradient: float, bend: float, variance: float, expected: float) -> None:
    walk = newton(HUBER, 1.0)
    found = step(walk, np.append(np.zeros(4), gradient), np.eye(4), variance, bend)
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
                assert np.isfinite(walk.state).all()


@each
def test_merged_walks_without_records_know_nothing(curvature: Curvature) -> None:
    empty = newton(curvature)
    empty.merge([newton(curvature)], curvature.loss.start(curvature.parameters))
    assert np.array_equal(empty.state, newton(curvature).state)


def refuse(theta: np.ndarray) -> None:
    if np.max(np.abs(theta)) > 50:
        raise ConfigError("outside")


@each
def test_a_state_is_read_back_bit_by_bit_and_bad_ones_change_nothing(curvature: Curvature) -> None:
    walk, other = newton(curvature, 5.0), newton(curvature, 5.0)
    X, y = stream(curvature, 5000)
    learn(walk, X, y, seed=1)
    state = walk.learned()
    other.read(state, refuse)
    assert np.array_equal(other.state, walk.state)
    assert other.place == walk.place
    numbers, d, size = state["state"], curvature.parameters, curvature.size

    def with_entry(at: int, value: float) -> dict[str, Any]:
        changed = numbers.copy()
        changed[at] = value
        return state | {"state": changed}

    for bad in (
        with_entry(0, np.nan),
        with_entry(0, np.inf),
        with_entry(0, 99.0),
        with_entry(size, -1.0),
        with_entry(size, 0.0),
        with_entry(size + 1, -1.0),
        with_entry(size + 4, -1.0),
        with_entry(size + 8, -1e140),
        with_entry(size + 7 + change.width(d), 1.5),
        with_entry(size + 7 + change.width(d), 0.0),
        with_entry(-1, 1.0),
        state | {"state": numbers[:-1]},
        *(state | {"place": place} for place in ([0, 0, -1], [1, 0, 0], [0, 1, 5], [0, 0, 10**19], [0, 0])),
    ):
        before = walk.state.copy()
        with pytest.raises((ConfigError, ValueError)):
            walk.read(bad, refuse)
        assert np.array_equal(walk.state, before)
