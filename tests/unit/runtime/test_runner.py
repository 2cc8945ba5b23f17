"""The loop: what it counts, when it commits, what it shows, and that a run in pieces equals a run in one."""

from __future__ import annotations

import concurrent.futures
import contextlib
import json
import os
import signal
import threading
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import psycopg
import pytest
from sqlalchemy.engine import make_url

from connectors.letterfile import DeadLetterFile
from streamdp import ApproxDP, LDPASGDRegressor, Ledger, PanPrivateRegressor, PureDP
from streamdp.config.job import make_config
from streamdp.data.records import WHOLE, DeadLetter, Shard
from streamdp.errors import (
    ConfigError,
    FencedError,
    SourceError,
    SourceUnavailableError,
    StoreDamagedError,
    StoreError,
    StoreUnavailableError,
)
from streamdp.runtime.calls import GIVE_UP_S, LEAVE_AFTER_S, Wait
from streamdp.runtime.defaults import POLL_TIMEOUT_S, QUIET_POLL_TIMEOUT_S, REPORT_AFTER_S
from streamdp.runtime.learning import total
from streamdp.runtime.runner import Progress, Runner
from streamdp.serving.publish import Publisher
from streamdp.serving.snapshots import combined, restore
from streamdp.store.snapshot import Counts, Snapshot
from streamdp.store.store import Store
from tests.support.clock import FakeClock
from tests.support.crashes import Crashed, crash
from tests.support.crashing import Crash
from tests.support.memory import ABORT, BAD, MemorySource
from tests.support.proxy import Proxy
from tests.support.waiting import PATIENCE_S

CAP = PureDP(3.0)
BOUNDS = {"a": (-1, 1), "b": (-1, 1)}


def items(n: int, *, bad_every: int = 0) -> list[Any]:
    out: list[Any] = []
    for i in range(n):
        x = {"a": (i % 7) / 7, "b": (i % 3) - 1.0}
        bad = bad_every and i % bad_every == 3
        out.append(BAD if bad else (x, i % 5 / 5, f"s{i % 13}", [None, 0.5][i % 2]))
    return out


class OneByOne(MemorySource):
    """A record in each poll."""

    def poll(self, max_records: int, timeout: float) -> Any:
        return super().poll(1, timeout)


def source_of(n: int, *, bad_every: int = 0) -> MemorySource:
    return MemorySource(items(n, bad_every=bad_every), ["a", "b"])


def model(store: Store | None = None, seed: int | None = 5) -> LDPASGDRegressor:
    return LDPASGDRegressor(features=["a", "b"], budget="eps=1", ledger=store and store.ledger, seed=seed)


def run(path: Path, source: MemorySource, max_records: int | None = None, **options: Any) -> Counts:
    with Store(path, "job", "f", cap=CAP) as store:
        return Runner(source, model(store), store, **options).run(max_records)


def replay(stream: list[Any]) -> tuple[Counts, dict[str, float]]:
    """Counts and spends by plain Python."""
    learned = refused = dead = 0
    spent: dict[str, float] = {}
    for item in stream:
        if item is BAD:
            dead += 1
            continue
        _, _, subject, budget = item
        wanted = spent.get(subject, 0.0) + (budget or 1.0)
        if wanted > CAP.epsilon * (1 + 1e-9):
            refused += 1
        else:
            learned += 1
            spent[subject] = wanted
    return Counts(learned, refused, dead), spent


def test_everything_is_counted_once_and_agrees_with_plain_python(tmp_path: Path) -> None:
    stream = items(100, bad_every=10)
    counts = run(tmp_path / "a.db", MemorySource(stream, ["a", "b"]), commit_records=16)
    expected, spent = replay(stream)
    assert counts == expected
    assert total(counts) == 100
    assert min(counts.refused, counts.dead_letters) > 0
    with Store(tmp_path / "a.db", "job", "f", cap=CAP) as store:
        assert {s: store.ledger.spent(s).epsilon for s in spent} == pytest.approx(spent)


def test_commits_fall_exactly_on_the_boundary(tmp_path: Path) -> None:
    run(tmp_path / "a.db", source_of(50), commit_records=16)
    history = Store.history(tmp_path / "a.db")
    assert [commit.position["index"] for commit in history] == [16, 32, 48, 50]
    assert [total(commit.counts) for commit in history] == [16, 32, 48, 50]


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.slow
def test_pieces_equal_one_run(tmp_path: Path, seed: int) -> None:
    """Runs of random lengths with random commit intervals: counts, position and spends as in one run."""
    rng = np.random.default_rng(seed)
    stream = items(400, bad_every=9)
    whole = run(tmp_path / "whole.db", MemorySource(stream, ["a", "b"]))
    counts = Counts()
    while total(counts) < 400:
        counts = run(
            tmp_path / "pieces.db",
            MemorySource(stream, ["a", "b"]),
            int(rng.integers(1, 90)),
            commit_records=int(rng.integers(1, 40)),
        )
    assert counts == whole
    one, many = Store.snapshot(tmp_path / "whole.db"), Store.snapshot(tmp_path / "pieces.db")
    assert one.position == many.position == {"index": 400}
    spends = []
    for name in ("whole.db", "pieces.db"):
        with Store(tmp_path / name, "job", "f", cap=CAP) as store:
            spends.append([store.ledger.spent(f"s{i}") for i in range(13)])
    assert spends[0] == spends[1]


def test_the_same_seed_and_any_commit_interval_give_the_same_model(tmp_path: Path) -> None:
    states = []
    for name, interval in (("a.db", 7), ("b.db", 100)):
        run(tmp_path / name, source_of(60), commit_records=interval)
        states.append(Store.snapshot(tmp_path / name).state["state"])
    np.testing.assert_array_equal(*states)


def test_abort_commits_what_was_counted_and_the_next_run_goes_on(tmp_path: Path) -> None:
    stream = [*items(25), ABORT, *items(10)]
    source = MemorySource(stream, ["a", "b"])
    with pytest.raises(SourceError):
        run(tmp_path / "a.db", source, commit_records=10)
    snapshot = Store.snapshot(tmp_path / "a.db")
    assert total(snapshot.counts) == 25
    counts = run(tmp_path / "a.db", source, commit_records=10)
    assert total(counts) == 35


class Broken(MemorySource):
    """Fails once, at the 16th record, in a way that nobody foresaw."""

    whole = False

    def poll(self, max_records: int, timeout_s: float) -> Any:
        if self.position["index"] >= 15 and not self.whole:
            self.whole = True
            raise RuntimeError
        return super().poll(min(max_records, 5), timeout_s)


def test_any_other_error_leaves_the_last_commit(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError):
        run(tmp_path / "a.db", Broken(items(30), ["a", "b"]), commit_records=10)
    snapshot = Store.snapshot(tmp_path / "a.db")
    assert total(snapshot.counts) == 10
    assert total(run(tmp_path / "a.db", source_of(30))) == 30


class Away(MemorySource):
    """Does not answer in every second poll."""

    polls = 0

    def poll(self, max_records: int, timeout_s: float) -> Any:
        self.polls += 1
        if self.polls % 2:
            raise SourceUnavailableError("no answer")
        return super().poll(min(max_records, 5), timeout_s)


def test_a_source_that_does_not_answer_is_waited_for(tmp_path: Path) -> None:
    """An outage of Redis ended a run that followed a stream."""
    clock, told = FakeClock(), list[str]()
    source = Away(items(40), ["a", "b"])
    options: dict[str, Any] = {"clock": clock, "sleep": clock.sleep, "on_waiting": told.append}
    assert run(tmp_path / "a.db", source, commit_records=10, **options) == replay(items(40))[0]
    assert len(clock.slept) == 8
    assert told == ["no answer; trying again"]  # and not for each poll
    assert [commit.position["index"] for commit in Store.history(tmp_path / "a.db")] == [10, 20, 30, 40]


class Failing(Store):
    """Does not answer at some times; `lost` says whether it has done what was asked before."""

    lost, claimed = False, False
    fails = 0

    @contextlib.contextmanager
    def _transaction(self, spending: bool = False) -> Iterator[Any]:
        if fails := self.fails:
            self.fails -= 1
            if self.claimed:  # by another process, which has found the session of this one ended
                self.claimed = False
                epoch = self._claims[WHOLE].epoch
                self.fails = 0
                self.claim([WHOLE])
                self._claims[WHOLE].epoch = epoch
        if fails and not self.lost:
            raise StoreUnavailableError("57P01")
        with super()._transaction(spending) as connection:
            yield connection
        if fails:
            raise StoreUnavailableError("57P01")


@pytest.mark.parametrize("lost", [False, True])
def test_a_store_that_does_not_answer_is_waited_for_and_a_commit_counts_once(tmp_path: Path, lost: bool) -> None:
    """A failover of PostgreSQL ended the run of a file. A commit whose answer was lost is found, and not repeated."""
    clock, told = FakeClock(), list[str]()
    options: dict[str, Any] = {"clock": clock, "sleep": clock.sleep, "on_waiting": told.append, "commit_records": 10}
    with Failing(tmp_path / "a.db", "job", "f", cap=CAP) as store:

        def commit_fails(progress: Progress) -> None:
            store.lost, store.fails = lost, 3

        store.fails = 2  # at the start
        runner = Runner(source_of(40), model(store), store, on_progress=commit_fails, **options)
        assert runner.run() == replay(items(40))[0]
    assert clock.slept
    assert told == ["57P01; trying again"]
    assert [commit.position["index"] for commit in Store.history(tmp_path / "a.db")] == [10, 20, 30, 40]
    with Store(tmp_path / "a.db", "job", "f", cap=CAP) as store:
        spent = {name: store.ledger.spent(name).epsilon for name in replay(items(40))[1]}
    assert spent == pytest.approx(replay(items(40))[1])


def test_a_repeated_commit_is_refused_if_another_process_has_claimed_the_job(tmp_path: Path) -> None:
    clock = FakeClock()
    with Failing(tmp_path / "a.db", "job", "f", cap=CAP) as store:

        def commit_fails(progress: Progress) -> None:
            store.claimed, store.fails = True, 1

        options: dict[str, Any] = {"clock": clock, "sleep": clock.sleep, "on_progress": commit_fails}
        with pytest.raises(FencedError):
            Runner(source_of(40), model(store), store, commit_records=10, **options).run()
    assert Store.snapshot(tmp_path / "a.db") is None


@pytest.mark.parametrize("begun", [True, False])
def test_a_run_that_is_stopped_gives_up_a_store_that_does_not_answer(
    tmp_path: Path, begun: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also if it was stopped before it began."""
    clock = FakeClock()
    with Failing(tmp_path / "a.db", "job", "f", cap=CAP) as store:

        def never(progress: Progress) -> None:
            store.fails = 10**9
            runner.stop()

        options: dict[str, Any] = {"clock": clock, "sleep": clock.sleep, "on_progress": never}
        runner = Runner(source_of(40), model(store), store, commit_records=10, **options)
        if not begun:
            monkeypatch.setattr(store, "load", Mock(side_effect=StoreUnavailableError("57P01")))
            runner.stop()
        with pytest.raises(StoreUnavailableError, match="57P01"):
            runner.run()
    assert GIVE_UP_S < clock() < GIVE_UP_S + LEAVE_AFTER_S


def test_nothing_is_shown_before_it_is_committed(tmp_path: Path) -> None:
    path = tmp_path / "a.db"
    shown: list[Snapshot] = []

    def publish(snapshot: Snapshot) -> None:
        on_disk = Store.snapshot(path)
        assert on_disk.seq == snapshot.seq
        np.testing.assert_array_equal(on_disk.state["state"], snapshot.state["state"])
        shown.append(snapshot)

    run(path, source_of(45), commit_records=20, publish=[publish])
    assert [total(snapshot.counts) for snapshot in shown] == [20, 40, 45]


def test_an_estimator_that_learned_what_the_store_does_not_know_is_refused(tmp_path: Path) -> None:
    source = Broken(items(40), ["a", "b"])
    with Store(tmp_path / "a.db", "job", "f", cap=CAP) as store:
        estimator = model(store)
        with pytest.raises(RuntimeError):
            Runner(source, estimator, store).run()
        with pytest.raises(ConfigError, match="begin with a new one"):
            Runner(source_of(40), estimator, store).run()
        assert Runner(source_of(40), model(store), store).run() == replay(items(40))[0]


def test_what_was_not_committed_is_not_spent_by_the_next_run(tmp_path: Path) -> None:
    source = Broken(items(60), ["a", "b"])
    with Store(tmp_path / "a.db", "job", "f", cap=CAP) as store:
        runner = Runner(source, model(store), store, commit_records=10)
        with pytest.raises(RuntimeError):
            runner.run()
        assert runner.run() == replay(items(60))[0]


_JOB: dict[str, Any] = {
    "job": "r",
    "source": {"path": "a.csv"},
    "schema": {"features": {"x": [0, 1]}, "target": {"column": "y"}},
    "model": {"estimator": "LDPASGDRegressor"},
}


@pytest.mark.parametrize("place", ["no/such/model.json", "."])
def test_a_place_that_cannot_be_published_to_is_an_error_at_once(tmp_path: Path, place: str) -> None:
    with pytest.raises(StoreError, match="cannot publish"):
        Publisher(make_config(_JOB | {"publish": [str(tmp_path / place)]}))
    assert not list(tmp_path.iterdir())


def test_a_snapshot_with_another_configuration_is_not_shown() -> None:
    config = make_config(_JOB | {"model": {"estimator": "LDPASGDRegressor", "mechanism": "none"}})
    state = config.build_estimator().state_dict()
    snapshot = Snapshot("r", config.fingerprint(), config.text(), 1, 0.0, Counts(), {}, state)
    assert not restore(snapshot).estimator.guarantee.private
    edited = snapshot.config.replace("none", "auto")
    with pytest.raises(StoreDamagedError, match="configuration"):
        restore(replace(snapshot, config=edited))


def test_shards_that_were_published_before_and_after_a_larger_cap_keep_both_in_the_statement() -> None:
    def job(cap: str) -> Any:
        return make_config(_JOB | {"schema": _JOB["schema"] | {"subject": "id"}, "cap": cap})

    before, estimator = job("eps=2"), job("eps=2").build_estimator(Ledger("eps=2"))
    estimator.learn_one({"x": 0.5}, 1.0, subject="ann")
    old = Snapshot(
        "r", before.fingerprint(), before.text(), 1, 1.0, Counts(1), {}, estimator.state_dict(), Shard("t", 1)
    )
    fingerprint, text, _ = job("eps=5").continued(before.text(), 1, True)
    new = replace(old, fingerprint=fingerprint, config=text, committed_at=2.0, shard=Shard("t", 0))
    for shards in ([old, new], [new, old]):
        said = restore(combined(shards)).statement()
        assert "would pass eps=2; this is the largest cap under which a record was charged, and the cap is eps=5" in (
            said
        )
        assert "until 1 records were learned, the default budget was eps=1 and the cap eps=2" in said


def test_a_model_that_is_not_finite_is_not_committed(tmp_path: Path) -> None:
    class Diverging(LDPASGDRegressor):
        def state_dict(self) -> dict[str, Any]:
            state = super().state_dict()
            if self.n_seen > 10:
                state["state"][0, 0] = np.inf
            return state

    with Store(tmp_path / "a.db", "job", "f") as store:
        estimator = Diverging(features=["a", "b"])
        with pytest.raises(ConfigError, match="no longer finite"):
            Runner(source_of(30), estimator, store, commit_records=10).run()
    assert [c.counts.learned for c in Store.history(tmp_path / "a.db")] == [10]


@pytest.mark.parametrize(
    ("service", "polls"), [(False, [POLL_TIMEOUT_S, 0.05, 0.05]), (True, [QUIET_POLL_TIMEOUT_S, 0.0, 0.0])]
)
def test_a_run_without_records_waits_as_long_as_a_poll_may(tmp_path: Path, service: bool, polls: list[float]) -> None:
    """A quiet job of a service polled every 50 ms, for commits that nothing waited for."""
    asked: list[float] = []

    class Quiet(MemorySource):
        def poll(self, max_records: int, timeout_s: float) -> Any:
            found = super().poll(min(max_records, 1), timeout_s)
            asked.append(timeout_s)
            return found

    run(
        tmp_path / "a.db", Quiet(items(3), ["a", "b"]), commit_seconds=0.05, clock=FakeClock(), commit_when_idle=service
    )
    assert asked[:3] == polls


def test_batches_are_committed_whole_and_the_last_one_is_closed(tmp_path: Path) -> None:
    """Records over the cap, bad ones and a second one of a subject in a batch do not fill a batch; it reads 16."""
    stream = items(60, bad_every=10)
    with Store(tmp_path / "a.db", "job", "f", cap=ApproxDP(3.0, 1e-5)) as store:
        estimator = PanPrivateRegressor(features=["a", "b"], batch_size=8, ledger=store.ledger)
        source = MemorySource([BAD if item is BAD else (*item[:3], None) for item in stream], ["a", "b"])
        counts = Runner(source, estimator, store, commit_records=5).run()
    assert [c.counts.learned for c in Store.history(tmp_path / "a.db")] == [8, 16, 24, 32, 38, 38, 38]
    assert counts == Counts(38, 12, 6, 4)


def test_whole_batches_are_committed_while_an_open_one_waits_for_records(tmp_path: Path) -> None:
    """No model was shown of a followed file that was quiet in the middle of a batch. Workers committed them."""
    clock, shown = FakeClock(), []
    stream = [(*item[:2], f"p{i}", None) for i, item in enumerate(items(40))]
    stream[4] = stream[22] = BAD

    class Quiet(MemorySource):
        def poll(self, max_records: int, timeout_s: float) -> Any:
            clock.sleep(1.0)
            if clock() > 30:
                raise Crash
            if self.position["index"] < 25:
                return super().poll(min(max_records, 25 - self.position["index"]), timeout_s)
            return replace(MemorySource([], ["a", "b"]).poll(1, 0.0), position=self.position)

    def publish(snapshot: Snapshot) -> None:
        shown.append((snapshot.counts.learned, snapshot.counts.dead_letters, snapshot.waiting, snapshot.position))
        assert path.read_bytes().count(b"\n") == snapshot.counts.dead_letters

    def job(source: MemorySource) -> list[int]:
        with Store(tmp_path / "a.db", "job", "f", cap=ApproxDP(9.0, 1e-5)) as store:
            letters = DeadLetterFile(path)
            before = [store.ledger.spent(f"p{i}").records for i in range(40)]
            estimator = PanPrivateRegressor(features=["a", "b"], batch_size=8, ledger=store.ledger)
            Runner(
                source, estimator, store, commit_seconds=5.0, clock=clock, dead_letters=letters, publish=[publish]
            ).run()
            letters.close()
            after = [store.ledger.spent(f"p{i}").records for i in range(40)]
            assert after == [int(i not in (4, 22)) for i in range(40)]
            return before

    path = tmp_path / "letters.jsonl"
    with pytest.raises(Crash):
        job(Quiet(stream, ["a", "b"]))
    assert shown[-1] == (16, 1, 8, {"index": 17})
    assert sum(job(MemorySource(stream, ["a", "b"]))) == 16
    assert shown[-1] == (38, 2, 0, {"index": 40})


def test_people_who_are_held_out_of_the_last_batch_are_counted(tmp_path: Path) -> None:
    stream = [({"a": i % 7 / 7, "b": i % 3 - 1.0}, i % 5 / 5, None, None) for i in range(3_000)]
    validation = {"share": 0.1}
    estimator = PanPrivateRegressor(features=BOUNDS, target=(-1, 1), validation=validation, budget="eps=8,delta=1e-6")
    with Store(tmp_path / "s.db", "job", "f") as store:
        counts = Runner(MemorySource(stream, ["a", "b"]), estimator, store).run()
    assert "that of answers" in estimator.statement()
    assert counts == Counts(estimator.n_seen) == Counts(3_000)


def test_a_large_batch_is_polled_in_pieces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No poll is so long that a signal or the clock must wait for it, also where a commit waits for a boundary."""
    asked: list[int] = []

    class Asked(MemorySource):
        def poll(self, max_records: int, timeout_s: float) -> Any:
            asked.append(max_records)
            return super().poll(max_records, timeout_s)

    monkeypatch.setattr("streamdp.runtime.runner.POLL_RECORDS", 7)
    with Store(tmp_path / "a.db", "job", "f") as store:
        estimator = PanPrivateRegressor(features=["a", "b"], batch_size=50)
        source = Asked([(*item[:3], None) for item in items(120)], ["a", "b"])
        assert Runner(source, estimator, store, commit_records=20).run() == Counts(120, 0, 0)
    assert max(asked) == 7
    assert [c.counts.learned for c in Store.history(tmp_path / "a.db")] == [50, 100, 120]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_finishes_the_batch_commits_and_restores_the_handlers(tmp_path: Path, number: int) -> None:
    before = signal.getsignal(number)
    sent = []

    def interrupt(progress: Progress) -> None:
        if total(progress.counts) >= 20 and not sent:
            sent.append(total(progress.counts))
            os.kill(os.getpid(), number)

    counts = run(tmp_path / "a.db", OneByOne(items(1000), ["a", "b"]), on_progress=interrupt)
    assert 20 <= total(counts) < 1000
    snapshot = Store.snapshot(tmp_path / "a.db")
    assert snapshot.counts == counts
    assert snapshot.position == {"index": total(counts)}
    assert signal.getsignal(number) is before


def test_a_second_interrupt_aborts_without_a_commit(tmp_path: Path) -> None:
    def interrupt(progress: Progress) -> None:
        os.kill(os.getpid(), signal.SIGINT)
        os.kill(os.getpid(), signal.SIGINT)

    with pytest.raises(KeyboardInterrupt):
        run(tmp_path / "a.db", source_of(100), on_progress=interrupt)
    assert not (tmp_path / "a.db").exists()
    assert total(run(tmp_path / "a.db", source_of(100))) == 100


def test_it_runs_in_another_thread_and_stops_when_told(tmp_path: Path) -> None:
    results: list[Counts] = []
    with Store(tmp_path / "a.db", "job", "f", cap=CAP) as store:
        source = source_of(100)
        runner = Runner(source, model(store), store, commit_records=10, on_progress=lambda progress: runner.stop())
        thread = threading.Thread(target=lambda: results.append(runner.run()))
        thread.start()
        thread.join(PATIENCE_S)
    assert [total(counts) for counts in results] == [10]


def test_dead_letters_are_durable_before_their_records_are_committed(tmp_path: Path) -> None:
    class Letters:
        name = "letters"

        def __init__(self) -> None:
            self.written: list[DeadLetter] = []
            self.durable = 0

        def write(self, letters: Any, shard: Any = WHOLE) -> None:
            self.written += letters

        def commit(self) -> int:
            self.durable = len(self.written)
            return self.durable

        def resume(self, places: Any) -> None:
            """No run continues here."""

    letters = Letters()

    def publish(snapshot: Snapshot) -> None:
        assert letters.durable == snapshot.counts.dead_letters

    run(tmp_path / "a.db", source_of(40, bad_every=5), commit_records=7, dead_letters=letters, publish=[publish])
    assert [letter.position for letter in letters.written] == list(range(3, 40, 5))


def positions(path: Path) -> list[Any]:
    """The places of the dead letters of a file."""
    return [json.loads(line)["position"] for line in path.read_text().splitlines()]


def test_dead_letters_of_a_commit_that_fails_are_written_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def job(n: int) -> None:
        with contextlib.closing(DeadLetterFile(path)) as letters:
            run(tmp_path / "a.db", source_of(n, bad_every=5), commit_records=7, dead_letters=letters)

    path = tmp_path / "letters.jsonl"
    job(12)
    with monkeypatch.context() as patch:
        patch.setattr(Store, "commit_parts", crash)
        with pytest.raises(Crashed):
            job(40)
    job(40)
    assert positions(path) == list(range(3, 40, 5))


def test_dead_letters_of_a_run_that_cannot_begin_again_are_written_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "letters.jsonl"
    with Store(tmp_path / "a.db", "job", "f", cap=CAP) as store, contextlib.closing(DeadLetterFile(path)) as letters:
        source = source_of(40, bad_every=5)
        runner = Runner(source, model(store), store, dead_letters=letters, on_progress=crash)
        with pytest.raises(Crashed):
            runner.run()
        monkeypatch.setattr(Store, "load", crash)
        with pytest.raises(Crashed):
            runner.run()
    assert positions(path) == list(range(3, 40, 5))


def test_dead_letters_may_go_elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The place in a file was used in another one, where letters came twice, and in a topic, where it is no offset."""

    def job(n: int, letters: Any) -> None:
        with contextlib.closing(letters):
            run(tmp_path / "a.db", source_of(n, bad_every=5), commit_records=7, dead_letters=letters)

    job(12, DeadLetterFile(tmp_path / "one"))
    with monkeypatch.context() as patch:
        patch.setattr(Store, "commit_parts", crash)
        with pytest.raises(Crashed):
            job(40, DeadLetterFile(tmp_path / "two"))
    job(40, DeadLetterFile(tmp_path / "two"))
    assert positions(tmp_path / "two") == list(range(13, 40, 5))

    class Topic(DeadLetterFile):
        def commit(self) -> Any:
            super().commit()
            return {"0": 7}

        def resume(self, places: Mapping[Any, Any]) -> None:
            seen.append(places[WHOLE])

    seen: list[Any] = []
    for n in (50, 60):
        job(n, Topic(tmp_path / "three"))
    assert seen == [None, {"0": 7}]


def test_a_foreign_ledger_is_refused(tmp_path: Path) -> None:
    with Store(tmp_path / "a.db", "job", "f", cap=CAP) as store, pytest.raises(ConfigError, match="ledger"):
        Runner(MemorySource([], ["a", "b"]), model(None), store)


# -- a database that neither answers nor fails -------------------------------------------------------------------------


def soon(clock: FakeClock, hangs: threading.Event) -> Wait:
    """Wait as if a few thousandths of a second were all of them, once a call hangs, and no time before."""

    def wait(calls: Sequence[Future[Any]], seconds: float) -> None:
        while not concurrent.futures.wait(calls, 0.005).done:
            if hangs.is_set():
                clock.sleep(seconds)
                return

    return wait


@pytest.mark.parametrize("stopped", [False, True])
def test_a_last_batch_that_does_not_close_is_told_and_left_after_a_stop(tmp_path: Path, stopped: bool) -> None:
    """To release a large window may take long, and so may a database that the estimator asks."""
    clock, told, gate, hangs = FakeClock(), list[float](), threading.Event(), threading.Event()

    def close_batch() -> None:
        hangs.set()
        assert gate.wait(PATIENCE_S)

    with Store(tmp_path / "a.db", "job", "f", cap=CAP) as store:
        estimator = model(store)
        estimator.close_batch = close_batch

        def waiting(message: str) -> None:
            told.append(clock())
            if len(told) == 2:
                runner.stop() if stopped else gate.set()

        options: dict[str, Any] = {"on_waiting": waiting, "clock": clock, "wait": soon(clock, hangs)}
        runner = Runner(source_of(100), estimator, store, commit_seconds=1e9, **options)
        if stopped:
            with pytest.raises(StoreUnavailableError, match="did not end within 20 s after the stop"):
                runner.run()
            gate.set()
        else:
            assert total(runner.run()) == 100
    assert told[1] - told[0] == pytest.approx(REPORT_AFTER_S, abs=1)


def test_readers_see_from_time_to_time_how_many_records_an_open_batch_holds(tmp_path: Path) -> None:
    clock, seen = FakeClock(), list[int]()
    own_subjects = [(x, y, f"s{i}", None) for i, (x, y, *_) in enumerate(items(100))]
    path = tmp_path / "a.db"

    def look(progress: Progress) -> None:
        clock.sleep(1.0)
        if (snapshot := Store.snapshot(path)) is not None:
            seen.append(snapshot.waiting)
            assert total(snapshot.counts) in (0, 40, 80, 90)

    with Store(path, "job", "f") as store:
        model = PanPrivateRegressor(features=["a", "b"], budget="mu=1", batch_size=40)
        options: dict[str, Any] = {"commit_records": 1, "on_progress": look, "clock": clock}
        Runner(OneByOne(own_subjects, ["a", "b"]), model, store, **options).run(90)
    assert sorted(set(seen)) == [0, *range(1, 40, 5)]
    assert seen[:1] == [0]


ENDS_SESSIONS = """SELECT pg_terminate_backend(pid) FROM pg_stat_activity
WHERE datname = current_database() AND pid != pg_backend_pid()"""


@pytest.mark.slow
@pytest.mark.parametrize("how", ["before", "after", "terminated"])
def test_a_failover_of_postgresql_ends_no_run_and_each_commit_counts_once(server_database: str, how: str) -> None:
    """The connection ends before or after the server has the word COMMIT, or by the server (57P01)."""
    url, told = make_url(server_database), list[str]()
    with Proxy(url.port or 5432) as proxy:
        through = url.set(port=proxy.port).render_as_string(hide_password=False)

        def fail(progress: Progress) -> None:
            if progress.counts == progress.committed:
                return
            if how == "terminated":
                with psycopg.connect(server_database, autocommit=True) as admin:
                    admin.execute(ENDS_SESSIONS)
            else:
                proxy.cut_at(b"COMMIT", forward=how == "after")

        with Store(through, "job", "f", cap=CAP, key=bytes(32)) as store:
            options: dict[str, Any] = {"commit_records": 10, "on_progress": fail, "on_waiting": told.append}
            runner = Runner(source_of(40), model(store), store, **options)
            assert runner.run() == replay(items(40))[0]
            assert {s: store.ledger.spent(s).epsilon for s in replay(items(40))[1]} == pytest.approx(
                replay(items(40))[1]
            )
    assert len(told) > 0
    assert [commit.position["index"] for commit in Store.history(server_database)] == [10, 20, 30, 40]
