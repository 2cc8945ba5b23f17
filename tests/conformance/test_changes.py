"""A stream that turns round is noticed and followed; a steady one has no change, and to follow it costs nothing."""

from typing import Any

import numpy as np
import pytest

import streamdp
from tests.conformance.test_values import KINDS

HALF = 20_000


def learned(kind: str, flips: bool, **change: Any) -> Any:
    more: dict[str, Any] = {"features": {"a": (-1, 1), "b": (-1, 1)}, "seed": 1} | change
    more["budget"] = "eps=8" if "LDP" in kind else "eps=4,delta=1e-6"
    if kind.endswith("Regressor"):
        more["target"] = (-5, 5)
    if kind.startswith("Windowed"):
        more |= {"window": HALF // 4, "items_per_user": 1}
    model = getattr(streamdp, kind)(**more)
    for half in (0, 1):
        rng = np.random.default_rng(half + 2)
        X = rng.uniform(-1, 1, (HALF, 2))
        y = X @ ([-2.0, 2.0] if flips and half else [2.0, -2.0]) + rng.normal(0, 0.5, HALF)
        people = [HALF * half + i for i in range(HALF)] if kind.startswith("User") else None
        model.learn_arrays(X, y if "target" in more else y > 0, subjects=people)
        assert half or model.n_changes == 0
    model.close_batch()
    return model


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_a_flip_is_noticed_and_followed_and_a_steady_stream_has_none(kind: str) -> None:
    steady, flipped, ignored = learned(kind, False), learned(kind, True), learned(kind, True, change="ignore")
    models = (steady, flipped, ignored)
    assert [model.n_changes > 0 for model in models] == [False, True, False]
    assert ["the stream has changed" in model.statement() for model in models] == [False, True, False]
    assert HALF < (flipped.last_change or HALF + 1) <= 1.2 * HALF
    slopes = [(model.weights["a"] - model.weights["b"]) / 2 for model in models]
    if kind.endswith("Regressor"):
        assert slopes[:2] == pytest.approx([2.0, -2.0], abs=0.25)
        assert learned(kind, False, change="ignore").theta == pytest.approx(steady.theta, abs=0.15)
    assert slopes[1] < -0.7 * slopes[0]
    assert kind.startswith("LDPSGD") or slopes[2] > 0.5 * slopes[1]  # whose last steps forget by themselves
