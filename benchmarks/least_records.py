"""From how many records on LDP-ASGD beats a constant. Run with `python -m benchmarks.least_records [--write]`.

The first table has the least number from which on all of 12 draws were better than the constant, at this and at every
larger number of `GRID`. The second counts the draws that beat the constant when the gradients hold a certain number of
times the information I_0 of `optim.steps`; from it follows `doubts.LIKELY`. The measure is the expected loss under
the true model, or that of held-out records. Seeds are fixed. Both are in docs/explanations/noise.md. Ten minutes on one
core.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import product
from typing import Any

import numpy as np

from benchmarks.learning import learner
from benchmarks.shared.flights import Flights
from benchmarks.shared.pages import NOISE, command, short, table
from benchmarks.shared.real_data import JOBS as REAL_JOBS
from benchmarks.shared.real_data import RealData
from benchmarks.shared.simulation import Simulation

GRID = (300, 1_000, 3_000, 10_000, 30_000, 100_000, 300_000)
BUDGETS = ("eps=0.5", "eps=1", "eps=2", "eps=4")
DRAWS = 12
RATIOS = (1, 3, 5, 10, 20, 30)


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


def better(data: Any, make: Any, score: Any, constant: float, sign: int) -> list[str]:
    """How many draws beat the constant, by ratio; empty where the records do not suffice. `data` returns (X, y)."""
    counts = np.zeros((DRAWS, len(RATIOS)))
    for draw in range(DRAWS):
        model, (X, y), at, needed = make(draw), data(draw), 0, 1.0
        for place, ratio in enumerate(RATIOS):
            while at < min(needed, len(X)):
                end = min(len(X), int(np.ceil(needed)))
                model.learn_encoded(X[at:end], y[at:end])
                asked, at = model.n_asked, end
                needed = asked + ratio * (model.least_records - asked)
            counts[draw, place] = sign * score(model) > sign * constant if at >= needed else np.nan
            needed = at + 1.0
    return ["" if np.isnan(column).any() else f"{column.sum():.0f}" for column in counts.T]


def by_ratio() -> Iterator[list[str]]:
    """Rows of the second table."""
    for loss, d, epsilon, bounds in product(("logistic", "huber"), (5, 20), (1, 4), (None, 3.0)):
        simulation = Simulation(loss, d)

        def data(draw: int, simulation: Simulation = simulation, bounds: float | None = bounds) -> Any:
            X, y = simulation.draw(100_000, 700 + draw)
            return (X if bounds is None else np.clip(X / bounds, -1, 1)), y

        case = (loss, d, f"eps={epsilon}", bounds)
        cells = better(
            data,
            lambda draw, case=case: learner(*case, draw),
            lambda model, simulation=simulation: simulation.excess(model.theta),
            simulation.constant,
            -1,
        )
        yield [f"simulation, {loss}, {'plain' if bounds is None else 'private scaling'}", str(d), case[2], *cells]
    jobs: list[Any] = [(f"flights, {job}", Flights(job)) for job in ("delay", "late")]
    for (name, found), budget in product([*jobs, *((job, RealData(job)) for job in REAL_JOBS)], ("eps=1", "eps=4")):
        sign = -1 if (found.target if isinstance(found, Flights) else found.bounds) else 1
        cells = better(
            lambda _, found=found: (found.X, found.y),
            lambda draw, found=found, budget=budget: found.model(budget).clone({"seed": draw}),
            lambda model, found=found: found.score(model.predict_encoded(found.holdout)),
            found.constant(),
            sign,
        )
        yield [name, str(found.X.shape[1]), budget, *cells]


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
    return table(["data", "columns", "budget", *(f"{ratio} times" for ratio in RATIOS)], by_ratio())


PARTS: dict[str, Callable[[], str]] = {"constant": least_table, "ratio": ratio_table}
PAGES = {"constant": [NOISE], "ratio": [NOISE]}


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure, print, and with --write save."""
    command(__file__, PARTS, arguments, pages=PAGES)


if __name__ == "__main__":
    main()
