"""Arguments of a wrong type or out of range are `ConfigError`s that name them, before anything is done."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest

from streamdp import ApproxDP, datasets, load_snapshot
from streamdp.client import Client, Device
from streamdp.errors import ConfigError
from streamdp.shuffling import VectorSum
from streamdp.windows.outliers import OutlierRemoval

WRONG = (None, "x", [], {"a": "b"}, b"x", 2j, object(), math.nan, -1, 10**400)


SUM = {"budget": ApproxDP(1.0, 1e-6), "bound": 1.0, "users": 1000, "d": 3}
SUMS: list[tuple[Callable[..., Any], dict[str, int]]] = [(VectorSum, {"g": 24, "b": 42}), (VectorSum.calibrated, {})]
URL = {"url": "http://127.0.0.1:1"}
CASES: list[tuple[Callable[..., Any], dict[str, Any], str]] = [
    (Client, URL, "timeout_s"),
    (Client, URL, "retry_s"),
    (Device, {**URL, "job": "j"}, "timeout_s"),
    (OutlierRemoval, {}, "outliers"),
    (OutlierRemoval, {}, "failure"),
    *((make, SUM | more, name) for make, more in SUMS for name in ("bound", "rounds", "sensitivity")),
    (load_snapshot, {"topic": "t", "job": "j"}, "bootstrap_servers"),
    (datasets.linear_theta, {}, "d"),
    (datasets.linear, {"d": 2, "seed": 1}, "n"),
    (datasets.linear, {"n": 2, "d": 2, "seed": 1}, "sigma"),
    (datasets.logistic, {"n": 2, "seed": 1}, "d"),
    (datasets.insurance, {}, "seed"),
    (datasets.write_flights_csv, {"path": "never_written.csv"}, "months"),
]


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case[0].__name__}-{case[2]}")
def test_a_wrong_argument_is_named(case: tuple[Callable[..., Any], dict[str, Any], str]) -> None:
    make, given, name = case
    allowed = {"months": None, "sensitivity": None, "bootstrap_servers": "x"}
    for value in WRONG:
        if name in allowed and value == allowed[name]:
            continue
        with pytest.raises(ConfigError, match=name):
            make(**given | {name: value})
