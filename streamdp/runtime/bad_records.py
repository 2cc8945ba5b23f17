"""Undecodable records: when they stop a job, and what a run says that learns nothing.

The records before the first commit of a job decide whether its schema fits: if more than `max_bad_share` of them do
not, the job stops before anything is spent. Later `max_bad_in_a_row` says when to stop, and a run that learns nothing
ends with an error.
"""

from collections import Counter
from dataclasses import dataclass, field

import numpy as np

from streamdp.data.records import Batch, Shard
from streamdp.errors import ConfigError, NothingLearnedError, TooManyBadRecordsError, is_number
from streamdp.runtime.learning import total
from streamdp.store.snapshot import Counts

LEAST = 100
"""The share is taken of at least so many records: of few records, one bad one is a large share."""
FIRST_WARNING = 10
"""A run warns if none of so many first records fits.

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
    met = total(counts)
    if counts.dead_letters <= _DROPPED * met:
        return None
    rest = "the model knows only others" if counts.learned else "nothing was learned"
    return (
        f"{counts.dead_letters:,} of {met:,} rows ({100 * counts.dead_letters / met:.0f} %) were dropped because they "
        f"do not fit the schema: {rest}; dead letters, answers of the service or `streamdp check` of a file say why"
    )


_CHANGES = {
    "unknown_category": "declare its other values, or other: true",
    "unknown_class": "declare all its classes, written as in the data",
    "missing": "say what a gap of a feature means by missing:; nothing is learned without target, time and subject",
    "not_a_number": "declare categories (a target: classes), its gaps in schema.missing_values, or source.decimal, "
    "source.thousands or source.units",
    "not_finite": "say what a gap means by missing:",
    "not_a_date": "declare its format",
    "not_a_time": "declare its unit in schema.time",
    "before_1970": "times are counted from 1970-01-01 (UTC) on: leave such records out, or schema.time",
    "another_unit": "its numbers lie beyond the year 9999: declare unit: milliseconds or microseconds in schema.time",
    "too_late": "say in the cap how late records may come, such as late 90 days",
    "too_early": "compare schema.time with the data, or say in the cap how far ahead times may be, such as ahead 1 day",
    "not_utf8": "set source.encoding, such as cp1252 or utf-16",
    **dict.fromkeys(("too_few_fields", "too_many_fields"), "compare source.delimiter with the data"),
    "bad_budget": "give a number above 0",
}
"""What to change in the schema, by the reason of a dead letter."""


def too_many(name: str, rows: int, reasons: Counter[tuple[str, str | None]], limit: float | None) -> str | None:
    """Say that too many of the first records of a job do not fit the schema, and what to change; None if few.

    `name` is that of the source, `reasons` counts the dead letters among `rows` records by reason and column, and
    `limit` is the share that is allowed.
    """
    bad = reasons.total()
    if limit is None or bad <= limit * max(rows, LEAST):
        return None
    return (
        f"{name}: {bad:,} of the first {rows:,} records ({100 * bad / rows:.0f} %) do not fit the schema:"
        f" {by_reason(reasons)}; nothing was learned or spent;"
        f" {'; '.join([*fixes(reasons), 'if these may be left out'])}, raise source.max_bad_share ({limit:g})"
    )


def fixes(reasons: Counter[tuple[str, str | None]]) -> list[str]:
    """What to change in the schema, by the most frequent reasons and columns of dead letters."""
    listed = [(_CHANGES.get(reason), column) for (reason, column), _ in reasons.most_common(_SHOWN)]
    return [*dict.fromkeys(fix if column is None else f"{column!r}: {fix}" for fix, column in listed if fix)]


@dataclass(slots=True)
class FirstRecords:
    """Counts the records before the first commit of a job."""

    name: str  # of the source
    limit: float | None  # the share that may not fit; None: no limit, or the job has learned
    rows: int = 0
    reasons: Counter[tuple[str, str | None]] = field(default_factory=Counter)

    def __post_init__(self) -> None:
        if self.limit is not None and not (is_number(self.limit) and 0 <= self.limit <= 1):
            raise ConfigError(f"max_bad_share: expected a number from 0 to 1 or None, got {self.limit!r}")

    def note(self, batch: Batch) -> None:
        """Count a batch."""
        if self.limit is not None:
            self.rows += len(batch) + len(batch.dead)
            self.reasons.update((letter.reason, letter.column) for letter in batch.dead)

    @property
    def problem(self) -> str | None:
        """Why nothing may be committed; None if it may."""
        return too_many(self.name, self.rows, self.reasons, self.limit)

    def check(self) -> None:
        """Raise `TooManyBadRecordsError` if nothing may be committed."""
        if (problem := self.problem) is not None:
            raise TooManyBadRecordsError(problem)


def bad_in_a_row(shard: Shard, batch: Batch, before: int, most: int | None) -> int:
    """Count a batch, and return how many undecodable records of a `shard` stand in a row at its end.

    `before` is what the last call for this shard returned; 0 before the first. Raises `TooManyBadRecordsError` for more
    than `most`; None for no limit.
    """
    if not batch.dead:
        return 0 if len(batch) else before
    places = np.searchsorted(batch.positions, [letter.position for letter in batch.dead])  # how many good ones
    runs = np.bincount(places, minlength=len(batch) + 1)
    runs[0] += before
    if most is not None and runs.max() > most:
        last = batch.dead[-1]
        column = "" if last.column is None else f" in column {last.column!r}"
        raise TooManyBadRecordsError(
            f"{shard}: {runs.max()} records in a row cannot be decoded; the reason of the last is "
            f"{last.reason!r}{column}; fix the schema or the producer, or raise max_bad_in_a_row"
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
    warned: bool = False

    def note(self, batch: Batch, before: Counts, after: Counts) -> str | None:
        """Count a batch. Returns a warning, as a sentence, when it is time for it."""
        fit = total(after) - after.dead_letters - total(before) + before.dead_letters
        self.before |= before.learned > 0
        self.learned |= fit > 0 and after.learned > 0
        if self.learned:
            return None
        self.refused += fit
        self.reasons.update((letter.reason, letter.column) for letter in batch.dead)
        bad = self.reasons.total()
        if self.warned or self.refused or bad < FIRST_WARNING:
            return None
        self.warned = True
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
