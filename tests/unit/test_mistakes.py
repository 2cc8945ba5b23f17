"""Natural mistakes in programs and calls: each has one sentence that says what to do.

`tests/unit/cli/test_wrong_inputs.py` has those at the command line.
"""

import math
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from river import evaluate, linear_model, metrics, optim
from river.preprocessing import TargetStandardScaler

import streamdp
from streamdp import Ledger, PureDP
from streamdp.client.calls import _dumped
from streamdp.sklearn import PrivateClassifier, PrivateRegressor
from tests.support.service import client, job

FRAME = pd.DataFrame({"a": [0.5, 1.0] * 50, "b": [0.0, 2.0] * 50})
TARGETS = np.tile([1.0, 2.0], 50)
X = FRAME.to_numpy()
NORMAL = np.random.default_rng(5).normal(size=(400, 2))


def model(**given: Any) -> streamdp.LDPASGDRegressor:
    return streamdp.LDPASGDRegressor(**{"features": ["a", "b"]} | given)


def classes(**given: Any) -> streamdp.LDPASGDClassifier:
    return streamdp.LDPASGDClassifier(**{"features": ["a", "b"]} | given)


def twice(learner: Any, *rows: Any) -> None:
    for _ in range(20):
        learner(*rows)


ONE = {"a": 0.5, "b": 1.0}
SCHEMA = {"a": (0, 1), "b": ["x", "y"]}
LIBRARY: dict[str, tuple[Callable[[], object], str]] = {  # what is typed, and a part of the error or warning
    "epsilon=1": (lambda: model(epsilon=1), "no parameter 'epsilon': use budget=\"eps=1\""),
    "delta=1e-6": (lambda: model(delta=1e-6), 'use budget="eps=1,delta=1e-6"'),
    "fit_intercept=False": (lambda: model(fit_intercept=False), "use intercept"),
    "penalty='l2'": (lambda: classes(penalty="l2"), "use domain=L2Ball(radius)"),
    "learning_rate=0.1": (lambda: model(learning_rate=0.1), "use eta"),
    "bounds=(0, 1)": (lambda: model(bounds=(0, 1)), "features={"),
    "random_state=1": (lambda: model(random_state=1), "use seed, in tests"),
    "optimizer=SGD()": (lambda: model(optimizer=optim.SGD()), "use eta"),
    "bugdet='eps=1'": (lambda: model(bugdet="eps=1"), "did you mean 'budget'?"),
    ".fit(X, y)": (lambda: model().fit(FRAME, TARGETS), "use learn_many(X, y), or streamdp.sklearn"),
    ".partial_fit(X, y)": (lambda: model().partial_fit(FRAME, TARGETS), "use learn_many(X, y)"),
    ".predict(X)": (lambda: model().predict(FRAME), "use predict_one(x) and predict_many(X)"),
    ".predict_proba(X)": (lambda: classes().predict_proba(FRAME), "use predict_proba_one(x)"),
    ".coef_": (lambda: model().coef_, "use weights"),
    ".intercept_": (lambda: model().intercept_, "use weights"),
    ".epsilon": (lambda: model().epsilon, "use guarantee and statement()"),
    ".score(X, y)": (lambda: model().score(FRAME, TARGETS), "use streamdp.sklearn, or validation"),
    "learn_one(x, y, w=2)": (lambda: model().learn_one(ONE, 1.0, w=2), "records have no weights"),
    "learn_one(x, y, w=weights)": (lambda: model().learn_one(ONE, 1.0, w=X[0]), "records have no weights"),
    "fit(X, y, sample_weight=w)": (
        lambda: PrivateRegressor().fit(X, TARGETS, sample_weight=TARGETS),
        "records have no weights",
    ),
    "learn_many(X, y, w=w)": (lambda: model().learn_many(FRAME, TARGETS, w=FRAME["a"]), "records have no weights"),
    "epsilon=1 as in diffprivlib": (lambda: PrivateRegressor(epsilon=1), "no parameter 'epsilon': use budget="),
    "partial_fit over epochs": (lambda: twice(PrivateRegressor().partial_fit, X, TARGETS), "gets rows again"),
    "C=1 as in scikit-learn": (lambda: PrivateClassifier(C=1), "PrivateClassifier has no parameter 'C'"),
    "no features": (lambda: streamdp.LDPASGDRegressor().learn_one(ONE, 1.0), "no features were declared"),
    "a label that is not declared": (lambda: classes().learn_one(ONE, "yes"), "classes"),
    "no classes": (lambda: PrivateClassifier().fit(X, TARGETS > 1), "declare classes=[...]"),
    "bounds of one column": (lambda: PrivateRegressor(bounds=[(0, 1)]).fit(X, TARGETS), "a list of 2 such pairs"),
    "max_iter=100": (lambda: PrivateClassifier(max_iter=100), "no parameter 'max_iter': each record is learned once"),
    "class_weight='balanced'": (lambda: PrivateClassifier(class_weight="balanced"), "records have no weights; read"),
    "cap='eps=3'": (lambda: model(cap="eps=3"), "no parameter 'cap': use ledger=Ledger"),
    "LDPClassifier": (lambda: streamdp.LDPClassifier, "did you mean 'LDPSGDClassifier'?"),
    "a large delta": (
        lambda: model(budget="eps=1,delta=0.1").learn_one(ONE, 1.0),
        "with the probability 0.1 nothing is promised; usual is a delta below 1 / records",
    ),
    "a column of text": (
        lambda: model().learn_many(pd.DataFrame({"a": ["x"] * 100, "b": 1.0}), TARGETS),
        "feature 'a': expected numbers; text needs categories: features={'a': [...]}",
    ),
    "a column of NaN": (
        lambda: model().learn_many(pd.DataFrame({"a": [math.nan] * 100, "b": 1.0}), TARGETS),
        "leave such records out, or declare in features={...} what missing values mean",
    ),
    "a frame as targets": (
        lambda: model().learn_many(pd.DataFrame({"a": [0.5] * 100, "b": 1.0}), pd.DataFrame({"y": TARGETS})),
        "y: expected the targets of the rows, a series or an array; got a frame: take its column",
    ),
    "text in scikit-learn": (
        lambda: PrivateRegressor().fit(pd.DataFrame({"a": ["x"] * 100}), TARGETS),
        "a frame with text needs features={...}",
    ),
    "dollars without bounds in scikit-learn": (
        lambda: PrivateRegressor(trust="process", target=(-5, 5)).fit(1e4 * NORMAL, NORMAL[:, 0]),
        "X has values beyond 10, and without declared bounds a scale of about 1 is expected",
    ),
    "ages without bounds": (
        lambda: streamdp.PanPrivateRegressor(budget="eps=1,delta=1e-6").learn_one({"age": 40.0}, 0.5),
        "X has values beyond 10, and without declared bounds a scale of about 1 is expected",
    ),
    "a target in dollars without bounds": (
        lambda: model().learn_many(pd.DataFrame({"a": [0.5] * 100, "b": 1.0}), [*TARGETS[:99], 4e4]),
        "y has values beyond 10, and without declared bounds a scale of about 1 is expected",
    ),
    "a target in dollars without bounds in scikit-learn": (
        lambda: PrivateRegressor(trust="process").fit(NORMAL, 1e4 * NORMAL[:, 0]),
        "may be far worse than a constant. Declare public bounds: target=(low, high)",
    ),
    "a scaler of the target": (
        lambda: TargetStandardScaler(model()).learn_one(ONE, 1.0),
        "TargetStandardScaler, Var in this pipeline may keep values of records",
    ),
    "progressive validation": (
        lambda: evaluate.progressive_val_score([(ONE, 1.0), (ONE, 2.0)], model(), metrics.MAE()),
        "the measure of progressive validation is computed from raw records",
    ),
    "a float as a subject": (
        lambda: model(ledger=Ledger("eps=2")).learn_one(ONE, 1.0, subject=1.5),
        "store the ids as integers or text",
    ),
    "an object in a client's record": (lambda: _dumped([{"x": {"a": linear_model}}]), "values of JSON or numpy"),
}


@pytest.mark.parametrize("name", LIBRARY)
def test_a_mistake_in_a_program(name: str) -> None:
    use, said = LIBRARY[name]
    told = []
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            use()
        except (streamdp.errors.StreamDPError, AttributeError) as error:
            told.append(str(error))
    told += [str(warning.message) for warning in caught]
    assert sum(said in sentence for sentence in told) == 1, told


FLIGHT = {"dep_delay": 1, "origin": "JFK"}
CALLS: dict[str, tuple[str, str, Any, int, str]] = {  # the method, the path, the document, the status and what is said
    "a list": ("POST", "learn", [FLIGHT], 400, 'expected a JSON object {"records": [{"x": {...}'),
    "a record alone": ("POST", "learn", {"x": FLIGHT, "y": "True"}, 400, 'expected a JSON object {"records": ['),
    "features without x": (
        "POST",
        "learn",
        {"records": [FLIGHT | {"late": "True"}]},
        422,
        'expected {"records": [{"x"',
    ),
    "a label that is missing": ("POST", "learn", {"records": [{"x": FLIGHT}]}, 422, "y: Field required"),
    "a person that is missing": (
        "POST",
        "learn",
        {"records": [{"x": FLIGHT, "y": "True"}]},
        200,
        '"reason":"missing","column":"subject"',
    ),
    "GET learn": ("GET", "learn", None, 405, "the path does not have this method: use POST"),
    "x in a prediction": (
        "POST",
        "predict",
        {"records": [{"x": FLIGHT}]},
        422,
        "here the features are the record: leave",
    ),
    "another path": ("GET", "wieghts", None, 404, "there is no such path; /docs lists all"),
    "statistics of a model": ("GET", "statistics", None, 404, "this job has a model: GET /v1/models/late/weights"),
    "a parameter": ("GET", "weights?level=0.9", None, 400, "unknown query parameter: this path takes none"),
}


@pytest.mark.parametrize("name", CALLS)
def test_a_mistake_in_a_call(tmp_path: Path, name: str) -> None:
    method, path, document, status, said = CALLS[name]
    with client(job(tmp_path)) as http:
        answer = http.request(method, f"/v1/models/late/{path}", json=document)
    assert answer.status_code == status
    assert said in answer.text.replace('\\"', '"')


@pytest.mark.parametrize("path", ["learn", "predict"])
def test_a_call_with_nan(tmp_path: Path, path: str) -> None:
    with client(job(tmp_path)) as http:
        headers = {"Content-Type": "application/json"}
        answer = http.post(f"/v1/models/late/{path}", content='{"records": [{"dep_delay": NaN}]}', headers=headers)
    assert answer.status_code == 400
    assert "has no NaN and no Infinity: a missing value is null" in answer.text


def test_what_is_right_says_nothing() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warnings.simplefilter("ignore", streamdp.errors.CostWarning)
        warnings.simplefilter("ignore", streamdp.errors.DoubtWarning)  # the data are few
        one = model(budget=PureDP(1))
        one.learn_many(FRAME, TARGETS)
        one.learn_one(ONE, 1.0)
        assert (
            _dumped({"x": np.float64(0.5), "y": np.bool_(True), "z": np.arange(2)}) == b'{"x":0.5,"y":true,"z":[0,1]}'
        )
        found = PrivateRegressor(bounds=[(0, 1), (0, 2)], target=(0, 2), fit_intercept=False, trust="process").fit(
            X, TARGETS
        )
        assert (found.coef_.shape, found.intercept_) == ((2,), 0.0)
