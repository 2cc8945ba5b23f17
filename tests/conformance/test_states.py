"""States: a model goes on from one bit by bit, and what is none is refused in words and changes nothing."""

import copy
import inspect
import pickle
import warnings
import zlib
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import numpy as np
import pytest

import streamdp
from streamdp.errors import BudgetError, ConfigError, NotAtBoundaryError, NotAvailableError, StreamDPError
from streamdp.stats import Statistics
from tests.conformance.test_values import KINDS
from tests.support.intruder import contents, walk
from tests.support.states import give_words, kept, pending_of, words_of

ROWS = np.random.default_rng(1).uniform(-1, 1, (300, 2))
MADE: dict[str, tuple[str, dict[str, Any]]] = {kind: (kind, {}) for kind in KINDS}
MADE |= {
    f"{kind} planned": (kind, {"method": "ac-sa"}) for kind in KINDS if kind.startswith(("Pan", "Shuffle", "User"))
}
MADE |= {f"{kind} by ranges": (kind, {"method": "private-range"}) for kind in KINDS if kind.startswith("Windowed")}
MADE |= {
    f"{kind} of counts": (kind, {"loss": "poisson", "target": (0, 1)})
    for kind in ("PanPrivateRegressor", "ShuffleRegressor", "WindowedRegressor")
}
FITS = {
    *(("budget", "another"), ("budget", "a list"), ("budget", "a number")),  # of noise that is not added to
    *(("merged", "another"), ("private", "another"), ("window_at", "huge")),
}
"""Changes that a model takes."""


def made(name: str, rows: int = 0, **other: Any) -> Any:
    kind, options = (MADE | VALIDATED)[name]
    more: dict[str, Any] = {"target": (-1, 1)} if kind.endswith("Regressor") else {}
    if kind.startswith("Windowed"):
        more |= {"budget": "eps=50,delta=1e-6", "window": 150, "items_per_user": 2}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        model = getattr(streamdp, kind)(**({"features": {"a": (-1, 1), "b": (-1, 1)}} | more | options | other))
        y = ROWS[:rows, 0] if "target" in more else ROWS[:rows, 0] > 0
        model.learn_arrays(ROWS[:rows], y, subjects=[i // 2 for i in range(rows)])
        model.close_batch()
    return model


def changes(name: str, value: Any) -> Iterator[tuple[str, Any]]:
    """Other values of a part of a state; None: it is missing."""
    yield "missing", None
    if isinstance(value, np.ndarray):
        yield from (("text", "x"), ("objects", [object()]), ("a number", 5))
        if value.size:
            yield "shape", np.append(value, 0.0) if value.ndim == 1 else np.vstack([value, value[:1]])
            yield from ((kind, np.full(value.shape, bad)) for kind, bad in (("nan", np.nan), ("infinity", np.inf)))
    elif isinstance(value, bool):
        yield from (("text", "x"), ("another", not value))
    elif isinstance(value, int):
        yield from (("text", "many"), ("negative", -1), ("huge", 10**19), ("nan", float("nan")), ("a list", [1]))
        if name == "format":
            yield "another", value + 1
    elif isinstance(value, str):
        yield from (("another", value + "x"), ("a number", 5), ("a list", [value]))
    else:
        yield from (("text", "x"), ("a number", 5), ("nothing", [None]))
        if name == "features":
            yield "another", [*value[:-1], "z"]


@pytest.mark.parametrize("name", MADE)
def test_what_is_no_state_is_refused_and_changes_nothing(name: str) -> None:
    state, model = made(name, 300).state_dict(), made(name, 100)
    before = kept(model)
    for part, value in state.items():
        for kind, other in changes(part, value):
            if (part, kind) in FITS:
                continue
            given = {key: v for key, v in (state | {part: other}).items() if v is not None or key != part}
            with pytest.raises((ConfigError, BudgetError)) as caught:
                model.load_state_dict(given)
            assert kept(model) == before, (part, kind)
            assert kind != "another" or part in str(caught.value), (part, str(caught.value))
    model.load_state_dict(state)
    assert model.n_seen == 300


ANOTHER: dict[str, list[Any]] = {
    "features": [{"a": (-1, 1), "b": (-2, 2)}, {"a": (-1, 1), "c": (-1, 1)}],
    "classes": [["x", "y"], [True, False], ["x", "y", "z"]],
    "loss": ["hinge", "quantile", "squared", "softmax"],
    "domain": [streamdp.L2Ball(4.0), streamdp.Box(-5.0, 5.0)],
    "intercept": [False], "batch_size": [51], "horizon": [100], "smoothness": [9.0], "strong_convexity": [0.01],
    "items_per_user": [3], "spread": [0.1], "centre": ["asked"], "clock": ["records"], "cohort": [{"people": 500}],
    "validation": [{"share": 0.2}, {"share": 0.2, "bound": 1.0}], "target": [(-1, 2), None],
}  # fmt: skip
"""Values of parameters with which a state means something else."""


@pytest.mark.parametrize("name", MADE)
def test_states_of_other_models_are_neither_loaded_nor_merged(name: str) -> None:
    mine, refused = made(name, 300), 0
    state = mine.state_dict()
    for parameter in inspect.signature(type(mine)).parameters.keys() & ANOTHER.keys():
        for value in ANOTHER[parameter]:
            try:
                other = made(name, **{parameter: value})
            except StreamDPError:  # it needs others beside it
                continue
            for act in (lambda other=other: other.load_state_dict(state), lambda other=other: mine.merged(other)):
                with pytest.raises(ConfigError):
                    act()
            refused += 1
    assert refused > 4


BEYOND = (np.nan, np.inf, 1e300, 1e149, 1e60, -1.0, 0.0, 3.0, "x", None, KeyError)
"""What a number of a state may be changed to, or all numbers of an array; no learner writes most of them."""
VALIDATED = {
    f"{kind}Classifier validated": (f"{kind}Classifier", {"validation": {"share": 0.2}})
    for kind in ("LDPASGD", "PanPrivate", "Shuffle")
}
SURVEYS = [
    f"{trust}{every}"
    for trust in ("process", "window", "shuffler", "nobody")
    for every in ("", " by days")
    if (trust, every) != ("shuffler", " by days")
]
ASKED: dict[str, Any] = {
    "mean": {"mean": "a", "by": "c"},
    "median": {"quantile": 0.5, "of": "a"},
    "all": {"sum": "a"},
    "cells": {"histogram": "a", "edges": [-1, 0, 1]},
}


def leaves(state: dict[str, Any], path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    for name, value in state.items():
        yield from leaves(value, (*path, name)) if isinstance(value, dict) else [((*path, name), value)]


def changed(value: Any, bad: Any, rng: np.random.Generator) -> Any:
    """The value with one of its numbers, or all of them, replaced."""
    numbers = np.array(value) if isinstance(value, list | np.ndarray) else np.zeros(0)
    if not isinstance(bad, float) or numbers.dtype.kind not in "fiu" or not numbers.size:
        return bad
    out = numbers.astype(float)
    out.flat[slice(None) if rng.random() < 0.3 else int(rng.integers(out.size))] = bad
    return out


def used(model: Any, x: dict[str, Any], y: Any) -> None:
    """Learn more, and show all that is shown."""
    for i in range(5):
        if isinstance(model, Statistics):
            model.learn_one(x, 4e5 + i)
        else:
            model.learn_one(x, y, subject=f"person {i // 2}")
    model.close_batch()
    shown = model.get if isinstance(model, Statistics) else lambda: model.predict_one(x)
    for show in (shown, model._repr_html_, lambda: model.interval()):  # the page has the statement and the doubts
        with suppress(NotAvailableError, AttributeError):
            show()
    if model.at_boundary:
        model.state_dict()


def survey(name: str, rows: int) -> Statistics:
    trust, *every = name.split(maxsplit=1)
    made_of = {"a": (-1, 1), "c": ["u", "v"]}
    learned = Statistics(ASKED, made_of, trust=trust, budget="eps=4", every="1 day" if every else None)
    for i in range(rows):
        learned.learn_one({"a": float(ROWS[i, 0]), "c": "uv"[i % 2]}, 2000.0 * i)
    learned.close_batch()
    return learned


PLANTED = np.random.default_rng(2).uniform(-1, 1, (7, 2))
"""Records whose numbers nothing else has."""


WAYS: Any = (
    *(copy.copy, copy.deepcopy, lambda model: pickle.loads(pickle.dumps(model))),
    lambda model: model.clone(include_attributes=True),
)
"""How estimators are copied."""


def memory(model: Any) -> dict[str, bytes]:
    """All values in memory but answers, which are noisy one by one, a place in a window, and how targets came."""
    found, other = contents(model, classes=False), (".held_out.", ".learner.people.at", "._plain_targets")
    return {path: data for path, data in found.items() if not path.startswith(other)}


def holding(model: Any) -> list[np.ndarray]:
    """The arrays in memory that have a number of the records `PLANTED`."""
    arrays = [np.asarray(value) for _, value in walk(model, classes=False) if isinstance(value, np.ndarray | float)]
    return [array for array in arrays if array.dtype == float and np.isin(array, PLANTED).any()]


def unused(model: Any) -> np.ndarray:
    """The random words in memory."""
    held_out = getattr(model, "held_out", None)
    sources = [words_of(model), *([] if held_out is None else [held_out.validator.rng])]
    words = np.concatenate([getattr(each, "words", np.zeros(1, np.uint64))[1:] for each in sources])
    return words[words > 0]


def pieces(thing: Any) -> set[bytes]:
    """All that could be a number, of the values in memory and in a pickle."""
    data = pickle.dumps(thing) + b"".join(contents(thing, classes=False).values())
    return {data[at : at + 8] for at in range(len(data))}


@pytest.mark.parametrize("name", [*MADE, *VALIDATED, *SURVEYS])
def test_an_open_batch_and_words_are_in_no_copy_and_no_state_and_records_are_wiped(name: str) -> None:
    """Records are in memory as long as their people are asked together, and else not even then."""
    model = survey(name, 100) if name in SURVEYS else made(name, 300)
    state, seen, before = model.state_dict(), model.n_seen, [memory(way(model)) for way in WAYS]
    for i, (a, b) in enumerate(PLANTED.tolist()):
        if name in SURVEYS:
            model.learn_one({"a": a, "c": "u"}, 2e5)
        else:
            model.learn_one({"a": a, "b": b}, a if "Regressor" in name else True, subject=f"new {i}")
    held, secret = holding(model), {number.tobytes() for number in (*PLANTED.ravel(), *unused(model))}
    assert bool(held) == name.startswith(("Windowed", "UserLevel"))
    assert len(unused(model)) > 0 or not name.startswith("LDP")
    assert model.at_boundary == (not pending_of(model)) == name.startswith(("LDP", "nobody"))
    copies = [way(model) for way in WAYS]
    assert all(each.at_boundary and secret.isdisjoint(pieces(each)) for each in copies)
    if not model.at_boundary:
        assert [memory(each) for each in copies] == before
        with pytest.raises(NotAtBoundaryError, match=str(len(PLANTED))):
            model.state_dict()
        model.load_state_dict(state)
        assert (model.n_seen, model.at_boundary) == (seen, True)
    assert not holding(model)
    assert not any(array.any() for array in held)
    assert secret.isdisjoint(pieces(model.state_dict()))
    with pytest.raises(ConfigError):
        model.clone({"seed": 1}, include_attributes=True)


@pytest.mark.slow
@pytest.mark.parametrize("name", [*MADE, *VALIDATED, *SURVEYS])
@pytest.mark.filterwarnings("error", "ignore::UserWarning")
def test_any_value_in_a_state_is_refused_or_is_learned_from(name: str) -> None:
    """Without a warning of numbers that overflow."""
    rng, x = np.random.default_rng(zlib.crc32(name.encode())), {"a": 0.1, "b": -0.2, "c": "u"}
    learned = survey(name, 100) if name in SURVEYS else made(name, 300)
    state, model, refused = learned.state_dict(), copy.deepcopy(learned), 0
    for path, value in leaves(state):
        for bad in BEYOND:
            given = at = dict(state)
            for part in path[:-1]:
                at[part] = at = dict(at[part])
            if bad is KeyError:
                del at[path[-1]]
            else:
                at[path[-1]] = changed(value, bad, rng)
            try:
                model.load_state_dict(given)
            except (ConfigError, BudgetError):
                refused += 1
            else:
                used(model, x, 0.5 if "Regressor" in name else True)
                model = copy.deepcopy(learned)
    assert refused > 100


WIDE = {"a": (-30.0, 30.0), "b": (-30.0, 30.0), "c": ["u", "v"]}
"""Bounds many times as wide as the values: columns get other units."""
BUDGET = {kind: "eps=20,delta=1e-5" for kind in KINDS if not kind.startswith("LDP")}
ON: dict[str, tuple[str, dict[str, Any]]] = {f"{kind} wide": (kind, {"features": WIDE}) for kind in KINDS}
ON |= {f"{kind} {options}": (kind, {"features": ["a", "b", "c=v"], **options}) for kind, options in MADE.values()}
for family, small in (("PanPrivate", 90), ("Shuffle", 700), ("UserLevel", 70)):
    some = {f"{name} small": (kind, {**given, "batch_size": small}) for name, (kind, given) in ON.items()}
    ON |= {name: made for name, made in some.items() if name.startswith(family) and "method" not in made[1]}


@pytest.mark.slow
@pytest.mark.parametrize("name", ON)
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_a_model_goes_on_from_a_state_bit_by_bit(name: str) -> None:
    """With the same random words: from states of a search for units, of an open batch of reports, and later ones."""
    kind, options = ON[name]
    more: dict[str, Any] = {"target": (-90.0, 110.0)} if kind.endswith("Regressor") else {}
    if kind.startswith("Windowed"):
        more |= {"window": 1000, "items_per_user": 2}
    if kind in BUDGET:
        more["budget"] = BUDGET[kind]
    rng = np.random.default_rng(3)
    X = np.column_stack([rng.normal(0.02, 0.03, (2500, 2)), rng.integers(0, 2, 2500)])
    y = 1 + X @ [30.0, -30.0, 1.0] + rng.normal(0, 0.5, 2500)
    y = y if more.get("target") else (y > 1).astype(float)
    people = [i // 2 for i in range(2500)]
    for cut in (100, 1500):
        model, other = (getattr(streamdp, kind)(**(more | options), seed=seed) for seed in (1, 2))
        model.learn_encoded(X[:cut], y[:cut], subjects=people[:cut])
        model.close_batch()
        if not model.at_boundary:
            continue  # a window of too few people
        other.load_state_dict(model.state_dict())
        for each in (model, other):
            give_words(each, type(words_of(model))(11))
            each.learn_encoded(X[cut:], y[cut:], subjects=people[cut:])
            each.close_batch()
        assert kept(model) == kept(other)
        assert (model.theta.tobytes(), model.statement()) == (other.theta.tobytes(), other.statement())
        x = {"a": 0.5, "b": 0.1, "c": "v", "c=v": 1.0}
        assert model.predict_one(x) == other.predict_one(x)
