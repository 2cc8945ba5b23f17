"""One act has one coding: what learns, predicts or makes reports takes and gives raw numbers and declared labels."""

import json
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pytest

import streamdp
from streamdp.client import Device
from streamdp.config.definition import Definition
from streamdp.errors import SchemaError
from streamdp.estimators.features import SchemaWarning
from streamdp.protocol import local_half
from streamdp.protocol.report_desk import ReportDesk
from tests.support.serving import Answering, serving
from tests.support.sizes import some
from tests.support.states import words_of

FEATURES: dict[str, Any] = {"a": (0, 10), "b": (-5, 5)}
SETS: list[list[Any]] = [
    [1, 2], [True, False], [1, 0], [0, 1], [1, 2, 3], [3, 1, 2], ["yes", "no"], ["b", "a", "c"],
]  # fmt: skip
KINDS = (streamdp.LDPSGDClassifier, streamdp.LDPASGDClassifier)


def rows(n: int) -> np.ndarray:
    return np.random.default_rng(3).uniform((0, -5), (10, 5), (n, 2))


def labelled(X: np.ndarray, labels: list[Any]) -> list[Any]:
    return [labels[int(a * len(labels) / 10.001)] for a in X[:, 0]]


def pairs(X: np.ndarray, y: Any) -> list[tuple[dict[str, float], Any]]:
    return [(dict(zip(FEATURES, row, strict=True)), label) for row, label in zip(X.tolist(), y, strict=True)]


@contextmanager
def served(labels: list[Any], kind: type[Any], model: Any) -> Iterator[str]:
    """A service that lets a model learn the reports that come."""
    schema = {"features": {name: list(bounds) for name, bounds in FEATURES.items()}}
    schema["target"] = {"column": "y", "classes": labels}  # type: ignore[assignment]
    definition = Definition.model_validate(
        {"schema": schema, "model": {"estimator": kind.__name__, "budget": "eps=4", "scaling": "none"}}
    )
    desk = ReportDesk("job", definition)
    desk.show(0, model)

    class Handler(Answering):
        def do_GET(self) -> None:
            self.answer(200, desk.document().text)

        def do_POST(self) -> None:
            sent = json.loads(self.body())
            model.absorb(desk.receive(sent["reports"][0]).report)
            desk.show((desk.version or 0) + 1, model)
            self.answer(200, b'{"version": 1, "learned": 1, "refused": 0, "dead": []}')

    with serving(Handler) as url:
        yield url


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("labels", some(SETS, 1, 5, 6), ids=str)
def test_labels_are_one_model_by_device_randomizer_and_learn_one(
    labels: list[Any], kind: type[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Under one seed, bit for bit. A randomizer took the index of a class, so [1, 0] was learned inverted."""

    def make() -> Any:
        return kind(features=FEATURES, classes=labels, budget="eps=4", seed=7, scaling="none")

    X = rows(12)
    y = labelled(X, labels)
    single, halves, arrays, frames, device, encoded = (make() for _ in range(6))
    for x, label in pairs(X, y):
        single.learn_one(x, label)
        halves.absorb(halves.randomizer(x, label))
    arrays.learn_arrays(X, np.array(y))
    frames.learn_many(pd.DataFrame(X, columns=list(FEATURES)), y)
    scaled = (X - [0, -5]) / 10 * 2 - 1
    encoded.learn_encoded(scaled, np.array([float(labels.index(label)) for label in y]))
    words = words_of(make())
    monkeypatch.setattr(local_half, "Entropy", lambda: words)
    with served(labels, kind, device) as url, Device(url, "job") as phone:
        for x, label in pairs(X, y):
            assert phone.report(x, label).outcome == "learned"
    for other in (halves, arrays, frames, device):
        assert np.array_equal(single.theta, other.theta)
    assert encoded.theta == pytest.approx(single.theta, rel=1e-9)
    assert single.n_seen == device.n_seen == 12
    shown = single.predict_arrays(X).tolist()
    assert shown == [single.predict_one(x) for x, _ in pairs(X, y)]
    assert set(shown) <= set(labels)
    assert list(single.predict_proba_one(pairs(X, y)[0][0])) == labels
    with pytest.raises(SchemaError, match=r"declared classes|False or True"):
        single.randomizer(pairs(X, y)[0][0], "none of them")


@pytest.mark.parametrize("labels", SETS, ids=str)
@pytest.mark.parametrize("name", ["UserLevelLDP", "Shuffle"])
def test_other_devices_take_raw_records_and_labels(name: str, labels: list[Any]) -> None:
    """They took encoded columns and indices: a raw 7 of (0, 10) was read as 7 half widths above the middle."""
    kind = getattr(streamdp, f"{name}Classifier")
    X = rows(3)
    (x, label), *_ = pairs(X, labelled(X, labels))
    place, scaled = labels.index(label), {"a": x["a"] / 10 * 2 - 1, "b": (x["b"] + 5) / 10 * 2 - 1}
    of_labels, of_places = (
        kind(classes=classes, features=FEATURES, seed=3) for classes in (labels, [*range(len(labels))])
    )
    raw, encoded = of_labels.randomizer, replace(of_places.randomizer, features=tuple(FEATURES))
    answers = [
        one.messages(*record) if name == "Shuffle" else one([record]).answer
        for one, record in ((raw, (x, label)), (encoded, (scaled, place)))
    ]
    assert np.array_equal(*answers)
    with pytest.raises(SchemaError, match=r"declared classes|False or True"):
        raw.messages(x, "x") if name == "Shuffle" else raw([(x, "x")])


ALL = [
    (kind, {} if "Window" not in kind else {"window": 40, "method": "private-range"})
    for kind in ("LDPSGD", "LDPASGD", "PanPrivate", "Shuffle", "UserLevelLDP", "Windowed")
]


@pytest.mark.parametrize(("kind", "more"), ALL)
@pytest.mark.parametrize("what", ["Regressor", "Classifier"])
def test_arrays_are_what_records_are(kind: str, more: dict[str, Any], what: str) -> None:
    """`learn_arrays` wanted columns in [-1, 1] beside raw targets, and predicted -10 for 10,000."""
    own = {"target": (0, 100)} if what == "Regressor" else {"classes": ["low", "high"]}
    one, many = (
        getattr(streamdp, kind + what)(features=FEATURES, seed=5, budget=None, **own, **more) for _ in range(2)
    )
    X = rows(60)
    y = X[:, 0] * 10 if what == "Regressor" else np.array(["low", "high"])[(X[:, 0] > 5).astype(int)]
    people = [f"p{i}" for i in range(60)]
    for (x, target), person in zip(pairs(X, y.tolist()), people, strict=True):
        one.learn_one(x, target, subject=person)
    many.learn_arrays(X, y, subjects=people)
    assert (one.n_seen, many.n_seen) == (60, 60)
    for model in (one, many):
        model.close_batch()
    assert np.array_equal(one.theta, many.theta)
    shown = [many.predict_one(x) for x, _ in pairs(X, y)]
    assert many.predict_arrays(X).tolist() == (shown if what == "Classifier" else pytest.approx(shown))
    if what == "Classifier":
        each = [[*many.predict_proba_one(x).values()] for x, _ in pairs(X, y)]
        assert many.predict_proba_arrays(X) == pytest.approx(np.array(each))


def test_gaps_and_transforms_are_read_in_arrays_as_in_records() -> None:
    features = {
        "a": {"bounds": (1, 10), "transform": "log", "missing": "zero"},
        "b": (-5, 5),
        "c": {"column": "b", "bins": [0, 2]},
        "both": {"product": ["a", "b"]},
    }
    one, many = (streamdp.LDPASGDRegressor(features=features, target=(0, 9), seed=2) for _ in range(2))
    X = rows(20)
    X[3, 0] = np.nan
    for a, b in X.tolist():
        one.learn_one({"a": a, "b": b}, 3.0)
    many.learn_arrays(X, np.full(20, 3.0))
    assert np.array_equal(one.theta, many.theta)
    with pytest.raises(SchemaError, match="'b'"):
        many.learn_arrays(np.array([[1.0, np.nan]]), np.array([3.0]))
    with pytest.raises(SchemaError, match="expected 2 columns, got 3"):
        many.predict_arrays(np.zeros((1, 3)))


@pytest.mark.parametrize("declared", [["x", "y"], {"cyclic": "month"}, {"hash": 4}], ids=["categories", "date", "hash"])
def test_arrays_of_a_schema_with_texts_are_refused(declared: Any) -> None:
    model = streamdp.PanPrivateRegressor(features={"a": (0, 10), "t": declared}, target=(0, 1))
    for act in (
        lambda: model.learn_arrays(np.zeros((2, 2)), np.zeros(2)),
        lambda: model.predict_arrays(np.zeros((2, 2))),
    ):
        with pytest.raises(SchemaError, match=r"'t'.* learn_many and predict_many take a table; learn_encoded"):
            act()
    assert model.n_seen == 0


def test_encoded_columns_that_look_raw_are_told() -> None:
    model = streamdp.PanPrivateRegressor(features=FEATURES, target=(0, 1))
    with pytest.warns(SchemaWarning, match=r"learn_arrays takes raw numbers, and learn_many raw records"):
        model.learn_encoded(rows(5), np.zeros(5))


@pytest.mark.parametrize(("row", "warned"), [([1, 0, 1], 1), ([0, 0.5, 0], 1), ([0, 0, 0], 0), ([0, 0, 1], 0)])
def test_encoded_levels_that_no_schema_makes_are_told(row: list[float], warned: int) -> None:
    model = streamdp.PanPrivateRegressor(features={"g": ["a", "b", "c", "d"], "x": (0, 1)}, target=(0, 1))
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always", SchemaWarning)
        model.learn_encoded(np.array([[0, 1, 0, 0.5], [*row, -1]]), np.zeros(2))
    assert ["at most one 1 among zeros" in str(one.message) for one in found] == [True] * warned


@pytest.mark.parametrize("labels", [["a", "a\0"], [1, "1"], [True, "True"]], ids=str)
def test_predictions_are_the_declared_labels_also_those_that_numpy_changes(labels: list[Any]) -> None:
    """Arrays gave "a" for both, whose only difference is a NUL at the end, and texts for numbers beside texts."""
    model = streamdp.LDPSGDClassifier(features=["a"], classes=labels, seed=1, budget="eps=8")
    for i in range(200):
        model.learn_one({"a": i % 2 * 2 - 1.0}, labels[i % 2])
    X = np.array([[-1.0], [1.0]])
    each = [model.predict_one({"a": a}) for a in X[:, 0].tolist()]
    assert set(map(repr, each)) == set(map(repr, labels))
    assert [*map(repr, model.predict_arrays(X))] == [*map(repr, model.predict_many(X))] == [*map(repr, each)]


def test_columns_of_polars_and_numbers_of_pandas_are_no_lists(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each value became an object of Python and back: a table was predicted at a tenth of the rate of an expression."""

    def refused(*_: object, **__: object) -> None:
        raise AssertionError("a column became a list")

    model = streamdp.LDPASGDRegressor(features={"x": (0, 10), "n": (0, 10), "g": ["a", "b"]}, seed=1)
    rows = {"x": [1.0, 20.0, 3.5], "n": [1, 2, 3], "g": ["a", "b", "a"]}
    frames = [pl.DataFrame(rows), pl.DataFrame(rows, schema_overrides={"g": pl.Categorical})]
    numbers = streamdp.LDPASGDRegressor(features={"x": (0, 10), "n": (0, 10)}, seed=1)
    model.learn_many(frames[0], [1.0, 2.0, 3.0])
    numbers.learn_arrays(np.array([[1.0, 1.0]]), np.ones(1))
    expected = [model.predict_one(dict(zip(rows, row, strict=True))) for row in zip(*rows.values(), strict=True)]
    plain = [numbers.predict_one({"x": x, "n": n}) for x, n in zip(rows["x"], rows["n"], strict=True)]
    table = pd.DataFrame({"x": rows["x"], "n": rows["n"]})
    monkeypatch.setattr(pl.Series, "to_list", refused)
    monkeypatch.setattr(pd.Series, "tolist", refused)
    monkeypatch.setattr(pd.Series, "to_list", refused)
    for frame in frames:
        np.testing.assert_allclose(model.predict_many(frame).to_numpy(), expected)
    np.testing.assert_allclose(numbers.predict_many(table).to_numpy(), plain)
