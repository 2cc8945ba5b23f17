"""Connections: how many there may be, probes beyond the limit, and the time of each phase."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import httpx
import pytest

from streamdp import system
from streamdp.service import connections
from streamdp.service.connections import MOST_CONNECTIONS, SPARE, Connection
from tests.support.service import client, job

HEAD = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n"
GET = HEAD + b"\r\n"


@contextmanager
def _connected(http: httpx.Client) -> Iterator[socket.socket]:
    with socket.create_connection((http.base_url.host, http.base_url.port), 60) as one:
        yield one


def _rest(one: socket.socket) -> bytes:
    """What comes until the service closes the connection."""
    with one.makefile("rb") as file:
        return file.read()


@pytest.mark.parametrize(
    ("limit", "low", "high"), [(1024, 512, 900), (65_536, MOST_CONNECTIONS, MOST_CONNECTIONS), (None, 4096, 4096)]
)
def test_the_limit_of_connections_leaves_files_for_all_else(
    limit: int | None, low: int, high: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connections, "most_open_files", lambda: limit)
    assert low <= connections.most_connections(1) <= high
    assert connections.most_connections(10_000) > 0


def test_the_limit_of_open_files_is_known() -> None:
    assert (system.most_open_files() or 1) > 0


@pytest.mark.parametrize("sent", [b"", HEAD])
def test_a_connection_without_the_head_of_a_request_is_closed(
    sent: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with client(job(tmp_path)) as http:
        monkeypatch.setattr(connections, "HEAD_SECONDS", 0.2)
        with _connected(http) as one:
            one.sendall(sent)
            assert _rest(one) == b""


def test_the_head_of_a_second_request_has_its_time_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with client(job(tmp_path)) as http, _connected(http) as one:
        one.sendall(GET)
        assert one.recv(65_536).startswith(b"HTTP/1.1 200")
        monkeypatch.setattr(connections, "HEAD_SECONDS", 0.2)
        one.sendall(b"G")
        assert b"HTTP" not in _rest(one)


def test_a_body_that_no_route_reads_holds_no_connection(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with client(job(tmp_path)) as http, _connected(http) as one:
        one.sendall(HEAD + b"Content-Length: 1000\r\n\r\n")
        assert one.recv(65_536).startswith(b"HTTP/1.1 200")
        monkeypatch.setattr(connections, "HEAD_SECONDS", 0.2)
        one.sendall(b"x")
        assert b"HTTP" not in _rest(one)


def test_an_answer_that_is_not_read_has_its_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    dropped, drop = threading.Event(), Connection.drop

    def noted(self: Connection) -> None:
        dropped.set()
        drop(self)

    monkeypatch.setattr(Connection, "drop", noted)
    monkeypatch.setattr(connections, "ANSWER_SECONDS", 0.2)
    with client(job(tmp_path)) as http, _connected(http) as one:
        one.settimeout(60)
        asked = 0
        one.setblocking(False)
        while not dropped.wait(0.01) and asked < 6000:
            try:
                one.sendall(GET.replace(b"healthz", b"device.js") * 10)
                asked += 10
            except BlockingIOError:
                pass
        assert dropped.wait(60)


def test_probes_are_answered_at_the_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "MOST_CONNECTIONS", 3)
    with client(job(tmp_path)) as http, ExitStack() as stack:
        http.get("/healthz", headers={"Connection": "close"})
        for _ in range(3):
            one = stack.enter_context(_connected(http))
            one.sendall(b"GET /v1/models/late/events HTTP/1.1\r\nHost: localhost\r\n\r\n")
            assert one.recv(100).startswith(b"HTTP/1.1 200")
        for path, status in (("/healthz", 200), ("/readyz", 200), ("/v1/models", 503), ("/metrics", 503)):
            with httpx.Client(base_url=http.base_url, timeout=60) as another:
                assert another.get(path).status_code == status, path


def test_many_silent_connections_leave_places_for_callers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "MOST_CONNECTIONS", 40 - SPARE)
    with client(job(tmp_path)) as http, ExitStack() as stack:
        silent = [stack.enter_context(_connected(http)) for _ in range(200)]
        for path in ("/healthz", "/v1/models"):
            with httpx.Client(base_url=http.base_url, timeout=60) as another:
                assert another.get(path).status_code == 200
        assert all(_rest(one) == b"" for one in silent[:150])  # the oldest ones gave their places
