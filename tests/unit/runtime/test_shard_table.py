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
    assert parts[FIRST].state == {"learned": [[1.0, 2.0]], "n_seen": 2}
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


def test_a_state_whose_row_is_lost_after_its_commit_is_left_there() -> None:
    """Else what is learned from then on is written to no row."""
    table = begun(FIRST, SECOND)
    learn(table, FIRST, 1.0)
    table.mark_committed(table.parts())
    table.drop({SECOND})
    assert not table.stale
    table.claim({SECOND: None})
    table.drop({FIRST})
    assert table.stale


def test_the_state_stays_if_its_row_is_taken_away_and_is_counted_once() -> None:
    table = begun(FIRST, SECOND)
    learn(table, FIRST, 1.0)
    table.mark_committed(table.parts())
    table.leave({FIRST})
    parts = table.parts()
    assert (parts[FIRST].state, parts[SECOND].state["learned"]) == ({}, [[1.0]])
    table.mark_committed(parts)
    table.drop({FIRST})
    assert not table.stale


def snapshot(shard: Shard, *values: float) -> Snapshot:
    state = {"learned": [list(values)], "n_seen": len(values)}
    return Snapshot("j", "f", "", 1, 0.0, Counts(len(values)), {"index": len(values)}, state, shard)


def test_a_worker_adds_up_the_states_of_its_rows_and_empties_all_but_one() -> None:
    table = begun(FIRST)
    learn(table, FIRST, 1.0)
    table.mark_committed(table.parts())
    table.claim({SECOND: snapshot(SECOND, 5.0, 6.0)})
    assert table.stale
    table.stale = False
    table.reload({FIRST: snapshot(FIRST, 1.0), SECOND: snapshot(SECOND, 5.0, 6.0)})
    parts = table.parts()
    assert (parts[FIRST].state["learned"], parts[SECOND].state) == ([[1.0], [5.0, 6.0]], {})
    learn(table, FIRST, 1.0, 7.0)
    parts = table.parts()
    assert (parts[FIRST].state["learned"], parts[SECOND].state) == ([[1.0], [5.0, 6.0, 1.0, 7.0]], {})
    table.mark_committed(parts)
    assert table.parts() == {}
    table.drop({SECOND})
    assert not table.stale


def test_a_state_whose_row_is_taken_away_before_it_was_emptied_is_left_to_its_next_owner() -> None:
    """Else it would count in both rows."""
    table = begun()
    table.claim({FIRST: snapshot(FIRST, 1.0), SECOND: snapshot(SECOND, 5.0, 6.0), THIRD: None})
    table.drop({THIRD})
    assert not table.stale
    table.drop({SECOND})
    assert table.stale
    assert table.parts() == {}
    table.stale = False
    table.reload({FIRST: snapshot(FIRST, 1.0)})
    learn(table, FIRST, 1.0, 2.0)
    assert table.parts()[FIRST].state["learned"] == [[1.0, 1.0, 2.0]]
