"""A target beyond its declared bounds is learned as the bound, by all estimators and in all ways in."""

from typing import Any

import numpy as np
import polars as pl
import pytest

from streamdp import LDPASGDRegressor, PanPrivateRegressor, ShuffleRegressor, WindowedRegressor

WAYS = ("learn_one", "learn_many", "learn_arrays", "learn_encoded")


def learned(kind: Any, way: str, X: np.ndarray, y: np.ndarray) -> Any:
    window = {"window": len(y), "items_per_user": 1} if kind is WindowedRegressor else {}
    budget = "eps=4" if kind is LDPASGDRegressor else "eps=4,delta=1e-6"
    bounds = dict.fromkeys("ab", (-1, 1))
    model = kind(features=bounds, target=(0, 1), budget=budget, loss="squared", seed=1, **window)
    if way == "learn_one":
        for row, target in zip(X.tolist(), y.tolist(), strict=True):
            model.learn_one(dict(zip("ab", row, strict=True)), target)
    elif way == "learn_many":
        model.learn_many(pl.DataFrame(X, schema=["a", "b"]), pl.Series("y", y))
    else:
        getattr(model, way)(X, y)
    if hasattr(model, "close_batch"):
        model.close_batch()
    return model.predict_one({"a": 0.5, "b": 0.0})


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("kind", [LDPASGDRegressor, PanPrivateRegressor, ShuffleRegressor, WindowedRegressor])
def test_a_target_beyond_its_bounds_is_the_bound(kind: Any, way: str) -> None:
    rng, n = np.random.default_rng(1), 2_000
    X, y = rng.uniform(-1, 1, (n, 2)), np.where(rng.random(n) < 0.3, 50.0, -7.0)
    assert learned(kind, way, X, y) == learned(kind, way, X, np.clip(y, 0, 1))
