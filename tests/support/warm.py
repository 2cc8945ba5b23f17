"""Compile what the tests use, once, before several processes would each do so.

Run with `python -m tests.support.warm`.
"""

from __future__ import annotations

import sys
from concurrent.futures import ProcessPoolExecutor
from typing import Any

import numpy as np

import streamdp
from connectors import jsoncalls
from streamdp.estimators.base import StreamEstimator


def learn(name: str) -> None:
    """Learn a few records with an estimator, of each kind of loss."""
    kind: Any = getattr(streamdp, name)
    X, y = np.random.default_rng(0).uniform(-1, 1, (300, 2)), np.arange(300.0) % 2
    options: list[dict[str, Any]] = [{}]
    if name.endswith("Classifier"):
        options.append({"loss": "softmax", "classes": ["a", "b", "c"]})
    for more in options:
        try:
            size = {"items_per_user": 1, "window": 300} if name.startswith(("User", "Windowed")) else {}
            model = kind(features=["a", "b"], **size, **more)
            model.learn_arrays(X, y, subjects=[f"p{i}" for i in range(300)] if size else None)
            model.predict_arrays(X)
        except streamdp.StreamDPError as error:
            print(f"{name}: {error}", file=sys.stderr)


def cut_a_call() -> None:
    """Compile what the service reads calls with."""
    jsoncalls.cut(b'{"records": [{"x": {"a": 1}, "y": 2}]}', True, 10)


def main() -> None:
    names = [n for n in streamdp.__all__ if isinstance(getattr(streamdp, n), type)]
    names = [n for n in names if issubclass(getattr(streamdp, n), StreamEstimator)]
    with ProcessPoolExecutor(2) as pool:
        pool.submit(cut_a_call)
        list(pool.map(learn, names))


if __name__ == "__main__":
    main()
