"""Newton's steps of a window, where the answer is far from the start."""

from typing import Any

import numpy as np
import pytest
from scipy.special import expit

from streamdp import WindowedClassifier, WindowedRegressor


def test_a_rare_class_has_no_bias_from_the_first_rounds() -> None:
    """Of a class of 1 % the first rounds, which ask at 0, made the intercept .29 too low and the slopes .1 too small.

    At eps=10 noise is small. The mean intercept of four draws has a deviation of .025: the false-alarm probability is
    below 1e-6.
    """
    truth, found = np.array([1.0, -1.0, 0.5, -5.66]), []
    for draw in range(4):
        rng = np.random.default_rng(draw)
        X = rng.normal(size=(100_000, 3))
        y = (rng.random(len(X)) < expit(X @ truth[:3] + truth[3])).astype(float)
        model = WindowedClassifier(
            features=["a", "b", "c"], budget="eps=10,delta=1e-8", window=len(X), items_per_user=1, seed=draw
        )
        model.learn_encoded(X, y)
        found.append(np.asarray(model.theta))
    bias = np.mean(found, axis=0) - truth
    assert np.all(np.abs(bias) < 0.14)


def changing(draw: int, flip: float, kind: str) -> WindowedClassifier | WindowedRegressor:
    """The model of one window of 20,000 records, of which those from this share on have the opposite truth."""
    rng, truth = np.random.default_rng(draw), np.array([1.0, -1.0, 0.5])
    X = rng.normal(size=(20_000, 3))
    if kind == "sorted":
        X = X[np.argsort(X @ truth)]
    signal = X @ truth * np.where(np.arange(len(X)) < flip * len(X), 1, -1)
    given: dict[str, Any] = {"features": ["a", "b", "c"], "budget": "eps=4,delta=1e-6", "window": len(X)}
    given |= {"items_per_user": 1, "seed": draw}
    if kind == "classes":
        model = WindowedClassifier(**given)
        model.learn_encoded(X, (rng.random(len(X)) < expit(2 * signal)).astype(float))
        return model
    noise = np.abs(X[:, 0]) + 0.1 if kind == "uneven" else 0.5
    number = WindowedRegressor(**given, target=(-20.0, 20.0), validation={"share": 0.2})
    number.learn_arrays(X, signal + noise * rng.normal(size=len(X)))
    return number


@pytest.mark.parametrize("kind", ["numbers", "classes"])
def test_a_flip_within_a_window_is_noticed_and_its_end_is_answered(kind: str) -> None:
    """The window said that nothing had changed, and its answer was that of the four fifths before the flip."""
    model = changing(0, 0.8, kind)
    assert model.n_changes == 1
    assert model.weights["a"] < -0.5 < 0.5 < model.weights["b"]
    assert "changed" in model.statement()
    if kind == "numbers":  # people who are held out speak about the end alone, of which the model is
        assert model.quality.verdict == "better"


def test_a_flip_of_the_last_fifth_of_a_window_is_noticed_and_its_end_is_learned() -> None:
    """Classes at eps=1, by columns that fill a quarter of their bounds: none was noticed, weights were the old."""
    rng = np.random.default_rng(3)
    X, flipped = rng.normal(size=(50_000, 5)), np.arange(50_000) >= 40_000
    signal = X @ np.array([1.0, -1.0, 0.6, 0.6, 0.4]) * np.where(flipped, -1, 1)
    names = {f"x{j}": (-4, 4) for j in range(5)}
    model = WindowedClassifier(features=names, budget="eps=1,delta=1e-6", window=50_000, items_per_user=1, seed=1)
    model.learn_arrays(X, (rng.random(50_000) < expit(signal)).astype(float))
    assert model.n_changes == 1
    assert model.weights["x0"] < -0.5 < 0.5 < model.weights["x1"]


@pytest.mark.parametrize("kind", ["numbers", "classes", "uneven", "sorted"])
def test_a_steady_window_has_no_change(kind: str) -> None:
    """None of 16 in each kind, so none of 64. A file that is sorted by its target changes little by little."""
    assert sum(changing(draw, 1.0, kind).n_changes for draw in range(16)) == 0


def test_many_classes_are_learned_near_what_they_are_without_privacy() -> None:
    """Six classes; private ranges make more errors."""
    rng, B = np.random.default_rng(3), np.random.default_rng(7).standard_normal((6, 6))
    X = rng.standard_normal((16_000, 6))
    y = np.argmax(X @ B + rng.gumbel(size=(len(X), 6)), axis=1)
    model = WindowedClassifier(
        "softmax",
        budget="eps=2,delta=1e-6",
        window=12_000,
        items_per_user=1,
        classes=list(range(6)),
        features={f"x{j}": (-4.0, 4.0) for j in range(6)},
        seed=1,
    )
    model.learn_encoded(X[:12_000] / 4, y[:12_000].astype(float))
    assert model.n_windows == 1
    best = float(np.mean(np.argmax(X[12_000:] @ B, axis=1) != y[12_000:]))
    assert float(np.mean(model.predict_encoded(X[12_000:] / 4) != y[12_000:])) < 1.05 * best
