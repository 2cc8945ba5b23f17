"""The connections of a service: how many there may be, of one address too, and how long each phase may take.

A connection has a place from its acceptance on, before any TLS. If a place is needed and none is free, the connection
that has waited longest for a request is closed, of the address that has most of those: a caller that sends nothing
keeps nobody out. If too many have a request that is answered, further ones are spare: they get answers to probes of
health, and 503 for all else.
"""

from __future__ import annotations

import asyncio
import ipaddress
import logging
import socket
import ssl
from collections import Counter
from typing import Any

from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.server import ServerState

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
_AT_ONCE = 64
"""Connections that are accepted before those that wait are read."""
_PAUSE_SECONDS = 0.5
"""The time without acceptance after the system refused a descriptor."""
_RESERVED = 64
"""Files that are neither connections nor of jobs."""
_FILES_OF_JOB = 10

_log = logging.getLogger("streamdp.service.connections")


def most_connections(jobs: int) -> int:
    """How many connections a service of so many `jobs` has places for, within the open files that it may have."""
    limit = most_open_files()
    if limit is None:
        return MOST_CONNECTIONS
    reserved = _RESERVED + SPARE + _AT_ONCE + _FILES_OF_JOB * jobs
    return min(MOST_CONNECTIONS, max(limit // 4, limit - reserved))


class ConnectionLimit:
    """Who has the places for connections: `most` may have a request that is answered, of one address at most half.

    Of IPv6, addresses of one network of 64 bits are one. Connections are at most `SPARE` more.
    """

    def __init__(self, most: int) -> None:
        self._most, self._most_of_one = most, max(1, most // 2)
        self._all: set[HTTPConnection] = set()
        self._of: Counter[str] = Counter()
        self._waiting: dict[str, dict[HTTPConnection, None]] = {}  # for a request, the longest wait first
        self._idle = 0

    def enter(self, one: HTTPConnection) -> bool:
        """Give a place to a new connection, which waits for a request. Return whether there is one."""
        if self._of[one.address] >= self._most_of_one + SPARE:
            self._close_waiting(one.address)
        elif len(self._all) >= self._most + SPARE:
            self.close_longest()
        if self._of[one.address] >= self._most_of_one + SPARE or len(self._all) >= self._most + SPARE:
            return False
        self._all.add(one)
        self._of[one.address] += 1
        self.wait(one)
        return True

    def wait(self, one: HTTPConnection) -> None:
        """Note that a connection waits for a request."""
        if one not in self._all:
            return
        waiting = self._waiting.setdefault(one.address, {})
        if one not in waiting:
            waiting[one] = None
            self._idle += 1

    def work(self, one: HTTPConnection) -> None:
        """Note that a request of a connection is answered. The connection is spare if there are too many of those."""
        if self._stop_waiting(one):
            of_one = self._of[one.address] - len(self._waiting.get(one.address, ()))
            one.spare = of_one > self._most_of_one or len(self._all) - self._idle > self._most

    def leave(self, one: HTTPConnection) -> None:
        """Free the place of a connection. Idempotent."""
        if one in self._all:
            self._stop_waiting(one)
            self._all.remove(one)
            self._of[one.address] -= 1
            if not self._of[one.address]:
                del self._of[one.address]

    def _stop_waiting(self, one: HTTPConnection) -> bool:
        waiting = self._waiting.get(one.address, {})
        if one not in waiting:
            return False
        del waiting[one]
        self._idle -= 1
        if not waiting:
            del self._waiting[one.address]
        return True

    def close_longest(self) -> None:
        """Close the connection that has waited longest for a request, of the address that has most of those."""
        if self._waiting:
            self._close_waiting(max(self._waiting, key=lambda address: len(self._waiting[address])))

    def _close_waiting(self, address: str) -> None:
        if (one := next(iter(self._waiting.get(address, ())), None)) is not None:
            _log.warning("no place for a connection was free: closed one that had sent no request")
            self.leave(one)
            one.drop()


class HTTPConnection(H11Protocol):
    """A connection, which h11 reads, because it limits the size of headers.

    It has one of the `places`, and counts for an `address`; `given` are what uvicorn's protocols get.

    A caller that closes its half after its request gets the answer. Then the connection is closed. With TLS, asyncio
    has no such half.
    """

    def __init__(self, places: ConnectionLimit, address: str, **given: Any) -> None:
        super().__init__(**given)
        self.address = address
        self.spare = False
        self._places = places
        self._connecting: asyncio.Task[object] | None = None
        self._dropped = False
        self._head: asyncio.TimerHandle | None = None
        self._unread: asyncio.TimerHandle | None = None

    async def connect(self, accepted: socket.socket, context: ssl.SSLContext | None) -> None:
        """Take over an accepted socket, after a handshake with the `context` for TLS if there is one."""
        if self._dropped:
            accepted.close()
            return
        seconds = None if context is None else HEAD_SECONDS
        self._connecting = asyncio.current_task()
        try:
            await self.loop.connect_accepted_socket(
                lambda: self, accepted, ssl=context, ssl_handshake_timeout=seconds, ssl_shutdown_timeout=seconds
            )
        except (OSError, asyncio.CancelledError):  # the handshake failed, or its place was needed
            self._places.leave(self)

    def drop(self) -> None:
        """Close the connection now. What was not sent is lost."""
        self._dropped = True
        if self.transport is not None:
            self.transport.abort()
        elif self._connecting is not None:
            self._connecting.cancel()

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self.app_state = {**self.app_state, "is_spare": lambda: self.spare}
        self._limit_head()

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self._unset_keepalive_if_required()
        self._end_head()
        self.resume_writing()
        self._places.leave(self)

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self._working:
            self._end_head()
            self._places.work(self)
        elif self._head is None:
            self._limit_head()

    def on_response_complete(self) -> None:
        """Wait for the next request; see `H11Protocol`."""
        super().on_response_complete()
        if self.transport.is_closing():
            self._limit_unread()
        elif not self._working:  # else the next request has come with the last one
            self._places.wait(self)

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


class Acceptor:
    """Accepts connections of a `listening` socket as long as it is open.

    At most `most` of them have a request that is answered. `context` is for TLS; None: no TLS. `state` and `given` are
    what uvicorn's protocols get. It is uvicorn's server: `close` and `wait_closed`.
    """

    def __init__(
        self, listening: socket.socket, most: int, state: ServerState, context: ssl.SSLContext | None, **given: object
    ) -> None:
        self._listening, self._context = listening, context
        self._given = given | {"server_state": state}
        self._places = ConnectionLimit(most)
        self._loop = asyncio.get_running_loop()
        self._tasks: set[asyncio.Task[None]] = set()
        listening.setblocking(False)
        self._resume()

    def close(self) -> None:
        """Accept no more, and end handshakes."""
        if self._listening.fileno() >= 0:
            self._loop.remove_reader(self._listening)
            self._listening.close()
        for task in self._tasks:
            task.cancel()

    async def wait_closed(self) -> None:
        """Nothing is left to wait for."""

    def _resume(self) -> None:
        if self._listening.fileno() >= 0:
            self._loop.add_reader(self._listening, self._accept)

    def _accept(self) -> None:
        for _ in range(_AT_ONCE):
            try:
                accepted, peer = self._listening.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:  # no descriptor or memory is left
                _log.error("no connection can be accepted: %s", (error.strerror or "an error").lower())
                self._places.close_longest()
                self._loop.remove_reader(self._listening)
                self._loop.call_later(_PAUSE_SECONDS, self._resume)
                return
            one = HTTPConnection(self._places, network_of(peer[0]), **self._given)
            if not self._places.enter(one):
                _log.warning("a connection was refused: all places have requests")
                accepted.close()
                continue
            task = self._loop.create_task(one.connect(accepted, self._context))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)


def network_of(address: str) -> str:
    """What counts as one address: an IPv4 address, or the network of 64 bits of an IPv6 address."""
    if ":" not in address:
        return address
    return str(ipaddress.IPv6Network((int(ipaddress.IPv6Address(address.partition("%")[0])) >> 64 << 64, 64)))
