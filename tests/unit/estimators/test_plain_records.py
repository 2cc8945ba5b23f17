"""Plain records take one compiled call: it does what the long way does, and never learns what was not counted."""

import copy
import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from streamdp import (
    LDPASGDClassifier,
    LDPASGDRegressor,
    LDPSGDRegressor,
    PanPrivateClassifier,
    PanPrivateRegressor,
    PureDP,
    ShuffleClassifier,
    ShuffleRegressor,
    WindowedClassifier,
    WindowedRegressor,
)
from streamdp.errors import SchemaError
from tests.support.states import buffer_of, words_of

FEATURES = ["a", "b", "c"]
BOUNDS = {"a": (-2, 2), "b": (0, 1), "c": ["red", "green", "blue"]}
N = 700

MODELS: dict[str, Callable[[], Any]] = {
    "gaussian": lambda: LDPASGDRegressor(budget="mu=1", features=FEATURES, seed=1),
    "laplace": lambda: LDPSGDRegressor(mechanism="laplace", features=FEATURES, seed=2),
    "privunit": lambda: LDPASGDRegressor(features=FEATURES, seed=3),
    "scaled": lambda: LDPASGDRegressor(budget="eps=8", features=BOUNDS, target=(-4, 4), seed=4),
    "labels": lambda: LDPASGDClassifier(classes=["no", "yes"], features=FEATURES, seed=5),
    "softmax": lambda: LDPASGDClassifier(classes=[0, 1, 2], loss="softmax", features=FEATURES, seed=6),
    "pan newton": lambda: PanPrivateRegressor(features=FEATURES, batch_size=90, seed=7),
    "pan ac-sa": lambda: PanPrivateClassifier(features=FEATURES, method="ac-sa", batch_size=90, seed=8),
    "shuffle newton": lambda: ShuffleRegressor(features=FEATURES, batch_size=90, seed=9),
    "window newton": lambda: WindowedRegressor(features=FEATURES, window=130, budget="eps=8", seed=11),
    "window of labels": lambda: WindowedClassifier(
        features=FEATURES, classes=[0, 1], window=650, budget="eps=8", seed=12
    ),
    "pan asked": lambda: PanPrivateClassifier(
        features=FEATURES, classes=[0, 1, 2], loss="softmax", batch_size=90, validation={"share": 0.2}, seed=13
    ),
    "shuffle asked": lambda: ShuffleRegressor(
        features=FEATURES, batch_size=90, validation={"share": 0.2, "bound": 1.0}, seed=14
    ),
    "shuffle sgd": lambda: ShuffleClassifier(features=FEATURES, method="sgd", horizon=2000, seed=10),
}


def short_way_of(model: Any) -> Any:
    """What learns plain records in one call; None: nothing."""
    return model.learner.fast


def records(name: str, model: Any) -> list[tuple[dict[str, Any], Any]]:
    """Mostly plain records; some are not: a name too few or too many, whole and numpy numbers."""
    rng, made = random.Random(0), []
    for i in range(N):
        x: dict[str, Any] = {"a": rng.gauss(0, 1), "b": rng.random(), "c": rng.gauss(0, 1)}
        if name == "scaled":
            x["c"] = rng.choice(["red", "green", "blue"])
        elif i % 50 == 20:
            del x["b"]
        if i % 50 == 30:
            x["d"] = 1.0
        if i % 50 == 40:
            x["a"] = np.float32(0.5)
        if i % 10 == 5:
            x["a"] = i % 3
        labels = getattr(model, "labels", None)
        y = rng.choice(labels) if labels else (i % 4 if i % 10 == 7 else x["a"] + rng.gauss(0, 0.1))
        made.append((x, y))
    return made


@pytest.mark.filterwarnings("ignore::streamdp.estimators.features.SchemaWarning")
@pytest.mark.parametrize("name", MODELS)
def test_both_ways_learn_the_same(name: str) -> None:
    short, long, used = MODELS[name](), MODELS[name](), 0
    long._learn_faster = lambda _: None
    for x, y in records(name, short):
        for model in (short, long):
            model.learn_one(x, y)
        used += short_way_of(short) is not None
        assert (short.n_seen, short.at_boundary) == (long.n_seen, long.at_boundary)
        assert not buffer_of(short).any()
    assert used > N / 2
    assert short_way_of(long) is None
    assert short.guarantee == long.guarantee
    for model in (short, long):
        model.close_batch()
        assert not name.endswith("asked") or model.quality.total.answers == N
    assert repr(short.state_dict()) == repr(long.state_dict())
    if hasattr(words_of(short), "words"):
        np.testing.assert_array_equal(words_of(short).words, words_of(long).words)


def warmed(model: Any, n: int = 100) -> Any:
    """A model that learns plain records in one call."""
    for i in range(n):
        model.learn_one(dict.fromkeys(FEATURES, i / n), 0.5)
    assert short_way_of(model) is not None
    return model


PLAIN = (dict.fromkeys(FEATURES, 0.25), 0.5)


def test_what_forgets_spends_ends_the_short_way() -> None:
    model = warmed(LDPASGDRegressor(features=FEATURES))
    model.load_state_dict(LDPASGDRegressor(features=FEATURES).state_dict())
    assert short_way_of(model) is None
    assert not model.guarantee.budgets
    model.learn_one(*PLAIN)
    assert model.guarantee.budgets == (PureDP(1),)


@pytest.mark.parametrize("kind", [LDPASGDRegressor, PanPrivateRegressor, ShuffleRegressor])
@pytest.mark.parametrize(
    ("change", "y"),
    [({"a": float("nan")}, 0.5), ({"b": None}, 0.5), ({"c": "1"}, 0.5), ({}, float("inf")), ({}, "high"), ({}, None)],
    ids=str,
)
def test_what_is_no_record_is_refused(kind: Any, change: dict[str, Any], y: Any) -> None:
    model = warmed(kind(features=FEATURES))
    with pytest.raises(SchemaError):
        model.learn_one(PLAIN[0] | change, y)
    assert model.n_seen == 100
    model.learn_one(*PLAIN)
    assert model.n_seen == 101


def test_records_that_are_asked_nothing_take_the_short_way_and_others_answer_as_in_arrays() -> None:
    """Also from a state that was saved between two questions, and with a copy that goes on by itself."""
    one, many = (LDPASGDRegressor(features=FEATURES, validation={"share": 0.2, "bound": 1.0}, seed=1) for _ in "12")
    X, y = np.random.default_rng(0).normal(size=(1000, 3)), np.random.default_rng(1).normal(size=1000)
    ways = []
    for i, (row, target) in enumerate(zip(X.tolist(), y.tolist(), strict=True)):
        one.learn_one(dict(zip(FEATURES, row, strict=True)), target)
        ways.append(short_way_of(one) is not None)
        if i % 37 == 0:
            copied, state = copy.deepcopy(one), one.state_dict()
            copied.learn_one(*PLAIN)
            one.load_state_dict(state)
    assert np.mean(ways) > 0.9
    many.learn_arrays(X, y)
    assert one.n_seen == many.n_seen == 1000
    assert 0.15 < one.quality.total.answers / 1000 < 0.25
    assert one.quality.total.answers == many.quality.total.answers
    np.testing.assert_allclose(one.theta, many.theta)


def test_a_copy_has_a_short_way_of_its_own() -> None:
    model = warmed(LDPASGDRegressor(features=FEATURES, seed=1))
    other = model.clone(include_attributes=True)
    assert short_way_of(other) is None
    before = model.theta
    warmed(other)
    assert (other.n_seen, model.n_seen) == (200, 100)
    np.testing.assert_array_equal(model.theta, before)


@pytest.mark.parametrize("series", ["polars", "pandas"])
@pytest.mark.parametrize("kind", [LDPASGDRegressor, LDPASGDClassifier])
def test_a_series_of_targets_is_read_at_once(monkeypatch: pytest.MonkeyPatch, series: str, kind: Any) -> None:
    library = pytest.importorskip(series)
    X, y = np.random.default_rng(0).normal(size=(50, 3)), np.arange(50) % 2
    one, many = (kind(features=FEATURES, seed=1) for _ in range(2))
    for row, target in zip(X.tolist(), y.tolist(), strict=True):
        one.learn_one(dict(zip(FEATURES, row, strict=True)), target)
    monkeypatch.setattr(kind, "_encode_target", None)
    many.learn_many(library.DataFrame(dict(zip(FEATURES, X.T, strict=True))), library.Series(y))
    np.testing.assert_array_equal(one.theta, many.theta)
