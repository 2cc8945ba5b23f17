"""Values that are committed of a job: counts, one shard's part, a line of the history, a whole snapshot."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from streamdp.data.records import WHOLE, Position, Shard

ON_SPARK = "<spark>"
"""The topic of shards that executors of Spark learn. No topic of Kafka has such a name."""


@dataclass(frozen=True, slots=True)
class Counts:
    """Numbers of records since the job began.

    Parameters
    ----------
    learned
        Records that were learned from.
    refused
        Records that the ledger refused.
    dead
        Records that could not be decoded.
    """

    learned: int = 0
    refused: int = 0
    dead: int = 0


def counts_sum(counts: Iterable[Counts]) -> Counts:
    """Return the counts of several parts together; of no parts, zeros."""
    parts = list(counts)
    return Counts(sum(c.learned for c in parts), sum(c.refused for c in parts), sum(c.dead for c in parts))


@dataclass(frozen=True, slots=True)
class Commit:
    """One line of a job's history.

    Parameters
    ----------
    seq
        The number of the shard's commit, from 1.
    committed_at
        In seconds since 1970 (UTC).
    counts, position, shard
        What was committed, of which shard.
    """

    seq: int
    committed_at: float
    counts: Counts
    position: Position
    shard: Shard = WHOLE


class Part(NamedTuple):
    """What is committed of one shard.

    Parameters
    ----------
    state
        The model's state, as `state_codec` describes it.
    position
        The position after the last record that was learned, refused or dead.
    counts
        The shard's counts up to that position.
    letters
        Where the dead letters up to that position end, as `DeadLetters.commit` returned it; None if it is unknown.
    waiting
        How many records after that position were read and wait in an open batch or window. They are not learned, and
        the next owner of the shard reads them again.
    """

    state: Mapping[str, Any]
    position: Position
    counts: Counts
    letters: Any = None
    waiting: int = 0


@dataclass(frozen=True, slots=True, eq=False)
class Snapshot:
    """A committed state, with everything that was committed with it.

    Parameters
    ----------
    job, fingerprint, config
        The name of the job, what must not change between its runs, and its text without secrets.
    seq
        The number of the shard's commit, from 1.
    committed_at
        In seconds since 1970 (UTC).
    counts, position, state, letters
        See `Part`.
    waiting
        See `Part`; it may have been noted after the commit.
    shard
        The shard.
    epoch
        The number of the claim under which the shard was committed or has been claimed since.
    """

    job: str
    fingerprint: str
    config: str
    seq: int
    committed_at: float
    counts: Counts
    position: Position
    state: Mapping[str, Any]
    shard: Shard = WHOLE
    epoch: int = 0
    letters: Any = None
    waiting: int = 0
