"""What is lost when a stream is learned in shards whose states are averaged. `python -m benchmarks.shards [--write]`.

The papers' linear model (independent standard normal features, coefficients and intercept 1, noise N(0, 1)), learned by
LDP-ASGD with the Huber loss and mu = 1: the error of the coefficients after one pass, and of the average of k
estimators that each learned every k-th record. `--write` replaces shards.md beside this file.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np

from streamdp import LDPASGDRegressor

PAGE = Path(__file__).parent / "shards.md"
ABOUT = """# What sharding loses

`python -m benchmarks.shards --write` learns the papers' linear model (five features, Huber loss, mu = 1) in one pass,
and in k shards whose states are averaged as those of Kafka partitions are. The figures are the root mean squared error
of the coefficients, the mean of {repeats} runs and its standard error.

{table}

Each shard keeps the bias of a shorter run, so the loss is largest where records are few, and fades as they grow.
"""
FEATURES = 5
SIZES, SHARDS, REPEATS = (10_000, 100_000, 1_000_000), (1, 4, 16), 20


def error(records: int, shards: int, rng: np.random.Generator) -> float:
    """The root mean squared error of the coefficients of one run."""
    X = rng.normal(size=(records, FEATURES))
    y = 1 + X.sum(axis=1) + rng.normal(size=records)
    names = [f"x{j}" for j in range(FEATURES)]
    parts = [LDPASGDRegressor(features=names, budget="mu=1") for _ in range(shards)]
    for number, part in enumerate(parts):
        part.learn_arrays(X[number::shards], y[number::shards])
    model = parts[0].merged(*parts[1:]) if shards > 1 else parts[0]
    return float(np.sqrt(np.mean((np.array([model.weights[name] for name in names]) - 1) ** 2)))


def measure() -> str:
    rng = np.random.default_rng(7)
    lines = ["| records | " + " | ".join(f"{k} shard{'s' * (k > 1)}" for k in SHARDS) + " |", "| --- " * 4 + "|"]
    for records in SIZES:
        cells = []
        for shards in SHARDS:
            errors = np.array([error(records, shards, rng) for _ in range(REPEATS)])
            cells.append(f"{errors.mean():.3f} ± {errors.std(ddof=1) / np.sqrt(REPEATS):.3f}")
        lines.append(f"| {records:,} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.shards", description="Measure what sharding loses.")
    parser.add_argument("--write", action="store_true", help=f"replace {PAGE.name}")
    write = parser.parse_args().write
    table = measure()
    print(table)
    if write:
        PAGE.write_text(ABOUT.format(repeats=REPEATS, table=table), encoding="utf-8")


if __name__ == "__main__":
    main()
