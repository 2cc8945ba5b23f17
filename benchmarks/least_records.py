"""From how many records on models beat a constant. Run with `python -m benchmarks.least_records [--write]`.

The first table, of LDP-ASGD, has the least number from which on all of 12 draws were better than the constant, at this
and at every larger number of `GRID`. The second counts the models of the tables of `benchmarks.ordinary` that beat the
constant, by how many times `least_records` they learned from; from it follows `doubts.LIKELY`. The measure is the
expected loss under the true model, or that of held-out records. Seeds are fixed. Both are in
docs/explanations/noise.md. Ten minutes on one core.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise, product
from typing import Any

import numpy as np
from threadpoolctl import threadpool_limits

from benchmarks.learning import learner
from benchmarks.ordinary import TABLES, TRUSTS, constant, learned, predicted
from benchmarks.shared.flights import Flights
from benchmarks.shared.pages import NOISE, command, short, table
from benchmarks.shared.simulation import Simulation
from streamdp.errors import TooFewUsersError
from streamdp.reading.doubts import LIKELY

GRID = (300, 1_000, 3_000, 10_000, 30_000, 100_000, 300_000)
BUDGETS = ("eps=0.5", "eps=1", "eps=2", "eps=4")
DRAWS = 12
RATIOS = (0.3, 1.0, 3.0, 10.0)
PARTS_OF_TABLES = (1 / 64, 1 / 16, 1 / 4, 1.0)


def measures(model: Any, X: np.ndarray, y: np.ndarray, measure: Any) -> Iterator[float]:
    """What `measure` says of the model after each number of records."""
    for start, end in zip((0, *GRID), GRID, strict=False):
        model.learn_encoded(X[start:end], y[start:end])
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
            list(measures(model, data.X, data.y, lambda model: data.score(model.predict_encoded(data.holdout))))
        )
    return least(np.max(found, axis=0), data.constant())


def models() -> Iterator[tuple[str, float, bool]]:
    """The trust of a model of each ordinary table, its records over `least_records`, and whether it beats the constant.

    Tables with parts of their records, by all trusts, at three budgets. Too few users of a window are no model.
    """
    for name, part in product(TABLES, PARTS_OF_TABLES):
        case = TABLES[name]
        data, held = case.drawn(np.random.default_rng([0, 5]), part)
        if len(np.unique(data.y)) < 2:
            continue
        usual = case.score(held, constant(case, data, held))
        for trust, epsilon in product(TRUSTS, (0.5, 2.0, 8.0)):
            try:
                model = learned(trust, case, data, epsilon, 1)
            except TooFewUsersError:
                continue
            asked = getattr(model, "n_asked", 0)
            ratio = (model.learner.n_informing - asked) / max(model.least_records - asked, 1)
            yield trust, ratio, case.score(held, predicted(case, model, held)) < usual


def by_ratio() -> list[list[str]]:
    """Rows of the second table."""
    with threadpool_limits(1):
        found = [*models()]
    ends = [*zip((0, *RATIOS), (*RATIOS, math.inf), strict=True), (LIKELY, math.inf)]
    rows = []
    for trust in TRUSTS:
        cells = ([beats for of, ratio, beats in found if of == trust and low <= ratio < high] for low, high in ends)
        rows.append([trust, *(f"{sum(cell)} of {len(cell)}" for cell in cells)])
    return rows


def least_table() -> str:
    """The first table."""
    rows = []
    for loss, d in product(("logistic", "huber"), (5, 10, 20)):
        rows.append([f"simulation, {loss}", str(d), *(simulated(loss, d, budget) for budget in BUDGETS)])
    data = Flights("delay")
    rows.append(["flights, delay", str(data.X.shape[1]), *(flights(data, budget) for budget in BUDGETS)])
    return table(["data", "columns", *BUDGETS], rows)


def ratio_table() -> str:
    """The second table."""
    spans = (f"{low:g} to {high:g} times" for low, high in pairwise(RATIOS))
    head = [f"below {RATIOS[0]:g} times", *spans, f"from {RATIOS[-1]:g} times on", f"from {LIKELY:g} times on"]
    return table(["trust", *head], by_ratio())


PARTS: dict[str, Callable[[], str]] = {"constant": least_table, "ratio": ratio_table}
PAGES = {"constant": [NOISE], "ratio": [NOISE]}


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure, print, and with --write save."""
    command(__file__, PARTS, arguments, pages=PAGES)


if __name__ == "__main__":
    main()
