"""Models to export, and records at the edges of their schemas."""

from datetime import datetime, timedelta
from typing import Any

import numpy as np
import polars as pl

from streamdp.config.job import JobConfig, make_config
from streamdp.serving.exported import MONTHS

COMMON: dict[str, Any] = {
    "income": {"bounds": [1, 1e6], "transform": "log", "missing": "zero"},
    "debt": {"bounds": [-1e5, 1e6], "transform": {"asinh": 1000}},
    "area": {"bounds": [0, 500], "transform": {"power": 0.5}},
    "age": {"bounds": [18, 100], "knots": [30, 50, 65], "typical": [40, 15], "missing": "typical"},
    "children": {"bins": [1, 3]},
    "month": {"cyclic": 12},
    "plain": [-1, 1],
    "city": {"categories": ["Paris", "O'Lyon", 'A "b"'], "other": True, "missing": "category", "per": ["plain"]},
    "member": ["false", "true"],
    "age x city": {"product": ["age", "city"]},
    "income x debt": {"product": ["income", "debt"]},
}
"""What every language reads."""
DATES: dict[str, Any] = {
    "weekday": {"column": "when", "part": "weekday", "categories": ["Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun"]},
    "hour": {"column": "when", "cyclic": "hour"},
    "year": {"column": "when", "part": "year", "bounds": [2000, 2030]},
    "day": {"column": "german", "format": "%d.%m.%Y", "part": "day", "bounds": [1, 31], "missing": "zero"},
    "time": {"column": "american", "format": "%m/%d/%Y %H:%M", "part": "hour", "bounds": [0, 23]},
    "short": {"column": "short", "format": "%d-%m-%y", "part": "year", "bounds": [1970, 2069]},
    "since": {"column": "since", "format": "seconds", "part": "weekday", "bounds": [1, 7]},
    "since hour": {"column": "since", "format": "seconds", "part": "hour", "bounds": [0, 23]},
    "since day": {"column": "since", "format": "seconds", "part": "day", "bounds": [1, 31]},
    "since month": {"column": "since", "format": "seconds", "part": "month", "bounds": [1, 12]},
    "since year": {"column": "since", "format": "seconds", "part": "year", "bounds": [1900, 2100]},
    "noon": {"column": "noon", "format": "%m/%d/%Y %I:%M %p", "cyclic": "hour"},
    "close": {"column": "close", "format": "%Y%m%d", "part": "weekday", "bounds": [1, 7], "missing": "zero"},
    "oracle": {"column": "oracle", "format": "%d-%b-%y", "part": "month", "bounds": [1, 12]},
    "oracle day": {"column": "oracle", "format": "%d-%b-%y", "part": "day", "cyclic": 31},
    "letter": {"column": "letter", "format": "%B %d, %Y", "part": "weekday", "bounds": [1, 7], "missing": "zero"},
    "letter year": {"column": "letter", "format": "%B %d, %Y", "part": "year", "bounds": [1900, 2100]},
    "log": {"column": "log", "format": "%F %T", "cyclic": "hour"},
    "mail": {"column": "mail", "format": "%a, %d %b %Y %H:%M:%S%.f %z", "part": "day", "bounds": [1, 31]},
    "mail hour": {"column": "mail", "format": "%a, %d %b %Y %H:%M:%S%.f %z", "cyclic": "hour"},
}
HASHED: dict[str, Any] = {"street": {"hash": 5}}
TARGETS: dict[str, Any] = {
    "log": {"column": "y", "bounds": [1, 40], "scale": 2.0, "transform": "log"},
    "number": {"column": "y", "bounds": [-10, 40], "scale": 2.0},
    "count": {"column": "y", "bounds": [0, 40], "scale": 2.0},
    "two": {"column": "y", "classes": ["no", "yes"]},
    "three": {"column": "y", "classes": ["a", "it's", "c"]},
}


def job(features: dict[str, Any], target: str, **model: Any) -> JobConfig:
    """A job with these features and one of the targets."""
    return make_config(
        {
            "job": "j",
            "source": {"type": "csv", "path": "-"},
            "schema": {"features": features, "target": TARGETS[target], "missing_values": ["NA"]},
            "model": {"trust": "nobody", "budget": "eps=8", "seed": 1} | model,
        }
    )


def records(n: int) -> pl.DataFrame:
    """Rows as a database has them; about a tenth of the values of each column is at an edge, missing or foreign."""
    rng = np.random.default_rng(0)
    edges: dict[str, list[Any]] = {
        "income": [None, 0.0, 1.0, 1e6, 1e9, -3.0],
        "debt": [0.0, -1e5, -1e7, 1e6, 5.0],
        "area": [0.0, 500.0, -2.0, 501.0],
        "age": [None, 18.0, 30.0, 50.0, 65.0, 100.0, 17.0, 101.0],
        "children": [0.0, 1.0, 3.0, -1.0, 2.999],
        "month": [0.0, 12.0, -1.0, 13.0, 6.0],
        "plain": [-1.0, 1.0, 2.0, None],
        "city": [None, "", "NA", "Rome", " Paris", "O'Lyon"],
        "member": ["True", "0", "FALSE", "maybe", None],
        "when": ["2013-01-06 00:00:00", "2013-12-31T23:59:59Z", "1999-02-28 12:30", None],
        "german": ["1.2.2024", "01.02.2024 ", "2024-02-01", "k.A.", "NA", "31.02.2024", None],
        "noon": ["2/29/2023 1:00 PM", "2/28/2023 13:00 PM", "02/28/2023 12:59 am", "12/31/1999 12:00 PM", None],
        "close": ["2024-02-29", "20230229", "20000229", "", "NA", None],
        "oracle": ["1-JAN-70", "01-february-69", "31-Jun-01", "1-Mai-01", "9-sept-01", "29-feb-00", "NA", None],
        "letter": ["february 29, 2024", "Sep 1, 1999", "Sept 1, 1999", "May 3, 2001 ", "MAI 3, 2001", "May 3, 0000", "",
            None],
        "log": ["2024-01-01 24:00:00", "2024-01-01T01:00:00", "2024-1-1 1:2:3", "2023-02-29 01:02:03", None],
        "american": ["2/1/2024 9:05", "02/01/2024", None],
        "short": ["01-02-70", "01-02-69", "1-2-00", "01-02-2000"],
        "since": [0.0, -1.0, 1e9 + 0.5, -62135596800.0, -62135596801.0, 253402300799.5, 253402300800.0],
        "mail": ["Mon, 01 Jan 2024 10:00:00 +0000", "Tue, 01 Jan 2024 10:00:00 +0000", "Mon, 01 Jan 2024 10:00:00",
            None],
        "street": ["", None, "Z\u00fcrich", "\U0001f600", "a"],
    }  # fmt: skip
    start = datetime(2015, 3, 1, 0, 0, 0, 250_000)
    usual: dict[str, Any] = {
        "income": rng.lognormal(10, 1, n),
        "debt": rng.normal(0, 3e4, n),
        "area": rng.uniform(10, 300, n),
        "age": rng.uniform(18, 100, n),
        "children": rng.integers(0, 5, n).astype(float),
        "month": rng.integers(1, 13, n).astype(float),
        "plain": rng.normal(0, 0.5, n),
        "city": rng.choice(["Paris", "O'Lyon", 'A "b"'], n).astype(object),
        "member": rng.choice(["false", "true"], n).astype(object),
        "when": np.array([f"2013-{m:02}-{d:02} {h:02}:30:00" for m, d, h in rng.integers(1, 13, (n, 3))], dtype=object),
        "german": np.array([f"{1 + k % 28:02}.{1 + k % 12:02}.{2000 + k % 30}" for k in range(n)], dtype=object),
        "oracle": np.array([f"{1 + k % 28}-{MONTHS[k % 12][:3].upper()}-{k % 100:02}" for k in range(n)], dtype=object),
        "letter": np.array([f"{MONTHS[k % 12]} {1 + k % 28:02}, {1950 + k % 99}" for k in range(n)], dtype=object),
        "log": np.array([f"2024-{1 + k % 12:02}-{1 + k % 28:02} {k % 24:02}:30:00" for k in range(n)], dtype=object),
        "american": np.array([f"{1 + k % 12:02}/{1 + k % 28:02}/2024 {k % 24:02}:30" for k in range(n)], dtype=object),
        "short": np.array([f"{1 + k % 28:02}-{1 + k % 12:02}-{k % 100:02}" for k in range(n)], dtype=object),
        "noon": np.array(
            [f"{1 + k % 12}/{1 + k % 28}/{1950 + k % 99} {1 + k % 12}:{k % 60:02} {'AP'[k % 2]}M" for k in range(n)],
            dtype=object,
        ),
        "close": np.array([f"{1900 + k % 300}{1 + k % 12:02}{1 + k % 28:02}" for k in range(n)], dtype=object),
        "since": (np.arange(n) - n // 2) * min(12_345_678.0, 1e11 / n),  # within the years 1 to 9999
        "mail": np.array(
            [f"{start + timedelta(hours=31.4 * k):%a, %d %b %Y %H:%M:%S.%f} -0730" for k in range(n)], object
        ),
        "street": np.array([f"street {k}" for k in rng.integers(0, 99, n)], dtype=object),
    }
    out = {}
    for name, values in usual.items():
        column = values.tolist()
        for i in np.flatnonzero(rng.random(n) < 0.1):
            column[i] = edges[name][rng.integers(len(edges[name]))]
        out[name] = column
    return pl.DataFrame({"id": np.arange(n), **out})


def targets(target: str, rows: pl.DataFrame) -> pl.Series:
    """Targets of rows, which depend on a column."""
    x = np.nan_to_num(rows["plain"].fill_null(0.0).to_numpy())
    if target in ("number", "log", "count"):
        return pl.Series("y", 10 + 10 * x)
    labels = TARGETS[target]["classes"]
    return pl.Series("y", [labels[int(k)] for k in np.clip((x + 1) * len(labels) / 2, 0, len(labels) - 1)])
