"""Limits on undecodable records: a wrong schema or a broken producer must stop a job, and not fill its dead letters."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from streamdp.data.records import Batch, Shard
from streamdp.errors import TooManyBadRecordsError
from streamdp.store.snapshot import Counts

MIN_POLLED = 1000
"""The share is taken of at least so many records: of few records, one bad one is a large share."""
_DROPPED = 0.05


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
    """Counts the undecodable records of a worker.

    Parameters
    ----------
    max_in_a_row
        The most undecodable records of a shard in a row; None for no limit.
    max_share
        The largest share of all polled records, in [0, 1]; None for no limit.
    polled, bad
        All records so far, and the undecodable ones. Records that are read again count again.
    """

    max_in_a_row: int | None
    max_share: float | None
    polled: int = 0
    bad: int = 0

    def count(self, shard: Shard, batch: Batch, in_a_row: int) -> int:
        """Count a batch, and return how many undecodable records of the shard stand in a row at its end.

        Parameters
        ----------
        in_a_row
            What the last call for this shard returned; 0 before the first.

        Raises `TooManyBadRecordsError` above a limit.
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
