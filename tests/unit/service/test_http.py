"""HTTP itself: hosts, HEAD, half-closed connections, pages of jobs that are not there, and the description of calls."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from tests.support.service import client, job

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
