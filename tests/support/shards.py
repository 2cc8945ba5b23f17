"""Shards in memory for tests of workers: streams of subjects, polls of random sizes, events by number of poll."""

import itertools
import random
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import wait
from pathlib import Path
from typing import Any

from streamdp import GaussianDP
from streamdp.data.records import Shard
from streamdp.data.subjects import subjects_bytes
from streamdp.runtime.worker import Worker
from streamdp.store.snapshot import Counts, Snapshot
from streamdp.store.store import Store
from tests.support.clock import FakeClock
from tests.support.memory import BAD, Entry, MemoryShards

SIZE = 37
"""Records of a batch."""
CAP = GaussianDP(2.0)
"""Four records of mu = 1."""
MOST = 4
Streams = dict[Shard, list[Entry]]


class ScriptedShards(MemoryShards):
    """Shards with polls of random sizes. `events` are called within a poll, by its number; paused ones do not count.

    `timing` is for a worker: on a fake clock it never races with a slow machine, and no call of the store takes long.
    """

    def __init__(self, streams: Mapping[Shard, Sequence[Entry]], seed: int = 0) -> None:
        rng = random.Random(seed)
        self.clock = clock = FakeClock()
        self.timing: dict[str, Any] = {"clock": clock, "sleep": clock.sleep, "wait": lambda calls, _: wait(calls)}
        self.events: dict[int, Callable[[], object]] = {}
        self.polls = 0
        sizes = (rng.randrange(1, 3 * SIZE) for _ in itertools.count())
        super().__init__(streams, ["a", "b"], sizes=sizes, sleep=clock.sleep)

    def poll(self, max_records: int, timeout_s: float) -> list[tuple[Shard, Sequence[int]]]:
        self.polls += not self._paused
        if not self._paused and (event := self.events.get(self.polls)):
            event()
        return super().poll(max_records, timeout_s)


def run_quietly(source: ScriptedShards, build: Callable[[], Any], store: Store, **options: Any) -> int:
    """Run a worker until its source is quiet."""
    return Worker(source, build, store, **(source.timing | options)).run(idle_seconds=1.0)


def streams(shards: int, records: int, seed: int) -> Streams:
    """Subjects have a shard each, more records than their cap, and none two within a batch, wherever that begins."""
    rng = random.Random(seed)
    people = records // 6
    assert people > 2 * SIZE

    def stream(shard: int) -> list[Entry]:
        turns = iter(range(records))

        def record() -> Entry:
            x = {"a": rng.uniform(-1, 1), "b": rng.uniform(-1, 1)}
            return x, rng.gauss(0, 1), f"{shard}-{next(turns) % people}", None

        return [BAD if rng.random() < 0.05 else record() for _ in range(records)]

    return {Shard("topic", s): stream(s) for s in range(shards)}


def found(path: Path) -> dict[Shard, Snapshot]:
    """The last commit of each shard."""
    return {snapshot.shard: snapshot for snapshot in Store.snapshots(path, "job")}


def replay(stream: Sequence[Entry]) -> tuple[list[Counts], Counter[str]]:
    """Counts after each record, and the records that each subject may have learned."""
    spent: Counter[str] = Counter()
    now, counts = Counts(), [Counts()]
    for item in stream:
        if item is BAD:
            now = Counts(now.learned, now.refused, now.dead_letters + 1)
        elif spent[item[2]] < MOST:
            spent[item[2]] += 1
            now = Counts(now.learned + 1, now.refused, now.dead_letters)
        else:
            now = Counts(now.learned, now.refused + 1, now.dead_letters)
        counts.append(now)
    return counts, spent


def spends(path: Path, subjects: Sequence[str]) -> dict[str, int]:
    with Store(path, "job", "f", cap=CAP, shared=True) as store:
        store.ledger.prepare(subjects_bytes(subjects))
        return {subject: store.ledger.spent(subject).records for subject in subjects}


def check_exact(path: Path, given: Mapping[Shard, Sequence[Entry]]) -> None:
    """All was counted once, and each commit is what plain Python has there."""
    last = found(path)
    replays = {shard: replay(stream) for shard, stream in given.items()}
    expected: dict[str, int] = {}
    for shard, (counts, spent) in replays.items():
        assert last[shard].position == {"index": len(given[shard])}
        assert last[shard].counts == counts[-1]
        assert not expected.keys() & spent.keys()
        expected |= spent
    learned = sum(counts[-1].learned for counts, _ in replays.values())
    assert sum(snapshot.state["n_seen"] for snapshot in last.values() if snapshot.state) == learned
    assert spends(path, list(expected)) == expected
    for commit in Store.history(path, 10_000, job="job"):
        assert commit.counts == replays[commit.shard][0][commit.position["index"]]
