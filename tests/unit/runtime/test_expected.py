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
