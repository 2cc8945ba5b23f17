"""A TCP proxy in front of servers, which cuts its connections at a word of the client, or after some bytes."""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
from collections import deque
from collections.abc import Iterator

_RESET = struct.pack("ii", 1, 0)
"""SO_LINGER with no time: the close is a reset."""


class Proxy:
    """Passes connections on to ports of this machine, to each in turn; a server that is down is left out.

    Parameters
    ----------
    ports
        The servers' ports on 127.0.0.1.
    listen
        Where clients connect to; 0: any free port.

    Attributes
    ----------
    port
        As `listen`, or the free port.
    cuts
        How many connections were cut at a word or after some bytes.
    refuses
        Whether new connections are cut at once.
    flows
        An event: while it is not set, nothing passes, and connections stay open.
    """

    def __init__(self, *ports: int, listen: int = 0) -> None:
        self._upstreams = deque(ports)
        self._word: bytes | None = None
        self._forward = False
        self._room: int | None = None
        self._lock = threading.Lock()
        self._pairs: list[tuple[socket.socket, socket.socket]] = []
        self._kept: set[socket.socket] = set()
        self._listening = socket.create_server(("127.0.0.1", listen))
        self.port: int = self._listening.getsockname()[1]
        self.cuts = 0
        self.refuses = False
        self.flows = threading.Event()
        self.flows.set()
        threading.Thread(target=self._accept, daemon=True).start()

    def cut_at(self, word: bytes, *, forward: bool) -> None:
        """Cut the next connection whose client sends a word.

        Parameters
        ----------
        word
            Such as `COMMIT`.
        forward
            Whether the server still gets the word: then it does what was asked, and its answer is lost.
        """
        with self._lock:
            self._word, self._forward = word, forward

    def cut_after(self, count: int) -> None:
        """Cut the connection that passes a byte, in either direction, when so many more have passed.

        Parameters
        ----------
        count
            The bytes that still pass; a message may be cut in the middle.
        """
        with self._lock:
            self._room = count

    def spare(self) -> None:
        """Cut no connection any more."""
        with self._lock:
            self._word = self._room = None

    @contextlib.contextmanager
    def away(self) -> Iterator[None]:
        """Cut all connections and refuse new ones until the end of the `with`."""
        self.refuses = True
        try:
            self.cut_all()
            yield
        finally:
            self.refuses = False

    def cut_all(self) -> None:
        """Cut all connections."""
        for pair in list(self._pairs):
            _reset(*pair)

    def cut_clients(self) -> None:
        """Cut all connections at their clients' end; the servers do not notice, as if the network were gone."""
        for client, server in list(self._pairs):
            self._kept.add(server)
            _reset(client)

    def close(self) -> None:
        """Cut all connections, and stop listening."""
        self._listening.close()
        self.cut_all()
        self.flows.set()

    def __enter__(self) -> Proxy:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):  # until `close`
            while True:
                client, _ = self._listening.accept()
                if self.refuses:
                    _reset(client)
                    continue
                if (server := self._connected()) is None:
                    _reset(client)
                    continue
                server.settimeout(None)
                self._pairs = [p for p in self._pairs if p[0].fileno() >= 0] + [(client, server)]
                for source, target, watched in ((client, server, True), (server, client, False)):
                    threading.Thread(target=self._pass, args=(source, target, watched), daemon=True).start()

    def _connected(self) -> socket.socket | None:
        for _ in range(len(self._upstreams)):
            self._upstreams.rotate()
            with contextlib.suppress(OSError):
                return socket.create_connection(("127.0.0.1", self._upstreams[0]), timeout=10)
        return None

    def _pass(self, source: socket.socket, target: socket.socket, watched: bool) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(65536):
                self.flows.wait()
                if watched and (forward := self._taken(data)) is not None:
                    if forward:
                        source.shutdown(socket.SHUT_WR)  # before the server can answer
                        target.sendall(data)
                        target.shutdown(socket.SHUT_WR)
                        while target.recv(65536):  # the server has done what was asked when it has answered
                            pass
                    break
                allowed = self._allowed(len(data))
                target.sendall(data[:allowed])
                if allowed < len(data):
                    break
        _reset(*({source, target} - self._kept))

    def _allowed(self, count: int) -> int:
        """How many of so many bytes pass; the connection is cut if not all of them do."""
        with self._lock:
            if self._room is None:
                return count
            allowed = min(count, self._room)
            self._room -= allowed
            if allowed < count:
                self._room = None
                self.cuts += 1
            return allowed

    def _taken(self, data: bytes) -> bool | None:
        """Whether to forward data at which the connection is cut; None: it is not cut."""
        with self._lock:
            if self._word is None or self._word not in data:
                return None
            self._word = None
            self.cuts += 1
            return self._forward


def _reset(*ends: socket.socket) -> None:
    for end in ends:
        with contextlib.suppress(OSError):
            end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
        with contextlib.suppress(OSError):
            end.shutdown(socket.SHUT_RDWR)
        end.close()
