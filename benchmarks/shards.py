"""What is lost when a stream is learned in parts whose models are merged. `python -m benchmarks.shards [--write]`.

The papers' linear model (independent standard normal features, coefficients and intercept 1, noise N(0, 1)), learned at
eps=1 and delta=1e-6 with the Huber loss: the error of the coefficients after one pass, and of the merge of k
estimators that each learned every k-th record. Run r has the records and the noise of seed r; k estimators have the
noise of k seeds that it draws. Noise of seeded generators is for measuring only.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from benchmarks.shared.pages import command, mean_and_error, pm, table
from streamdp import LDPASGDRegressor, PanPrivateRegressor, ShuffleRegressor, WindowedRegressor

FEATURES = 5
RECORDS, SHARDS, REPEATS = 100_000, (1, 2, 4, 12, 64), 6
TRUSTS: dict[str, Any] = {
    "nobody": LDPASGDRegressor,
    "process": PanPrivateRegressor,
    "shuffler": ShuffleRegressor,
    "window": WindowedRegressor,
}


def error(trust: str, shards: int, seed: int) -> float:
    """The root mean squared error of the coefficients of one run."""
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(RECORDS, FEATURES))
    y = 1 + X.sum(axis=1) + rng.normal(size=RECORDS)
    names = [f"x{j}" for j in range(FEATURES)]
    budget = "eps=1" if trust == "nobody" else "eps=1,delta=1e-6"
    more = {"window": RECORDS // shards} if trust == "window" else {}
    seeds = rng.integers(2**63, size=shards).tolist()
    parts = [TRUSTS[trust](features=names, budget=budget, seed=one, **more) for one in seeds]
    for number, part in enumerate(parts):
        part.learn_encoded(X[number::shards], y[number::shards])
        part.close_batch()
    model = parts[0].merged(*parts[1:]) if shards > 1 else parts[0]
    return float(np.sqrt(np.mean((np.array([model.weights[name] for name in names]) - 1) ** 2)))


def measure() -> str:
    """A row for each trust."""
    rows = []
    for trust in TRUSTS:
        cells = []
        for shards in SHARDS:
            errors = np.array([error(trust, shards, seed) for seed in range(REPEATS)])
            cells.append(pm(mean_and_error(errors), 3))
        rows.append([trust, *cells])
    return table(["trust", *(f"{k} part{'s' * (k > 1)}" for k in SHARDS)], rows)


PARTS: dict[str, Callable[[], str]] = {"shards": measure}


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure, print, and with --write save."""
    command(__file__, PARTS, arguments)


if __name__ == "__main__":
    main()
