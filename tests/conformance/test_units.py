"""Units: bounds that are many times as wide as the values cost little, and weights are in the units of the columns."""

from typing import Any

import numpy as np
import pytest

import streamdp
from tests.conformance.test_values import KINDS

WEIGHTS = {"a": 1.0, "b": -1.0, "c": 0.5, "d": 1.0}


def records(n: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    X = rng.normal([0.5, -0.2, 0.0, 0.0], [1.0, 1.0, 0.5, 1.0], (n, 4))
    X[:, 3] = X[:, 3] > 0
    return X, 1 + X @ [*WEIGHTS.values()] + rng.normal(0, 0.5, n)


def learned(kind: str, width: float | None, X: np.ndarray, y: Any) -> Any:
    """With two columns and a target whose bounds are so wide; None: without bounds."""
    features = {"a": (-width, width), "b": (-width, width), "c": (-2, 2), "d": (0, 1)} if width else list(WEIGHTS)
    more: dict[str, Any] = {"features": features, "budget": "eps=8" if "LDP" in kind else "eps=4,delta=1e-6", "seed": 1}
    if width and kind.endswith("Regressor"):
        more["target"] = (-4 * width, 4 * width)
    if kind.startswith("Windowed"):
        more |= {"window": len(X), "items_per_user": 1}
    model = getattr(streamdp, kind)(**more)
    model.learn_arrays(X, y, subjects=[i // 2 for i in range(len(X))] if kind.startswith("User") else None)
    model.close_batch()
    return model


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_bounds_far_wider_than_the_values_cost_little(kind: str) -> None:
    """Spreads of 1/40 of the bounds of columns and 1/100 of those of the target; the error of the noise alone is .39.

    A constant has 1.26, and of two classes .28.
    """
    (X, y), (fresh, truth) = records(20_000, 1), records(4000, 2)
    if kind.endswith("Classifier"):
        y, truth = y > 1.3, truth > 1.3
    models = {width: learned(kind, width, X, y) for width in (None, 4.0, 40.0)}
    errors = {width: float(np.abs(model.predict_arrays(fresh) - 1.0 * truth).mean()) for width, model in models.items()}
    assert errors[40.0] < 1.1 * errors[4.0] < 1.1 * 1.05 * errors[None]
    assert errors[4.0] < (0.42 if kind.endswith("Regressor") else 0.1)
    if kind.endswith("Regressor"):
        assert [models[40.0].weights[name] for name in WEIGHTS] == pytest.approx([*WEIGHTS.values()], abs=0.25)


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_models_that_learned_other_units_are_merged(kind: str) -> None:
    """One part saw a third of the spread; together they are as good as each, are stored and loaded, and go on."""
    (X, y), (fresh, truth) = records(20_000, 1), records(4000, 2)
    Z = 0.3 * X
    z = 1 + Z @ [*WEIGHTS.values()] + np.random.default_rng(7).normal(0, 0.15, len(Z))
    if kind.endswith("Classifier"):
        y, z, truth = y > 1.3, z > 1.3, truth > 1.3
    parts = [learned(kind, 40.0, X, y), learned(kind, 40.0, Z, z)]
    merged = parts[0].merged(parts[1])
    again = merged.clone()
    again.load_state_dict(merged.state_dict())
    assert again.theta.tobytes() == merged.theta.tobytes()
    assert merged.n_seen == 40_000
    if hasattr(merged, "n_asked"):
        assert merged.n_asked == sum(part.n_asked for part in parts)
    merged.learn_arrays(X, y, subjects=[len(X) + i // 2 for i in range(len(X))] if kind.startswith("User") else None)
    merged.close_batch()
    errors = [float(np.abs(model.predict_arrays(fresh) - 1.0 * truth).mean()) for model in (*parts, again, merged)]
    assert max(errors[2:]) < 1.05 * max(errors[:2]) < (0.44 if kind.endswith("Regressor") else 0.1)
