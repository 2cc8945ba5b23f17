"""Shards that processes take as they find them: each has one holder, and stays when its holder ends."""

from pathlib import Path

from streamdp.data.records import WHOLE, Shard
from streamdp.store.snapshot import Counts
from streamdp.store.store import Store
from tests.support.waiting import wait_until


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
