"""Undecodable records: when they stop a job, and what a run says that learns nothing.

A run goes on if none of its first records fits the schema, with a warning: a topic may begin with thousands of messages
of an old format, and a job that stops there could never begin. Nothing is lost meanwhile. `max_bad_in_a_row` and
`max_bad_share` say when to stop, and a run that learns nothing ends with an error.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

import numpy as np

from streamdp.data.records import MOST_RECORDS, Batch, Shard
from streamdp.errors import ConfigError, NothingLearnedError, TooManyBadRecordsError, check_whole, is_number
from streamdp.store.snapshot import Counts

MIN_POLLED = 1000
"""The share is taken of at least so many records: of few records, one bad one is a large share."""
FIRST_WARNING = 10
"""A run warns if none of so many first records fits, and again at each tenfold.

If most records fitted, 10 would all be bad with a probability below 0.001. A small or slow topic has 10 soon.
"""
_DROPPED = 0.05
_SHOWN = 3


def in_words(reason: str, column: str | None) -> str:
    """Return the `reason`, such as `not_a_number`, and the `column` of a dead letter as words. None: the record."""
    words = "no positive number as budget" if reason == "bad_budget" else reason.replace("_", " ")
    return words + ("" if column is None else f" in column {column!r}")


def by_reason(reasons: Counter[tuple[str, str | None]]) -> str:
    """Return the most frequent `reasons`, of a dead letter and its column, with their counts, as words."""
    listed = [f"{in_words(*reason)} ({count:,})" for reason, count in reasons.most_common(_SHOWN)]
    return ", ".join(listed) + (", and others" if len(reasons) > _SHOWN else "")


def dropped(counts: Counts) -> str | None:
    """Return a sentence about the records of a job or of shards that do not fit the schema, if these are many."""
    met = counts.learned + counts.refused + counts.dead
    if counts.dead <= _DROPPED * met:
        return None
    rest = "the model knows only others" if counts.learned else "nothing was learned"
    return (
        f"{counts.dead:,} of {met:,} rows ({100 * counts.dead / met:.0f} %) were dropped because they do not fit the "
        f"schema: {rest}; dead letters, answers of the service or `streamdp check` of a file say why"
    )


@dataclass(slots=True)
class BadRecords:
    """Counts the undecodable records of a worker."""

    max_in_a_row: int | None  # of a shard; None for no limit
    max_share: float | None  # of all polled records, in [0, 1]; None for no limit
    polled: int = 0  # all records so far, `bad` the undecodable ones; records that are read again count again
    bad: int = 0

    def __post_init__(self) -> None:
        if self.max_in_a_row is not None:
            check_whole("max_bad_in_a_row", self.max_in_a_row, 0, MOST_RECORDS)
        if self.max_share is not None and not (is_number(self.max_share) and 0 <= self.max_share <= 1):
            raise ConfigError(f"max_bad_share: expected a number from 0 to 1 or None, got {self.max_share!r}")

    def count(self, shard: Shard, batch: Batch, in_a_row: int) -> int:
        """Count a batch, and return how many undecodable records of the shard stand in a row at its end.

        `in_a_row` is what the last call for this shard returned; 0 before the first. Raises `TooManyBadRecordsError`
        above a limit.
        """
        self.polled += len(batch) + len(batch.dead)
        if not batch.dead:
            return 0 if len(batch) else in_a_row
        self.bad += len(batch.dead)
        before = np.searchsorted(batch.positions, [letter.position for letter in batch.dead])  # how many good ones
        runs = np.bincount(before, minlength=len(batch) + 1)
        runs[0] += in_a_row
        if self.max_in_a_row is not None and runs.max() > self.max_in_a_row:
            last = batch.dead[-1]
            column = "" if last.column is None else f" in column {last.column!r}"
            raise TooManyBadRecordsError(
                f"{shard}: {runs.max()} records in a row cannot be decoded; the reason of the last is "
                f"{last.reason!r}{column}; fix the schema or the producer, or raise max_bad_in_a_row"
            )
        if self.max_share is not None and self.bad > self.max_share * max(self.polled, MIN_POLLED):
            raise TooManyBadRecordsError(
                f"{self.bad} of {self.polled} records cannot be decoded, over the share of {self.max_share:g}; "
                "fix the schema or the producer, or raise max_bad_share"
            )
        return int(runs[-1])


@dataclass(slots=True)
class Unlearned:
    """Counts the records of a run until one is learned. Records that are read again count again.

    A job that has learned before is not at fault if people have spent their caps, nor if its last records do not fit:
    then a record that fits counts as learned, and less than `FIRST_WARNING` others are no error.
    """

    learned: bool = False  # in this run
    before: bool = False  # before this run
    refused: int = 0  # records that fit the schema and were refused
    # how many of the others have each reason and column
    reasons: Counter[tuple[str, str | None]] = field(default_factory=Counter)
    _next: int = FIRST_WARNING

    def note(self, batch: Batch, before: Counts, after: Counts) -> str | None:
        """Count a batch. Returns a warning, as a sentence, if it is time for one."""
        fit = after.learned + after.refused - before.learned - before.refused
        self.before |= before.learned > 0
        self.learned |= fit > 0 and after.learned > 0
        if self.learned:
            return None
        self.refused += fit
        self.reasons.update((letter.reason, letter.column) for letter in batch.dead)
        bad = self.reasons.total()
        if self.refused or bad < self._next:
            return None
        while self._next <= bad:
            self._next *= 10
        return (
            f"none of the first {bad:,} records of this run fits the schema: {by_reason(self.reasons)}; unless they are"
            " records of an old format, stop the run and fix the schema or the producer"
        )

    def check(self) -> None:
        """Raise `NothingLearnedError` if there were records and none was learned."""
        if self.learned or (self.before and self.reasons.total() < FIRST_WARNING):
            return
        why = []
        if self.reasons:
            why.append(f"{self.reasons.total():,} records do not fit the schema: {by_reason(self.reasons)}")
        if self.refused:
            why.append(
                f"{self.refused:,} records were refused, because their people have spent their caps, or because of"
                " their own budgets"
            )
        if why:
            raise NothingLearnedError(f"nothing was learned in this run: {'; '.join(why)}")
