"""The error of statistics, beside one release of the same numbers, and how often limits cover.

Run with `python -m benchmarks.statistics [--write]`. Charges of the simulated insurance data (`streamdp.datasets`) by
region. Noise comes from seeded generators, which are for measuring only. Three minutes on one core.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from functools import cache
from typing import Any

import numpy as np
import polars as pl

from benchmarks.shared.pages import command, table
from streamdp import stats
from streamdp.datasets import insurance

HIGH = 60_000
REGIONS = ["northeast", "northwest", "southeast", "southwest"]
FEATURES = {"charges": (0, HIGH), "region": REGIONS}
DECLARED: dict[str, dict[str, Any]] = {
    "mean": {"mean": "charges"},
    "median": {"quantile": 0.5, "of": "charges"},
    "9th decile": {"quantile": 0.9, "of": "charges"},
    "mean by region": {"mean": "charges", "by": "region"},
    "people by region": {"count": "region"},
}
TRUST = ("process", "shuffler", "nobody")
SIZES, DRAWS, COVERED = (10_000, 100_000), 20, 200


@cache
def people(n: int, seed: int = 1) -> pl.DataFrame:
    """Records to learn."""
    return insurance(n, seed=seed).select("charges", "region")


def truth(name: str, frame: pl.DataFrame) -> np.ndarray:
    """What a statistic of records is, without noise."""
    charges, given = frame["charges"].clip(0, HIGH), DECLARED[name]
    groups = [charges.filter(frame["region"] == region) for region in REGIONS]
    if "count" in given:
        return np.array([len(group) for group in groups], dtype=float)
    if "mean" in given:
        return np.array([group.mean() for group in (groups if "by" in given else [charges])])
    return np.array([charges.quantile(given["quantile"])])


def estimated(name: str, frame: pl.DataFrame, trust: str, epsilon: int, seed: int) -> stats.Statistics:
    """One statistic alone, with the whole budget."""
    budget = f"eps={epsilon}" if trust == "nobody" else f"eps={epsilon},delta=1e-6"
    found = stats.Statistics({name: DECLARED[name]}, FEATURES, budget, trust, seed=seed)  # type: ignore[arg-type]
    found.learn_many(frame)
    found.close_batch()
    return found


def once(name: str, n: int, epsilon: int) -> str:
    """The error of Laplace noise on the same numbers of n records, in one release with pure epsilon."""
    if name == "mean":
        return f"{np.sqrt(2) * HIGH / (n * epsilon):.3g}"
    return f"{np.sqrt(2) * 2 / epsilon:.3g}" if name == "people by region" else "-"


def values(found: Any) -> np.ndarray:
    """The numbers of one statistic."""
    return np.array(list(found.values()) if isinstance(found, dict) else [found], dtype=float)


def spread(errors: list[np.ndarray]) -> str:
    """The root of the mean square of errors; how many of them are not known."""
    flat = np.concatenate(errors)
    known = flat[~np.isnan(flat)]
    text = f"{np.sqrt(np.mean(known**2)):.3g}" if len(known) else "not known"
    return text if len(known) in (0, len(flat)) else f"{text} ({len(flat) - len(known)} of {len(flat)} not known)"


def error_rows() -> Iterator[Sequence[str]]:
    """One row for each statistic, number of records and epsilon."""
    for name in DECLARED:
        for n in SIZES:
            frame = people(n)
            true = truth(name, frame)
            for epsilon in (1, 4):
                cells = []
                for trust in TRUST:
                    if trust == "shuffler" and "quantile" in DECLARED[name]:
                        cells.append("-")
                        continue
                    runs = [estimated(name, frame, trust, epsilon, seed) for seed in range(DRAWS)]
                    cells.append(spread([values(run.get()[name]) - true for run in runs]))
                yield [name, f"{n:,}", str(epsilon), *cells, once(name, n, epsilon)]


def coverage_rows() -> Iterator[Sequence[str]]:
    """One row for each statistic and trust: the share of 95 % intervals that hold what they describe."""
    n, whole = 10_000, people(1_000_000, 9)
    for name, given in DECLARED.items():
        for trust in TRUST:
            if trust == "shuffler" and "quantile" in given:
                continue
            inside, given_at_all = [], []
            for seed in range(COVERED):
                frame = whole.sample(n, seed=seed)
                true = truth(name, frame if "count" in given else whole)
                found = estimated(name, frame, trust, 4, seed).interval()[name]
                limits = np.array(list(found.values()) if isinstance(found, dict) else [found])
                known = ~np.isnan(limits[:, 0])
                given_at_all += known.tolist()
                inside += ((limits[:, 0] <= true) & (true <= limits[:, 1]))[known].tolist()
            yield [name, trust, f"{100 * np.mean(inside):.1f} %", f"{100 * np.mean(given_at_all):.0f} %"]


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure, print, and with --write save."""
    warnings.simplefilter("ignore")
    parts = {
        "errors": lambda: table(["statistic", "records", "eps", *TRUST, "Laplace, once"], error_rows()),
        "coverage": lambda: table(["statistic", "trust", "covered", "given"], coverage_rows()),
    }
    command(__file__, parts, arguments)


if __name__ == "__main__":
    main()
