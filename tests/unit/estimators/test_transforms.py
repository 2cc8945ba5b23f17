"""Declared transforms in `features`: every way in gives the same model, in readable names and original units."""

from typing import Any

import numpy as np
import polars as pl
import pytest

import streamdp
from streamdp import LDPASGDRegressor, PanPrivateRegressor, WindowedRegressor
from streamdp.errors import ConfigError

FEATURES: dict[str, Any] = {
    "income": {"bounds": (1, 1e6), "transform": "log", "typical": (3e4, 2e4)},
    "age": {"bounds": (18, 100), "knots": [30, 50, 65]},
    "kids": {"bins": [1, 3]},
    "month": {"cyclic": 12},
    "city": ["Paris", "Lyon"],
    "name": {"hash": 4},
    "income x city": {"product": ["income", "city"]},
}


def frame(n: int = 400) -> tuple[pl.DataFrame, np.ndarray]:
    rng = np.random.default_rng(0)
    X = pl.DataFrame(
        {
            "income": rng.lognormal(10, 1, n),
            "age": rng.uniform(10, 110, n),
            "kids": rng.integers(0, 5, n),
            "month": rng.integers(1, 13, n),
            "city": rng.choice(["Paris", "Lyon"], n),
            "name": rng.choice(["Ana", "Bo", "Zo\u00eb"], n),
        }
    )
    return X, np.log(X["income"].to_numpy()) + rng.normal(0, 0.1, n)


def test_without_noise_the_weight_of_a_log_is_per_unit_of_the_log() -> None:
    X, y = frame(3_000)
    model = WindowedRegressor(features=FEATURES, target=(0, 15), seed=1, budget="eps=300,delta=1e-6", window=len(X))
    model.learn_many(X, y)
    assert model.weights["log(income)"] == pytest.approx(1, abs=0.1)
    assert model.predict_one(X.row(0, named=True)) == pytest.approx(y[0], abs=0.5)


LOG: Any = {"bounds": (10, 1e6), "transform": "log"}


@pytest.mark.parametrize(("kind", "budget"), [(LDPASGDRegressor, "eps=4"), (PanPrivateRegressor, "mu=1")])
def test_a_log_target_is_the_model_of_the_log_and_predicts_its_exponential(kind: Any, budget: str) -> None:
    X, _ = frame()
    y = X["income"].to_numpy() * np.linspace(0.0, 2.0, len(X))  # some below the bounds
    one, many, arrays, of_log = (
        kind(features=FEATURES, target=t, seed=1, budget=budget) for t in (LOG, LOG, LOG, tuple(np.log(LOG["bounds"])))
    )
    for x, target in zip(X.iter_rows(named=True), y, strict=True):
        one.learn_one(x, float(target))
    many.learn_many(X, y)
    of_log.learn_many(X, np.log(np.clip(y, 10, 1e6)))
    encoded = of_log.encoder.encode_features(X.with_columns(pl.col("kids", "month").cast(float)))
    arrays.learn_encoded(encoded, y)
    for model in (one, many, arrays):
        np.testing.assert_array_equal(model.theta, of_log.theta)
        np.testing.assert_allclose(model.predict_many(X), np.exp(of_log.predict_many(X)), rtol=1e-12)
    x = X.row(0, named=True)
    assert one.predict_one(x) == pytest.approx(np.exp(of_log.predict_one(x)), rel=1e-12)
    for mine, other in ((one, of_log), (of_log, one)):
        with pytest.raises(ConfigError, match="link"):
            mine.clone().load_state_dict(other.clone().state_dict())


def test_a_log_target_predicts_a_median() -> None:
    rng = np.random.default_rng(2)
    a = rng.uniform(0, 1, 20_000)
    y = np.exp(2 + a + rng.normal(0, 1, len(a)))  # its mean is larger by exp(1/2)
    target = {"bounds": (0.01, 1e4), "transform": "log"}
    model = WindowedRegressor(features={"a": (0, 1)}, target=target, budget="eps=50,delta=1e-6", seed=1, window=len(a))
    model.learn_many(pl.DataFrame({"a": a}), y)
    assert model.predict_one({"a": 0.5}) == pytest.approx(np.exp(2.5), rel=0.05)


@pytest.mark.parametrize(
    "target",
    [{"bounds": (0, 1), "transform": "log"}, {"bounds": (1, 2)}, {"bounds": (1, 2), "transform": "asinh"}],
    ids=str,
)
def test_a_log_needs_bounds_above_0(target: Any) -> None:
    with pytest.raises(streamdp.errors.SchemaError, match="target: "):
        LDPASGDRegressor(features=FEATURES, target=target)


def test_what_takes_no_log_of_a_target_says_so() -> None:
    with pytest.raises(streamdp.errors.NotAvailableError, match="log"):
        _ = LDPASGDRegressor(features=FEATURES, target=LOG).randomizer
    with pytest.raises(ConfigError, match="validation"):
        LDPASGDRegressor(features=FEATURES, target=LOG, validation={"share": 0.1})
