"""The values and protocols between sources and learners: records, batches, positions, dead letters.

Connectors depend on this module, and on nothing else of streamdp but its errors.
"""

import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, runtime_checkable

import numpy as np

from streamdp.data.subjects import FLOAT_TEXT as FLOAT_TEXT  # these for connectors, which import from here only
from streamdp.data.subjects import FLOATS as FLOATS
from streamdp.data.subjects import Subject as Subject
from streamdp.errors import ConfigError, SchemaError, check_whole, is_number

if TYPE_CHECKING:
    import polars as pl

    from streamdp.data.notation import Notation

RawRecord = Mapping[Any, object]
"""A record as a program gives it: values by the names of columns, which may be any keys."""
Position = dict[str, Any]
"""A position in a source, as plain JSON values. Only the source that made it can read it."""


class Shard(NamedTuple):
    """A part of a source that one worker at a time reads in order. Its text is `topic/partition`."""

    topic: str = ""
    partition: int = 0

    def __str__(self) -> str:
        return f"{self.topic}/{self.partition}"


@dataclass(frozen=True)
class Stall:
    """Why a shard is not read, since when the source knows it."""

    topic: str
    partition: int | None  # None: the whole topic, and the worker has no shard of it
    # a word of the source; for Kafka `no_answer`, `no_leader`, `no_topic`, `open_transaction` or `not_fetched`
    reason: str
    message: str  # words that follow the name of the shard, and show no value of a record
    seconds: float

    @property
    def where(self) -> str:
        """The name of the shard or topic."""
        return self.topic if self.partition is None else f"{self.topic}/{self.partition}"


WHOLE = Shard()
"""The one shard of a source that has no parts."""


PACKED = r"\.(?:gz|zst)$"
"""The ending of the name of a packed file, as a regular expression."""
NO_BYTE = 0xFF
"""No text in UTF-8 has this byte: it fills the columns of a text after its end."""
MOST_RECORDS = 10**18
"""The largest count of records: far beyond any stream, and exact in 64 bits."""


def check_poll(max_records: object, timeout_s: object) -> None:
    """Raise `ConfigError` unless `max_records` is a whole number, and `timeout_s` a number of seconds."""
    check_whole("max_records", max_records, 0, MOST_RECORDS)
    if not (is_number(timeout_s) and timeout_s < threading.TIMEOUT_MAX):
        raise ConfigError(f"timeout_s: expected a number of seconds, got {timeout_s!r}")


def check_record(x: object) -> RawRecord:
    """Return a record, `x`: values by name. Raises `SchemaError` for anything else."""
    if not isinstance(x, Mapping):
        raise SchemaError(f"record: expected a mapping of values by name, got {type(x).__name__}")
    return x


def lookup(record: Mapping[str, object], column: str) -> object:
    """Return the value of a record under a column: a key, or a path of keys with dots. None if it has none."""
    if column in record or "." not in column:
        return record.get(column)
    value: object = record
    for key in column.split("."):
        value = value.get(key) if isinstance(value, Mapping) else None
    return value


@dataclass(frozen=True, slots=True)
class Record:
    """One person's contribution: `x`, all declared features by name, and the target `y`, all finite floats.

    `y` is a class index for classifiers. `subject` is None if the record names no person. `budget` is what it may
    spend, the number of the job's budget kind (epsilon or mu); None for the default. `position` is the row or offset of
    the record in its source.
    """

    x: Mapping[str, float]
    y: float
    subject: Subject | None = None
    budget: float | None = None
    position: int | None = None


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """A record that could not be decoded: its position and the reason, never its values.

    `position` is its row or offset in its source, and `reason` a short code, such as `missing`. `column` could not be
    decoded; None: the record as a whole. `payload` has the raw bytes of the record, only if the user opted in.
    """

    position: int
    reason: str
    column: str | None = None
    payload: bytes | None = None


def by_position(dead: Iterable[DeadLetter]) -> list[DeadLetter]:
    """Return dead letters, `dead`, in the order of their positions."""
    return sorted(dead, key=lambda letter: letter.position)


@dataclass(frozen=True, slots=True)
class Batch:
    """Decoded records as columns, with the position after the last of them. Iteration yields `Record` values.

    `features` are the names of the p features. `X` (n, p) and `y` (n,) are float64, finite; y is NaN if there is
    neither a target nor a time. `positions` (n,) int64 are the rows or offsets of the records, and `position` is the
    source's after the last one. `subjects` are n subjects, and `budgets` (n,) float64, NaN for a record without its own
    budget; None if the schema has none. `dead` are the records of the same stretch of the source that could not be
    decoded. `timestamps` (n,) int64 say when the source got each record, in milliseconds since 1970 (UTC); None if it
    does not know. `reports` are n reports of devices in place of the records, with X (n, 0); None for records.
    `on_learned` is called after the n records were learned, with what became of each, (n,) as
    `Estimator.learn_encoded` returns it. `times` (n,) float64 are the declared times of the records in seconds since
    1970 (UTC); None if the schema has none.
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
    reports: Sequence[object] | None = None
    on_learned: Callable[[np.ndarray | None], None] | None = None
    times: np.ndarray | None = None

    def __len__(self) -> int:
        return len(self.y)

    def take(self, rows: np.ndarray | slice) -> "Batch":
        """Return the batch with some `rows`, a mask (n,), indices or a slice, and with all of its dead letters."""
        subjects, budgets, timestamps, times = self.subjects, self.budgets, self.timestamps, self.times
        if subjects is not None and isinstance(rows, slice):
            subjects = subjects[rows]
        elif subjects is not None:
            subjects = [subjects[i] for i in np.arange(len(self))[rows].tolist()]
        return replace(
            self,
            X=self.X[rows],
            y=self.y[rows],
            positions=self.positions[rows],
            subjects=subjects,
            budgets=None if budgets is None else budgets[rows],
            timestamps=None if timestamps is None else timestamps[rows],
            times=None if times is None else times[rows],
        )

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
    """Turns raw columns into the numbers that a model learns from. `streamdp.data.schema.Schema` implements it.

    Sources take an encoder, so that they do not depend on the declaration of features.
    """

    @property
    def columns(self) -> tuple[str, ...]:
        """The names of the raw columns that a record must have, including target, subject and budget."""

    @property
    def numeric_columns(self) -> tuple[str, ...]:
        """The names of `columns` that a source may provide as Float64. It provides the others as String."""

    @property
    def subject(self) -> str | None:
        """The name of the column of subjects, whose whole numbers a source provides exactly. None: there is none."""

    def reading(self, notation: "Notation") -> "Encoder":
        """Return this encoder for a source that writes numbers in a `notation`: all its texts that are numbers."""

    def encode(self, frame: "pl.DataFrame", positions: np.ndarray, position: Position) -> Batch:
        """Encode n raw records. Records that cannot be encoded go to `Batch.dead`.

        `frame` has n rows with every name of `columns`: String (null or "" is missing), or Float64 (null is missing)
        for a numeric column. `positions` (n,) int64 is the row or offset of each record, and `position` the source's
        position after the last one.
        """


@runtime_checkable
class Source(Protocol):
    """A stream of records with a position that can be set."""

    @property
    def position(self) -> Position:
        """The position after the last polled record."""

    @property
    def finished(self) -> bool:
        """Whether the stream has ended and all its records were polled."""

    @property
    def share(self) -> float | None:
        """The share of the stream that was polled, from 0 to 1; None: unknown, as here."""
        return None

    @property
    def unended(self) -> Sequence[str]:
        """The names of files that were polled up to a last record without its end; none here."""
        return ()

    def recognise(self, key: bytes) -> None:
        """Distinguish, by a secret `key`, the stream from others that begin alike; this does nothing.

        A job calls it before the first poll or seek, with the same key in every run.
        """
        return

    def poll(self, max_records: int, timeout_s: float) -> Batch:
        """Return at most `max_records` next records, including dead letters; at least 1.

        The batch is empty if none came in `timeout_s` seconds.
        """

    def seek(self, position: Position) -> None:
        """Continue at a `position` that the same source gave, in this run or an earlier one."""

    def commit(self, position: Position) -> None:
        """Note that the store has committed a `position`. A source may commit it to its broker; this does nothing."""
        return

    def close(self) -> None:
        """Release files and connections."""


class RebalanceListener(Protocol):
    """What to do with shards that are taken away. `ShardedSource.poll` calls it."""

    def revoked(self, shards: set[Shard]) -> None:
        """Commit what was learned from `shards`: they are still assigned to this worker, and go to other ones."""

    def lost(self, shards: set[Shard]) -> None:
        """Discard what was learned from `shards`: other workers already have them."""


class ShardedSource(Protocol):
    """A stream in shards that the workers of a group divide. `connectors.kafka.KafkaSource` implements it."""

    def subscribe(self, listener: RebalanceListener) -> None:
        """Join the group, when the next polls reach its broker. The `listener` is called when shards are taken away."""

    def assigned(self) -> list[Shard]:
        """Return the shards that were assigned since the last call. Each waits for `start`."""

    @property
    def settled(self) -> bool:
        """Whether this worker knows which shards it has, or that it has none; false while a group forms."""

    def awaited(self) -> str:
        """What a worker without shards waits for: words that end a sentence. They show no value of a record."""

    def stalls(self) -> list[Stall]:
        """What keeps shards that this worker has from being read, since at least some seconds; it does not wait.

        If the worker has no shard, a stall of the whole topic.
        """

    def start(self, shard: Shard, position: Position | None) -> Position | None:
        """Read a `shard` from a `position` (None: its start), for the first time or after a rollback.

        Returns the position at which reading continues; None, without any effect, if the shard is no longer assigned.
        """

    def poll(self, max_records: int, timeout_s: float) -> list[tuple[Shard, Sequence[object]]]:
        """Return at most `max_records` next raw records by shard; none if none came in `timeout_s` seconds."""

    def decode(self, shard: Shard, raw: Sequence[object]) -> Batch:
        """Return the records and dead letters of `raw`, which `poll` returned for a `shard`; also in another thread."""

    def advance(self, shard: Shard, position: Position) -> Position:
        """The position at which the next record of a `shard` may be, if the source knows that there is none before it.

        The learner of the shard is at `position`; if `poll` has returned records after it, the same one is returned.
        """

    def pause(self) -> None:
        """Let `poll` return no records from now on; it only keeps the membership in the group."""

    def resume(self) -> None:
        """End `pause`."""

    def commit(self, positions: Mapping[Shard, Position]) -> None:
        """Note that the store has committed `positions`, by shard. A source may commit them to its broker."""

    def close(self) -> None:
        """Leave the group."""
