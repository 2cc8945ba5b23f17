"""Values that are committed of a job: counts, one shard's part, a line of the history, a whole snapshot."""

from collections.abc import Iterable, Mapping
from dataclasses import astuple, dataclass
from typing import Any, NamedTuple

from streamdp.data.records import WHOLE, Position, Shard

ON_SPARK = "<spark>"
"""The topic of shards that executors of Spark learn. No topic of Kafka has such a name."""


@dataclass(frozen=True, slots=True)
class Counts:
    """Numbers of records since the job began."""

    learned: int = 0  # records that were learned from
    refused: int = 0  # records that the ledger refused
    dead_letters: int = 0  # records that could not be decoded
    left_out: int = 0  # records below their cap that were neither learned nor charged: see `privacy.release`


def counts_sum(counts: Iterable[Counts]) -> Counts:
    """Return the counts of several parts together; of no parts, zeros."""
    parts = [astuple(one) for one in counts]
    return Counts(*map(sum, zip(*parts, strict=True)))


@dataclass(frozen=True, slots=True)
class Commit:
    """One line of a job's history."""

    seq: int  # the number of the shard's commit, from 1
    committed_at: float  # in seconds since 1970 (UTC)
    counts: Counts
    position: Position
    shard: Shard = WHOLE


class Part(NamedTuple):
    """What is committed of one shard."""

    state: Mapping[
        str, Any
    ]  # the model's state, as `state_codec` describes it; empty: another shard of the worker has it
    position: Position  # the position after the last record that was learned, refused or unusable
    counts: Counts  # the shard's counts up to that position
    # where the dead letters up to that position end: `DeadLetters.name` and what `commit` returned; None: not known
    letters: Any = None
    # records after that position that were read and wait in an open batch or window. They are not learned, and the next
    # owner of the shard reads them again
    waiting: int = 0


@dataclass(frozen=True, slots=True, eq=False)
class Snapshot:
    """A committed state, with everything that was committed with it; see `Part`."""

    job: str
    fingerprint: str  # what must not change between the runs of the job
    config: str  # the job's text without secrets
    seq: int  # the number of the shard's commit, from 1
    committed_at: float  # in seconds since 1970 (UTC)
    counts: Counts
    position: Position
    state: Mapping[str, Any]
    shard: Shard = WHOLE
    epoch: int = 0  # the number of the claim under which the shard was committed or has been claimed since
    letters: Any = None
    waiting: int = 0  # as in `Part`, but it may have been noted after the commit
    doubt: str = ""  # what a public holdout says against the model, as it was noted after a commit; "": nothing
    losses: int = 0  # how often a user went on with a database that had lost commits

    @property
    def doubts(self) -> list[str]:
        """The `doubt`, if there is one."""
        return [self.doubt] * bool(self.doubt)

    @property
    def commit(self) -> tuple[int, float]:
        """The number and the time of the commit, because a store that was made anew counts from 1 again."""
        return self.seq, self.committed_at
