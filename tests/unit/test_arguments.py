"""Arguments of a wrong type or out of range are `ConfigError`s that name them, before anything is done."""

import inspect
import math
import re
from collections.abc import Callable
from typing import Any, get_args

import pytest

import streamdp
from streamdp import ApproxDP, GaussianDP, PureDP, datasets, load_snapshot, stats
from streamdp.client import Client, Device
from streamdp.errors import BudgetError, ConfigError
from streamdp.estimators.estimator import Estimator
from streamdp.optim.losses import LOSSES, Loss, LossName
from streamdp.privacy.mechanisms import MECHANISMS, MechanismName
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


def test_names_of_losses_and_mechanisms_are_literals() -> None:
    """A type checker sees `loss="hubr"`: before, any text was right."""
    assert set(get_args(LossName)) == {*LOSSES}
    assert set(get_args(MechanismName)) == {"auto", *MECHANISMS}
    public = [getattr(streamdp, name) for name in streamdp.__all__ if isinstance(getattr(streamdp, name), type)]
    found = {kind: inspect.signature(kind).parameters for kind in public if issubclass(kind, Estimator)}
    losses = {kind: given["loss"].annotation for kind, given in found.items() if "loss" in given}
    assert len(losses) > 8
    assert all(annotation == LossName | Loss for annotation in losses.values()), losses
    mechanisms = {kind: str(given["mechanism"].annotation) for kind, given in found.items() if "mechanism" in given}
    assert all("Literal" in annotation for annotation in mechanisms.values()), mechanisms


@pytest.mark.parametrize("name", ["WindowedRegressor", "PanPrivateClassifier", "ShuffleRegressor"])
def test_a_budget_as_text_is_the_same_in_python_and_in_jobs(name: str) -> None:
    """Before, `budget="eps=2"` was refused where a job added the delta. An object is taken as it is."""
    kind: Any = getattr(streamdp, name)
    assert kind(budget="eps=2").record_budget == ApproxDP(2.0, 1e-6)
    assert kind(budget="eps=2,delta=1e-9").record_budget == ApproxDP(2.0, 1e-9)
    with pytest.raises(BudgetError):
        kind(budget=PureDP(2.0))


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: stats.Mean(0, 1), "Mean: expected bounds, as Mean(bounds=(0, 100)), and all else by its name"),  # type: ignore[call-arg, arg-type, misc]
        (lambda: stats.Quantile(0.5, 0, 1), "expected q and bounds, as Quantile(q=0.5, bounds=(0, 100))"),  # type: ignore[call-arg, arg-type, misc]
        (lambda: stats.Count("a", "b"), "expected categories, as Count(categories=['a', 'b'])"),  # type: ignore[call-arg, misc]
    ],
)
def test_bounds_that_are_no_pair_are_named(make: Any, said: str) -> None:
    """It was a bare `TypeError` about positional arguments."""
    with pytest.raises(ConfigError, match=re.escape(said)):
        make()


def test_texts_without_delta_stay_pure_where_none_is_needed() -> None:
    assert streamdp.LDPASGDRegressor(budget="eps=2").record_budget == PureDP(2.0)
    assert stats.Mean((0, 1), budget="eps=2").estimator.record_budget == PureDP(2.0)
    assert stats.Mean((0, 1), budget="eps=2", trust="window").estimator.record_budget == PureDP(2.0)
    assert stats.Mean((0, 1), budget="mu=0.5").estimator.record_budget == GaussianDP(0.5)
