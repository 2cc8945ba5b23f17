"""Uses that no error can stop have one warning, once, where they happen; uses that are right have none."""

import gc
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pytest
from river import imblearn
from river.compose import Select
from river.preprocessing import StandardScaler
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer, MinMaxScaler
from sklearn.preprocessing import StandardScaler as Standard

import streamdp
from streamdp import (
    LDPASGDClassifier,
    LDPASGDRegressor,
    LDPSGDRegressor,
    PanPrivateClassifier,
    PanPrivateRegressor,
    WindowedRegressor,
)
from streamdp.config.job import make_config
from streamdp.errors import CostWarning, DoubtWarning
from streamdp.estimators import traps
from streamdp.learners.alike import USUAL, alike
from streamdp.reading.doubts import rounded
from streamdp.sklearn import PrivateClassifier, PrivateRegressor

X = np.random.default_rng(7).normal(size=(400, 2))
FRAME = pd.DataFrame(X, columns=["a", "b"])
POLARS = pl.DataFrame(FRAME)
TARGETS = X.sum(axis=1)
NAMES = ["a", "b"]
AGAIN = "gets rows again that it has learned from: if they are unchanged, each pass spends their budget again"


def said(use: Callable[[], object]) -> list[str]:
    """The warnings of a use, each checked to point at this file or at scikit-learn."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        warnings.simplefilter("ignore", CostWarning)
        warnings.simplefilter("ignore", DoubtWarning)  # the data are few
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
        lambda: (POLARS, TARGETS.tolist()),
    ],
    ids=["frame", "lists", "columns", "view", "array", "polars"],
)
def test_twenty_passes_over_the_same_rows(kind: Any, rows: Any) -> None:
    (sentence,) = said(passes(kind(features=NAMES), rows))
    assert AGAIN in sentence


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
    """It is said when it is set, and not again."""

    def use() -> None:
        model = LDPASGDRegressor(features=NAMES, budget=budget)
        for _ in range(3):
            model.learn_one({"a": 0.5, "b": 1.0}, 1.0)

    found = said(use)
    assert [f"a budget of {budget} protects a record very little" in sentence for sentence in found] == [True] * warned


HALF = "eps=1,delta=0.5"


@pytest.mark.parametrize(
    "use",
    [
        lambda: streamdp.PanPrivateRegressor(budget=HALF),
        lambda: streamdp.ShuffleClassifier(budget=HALF),
        lambda: streamdp.WindowedClassifier(budget=HALF),
        lambda: streamdp.UserLevelLDPRegressor(budget=HALF),
        lambda: streamdp.LDPSGDRegressor(budget=HALF, mechanism="gaussian"),
        lambda: streamdp.stats.Mean((0, 1), budget=HALF),
        lambda: PrivateRegressor(budget=HALF, bounds=(-5, 5)).fit(X, TARGETS),
        lambda: LDPASGDRegressor(features=NAMES).learn_one({"a": 0.5, "b": 1.0}, 1.0, budget=HALF),
    ],
    ids=["pan", "shuffle", "window", "users", "ldp", "statistics", "sklearn", "one record"],
)
def test_a_delta_of_one_half_is_said_where_it_is_set(use: Any) -> None:
    (sentence,) = said(use)
    assert f"a budget of {HALF} protects a record very little: with the probability 0.5" in sentence


def test_a_delta_above_one_over_the_records_is_said_once_they_are_known() -> None:
    """It was never compared with their number: 400 records and delta = 0.001 allow less than 1,000 records do."""
    budget = "eps=1,delta=0.001"
    model = streamdp.PanPrivateRegressor(features=NAMES, budget=budget)
    rows = np.clip(X, -1, 1)
    for factor in (1.0, 0.9):
        assert said(lambda factor=factor: model.learn_arrays(rows * factor, TARGETS + 0)) == []  # type: ignore[misc]
    assert "it is above 1/n" not in model.statement()
    (sentence,) = said(lambda: [model.learn_arrays(rows * factor, TARGETS + 0) for factor in (0.5, 0.4)])
    assert "its delta is above 1 / n for n = 1,200 records" in sentence
    assert "it is above 1/n of these n = 1,600 records" in model.statement()
    many = np.repeat(X, 3, axis=0)
    (sentence,) = said(lambda: PrivateRegressor(budget=budget, bounds=(-5, 5)).fit(many, many[:, 0]))
    assert "its delta is above 1 / n for n = 1,200 records" in sentence
    assert said(lambda: PrivateRegressor(budget=budget, bounds=(-5, 5)).fit(X, TARGETS)) == []


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


CLASSES = (TARGETS > 0).astype(float)
DEAR: dict[str, tuple[Callable[[], object], str]] = {
    "a frame": (lambda: LDPASGDRegressor(features=NAMES).learn_many(FRAME, TARGETS), "huber"),
    "an array": (lambda: LDPSGDRegressor(features=NAMES).learn_encoded(X, TARGETS), "huber"),
    "a schema": (lambda: LDPASGDRegressor(features={"a": (-9, 9), "b": (-9, 9)}).learn_many(FRAME, TARGETS), "huber"),
    "classes": (lambda: LDPASGDClassifier(features=NAMES).learn_encoded(X, CLASSES), "logistic"),
    "scikit-learn": (lambda: PrivateClassifier(classes=[0, 1], trust="nobody").fit(X, CLASSES), "logistic"),
}


@pytest.mark.parametrize("name", DEAR)
def test_ldp_on_raw_records_says_once_what_trust_would_save(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(traps, "_dear", set())
    use, loss = DEAR[name]
    with pytest.warns(CostWarning) as caught:
        _ = [use(), use()]
    (warning,) = (one for one in caught if one.category is CostWarning)
    assert warning.filename == __file__
    found = alike(loss, 2, "eps=1", USUAL)  # what `streamdp plan` prints
    assert f"100,000 records teach a model about as much as {rounded(found.process):,} do" in str(warning.message)


def test_who_has_no_cheaper_way_is_not_told_of_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(traps, "_dear", set())
    schema = {"features": {"a": [-9, 9], "b": [-9, 9]}, "target": {"column": "y", "bounds": [-9, 9]}}
    source = {"type": "csv", "path": "data.csv"}
    job = make_config({"job": "j", "source": source, "schema": schema, "model": {"trust": "nobody"}})
    own = np.full(400, 0.5)
    with warnings.catch_warnings():
        warnings.simplefilter("error", CostWarning)
        PanPrivateRegressor(features=NAMES).learn_many(FRAME, TARGETS)
        job.build_estimator().learn_encoded(X / 9, TARGETS / 9)  # `run` and `serve` say it, and Spark's parts do not
        LDPASGDRegressor(features=NAMES).learn_encoded(X, TARGETS, own)
        LDPASGDRegressor(features=NAMES, seed=1).learn_many(FRAME, TARGETS)
        LDPASGDRegressor(features=NAMES, loss="quantile").learn_many(FRAME, TARGETS)
        LDPASGDRegressor(features=NAMES, budget="eps=9").learn_many(FRAME, TARGETS)
        LDPASGDClassifier(features=NAMES, classes=["a", "b", "c"]).learn_encoded(X, CLASSES)
        device = LDPASGDRegressor(features=NAMES)
        device.absorb(device.randomizer({"a": 0.5, "b": 1.0}, 1.0))


FLAGS = np.random.default_rng(8).integers(0, 2, (400, 2)).astype(float)
WIDE = [(-9, 9), (-9, 9), (0, 1), (0, 1)]
MIXED = np.hstack([X, FLAGS])


@pytest.mark.parametrize("declared", [None, (-9, 9), WIDE])
@pytest.mark.parametrize("rows", [MIXED, np.hstack([MIXED, np.ones((400, 1))])], ids=["", "constant"])
def test_a_standard_scaler_of_scikit_learn(declared: Any, rows: np.ndarray) -> None:
    bounds = [*WIDE, (0, 1)][: rows.shape[1]] if isinstance(declared, list) else declared
    pipeline = make_pipeline(Standard(), PrivateClassifier(bounds=bounds, classes=[0, 1]))
    (sentence,) = said(lambda: pipeline.fit(rows, CLASSES))
    assert "look like the output of StandardScaler, which was fitted to these records without privacy" in sentence
    assert "declare public bounds of the raw columns" in sentence


@pytest.mark.parametrize("trust", ["window", "nobody"])
def test_a_min_max_scaler(trust: Any) -> None:
    for bounds in ((-9, 9), WIDE):
        pipeline = make_pipeline(MinMaxScaler(), PrivateRegressor(bounds=bounds, target=(-9, 9), trust=trust))
        (sentence,) = said(lambda pipeline=pipeline: pipeline.fit(MIXED, TARGETS))
        assert "look like the output of MinMaxScaler" in sentence


@pytest.mark.parametrize(
    ("rows", "bounds"),
    [
        (MIXED, WIDE),
        (MIXED, None),
        (FLAGS, (0, 1)),
        (FLAGS, (0, 9)),
        (FLAGS, None),
        (2 * FLAGS - 1, (-1, 1)),
        (np.ones((400, 2)), (0, 9)),
        (np.clip(X, 0, 1), (0, 1)),  # shares
        (np.hstack([np.clip(X, 0, 1), FLAGS]), (0, 1)),
        (np.hstack([X, FLAGS]), (-9, 9)),
    ],
)
def test_columns_that_no_scaler_made(rows: np.ndarray, bounds: Any) -> None:
    assert said(lambda: PrivateRegressor(bounds=bounds, target=(-9, 9)).fit(rows, TARGETS)) == []


RECORDS: list[tuple[dict[str, float], bool]] = [({"a": a, "b": b}, a > 0) for a, b in X[:50].tolist()]


@pytest.mark.parametrize(
    ("wrap", "several"),
    [
        (lambda m: imblearn.RandomOverSampler(m, {False: 0.5, True: 0.5}, seed=1), True),
        (lambda m: imblearn.RandomSampler(m, {False: 0.5, True: 0.5}, sampling_rate=1.0, seed=1), True),
        (lambda m: imblearn.HardSamplingClassifier(m, size=5, p=0.5, seed=1), True),
        (lambda m: Select("a", "b") | imblearn.RandomOverSampler(m, {False: 0.5, True: 0.5}, seed=1), True),
        (lambda m: imblearn.RandomUnderSampler(m, {False: 0.5, True: 0.5}, seed=1), False),
    ],
    ids=["over", "both", "hard", "pipeline", "under"],
)
@pytest.mark.parametrize("kind", [LDPASGDClassifier, PanPrivateClassifier])
def test_samplers_of_river(kind: Any, wrap: Any, several: bool) -> None:
    """1,359 records were learned of 300, and the statement said epsilon = 1."""
    model = kind(features=NAMES)
    sampler = wrap(model)
    found = said(lambda: [sampler.learn_one(x, y) for x, y in RECORDS])
    assert (
        len([text for text in found if "lets a model learn records several times: each time spends" in text]) == several
    )
    assert (model.n_seen > 50) <= several


def test_a_sampler_of_numbers() -> None:
    model = imblearn.HardSamplingRegressor(LDPASGDRegressor(features=NAMES), size=5, p=0.5, seed=1)
    assert (
        "HardSamplingRegressor lets a model learn records several times"
        in said(lambda: [model.learn_one(x, float(y)) for x, y in RECORDS])[0]
    )


def test_arrays_that_come_again() -> None:
    model = LDPASGDRegressor(features=NAMES)
    (sentence,) = said(lambda: [model.learn_arrays(X, TARGETS) for _ in range(3)])
    assert AGAIN in sentence
