"""Jobs for the service, clients that call it in this process, and services in processes of their own."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import MappingProxyType
from typing import Any

import httpx

from streamdp.config.job import JobConfig, make_config
from streamdp.service.app import create_app
from streamdp.service.server import Server, listen
from tests.support.commands import environment
from tests.support.zygote import Forked

PATIENCE_S = 600.0
"""No wait is so long unless something is wrong."""
SECRET = "4711.25"
"""A value of a record. Nothing may show it."""
JOB = """job: late
source: {type: http}
schema:
  features: {dep_delay: [-30, 60], origin: [EWR, JFK, LGA]}
  target: {column: late, classes: ["False", "True"]}
  subject: tailnum
model: {estimator: LDPASGDClassifier, budget: eps=1}
cap: eps=1
"""
"""The file of a job that learns from requests."""


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
def client(
    *configs: JobConfig, tokens: Sequence[Any] = (), unusable: Any = MappingProxyType({})
) -> Iterator[httpx.Client]:
    """A client of a service with these jobs, which runs in a thread and is stopped at the end."""
    app = create_app(configs, tokens, unusable=unusable)
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
            with httpx.Client(base_url=server.address, timeout=PATIENCE_S) as found:
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


class ServiceProcess:
    """`streamdp serve late.yaml` in a process of its own, which answers when this returns."""

    def __init__(self, folder: Path, port: int, *jobs: str, **environ: str) -> None:
        self.address = f"http://127.0.0.1:{port}"
        out_file, log_file = folder / f"out-{port}", folder / f"log-{port}"
        with open(log_file, "ab") as log, open(out_file, "wb") as out:
            command = ["serve", *(jobs or ["late.yaml"]), "--port", str(port)]
            self._process = Forked(command, cwd=folder, env=environment(None, **environ), stdout=out, stderr=log)
        deadline = time.monotonic() + PATIENCE_S
        while not out_file.read_text().endswith("\n"):
            assert self._process.poll() is None, log_file.read_text()
            assert time.monotonic() < deadline, log_file.read_text()
            time.sleep(0.02)

    def end(self, how: int) -> int:
        """Send a signal, and return the code at the end."""
        self._process.send_signal(how)
        return self._process.wait(PATIENCE_S)

    def kill(self, how: int = signal.SIGKILL) -> None:
        """Send a signal, and wait for the end."""
        assert self.end(how) == (0 if how == signal.SIGTERM else -how)

    def __enter__(self) -> ServiceProcess:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()


def record(i: int, **more: Any) -> dict[str, Any]:
    """A record of one of many people."""
    x = {"dep_delay": float(i % 60), "origin": ("EWR", "JFK", "LGA")[i % 3]}
    return {"x": x, "y": str(i % 60 > 15), "subject": f"p{i}"} | more
