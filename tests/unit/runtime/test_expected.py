"""More records than a job declares are said once, from public counts alone."""

from __future__ import annotations

from typing import Any

import pytest

from streamdp.data.records import WHOLE, Shard
from streamdp.privacy.guarantees import parse_budget
from streamdp.runtime.expected import Expected
from streamdp.store.snapshot import Counts, Part


def part(learned: int) -> Part:
    given: Any = {"counts": Counts(learned=learned), "state": {}, "position": {}}
    return Part(**given)


@pytest.mark.parametrize(("budget", "delta"), [("eps=1", False), ("eps=1,delta=1e-6", True)])
def test_it_is_said_once(budget: str, delta: bool) -> None:
    said: list[str] = []
    expected = Expected(100, parse_budget(budget), said.append)
    for learned in (50, 100, 101, 500):
        expected.learned_in({WHOLE: Counts(learned=learned, refused=900)})
    (sentence,) = said
    assert "101 records were learned, and expected_records is 100" in sentence
    assert "each pass spends their budget again" in sentence
    assert ("with a delta below 1 / 101" in sentence) == delta


@pytest.mark.parametrize(
    ("budget", "records", "at"),
    [
        ("eps=1,delta=0.5", None, 0), ("eps=1,delta=0.01", 200, 0), ("eps=1,delta=0.0004", None, 3_000),
        ("eps=1,delta=0.0004", 2_000, 3_000), ("eps=1,delta=1e-6", None, None), ("eps=11", None, 0),
    ],
)  # fmt: skip
def test_a_delta_above_one_over_the_records_is_said_once(budget: str, records: int | None, at: int | None) -> None:
    said: list[str] = []
    expected, found = Expected(records, parse_budget(budget), said.append), None
    for learned in range(0, 6_000, 1_000):
        expected.learned_in({WHOLE: Counts(learned=learned)})
        if found is None and any("protects a record very little" in sentence for sentence in said):
            found = learned
    assert found == at
    assert len([sentence for sentence in said if "very little" in sentence]) == (at is not None)


def test_shards_of_a_worker_add_up_and_those_taken_away_do_not_count() -> None:
    said: list[str] = []
    expected = Expected(100, parse_budget("eps=1"), said.append)
    a, b = Shard("t", 0), Shard("t", 1)
    expected.assigned({a: Counts(learned=60)})
    expected.committed({a: part(90)}, 0.1)
    expected.assigned({b: Counts(learned=40)})
    expected.committed({b: part(70)}, 0.1)
    assert said == []
    expected.committed({b: part(80), a: part(30)}, 0.1)
    assert len(said) == 1


def test_without_a_declared_number_nothing_is_said() -> None:
    expected = Expected(None, parse_budget("eps=1"), pytest.fail)
    expected.learned_in({WHOLE: Counts(learned=10**9)})
