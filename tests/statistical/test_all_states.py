"""Attacks on estimators as a whole: an observer takes every state of a short stream, and knows all records but one.

Streams of three records, or of three users, differ in one of them. An observer learns on half of the runs which
direction of all numbers of all three states tells the two streams apart, and is judged by the other half. So it finds
what no question and no step shows alone, such as noise that comes twice. A lower bound is wrong with probability at
most 1e-6, and the seeds are fixed.
"""

import functools
from typing import Any

import numpy as np
import pytest

from streamdp import LDPASGDRegressor, UserLevelLDPRegressor
from streamdp.privacy.guarantees import parse_budget
from streamdp.scaling import unit_table as k
from tests.support.audit import lower_bound
from tests.support.states import words_of

pytestmark = pytest.mark.campaign

RUNS, CAMPAIGN_RUNS = 700, 50_000
OPTIONS: dict[str, Any] = {"features": {"a": (-1, 1), "b": (-1, 1)}, "target": (-1, 1), "seed": 7}
Record = tuple[dict[str, float], float]
MIDDLE: Record = {"a": 0.1, "b": 0.3}, 0.2


def make(kind: Any, budget: str) -> Any:
    return kind(budget=budget, **OPTIONS, **({"items_per_user": 2} if kind is UserLevelLDPRegressor else {}))


def give(model: Any, record: Record) -> None:
    """One report: of a record, or of a user with two."""
    if isinstance(model, LDPASGDRegressor):
        model.learn_one(*record)
    else:
        for _ in range(2):
            model.learn_one(*record, subject="ann")


def learned(kind: Any, budget: str, reports: int) -> Any:
    model = make(kind, budget)
    for a, b, noise in np.random.default_rng(1).uniform(-1, 1, (reports, 3)):
        give(model, ({"a": a, "b": b}, 0.4 * a + 0.2 * noise))
    return model


def kinds(model: Any, state: dict[str, Any]) -> list[str]:
    """What three records answer about, after this state."""
    found = []
    model.load_state_dict(state)
    for _ in range(3):
        asked = model.n_asked, model.n_paired
        give(model, MIDDLE)
        found.append("column" if model.n_asked > asked[0] else "pair" if model.n_paired > asked[1] else "gradient")
    return found


def all_kinds(budget: str) -> dict[str, Any]:
    """A state after which three records answer about a column, about a pair, and with a gradient, whatever they say."""
    model = learned(LDPASGDRegressor, budget, 3000)
    for _ in range(50):
        state = just_due(model.state_dict(), model)
        if all(kinds(model, state) == ["column", "pair", "gradient"] for _ in range(20)):
            return state
    raise AssertionError("no such state was found")


def just_due(state: dict[str, Any], model: Any) -> dict[str, Any]:
    """The state with clocks by which a bit about a column is just due, and then one about a pair."""
    clock, pairs = state["progress"], state["pairs"]
    clock[k.TOTAL] = 2 * k.SHORTEST
    pairs[:, :] = 0.0, 0.04 * clock[k.REACHED] / len(pairs), 0.0
    low, high = 0.0, clock[k.REACHED]
    for _ in range(60):  # a bit about a column is just due
        clock[k.ASKED] = (low + high) / 2
        model.load_state_dict(state)
        low, high = (low, clock[k.ASKED]) if model.randomizer.question.bit is None else (clock[k.ASKED], high)
    clock[k.ASKED] = low
    return state


@functools.cache
def weights(length: int) -> np.ndarray:
    return np.random.default_rng(2).normal(size=(8, length))


def view(model: Any) -> np.ndarray:
    """All numbers of the state; of long arrays eight sums with random weights."""
    flat = [value.ravel() for _, value in sorted(model.state_dict().items()) if isinstance(value, np.ndarray)]
    return np.concatenate([weights(len(v)) @ v if len(v) > 400 else v for v in flat])


def views(model: Any, start: dict[str, Any], stream: list[Record], runs: int, fault: str = "") -> np.ndarray:
    """(runs, n) all numbers of all states."""
    out = []
    for _ in range(runs):
        model.load_state_dict(start)
        seen = []
        for record in stream:
            words = words_of(model).words.copy()
            give(model, record)
            seen.append(view(model))
            if fault == "noise that comes twice" and len(seen) == 1:
                words_of(model).words[:] = words
        out.append(np.concatenate(seen))
    return np.array(out)


def scores(a: np.ndarray, b: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The best direction on the even runs, by least squares, and its scores of the odd ones."""
    train, test = np.vstack([a[::2], b[::2]]), np.vstack([a[1::2], b[1::2]])
    used = np.ptp(train, axis=0) > 1e-12 * np.abs(train).max(axis=0)
    train, test = train[:, used], test[:, used]
    centre, spread = train.mean(axis=0), train.std(axis=0)
    train, test = (train - centre) / spread, (test - centre) / spread
    side = np.repeat([1.0, -1.0], [len(a[::2]), len(b[::2])])
    direction = np.linalg.solve(train.T @ train + 1e-3 * len(train) * np.eye(train.shape[1]), train.T @ side)
    found = test @ direction
    return found[: len(a[1::2])], found[len(a[1::2]) :]


def attack(
    model: Any, claim: str, start: dict[str, Any], two: tuple[Record, Record], place: int, runs: int, fault: str = ""
) -> float:
    """The bound on the budget of the record at a place of the stream."""
    streams = [[one if i == place else MIDDLE for i in range(3)] for one in two]
    return lower_bound(parse_budget(claim), *scores(*(views(model, start, stream, runs, fault) for stream in streams)))


ACROSS: Record = {"a": -1.0, "b": 1.0}, -1.0
OTHERS: list[Record] = [({"a": 0.2, "b": 0.0}, 1.0), ({"a": 0.5, "b": 1.0}, 1.0), ({"a": -1.0, "b": 1.0}, 1.0)]
"""A column, whether its centre or its spread is asked about, a pair and a gradient tell each of them from `ACROSS`."""
CASES = [("eps=1", 0), ("eps=1", 1), ("eps=1", 2), ("mu=1", 2)]


def check_records(budget: str, place: int, runs: int, share: float) -> None:
    start, two = all_kinds(budget), (ACROSS, OTHERS[place])
    assert share < attack(make(LDPASGDRegressor, budget), budget, start, two, place, runs) <= 1
    assert attack(make(LDPASGDRegressor, budget.replace("1", "2")), budget, start, two, place, runs) > 1


@pytest.mark.parametrize(("budget", "place"), CASES[1:2])
def test_all_states_together_keep_the_budget_of_a_record(budget: str, place: int) -> None:
    """Of a bit about a column, one about a pair, and a gradient; half the noise does not keep it."""
    check_records(budget, place, RUNS, 0.2)


@pytest.mark.parametrize(("budget", "place"), CASES)
def test_all_states_together_keep_the_budget_of_a_record_in_many_runs(budget: str, place: int) -> None:
    check_records(budget, place, CAMPAIGN_RUNS, 0.7)


def test_noise_that_comes_twice_is_found() -> None:
    """Each single state keeps the budget; two together do not."""
    model = learned(LDPASGDRegressor, "mu=1", 3000)
    while model.randomizer.question.bit is not None:  # some gradients follow
        give(model, MIDDLE)
    start, two = model.state_dict(), (ACROSS, OTHERS[2])
    assert attack(model, "mu=1", start, two, 0, 3_000) <= 1
    assert attack(model, "mu=1", start, two, 0, 3_000, "noise that comes twice") > 1


def told_apart(question: Any) -> tuple[Record, Record] | None:
    """Two records with different answers, if there are any; a gradient tells the ends apart."""
    if question is None:
        return ACROSS, OTHERS[2]
    inside = [bool(question.low <= x["ab"[question.column]] < question.high) for x, _ in OTHERS]
    return (OTHERS[inside.index(True)], OTHERS[inside.index(False)]) if len(set(inside)) == 2 else None


def check_users(budget: str, bit: bool, runs: int, share: float) -> None:
    model = learned(UserLevelLDPRegressor, budget, 2000)
    twice = budget.replace("1", "2")
    halved = make(UserLevelLDPRegressor, twice)
    halved.load_state_dict(model.state_dict() | {"budget": twice, "answered": 0})  # its batches are smaller
    for each, least, most in ((model, share, 1.0), (halved, 1.0, np.inf)):
        while (two := told_apart(each.randomizer.question)) is None or (each.randomizer.question is None) == bit:
            give(each, MIDDLE)
        assert least < attack(each, budget, each.state_dict(), two, 0, runs) <= most


BITS = pytest.mark.parametrize("bit", [True, False], ids=["bit", "gradient"])


@BITS
@pytest.mark.parametrize("budget", ["eps=1", "mu=1"])
def test_all_states_together_keep_the_budget_of_a_user_in_many_runs(budget: str, bit: bool) -> None:
    """Of a bit about a column, and of a gradient."""
    check_users(budget, bit, CAMPAIGN_RUNS // 4, 0.7 if bit else 0.5)
