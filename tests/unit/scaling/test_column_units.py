"""Units of columns: the change of theta, the bound of vectors in any units, and when new units are due."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from streamdp import Huber, Logistic
from streamdp.errors import ConfigError
from streamdp.optim.curvature import Curvature
from streamdp.optim.loops import INTERCEPT
from streamdp.optim.newton import Newton
from streamdp.scaling.column_units import ALSO, FULL, LEAST, START, narrowed
from streamdp.scaling.units import FAR, Units

PLAIN = np.array([[0.0, 0.0], [1.0, 1.0], [0.0, 0.0]])
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
    units = np.array([[0.4, -0.7, 0.0], [3.0, 0.5, 1.0]])
    theta = np.append(rng.normal(size=4), [0.7] * (curvature.parameters - 4))
    inner, moved = Units(units).inward(theta), (X - units[0]) * units[1]
    np.testing.assert_allclose(moved @ inner[:3] + inner[3], X @ theta[:3] + theta[3], atol=1e-12)
    np.testing.assert_allclose(Units(units).outward(inner), theta, atol=1e-12)
    plain = np.array([[0.0] * 3, [1.0] * 3])
    far = np.abs(moved) > np.where(units[1] == 1, np.inf, FAR)
    assert 0 < far.sum() < 20
    far &= isinstance(loss, Logistic)  # numbers are not cut
    moved = np.where(far, np.sign(moved) * FAR, moved)
    np.testing.assert_allclose(
        vectors(curvature, inner, units, X, y), vectors(curvature, inner, plain, moved, y), atol=1e-12
    )
    blind = vectors(curvature, theta, plain * 0, X, y)
    np.testing.assert_allclose(blind, vectors(curvature, theta, plain, X * 0, y), atol=1e-12)


@pytest.mark.parametrize("loss", [Huber(), Logistic()], ids=repr)
@pytest.mark.slow
def test_no_units_break_the_bounds(loss: Any) -> None:
    """A random search over records, points and units, also extreme ones, as an untrusted learner may send them."""
    rng = np.random.default_rng(2)
    longest = furthest = 0.0
    curvature = Curvature(loss, 3)
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
    """Numbers give zeros, and classes are cut."""
    curvature, X = Curvature(loss, 3), np.array([[1e300, -1e300], [1e160, 0.0], [0.0, 0.0]])
    for units in (np.array([[-1e308] * 2, [1e308] * 2]), np.array([[1e308, 0.0], [-1e308, 0.0]])):
        theta = np.array([1e60, -1e60, 0.0, 1.0])[: curvature.parameters]
        found = vectors(curvature, theta, units, X, np.zeros(3))
        assert found.any() == isinstance(loss, Logistic)
        assert np.linalg.norm(found, axis=1).max() <= curvature.bound * (1 + 1e-9)


@pytest.mark.parametrize("slope", [0.0, -0.0, 1e-308, 1.0, -1e308])
@pytest.mark.parametrize("loss", [Huber(), Logistic()], ids=repr)
def test_differences_that_overflow_keep_the_bound(loss: Any, slope: float) -> None:
    curvature, units = Curvature(loss, 3), np.array([[-1.7e308, 0.0], [slope, 1.0]])
    theta = np.array([0.0, 0.0, 0.0, 1.0][: curvature.parameters])
    found = vectors(curvature, theta, units, np.array([[1.7e308, 0.0]]), np.zeros(1))
    assert np.linalg.norm(found) <= curvature.bound


def moments(mean: np.ndarray, spread: np.ndarray, base: float = 0.5) -> np.ndarray:
    """A of columns with these centres and spreads."""
    full = np.append(mean, 1.0)
    return base * (np.outer(full, full) + np.diag(np.append(spread**2, 0.0)))


MANY = 1e12


def test_new_units_are_centre_and_spread() -> None:
    spread = np.array([0.1, 0.8])
    found = narrowed(PLAIN, BOTH, moments(np.array([0.6, 0.1]), spread), 0.0, MANY)
    assert found is not None
    np.testing.assert_allclose(found, [[0.6, 0.1], 1 / spread, [1, 1]], rtol=1e-3)
    assert narrowed(found, BOTH, moments(np.zeros(2), np.ones(2)), 0.0, MANY) is None


def test_noise_widens_units_and_stops_them() -> None:
    """With the deviation .02 of a ratio, a constant column gets the scale sqrt(.04) and may get others."""
    constant = moments(np.array([0.1, 0.0]), np.array([0.0, 0.9]))
    found = narrowed(PLAIN, BOTH, constant, (0.02 * 0.5) ** 2, MANY)
    assert found is not None
    np.testing.assert_allclose(found, [[0.1, 0.0], [1 / math.sqrt(0.04 * 1.01), 1.0], [0, 1]], rtol=1e-3)
    assert narrowed(PLAIN, BOTH, constant, (0.25 * 0.5) ** 2, MANY) is None
    assert narrowed(PLAIN, BOTH, constant * -1, 1e-6, MANY) is None
    assert narrowed(PLAIN, np.array([False, True]), constant, 1e-6, MANY) is None


def test_a_column_far_from_its_middle_gets_its_centre_first() -> None:
    """The noise of a spread is that of its mean times the mean, too."""
    found = narrowed(PLAIN, BOTH, moments(np.array([-1.7, 0.0]), np.array([0.1, 0.9])), (0.05 * 0.5) ** 2, MANY)
    assert found is not None
    assert (found[0, 0], found[2, 0]) == (-1.0, 0.0)
    assert found[1, 0] < 2


def test_few_records_know_no_units() -> None:
    """A rare flag, without noise: 3 % of 100 records are three."""
    flag = moments(np.zeros(2), np.array([0.34, 0.9]))
    few, many = (narrowed(PLAIN, BOTH, flag, 0.0, records) for records in (100, 10_000))
    assert few is not None
    assert many is not None
    assert (few[2, 0], many[2, 0]) == (0, 1)
    assert few[1, 0] < many[1, 0] < 1 / 0.33


def test_units_that_are_clear_of_noise_are_final() -> None:
    """Rows far out have a small weight, so that the spread of a rare flag would seem ever smaller."""
    found = narrowed(PLAIN, BOTH, moments(np.zeros(2), np.array([0.3, 0.9])), 0.0, MANY)
    assert found is not None
    assert narrowed(found, BOTH, moments(np.zeros(2), np.array([0.3, 0.9])), 0.0, MANY) is None


def test_scales_only_fall_to_the_least_one() -> None:
    units, rng = PLAIN.copy(), np.random.default_rng(4)
    for _ in range(40):
        noise = rng.normal(0, 0.01, 2)
        found = narrowed(units, BOTH, moments(noise, np.zeros(2)), 1e-5, MANY)
        if found is None:
            break
        assert np.all(found[1] >= units[1])
        assert np.all(np.abs(found[0]) <= 1)
        units = found
    assert found is None
    assert np.all(units[1] == 1 / LEAST)
    assert FULL < ALSO < 1
    assert LEAST < START


# --- in the walk


def newton(wide: bool = False, deviation: float = 0.0) -> Newton:
    curvature, start = Curvature(Huber(), 3), np.array([0.0, 0.0, 0.0, 100.0 if wide else 1.0])
    return Newton(curvature, start, lambda theta: theta, deviation, 500, wide, BOTH)


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
        assert not walk.middle[-4:].any()
        assert not walk.estimate[:2].any()
        places.append(float(walk.estimate[3]))
        learn(walk, 1, 0.0, 1.0, len(places))
        assert len(places) < 20
    spread = math.sqrt(13 / 3)
    assert len(places) > 1
    assert spread / 2 < walk.estimate[3] < 4 * spread
    assert abs(walk.estimate[2] - 5.0) < spread / 4
    np.testing.assert_allclose(walk.state.units, [[0, 0], [1 / START] * 2, [0, 0]])


def accept(theta: np.ndarray) -> None:
    assert theta.shape == (4,)


@pytest.mark.parametrize("units", [[0, 0, -1, 2], [0, 0, 0, 2], [0, 0, 0.5, 2], [0, 0, 2, 1e9], [1.5, 0, 2, 2]])
def test_units_out_of_range_are_refused(units: list[float]) -> None:
    walk = newton()
    state, size = walk.learned(), Newton.size(walk.curvature) - 8
    state["state"][size : size + 4] = units
    with pytest.raises(ConfigError, match="units"):
        walk.read(state, accept)


def test_merged_walks_are_carried_to_the_units_of_the_one_that_knows_most() -> None:
    parts = [newton(), newton()]
    learn(parts[0], 40, 0.5, 0.05)
    learn(parts[1], 3, 0.5, 0.05, 1)
    merged = newton()
    merged.merge(parts, np.array([1.0, 2.0, 3.0, 0.5]))
    np.testing.assert_array_equal(merged.state.units, parts[0].state.units)
    assert merged.state.weight > 0
    assert merged.records == 43 * 500
    np.testing.assert_allclose(merged.estimate[:3], [3.0, -2.0, 5.0], atol=0.1)
    learn(merged, 40, 0.5, 0.05, 2)
    np.testing.assert_allclose(merged.estimate[:3], [3.0, -2.0, 5.0], atol=0.1)
