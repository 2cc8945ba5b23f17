"""Columns are cut to four released deviations, alike in learning and in predictions: in windows, and for classes."""

from typing import Any

import numpy as np
import pytest

from benchmarks.ordinary import TABLES, constant, ours
from streamdp import PanPrivateClassifier, PanPrivateRegressor, ShuffleClassifier, WindowedRegressor
from streamdp.optim.curvature import Curvature
from streamdp.optim.loops import INTERCEPT
from streamdp.optim.losses import Logistic
from streamdp.scaling.units import FAR, ranges_of
from tests.support.states import steps_of

WINDOW = {"items_per_user": 1, "window": 30_000}
KINDS: list[tuple[Any, dict[str, Any]]] = [
    (PanPrivateClassifier, {}),
    (ShuffleClassifier, {}),
    (WindowedRegressor, WINDOW),
]


def learned(kind: Any, **more: Any) -> Any:
    """An amount in bounds that are far too wide, and a column that fills its own."""
    rng = np.random.default_rng(0)
    X = np.column_stack([np.exp(rng.normal(size=30_000)), rng.uniform(-1, 1, 30_000)])
    features = {"amount": (0.0, 1000.0), "plain": (-1.0, 1.0)}
    target = {} if kind.__name__.endswith("Classifier") else {"target": (-20, 20)}
    model = kind(features=features, budget="eps=4,delta=1e-6", seed=1, **target, **more)
    y = np.log(X[:, 0]) + X[:, 1] + rng.normal(size=len(X))
    model.learn_arrays(X, y if target else y > 0)
    model.close_batch()
    return model


@pytest.mark.parametrize(("kind", "more"), KINDS)
def test_a_value_far_out_counts_as_the_end_of_its_range(kind: Any, more: dict[str, Any]) -> None:
    model = learned(kind, **more)
    low, high = model.learner.ranges
    assert low[1] < -1
    assert high[1] > 1
    end = (high[0] + 1) / 2 * 1000
    assert 4 < end < 60
    numbers = isinstance(model, WindowedRegressor)
    one = model.predict_one if numbers else lambda x: model.predict_proba_one(x)[True]
    said = [one({"amount": amount, "plain": 0.5}) for amount in (end / 20, end, 1000.0)]
    assert said[0] < said[1] - 0.01
    assert said[1] == pytest.approx(said[2], abs=1e-9)
    X = np.array([[end / 20, 0.5], [end, 0.5], [1000.0, 0.5]])
    many = model.predict_arrays(X) if numbers else model.predict_proba_arrays(X)[:, 1]
    assert many == pytest.approx(said, abs=1e-9)


def test_numbers_of_batches_are_cut_further_out() -> None:
    """Their units are robust: on flights, a cut at four of them made the error a fifth larger."""
    model = learned(PanPrivateRegressor)
    units = steps_of(model).state.units  # amounts are at the least range
    np.testing.assert_allclose((model.learner.ranges - units[0]) * units[1], [[-4.0, -12.0], [4.0, 12.0]])
    said = [model.predict_one({"amount": amount, "plain": 0.5}) for amount in (5.0, 10.0, 20.0)]
    assert said[2] - said[1] == pytest.approx(2 * (said[1] - said[0]))


def test_batches_learn_a_value_far_out_as_the_end_of_its_range() -> None:
    """Without units, or with the slope 1, nothing is cut."""
    loss = Logistic()
    curvature = Curvature(loss, 3, 1)
    point = np.array([0.3, -0.2, 0.1, 0.5, 0.0, 8.0, 1.0])  # theta, two centres, two slopes
    ranges = ranges_of(point[3:].reshape(2, 2), 1.0)
    assert ranges[:, 0].tolist() == [0.5 - FAR / 8, 0.5 + FAR / 8]
    assert np.isinf(ranges[:, 1]).all()
    X = np.array([[900.0, 0.7], [ranges[1, 0], 0.7], [0.9, 0.7]])
    spec = loss.spec()
    spec[INTERCEPT] = 1.0
    G = curvature.vectors(spec, point, X, np.zeros(3))
    assert np.allclose(G[0], G[1])
    assert not np.allclose(G[1], G[2])


@pytest.mark.parametrize(
    ("name", "most"), [("a category of 30, 1 - R²", 0.4), ("three classes, a category of 30, errors", 0.6)]
)
def test_a_window_learns_rare_levels(name: str, most: float) -> None:
    """Units of rare flags are small, so that a flag was a value far out: the error was that of the constant."""
    case, rng = TABLES[name], np.random.default_rng([1, 5])
    data, held = case.drawn(rng, 1.0)
    found = case.score(held, ours("window", case, data, held, 1.0, 1))
    assert found < most * case.score(held, constant(case, data, held))
