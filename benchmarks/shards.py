"""What is lost when a stream is learned in shards whose states are averaged. `python -m benchmarks.shards [--write]`.

The papers' linear model (independent standard normal features, coefficients and intercept 1, noise N(0, 1)), learned by
LDP-ASGD with the Huber loss and mu = 1: the error of the coefficients after one pass, and of the average of k
estimators that each learned every k-th record.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from benchmarks.shared.pages import command, mean_and_error, pm, table
from streamdp import LDPASGDRegressor

FEATURES = 5
SIZES, SHARDS, REPEATS = (10_000, 100_000, 1_000_000), (1, 4, 16), 20


def error(records: int, shards: int, rng: np.random.Generator) -> float:
    """The root mean squared error of the coefficients of one run."""
    X = rng.normal(size=(records, FEATURES))
    y = 1 + X.sum(axis=1) + rng.normal(size=records)
    names = [f"x{j}" for j in range(FEATURES)]
    parts = [LDPASGDRegressor(features=names, budget="mu=1") for _ in range(shards)]
    for number, part in enumerate(parts):
        part.learn_encoded(X[number::shards], y[number::shards])
    model = parts[0].merged(*parts[1:]) if shards > 1 else parts[0]
    return float(np.sqrt(np.mean((np.array([model.weights[name] for name in names]) - 1) ** 2)))


def measure() -> str:
    """A row for each number of records."""
    rng, rows = np.random.default_rng(7), []
    for records in SIZES:
        cells = []
        for shards in SHARDS:
            errors = np.array([error(records, shards, rng) for _ in range(REPEATS)])
            cells.append(pm(mean_and_error(errors), 3))
        rows.append([f"{records:,}", *cells])
    return table(["records", *(f"{k} shard{'s' * (k > 1)}" for k in SHARDS)], rows)


PARTS: dict[str, Callable[[], str]] = {"shards": measure}


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure, print, and with --write save."""
    command(__file__, PARTS, arguments)


if __name__ == "__main__":
    main()
