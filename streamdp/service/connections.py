"""The connections of a service: how many there may be, and how long each phase may take.

If there are too many, the connection that has waited longest for a request is closed: a caller that sends nothing keeps
nobody out. If too many have a request that is answered, further ones are spare: they get answers to probes of health,
and 503 for all else.
"""

from __future__ import annotations

import asyncio
from typing import Any

from uvicorn.protocols.http.h11_impl import H11Protocol

from streamdp.system import most_open_files

MOST_CONNECTIONS = 4096
SPARE = 32
"""Connections beyond the limit: for probes of health."""
HEAD_SECONDS = 10.0
"""How long TLS, and the head of a request, may take; of a further request of a connection from its first byte on."""
KEEP_ALIVE_SECONDS = 30
"""How long a connection may stay open without a request after an answer."""
ANSWER_SECONDS = 30.0
"""How long a caller may leave its answer unread."""
AT_ONCE = 64
"""Connections that are accepted before those that wait are read."""
_RESERVED = 64
"""Files that are neither connections nor of jobs."""
_FILES_OF_JOB = 10


def most_connections(jobs: int) -> int:
    """How many connections a service of so many `jobs` may have, within the open files that it may have."""
    limit = most_open_files()
    if limit is None:
        return MOST_CONNECTIONS
    reserved = _RESERVED + SPARE + AT_ONCE + _FILES_OF_JOB * jobs
    return min(MOST_CONNECTIONS, max(limit // 4, limit - reserved))


class Connection(H11Protocol):
    """A connection, which h11 reads, because it limits the size of headers.

    At most `most` connections have a request that is answered, and `SPARE` more are open. `waiting` has those that wait
    for a request, the longest wait first; they share it. `given` are what uvicorn's protocols get.

    A caller that closes its half after its request gets the answer. Then the connection is closed. With TLS, asyncio
    has no such half.
    """

    def __init__(self, most: int, waiting: dict[Connection, None], **given: Any) -> None:
        super().__init__(**given)
        self._most, self._waiting = most, waiting
        self._head: asyncio.TimerHandle | None = None
        self._unread: asyncio.TimerHandle | None = None

    def drop(self) -> None:
        """Close the connection now. What was not sent is lost."""
        self._waiting.pop(self, None)
        self.transport.abort()

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self.app_state = {**self.app_state, "is_spare": lambda: len(self.connections) - len(self._waiting) > self._most}
        self._waiting[self] = None
        self._limit_head()
        if len(self.connections) > self._most + SPARE:
            next(iter(self._waiting)).drop()

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self._unset_keepalive_if_required()
        self._end_head()
        self.resume_writing()
        self._waiting.pop(self, None)

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self._working:
            self._end_head()
            self._waiting.pop(self, None)
        elif self._head is None:
            self._limit_head()

    def on_response_complete(self) -> None:
        """Wait for the next request; see `H11Protocol`."""
        super().on_response_complete()
        if self.transport.is_closing():
            self._limit_unread()
        elif not self._working:  # else the next request has come with the last one
            self._waiting[self] = None

    def pause_writing(self) -> None:
        super().pause_writing()
        self._limit_unread()

    def resume_writing(self) -> None:
        super().resume_writing()
        if self._unread is not None:
            self._unread.cancel()
            self._unread = None

    def timeout_keep_alive_handler(self) -> None:
        self.drop()

    def eof_received(self) -> bool:  # type: ignore[override]
        cycle = self.cycle
        if cycle is None or cycle.more_body or cycle.response_complete or self.scheme == "https":
            return False
        cycle.keep_alive = False
        return True

    @property
    def _working(self) -> bool:
        return self.cycle is not None and not self.cycle.response_complete

    def _limit_head(self) -> None:
        self._head = self.loop.call_later(HEAD_SECONDS, self.drop)

    def _end_head(self) -> None:
        if self._head is not None:
            self._head.cancel()
            self._head = None

    def _limit_unread(self) -> None:
        if self._unread is None:
            self._unread = self.loop.call_later(ANSWER_SECONDS, self.drop)
