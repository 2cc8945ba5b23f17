"""Excess loss of user-level local learners. Run with `python -m benchmarks.user_excess [--write] [--most N]`.

Averaged SGD, the default, beside the planned steps of Bassily, Sun 2023, in doubling epochs and with the number of
users declared. Simulations of Shi et al. 2025 as in `batches`; n users, each with m independent records. The planned
steps make at most 500 steps, because they take a millisecond each. Noise comes from seeded generators, which are for
measuring only.
"""

from __future__ import annotations

import argparse
from functools import cache
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.shared.pages import mean_and_error, table
from benchmarks.shared.simulation import Simulation
from streamdp.estimators.user.estimators import UserLevelLDPClassifier, UserLevelLDPRegressor

DRAWS = 8
FILE = Path(__file__).with_suffix(".md")
CASES = [
    case
    for case in product((1_000, 10_000, 100_000), (5, 20), ("huber", "logistic"), (1, 4, 16), (1, 4))
    if case[0] * case[3] <= 400_000  # the records of a draw
]
"""(n, d, loss, m, eps)."""
_STEPS = 500
problem = cache(Simulation)


def excess(loss: str, d: int, n: int, m: int, epsilon: float, seed: int, **options: Any) -> float:
    """The excess loss after all users."""
    simulated = problem(loss, d)
    X, y = simulated.draw(n * m, 1000 + seed)
    kind: Any = UserLevelLDPClassifier if loss == "logistic" else UserLevelLDPRegressor
    model = kind(
        features=[f"x{j}" for j in range(d)],
        budget=f"eps={epsilon:g},delta=1e-6",
        items_per_user=m,
        window=2**31 - 1,
        seed=seed,
        **options,
    )
    model.learn_arrays(X, y, subjects=[b"%d" % (i // m) for i in range(n * m)])
    return simulated.excess(model.theta)


def rows(cases: list[tuple[int, int, str, int, int]], draws: int) -> list[list[str]]:
    """One row for each case."""
    found = []
    for n, d, loss, m, epsilon in cases:
        planned = {"method": "ac-sa", "batch_size": max(1, n // _STEPS)}
        cells = []
        for options in ({}, planned, planned | {"horizon": n}):
            mean, error = mean_and_error(
                np.array([excess(loss, d, n, m, epsilon, seed, **options) for seed in range(draws)])
            )
            cells.append(f"{mean:.2g} ± {error:.1g}")
        constant = f"{problem(loss, d).constant:.2g}"
        found.append([loss, str(d), f"{n:,}", str(m), f"{epsilon:g}", *cells, constant])
        print(" | ".join(found[-1]), flush=True)
    return found


TEXT = """# User-level local learners: excess loss

Written by `python -m benchmarks.user_excess --write`; do not edit. n users with m records each, d features, delta =
1e-6 for all records of a user; {draws} draws of noise and records, ± is one Monte Carlo standard error. "asgd" is the
default; "ac-sa" are the planned steps of Bassily, Sun 2023, without and with the number of users declared, in at most
{steps} steps.

{table}
"""
HEAD = ["loss", "d", "n", "m", "eps", "asgd", "ac-sa", "ac-sa, n declared", "best constant's"]


def main() -> None:
    """Measure, print, and with --write save."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.user_excess", description="Measure user-level learners."
    )
    parser.add_argument("--write", action="store_true", help="write user_excess.md")
    parser.add_argument("--most", type=int, default=100_000, help="the largest number of users")
    parser.add_argument("--draws", type=int, default=DRAWS, help="draws of noise and records")
    given = parser.parse_args()
    if given.write and (given.most < 100_000 or given.draws < DRAWS):
        parser.error("fewer users or draws are for a look: the figures cannot be written")
    shown = table(HEAD, rows([case for case in CASES if case[0] <= given.most], given.draws))
    if given.write:
        FILE.write_text(TEXT.format(draws=given.draws, steps=_STEPS, table=shown), encoding="utf-8")


if __name__ == "__main__":
    main()
