"""A small user-level model, its data, and its exact answers."""

from typing import Any

import numpy as np
import pytest

from streamdp import Logistic, UserLevelLDPClassifier
from streamdp.aggregation.local_mean import UserMean
from streamdp.optim.losses import Loss

NAMES = ["a", "b"]
WEIGHTS = np.array([2.0, -3.0])
SECRET = "55512.345"


def data(users: int, items: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray, list[str]]:
    rng = np.random.default_rng(seed)
    X = rng.uniform(-1, 1, (users * items, 2))
    y = (rng.random(len(X)) < 1 / (1 + np.exp(-X @ WEIGHTS))).astype(float)
    return X, y, [f"u{i // items}" for i in range(len(X))]


def model(**options: Any) -> UserLevelLDPClassifier:
    return UserLevelLDPClassifier(features=NAMES, **options)


def row(x: np.ndarray) -> dict[str, float]:
    return dict(zip(NAMES, x.tolist(), strict=True))


def silent(monkeypatch: pytest.MonkeyPatch) -> list[np.ndarray]:
    """No noise: the average gradients that users answer with are listed."""
    seen: list[np.ndarray] = []

    def exact(self: UserMean, vectors: np.ndarray, centre: np.ndarray, rng: Any) -> np.ndarray:
        seen.extend(vectors)
        return vectors - centre

    monkeypatch.setattr(UserMean, "answer_fine", exact)
    return seen


def mean_gradient(theta: np.ndarray, X: np.ndarray, y: np.ndarray, loss: Loss | None = None) -> np.ndarray:
    loss = loss or Logistic()
    return np.mean([loss.gradient(theta, np.append(x, 1.0), t) for x, t in zip(X, y, strict=True)], axis=0)
