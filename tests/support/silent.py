"""A service with a limit of open files, beside connections that send nothing."""

import contextlib
import resource
import socket
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import httpx

from tests.support.commands import environment
from tests.support.service import record
from tests.support.waiting import wait_until

_JOB = """job: late
source: {type: http}
schema:
  features: {dep_delay: [-30, 60], origin: [EWR, JFK, LGA]}
  target: {column: late, classes: ["False", "True"]}
  subject: tailnum
model: {estimator: LDPASGDClassifier, budget: eps=1}
cap: eps=1
"""


class Found(NamedTuple):
    """What a service did beside silent connections."""

    limit: int
    """The most open files that the system allowed of those that were asked for."""
    probes: list[int]
    """The status of each probe of health."""
    learned: int
    log_lines: int
    log_bytes: int


def served_beside(folder: Path, limit: int, sockets: int, calls: int) -> Found:
    """Serve with at most `limit` open files; open silent `sockets`, and meanwhile make `calls` and probes."""
    (folder / "late.yaml").write_text(_JOB)
    limit = min(limit, resource.getrlimit(resource.RLIMIT_NOFILE)[1])
    command = [sys.executable, "-m", "streamdp", "serve", "late.yaml", "--port", "0", "--log-level", "warning"]

    def limited() -> None:
        resource.setrlimit(resource.RLIMIT_NOFILE, (limit, limit))

    probes, learned = [], 0
    with contextlib.ExitStack() as stack, open(folder / "log", "wb") as log:
        process = subprocess.Popen(
            command, cwd=folder, env=environment(None), stdout=subprocess.PIPE, stderr=log, preexec_fn=limited
        )
        stack.callback(process.wait)
        stack.callback(process.kill)
        assert process.stdout is not None
        address = process.stdout.readline().decode().strip()
        assert address, (folder / "log").read_text()
        port = int(address.rpartition(":")[2])
        for i in range(calls):
            for _ in range(sockets // calls):
                silent = stack.enter_context(socket.socket())
                silent.setblocking(False)
                silent.connect_ex(("127.0.0.1", port))
            with httpx.Client(base_url=address, timeout=120.0) as http:
                probes.append(http.get("/healthz").status_code)
            with httpx.Client(base_url=address, timeout=120.0) as http:
                answer = http.post("/v1/models/late/learn", json={"records": [record(i)]})
                learned += answer.json()["learned"]
        process.terminate()
        wait_until(lambda: process.poll() is not None)
        assert process.returncode == 0
    text = (folder / "log").read_bytes()
    return Found(limit, probes, learned, text.count(b"\n"), len(text))
