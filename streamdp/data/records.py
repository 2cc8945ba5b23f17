"""What crosses the border between sources and learner: records, batches, positions, dead letters.

Connectors depend on this module and on nothing else of streamdp but its errors.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, runtime_checkable

import numpy as np

from streamdp.errors import SchemaError

if TYPE_CHECKING:
    import polars as pl

Subject = str | bytes


def subject_bytes(subject: Subject | None) -> bytes | None:
    """A subject as the ledger tells them apart. Raises `SchemaError` for what is neither text, bytes nor None."""
    if subject is None or isinstance(subject, bytes):
        return subject
    if isinstance(subject, str):
        return subject.encode("utf-8", "surrogatepass")
    raise SchemaError(f"a subject must be str, bytes or None, got {type(subject).__name__}")


Position = dict[str, Any]
"""Where in a source, as plain JSON values. Only the source that made it can read it."""


class Shard(NamedTuple):
    """A part of a source that is read in order by one worker at a time; its text is `topic/partition`."""

    topic: str = ""
    partition: int = 0

    def __str__(self) -> str:
        return f"{self.topic}/{self.partition}"


WHOLE = Shard()
"""The one shard of a source that has no parts."""


@dataclass(frozen=True, slots=True)
class Record:
    """One person's contribution: encoded features, target, who it is about, what it may spend, where it stood.

    `x` maps every declared feature to a float, `y` is a float (a class index for classifiers), `budget` is the
    number of the job's budget kind (epsilon or mu; None for the default), `position` is the source's row or offset.
    """

    x: Mapping[str, float]
    y: float
    subject: Subject | None = None
    budget: float | None = None
    position: int | None = None


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """A record that could not be decoded: where it stood and why, never what it said."""

    position: int
    reason: str
    column: str | None = None
    payload: bytes | None = None
    """The raw bytes, only where the user opted in."""


@dataclass(frozen=True, slots=True)
class Batch:
    """Decoded records as columns, with the position that follows the last of them.

    `X` is (n, p) float64 and finite, `y` is (n,) float64 and finite, `positions` is (n,) int64. `subjects` has n
    entries or is None, `budgets` is (n,) float64 with NaN where a record brings none, or None. `dead` holds the
    letters met on the way. Iterating gives `Record` values.
    """

    features: tuple[str, ...]
    X: np.ndarray
    y: np.ndarray
    positions: np.ndarray
    position: Position
    subjects: list[Subject | None] | None = None
    budgets: np.ndarray | None = None
    dead: list[DeadLetter] = field(default_factory=list)
    timestamps: np.ndarray | None = None
    """(n,) int64, milliseconds since 1970 (UTC), where the source has them."""

    def __len__(self) -> int:
        return len(self.y)

    def __iter__(self) -> Iterator[Record]:
        for i in range(len(self.y)):
            budget = None if self.budgets is None or np.isnan(self.budgets[i]) else float(self.budgets[i])
            yield Record(
                x=dict(zip(self.features, self.X[i].tolist(), strict=True)),
                y=float(self.y[i]),
                subject=None if self.subjects is None else self.subjects[i],
                budget=budget,
                position=int(self.positions[i]),
            )


class Encoder(Protocol):
    """Turns raw columns into the numbers a model learns from. `streamdp.data.schema.Schema` is the one there is.

    Sources take one so that they need not know what a feature is.
    """

    @property
    def columns(self) -> tuple[str, ...]:
        """The raw column names that must be there, target, subject and budget included."""

    @property
    def numeric_columns(self) -> tuple[str, ...]:
        """Those of `columns` that a source may hand over as Float64 already; the others it hands over as String."""

    def encode(self, frame: pl.DataFrame, positions: np.ndarray, position: Position) -> Batch:
        """Encode n raw records; what cannot be encoded goes to `Batch.dead`.

        `frame` has every name of `columns`, as String (null or "" is missing) or, for a numeric column, Float64 (null
        is missing). `positions` is (n,) int64, `position` what follows the last record.
        """


@runtime_checkable
class Source(Protocol):
    """A stream of records that can be sought: five verbs.

    `finished` turns True when the stream has ended and every record of it was polled.
    """

    @property
    def position(self) -> Position:
        """The position after the last polled record."""

    @property
    def finished(self) -> bool: ...

    def poll(self, max_records: int, timeout_s: float) -> Batch:
        """At most `max_records` records (dead letters included); an empty batch after `timeout_s` without any."""

    def seek(self, position: Position) -> None:
        """Continue at `position`, which an earlier run of the same source gave."""

    def commit(self, position: Position) -> None:
        """Called after the store has committed `position`; a source may tell its broker."""

    def close(self) -> None: ...


class RebalanceListener(Protocol):
    """Who must know which shards are taken away. Called from within `ShardedSource.poll`."""

    def revoked(self, shards: set[Shard]) -> None:
        """They go to others in an orderly way: commit what was learned of them."""

    def lost(self, shards: set[Shard]) -> None:
        """Others have them already: forget what was learned of them."""


class ShardedSource(Protocol):
    """A stream in shards that a group of workers shares out among itself. `connectors.kafka.KafkaSource` is one."""

    def subscribe(self, listener: RebalanceListener) -> None:
        """Join the group."""

    def assigned(self) -> list[Shard]:
        """The shards that came since the last call; each waits for `start`."""

    def start(self, shard: Shard, position: Position | None) -> Position | None:
        """Read a shard on from `position` (None: from its start), the first time or after what was read is forgotten.

        Returns where it goes on; None, and nothing happens, where the shard is no longer ours.
        """

    def poll(self, max_records: int, timeout_s: float) -> list[tuple[Shard, Sequence[Any]]]:
        """At most `max_records` records, as they came; none after `timeout_s` seconds without any."""

    def decode(self, shard: Shard, raw: Sequence[Any]) -> Batch:
        """The records and dead letters of what `poll` gave. Another thread may call it, while this one polls on."""

    def pause(self) -> None:
        """From now on, `poll` brings nothing, and only keeps us in the group."""

    def resume(self) -> None:
        """End `hold`."""

    def commit(self, positions: Mapping[Shard, Position]) -> None:
        """Called after the store has committed; a source may tell its broker."""

    def close(self) -> None:
        """Leave the group."""
