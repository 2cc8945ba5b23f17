"""HTTP itself: hosts, HEAD, half-closed connections, pages of jobs that are not there, and the description of calls."""

import json
import socket
from pathlib import Path

import httpx
import pytest

from streamdp.service.requests import MAX_BODY_BYTES
from tests.support.service import client, job, record

HOSTS = [
    ("localhost", True),
    ("LOCALHOST:80", True),
    ("127.0.0.1:8000", True),
    ("127.1.2.3", True),
    ("[::1]", True),
    ("[::1]:80", True),
    ("[::1].evil.example", False),
    ("[::1]evil:80", False),
    ("localhost:80@evil.example", False),
    ("localhost:80.evil.example", False),
    ("localhost/@evil.example", False),
    ("localhost.evil.example", False),
    ("127.0.0.1.evil.example", False),
    ("user@localhost", False),
    ("::1", False),
    ("evil.example", False),
    ("", False),
]


@pytest.mark.slow
def test_without_tokens_a_request_names_this_machine(tmp_path: Path) -> None:
    with client(job(tmp_path)) as http:
        for host, served in HOSTS:
            assert (http.get("/v1/models", headers={"Host": host}).status_code == 200) == served


def test_head_works_where_get_does(tmp_path: Path) -> None:
    with client(job(tmp_path)) as http:
        for path in ("/", "/healthz", "/readyz", "/metrics", "/docs", "/v1/models/late", "/join/late", "/device.js"):
            head, got = http.head(path), http.get(path)
            assert (head.status_code, head.content) == (200, b""), path
            assert head.headers["content-type"] == got.headers["content-type"]
        assert http.head("/v1/models/late/events").headers["content-type"].startswith("text/event-stream")
        assert http.head("/v1/models/late/learn").status_code == 405
        assert http.head("/v1/models/nosuch").status_code == 404


def test_the_form_of_a_job_that_is_not_there_is_not_found(tmp_path: Path) -> None:
    with client(job(tmp_path)) as http:
        assert http.get("/join/nosuch").status_code == 404
        assert http.get("/join/late").status_code == 200


def test_a_caller_that_closes_its_half_gets_its_answer(tmp_path: Path) -> None:
    body = b'{"records": [{"x": {"dep_delay": 1, "origin": "EWR"}, "y": "True", "subject": "p"}]}'
    head = b"POST /v1/models/late/learn HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    with client(job(tmp_path)) as http:
        address = (http.base_url.host, http.base_url.port)
        with socket.create_connection(address, 60) as one:
            one.sendall(head + b"Content-Length: %d\r\n\r\n" % len(body) + body)
            one.shutdown(socket.SHUT_WR)
            answer = b"".join(iter(lambda: one.recv(65_536), b""))  # until the service closes the connection
        assert answer.startswith(b"HTTP/1.1 200")
        assert b'"learned":1' in answer
        with socket.create_connection(address, 60) as half:
            half.sendall(head + b"Content-Length: 1000\r\n\r\n" + body)
            half.shutdown(socket.SHUT_WR)
            assert not half.recv(65_536).startswith(b"HTTP/1.1 200")


def _exchange(http: httpx.Client, sent: bytes) -> bytes:
    """All that the service answers to these bytes, until it closes the connection."""
    with socket.create_connection((http.base_url.host, http.base_url.port), 60) as one:
        one.sendall(sent)
        one.shutdown(socket.SHUT_WR)
        return b"".join(iter(lambda: one.recv(65_536), b""))


def _call(body: bytes, *headers: bytes, version: bytes = b"1.1") -> bytes:
    lines = (
        b"POST /v1/models/late/learn HTTP/" + version,
        b"Host: localhost",
        b"Content-Type: application/json",
        *headers,
        b"",
        body,
    )
    return b"\r\n".join(lines)


def _one_record() -> tuple[bytes, bytes]:
    """A call with one record, and its length as a header."""
    body = json.dumps({"records": [record(1)]}).encode()
    return body, b"Content-Length: %d" % len(body)


@pytest.mark.parametrize("version", [b"1.0", b"1.1"])
def test_a_body_with_two_lengths_is_refused_and_nothing_after_it_is_read(tmp_path: Path, version: bytes) -> None:
    inner, length = _one_record()
    smuggled = _call(inner, length)
    both = (b"Content-Length: 5", b"Transfer-Encoding: chunked")
    faulty = _call(b"0\r\n\r\n", *both[version == b"1.0" :], version=version)
    with client(job(tmp_path)) as http:
        answer = _exchange(http, faulty + smuggled)
        assert answer.startswith(b"HTTP/1.1 400")
        assert b"connection: close" in answer.lower()
        assert answer.count(b"HTTP/1.1 ") == 1
        assert http.get("/v1/models/late").json()["learned"] == 0
        chunked = _call(b"%x\r\n%s\r\n0\r\n\r\n" % (len(inner), inner), both[1])
        assert b'"learned":1' in _exchange(http, chunked)  # alone, each way is as it should be


REPEATED = [
    (b"Idempotency-Key: a", b"Idempotency-Key: b"),
    (b"Idempotency-Key: a", b"idempotency-key: a"),
    (b"Content-Type: text/plain",),  # the call has one already
    (b"Authorization: Bearer a", b"Authorization: Bearer b"),
    (b"Content-Encoding: identity", b"Content-Encoding: gzip"),
    (b"Origin: http://a.example", b"Origin: http://b.example"),
    (b"Host: 127.0.0.1",),
    (b"Content-Length: 7",),
]


@pytest.mark.parametrize("headers", REPEATED)
def test_a_header_with_one_value_comes_once(tmp_path: Path, headers: tuple[bytes, ...]) -> None:
    body, length = _one_record()
    with client(job(tmp_path)) as http:
        assert _exchange(http, _call(body, length, *headers)).startswith(b"HTTP/1.1 400")
        assert http.get("/v1/models/late").json()["learned"] == 0
        once = (b"Idempotency-Key: a", b"Authorization: Bearer a", b"Accept: a/b", b"Accept: c/d")
        assert b'"learned":1' in _exchange(http, _call(body, length, *once))


def test_tags_of_a_document_may_come_in_two_headers(tmp_path: Path) -> None:
    with client(job(tmp_path)) as http:
        etag = http.get("/v1/models/late/randomizer").headers["etag"]
        tags = [("If-None-Match", '"another"'), ("If-None-Match", etag)]
        assert http.get("/v1/models/late/randomizer", headers=tags).status_code == 304


@pytest.mark.parametrize("chunked", [False, True])
def test_a_body_that_is_too_large_gets_its_answer(tmp_path: Path, chunked: bool) -> None:
    """The caller sends all of it before it reads the answer. A connection that is reset would lose that."""
    size = 12 * MAX_BODY_BYTES
    head = b"Transfer-Encoding: chunked" if chunked else b"Content-Length: %d" % size
    with client(job(tmp_path)) as http:
        body = b"%x\r\n%s\r\n0\r\n\r\n" % (size, b" " * size) if chunked else b" " * size
        assert _exchange(http, _call(body, head)).startswith(b"HTTP/1.1 413")


def test_a_body_that_says_that_it_is_too_large_is_answered_before_it_comes(tmp_path: Path) -> None:
    with client(job(tmp_path)) as http, socket.create_connection((http.base_url.host, http.base_url.port), 60) as one:
        one.sendall(_call(b"", b"Content-Length: 99999999999", b"Expect: 100-continue"))
        assert one.recv(65_536).startswith(b"HTTP/1.1 413")
