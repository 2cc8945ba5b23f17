"""Workers that share a store: only owners commit, all or nothing, and no subject's cap is granted twice."""

import threading
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import psycopg
import pytest

from streamdp.data.records import WHOLE, Shard
from streamdp.database import sqlite
from streamdp.errors import FencedError, LedgerConflictError, StoreUnavailableError
from streamdp.privacy.guarantees import PureDP
from streamdp.store import store as store_module
from streamdp.store.snapshot import Counts, Part
from streamdp.store.store import Store
from tests.support.busy import refused_as_busy
from tests.support.waiting import PATIENCE_S, wait_until

CAP = PureDP(3)
ONE = PureDP(1)
SHARDS = [Shard("topic", i) for i in range(3)]


def shared(place: str, cap: PureDP = CAP) -> Store:
    return Store(place, "job", "print", cap=cap, shared=True)


def part(offset: int, learned: int = 0) -> Part:
    return Part({"at": offset}, {"offset": offset}, Counts(learned))


def spend(store: Store, *subjects: str) -> list[bool]:
    return store.ledger.admit_many(subjects, ONE).tolist()


def records(place: str, *subjects: str) -> list[int]:
    """How many records of these subjects are committed."""
    with shared(place) as store:
        return [store.ledger.spent(subject).records for subject in subjects]


def committed(place: str) -> dict[Shard, tuple[int, int]]:
    return {s.shard: (s.seq, s.position["offset"]) for s in Store.snapshots(place, "job")}


def test_a_second_claim_fences_the_first(place: str) -> None:
    with shared(place) as first, shared(place) as second:
        assert first.claim(SHARDS[:1]) == {SHARDS[0]: None}
        spend(first, "ann")
        first.commit_parts({SHARDS[0]: part(1)})
        (found,) = second.claim(SHARDS[:1]).values()
        assert (found.position, found.epoch, found.seq) == ({"offset": 1}, 2, 1)
        spend(first, "ann", "bob")
        for _ in range(2):  # also when it is repeated
            with pytest.raises(FencedError, match="topic/0") as caught:
                first.commit_parts({SHARDS[0]: part(2)})
            assert caught.value.shard == SHARDS[0]
        assert records(place, "ann", "bob") == [1, 0]
        assert committed(place) == {SHARDS[0]: (1, 1)}
        second.commit_parts({SHARDS[0]: part(5)})
        assert committed(place) == {SHARDS[0]: (2, 5)}
        with pytest.raises(FencedError):  # also the commit with the next number
            first.commit_parts({SHARDS[0]: part(5)})
        first.rollback()
        (again,) = first.claim(SHARDS[:1]).values()
        assert (again.epoch, again.position) == (3, {"offset": 5})
        spend(first, "ann")
        first.commit_parts({SHARDS[0]: part(6)})
        with pytest.raises(FencedError):
            second.commit_parts({SHARDS[0]: part(6)})
    assert records(place, "ann", "bob") == [2, 0]
    assert [commit.position["offset"] for commit in Store.history(place, job="job")] == [1, 5, 6]


def test_several_shards_are_committed_together_or_not_at_all(place: str) -> None:
    with shared(place) as first, shared(place) as second:
        first.claim(SHARDS)
        first.commit_parts({shard: part(1) for shard in SHARDS})
        second.claim([SHARDS[1]])
        spend(first, "ann")
        with pytest.raises(FencedError) as caught:
            first.commit_parts({shard: part(2) for shard in SHARDS})
        assert caught.value.shard == SHARDS[1]
        assert committed(place) == dict.fromkeys(SHARDS, (1, 1))
        assert records(place, "ann") == [0]
        first.release([SHARDS[1]])
        first.commit_parts({SHARDS[0]: part(2), SHARDS[2]: part(2)})  # the same spends, with shards it still owns
        assert committed(place) == {SHARDS[0]: (2, 2), SHARDS[1]: (1, 1), SHARDS[2]: (2, 2)}
    assert records(place, "ann") == [1]


def test_only_what_was_claimed_may_be_committed(place: str) -> None:
    with shared(place) as store:
        for shard in (WHOLE, SHARDS[0]):
            with pytest.raises(FencedError, match="not claimed") as caught:
                store.commit_parts({shard: part(1)})
            assert caught.value.shard == shard
        store.claim(SHARDS[:2])
        store.release(SHARDS[:1])
        with pytest.raises(FencedError):
            store.commit_parts({SHARDS[0]: part(1), SHARDS[1]: part(1)})
        assert store.load(SHARDS[1]) is None
        assert committed(place) == {}


@pytest.mark.parametrize("known", [False, True])
def test_two_workers_that_spend_from_one_subject_stay_within_its_cap(place: str, known: bool) -> None:
    """If `known`, the subject has a row already; otherwise both find none and insert it."""
    with shared(place) as first, shared(place) as second:
        first.claim([SHARDS[0]])
        second.claim([SHARDS[1]])
        if known:
            spend(first, "ann")
            first.commit_parts({SHARDS[0]: part(1)})
        room = 2 if known else 3
        for store in (first, second):
            assert spend(store, *["ann"] * 3).count(True) == room
        assert spend(second, "bob") == [True]
        first.commit_parts({SHARDS[0]: part(2)})
        for _ in range(2):
            with pytest.raises(LedgerConflictError, match="both spends together are over a cap"):
                second.commit_parts({SHARDS[1]: part(1)})
        assert records(place, "ann", "bob") == [3, 0]
        assert SHARDS[1] not in committed(place)
        second.rollback()
        assert spend(second, "ann", "bob") == [False, True]
        second.commit_parts({SHARDS[1]: part(1)})
    assert records(place, "ann", "bob") == [3, 1]


@pytest.mark.parametrize("place", ["sqlite"], indirect=True)
def test_shared_stores_read_what_an_exclusive_store_has_logged(place: str) -> None:
    with Store(place, "job", "print", cap=CAP) as alone:
        spend(alone, "ann", "ann")
        alone.commit({}, {"offset": 1}, Counts())
    with shared(place) as first, shared(place) as second:
        assert [spend(store, "ann", "ann") for store in (first, second)] == [[True, False]] * 2


def test_snapshots_come_in_the_order_of_the_shards(place: str) -> None:
    names = [Shard("b", 10), Shard("a", 2), Shard("b", 9), Shard("a", 11), Shard("B", 0)]
    with shared(place) as store:
        store.claim([*names, Shard("never", 0)])
        store.commit_parts({shard: part(i) for i, shard in enumerate(names)})
        assert [s.shard for s in Store.snapshots(place, "job")] == sorted(names)
        assert Store.snapshot(place, "job") is None  # only for a job without shards
        assert {commit.shard for commit in Store.history(place, job="job")} == set(names)
        assert list(store.claim(names)) == sorted(names)


def test_history_is_pruned_for_each_shard(place: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store_module, "HISTORY", 3)
    with shared(place) as store:
        store.claim(SHARDS[:2])
        store.commit_parts({SHARDS[1]: part(0)})
        for i in range(1, 6):
            store.commit_parts({SHARDS[0]: part(i)})
    assert [(c.shard.partition, c.seq) for c in Store.history(place, job="job")] == [(1, 1), (0, 3), (0, 4), (0, 5)]


def test_a_shared_and_an_exclusive_store_exclude_each_other(place: str) -> None:
    with shared(place):
        shared(place).close()
        with refused_as_busy():
            Store(place, "job", "print", cap=CAP)
    with Store(place, "job", "print", cap=CAP), refused_as_busy():
        shared(place)


@pytest.mark.parametrize("place", ["sqlite"], indirect=True)
def test_a_shared_opening_of_a_file_waits_for_its_holder(place: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sqlite, "BUSY_TIMEOUT_S", 600.0)
    alone = Store(place, "job", "print", cap=CAP)
    threading.Timer(0.3, alone.close).start()
    shared(place).close()


BLOCKED = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"


@pytest.mark.parametrize("place", ["postgresql"], indirect=True)
def test_deadlocks_are_refusals_that_can_be_repeated(place: str) -> None:
    with shared(place) as store:
        store.claim(SHARDS[:2])
        store.commit_parts({shard: part(0) for shard in SHARDS[:2]})
        rows = [f"UPDATE streamdp.shards SET epoch = epoch WHERE partition = {i}" for i in (0, 1)]
        with (
            ThreadPoolExecutor() as pool,
            psycopg.connect(place, autocommit=True) as looks,
            psycopg.connect(place) as other,
            psycopg.connect(place) as third,
        ):

            def wait_until_blocked(sessions: int) -> None:
                wait_until(lambda: looks.execute(BLOCKED).fetchone() == (sessions,))

            other.execute("SET deadlock_timeout = '1h'")  # so that the server aborts our transaction
            other.execute(rows[1])
            third.execute("LOCK TABLE streamdp.commits IN SHARE MODE")
            ours = pool.submit(store.commit_parts, {shard: part(1) for shard in SHARDS[:2]})
            wait_until_blocked(1)  # it has row 0
            theirs = pool.submit(other.execute, rows[0])
            wait_until_blocked(2)
            third.rollback()  # the first one goes on, to row 1
            with pytest.raises(StoreUnavailableError, match="40P01"):
                ours.result()
            theirs.result()
        store.commit_parts({shard: part(1) for shard in SHARDS[:2]})
    assert committed(place) == dict.fromkeys(SHARDS[:2], (2, 1))


def test_workers_with_other_people_do_not_wait_for_each_other(server_database: str) -> None:
    """A commit excluded all others from its first spend to its end: four workers spent no faster than one."""
    with shared(server_database) as first, shared(server_database) as second:
        first.claim(SHARDS[:1])
        second.claim(SHARDS[1:2])
        for n, (mine, theirs) in enumerate((("ann", "bob"), ("ann", "bob"), ("cid", "dora")), 1):
            spend(first, mine)
            spend(second, theirs)
            first.commit_parts({SHARDS[0]: part(n)}, lambda _, n: second.commit_parts({SHARDS[1]: part(n)}) and None)
    assert committed(server_database) == {SHARDS[0]: (3, 3), SHARDS[1]: (3, 3)}
    assert records(server_database, "ann", "bob", "cid", "dora") == [2, 2, 1, 1]


@pytest.mark.parametrize("known", [False, True])
@pytest.mark.parametrize("over", [False, True])
def test_two_workers_that_write_the_same_rows_add_up(server_database: str, known: bool, over: bool) -> None:
    """The second one waits for the first, finds the row changed, and adds to it, if the cap allows it."""
    with shared(server_database) as first, shared(server_database) as second:
        first.claim(SHARDS[:1])
        second.claim(SHARDS[1:2])
        if known:
            spend(first, "ann", "bob")
            first.commit_parts({SHARDS[0]: part(1)})
        spend(second, "ann", *["bob"] * (2 if over else 1))
        spend(first, "ann", *["bob"] * (3 - known if over else 1))
        with ThreadPoolExecutor(1) as threads:
            found: list[Future[object]] = []

            def start(*_: object) -> None:
                found.append(threads.submit(second.commit_parts, {SHARDS[1]: part(7)}))
                waits = "SELECT 1 FROM pg_locks WHERE NOT granted"
                with psycopg.connect(server_database, autocommit=True) as other:
                    wait_until(lambda: other.execute(waits).fetchone() is not None)

            first.commit_parts({SHARDS[0]: part(2)}, start)
            if over:
                with pytest.raises(LedgerConflictError):
                    found[0].result(PATIENCE_S)
            else:
                found[0].result(PATIENCE_S)
    assert records(server_database, "ann", "bob") == ([1 + known, 3] if over else [2 + known, 2 + known])


def test_a_shard_has_one_holder_and_the_next_one_has_the_next_epoch(server_database: str) -> None:
    with Store(server_database, "late", "1", shared=True) as first:
        assert first.claim_free(2, add=False) == WHOLE
        first.commit({"theta": [1]}, {}, Counts(1))
        with Store(server_database, "late", "1", shared=True) as second:
            assert second.claim_free(2, add=False) is None
            assert second.claim_free(2, add=True) == Shard("", 1)
            with Store(server_database, "late", "1", shared=True) as third:
                assert third.claim_free(2, add=True) is None
                assert Store.held_shards(server_database, "late") == [0, 1]
                first.close()  # the server ends its session a moment later
                wait_until(lambda: third.claim_free(2, add=False) == WHOLE)
                snapshot = third.load()
                assert (snapshot.counts, snapshot.epoch) == (Counts(1), 2)
    wait_until(lambda: Store.held_shards(server_database, "late") == [])


def test_a_file_has_one_shard_for_whoever_has_opened_it(tmp_path: Path) -> None:
    with Store(tmp_path / "a.db", "late", "1") as store:
        assert store.claim_free(16, add=True) == WHOLE
