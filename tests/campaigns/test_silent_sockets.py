"""A service under connections that send nothing: it answers probes, serves others, and its log stays small.

The service runs with a limit of open files: 1,024, and 65,536 or what the machine allows. Silent sockets are opened as
fast as it accepts them. Meanwhile a probe and a caller open a connection for each of their calls. The counts of
`served` are asserted, and not their times.

    python -m tests.campaigns.test_silent_sockets --write
"""

import contextlib
import resource
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import httpx
import pytest

from tests.support.commands import environment
from tests.support.paths import ROOT
from tests.support.service import JOB, record
from tests.support.waiting import wait_until

pytestmark = pytest.mark.campaign

LIMITS = (1024, 65_536)
SOCKETS = 5000
CALLS = 50


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
    (folder / "late.yaml").write_text(JOB)
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


@contextlib.contextmanager
def _files() -> Iterator[None]:
    """As many open files for this process as the system lets it have."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (before[1], before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)


@pytest.mark.parametrize("limit", LIMITS)
def test_silent_sockets_silence_nobody(limit: int, tmp_path: Path) -> None:
    with _files():
        found = served_beside(tmp_path, limit, SOCKETS, CALLS)
    assert found.probes == [200] * CALLS
    assert found.learned == CALLS
    assert found.log_lines < 100


PAGE = """# Silent sockets

`python -m tests.campaigns.test_silent_sockets --write` serves a job over HTTP with a limit of open files, opens
{sockets:,} connections that send nothing, and meanwhile makes {calls} probes of `/healthz` and {calls} calls of
`learn`, each on a connection of its own. A limit above that of the machine is that of the machine. Other work ran on
the machine.

| files | silent sockets | probes answered | calls learned | lines of log | bytes of log | seconds |
|---|---|---|---|---|---|---|
{rows}

Run on {date}.
"""


def main() -> None:
    """Print what was served under each limit; with `--write`, replace benchmarks/silent_sockets.md."""
    rows = []
    for limit in LIMITS:
        with tempfile.TemporaryDirectory() as folder, _files():
            began = time.perf_counter()
            found: Found = served_beside(Path(folder), limit, SOCKETS, CALLS)
        rows.append(
            f"| {found.limit:,} | {SOCKETS:,} | {found.probes.count(200)} of {CALLS} | {found.learned} of {CALLS} "
            f"| {found.log_lines} | {found.log_bytes:,} | {time.perf_counter() - began:.0f} |"
        )
        print(rows[-1], flush=True)
    if "--write" in sys.argv:
        page = PAGE.format(sockets=SOCKETS, calls=CALLS, rows="\n".join(rows), date=time.strftime("%Y-%m-%d"))
        (ROOT / "benchmarks" / "silent_sockets.md").write_text(page)


if __name__ == "__main__":
    main()
