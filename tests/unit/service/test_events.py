"""The stream of events leaves no task behind; TLS."""

import asyncio
import contextlib
import ssl
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import pytest

from servers.certificates import make_certificates
from streamdp.client import Client
from streamdp.errors import ServiceError
from streamdp.service import events
from streamdp.service.app import create_app
from streamdp.service.server import Server, listen
from tests.support.service import client, job


def test_a_reader_that_is_cut_off_leaves_no_task(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(events, "_event", lambda _: b"data")
    job: Any = SimpleNamespace(listeners=set())

    async def read() -> int:
        before = asyncio.all_tasks()
        stream = events.event_stream(job, asyncio.Event())
        assert await anext(stream) == b"data"
        reading = asyncio.create_task(stream.__anext__())
        while len(asyncio.all_tasks() - before) < 3:  # the reader, the next event, the end of the service
            await asyncio.sleep(0)
        reading.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await reading
        return len(asyncio.all_tasks() - before)

    assert asyncio.run(read()) == 0
    assert not job.listeners


def test_events_of_a_job_that_is_not_there_say_so(tmp_path: Path) -> None:
    expected = pytest.raises(ServiceError, match="status 404: there is no job of this name")
    with client(job(tmp_path)) as http, Client(str(http.base_url)) as calls, expected:
        next(calls.events("lat"))


def test_a_service_with_a_certificate_answers_over_tls_only(tmp_path: Path) -> None:
    authority, server_file = tmp_path / "ca.pem", tmp_path / "server.pem"
    make_certificates(authority, server_file)
    with listen("127.0.0.1", 0) as listening:
        server = Server(create_app([job(tmp_path)]), listening, str(server_file), str(server_file))
        thread = threading.Thread(target=server.serve_until_stopped)
        thread.start()
        try:
            assert server.address.startswith("https://")
            with httpx.Client(verify=ssl.create_default_context(cafile=str(authority)), timeout=60) as known:
                assert known.get(server.address + "/healthz").json() == {"status": "up"}
            strangers: list[str] = []
            for address in (server.address, server.address.replace("https", "http")):
                with httpx.Client(timeout=60) as stranger, contextlib.suppress(httpx.HTTPError):
                    strangers.append(stranger.get(address + "/healthz").text)
            assert strangers == []
        finally:
            server.stop()
            thread.join()
