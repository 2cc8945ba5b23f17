"""What a worker's shards have in memory: one estimator, whose state is in the row of one of them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from streamdp.data.records import Shard
from streamdp.runtime.shard_table import ShardTable
from streamdp.store.snapshot import Counts, Snapshot
from tests.support.memory_store import Remembering

FIRST, SECOND, THIRD = (Shard("topic", number) for number in range(3))


def begun(*shards: Shard) -> ShardTable:
    build: Any = Remembering
    table = ShardTable(build)
    table.claim(dict.fromkeys(shards))
    for lane in table.values():
        lane.origin = lane.position = {"index": 0}
    return table


def learn(table: ShardTable, shard: Shard, *values: float) -> None:
    table.keep_boundary()
    lane = table[shard]
    lane.estimator.learn_encoded(np.zeros((len(values), 0)), np.array(values), None, None)
    lane.position, lane.counts = {"index": len(values)}, Counts(len(values))


def test_all_shards_are_committed_with_one_state() -> None:
    table = begun(FIRST, SECOND)
    learn(table, SECOND, 1.0, 2.0)
    parts = table.parts()
    assert parts[FIRST].state == {"learned": [1.0, 2.0], "n_seen": 2}
    assert (parts[SECOND].state, parts[SECOND].counts.learned) == ({}, 2)
    assert table.mark_committed(parts) == 2
    assert table.parts() == {}


@pytest.mark.parametrize("gone", [FIRST, SECOND])
def test_what_was_learned_of_a_lost_shard_leaves_the_estimator(gone: Shard) -> None:
    table = begun(FIRST, SECOND, THIRD)
    learn(table, gone, 1.0)
    table.drop({THIRD})
    assert not table.stale
    table.drop({gone})
    assert table.stale


def test_the_state_stays_if_its_row_is_taken_away_and_is_counted_once() -> None:
    table = begun(FIRST, SECOND)
    learn(table, FIRST, 1.0)
    table.mark_committed(table.parts())
    table.leave({FIRST})
    parts = table.parts()
    assert (parts[FIRST].state, parts[SECOND].state["learned"]) == ({}, [1.0])
    table.mark_committed(parts)
    table.drop({FIRST})
    assert not table.stale


def test_a_worker_goes_on_with_the_largest_state_and_keeps_the_others_in_their_rows() -> None:
    table = begun(FIRST)
    learn(table, FIRST, 1.0)
    table.mark_committed(table.parts())
    large = Snapshot("j", "f", "", 1, 0.0, Counts(2), {"index": 2}, {"learned": [5.0, 6.0], "n_seen": 2}, SECOND)
    table.claim({SECOND: large})
    assert table.stale
    mine = Snapshot("j", "f", "", 1, 0.0, Counts(1), {"index": 1}, {"learned": [1.0], "n_seen": 1}, FIRST)
    table.stale = False
    table.reload({FIRST: mine, SECOND: large})
    learn(table, FIRST, 1.0, 7.0)
    parts = table.parts()
    assert (parts[FIRST].state["learned"], parts[SECOND].state["learned"]) == ([1.0], [5.0, 6.0, 1.0, 7.0])
