"""Uses that no error can stop have one warning, once, where they happen; uses that are right have none."""

from __future__ import annotations

import gc
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pytest
from river.compose import Select
from river.preprocessing import StandardScaler
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer

from streamdp import LDPASGDClassifier, LDPASGDRegressor, PanPrivateRegressor, WindowedRegressor
from streamdp.sklearn import PrivateRegressor

X = np.random.default_rng(7).normal(size=(400, 2))
FRAME = pd.DataFrame(X, columns=["a", "b"])
TARGETS = X.sum(axis=1)
NAMES = ["a", "b"]
AGAIN = "gets rows again that it has learned from: if they are unchanged, each pass spends their budget again"


def said(use: Callable[[], object]) -> list[str]:
    """The warnings of a use, each checked to point at this file or at scikit-learn."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        use()
    assert all(w.filename == __file__ or "sklearn" in w.filename for w in caught), [w.filename for w in caught]
    return [str(warning.message) for warning in caught]


def passes(model: Any, rows: Callable[[], tuple[Any, Any]]) -> Callable[[], None]:
    def use() -> None:
        for _ in range(20):
            model.learn_many(*rows())

    return use


@pytest.mark.parametrize("kind", [LDPASGDRegressor, PanPrivateRegressor, WindowedRegressor])
@pytest.mark.parametrize(
    "rows",
    [
        lambda: (FRAME, TARGETS),
        lambda: (FRAME, TARGETS.tolist()),
        lambda: (FRAME[["b", "a"]], FRAME["b"]),
        lambda: (FRAME.to_numpy(), FRAME["b"].tolist()),
        lambda: (X, TARGETS.copy()),
    ],
    ids=["frame", "lists", "columns", "view", "array"],
)
def test_twenty_passes_over_the_same_rows(kind: Any, rows: Any) -> None:
    (sentence,) = said(passes(kind(features=NAMES), rows))
    assert AGAIN in sentence


def test_a_frame_of_polars() -> None:
    frame = pl.DataFrame(FRAME)
    assert len(said(passes(LDPASGDRegressor(features=NAMES), lambda: (frame, TARGETS.tolist())))) == 1


def blocks() -> Iterator[tuple[Any, Any]]:
    for i in range(0, 400, 100):
        rows = slice(i, i + 100)
        yield FRAME[rows], TARGETS[rows]
        yield X[rows], TARGETS[rows].copy()
        yield pl.DataFrame(X[rows], schema=NAMES), TARGETS[rows].copy()
        yield pd.DataFrame(X[rows].copy(), columns=NAMES), pd.Series(TARGETS[rows].copy())


def test_blocks_of_one_frame_are_no_repetition() -> None:
    model = LDPASGDRegressor(features=NAMES)

    def use() -> None:
        for rows, targets in blocks():
            model.learn_many(rows, targets)
            del rows, targets
            gc.collect()

    assert said(use) == []


def test_a_scaler_in_front() -> None:
    pipeline = StandardScaler() | LDPASGDClassifier(features=NAMES)

    def one() -> None:
        for _ in range(3):
            pipeline.learn_one({"a": 1.0, "b": 2.0}, True)

    (sentence,) = said(one)
    assert "StandardScaler in this pipeline may keep values of records without noise" in sentence
    assert "declare bounds or categories in features={...}" in sentence
    many = StandardScaler() | LDPASGDRegressor(features=NAMES)
    assert len(said(lambda: many.learn_many(FRAME, pd.Series(TARGETS)))) == 1
    harmless = Select("a", "b") | LDPASGDRegressor(features=NAMES)
    assert said(lambda: harmless.learn_one({"a": 1.0, "b": 2.0}, 1.0)) == []


def test_a_feature_that_a_frame_lacks_is_named() -> None:
    for learn in (
        lambda model: model.learn_many(FRAME[["a"]], TARGETS),
        lambda model: model.learn_one({"a": 1.0}, 1.0),
    ):
        model = LDPASGDRegressor(features=NAMES)
        with pytest.warns(UserWarning, match="a record lacks the declared feature 'b'; missing features count"):
            learn(model)


@pytest.mark.parametrize(
    ("budget", "warned"), [("eps=10", 0), ("eps=100", 1), ("eps=11,delta=1e-06", 1), ("mu=3", 0), ("mu=4", 1)]
)
def test_a_budget_that_protects_little(budget: str, warned: int) -> None:
    model = LDPASGDRegressor(features=NAMES, budget=budget)
    found = said(lambda: [model.learn_one({"a": 0.5, "b": 1.0}, 1.0) for _ in range(3)])
    assert [f"a budget of {budget} protects a record very little" in sentence for sentence in found] == [True] * warned


def test_fits_of_a_search_spend_again() -> None:
    def searched() -> None:
        GridSearchCV(PrivateRegressor(), {"fit_intercept": [True, False]}, cv=2).fit(X, TARGETS)

    (sentence,) = said(searched)
    assert "as GridSearchCV and cross_val_score do: each fit spends the budget of its rows again" in sentence
    inside = make_pipeline(FunctionTransformer(), PrivateRegressor())
    assert len(said(lambda: cross_val_score(inside, X, TARGETS, cv=2))) == 1
    model = PrivateRegressor()
    assert said(lambda: model.fit(X, TARGETS)) == []
    assert AGAIN in said(lambda: [model.fit(X, TARGETS) for _ in range(3)])[0]
    assert len(said(lambda: [PrivateRegressor(bounds=(-9, 9)).fit(X, TARGETS) for _ in range(3)])) == 0
