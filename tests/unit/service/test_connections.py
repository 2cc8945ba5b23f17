"""Connections: places for all, for one address and for probes; the time of each phase; and a log that stays small."""

import asyncio
import errno
import logging
import socket
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from uvicorn.server import ServerState

from streamdp import system
from streamdp.service import connections
from streamdp.service.connections import MOST_CONNECTIONS, SPARE, Acceptor, ConnectionLimit, HTTPConnection, network_of
from streamdp.service.server import MOST_OF_A_MESSAGE, Sparing
from tests.support.clock import FakeClock
from tests.support.service import client, job

HEAD = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n"
GET = HEAD + b"\r\n"


class _One:
    """What `ConnectionLimit` uses of a connection."""

    def __init__(self, address: str) -> None:
        self.address, self.spare, self.dropped = address, False, False

    def drop(self) -> None:
        self.dropped = True


@contextmanager
def _connected(http: httpx.Client) -> Iterator[socket.socket]:
    with socket.create_connection((http.base_url.host, http.base_url.port), 60) as one:
        yield one


def _rest(one: socket.socket) -> bytes:
    """What comes until the service closes the connection."""
    with one.makefile("rb") as file:
        return file.read()


def test_who_waits_longest_of_the_address_with_most_gives_its_place(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "SPARE", 0)
    places: Any = ConnectionLimit(6)
    strangers, other = [_One("a") for _ in range(3)], [_One(address) for address in "bcd"]
    for one in (other[0], *strangers, *other[1:]):
        assert places.enter(one)
    places.work(strangers[0])
    assert places.enter(_One("e"))
    assert [one.dropped for one in (*strangers, *other)] == [False, True, False, False, False, False]


def test_one_address_has_half_of_the_places() -> None:
    places: Any = ConnectionLimit(6)
    strangers = [_One("a") for _ in range(10 + SPARE)]
    assert all(map(places.enter, strangers))
    assert [one.dropped for one in strangers] == [True] * 7 + [False] * (3 + SPARE)
    for one in strangers:
        places.work(one)
    assert [one.spare for one in strangers[7:]] == [False] * 3 + [True] * SPARE
    assert not places.enter(_One("a"))
    assert places.enter(_One("b"))
    assert not strangers[7].dropped


def test_requests_are_not_closed_and_further_ones_are_spare() -> None:
    places: Any = ConnectionLimit(4)
    working = [_One(str(address)) for address in range(4 + SPARE)]
    for one in working:
        assert places.enter(one)
        places.work(one)
    assert [one.spare for one in working] == [False] * 4 + [True] * SPARE
    assert not places.enter(_One("f"))
    assert not any(one.dropped for one in working)
    places.wait(working[0])
    assert places.enter(_One("f"))
    assert working[0].dropped
    for _ in range(2):
        places.leave(working[1])  # its place is free once, however often it leaves
    assert places.enter(_One("g"))
    assert not any(one.dropped for one in working[1:])


def test_a_network_of_ipv6_is_one_address() -> None:
    assert network_of("2001:db8::1") == network_of("2001:db8::ffff:2") != network_of("2001:db8:0:1::1")
    assert network_of("fe80::1%eth0") == network_of("fe80::2")
    assert network_of("192.0.2.1") != network_of("192.0.2.2")


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


@pytest.mark.parametrize(
    ("first", "more"), [(GET, b"G"), (HEAD + b"Content-Length: 1000\r\n\r\n", b"x")], ids=["head", "body"]
)
def test_what_follows_a_request_has_its_time_too(
    first: bytes, more: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The head of a second request, and a body that no route reads."""
    with client(job(tmp_path)) as http, _connected(http) as one:
        one.sendall(first)
        assert one.recv(65_536).startswith(b"HTTP/1.1 200")
        monkeypatch.setattr(connections, "HEAD_SECONDS", 0.2)
        one.sendall(more)
        assert b"HTTP" not in _rest(one)


def test_an_answer_that_is_not_read_has_its_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    dropped, drop = threading.Event(), HTTPConnection.drop

    def noted(self: HTTPConnection) -> None:
        dropped.set()
        drop(self)

    monkeypatch.setattr(HTTPConnection, "drop", noted)
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
    monkeypatch.setattr(connections, "MOST_CONNECTIONS", 6)  # an address has three
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


def test_without_descriptors_the_service_waits_and_goes_on(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connections, "_PAUSE_SECONDS", 0.001)
    tried: list[int] = []

    class Listening(socket.socket):
        def accept(self) -> Any:
            tried.append(1)
            if len(tried) < 3:
                raise OSError(errno.EMFILE, "Too many open files")
            found.set_result(None)
            raise BlockingIOError

    async def run() -> None:
        nonlocal found
        found = asyncio.get_running_loop().create_future()
        with Listening() as listening:
            listening.bind(("127.0.0.1", 0))
            listening.listen()
            acceptor = Acceptor(listening, 4, ServerState(), None)
            with socket.create_connection(listening.getsockname()):
                await found
            acceptor.close()

    found: asyncio.Future[None]
    monkeypatch.setattr(logging.getLogger("streamdp.service"), "propagate", True)
    asyncio.run(run())
    said = [r.getMessage() for r in caplog.records if r.name == "streamdp.service.connections"]
    assert said == ["no connection can be accepted: too many open files"] * 2
    assert not any(record.exc_info for record in caplog.records)


def test_a_message_that_repeats_is_left_out_and_counted() -> None:
    clock = FakeClock()
    sparing = Sparing(clock)

    def passed(name: str, text: str) -> list[str]:
        records = [logging.makeLogRecord({"name": name, "msg": "%s", "args": (text,)}) for _ in range(1000)]
        return [str(record.left_out) for record in records if sparing.filter(record)]  # type: ignore[attr-defined]

    assert passed("streamdp.service.jobs", "a") == [""] * MOST_OF_A_MESSAGE
    assert passed("uvicorn.error", "b") == [""] * MOST_OF_A_MESSAGE
    assert len(passed("streamdp.service.access", "a")) == 1000
    clock.sleep(61)
    left_out = 1000 - MOST_OF_A_MESSAGE
    assert passed("streamdp.service.jobs", "a")[0] == f" ({left_out} more such messages were left out)"
