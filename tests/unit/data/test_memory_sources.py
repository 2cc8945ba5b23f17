"""The sources in memory: order, resume, the three sentinels; shards that come, wait, pause and go."""

import itertools

import pytest

from streamdp.data.records import Record, Shard, Source
from streamdp.errors import SourceError
from tests.support.memory import ABORT, BAD, END, MemoryShards, MemorySource


def item(i: int) -> tuple:
    return ({"a": float(i)}, float(-i), f"s{i}", None if i % 2 else 0.5)


def test_records_come_in_order_with_subject_and_budget():
    source = MemorySource([item(0), Record({"a": 1.0, "ignored": 9.0}, -1.0), item(2)], ["a", "b"])
    assert isinstance(source, Source)
    records = [r for _ in range(3) for r in source.poll(1, 0.0)]
    assert [(r.x, r.y, r.subject, r.budget, r.position) for r in records] == [
        ({"a": 0.0, "b": 0.0}, 0.0, "s0", 0.5, 0),
        ({"a": 1.0, "b": 0.0}, -1.0, None, None, 1),
        ({"a": 2.0, "b": 0.0}, -2.0, "s2", 0.5, 2),
    ]
    assert source.finished
    assert len(source.poll(5, 0.0)) == 0
    assert source.poll(5, 0.0).X.shape == (0, 2)


def test_abort_comes_once_after_what_was_before():
    source = MemorySource([item(0), item(1), ABORT, item(2)], ["a"])
    assert len(source.poll(10, 0.0)) == 2
    before = source.position
    with pytest.raises(SourceError):
        source.poll(10, 0.0)
    assert source.position == before
    source.seek({"index": 1})
    assert [r.y for r in source.poll(10, 0.0)] == [-1.0, -2.0]
    assert source.finished


def test_end_ends_one_run_and_a_seek_goes_past_it():
    source = MemorySource([item(0), END, item(1)], ["a"])
    assert len(source.poll(10, 0.0)) == 1
    assert source.finished
    later = MemorySource([item(0), END, item(1)], ["a"])
    later.seek(source.position)
    assert [r.y for r in later.poll(10, 0.0)] == [-1.0]


def test_bad_is_a_dead_letter_and_counts_toward_the_limit():
    source = MemorySource([BAD, item(1), BAD], ["a"])
    batch = source.poll(2, 0.0)
    assert (len(batch), [d.position for d in batch.dead]) == (1, [0])
    assert [d.position for d in source.poll(2, 0.0).dead] == [2]


def test_a_position_of_another_source_is_refused():
    source = MemorySource([item(0)], ["a"])
    for position in ({}, {"index": 2}, {"index": -1}, {"row": 0}):
        with pytest.raises(SourceError):
            source.seek(position)
    source.close()
    assert source.finished


A, B = Shard("t", 0), Shard("t", 1)


class Listener:
    """Remembers what it was told, and which shards the source had at that moment."""

    def __init__(self, source: MemoryShards) -> None:
        self.source = source
        self.told = []

    def revoked(self, shards):
        self.told.append(("revoked", shards, set(self.source.positions)))

    def lost(self, shards):
        self.told.append(("lost", shards, set(self.source.positions)))


def shards(**options) -> MemoryShards:
    streams = {A: [item(i) for i in range(5)], B: [item(10), BAD, Record({"a": 12.0}, -12.0)]}
    return MemoryShards(streams, ["a"], **options)


def read(source: MemoryShards, max_records: int = 100) -> dict[Shard, list[float]]:
    """Targets by shard."""
    return {shard: source.decode(shard, raw).y.tolist() for shard, raw in source.poll(max_records, 0.0)}


def test_shards_are_assigned_once_and_wait_for_their_start():
    source = shards(sleep=lambda seconds: None)
    assert source.assigned() == [A, B]
    assert source.assigned() == []
    assert source.poll(10, 0.0) == []
    assert source.start(B, None) == {"index": 0}
    assert source.start(A, {"index": 3}) == {"index": 3}
    assert source.positions == {A: {"index": 3}, B: {"index": 0}}
    assert read(source) == {A: [-3.0, -4.0], B: [-10.0, -12.0]}
    assert source.poll(10, 0.0) == []
    source.start(A, {"index": 4})  # after a rollback
    assert read(source) == {A: [-4.0]}
    source.commit({A: {"index": 5}})
    source.commit({B: {"index": 3}})
    assert source.committed == {A: {"index": 5}, B: {"index": 3}}


def test_a_poll_of_shards_returns_as_many_as_it_may():
    source = shards()
    for shard in source.assigned():
        source.start(shard, None)
    (found,) = source.poll(2, 0.0)
    batch = source.decode(*found)
    assert (batch.position, batch.positions.tolist(), batch.subjects) == ({"index": 2}, [0, 1], ["s0", "s1"])
    assert [(shard, len(raw)) for shard, raw in source.poll(4, 0.0)] == [(A, 3), (B, 1)]
    ((_, raw),) = source.poll(4, 0.0)
    batch = source.decode(B, raw)
    assert (batch.position, len(batch), [letter.position for letter in batch.dead]) == ({"index": 3}, 1, [1])
    assert source.decode(B, raw[:1]).X.shape == (0, 1)


def test_sizes_limit_each_shard():
    source = shards(sizes=itertools.cycle([1, 2]))
    for shard in source.assigned():
        source.start(shard, None)
    polls = [[(shard, len(raw)) for shard, raw in source.poll(100, 0.0)] for _ in range(4)]
    assert polls == [[(A, 1), (B, 2)], [(A, 1), (B, 1)], [(A, 1)], [(A, 2)]]


def test_a_poll_without_records_sleeps_as_does_one_of_a_paused_source():
    slept = []
    source = shards(sleep=slept.append)
    source.poll(10, 0.25)
    source.start(A, None)
    source.pause()
    assert source.poll(10, 0.5) == []
    source.resume()
    assert read(source) == {A: [-0.0, -1.0, -2.0, -3.0, -4.0]}
    assert slept == [0.25, 0.5]


def test_a_rebalance_tells_the_listener_within_the_next_poll():
    source = shards(sleep=lambda seconds: None)
    listener = Listener(source)
    source.subscribe(listener)
    for shard in source.assigned():
        source.start(shard, None)
    source.rebalance(revoked=[A, Shard("other", 0)])
    assert set(source.positions) == {A, B}
    assert read(source) == {B: [-10.0, -12.0]}
    assert source.start(A, None) is None
    source.rebalance(lost=[B], assigned=[A])
    source.poll(10, 0.0)
    assert listener.told == [("revoked", {A}, {A, B}), ("lost", {B}, {B})]
    assert source.assigned() == [A]
    assert source.poll(10, 0.0) == []  # it waits for its start
    source.start(A, {"index": 4})
    assert read(source) == {A: [-4.0]}
    source.rebalance(assigned=[B], revoked=[A])
    source.rebalance(lost=[B])
    source.poll(10, 0.0)
    assert source.assigned() == []  # it went before anybody asked


def test_a_shard_refuses_a_position_of_another_source():
    source = shards()
    for position in ({}, {"index": 6}, {"index": -1}, {"offset": 0}):
        with pytest.raises(SourceError, match="t/0: expected an index from 0 to 5"):
            source.start(A, position)
    source.close()
    assert source.start(A, None) is None
