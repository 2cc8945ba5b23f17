"""The worker's loop over a source in memory: no broker is needed, and no test waits for real time."""

from __future__ import annotations

import concurrent.futures
import contextlib
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from streamdp import LDPASGDRegressor, PanPrivateRegressor
from streamdp.data.records import WHOLE, DeadLetter, Position, Shard, Stall
from streamdp.errors import (
    ConfigError,
    FencedError,
    LedgerConflictError,
    NothingLearnedError,
    ShardUnavailableError,
    SourceError,
    SourceUnavailableError,
    StoreUnavailableError,
    TooManyBadRecordsError,
)
from streamdp.runtime.calls import GIVE_UP_S, LEAVE_AFTER_S, Wait
from streamdp.runtime.defaults import REPORT_AFTER_S
from streamdp.runtime.learning import total
from streamdp.runtime.protocols import Observer
from streamdp.runtime.worker import RECLAIM_AFTER_S, Worker
from streamdp.store.snapshot import Counts, Part, Snapshot
from streamdp.store.store import Store
from tests.support.crashing import Crash
from tests.support.memory import BAD
from tests.support.shards import CAP, SIZE, ScriptedShards, Streams, check_exact, found, replay, run_quietly, streams


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """The file of a store."""
    return tmp_path / "a.db"


@pytest.fixture
def given() -> Streams:
    return streams(2, 500, 0)


def work(path: Path, source: ScriptedShards, **options: Any) -> int:
    with Store(path, "job", "f", cap=CAP, shared=True) as store:
        return run_quietly(source, lambda: batched(store), store, **({"commit_records": 50} | options))


def batched(store: Store) -> PanPrivateRegressor:
    return PanPrivateRegressor(features=["a", "b"], budget="mu=1", batch_size=SIZE, ledger=store.ledger)


def model(store: Store) -> LDPASGDRegressor:
    """It has no batches, so that spends are exact after every fault."""
    return LDPASGDRegressor(features=["a", "b"], budget="mu=1", ledger=store.ledger)


@pytest.mark.parametrize("seed", range(3))
def test_every_record_counts_once_and_commits_are_at_boundaries(tmp_path: Path, seed: int) -> None:
    given = streams(3, 1000, seed)
    source = ScriptedShards(given, seed)
    seen: list[tuple[int, int]] = []
    counts: dict[Shard, int] = {}

    def publish(snapshots: Sequence[Snapshot]) -> None:
        counts.update({snapshot.shard: snapshot.counts.learned for snapshot in snapshots})
        seen.extend((s.state["n_seen"], sum(counts.values())) for s in snapshots if s.state)

    assert work(tmp_path / "a.db", source, publish=[publish]) == 3000
    check_exact(tmp_path / "a.db", given)
    assert source.committed == {shard: {"index": 1000} for shard in given}
    history = Store.history(tmp_path / "a.db", 10_000, job="job")
    assert len(history) > 15
    assert len(seen) > 15
    assert all(learned == counted for learned, counted in seen)  # one state for all three


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.slow
def test_a_rebalance_closes_the_batch_and_the_next_owner_goes_on(path: Path, seed: int) -> None:
    given = streams(2, 600, seed)
    first, second = given
    source = ScriptedShards(given, seed)

    source.events[5 + seed] = lambda: source.rebalance(revoked=[first])
    work(path, source, commit_seconds=60.0, commit_records=10_000)
    taken = found(path)[first]
    assert 0 < taken.position["index"] < 600
    rest = found(path)[second]
    assert (rest.position, taken.state) == ({"index": 600}, {})  # the model has stayed with the worker
    assert work(path, ScriptedShards({first: given[first]}, seed)) == 600 - taken.position["index"]
    check_exact(path, given)


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.slow
def test_after_a_crash_unfinished_batches_are_learned_again_and_charged_once(path: Path, seed: int) -> None:
    given = streams(2, 600, seed)

    def crash() -> None:
        raise Crash

    source = ScriptedShards(given, seed)
    source.events[4 + seed] = crash
    with pytest.raises(Crash):
        work(path, source)
    before = found(path)
    for shard, snapshot in before.items():
        counts, _ = replay(given[shard])
        assert snapshot.counts == counts[snapshot.position["index"]]
    assert 0 < sum(snapshot.position["index"] for snapshot in before.values()) < 1200
    work(path, ScriptedShards(given, seed + 1))
    check_exact(path, given)


def test_a_source_that_fails_closes_the_batches_and_commits(path: Path) -> None:
    given = streams(2, 600, 1)
    source = ScriptedShards(given)

    reached: dict[Shard, Any] = {}

    def fail() -> None:
        reached.update(source.positions)
        raise SourceError("it is over")

    source.events[6] = fail
    with pytest.raises(SourceError, match="it is over"):
        work(path, source, commit_records=10_000)
    for shard, snapshot in found(path).items():
        counts, _ = replay(given[shard])
        assert snapshot.position == reached[shard]
        assert snapshot.position["index"] > 0
        assert snapshot.counts == counts[snapshot.position["index"]]
    assert work(path, ScriptedShards(given)) > 0
    check_exact(path, given)


class FragileStore(Store):
    """`before` and `after` are called around each commit, with its number, and may raise."""

    commits = 0

    def before(self, number: int) -> None: ...

    def after(self, number: int) -> None: ...

    def commit_parts(self, *parts: Any) -> dict[Shard, Snapshot]:
        self.commits += 1
        self.before(self.commits)
        written = super().commit_parts(*parts)
        self.after(self.commits)
        return written


class Watcher(Observer):
    def __init__(self, clock: Callable[[], float]) -> None:
        self.clock = clock
        self.told: list[tuple[float, str, str]] = []
        self.committed_at: list[float] = []
        self.mine: list[set[Shard]] = []
        self.rollbacks = 0

    def rolled_back(self) -> None:
        self.rollbacks += 1

    def committed(self, parts: dict[Shard, Part], seconds: float) -> None:
        self.committed_at.append(self.clock())

    def assigned(self, shards: dict[Shard, Counts]) -> None:
        self.mine.append(set(shards))

    def on_retry(self, kind: str, message: str) -> None:
        self.told.append((self.clock(), kind, message))

    @property
    def retries(self) -> list[str]:
        return [kind for _, kind, _ in self.told]


def fragile(path: Path) -> FragileStore:
    return FragileStore(path, "job", "f", cap=CAP, shared=True)


def worker_of(source: ScriptedShards, store: Store, build: Callable[[], Any] | None = None, **options: Any) -> Worker:
    """A worker on the clock of its source; of `model` if nothing else is built."""
    return Worker(source, build or (lambda: model(store)), store, **(source.timing | options))


def watched(source: ScriptedShards, store: Store, *, idle: float = 1.0, **options: Any) -> Watcher:
    watcher = Watcher(source.clock)
    given = {"commit_records": 50, "observers": [watcher], "randomness": lambda low, high: high}
    worker_of(source, store, **(given | options)).run(idle_seconds=idle)
    return watcher


def ran(path: Path, source: ScriptedShards, before: Callable[[int], object] | None = None, **options: Any) -> Watcher:
    """As `watched`, with a store that is opened for it; `before` is called before each commit."""
    with fragile(path) as store:
        if before is not None:
            store.before = before
        return watched(source, store, **options)


def raising(error: Exception, *commits: int) -> Callable[[int], None]:
    """What raises an error at some commits."""

    def at(number: int) -> None:
        if number in commits:
            raise error

    return at


CONFLICT = LedgerConflictError("another worker spent from the same subjects")


def finish(path: Path, given: Streams) -> None:
    """Learn the rest; then all was counted once."""
    ran(path, ScriptedShards(given))
    check_exact(path, given)


@pytest.mark.parametrize("when", ["before", "after"])
def test_an_outage_is_waited_for_with_growing_delays(path: Path, given: Streams, when: str) -> None:
    """A commit that is repeated counts once, whether the first one failed or only its answer was lost."""
    source = ScriptedShards(given)
    with fragile(path) as store:
        setattr(store, when, raising(StoreUnavailableError("no answer"), *range(3, 10)))
        watcher = watched(source, store)
    assert watcher.retries == ["store"] * 7
    assert watcher.rollbacks == 0
    assert source.clock.slept[1:8] == pytest.approx([0.1, 0.2, 0.4, 0.8, 1.6, 3.0, 3.0])  # slept[0]: no shard yet
    check_exact(path, given)


def test_a_worker_that_was_stopped_gives_an_outage_up(path: Path) -> None:
    given = streams(1, 500, 0)
    source = ScriptedShards(given)
    with fragile(path) as store:
        worker = worker_of(source, store)

        def fail(number: int) -> None:
            worker.stop()
            raise StoreUnavailableError("no answer")

        store.before = fail
        with pytest.raises(StoreUnavailableError):
            worker.run()
    assert GIVE_UP_S < source.clock() < GIVE_UP_S + 4
    assert not found(path)
    finish(path, given)


def test_a_worker_that_was_stopped_does_not_wait_for_what_decodes(path: Path, given: Streams) -> None:
    """Before, it waited for ten seconds for a schema registry, and the run had failed."""

    class Away(ScriptedShards):
        def decode(self, shard: Shard, raw: Sequence[int]) -> Any:
            if self.clock() < 20.0:
                return super().decode(shard, raw)
            if self.clock() > 40.0:
                worker.stop()
            raise SourceUnavailableError("the schema registry does not answer")

    source = Away(given)
    source.events = {3: lambda: source.clock.sleep(20.0)}
    with fragile(path) as store:
        worker = worker_of(source, store)
        worker.run()
    assert source.clock() < 42.0
    assert found(path)
    finish(path, given)


def soon(futures: Sequence[concurrent.futures.Future[Any]], seconds: float) -> None:
    """Wait as if a thousandth of a second were all of them."""
    concurrent.futures.wait(futures, 0.001)


class Paused(ScriptedShards):
    """Calls `while_paused` in every poll of a paused source, with its number."""

    pauses = paused_polls = 0

    def while_paused(self, number: int) -> None: ...

    def pause(self) -> None:
        super().pause()
        self.pauses += 1

    def poll(self, max_records: int, timeout_s: float) -> list[tuple[Shard, Sequence[int]]]:
        if self._paused:
            self.paused_polls += 1
            self.while_paused(self.paused_polls)
        return super().poll(max_records, timeout_s)


def test_a_long_call_pauses_the_source_and_keeps_polling(path: Path, given: Streams) -> None:
    source, answer = Paused(given), threading.Event()

    def poll(number: int) -> None:
        if number == 20:
            answer.set()

    source.while_paused = poll
    watcher = ran(path, source, lambda number: assert_set(answer), wait=soon)
    assert source.paused_polls >= 20
    assert source.pauses < source.paused_polls
    assert watcher.rollbacks == 0
    check_exact(path, given)


def assert_set(event: threading.Event) -> None:
    assert event.wait(30)


def after(thing: Any, name: str, act: Callable[[], object]) -> Any:
    """The thing, of which each call of a method waits for `act`."""
    method = getattr(thing, name)

    def call(*given: Any) -> Any:
        act()
        return method(*given)

    setattr(thing, name, call)
    return thing


def announced(asked: threading.Event, answer: threading.Event) -> Callable[..., None]:
    """What says that it was called, and waits for an answer."""

    def act(*_: object) -> None:
        asked.set()
        assert_set(answer)

    return act


def slow_to_close(store: Store, closing: threading.Event, gate: threading.Event) -> PanPrivateRegressor:
    """A model that says when its open batch is to be closed, and closes it once the gate is open."""
    return after(batched(store), "close_batch", announced(closing, gate))


def test_a_worker_stays_in_its_group_while_its_last_batches_close(path: Path, given: Streams) -> None:
    source, closing, gate, polls = Paused(given), threading.Event(), threading.Event(), list[int]()

    def poll(number: int) -> None:
        if closing.is_set():
            polls.append(number)
        if len(polls) == 20:
            gate.set()

    source.while_paused = poll
    with fragile(path) as store:
        worker_of(source, store, lambda: slow_to_close(store, closing, gate), wait=soon).run(idle_seconds=1.0)
    assert len(polls) >= 20
    check_exact(path, given)


def test_a_rebalance_does_not_wait_for_a_batch_that_does_not_close(path: Path, given: Streams) -> None:
    """The next owner of the shard learns the batch again."""
    first, second = given
    source, closing, gate = Paused(given), threading.Event(), threading.Event()

    source.events = {6: lambda: revoke(worker, source, first)}
    source.while_paused = lambda number: gate.set() if closing.is_set() else None
    with fragile(path) as store:
        options = {"wait": soon, "observers": [watcher := Watcher(source.clock)], "commit_seconds": 60.0}
        worker = worker_of(source, store, lambda: slow_to_close(store, closing, gate), **options)
        worker.run(idle_seconds=1.0)
    assert watcher.retries == ["store"]
    assert (watcher.mine[-1], watcher.rollbacks) == ({second}, 1)
    assert found(path)[first].position["index"] == 0


def test_a_rebalance_whose_commit_got_no_answer_rolls_back(path: Path, given: Streams) -> None:
    """The commit may still be under way, also if the shard that is taken away had nothing to commit."""
    first, second = given
    given[second] = given[second][:20]
    source = ScriptedShards(given)
    watcher = Watcher(source.clock)

    def lose() -> None:
        learned(worker)
        store.before = raising(StoreUnavailableError("no answer"), store.commits + 1)
        source.rebalance(revoked=[second])

    source.events[8] = lose
    with fragile(path) as store:
        worker = worker_of(source, store, observers=[watcher], commit_records=40)
        worker.run(idle_seconds=1.0)
    assert watcher.retries == ["store"]
    assert (watcher.mine[-1], watcher.rollbacks) == ({first}, 1)
    finish(path, given)


def test_readers_see_how_many_records_open_batches_hold(path: Path, given: Streams) -> None:
    """Also while other shards are committed, and at the end of a worker that cannot close its batches."""
    with fragile(path) as store:

        def build() -> PanPrivateRegressor:
            estimator = PanPrivateRegressor(features=["a", "b"], budget="mu=1", batch_size=500, ledger=store.ledger)
            estimator.close_batch = lambda: None
            return estimator

        source = ScriptedShards(given)
        worker_of(source, store, build).run(idle_seconds=1.0)
        left = {shard: len(given[shard]) - total(snapshot.counts) for shard, snapshot in found(path).items()}
        assert {shard: snapshot.waiting for shard, snapshot in found(path).items()} == left
        assert any(left.values())
        shard = next(iter(given))
        store.claim([shard])
        store.note_waiting({shard: 5})
        with fragile(path) as other:
            other.claim([shard])
            store.note_waiting({shard: 7})
        assert found(path)[shard].waiting == 5


def test_a_shard_that_is_lost_during_its_claim_is_not_taken_in(path: Path, given: Streams) -> None:
    first, second = given
    source, answer = Paused(given), threading.Event()

    def poll(number: int) -> None:
        if number == 1:
            source.rebalance(lost=[first])
        else:
            answer.set()

    source.while_paused = poll
    with fragile(path) as store:
        after(store, "claim", lambda: assert_set(answer))
        watcher = watched(source, store, wait=soon)
        assert set(watcher.mine[-1]) == set(found(path)) == {second}
        with pytest.raises(FencedError):  # the claim itself was given up
            store.commit_parts({first: Part(model(store).state_dict(), {"index": 1}, Counts(1))})
        watched(ScriptedShards({first: given[first]}), store)
    check_exact(path, given)


def slow(store: Store, gate: threading.Event) -> LDPASGDRegressor:
    """A model that learns while the gate is open."""
    return after(model(store), "learn_encoded", lambda: assert_set(gate))


def learned(worker: Worker) -> None:
    """Wait until the current batch is learned."""
    concurrent.futures.wait([worker._thread.call])


def revoke(worker: Worker, source: ScriptedShards, shard: Shard) -> None:
    """Once the current batch is learned, a rebalance takes a shard away."""
    learned(worker)
    source.rebalance(revoked=[shard])


def close(gate: threading.Event, worker: Worker) -> None:
    """Before the next batch."""
    learned(worker)
    gate.clear()


def test_what_a_call_learns_of_a_shard_that_is_lost_meanwhile_counts_once(path: Path, given: Streams) -> None:
    """Nothing of the shard was pending when it was lost, and the other one has the state."""
    first, second = given
    given[first] = given[first][:50]  # so that later polls have records of the second one alone
    source, gate = Paused(given), threading.Event()
    gate.set()
    with fragile(path) as store:
        watcher = Watcher(source.clock)
        worker = worker_of(source, store, lambda: slow(store, gate), wait=soon, commit_records=1, observers=[watcher])
        source.events = {
            6: lambda: close(gate, worker),
            7: lambda: source.rebalance(lost=[second]),
            9: lambda: source.rebalance(assigned=[second]),
        }
        source.while_paused = lambda number: gate.set()
        worker.run(idle_seconds=1.0)
    assert watcher.rollbacks == 1
    check_exact(path, given)


def test_a_record_that_a_paused_source_returns_is_read_again(path: Path, given: Streams) -> None:
    source, asked, answer = Paused(given), threading.Event(), threading.Event()

    def poll(number: int) -> None:
        if asked.is_set() and not answer.is_set():
            source.resume()
            answer.set()

    source.while_paused = poll
    watcher = ran(path, source, announced(asked, answer), wait=soon)
    assert watcher.rollbacks == 1
    check_exact(path, given)


def test_a_fault_of_a_learner_is_not_committed_because_the_source_fails_too(path: Path, given: Streams) -> None:
    source, faulty = ScriptedShards(given), threading.Event()

    def build() -> LDPASGDRegressor:
        estimator = model(store)
        learn = estimator.learn_encoded

        def learn_and_fail(*arguments: Any) -> Any:
            done = learn(*arguments)
            if faulty.is_set():
                raise RuntimeError("what was learned is not counted")
            return done

        estimator.learn_encoded = learn_and_fail
        return estimator

    def begin() -> None:
        learned(worker)
        faulty.set()

    def fail() -> None:
        raise SourceError("it is over")

    source.events = {6: begin, 7: fail}
    with fragile(path) as store:
        worker = worker_of(source, store, build)
        with pytest.raises(SourceError, match="it is over"):
            worker.run()
    finish(path, given)


def test_a_position_that_its_last_owner_did_not_commit_to_the_broker_is_committed(path: Path, given: Streams) -> None:
    ran(path, ScriptedShards(given))
    again = ScriptedShards(given)
    ran(path, again)
    assert again.committed == {shard: {"index": 500} for shard in given}


@pytest.mark.parametrize("most", [1, 333, 600])
def test_a_run_stops_after_exactly_as_many_records_as_were_asked_for(path: Path, given: Streams, most: int) -> None:
    with fragile(path) as store:
        assert worker_of(ScriptedShards(given), store).run(most, 1.0) == most
    assert sum(total(snapshot.counts) for snapshot in found(path).values()) == most


def test_a_shard_without_a_commit_is_read_again_from_where_it_began(path: Path) -> None:
    """Even if another place would be its beginning by now."""
    given = streams(1, 500, 0)
    (shard,) = given

    class Latest(ScriptedShards):
        latest = 0

        def start(self, shard: Shard, position: Position | None) -> Position | None:
            self.latest += 100
            return super().start(shard, {"index": self.latest} if position is None else position)

    ran(path, Latest(given), raising(CONFLICT, 1))
    assert (found(path)[shard].position, total(found(path)[shard].counts)) == ({"index": 500}, 400)


def test_where_a_shard_goes_on_without_lost_records_is_committed_at_once(path: Path) -> None:
    """Else the next worker asks again what to do, and may begin later."""
    given = streams(1, 500, 0)
    (shard,) = given
    ran(path, ScriptedShards({shard: given[shard][:100]}))

    class Missing(ScriptedShards):
        def start(self, shard: Shard, position: Position | None) -> Position | None:
            return super().start(shard, {"index": 500})

    ran(path, Missing(given))
    assert (found(path)[shard].position, total(found(path)[shard].counts)) == ({"index": 500}, 100)


def test_a_rebalance_does_not_wait_for_a_slow_batch(path: Path, given: Streams) -> None:
    """Then the batch is rolled back, and the next owner of the shard learns it again."""
    first, second = given
    source, gate = Paused(given), threading.Event()
    gate.set()

    with fragile(path) as store:
        watcher = Watcher(source.clock)
        worker = worker_of(
            source, store, lambda: slow(store, gate), wait=soon, observers=[watcher], commit_seconds=60.0
        )
        source.events = {6: lambda: close(gate, worker), 7: lambda: source.rebalance(revoked=[first])}
        source.while_paused = lambda number: gate.set()
        worker.run(idle_seconds=1.0)
    assert watcher.mine[-1] == {second}
    assert watcher.rollbacks == 1
    assert found(path)[first].position["index"] == 0
    ran(path, ScriptedShards({first: given[first]}))
    check_exact(path, given)


def test_a_conflict_rolls_every_shard_back(path: Path) -> None:
    """Others wait until what was refused is committed, or it would never be."""
    given = streams(3, 500, 0)
    source = ScriptedShards(given)
    held: list[int] = []
    with fragile(path) as store:
        store.before = raising(CONFLICT, 3, 4, 8)
        after(store, "come_first", lambda: held.append(store.commits))
        watcher = watched(source, store)
    assert watcher.retries == ["conflict"] * 3
    assert watcher.rollbacks == 3
    assert held == [3, 4, 8]
    check_exact(path, given)


def test_a_shard_that_another_worker_claimed_by_mistake_is_claimed_again(path: Path, given: Streams) -> None:
    first, second = given
    source = ScriptedShards(given)
    fenced_at: list[float] = []

    def claim() -> None:
        fenced_at.append(source.clock())
        with fragile(path) as other:
            other.claim([first])

    source.events[6] = claim
    watcher = ran(path, source, idle=2 * RECLAIM_AFTER_S)
    assert watcher.retries == ["fenced"]
    assert watcher.mine[-2:] == [{second}, {first, second}]
    assert any(moment >= fenced_at[0] + RECLAIM_AFTER_S for moment in watcher.committed_at)
    check_exact(path, given)


def test_a_silent_source_is_asked_again(path: Path, given: Streams) -> None:

    class Silent(ScriptedShards):
        starts = 0

        def start(self, shard: Shard, position: Position | None) -> Position | None:
            self.starts += 1
            if self.starts in (1, 3):
                raise SourceUnavailableError(f"no answer to {self.starts}")
            return super().start(shard, position)

    def fail() -> None:
        raise SourceUnavailableError(f"no answer in poll {source.polls}")

    source = Silent(given)
    source.events = {1: fail, 5: fail, 6: fail}
    watcher = ran(path, source)
    assert watcher.retries == ["source"] * 5
    check_exact(path, given)


@pytest.mark.parametrize("kind", [ShardUnavailableError, SourceUnavailableError])
def test_a_fault_that_stays_is_told_once_in_thirty_seconds_and_keeps_no_other_shard_waiting(
    path: Path, given: Streams, kind: type[SourceUnavailableError]
) -> None:
    first, _ = given

    class Leaderless(ScriptedShards):
        def start(self, shard: Shard, position: Position | None) -> Position | None:
            if shard == first and self.clock() < 100.0:
                raise kind("no broker leads it at present")
            return super().start(shard, position)

    watcher = ran(path, Leaderless(given), idle=110.0)
    assert watcher.committed_at[0] < 1.0  # of the other one
    assert {message for _, _, message in watcher.told} == {f"{first}: no broker leads it at present"}
    gaps = np.diff([moment for moment, _, _ in watcher.told])
    assert len(gaps) == 3
    assert (gaps >= REPORT_AFTER_S).all()
    check_exact(path, given)


def test_stalls_are_told_when_they_begin_and_end(path: Path, given: Streams) -> None:
    first, _ = given

    class Stalled(ScriptedShards):
        def stalls(self) -> list[Stall]:
            now = self.clock()
            faults = [("no_answer", 20.0, 40.0), ("no_leader", 40.0, 50.0)]
            return [Stall(*first, why, "waits", now - begin) for why, begin, end in faults if begin <= now < end]

    class StallWatcher(Watcher):
        def __init__(self, clock: Callable[[], float]) -> None:
            super().__init__(clock)
            self.stalls: list[tuple[float, str, str, bool]] = []
            self.seen: list[tuple[float, int, int]] = []

        def on_stall(self, stall: Stall, *, ended: bool) -> None:
            self.stalls.append((self.clock(), stall.where, stall.reason, ended))

        def watched(self, positions: dict[Shard, Position], stalls: Sequence[Stall]) -> None:
            self.seen.append((self.clock(), len(positions), len(stalls)))

    source = Stalled(given)
    watcher = StallWatcher(source.clock)
    ran(path, source, idle=60.0, observers=[watcher])
    assert [stall[1:] for stall in watcher.stalls] == [
        (str(first), "no_answer", False),
        (str(first), "no_answer", True),
        (str(first), "no_leader", False),
        (str(first), "no_leader", True),
    ]
    assert [moment for moment, *_ in watcher.stalls] == pytest.approx([20.0, 40.0, 40.0, 50.0], abs=1.5)
    assert max(np.diff([moment for moment, *_ in watcher.seen])) < 2.0
    assert watcher.seen[-1][1:] == (2, 0)
    check_exact(path, given)


def test_a_worker_without_shards_says_from_time_to_time_what_it_waits_for(path: Path, given: Streams) -> None:
    class Forming(ScriptedShards):
        settled = property(lambda self: self.polls >= 600)

    source = Forming(given)
    source.assigned()  # nobody will claim them
    changed: list[float] = []

    def change(**shards: Any) -> None:
        changed.append(source.clock())
        source.rebalance(**shards)

    # A poll without records takes 0.2 seconds.
    source.events = {
        350: lambda: change(assigned=given),
        351: lambda: change(lost=given),
        600: lambda: change(assigned=given),
    }
    told = ran(path, source).told
    _, lost, _ = changed
    expected = [REPORT_AFTER_S, 2 * REPORT_AFTER_S, lost + REPORT_AFTER_S]
    assert [moment for moment, _, _ in told] == pytest.approx(expected, abs=0.5)
    message = "this worker has no shard; it waits for a call of `rebalance`"
    assert {(kind, said) for _, kind, said in told} == {("waiting", message)}
    check_exact(path, given)


def test_a_call_of_the_store_that_does_not_return_is_told(path: Path, given: Streams) -> None:
    """A commit waits in the database, for a standby that is away or for a lock: there is no error to tell."""
    source, asked, answer, began = Paused(given), threading.Event(), threading.Event(), list[float]()

    def poll(number: int) -> None:
        if answer.is_set() or not asked.is_set():  # the clock stands still: the thread has its own time
            return
        began.append(source.clock())
        source.clock.sleep(0.2)
        if source.clock() - began[0] > 2.5 * REPORT_AFTER_S:
            answer.set()

    source.while_paused = poll
    told = ran(path, source, announced(asked, answer), wait=soon).told
    assert [kind for _, kind, _ in told] == ["waiting", "waiting"]
    assert all("a call has not returned for 30 s: the database does not end it" in message for _, _, message in told)
    check_exact(path, given)


@contextlib.contextmanager
def hanging(store: FragileStore) -> Iterator[tuple[threading.Event, Wait]]:
    """The commits after the first wait for the event, as in a database that neither answers nor fails.

    Also a wait that takes a thousandth of a second for all of its time once a commit waits, and no time before.
    """
    answer, hangs = threading.Event(), threading.Event()

    def before(commit: int) -> None:
        if commit > 1:
            hangs.set()
            answer.wait()

    def wait(futures: Sequence[concurrent.futures.Future[Any]], seconds: float) -> None:
        while not concurrent.futures.wait(futures, 0.001).done and not hangs.is_set():
            pass

    store.before = before
    try:
        yield answer, wait
    finally:
        answer.set()


@pytest.mark.parametrize("moved", ["revoked", "lost"])
def test_a_commit_that_does_not_return_within_a_rebalance_is_told(path: Path, given: Streams, moved: str) -> None:
    """The rebalance goes on, and what the commit has written when it returns counts once."""
    first, second = given
    source, moves = Paused(given), list[str]()
    watcher = Watcher(source.clock)
    with fragile(path) as store, hanging(store) as (answer, wait):

        def poll(number: int) -> None:
            if watcher.told and not moves:
                moves.append(moved)
                source.rebalance(**{moved: [second]})
            if len(watcher.told) == 3:
                answer.set()
            if store.commits == 2 and not answer.is_set():  # else the clock stands still: the thread has its own time
                source.clock.sleep(0.2)

        source.events = {6: lambda: revoke(worker, source, first)}
        source.while_paused = poll
        worker = worker_of(source, store, wait=wait, observers=[watcher], commit_records=10_000)
        worker.run(idle_seconds=1.0)
        assert watcher.retries == ["store", "waiting", "waiting"]
        assert watcher.told[2][0] - watcher.told[1][0] == pytest.approx(REPORT_AFTER_S, abs=0.5)
        assert watcher.mine[-1] == set()
        assert store.commits == 2
    finish(path, given)


@pytest.mark.parametrize("within", ["rebalance", "loop"])
def test_a_worker_that_was_stopped_leaves_a_commit_that_does_not_return(
    path: Path, given: Streams, within: str
) -> None:
    """What it had not committed is learned by the next run; that commit may still count."""
    first, _ = given
    source, began, returned = Paused(given), list[float](), threading.Event()
    clock = source.clock
    with fragile(path) as store, hanging(store) as (answer, wait):

        def poll(number: int) -> None:
            clock.sleep(0.2)
            if store.commits == 2 and not began:
                began.append(clock())
                worker.stop()
            if began and clock() > began[0] + 60.0:
                answer.set()  # then it does not raise

        source.while_paused = poll
        store.after = lambda number: returned.set() if number == 2 else None
        if within == "rebalance":
            source.events = {6: lambda: revoke(worker, source, first)}
        worker = worker_of(source, store, wait=wait, commit_records=10_000 if within == "rebalance" else 50)
        with pytest.raises(StoreUnavailableError, match="did not end within 20 s after the stop"):
            worker.run()
        assert clock() - began[0] == pytest.approx(LEAVE_AFTER_S, abs=3.0)
        store.close()  # it does not wait for the call either
        assert not answer.is_set()
    assert returned.wait(30)
    finish(path, given)


class Letters:
    """Dead letters that nobody reads. `resumed` has the places that were given to `resume`."""

    name = "letters"

    def __init__(self) -> None:
        self.resumed: list[Mapping[Shard, Any]] = []
        self.written = 0

    def write(self, letters: Sequence[DeadLetter], shard: Shard = WHOLE) -> None:
        self.written += len(letters)

    def commit(self) -> int:
        return self.written

    def resume(self, places: Mapping[Shard, Any]) -> None:
        self.resumed.append(places)


def test_a_claim_finds_the_dead_letters_after_the_last_commits(path: Path, given: Streams) -> None:
    """Else those that were written for records without a commit are written again."""
    runs = [Letters(), Letters()]
    for letters in runs:
        ran(path, ScriptedShards(given), dead_letters=letters)
    assert [letters.resumed for letters in runs] == [[{}], [dict.fromkeys(given, runs[0].written)]]


def test_a_shard_that_is_lost_before_its_commit_is_left_to_its_next_owner(path: Path, given: Streams) -> None:
    """While its dead letters are written. It comes back at once, and what is spent for it then is spent once."""
    first, second = given
    source, asked, answer = Paused(given), threading.Event(), threading.Event()

    def poll(number: int) -> None:
        if asked.is_set() and not answer.is_set():
            source.rebalance(lost=[first])
            source.rebalance(assigned=[first])
            answer.set()

    source.while_paused = poll
    with fragile(path) as store:
        after(store, "check_claims", announced(asked, answer))
        claimed = Counter[Shard]()
        claim = store.claim

        def count(shards: Any) -> Any:
            claimed.update(shards)
            return claim(shards)

        store.claim = count
        options = {"wait": soon, "dead_letters": Letters(), "idle": 2 * RECLAIM_AFTER_S}
        watched(source, store, **options)
    assert claimed == {first: 2, second: 1}
    check_exact(path, given)


def test_what_cannot_be_read_is_passed_and_committed(path: Path, given: Streams) -> None:
    """A shard goes on after it; what was polled and not learned yet is no gap."""
    first, second = given

    class Gap(ScriptedShards):
        def advance(self, shard: Shard, position: Position) -> Position:
            return {"index": 507} if (shard, position) == (first, {"index": 500}) else position

    source = Gap(given)
    watcher = ran(path, source, idle=10.0, commit_records=10_000, commit_seconds=2.0)
    assert found(path)[first].position == source.committed[first] == {"index": 507}
    assert found(path)[second].position == {"index": 500}
    assert found(path)[first].counts == replay(given[first])[0][-1]
    assert source.clock() - watcher.committed_at[-1] > 5  # it was not the last commit that passed the gap


@pytest.mark.parametrize("place", [0, 1])  # the state is in the row of one of them
def test_shards_that_are_lost_take_the_spends_of_all_back(path: Path, given: Streams, place: int) -> None:
    lost, stays = list(given)[place], list(given)[1 - place]
    source = ScriptedShards(given)
    source.events[6] = lambda: source.rebalance(lost=[lost])
    source.events[9] = lambda: source.rebalance(assigned=[lost])
    watcher = ran(path, source, commit_records=10_000)
    assert {stays} in watcher.mine
    assert watcher.rollbacks == 1 + (place == 0)  # the row of the first one had the state, which is read again
    check_exact(path, given)


def test_seconds_commit_too(path: Path) -> None:
    given = streams(2, 1000, 0)
    source = ScriptedShards(given)
    source.events = dict.fromkeys(range(100), lambda: source.clock.sleep(0.5))
    watcher = ran(path, source, commit_records=10_000, commit_seconds=2.0)
    between = [b - a for a, b in zip(watcher.committed_at, watcher.committed_at[1:], strict=False)]
    assert len(between) > 3
    assert all(2.0 <= seconds <= 2.5 for seconds in between[:-1])
    check_exact(path, given)


def test_too_many_bad_records_commit_what_was_learned(path: Path) -> None:
    given = {Shard("topic", 0): [*streams(1, 500, 0)[Shard("topic", 0)], *[BAD] * 30]}
    with fragile(path) as store, pytest.raises(TooManyBadRecordsError, match=r"topic/0: .* in a row"):
        watched(ScriptedShards(given), store, max_bad_in_a_row=20)
    snapshot = found(path)[Shard("topic", 0)]
    assert snapshot.position["index"] > 520
    assert snapshot.counts == replay(given[Shard("topic", 0)])[0][snapshot.position["index"]]


def test_too_many_bad_first_records_commit_nothing(path: Path) -> None:
    given = {Shard("topic", 0): [BAD] * 300}
    with fragile(path) as store, pytest.raises(TooManyBadRecordsError, match="of the first"):
        watched(ScriptedShards(given), store, max_bad_share=0.5)
    assert [total(snapshot.counts) for snapshot in found(path).values()] == [0]


def test_records_that_never_fit_are_counted_with_warnings_and_the_run_knows_it(path: Path) -> None:
    given = {Shard("topic", s): [BAD] * 80 for s in range(2)}
    warnings: list[str] = []
    with fragile(path) as store:
        source = ScriptedShards(given)
        worker = worker_of(source, store, on_unfit=warnings.append)
        assert worker.run(idle_seconds=1.0) == 160
    assert sum(snapshot.counts.dead_letters for snapshot in found(path).values()) == 160
    (warning,) = warnings
    assert "none of the " in warning
    with pytest.raises(NothingLearnedError, match=r"160 records do not fit the schema: bad \(160\)"):
        worker.unlearned.check()


def test_a_foreign_ledger_is_refused(tmp_path: Path) -> None:
    with fragile(tmp_path / "a.db") as store, pytest.raises(ConfigError, match="ledger"):
        Worker(ScriptedShards({}), lambda: LDPASGDRegressor(features=["a", "b"], budget="mu=1"), store)


@pytest.mark.parametrize("wrong", [None, "x", 0, -1.0, float("nan")])
@pytest.mark.parametrize("name", ["commit_records", "commit_seconds"])
def test_intervals_of_commits_are_positive_numbers(tmp_path: Path, name: str, wrong: Any) -> None:
    with fragile(tmp_path / "a.db") as store, pytest.raises(ConfigError, match=name):
        Worker(ScriptedShards({}), lambda: model(store), store, **{name: wrong})


def test_a_worker_without_a_shard_is_idle_once_the_group_has_settled(tmp_path: Path) -> None:
    """Until now it counted no time, and a worker that got no partition never ended."""

    class Forming(ScriptedShards):
        first = 0
        settled = property(lambda self: self.polls >= self.first)

    def fail() -> None:
        raise AssertionError("it does not end")

    for forming, least in ((0, 1.0), (100, 20.0)):
        source = Forming({})
        source.first = forming
        source.events[1000] = fail
        assert work(tmp_path / "a.db", source) == 0
        assert least <= source.clock() < least + 3.0
