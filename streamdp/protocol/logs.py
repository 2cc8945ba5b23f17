"""The logs that connect the three parties: one to read, with offsets, and one to write. Kafka topics are such logs."""

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from streamdp.errors import SourceError

Tell = Callable[..., None]
"""A function that is called with the name of an event and its numbers, and never with contents of a message."""


class Entry(Protocol):
    """One message of a log."""

    @property
    def offset(self) -> int:
        """The message's place in the log."""

    @property
    def key(self) -> bytes | None:
        """The message's key."""

    @property
    def value(self) -> bytes | None:
        """The message's value."""

    @property
    def timestamp(self) -> int:
        """Milliseconds since 1970 (UTC)."""


class LogReader(Protocol):
    """A log to read. Every reader finds the messages in the same order, at any time.

    `poll` raises `SourceError` if it has found another log of the same name.
    """

    @property
    def id(self) -> str | None:
        """What another log of the same name does not have; None if that is unknown."""

    def seek(self, offset: int) -> int:
        """Continue at an `offset`, or at the oldest message if later, and return where; `SourceError` past the end."""

    def end(self) -> int:
        """The offset that the next message will have."""

    def poll(self, timeout_s: float) -> Sequence[Entry]:
        """The next messages; none if none comes in `timeout_s` seconds."""

    def forget(self, before: int) -> None:
        """Delete the messages `before` an offset, if the log permits it."""


def check_log(log: LogReader, position: Mapping[str, object]) -> None:
    """Raise `SourceError` unless a committed `position` belongs to this log, by its `topic_id` if it has one."""
    before = position.get("topic_id")
    if None not in (before, log.id) and before != log.id:
        raise SourceError(
            "a topic was deleted and created again since this store was written: its offsets are those of other"
            " messages; restore the topic, or use another store and other topics"
        )


class LogWriter(Protocol):
    """A log to write."""

    def send(self, key: bytes | None, value: bytes | None, *, timestamp_ms: int | None = None) -> object:
        """Queue a message of `key` and `value`. `timestamp_ms` is in milliseconds since 1970 (UTC); None: now."""

    def flush(self) -> object:
        """Wait until all queued messages are durable."""

    def end(self) -> int:
        """The end of the log at the time when it was opened: the offset that the next message would have had."""


def silent(event: str, **numbers: object) -> None:
    """Ignore an `event` and its `numbers`; a `Tell`."""
