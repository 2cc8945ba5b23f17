"""From how many records on LDP-ASGD beats a constant. Run with `python -m benchmarks.least_records [--write]`.

The models of Shi et al. 2025 (section 5) with plain columns, and the delay of flights with declared bounds; all options
are the defaults. The measure is the expected loss under the true model, or the mean absolute error in December, and the
best constant is that of the same measure. Each of 12 draws of records and noise (flights: of noise) is one stream,
measured at each number of `GRID`. A cell is the least number from which on all draws were better than the constant, at
this and at every larger number. Seeds are fixed. `--write` puts the table into the page
docs/explanations/noise.md. A few minutes on one core.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from typing import Any

import numpy as np

from benchmarks.learning import Flights, learner
from benchmarks.simulation import Simulation
from benchmarks.theory import short, table, write_costs

GRID = (300, 1_000, 3_000, 10_000, 30_000, 100_000, 300_000)
BUDGETS = ("eps=0.5", "eps=1", "eps=2", "eps=4")
DRAWS = 12


def measures(model: Any, X: np.ndarray, y: np.ndarray, measure: Any) -> Iterator[float]:
    """What `measure` says of the model after each number of records."""
    for start, end in zip((0, *GRID), GRID, strict=False):
        model.learn_arrays(X[start:end], y[start:end])
        yield measure(model)


def least(worst: np.ndarray, constant: float) -> str:
    """The cell: `worst` are the largest losses of all draws."""
    better = np.logical_and.accumulate((worst < constant)[::-1])[::-1]
    return short(GRID[int(np.argmax(better))]) if better.any() else f"above {short(GRID[-1])}"


def simulated(loss: str, d: int, budget: str) -> str:
    """The cell of a simulation."""
    simulation, found = Simulation(loss, d), []
    for draw in range(DRAWS):
        X, y = simulation.draw(GRID[-1], 700 + draw)
        model = learner(loss, d, budget, None).clone({"seed": draw})
        found.append(list(measures(model, X, y, lambda model: simulation.excess(model.theta))))
    return least(np.max(found, axis=0), simulation.constant)


def flights(data: Flights, budget: str) -> str:
    """The cell of the delay of flights."""
    found = []
    for draw in range(DRAWS):
        model = data.model(budget).clone({"seed": draw})
        found.append(
            list(measures(model, data.X, data.y, lambda model: data.score(model.predict_arrays(data.holdout))))
        )
    return least(np.max(found, axis=0), data.constant())


def main() -> None:
    parser = argparse.ArgumentParser(description="Measure from how many records on LDP-ASGD beats a constant.")
    parser.add_argument("--write", action="store_true", help="write the table")
    given = parser.parse_args()
    rows = []
    for loss in ("logistic", "huber"):
        for d in (5, 10, 20):
            rows.append([f"simulation, {loss}", str(d), *(simulated(loss, d, budget) for budget in BUDGETS)])
            print(" | ".join(rows[-1]), flush=True)
    data = Flights("delay")
    rows.append(["flights, delay", str(data.X.shape[1]), *(flights(data, budget) for budget in BUDGETS)])
    text = table(["data", "columns", *BUDGETS], rows)
    print(text)
    if given.write:
        write_costs("constant", text)


if __name__ == "__main__":
    main()
