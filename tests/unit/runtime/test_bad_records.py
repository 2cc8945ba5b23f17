"""Limits on undecodable records, against a count by plain Python."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from streamdp.data.records import Batch, DeadLetter, Shard
from streamdp.errors import ConfigError, NothingLearnedError, TooManyBadRecordsError
from streamdp.runtime.bad_records import FirstRecords, Unlearned, bad_in_a_row, fixes, in_words
from streamdp.runtime.worker import Worker
from streamdp.store.snapshot import Counts

SHARD = Shard("t", 3)


def batch(first: int, good: list[bool]) -> Batch:
    places = np.array([first + i for i, fine in enumerate(good) if fine], dtype=np.int64)
    dead = [DeadLetter(first + i, "not_json") for i, fine in enumerate(good) if not fine]
    return Batch(("a",), np.zeros((len(places), 1)), np.zeros(len(places)), places, {"index": first}, dead=dead)


@pytest.mark.parametrize("seed", range(5))
def test_a_run_of_bad_records_goes_on_over_batches(seed: int) -> None:
    rng = np.random.default_rng(seed)
    in_a_row, place, expected = 0, 0, 0
    for _ in range(200):
        good = (rng.random(rng.integers(1, 6)) < rng.choice([0.0, 0.3, 1.0])).tolist()
        for fine in good:
            expected = 0 if fine else expected + 1
        in_a_row = bad_in_a_row(SHARD, batch(place, good), in_a_row, None)
        place += len(good)
        assert in_a_row == expected


def test_limits_are_the_last_allowed_numbers() -> None:
    assert bad_in_a_row(SHARD, batch(0, [True, False, False, False]), 0, 3) == 3
    with pytest.raises(TooManyBadRecordsError, match=r"t/3: 4 records in a row .* 'not_json'; fix .* max_bad_in_a_row"):
        bad_in_a_row(SHARD, batch(4, [False]), 3, 3)
    lacking = replace(batch(4, []), dead=[DeadLetter(4, "missing", "age")])
    with pytest.raises(TooManyBadRecordsError, match="the last is 'missing' in column 'age';"):
        bad_in_a_row(SHARD, lacking, 3, 3)


@pytest.mark.parametrize("limit", ["x", -1, 1.5])
def test_other_limits_are_refused(limit: Any) -> None:
    nothing: Any = SimpleNamespace(ledger=None)
    with pytest.raises(ConfigError, match="max_bad_in_a_row"):
        Worker(nothing, lambda: nothing, nothing, max_bad_in_a_row=limit)
    with pytest.raises(ConfigError, match="max_bad_share"):
        FirstRecords("people.csv", float("nan") if limit == "x" else limit)


def test_a_run_counts_wherever_a_poll_cuts_it() -> None:
    """A good record after it does not undo it, and a poll without records does not end it."""
    assert bad_in_a_row(SHARD, batch(4, []), 3, 3) == 3
    for good, before in (([False] * 4 + [True], 0), ([True] + [False] * 4 + [True], 0), ([False, True, False], 3)):
        with pytest.raises(TooManyBadRecordsError, match="4 records in a row"):
            bad_in_a_row(SHARD, batch(4, good), before, 3)


def test_the_share_is_of_at_least_a_hundred_records() -> None:
    first = FirstRecords("people.csv", 0.05)
    first.note(batch(0, [False] * 5))
    first.check()
    first.note(batch(5, [False]))
    with pytest.raises(TooManyBadRecordsError, match=r"people.csv: 6 of the first 6 .*not json \(6\).*max_bad_share"):
        first.check()
    first.note(batch(6, [True] * 114))
    first.check()  # 6 of 120
    first.note(replace(batch(120, [False]), dead=[DeadLetter(120, "unknown_category", "city")]))
    with pytest.raises(TooManyBadRecordsError, match=r"city' \(1\); nothing was .* 'city': declare its other values"):
        first.check()
    assert FirstRecords("people.csv", None, 10, first.reasons).problem is None


def lacking(*columns: str) -> Batch:
    return replace(batch(0, []), dead=[DeadLetter(i, "missing", column) for i, column in enumerate(columns)])


def test_a_run_warns_once_that_no_record_fits() -> None:
    unlearned = Unlearned()

    def warning(bad: int) -> str | None:
        return unlearned.note(lacking(*["agee"] * bad), Counts(), Counts(0, 0, bad))

    assert warning(9) is None
    said = unlearned.note(lacking("zip"), Counts(7, 7, 7), Counts(7, 7, 8))  # also in a job that has learned before
    assert said is not None
    assert "none of the first 10 records of this run fits" in said
    assert "missing in column 'agee' (9), missing in column 'zip' (1);" in said
    assert warning(10_000) is None
    unlearned = Unlearned()
    unlearned.note(batch(0, [True]), Counts(), Counts(0, 1, 0))  # it fits, and is refused
    assert warning(10_000) is None


def test_a_run_without_a_learned_record_is_an_error_that_counts_the_reasons() -> None:
    Unlearned().check()
    unlearned = Unlearned()
    unlearned.note(lacking("a", "b", "c", "d", "a"), Counts(), Counts(0, 0, 5))
    with pytest.raises(NothingLearnedError, match=r"5 records do not fit .*'a' \(2\), .*'c' \(1\), and others$"):
        unlearned.check()
    unlearned.note(batch(0, [True]), Counts(), Counts(0, 1, 0))
    with pytest.raises(NothingLearnedError, match="and others; 1 records were refused, because their people"):
        unlearned.check()
    unlearned.note(batch(0, [True]), Counts(), Counts(1, 0, 0))
    unlearned.check()


def test_people_who_have_spent_their_caps_are_no_error_in_a_job_that_has_learned() -> None:
    for before, after in ((Counts(7, 0, 0), Counts(7, 3, 0)), (Counts(0, 0, 0), Counts(1, 3, 0))):
        unlearned = Unlearned()
        unlearned.note(lacking("a"), before, before)
        unlearned.note(batch(0, [True] * 4), before, after)
        unlearned.check()


def test_the_last_records_of_a_job_that_has_learned_may_be_bad() -> None:
    unlearned = Unlearned()
    unlearned.note(lacking(*"a" * 9), Counts(1, 0, 0), Counts(1, 0, 9))
    unlearned.check()
    unlearned.note(lacking("a"), Counts(1, 0, 9), Counts(1, 0, 10))
    with pytest.raises(NothingLearnedError, match="10 records do not fit"):
        unlearned.check()


def test_a_bad_budget_is_told_with_what_was_expected() -> None:
    assert in_words("bad_budget", "eps") == "no positive number as budget in column 'eps'"


def test_a_change_that_helps_for_two_reasons_is_said_once() -> None:
    reasons = Counter({("too_few_fields", None): 2, ("too_many_fields", None): 1})
    assert fixes(reasons) == ["compare source.delimiter with the data"]
