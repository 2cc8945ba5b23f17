"""A public schema as `features`: raw records with numbers and categories, original units, declared scaling."""

from datetime import date
from decimal import Decimal
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pytest

from streamdp import L2Ball, LDPASGDClassifier, LDPASGDRegressor, PanPrivateClassifier, WindowedClassifier
from streamdp.errors import ConfigError, SchemaError
from tests.support.states import units_of

SCHEMA: dict[str, Any] = {
    "age": (18, 100),
    "city": ["Paris", "Lyon"],
    "income": {"bounds": (0, 1e6), "typical": (30e3, 20e3)},
}
RAW = {"age": "59", "city": "Lyon", "income": 30_000}


def regressor(**options: Any) -> LDPASGDRegressor:
    return LDPASGDRegressor(features=SCHEMA, target=(0, 100), **options)


def frame(n: int) -> tuple[pd.DataFrame, pd.Series]:
    rng = np.random.default_rng(0)
    ages, incomes = rng.uniform(18, 100, n), rng.normal(30e3, 20e3, n)
    cities = rng.choice(["Paris", "Lyon"], n)
    X = pd.DataFrame({"age": ages, "city": cities, "income": incomes})
    return X, pd.Series(20 + 0.5 * ages + 10 * (cities == "Lyon") + 1e-4 * incomes + rng.normal(0, 3, n))


def test_keys_may_come_in_any_order_and_as_any_objects() -> None:
    """Keys in their declared order that are known objects are not looked up."""
    names = ["a", "b", "c"]
    model = LDPASGDRegressor(features=names, seed=1)
    model.learn_encoded(np.random.default_rng(0).normal(size=(400, 3)), np.ones(400))
    *weights, intercept = (model.weights[name] for name in [*names, "(intercept)"])
    x = {"a": 1.0, "b": -2.0, "c": 3}
    expected = intercept + sum(w * v for w, v in zip(weights, x.values(), strict=True))

    class Text(str):
        __slots__ = ()

    for _ in range(200):  # more than the number of keys that are kept
        for order in ("abc", "cab", "acb"):
            assert model.predict_one({name: x[name] for name in order}) == pytest.approx(expected)
        assert model.predict_one({(name + " ")[:1]: value for name, value in x.items()}) == pytest.approx(expected)
        assert model.predict_one({Text(name): value for name, value in x.items()}) == pytest.approx(expected)
    with pytest.warns(UserWarning, match="lacks"):
        assert model.predict_one({"a": 1.0, "b": -2.0, "d": 3}) == pytest.approx(expected - 3 * weights[2])


def test_weights_are_in_original_units_for_every_kind() -> None:
    X, y = frame(40_000)
    model = regressor(budget="eps=8", seed=1)
    model.learn_many(X, y)
    weights = model.weights
    assert list(weights) == ["age", "city=Lyon", "income", "(intercept)", "(error spread)"]
    assert weights["age"] == pytest.approx(0.5, abs=0.1)
    assert weights["city=Lyon"] == pytest.approx(10, abs=4)
    assert weights["income"] == pytest.approx(1e-4, abs=6e-5)
    low, high = model.interval().T
    settled = ~np.isnan(low)
    assert settled.any()
    assert np.all(low[settled] < high[settled])
    assert not settled[0] or high[0] - low[0] < 0.5  # for a year
    predicted = weights["(intercept)"] + 59 * weights["age"] + weights["city=Lyon"] + 30_000 * weights["income"]
    assert model.predict_one(RAW) == pytest.approx(predicted)
    for kind in (PanPrivateClassifier, WindowedClassifier):
        other: Any = kind(
            features=SCHEMA,
            **({"items_per_user": 1, "window": 100, "method": "private-range"} if kind is WindowedClassifier else {}),
        )
        other.learn_one(RAW, True, subject="ann")
        assert other.feature_names == ("age", "city=Lyon", "income")
        assert 0 <= other.predict_proba_one(RAW)[True] <= 1


def test_declared_scaling_begins_and_stays_at_the_typical_values() -> None:
    X, y = frame(500)
    model = regressor(scaling="declared")
    model.learn_many(X, y)
    assert model.n_asked == 0
    scales = units_of(model).table[:, :2]
    np.testing.assert_allclose(scales, [[0, 1], [0, 1.0], [-0.94, 0.04], [50, 50]])


def test_private_scaling_is_the_default_where_it_can_be() -> None:
    assert len(units_of(regressor()).summary) == 3  # age, income and the target
    assert len(units_of(LDPASGDRegressor(features=["a"], target=(0, 1))).summary) == 1
    assert len(units_of(LDPASGDRegressor(features=["a"])).summary) == 0
    assert len(units_of(regressor(domain=L2Ball(3))).summary) == 0
    assert len(units_of(LDPASGDClassifier(features=SCHEMA, intercept=False)).summary) == 0


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"scaling": "private", "features": ["a"]}, "needs declared bounds"),
        ({"scaling": "declared", "features": ["a"]}, "needs declared bounds"),
        ({"scaling": "private", "intercept": False}, "needs intercept=True"),
        ({"scaling": "private", "domain": L2Ball(3)}, "needs no domain"),
        ({"features": {"a": (1, 0)}}, "low < high"),
        ({"features": {"a": {"typical": (0, 1)}}}, "expected bounds"),
        ({"features": {"a": {"bounds": (0, 1), "typical": (2, 1)}}}, "within the bounds"),
        ({"features": {"a": {"bounds": (0, 1), "typical": (0.5, 0)}}}, "positive spread"),
        ({"features": {"a": (0, 1e-70)}}, "distance from"),
        ({"features": {"city": {"Paris", "Lyon"}}}, "expected a list of categories, got a set, which has no order"),
        ({"features": {"city": {"categories": frozenset("ab")}}}, "got a set, which has no order"),
    ],
)
def test_mistakes_are_refused_at_once(options: dict[str, Any], said: str) -> None:
    with pytest.raises((ConfigError, SchemaError), match=said):
        LDPASGDClassifier(**({"features": SCHEMA} | options))


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"age": None}, "'age': missing"),
        ({"age": "old"}, "'age': expected a number, got str"),
        ({"age": "5_0"}, "'age': expected a number, got str"),
        ({"age": "\u0665"}, "'age': expected a number, got str"),
        ({"age": float("nan")}, "'age': expected a finite number"),
        ({"city": "Rome"}, "'city': expected one of the 2 declared categories"),
        ({"city": 3}, "'city': expected one of the 2 declared categories"),
        ({"city": None}, "'city': missing"),
    ],
)
def test_a_bad_record_spends_nothing_and_is_not_shown(change: dict[str, Any], said: str) -> None:
    model = regressor()
    with pytest.raises(SchemaError, match=said) as caught:
        model.learn_one(RAW | change, 1.0)
    assert "old" not in str(caught.value)
    assert "Rome" not in str(caught.value)
    assert model.n_seen == 0
    assert not model.guarantee.budgets
    bad = {name: [value] for name, value in (RAW | change).items()}
    if change != {"age": float("nan")}:
        with pytest.raises(SchemaError, match=next(iter(change))):
            model.learn_many(pd.DataFrame(bad), pd.Series([1.0]))


@pytest.mark.parametrize("features", [{"a": (0, 9), "b": (0, 1)}, ["a", "b"]])
def test_columns_of_frames_are_taken_as_learn_one_takes_their_values(features: Any) -> None:
    flags = pd.DataFrame({"a": [3, 2**70], "b": [True, False]})
    for X in (
        flags,
        flags.convert_dtypes(),
        np.array([[True, False]] * 2),
        pl.DataFrame({"a": [Decimal("0.5")] * 2, "b": [1, 0]}),
    ):
        many = LDPASGDRegressor(features=features)
        many.learn_many(X, [1.0, 2.0])
        assert many.n_seen == 2
    ones = np.ones((2, 2))
    for X in (
        pd.concat([flags, flags], axis=1),
        flags.assign(a=pd.Timestamp("2020-01-01")),
        pl.DataFrame({"a": [date(2020, 1, 1)] * 2, "b": [1, 0]}),
        pd.DataFrame({"a": [3, None], "b": [1, 0]}).convert_dtypes(),
        ones * 1j,
        ones.astype("M8[s]"),
        ones.astype("m8[s]"),
        np.ma.masked_array(ones, [[True, False]] * 2),
    ):
        model = LDPASGDRegressor(features=features)
        with pytest.raises(SchemaError):
            model.learn_many(X, [1.0, 2.0])
        assert model.n_seen == 0
        if isinstance(X, np.ndarray):
            with pytest.raises(SchemaError, match="X: expected numbers"):
                model.learn_encoded(X, [1.0, 2.0])


@pytest.mark.parametrize("features", [SCHEMA, ["age"]])
def test_a_record_that_is_no_mapping_is_refused(features: Any) -> None:
    model = LDPASGDRegressor(features=features)
    for act in (lambda: model.learn_one([59.0], 1.0), lambda: model.predict_one(59.0)):  # type: ignore[arg-type]
        with pytest.raises(SchemaError, match="expected a mapping of values by name"):
            act()
    assert model.n_seen == 0


def test_the_statement_of_mixed_budgets_says_what_a_record_spends_and_answers() -> None:
    model = LDPASGDRegressor(features={"a": (0, 10)}, target=(0, 100), budget="eps=1")
    for budget in ("eps=1", "eps=4", "mu=1"):
        model.learn_one({"a": 5}, 50, budget=budget)
    said = model.statement()
    assert "What can be known of any single record, at most one of these:\n  - epsilon = 4: " in said
    assert "  - mu = 1 (Gaussian DP): " in said
    bit = "one bit about the centre and the scale of the target, or the centre and the scale of a column"
    assert f"of the 3 records, {model.n_asked} spent their budget on {bit}" in said
    assert model.n_asked > 0
