"""Predictions are those of the weights that are shown, after everything that changes them."""

import copy
from typing import Any

import numpy as np
import pytest

from streamdp import (
    LDPASGDRegressor,
    LDPSGDRegressor,
    PanPrivateRegressor,
    ShuffleRegressor,
    UserLevelLDPRegressor,
    WindowedRegressor,
)

FEATURES = {"a": (-1.0, 1.0), "b": (-2.0, 6.0)}
KINDS: dict[str, Any] = {
    "last iterate": lambda: LDPSGDRegressor(features=FEATURES, target=(-3, 3), budget="eps=4", seed=1),
    "average": lambda: LDPASGDRegressor(features=FEATURES, target=(-3, 3), budget="eps=4", seed=1),
    "pan": lambda: PanPrivateRegressor(features=FEATURES, target=(-3, 3), batch_size=100, seed=1),
    "shuffle": lambda: ShuffleRegressor(features=FEATURES, target=(-3, 3), batch_size=100, seed=1),
    "users": lambda: UserLevelLDPRegressor(features=FEATURES, target=(-3, 3), items_per_user=1, budget="eps=4", seed=1),
    "users, as they come": lambda: UserLevelLDPRegressor(
        features=FEATURES, items_per_user=1, scaling="none", budget="eps=4", seed=1
    ),
    "windows": lambda: WindowedRegressor(
        features=FEATURES, target=(-3, 3), window=400, budget="eps=4,delta=1e-6", seed=1
    ),
}


def learn(model: Any, seed: int) -> None:
    rng = np.random.default_rng(seed)
    X = rng.uniform(-1, 1, (800, 2))
    model.learn_encoded(X, X @ [1.0, -0.5])
    model.close_batch()


def check(model: Any) -> float:
    """Records, frames and rows of columns have the prediction of the weights."""
    x, columns = {"a": 0.5, "b": 4.0}, np.array([[0.5, 0.5]])
    weights = model.weights
    expected = weights["a"] * x["a"] + weights["b"] * x["b"] + weights["(intercept)"]
    assert model.predict_one(x) == pytest.approx(expected, rel=1e-9, abs=1e-9)
    assert model.predict_many(np.array([[0.5, 4.0]]))[0] == pytest.approx(expected, rel=1e-9, abs=1e-9)
    assert model.predict_encoded(columns)[0] == pytest.approx(expected, rel=1e-9, abs=1e-9)
    return float(expected)


@pytest.mark.parametrize("kind", KINDS)
def test_predictions_follow_the_weights(kind: str) -> None:
    model = KINDS[kind]()
    assert model.weights == {}
    learn(model, 1)
    first, state = check(model), model.state_dict()
    other = copy.deepcopy(model)
    learn(model, 2)
    assert check(model) != first
    assert check(other) == first
    merged = model.merged(other)
    check(merged)
    model.load_state_dict(state)
    assert check(model) == pytest.approx(first)
    learn(merged, 3)
    check(merged)
