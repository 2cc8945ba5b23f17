"""Real data as they come: what bounds of the target are worth. Run with `python -m benchmarks.raw_targets [--write]`.

`--only PanPrivateRegressor ShuffleRegressor` measures these learners and keeps the rows of the others.

Columns and targets are in their own units: dollars, minutes, shares. One record a user, delta = 1e-6, all other options
are the defaults. "Wide" bounds are a hundred times as wide as those of the meaning of the target. Noise comes from
seeded generators, which are for measuring only. Ten minutes on one core.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping, Sequence
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.shared.flights import Flights
from benchmarks.shared.pages import mean_and_error, table
from benchmarks.shared.real_data import RealData
from streamdp import PanPrivateRegressor, ShuffleRegressor, UserLevelLDPRegressor, WindowedRegressor

Rows = Mapping[tuple[str, ...], list[str]]
DRAWS, WIDE = 12, 100
FILE = Path(__file__).with_suffix(".md")
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

TEXT = """# Targets in their own units

`python -m benchmarks.raw_targets --write` writes this page. Mean absolute error in the unit of the target, mean of
{draws} draws of noise with one Monte Carlo standard error, and in parentheses the worst draw. One record a user,
delta = 1e-6. "Wide" bounds of the target are {wide} times as wide as those of its meaning. Raw bounds of the delay are
[-600, 1800] minutes, those of the other job of the delay [-60, 180].

{table}

## Few records

From how many records on are the learners with batches better than a constant? The constant is the median of the whole
stream, which no learner knows. A model that has learned nothing from its columns yet is at the centre of Huber's loss,
which for a skewed target is not the median: so with 1,000 diamonds at eps = 1 it is a little worse than the constant.

{few}
"""
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
        model.learn_arrays(data.X[:records], data.y[:records])
        model.close_batch()
        found.append(data.score(model.predict_arrays(data.holdout)))
    mean, off = mean_and_error(np.array(found))
    return f"{mean:.4g} ± {float(f'{off:.1g}'):g} ({max(found):.4g})", max(found)


def rows(names: Sequence[str], records: Sequence[int], learners: Sequence[Any], kept: Rows) -> Iterator[list[str]]:
    """One row for each data set, learner, budget and number of records; rows in `kept` are not measured."""
    for name in names:
        data: Any = Flights(name) if name.startswith("delay") else RealData(name)
        low, high = data.target if name.startswith("delay") else data.bounds
        more = (WIDE - 1) * (high - low) / 2
        plain, constant = f"{data.without_privacy():.4g}", f"{data.constant():.4g}"
        for (kind, most, options), epsilon, count in product(learners, (1, 4), records):
            size = min(most, count, len(data.X))
            head = [name, kind.__name__, f"{epsilon}", f"{size:,}"]
            if (row := kept.get(tuple(head))) is None:
                given = options | {"budget": f"eps={epsilon},delta=1e-6"}
                bounds = ((low, high), (low - more, high + more))
                cells = [error(data, kind, size, target=target, **given)[0] for target in bounds]
                row = [*head, *cells, plain, constant]
                print(" | ".join(row), flush=True)
            yield row


def main() -> None:
    """Measure, print, and with --write save."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.raw_targets", description="Measure raw targets.")
    parser.add_argument("--write", action="store_true", help="write raw_targets.md")
    parser.add_argument("--only", nargs="+", metavar="LEARNER", help="measure these, and keep the rows of the others")
    given = parser.parse_args()
    lines = FILE.read_text(encoding="utf-8").splitlines() if given.only else []
    cells = [line.strip("| ").split(" | ") for line in lines if line.startswith("|")]
    kept = {tuple(row[:4]): row for row in cells if row[1] not in given.only} if given.only else {}
    every = table(HEAD, rows(DATA, [10**9], CASES, kept))
    few = table(HEAD, rows(FEW_DATA, FEW, CASES[2:], kept))
    if given.write:
        FILE.write_text(TEXT.format(draws=DRAWS, wide=WIDE, table=every, few=few), encoding="utf-8")


if __name__ == "__main__":
    main()
