"""The worker's loop with estimators that learn in batches, over a source in memory: no broker is needed."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from streamdp import GaussianDP, PanPrivateRegressor
from streamdp.data.records import Batch, DeadLetter, Position, RebalanceListener, Shard
from streamdp.errors import SourceError
from streamdp.runtime.runner import total
from streamdp.runtime.worker import Worker
from streamdp.store.snapshot import Counts, Snapshot
from streamdp.store.store import Store

CAP = GaussianDP(2.0)
"""Four records of mu = 1."""
MOST = 4
SIZE = 37
Item = tuple[list[float], float, str] | None
"""x, y, subject; None: a record that cannot be decoded."""


class Shards:
    """Shards in lists; a `ShardedSource`. `events` are called by number of the poll, as a rebalance would be.

    It stops the worker when all was polled: to wait for a quiet stream would be a race with a slow machine.
    """

    def __init__(self, streams: Mapping[Shard, Sequence[Item]], seed: int = 0) -> None:
        self.streams = streams
        self.at: dict[Shard, int | None] = dict.fromkeys(streams)  # None: it waits for `start`
        self.new = list(streams)
        self.rng = random.Random(seed)
        self.polls = 0
        self.events: dict[int, Callable[[Worker], None]] = {}
        self.told: dict[Shard, Position] = {}
        self.held = False

    def subscribe(self, listener: RebalanceListener) -> None:
        assert isinstance(listener, Worker)
        self.listener = listener

    def assigned(self) -> list[Shard]:
        new, self.new = self.new, []
        return new

    def start(self, shard: Shard, position: Position | None) -> Position | None:
        if shard not in self.at:
            return None
        self.at[shard] = 0 if position is None else position["offset"]
        return {"offset": self.at[shard]}

    def poll(self, max_records: int, timeout_s: float) -> list[tuple[Shard, Sequence[Any]]]:
        if self.held:
            return []
        self.polls += 1
        if event := self.events.get(self.polls):
            event(self.listener)
        out: list[tuple[Shard, Sequence[Any]]] = []
        for shard, at in self.at.items():
            if at is not None and at < len(self.streams[shard]):
                stop = min(at + self.rng.randrange(1, 3 * SIZE), len(self.streams[shard]))
                out.append((shard, range(at, stop)))
                self.at[shard] = stop
        if all(at is not None and at >= len(self.streams[shard]) for shard, at in self.at.items()) and not out:
            self.listener.stop()
        return out

    def decode(self, shard: Shard, raw: Sequence[int]) -> Batch:
        items = [(i, self.streams[shard][i]) for i in raw]
        good = [(i, *item) for i, item in items if item is not None]
        return Batch(
            features=("a", "b"),
            X=np.array([x for _, x, _, _ in good], dtype=float).reshape(len(good), 2),
            y=np.array([y for _, _, y, _ in good], dtype=float),
            positions=np.array([i for i, *_ in good], dtype=np.int64),
            position={"offset": raw[-1] + 1},
            subjects=[subject for *_, subject in good],
            budgets=None,
            dead=[DeadLetter(i, "bad") for i, item in items if item is None],
        )

    def give_up(self, *shards: Shard) -> None:
        for shard in shards:
            del self.at[shard]

    def pause(self) -> None:
        self.held = True

    def resume(self) -> None:
        self.held = False

    def commit(self, positions: Mapping[Shard, Position]) -> None:
        self.told |= positions

    def close(self) -> None: ...


def streams(shards: int, records: int, seed: int) -> dict[Shard, list[Item]]:
    """Subjects have a shard each, more records than their cap, and none two within a batch, wherever that begins."""
    rng = random.Random(seed)
    people = records // 6
    assert people > 2 * SIZE

    def stream(shard: int) -> list[Item]:
        turns = iter(range(records))
        return [
            None
            if rng.random() < 0.05
            else ([rng.uniform(-1, 1), rng.uniform(-1, 1)], rng.gauss(0, 1), f"{shard}-{next(turns) % people}")
            for _ in range(records)
        ]

    return {Shard("topic", s): stream(s) for s in range(shards)}


def work(path: Path, source: Shards, **options: Any) -> int:
    with Store(path, "job", "f", cap=CAP, shared=True) as store:

        def build() -> PanPrivateRegressor:
            return PanPrivateRegressor(features=["a", "b"], budget="mu=1", batch_size=SIZE, ledger=store.ledger)

        return Worker(source, build, store, **({"commit_records": 50} | options)).run()


def found(path: Path) -> dict[Shard, Snapshot]:
    return {snapshot.shard: snapshot for snapshot in Store.snapshots(path, "job")}


def replay(stream: Sequence[Item]) -> tuple[list[Counts], Counter[str]]:
    """Counts after each record, and the records that each subject may have learned."""
    spent: Counter[str] = Counter()
    now, counts = Counts(), [Counts()]
    for item in stream:
        if item is None:
            now = Counts(now.learned, now.refused, now.dead + 1)
        elif spent[item[2]] < MOST:
            spent[item[2]] += 1
            now = Counts(now.learned + 1, now.refused, now.dead)
        else:
            now = Counts(now.learned, now.refused + 1, now.dead)
        counts.append(now)
    return counts, spent


def spends(path: Path, subjects: Sequence[str]) -> dict[str, int]:
    with Store(path, "job", "f", cap=CAP, shared=True) as store:
        assert store.ledger is not None
        return {subject: store.ledger.spent(subject).records for subject in subjects}


def check_exact(path: Path, given: Mapping[Shard, Sequence[Item]]) -> None:
    """All was counted once, and each commit is what plain Python has there."""
    last = found(path)
    for shard, stream in given.items():
        counts, spent = replay(stream)
        assert last[shard].position == {"offset": len(stream)}
        assert last[shard].counts == counts[-1]
        assert last[shard].state["n_seen"] == counts[-1].learned
        assert spends(path, list(spent)) == dict(spent)
    for commit in Store.history(path, 10_000, job="job"):
        assert commit.counts == replay(given[commit.shard])[0][commit.position["offset"]]


@pytest.mark.parametrize("seed", range(3))
def test_every_record_counts_once_and_commits_are_at_boundaries(tmp_path: Path, seed: int) -> None:
    given = streams(3, 1000, seed)
    source = Shards(given, seed)
    assert work(tmp_path / "a.db", source) == 3000
    check_exact(tmp_path / "a.db", given)
    assert source.told == {shard: {"offset": 1000} for shard in given}
    history = Store.history(tmp_path / "a.db", 10_000, job="job")
    assert len(history) > 15
    ends = {shard: replay(stream)[0][-1].learned for shard, stream in given.items()}
    assert all(c.counts.learned % SIZE == 0 or c.counts.learned == ends[c.shard] for c in history)


@pytest.mark.parametrize("seed", range(4))
def test_a_rebalance_closes_the_batch_and_the_next_owner_goes_on(tmp_path: Path, seed: int) -> None:
    given = streams(2, 600, seed)
    first, second = given
    source = Shards(given, seed)

    def take(listener: Worker) -> None:
        listener.revoked({first})
        source.give_up(first)

    source.events[5 + seed] = take
    path = tmp_path / "a.db"
    work(path, source, commit_seconds=60.0, commit_records=10_000)
    taken = found(path)[first]
    assert 0 < taken.position["offset"] < 600
    assert taken.state["n_seen"] % SIZE  # a batch that was not full
    assert found(path)[second].position == {"offset": 600}
    assert work(path, Shards({first: given[first]}, seed)) == 600 - taken.position["offset"]
    check_exact(path, given)


@pytest.mark.parametrize("seed", range(6))
def test_after_a_crash_unfinished_batches_are_learned_again_and_no_cap_is_passed(tmp_path: Path, seed: int) -> None:
    """Positions and counts are exact; a spend whose record came after the last boundary of its shard, and was committed
    with another boundary, may count twice: never too few.
    """
    given = streams(2, 600, seed)

    class Crash(Exception): ...

    def crash(listener: Worker) -> None:
        raise Crash

    path = tmp_path / "a.db"
    source = Shards(given, seed)
    source.events[4 + seed] = crash
    with pytest.raises(Crash):
        work(path, source)
    before = found(path)
    assert all(snapshot.state["n_seen"] % SIZE == 0 for snapshot in before.values())
    assert 0 < sum(snapshot.position["offset"] for snapshot in before.values()) < 1200
    work(path, Shards(given, seed + 1))
    for shard, stream in given.items():
        last = found(path)[shard]
        assert last.position == {"offset": 600}
        assert total(last.counts) == 600
        assert last.state["n_seen"] == last.counts.learned
        counts, spent = replay(stream)
        charged = spends(path, list(spent))
        assert max(charged.values()) <= MOST
        assert all(charged[subject] >= records for subject, records in spent.items())
        assert sum(charged.values()) >= last.counts.learned
        assert counts[-1].learned - last.counts.learned <= 4 * SIZE


def test_a_source_that_fails_closes_the_batches_and_commits(tmp_path: Path) -> None:
    given = streams(2, 600, 1)
    source = Shards(given)

    def fail(listener: Worker) -> None:
        raise SourceError("it is over")

    source.events[6] = fail
    path = tmp_path / "a.db"
    with pytest.raises(SourceError, match="it is over"):
        work(path, source, commit_records=10_000)
    for shard, snapshot in found(path).items():
        counts, _ = replay(given[shard])
        assert snapshot.position["offset"] == source.at[shard] > 0
        assert snapshot.counts == counts[snapshot.position["offset"]]
    assert work(path, Shards(given)) > 0
    check_exact(path, given)
