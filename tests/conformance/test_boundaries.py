"""Boundaries, where a state may leave memory, are as far as an estimator says: by learning record after record.

Most estimators name the last one within a call; windows, and plans whose phases end, name one on the way.
"""

from typing import Any

import numpy as np
import pytest

import streamdp
from streamdp.stats import Statistics
from tests.conformance.test_values import KINDS
from tests.support.sizes import some

FEATURES = ["a", "b"]
NAMES = [*KINDS, *(f"{kind} planned" for kind in KINDS if kind.startswith(("Pan", "Shuffle"))), "process", "window"]
CASES = [(name, seed) for name in NAMES for seed in range(8)]


def made(name: str, rng: np.random.Generator) -> Any:
    """A model with random sizes of batches or windows, for records of `subjects`."""
    kind, *planned = name.split()
    size, horizon = int(rng.integers(1, 40)), int(rng.integers(1, 3000))
    if kind not in KINDS:
        return Statistics({"m": {"mean": "a"}}, {"a": (-1, 1), "b": (-1, 1)}, trust=kind, batch_size=size)
    more: dict[str, Any] = {"seed": 1}
    if kind.startswith(("Pan", "Shuffle")) and rng.random() < 0.6:
        more["batch_size"] = size if kind.startswith("Pan") else 60 + size
    if planned:
        more |= {"method": "ac-sa", "horizon": horizon, "strong_convexity": float(rng.choice([0, 0.05, 0.5]))}
    if kind.startswith("UserLevel"):
        more |= {"window": size, "items_per_user": 5000}
    if kind.startswith("Windowed"):
        more |= {"window": 200 + size, "items_per_user": 1, "budget": "eps=50,delta=1e-6"}
    return getattr(streamdp, kind)(features=FEATURES, **more)


@pytest.mark.parametrize(("name", "seed"), some(CASES, *range(0, len(CASES), 8)))
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_boundaries_are_as_far_as_is_said(name: str, seed: int) -> None:
    n, rng = 2500, np.random.default_rng(seed)
    X, y = rng.uniform(-1, 1, (n, 2)), rng.integers(0, 2, n).astype(float)
    subjects: list[Any] = ["one"] * n if name.startswith("UserLevel") else [None] * n
    model, behind = (made(name, np.random.default_rng(seed)) for _ in range(2))
    boundaries, last = [0], not name.startswith("Windowed") and "planned" not in name
    for i in range(n):
        behind.learn_encoded(X[i : i + 1], y[i : i + 1], subjects=subjects[i : i + 1])
        if behind.at_boundary:
            boundaries.append(i + 1)
    at = 0
    while at < n:
        following = [b - at for b in boundaries if b > at]
        size = int(rng.integers(0, min(n - at, rng.choice([3, 50, 1000])) + 1))
        size = following[0] if following and rng.random() < 0.2 else size
        within = [ahead for ahead in following if ahead <= size]
        ahead = model.boundary_within(size)
        assert ahead in (within[-1 if last else 0 :] or [size])
        assert model.at_boundary == (at in boundaries)
        if following and not model.at_boundary:
            assert model.to_boundary == following[0]
        step = ahead if rng.random() < 0.7 else size
        model.learn_encoded(X[at : at + step], y[at : at + step], subjects=subjects[at : at + step])
        at += step
    assert name in ("process", "window") or model.theta.tobytes() == behind.theta.tobytes()
