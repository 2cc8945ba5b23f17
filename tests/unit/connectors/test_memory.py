"""The memory source: order, resume, and the three sentinels."""

import pytest

from connectors import ABORT, BAD, END, MemorySource
from streamdp.data.records import Record, Source
from streamdp.errors import SourceError


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
