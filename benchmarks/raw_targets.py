"""Real data as they come: what bounds of the target are worth. Run with `python -m benchmarks.raw_targets [--write]`.

`--only PanPrivateRegressor ShuffleRegressor` measures these learners and keeps the rows of the others.

Columns and targets are in their own units: dollars, minutes, shares. One record a user, delta = 1e-6, all other options
are the defaults. "Wide" bounds are a hundred times as wide as those of the meaning of the target. Noise comes from
seeded generators, which are for measuring only. Ten minutes on one core.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import product
from typing import Any

import numpy as np

from benchmarks.shared.flights import Flights
from benchmarks.shared.pages import command, mean_and_error, table
from benchmarks.shared.real_data import RealData
from streamdp import PanPrivateRegressor, ShuffleRegressor, UserLevelLDPRegressor, WindowedRegressor

DRAWS, WIDE = 12, 100
DATA = ("delay", "delay, raw bounds", "price of a diamond, dollars", "share of food in a household's spending")
CASES: list[tuple[Any, int, dict[str, Any]]] = [
    (WindowedRegressor, 10_000, {"items_per_user": 1}),
    (UserLevelLDPRegressor, 100_000, {"items_per_user": 1}),
    (PanPrivateRegressor, 30_000, {}),
    (ShuffleRegressor, 30_000, {}),
]
"""Learner, the most records, and options."""
FEW = (1_000, 3_000, 10_000)
FEW_DATA = (*DATA, "visits to a doctor in a year")

HEAD = [
    "target",
    "learner",
    "eps",
    "records",
    "bounds of the target",
    "wide bounds",
    "without privacy",
    "constant",
]


def error(data: Any, kind: Any, records: int, **options: Any) -> tuple[str, float]:
    """The mean absolute error on the holdout, its standard error, and that of the worst draw in words; and the last."""
    found = []
    for seed in range(DRAWS):
        model = kind(features=data.features, seed=seed, **options)
        model.learn_encoded(data.X[:records], data.y[:records])
        model.close_batch()
        found.append(data.score(model.predict_encoded(data.holdout)))
    mean, off = mean_and_error(np.array(found))
    return f"{mean:.4g} ± {float(f'{off:.1g}'):g} ({max(found):.4g})", max(found)


def rows(names: Sequence[str], records: Sequence[int], learners: Sequence[Any]) -> Iterator[list[str]]:
    """One row for each data set, learner, budget and number of records."""
    for name in names:
        data: Any = Flights(name) if name.startswith("delay") else RealData(name)
        low, high = data.target if name.startswith("delay") else data.bounds
        more = (WIDE - 1) * (high - low) / 2
        plain, constant = f"{data.without_privacy():.4g}", f"{data.constant():.4g}"
        for (kind, most, options), epsilon, count in product(learners, (1, 4), records):
            size = min(most, count, len(data.X))
            given = options | {"budget": f"eps={epsilon},delta=1e-6"}
            bounds = ((low, high), (low - more, high + more))
            cells = [error(data, kind, size, target=target, **given)[0] for target in bounds]
            yield [name, kind.__name__, f"{epsilon}", f"{size:,}", *cells, plain, constant]


PARTS: dict[str, Callable[[], str]] = {
    "every": lambda: table(HEAD, rows(DATA, [10**9], CASES)),
    "few": lambda: table(HEAD, rows(FEW_DATA, FEW, CASES[2:])),
}


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure, print, and with --write save."""
    command(__file__, PARTS, arguments)


if __name__ == "__main__":
    main()
