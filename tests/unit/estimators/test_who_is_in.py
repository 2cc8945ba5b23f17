"""Who is in which released sum, and whether a stream goes on: for batches, windows and statistics under a cap."""

import contextlib
import copy
import os
from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from streamdp import Ledger, PanPrivateRegressor, ShuffleRegressor, UserLevelLDPRegressor, WindowedRegressor, stats
from streamdp.data.subjects import Dated
from streamdp.errors import StreamDPError
from streamdp.learners import series
from streamdp.learners.batches import Batches
from streamdp.learners.sums import Pan
from streamdp.privacy.grid_sum import GridSum
from streamdp.privacy.release import JOINED, LEFT_OUT, Release
from streamdp.store.state_codec import encode_state
from tests.support.plain_method import Plain

NOW, DAY = 1.7e9, 86_400
BUDGET = "eps=1,delta=1e-6"
LARGE = "eps=1000,delta=0.1"


def ledger_at(cap: str) -> Ledger:
    ledger = Ledger(cap)
    ledger.moments.clock = lambda: NOW
    return ledger


def statistics(**more: Any) -> stats.Statistics:
    declared = {"mean": {"mean": "a"}}
    return stats.Statistics(declared, features={"a": (-1, 1)}, budget=BUDGET, seed=1, **more)


def regressor(kind: Any, **more: Any) -> Any:
    return kind(features={"a": (-1, 1)}, target=(-1, 1), budget=BUDGET, seed=1, **more)


MAKE: dict[str, Callable[..., Any]] = {
    "pan": lambda **more: regressor(PanPrivateRegressor, **more),
    "shuffle": lambda **more: regressor(ShuffleRegressor, **more),
    "validation": lambda **more: regressor(PanPrivateRegressor, validation={"share": 0.2}, **more),
    "statistics": lambda **more: statistics(**more),
    "window": lambda **more: statistics(trust="window", batch_size=1000, **more),
    "every": lambda **more: statistics(every="1 day", **more),
}


@pytest.mark.parametrize("kind", MAKE)
def test_a_stream_of_few_people_goes_on(kind: str) -> None:
    """400 people with 50 records each: a batch ends by what it reads. What shares its noise is not called refused."""
    ledger = ledger_at(LARGE)
    model = MAKE[kind](ledger=ledger)
    people = np.random.default_rng(0).permutation(np.repeat(np.arange(400), 50)).tolist()
    X, y = np.zeros((len(people), 1)), np.full(len(people), NOW if kind == "every" else 0.5)
    longest = waits = done = 0
    while done < len(people):
        part = slice(done, done + model.boundary_within(min(200, len(people) - done)))
        model.learn_encoded(X[part], y[part], None, people[part])
        waits = 0 if model.at_boundary else waits + part.stop - part.start
        longest, done = max(longest, waits), part.stop
    assert longest <= 12_000
    assert model.n_refused == 0
    assert model.n_seen + model.n_left_out == len(people)
    assert model.n_seen >= 1600
    spent = [ledger.spent(person).records for person in range(400)]
    assert sum(spent) == model.n_seen
    model.close_batch()
    assert f"0 refused and {model.n_left_out:,} left out" in model.statement()
    assert model.state_dict()["n_left_out"] == model.n_left_out


def test_people_who_have_spent_their_cap_keep_no_batch_open() -> None:
    model = regressor(PanPrivateRegressor, ledger=ledger_at(BUDGET), batch_size=100)
    model.learn_encoded(np.zeros((50, 1)), np.zeros(50), None, list(range(50)))
    model.learn_encoded(np.zeros((149, 1)), np.zeros(149), None, [7] * 100 + [8] * 49)
    assert not model.at_boundary
    assert model.to_boundary == 1
    model.learn_encoded(np.zeros((1, 1)), np.zeros(1), None, [9])
    assert (model.at_boundary, model.n_seen, model.n_left_out, model.n_refused) == (True, 50, 150, 0)
    model.learn_encoded(np.zeros((20, 1)), np.zeros(20), None, [9] * 20)
    assert (model.at_boundary, model.n_refused) == (True, 20)


@pytest.mark.parametrize("kind", ["pan", "shuffle", "validation", "statistics"])
def test_people_who_have_spent_their_cap_are_refused_together(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each call of `Release.join` takes longer than the rest of a record."""
    model = MAKE[kind](ledger=ledger_at(BUDGET), batch_size=500)
    records: tuple[Any, ...] = np.zeros((500, 1)), np.zeros(500), None, list(range(500))
    model.learn_encoded(*records)
    calls, join = [], Release.join
    monkeypatch.setattr(Release, "join", lambda *given: calls.append(0) or join(*given))
    model.learn_encoded(*records)
    assert (model.at_boundary, model.n_refused, len(calls)) == (True, 500, 1)


@pytest.mark.parametrize("kind", ["pan", "shuffle", "validation", "statistics", "every"])
def test_nothing_is_released_or_drawn_by_reading(kind: str) -> None:
    """`Learner.room` once ended a batch when it was read."""
    model = MAKE[kind](ledger=ledger_at(LARGE))
    model.learn_encoded(np.zeros((30, 1)), np.full(30, NOW), None, list(range(30)))
    learner = model.learner
    learner.open.taken = learner.full  # as an exception leaves a batch that was about to end
    before = copy.deepcopy(model.learner.learned()), learner.seen.copy()
    names = [name for name in dir(type(learner)) if isinstance(getattr(type(learner), name), property)]
    assert {"pending", "to_boundary", "point"} <= set(names)
    for name in names:
        with contextlib.suppress(StreamDPError):
            getattr(learner, name)
    np.testing.assert_equal(learner.learned(), before[0])
    assert (learner.open.taken, len(learner.open.people)) == (learner.full, 30)
    assert np.array_equal(learner.seen, before[1])


@pytest.mark.parametrize("cap", ["eps=1,delta=1e-6 per 1 day", "eps=1,delta=1e-6 per 1 day, total eps=100,delta=1e-3"])
def test_a_window_with_records_of_several_days_spends_in_each_of_them(cap: str) -> None:
    """28 windows that begin with a record of yesterday and hold 19 of today: only the first may have today's.

    Of each released window it is looked up whose records it has, and the days are compared with their cap.
    """
    held: list[Counter[int]] = []

    class Seen(Plain):
        def run(self, plan: Any, users: Any, state: np.ndarray, rng: Any) -> Any:
            held.append(Counter(np.rint(users._X[:, 0] * 10).astype(int).tolist()))
            return super().run(plan, users, state, rng)

    ledger = ledger_at(cap)
    model = WindowedRegressor(
        features=["day"], budget=BUDGET, ledger=ledger, window=22, items_per_user=20, method=Seen(1), seed=1
    )
    for i in range(28):
        ago = [1, *[0] * 19]
        people: list[Any] = [Dated("ann", NOW - day * DAY) for day in ago] + [f"x{i}", f"y{i}"]
        X = np.array([[(1 + day) / 10] for day in ago] + [[0.0]] * 2)
        model.learn_encoded(X, np.zeros(22), None, people)
        model.close_batch()
    assert len(held) >= 28
    for day in (0, 1):
        windows = sum(1 for window in held if window[1 + day])
        assert windows == ledger.spent("ann", NOW - day * DAY).records == 1  # the cap allows one


@pytest.mark.parametrize("many", [False, True])
def test_a_report_has_records_of_one_period(many: bool) -> None:
    ledger = ledger_at("eps=3,delta=1e-3 per 1 day")
    model = UserLevelLDPRegressor(
        features={"a": (-1, 1)}, target=(-1, 1), budget=BUDGET, ledger=ledger, window=1000, items_per_user=4, seed=1
    )
    days = [0, 1, 0, 1, 0, 0, 0, 1]
    people = [Dated("ann", NOW - day * DAY) for day in days]
    if many:
        model.learn_encoded(np.zeros((8, 1)), np.zeros(8), None, people)
    else:
        for person in people:
            model.learn_one({"a": 0.0}, 0.0, subject=person)
    assert [ledger.spent("ann", NOW - day * DAY).records for day in (0, 1)] == [2, 1]  # 4 and 1 records, and 3
    assert model.n_users == 1
    model.close_user("ann")
    assert (model.n_users, model.at_boundary) == (3, True)


@pytest.mark.parametrize("many", [False, True])
def test_a_row_of_a_window_of_time_that_is_over_is_left_out_and_not_charged(
    many: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was charged and learned, and what it was learned with was dropped with its sum in memory."""
    monkeypatch.setattr(series, "KEPT", 3)
    ledger = ledger_at(LARGE)
    model = statistics(every="1 day", ledger=ledger)
    first: Any = None
    for day in (5, 7, 8):
        model.learn_one({"a": 0.5}, day * DAY, subject=f"p{day}")
        first = first or model.learner.windows[5]
    if many:
        times = np.array([4.0, 3.0, 6.0]) * DAY
        outcome = model.learn_encoded(np.zeros((3, 1)), times, None, ["late", "later", "ann"])
        assert outcome.tolist() == [LEFT_OUT, LEFT_OUT, JOINED]
    else:
        for person, day in (("late", 4), ("later", 3), ("ann", 6)):
            model.learn_one({"a": 0.5}, day * DAY, subject=person)
    assert (model.n_seen, model.n_refused, model.n_left_out) == (4, 0, 2)
    assert [ledger.spent(person).records for person in ("late", "later", "ann")] == [0, 0, 1]
    assert [start[:10] for start in model.get()] == ["1970-01-07", "1970-01-08", "1970-01-09"]
    assert isinstance(first._sum, Pan)
    assert not first._sum.total.any()


OPEN: dict[str, Callable[..., Any]] = MAKE | {
    "people": lambda **more: regressor(WindowedRegressor, method=Plain(), window=1000, **more),
    "reports": lambda **more: regressor(UserLevelLDPRegressor, items_per_user=8, **more),
}


def released(model: Any) -> str:
    return encode_state({name: value for name, value in model.learner.learned().items() if name != "window_at"})


@pytest.mark.parametrize("kind", OPEN)
def test_a_fork_releases_nothing_of_what_is_open(kind: str) -> None:
    """Its people would be in a release of the parent and in one of the child, each with noise of its own."""
    model = OPEN[kind]()
    for i in range(60):
        model.learn_one({"a": 0.5}, NOW if kind == "every" else 0.5, subject=f"p{i % 20}")
    assert not model.at_boundary
    before = released(model)
    read, write = os.pipe()
    if (child := os.fork()) == 0:
        try:
            model.close_batch()
            os.write(write, bytes([model.at_boundary, released(model) == before]))
        finally:
            os._exit(0)
    os.close(write)
    with os.fdopen(read, "rb") as pipe:
        assert pipe.read() == b"\x01\x01"
    os.waitpid(child, 0)
    model.close_batch()
    assert released(model) != before


def test_a_record_after_an_interrupted_end_of_a_batch_begins_another_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """At compiled speed it joined the sum of a batch whose people were forgotten, so that they could join it again."""
    model, opened = regressor(PanPrivateRegressor, batch_size=30), []
    for _ in range(20):
        model.learn_one({"a": 0.5}, 0.5)
    assert model.learner.fast is not None
    with monkeypatch.context() as interrupted:
        interrupted.setattr(Batches, "_wipe", lambda _: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            model.close_batch()
    monkeypatch.setattr(GridSum, "add_noise", lambda *_: opened.append(1))
    model.learn_one({"a": 0.5}, 0.5)
    assert opened
