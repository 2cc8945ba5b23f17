"""What the three parties need of a medium: a log with offsets to read, and one to write. Kafka topics are such logs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

Tell = Callable[..., None]
"""Called with the name of an event and its numbers; never with anything of a message."""


class Entry(Protocol):
    """One message of a log."""

    @property
    def offset(self) -> int: ...
    @property
    def key(self) -> bytes | None: ...
    @property
    def value(self) -> bytes | None: ...
    @property
    def timestamp(self) -> int: ...


class Log(Protocol):
    """To read: in one order, the same whenever it is read."""

    def seek(self, offset: int) -> int:
        """Go on at `offset`, or at the oldest that there is; returns which. Raises `SourceError` past the end."""

    def end(self) -> int:
        """The offset that the next message will have."""

    def poll(self, timeout_s: float) -> Sequence[Entry]:
        """What comes next; nothing after `timeout_s` without any."""

    def forget(self, before: int) -> None:
        """Delete the messages before this offset, where we may."""


class Outlet(Protocol):
    """To write."""

    def send(self, key: bytes | None, value: bytes | None, *, timestamp_ms: int | None = None) -> Any:
        """Queue a message."""

    def flush(self) -> None:
        """All that is queued is durable when this returns."""

    def end(self) -> int:
        """The offset that the next message would have had when this was opened."""


def silent(event: str, **numbers: Any) -> None:
    """Tell nobody."""
