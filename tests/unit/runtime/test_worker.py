"""The worker's loop over a source in memory: no broker is needed, and no test waits for real time."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from connectors.memory import BAD, Entry
from streamdp import GaussianDP, PanPrivateRegressor
from streamdp.data.records import Shard
from streamdp.errors import SourceError
from streamdp.runtime.learning import total
from streamdp.store.snapshot import Counts
from streamdp.store.store import Store
from tests.support.shards import SIZE, ScriptedShards, found, run_quietly, streams

CAP = GaussianDP(2.0)
"""Four records of mu = 1."""
MOST = 4


def work(path: Path, source: ScriptedShards, **options: Any) -> int:
    with Store(path, "job", "f", cap=CAP, shared=True) as store:

        def build() -> PanPrivateRegressor:
            return PanPrivateRegressor(features=["a", "b"], budget="mu=1", batch_size=SIZE, ledger=store.ledger)

        return run_quietly(source, build, store, **({"commit_records": 50} | options))


def replay(stream: Sequence[Entry]) -> tuple[list[Counts], Counter[str]]:
    """Counts after each record, and the records that each subject may have learned."""
    spent: Counter[str] = Counter()
    now, counts = Counts(), [Counts()]
    for item in stream:
        if item is BAD:
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


def check_exact(path: Path, given: Mapping[Shard, Sequence[Entry]]) -> None:
    """All was counted once, and each commit is what plain Python has there."""
    last = found(path)
    for shard, stream in given.items():
        counts, spent = replay(stream)
        assert last[shard].position == {"index": len(stream)}
        assert last[shard].counts == counts[-1]
        assert last[shard].state["n_seen"] == counts[-1].learned
        assert spends(path, list(spent)) == dict(spent)
    for commit in Store.history(path, 10_000, job="job"):
        assert commit.counts == replay(given[commit.shard])[0][commit.position["index"]]


@pytest.mark.parametrize("seed", range(3))
def test_every_record_counts_once_and_commits_are_at_boundaries(tmp_path: Path, seed: int) -> None:
    given = streams(3, 1000, seed)
    source = ScriptedShards(given, seed)
    assert work(tmp_path / "a.db", source) == 3000
    check_exact(tmp_path / "a.db", given)
    assert source.committed == {shard: {"index": 1000} for shard in given}
    history = Store.history(tmp_path / "a.db", 10_000, job="job")
    assert len(history) > 15
    ends = {shard: replay(stream)[0][-1].learned for shard, stream in given.items()}
    assert all(c.counts.learned % SIZE == 0 or c.counts.learned == ends[c.shard] for c in history)


@pytest.mark.parametrize("seed", range(4))
def test_a_rebalance_closes_the_batch_and_the_next_owner_goes_on(tmp_path: Path, seed: int) -> None:
    given = streams(2, 600, seed)
    first, second = given
    source = ScriptedShards(given, seed)

    source.events[5 + seed] = lambda: source.rebalance(revoked=[first])
    path = tmp_path / "a.db"
    work(path, source, commit_seconds=60.0, commit_records=10_000)
    taken = found(path)[first]
    assert 0 < taken.position["index"] < 600
    assert taken.state["n_seen"] % SIZE  # a batch that was not full
    assert found(path)[second].position == {"index": 600}
    assert work(path, ScriptedShards({first: given[first]}, seed)) == 600 - taken.position["index"]
    check_exact(path, given)


@pytest.mark.parametrize("seed", range(6))
def test_after_a_crash_unfinished_batches_are_learned_again_and_no_cap_is_passed(tmp_path: Path, seed: int) -> None:
    """Positions and counts are exact; a spend whose record came after the last boundary of its shard, and was committed
    with another boundary, may count twice: never too few.
    """
    given = streams(2, 600, seed)

    class Crash(Exception): ...

    def crash() -> None:
        raise Crash

    path = tmp_path / "a.db"
    source = ScriptedShards(given, seed)
    source.events[4 + seed] = crash
    with pytest.raises(Crash):
        work(path, source)
    before = found(path)
    assert all(snapshot.state["n_seen"] % SIZE == 0 for snapshot in before.values())
    assert 0 < sum(snapshot.position["index"] for snapshot in before.values()) < 1200
    work(path, ScriptedShards(given, seed + 1))
    for shard, stream in given.items():
        last = found(path)[shard]
        assert last.position == {"index": 600}
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
    source = ScriptedShards(given)

    reached: dict[Shard, Any] = {}

    def fail() -> None:
        reached.update(source.positions)
        raise SourceError("it is over")

    source.events[6] = fail
    path = tmp_path / "a.db"
    with pytest.raises(SourceError, match="it is over"):
        work(path, source, commit_records=10_000)
    for shard, snapshot in found(path).items():
        counts, _ = replay(given[shard])
        assert snapshot.position == reached[shard]
        assert snapshot.position["index"] > 0
        assert snapshot.counts == counts[snapshot.position["index"]]
    assert work(path, ScriptedShards(given)) > 0
    check_exact(path, given)
