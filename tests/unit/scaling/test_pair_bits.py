"""Bits about pairs of columns: when they are asked, and what they tell."""

import math
from typing import Any

import numpy as np
import pytest

from streamdp import LDPASGDClassifier, LDPASGDRegressor, LDPSGDRegressor
from streamdp.scaling import pair_bits
from streamdp.scaling import unit_table as k
from tests.support.states import units_of

NAMES = ["a", "b", "c"]
BITS = slice(pair_bits.SUM, pair_bits.ANSWERS)


def records(n: int, rho: float = 0.0) -> tuple[np.ndarray, np.ndarray]:
    """Normal columns, the first two correlated by rho, and their sum with noise."""
    rng = np.random.default_rng(3)
    X = rng.normal(size=(n, 3))
    X[:, 1] = rho * X[:, 0] + math.sqrt(1 - rho**2) * X[:, 1]
    return X, X.sum(axis=1) + rng.normal(size=n)


def learned(n: int = 20_000, rho: float = 0.0, **options: Any) -> Any:
    X, y = records(n, rho)
    model = LDPASGDRegressor(**({"features": NAMES, "budget": "eps=4", "seed": 1} | options))
    model.learn_encoded(X, y)
    return model


@pytest.mark.parametrize("rho", [0.0, 0.8, -0.8])
def test_they_tell_the_correlation(rho: float) -> None:
    """Of the pair, by Sheppard's law, within five standard errors. The pairs with the constant 1 are not correlated."""
    told = units_of(learned(rho=rho)).pairs[:-1]
    np.testing.assert_array_equal(told[:, :2], [[0, 1], [0, 2], [0, 3], [1, 2], [1, 3], [2, 3]])
    expected = np.zeros(6)
    expected[0] = 2 / math.pi * math.asin(rho)
    sums, information = told[:, BITS].T
    assert np.all(np.abs(sums / information - expected) < 5 / np.sqrt(information))
    assert np.all(information >= 40)
    assert (information[0] > 190) == (rho != 0)
    assert information.max() < 205


def test_they_are_few_and_end() -> None:
    """None before there can be intervals; then 4 % at most; none when all pairs are known."""
    X, y = records(60_000)
    model = LDPASGDRegressor(features=NAMES, budget="eps=1", seed=1)
    shares = []
    for at in range(0, len(X), 500):
        model.learn_encoded(X[at : at + 500], y[at : at + 500])
        if units_of(model).progress[k.TOTAL] < k.SHORTEST:
            assert model.n_paired == 0
        shares.append(model.n_paired / model.n_seen)
    assert 0.039 < max(shares) <= 0.0401
    assert shares[-1] < 0.03
    assert units_of(model).pairs[-1, pair_bits.FIRST] == -1


def test_who_is_not_asked() -> None:
    """The last iterate has no intervals, and the paper's clock is the paper's algorithm; categories; many columns."""
    for model in (
        learned(clock="records"),
        LDPSGDRegressor(features=NAMES),
        LDPASGDRegressor(features=[f"x{j}" for j in range(33)]),
        LDPASGDClassifier(features={"c": ["u", "v", "w"]}, intercept=False),
    ):
        assert len(units_of(model).pairs) == 1
    assert learned(clock="records").n_paired == 0
    mixed = LDPASGDClassifier(features={"a": (0, 1), "c": ["u", "v"], "b": (0, 1)}, intercept=False)
    np.testing.assert_array_equal(units_of(mixed).pairs[:-1, :2], [[0, 2]])
    assert len(units_of(mixed).table) == 4


def test_a_constant_column_is_a_pair_with_the_constant() -> None:
    X, y = records(20_000)
    model = LDPASGDRegressor(features=NAMES, budget="eps=4", seed=1)
    model.learn_encoded(X + np.array([10.0, 0.0, 0.0]), y)
    sums, information = units_of(model).pairs[2, BITS]
    assert sums > 0.9 * information


def test_columns_that_are_scaled_are_compared_with_their_centres() -> None:
    X, y = records(20_000, 0.8)
    bounds = dict.fromkeys(NAMES, (0, 40))
    model = LDPASGDRegressor(features=bounds, target=(-10, 10), budget="eps=4", seed=1)
    model.learn_encoded((X + 30) / 20 - 1, y)  # in units of the bounds
    sums, information = units_of(model).pairs[:3, BITS].T
    np.testing.assert_allclose(sums / information, [2 / math.pi * math.asin(0.8), 0, 0], atol=0.3)


def test_calls_may_be_divided_in_any_way() -> None:
    X, y = records(3_000)
    whole, parts = (LDPASGDRegressor(features=NAMES, budget="eps=4", seed=1) for _ in range(2))
    whole.learn_encoded(X, y)
    for row, target in zip(X[:1_000], y[:1_000], strict=True):
        parts.learn_one(dict(zip(NAMES, row, strict=True)), target)
    parts.learn_encoded(X[1_000:], y[1_000:])
    assert 0 < whole.n_paired == parts.n_paired
    np.testing.assert_array_equal(units_of(whole).pairs, units_of(parts).pairs)
    np.testing.assert_array_equal(whole.theta, parts.theta)


def test_merged_models_know_the_bits_of_all() -> None:
    one, two = learned(), learned(10_000)
    both = units_of(one).pairs[:-1, BITS] + units_of(two).pairs[:-1, BITS]
    np.testing.assert_allclose(units_of(one.merged(two)).pairs[:-1, BITS], both)
    assert one.merged(two).n_paired == one.n_paired + two.n_paired
