"""Units of columns: the change of theta, the bound of vectors in any units, and the search for them."""

import math
from typing import Any

import numpy as np
import pytest

from streamdp import Huber, Logistic, Squared
from streamdp.errors import ConfigError
from streamdp.optim.curvature import Curvature
from streamdp.optim.loops import INTERCEPT
from streamdp.optim.losses import Softmax
from streamdp.optim.newton import Newton
from streamdp.scaling.column_units import ERROR, LEAST, NEAR, WIDE, moved, searched
from streamdp.scaling.column_units import FAR as FARTHEST
from streamdp.scaling.units import FAR, FAR_OF_NUMBERS, MOST, Units

BOTH = np.ones(2, dtype=bool)


def vectors(curvature: Curvature, theta: np.ndarray, units: np.ndarray, X: np.ndarray, y: np.ndarray) -> np.ndarray:
    spec = curvature.loss.spec()
    spec[INTERCEPT] = 1.0
    return curvature.vectors(spec, np.append(theta, units), X, y)


@pytest.mark.parametrize("loss", [Huber(), Logistic()], ids=repr)
def test_units_change_columns_and_not_predictions(loss: Any) -> None:
    rng = np.random.default_rng(1)
    curvature = Curvature(loss, 4)
    X, y = rng.normal(size=(50, 3)), rng.integers(0, 2, 50).astype(float)
    X[0, 0], most = 20.0, np.array([FAR if isinstance(loss, Logistic) else FAR_OF_NUMBERS, FAR, np.inf])
    units = np.array([[0.4, -0.7, 0.0], [3.0, MOST, 1.0]])
    theta = np.append(rng.normal(size=4), [0.7] * (curvature.parameters - 4))
    inner, moved = Units(units).inward(theta), (X - units[0]) * units[1]
    np.testing.assert_allclose(moved @ inner[:3] + inner[3], X @ theta[:3] + theta[3], atol=1e-12)
    np.testing.assert_allclose(Units(units).outward(inner), theta, atol=1e-12)
    plain = np.array([[0.0] * 3, [1.0] * 3])
    far = np.abs(moved) > most
    assert 0 < far.sum() < 60
    moved = np.clip(moved, -most, most)
    np.testing.assert_allclose(
        vectors(curvature, inner, units, X, y), vectors(curvature, inner, plain, moved, y), atol=1e-12
    )
    blind = vectors(curvature, theta, plain * 0, X, y)
    np.testing.assert_allclose(blind, vectors(curvature, theta, plain, X * 0, y), atol=1e-12)


@pytest.mark.parametrize(("loss", "plain"), [(Huber(), False), (Logistic(), False), (Logistic(), True)], ids=repr)
@pytest.mark.slow
def test_no_units_break_the_bounds(loss: Any, plain: bool) -> None:
    """A random search over records, points and units, also extreme ones, as an untrusted learner may send them."""
    rng = np.random.default_rng(2)
    longest = furthest = 0.0
    curvature = Curvature(loss, 3, plain=plain)
    for _ in range(3000):
        units = np.array([rng.normal(size=2), rng.choice([-1, 1], 2)]) * 10 ** rng.uniform(-3, 3, (2, 2))
        inner = rng.normal(size=(8, 2)) * 10 ** rng.uniform(-1, 1, (8, 1))
        inner[1::2] = inner[::2]  # pairs of records with the same x
        theta = np.append(rng.normal(size=3) * 10 ** rng.uniform(-1, 2), [1.0] * (curvature.parameters - 3))
        far = rng.choice([-1e6, -1.345 + 1e-9, 1.345 - 1e-9, 1e6], 8)
        y = rng.integers(0, 2, 8).astype(float)
        if isinstance(loss, Huber):
            y = inner @ theta[:2] + theta[2] + far
        found = vectors(curvature, theta, units, inner / units[1] + units[0], y)
        longest = max(longest, float(np.linalg.norm(found, axis=1).max()))
        furthest = max(furthest, float(np.linalg.norm(found[:, None] - found, axis=2).max()))
    assert longest <= curvature.bound * (1 + 1e-9)
    assert furthest <= curvature.sensitivity * (1 + 1e-9)
    assert furthest > (0.97 if isinstance(loss, Huber) else 0.85) * curvature.sensitivity  # the search is not blunt


@pytest.mark.parametrize("loss", [Huber(), Logistic()], ids=repr)
def test_units_that_overflow_keep_the_bound(loss: Any) -> None:
    curvature, X = Curvature(loss, 3), np.array([[1e300, -1e300], [1e160, 0.0], [0.0, 0.0]])
    for units in (np.array([[-1e308] * 2, [1e308] * 2]), np.array([[1e308, 0.0], [-1e308, 0.0]])):
        theta = np.array([1e60, -1e60, 0.0, 1.0])[: curvature.parameters]
        found = vectors(curvature, theta, units, X, np.zeros(3))
        assert np.isfinite(found).all()
        assert np.linalg.norm(found, axis=1).max() <= curvature.bound * (1 + 1e-9)


@pytest.mark.parametrize("slope", [0.0, -0.0, 1e-308, 1.0, -1e308])
@pytest.mark.parametrize("loss", [Huber(), Logistic()], ids=repr)
def test_differences_that_overflow_keep_the_bound(loss: Any, slope: float) -> None:
    curvature, units = Curvature(loss, 3), np.array([[-1.7e308, 0.0], [slope, 1.0]])
    theta = np.array([0.0, 0.0, 0.0, 1.0][: curvature.parameters])
    found = vectors(curvature, theta, units, np.array([[1.7e308, 0.0]]), np.zeros(1))
    assert np.linalg.norm(found) <= curvature.bound


LOSSES = [
    (Huber(), 1, False),
    (Squared(), 1, False),
    (Logistic(), 1, False),
    (Logistic(), 1, True),
    (Softmax(), 5, False),
]


@pytest.mark.parametrize(("loss", "outputs", "plain"), LOSSES, ids=repr)
@pytest.mark.parametrize("columns", [2, 3, 40])
def test_a_search_keeps_the_bounds_and_comes_near(loss: Any, outputs: int, plain: bool, columns: int) -> None:
    """The extremes: all columns at an end or at the centre, any target."""
    rng, curvature, p = np.random.default_rng(5), Curvature(loss, columns, outputs, plain=plain), columns - 1
    theta = rng.normal(size=curvature.parameters) * 3
    if isinstance(loss, Huber):
        theta[-1] = 1.0
    places = np.repeat([[-1.0], [0.0], [1.0], [0.5]], p, axis=1)
    X, y = np.tile(places, (5, 1)), np.repeat(np.arange(5.0), 4)
    if isinstance(loss, Huber):
        y = theta[p] + np.array([-9.0, -1.345, 0.0, 1.345, 9.0])[y.astype(int)]
    elif outputs == 1:
        y = y % 2
    units = np.array([[0.0] * p, [-1.0] * p])
    found = vectors(curvature, theta, units, X, y)
    longest = np.linalg.norm(found, axis=1).max() / curvature.bound
    furthest = np.linalg.norm(found[:, None] - found, axis=2).max() / curvature.sensitivity
    assert 0.8 < longest <= 1 + 1e-9
    assert 0.6 < furthest <= 1 + 1e-9
    blind = vectors(curvature, theta, np.abs(units), X * 0, y)
    added, each = found - blind, np.arange(p)
    diagonal = curvature.parameters + each * columns - each * (each - 1) // 2
    np.testing.assert_allclose(added[:, :p], curvature.reach * X, atol=1e-12)
    np.testing.assert_allclose(added[:, diagonal], curvature.reach * np.abs(X), atol=1e-12)
    added[:, :p] = added[:, diagonal] = 0
    assert not added.any()


@pytest.mark.parametrize("width", [0.3, 0.03])
def test_a_search_finds_narrow_columns_and_leaves_what_it_found(width: float) -> None:
    """A column of deviation `width`, one with the declared bounds, and a constant one that goes to the least range."""
    rng, units, batches = np.random.default_rng(6), np.array([[0.0] * 3, [-1.0] * 3]), 0
    while np.any(units[1] < 0):
        X = np.column_stack([rng.normal(0.6, width, 500), rng.uniform(-1, 1, 500), np.full(500, -0.9)])
        places, before = np.clip((X - units[0]) * np.abs(units[1]), -1, 1), units
        noises = ERROR / 2 * rng.standard_normal((2, 3))
        found = places.mean(axis=0) + noises[0], np.abs(places).mean(axis=0) + noises[1]
        units = searched(units, *found, ERROR, np.zeros(3, dtype=bool))
        known = before[1] > 0
        np.testing.assert_array_equal(units[:, known], before[:, known])
        batches += 1
        assert batches < 10
    assert width / 2 < 1 / units[1, 0] < 2 * width
    assert np.all(np.abs(units[0] - [0.6, 0.0, -0.9]) < [width, 0.3, 2 * LEAST])
    assert 1 / units[1, 1] > 0.3
    assert units[1, 2] == MOST


def test_levels_are_found_at_once_in_units_of_the_root_of_their_shares() -> None:
    """Rare levels have the least unit, in which none is cut. The first column is a number, and is searched for."""
    rng, shares = np.random.default_rng(6), np.array([1.2, 0.2, 0.01, 0.0, 0.0])
    units, levels = np.array([[0.0] * 6, [-1.0] * 6]), np.arange(6) > 0
    noises = ERROR / 4 * rng.standard_normal((2, 6))
    found = searched(units, np.append(0.0, shares) + noises[0], np.append(0.0, shares) + noises[1], ERROR / 4, levels)
    np.testing.assert_array_equal(found[0, 1:], 0.0)
    assert found[1, 0] < 0
    assert found[1, 1:3] == pytest.approx([1.0, 5**0.5], rel=0.2)
    assert found[1, 3:] == pytest.approx([FAR] * 3)


def test_columns_that_leave_their_place_get_wider_units_around_where_they_are() -> None:
    rng, units = np.random.default_rng(7), np.array([[0.5, -0.5, 0.0, 0.0], [20.0, 20.0, 8.0, 1.0]])
    X = np.column_stack(
        [rng.normal(0.5, 0.05, 4000), rng.normal(0.3, 0.2, 4000), np.full(4000, 0.5), np.full(4000, 9.0)]
    )
    rows = np.column_stack([(X - units[0]) * units[1], np.ones(len(X))])
    moments = rows.T @ rows / len(rows)
    for times in (1.0, 0.3):  # any weight
        found = moved(units, times * moments, times * 0.01, 0.0, FARTHEST)
        np.testing.assert_array_equal(found[:, [0, 3]], units[:, [0, 3]])  # where it was; and one that is not scaled
        assert found[0, 1:3] == pytest.approx([0.3, 0.5], abs=0.02)
        assert found[1, 1:3] == pytest.approx([1.0, 1.4], abs=0.05)  # none below 1
        np.testing.assert_allclose(moved(units, times * moments, times * 0.01, 0.0, WIDE)[1, 0], 14.0, rtol=0.03)
    np.testing.assert_array_equal(moved(units, moments, 100.0, NEAR, WIDE), units)  # noise hides all


def test_a_unit_that_is_far_too_wide_becomes_narrower() -> None:
    """Noise of the search may leave it, and a slope in it is hidden by the noise of A."""
    rng, units = np.random.default_rng(7), np.array([[0.0] * 3, [2.0, 2.0, 8.0]])
    X = np.column_stack([rng.normal(0.1, 0.05, 4000), rng.normal(0.1, 0.15, 4000), np.zeros(4000)])
    rows = np.column_stack([(X - units[0]) * units[1], np.ones(len(X))])
    found = moved(units, rows.T @ rows / len(rows), 1e-4, NEAR, math.inf)
    assert found[:, 0] == pytest.approx([0.1, 6.3], rel=0.05)
    np.testing.assert_array_equal(found[:, 1], units[:, 1])  # by less than a half of the usual: the gain is small
    assert found[1, 2] == MOST


def test_noise_makes_no_units_of_columns_that_are_alike() -> None:
    rng, units = np.random.default_rng(8), np.array([[0.0] * 100, [2.0] * 100])
    moments = np.diag(np.append(np.full(100, 0.64) + 0.25 * rng.standard_normal(100), 1.0))
    np.testing.assert_array_equal(moved(units, moments, 0.25, NEAR, WIDE), units)
    moments[:50, :50] += 3 * np.eye(50)
    other = moved(units, moments, 0.25, NEAR, WIDE)[1] != units[1]
    assert other[:50].all()
    assert other[50:].sum() <= 3


# --- in the walk


def newton(wide: bool = False, deviation: float = 0.0, batch: int | None = 500, replans: bool | None = None) -> Newton:
    curvature, start = Curvature(Huber(), 3), np.array([0.0, 0.0, 0.0, 100.0 if wide else 1.0])
    return Newton(
        curvature, start, lambda theta: theta, deviation, batch, wide, BOTH, replans is None, replans is not False
    )


def learn(walk: Newton, batches: int, centre: float, width: float, seed: int = 0) -> None:
    rng, spec = np.random.default_rng(seed), walk.curvature.loss.spec()
    spec[INTERCEPT] = 1.0
    for _ in range(batches):
        X = centre + width * rng.uniform(-1, 1, (500, 2))
        y = X @ [3.0, -2.0] + 5.0 + rng.normal(0, 0.01, 500)
        total = walk.curvature.vectors(spec, walk.middle, X, y).sum(axis=0)
        walk.move(total + walk.deviation * rng.standard_normal(len(total)), 500, 500)


def test_the_walk_finds_narrow_columns_and_a_far_target() -> None:
    for wide in (False, True):
        walk = newton(wide, 2.0)
        learn(walk, 60, 0.5, 0.05)
        np.testing.assert_allclose(walk.estimate[:3], [3.0, -2.0, 5.0], atol=0.1)
        np.testing.assert_allclose(walk.state.units[0], 0.5, atol=0.05)
        assert np.all(walk.state.units[1] > 10)


def test_the_search_sees_no_columns_and_ends() -> None:
    walk, places = newton(True, 2.0), []
    while walk.searching:
        assert np.all(walk.middle[-2:] < 0)
        assert not walk.estimate[:2].any()
        places.append(float(walk.estimate[3]))
        learn(walk, 1, 0.0, 1.0, len(places))
        assert len(places) < 20
    spread = math.sqrt(13 / 3)
    assert len(places) > 1
    assert spread / 2 < walk.estimate[3] < 4 * spread
    assert abs(walk.estimate[2] - 5.0) < spread / 4
    np.testing.assert_allclose(walk.state.units[0], 0, atol=0.3)
    assert np.all((walk.state.units[1] > 1) & (walk.state.units[1] < 4))


def take(walk: Newton, X: np.ndarray) -> None:
    """A batch of these columns (n, 2), without a model."""
    spec = walk.curvature.loss.spec()
    spec[INTERCEPT] = 1.0
    total = walk.curvature.vectors(spec, walk.middle, X, X[:, 1]).sum(axis=0)
    walk.move(total, len(X), len(X))


def test_a_column_that_moves_on_has_the_range_where_the_search_ends() -> None:
    walk, rng = newton(), np.random.default_rng(3)
    for batch in range(4):
        assert walk.searching
        before = walk.state.units
        take(walk, np.column_stack([rng.normal(-0.9 + 0.25 * batch, 0.02, 500), rng.normal(0.0, 0.3, 500)]))
    assert not walk.searching
    (place, slope), (_, last) = walk.state.units[:, 0], before[:, 0]
    assert 1.25 / 2 <= slope / -last <= 1.25 * 10  # a range is at most doubled in a batch
    assert abs(place + 0.9 - 0.25 * 3) < 0.5
    assert 2 < walk.state.units[1, 1] < 4


@pytest.mark.parametrize("replans", [True, False])
def test_a_search_takes_the_batches_it_needs_or_as_many_as_are_public(replans: bool) -> None:
    """Batches of the size of a search are too small for steps."""
    walk, rng, sizes = newton(batch=None, replans=replans), np.random.default_rng(4), []
    while not walk.state.weight:
        sizes.append(walk.batch)
        take(walk, rng.normal(0.0, 0.3, (walk.batch, 2)))
    assert len(set(sizes[:-1])) == 1
    assert sizes[-1] == (10 * walk.curvature.parameters if replans else 2 * sum(sizes[:-1]))
    assert len(sizes) == (3 if replans else 5)


def accept(theta: np.ndarray) -> None:
    assert theta.shape == (4,)


@pytest.mark.parametrize("units", [[0, 0, -0.5, 2], [0, 0, 0, 2], [0, 0, 0.5, 2], [0, 0, 2, 1e9], [1.5, 0, 2, 2]])
def test_units_out_of_range_are_refused(units: list[float]) -> None:
    walk = newton()
    state, size = walk.learned(), Newton.size(walk.curvature) - 9
    state["state"][size : size + 4] = units
    with pytest.raises(ConfigError, match="units"):
        walk.read(state, accept)


def test_merged_walks_are_carried_to_the_units_of_the_one_that_knows_most() -> None:
    parts = [newton(), newton()]
    learn(parts[0], 40, 0.5, 0.05)
    learn(parts[1], 16, 0.5, 0.05, 1)
    merged = newton()
    merged.merge(parts, np.mean([part.estimate for part in parts], axis=0))
    np.testing.assert_array_equal(merged.state.units, parts[0].state.units)
    assert merged.state.weight > 0
    assert merged.records == 56 * 500
    np.testing.assert_allclose(merged.estimate[:3], [3.0, -2.0, 5.0], atol=0.1)
    learn(merged, 40, 0.5, 0.05, 2)
    np.testing.assert_allclose(merged.estimate[:3], [3.0, -2.0, 5.0], atol=0.1)
