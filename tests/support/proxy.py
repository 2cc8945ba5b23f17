"""A TCP proxy in front of servers, which cuts connections at a given word of the client."""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
from collections import deque

_RESET = struct.pack("ii", 1, 0)
"""SO_LINGER with no time: the close is a reset."""


class Proxy:
    """Passes connections on to ports of this machine, to each in turn; a server that is down is left out.

    Parameters
    ----------
    ports
        The servers' ports on 127.0.0.1.

    Attributes
    ----------
    port
        Where clients connect to.
    cuts
        How many connections were cut at a word.
    """

    def __init__(self, *ports: int) -> None:
        self._upstreams = deque(ports)
        self._word: bytes | None = None
        self._forward = False
        self._lock = threading.Lock()
        self._pairs: list[tuple[socket.socket, socket.socket]] = []
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listening.getsockname()[1]
        self.cuts = 0
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

    def close(self) -> None:
        """Cut all connections, and stop listening."""
        self._listening.close()
        for pair in self._pairs:
            _reset(*pair)

    def __enter__(self) -> Proxy:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):  # until `close`
            while True:
                client, _ = self._listening.accept()
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
                if watched and (forward := self._taken(data)) is not None:
                    if forward:
                        source.shutdown(socket.SHUT_WR)  # before the server can answer
                        target.sendall(data)
                        target.shutdown(socket.SHUT_WR)
                        while target.recv(65536):  # the server has done what was asked when it has answered
                            pass
                    break
                target.sendall(data)
        _reset(source, target)

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
