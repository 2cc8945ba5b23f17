"""Jobs for the service, and a client that calls it in this process."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx

from streamdp.config.job import JobConfig, make_config
from streamdp.service.app import create_app
from streamdp.service.server import Server, listen

SECRET = "4711.25"
"""A value of a record. Nothing may show it."""


def job(folder: Path, name: str = "late", **more: Any) -> JobConfig:
    """A job that learns from requests, with a store in the folder."""
    settings: dict[str, Any] = {
        "job": name,
        "source": {"type": "http"},
        "schema": {
            "features": {"dep_delay": [-30, 60], "origin": ["EWR", "JFK", "LGA"]},
            "target": {"column": "late", "classes": ["False", "True"]},
            "subject": "tailnum",
        },
        "model": {"estimator": "LDPASGDClassifier", "budget": "eps=1"},
        "cap": "eps=5",
        "store": str(folder / f"{name}.db"),
    }
    return make_config(settings | more)


@contextmanager
def client(*configs: JobConfig, tokens: Sequence[Any] = ()) -> Iterator[httpx.Client]:
    """A client of a service with these jobs, which runs in a thread and is stopped at the end."""
    app = create_app(configs, tokens)
    with listen("127.0.0.1", 0) as listening:
        server = Server(app, listening)
        failures: list[BaseException] = []

        def run() -> None:
            try:
                server.serve_until_stopped()
            except BaseException as error:  # noqa: BLE001 - the test gets it
                failures.append(error)
                listening.close()  # so that nobody waits for an answer

        thread = threading.Thread(target=run)
        thread.start()
        try:
            with httpx.Client(base_url=server.address, timeout=60) as found:
                found.app = app  # type: ignore[attr-defined]
                try:
                    found.get("/healthz")  # waits for the start
                except httpx.HTTPError:
                    thread.join()
                    raise failures[0] from None
                yield found
        finally:
            server.stop()
            thread.join()


def record(i: int, **more: Any) -> dict[str, Any]:
    """A record of one of many people."""
    x = {"dep_delay": float(i % 60), "origin": ("EWR", "JFK", "LGA")[i % 3]}
    return {"x": x, "y": str(i % 60 > 15), "subject": f"p{i}"} | more
