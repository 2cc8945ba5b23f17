"""What a shard was charged is committed with its progress: after kills, each person was charged and learned once."""

from __future__ import annotations

from pathlib import Path

import pytest

from streamdp import GaussianDP, LDPASGDRegressor
from streamdp.data.records import Shard
from streamdp.errors import LedgerConflictError
from streamdp.privacy.release import JOINED
from streamdp.store.snapshot import Counts, Part
from streamdp.store.store import Store
from tests.support.once import KINDS, kill_workers
from tests.support.sizes import some

ONE, TWO = Shard("topic", 0), Shard("topic", 1)
MU = GaussianDP(1.0)
CAP = "mu=1.5"  # two records


def check_once(counts: dict[str, int]) -> None:
    assert counts["learned"] == counts["charged"] == counts["people"] - counts["left"]
    assert (counts["most"], counts["refused"]) == (1, 0)


@pytest.mark.parametrize("kind", ["batches", "statistics", pytest.param("windows", marks=pytest.mark.slow)])
@pytest.mark.parametrize("shards", some([1, 3, 12], 1))
def test_after_kills_all_are_learned_and_charged_once(tmp_path: Path, kind: str, shards: int) -> None:
    counts = kill_workers(tmp_path / "a.db", kind, shards, seed=1)
    assert counts["died"] > 1
    check_once(counts)


@pytest.mark.campaign
@pytest.mark.parametrize("shards", [1, 3, 12])
@pytest.mark.parametrize("kind", KINDS)
def test_after_fifty_kills_all_are_learned_and_charged_once(tmp_path: Path, kind: str, shards: int) -> None:
    seed = died = 0
    while died < 50:
        counts = kill_workers(tmp_path / f"{seed}.db", kind, shards, seed)
        check_once(counts)
        seed, died = seed + 1, died + counts["died"]


@pytest.fixture(params=["sqlite", "postgresql"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """A file, or the URL of a database on a server."""
    return str(tmp_path / "a.db") if request.param == "sqlite" else str(request.getfixturevalue("server_database"))


def opened(place: str, job: str = "job") -> Store:
    store = Store(place, job, "f", cap=CAP, shared=True)
    store.claim([ONE, TWO])
    return store


def charge(store: Store, shard: Shard, *people: str) -> list[bool]:
    with store.ledger.charging(shard):
        return store.ledger.admit_many(people, MU).tolist()


def commit(store: Store, *shards: Shard, at: int = 1) -> None:
    state = LDPASGDRegressor(features=["a"]).state_dict()
    store.commit_parts({shard: Part(state, {"index": at}, Counts(learned=at)) for shard in shards})


def spent(store: Store, *people: str) -> list[int]:
    return [store.ledger.spent(person).records for person in people]


def committed(place: str, *people: str) -> list[int]:
    """What another process sees."""
    with Store(place, "reader", "f", cap=CAP) as store:
        return spent(store, *people)


def test_a_commit_writes_the_charges_of_its_shards_up_to_their_boundaries(place: str) -> None:
    with opened(place) as store:
        charge(store, ONE, "ann", "both")
        charge(store, TWO, "bob", "both")
        store.ledger.end_part(ONE)
        charge(store, ONE, "late")
        commit(store, ONE)
        people = ["ann", "both", "bob", "late"]
        assert committed(place, *people) == [1, 1, 0, 0]
        assert spent(store, *people) == [1, 2, 1, 1]
        store.ledger.end_part(TWO)
        commit(store, TWO)
        assert committed(place, *people) == [1, 2, 1, 0]
        store.ledger.end_part(ONE)
        commit(store, ONE, at=2)
        assert committed(place, *people) == [1, 2, 1, 1]
        assert store.ledger.n_pending == 0


def test_pending_charges_of_other_shards_count_on_top_of_what_others_commit(place: str) -> None:
    with opened(place) as store, Store(place, "other", "f", cap=CAP) as other:
        charge(store, ONE, "ann")
        charge(store, TWO, "bob", "ann")
        assert charge(store, ONE, "ann") == [False]  # one in each shard
        other.ledger.admit_many(["bob", "cid"], MU)
        other.commit(LDPASGDRegressor(features=["a"]).state_dict(), {"index": 1}, Counts(learned=2))
        store.ledger.end_part(ONE)
        commit(store, ONE)
        assert spent(store, "ann", "bob", "cid") == [2, 2, 1]
        assert charge(store, ONE, "bob", "cid") == [False, True]
        store.ledger.end_part(TWO)
        commit(store, TWO)
        assert committed(place, "ann", "bob", "cid") == [2, 2, 1]


def test_a_shard_that_is_given_up_takes_its_charges_with_it(place: str) -> None:
    with opened(place) as store:
        charge(store, ONE, "ann")
        charge(store, TWO, "ann", "bob")
        store.ledger.end_part(TWO)
        store.release([TWO])
        assert spent(store, "ann", "bob") == [1, 0]
        store.ledger.end_part(ONE)
        commit(store, ONE)
        store.claim([TWO])
        charge(store, TWO, "bob")
        commit(store, ONE, at=2)  # the open batch of the other one waits, although it had a boundary before
        assert committed(place, "ann", "bob") == [1, 0]


def test_charges_that_are_read_again_are_compared_with_the_cap(place: str) -> None:
    """A shard is given up, so that rows are read anew; another job has spent meanwhile."""
    with opened(place) as store, Store(place, "other", "f", cap=CAP) as other:
        charge(store, ONE, "ann")
        charge(store, TWO, "bob")
        other.ledger.admit_many(["ann", "ann"], MU)
        other.commit(LDPASGDRegressor(features=["a"]).state_dict(), {"index": 1}, Counts(learned=2))
        store.release([TWO])
        store.ledger.end_part(ONE)
        with pytest.raises(LedgerConflictError):
            commit(store, ONE)
        store.rollback()
        assert charge(store, ONE, "ann") == [False]


def test_who_was_found_before_a_roll_back_is_read_again(place: str) -> None:
    with opened(place) as store:
        assert charge(store, ONE, "ann", "ann") == [True, True]
        assert charge(store, TWO, "bob") == [True]
        found = store.ledger.prepare(["ann"])
        store.ledger.rollback([ONE])
        assert store.ledger.join(MU, found).tolist() == [JOINED]
