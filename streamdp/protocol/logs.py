"""The logs that connect the three parties: one to read, with offsets, and one to write. Kafka topics are such logs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

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


class Log(Protocol):
    """A log to read. Every reader finds the messages in the same order, at any time.

    `poll` raises `SourceError` if it has found another log of the same name.
    """

    @property
    def id(self) -> str | None:
        """What another log of the same name does not have; None if that is unknown."""

    def seek(self, offset: int) -> int:
        """Continue at an offset, or at the oldest message if that is later; returns the offset.

        Parameters
        ----------
        offset
            The offset of the next message to read.

        Raises `SourceError` for an offset past the end.
        """

    def end(self) -> int:
        """The offset that the next message will have."""

    def poll(self, timeout_s: float) -> Sequence[Entry]:
        """The next messages; none if none comes in time.

        Parameters
        ----------
        timeout_s
            The time to wait, in seconds.
        """

    def forget(self, before: int) -> None:
        """Delete messages, if the log permits it.

        Parameters
        ----------
        before
            The offset of the first message to keep.
        """


def check_log(log: Log, position: Mapping[str, Any]) -> None:
    """See that a log is the one to which a committed position belongs.

    Parameters
    ----------
    position
        With the `topic_id` of the log; positions of earlier versions have none.

    Raises `SourceError` if it is another log.
    """
    before = position.get("topic_id")
    if None not in (before, log.id) and before != log.id:
        raise SourceError(
            "a topic was deleted and created again since this store was written: its offsets are those of other"
            " messages; restore the topic, or use another store and other topics"
        )


class Outlet(Protocol):
    """A log to write."""

    def send(self, key: bytes | None, value: bytes | None, *, timestamp_ms: int | None = None) -> Any:
        """Queue a message.

        Parameters
        ----------
        key, value
            The message.
        timestamp_ms
            Milliseconds since 1970 (UTC); None: now.
        """

    def flush(self) -> Any:
        """Wait until all queued messages are durable."""

    def end(self) -> int:
        """The end of the log at the time when it was opened: the offset that the next message would have had."""


def silent(event: str, **numbers: Any) -> None:
    """Ignore an event; a `Tell`.

    Parameters
    ----------
    event, numbers
        Not used.
    """
