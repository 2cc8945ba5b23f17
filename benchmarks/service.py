"""The service beside a bare FastAPI application that parses the same JSON and does nothing.

Run with `python -m benchmarks.service [--write]`. Both run in processes of their own, with the same server; this
process sends calls over kept connections and waits for each answer. Both take turns, and the best of each count, for
whatever else runs on the machine can only add time.
Then it sends predictions at even times while records are learned, and measures how long each takes; and it lets many
jobs rest that have learned a record each.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import platform
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import orjson

from benchmarks.shared.pages import fill, table

ROOT = Path(__file__).parents[1]
OUT = ROOT / "benchmarks" / "service.md"
CONNECTIONS = 64
PREDICTIONS_A_SECOND, SECONDS = 100, 30
TURNS = 25
IDLE_JOBS, IDLE_SECONDS = 50, 30

JOB = """job: late
source: {type: http}
schema:
  features: {dep_delay: [-30, 60], hour: [0, 24], origin: [EWR, JFK, LGA]}
  target: {column: late, classes: ["False", "True"]}
  subject: tailnum
model: {estimator: LDPASGDClassifier, budget: eps=1}
cap: eps=100000
"""

BARE = """
import sys
import orjson, uvicorn
from fastapi import FastAPI, Request, Response
from streamdp.service.server import listen
app = FastAPI()
@app.post("/v1/models/{job}/{what}")
async def nothing(request: Request, job: str, what: str) -> Response:
    records = orjson.loads(await request.body())["records"]
    return Response(orjson.dumps({"version": 1, "learned": len(records)}), media_type="application/json")
with listen("127.0.0.1", 0) as listening:
    print(f"http://127.0.0.1:{listening.getsockname()[1]}", flush=True)
    uvicorn.Server(uvicorn.Config(app, http="h11", log_config=None, access_log=False)).run(sockets=[listening])
"""


def features(i: int) -> dict[str, Any]:
    return {"dep_delay": float(i % 90 - 30), "hour": i % 24, "origin": ("EWR", "JFK", "LGA")[i % 3]}


def record(i: int) -> dict[str, Any]:
    return {"x": features(i), "y": str(i % 90 > 45), "subject": f"N{i % 5000}"}


@contextmanager
def running(*command: str, folder: str) -> Iterator[tuple[str, int]]:
    """A server process; yields its address and its id."""
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    with (
        open(os.devnull, "w") as nowhere,
        subprocess.Popen(
            [sys.executable, *command], cwd=folder, env=environment, stdout=subprocess.PIPE, stderr=nowhere, text=True
        ) as process,
    ):
        try:
            assert process.stdout is not None
            yield process.stdout.readline().strip(), process.pid
        finally:
            process.terminate()


class Connection:
    """A connection that is kept; `async with` opens it."""

    def __init__(self, port: int, path: str, job: str) -> None:
        self._port = port
        self._head = f"POST /v1/models/{job}/{path} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"

    async def __aenter__(self) -> Connection:
        self._reader, self._writer = await asyncio.open_connection("127.0.0.1", self._port)
        return self

    async def __aexit__(self, *_: object) -> None:
        self._writer.close()

    async def call(self, body: bytes) -> None:
        """Send a body, and wait for the answer."""
        self._writer.write(f"{self._head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
        answer = await self._reader.readuntil(b"\r\n\r\n")
        assert answer.startswith(b"HTTP/1.1 200"), answer
        length = next(line for line in answer.split(b"\r\n") if line.lower().startswith(b"content-length"))
        await self._reader.readexactly(int(length.partition(b":")[2]))


async def caller(port: int, path: str, bodies: list[bytes], calls: int, job: str = "late") -> None:
    """One connection: the bodies in turn, each after the answer to the one before."""
    async with Connection(port, path, job) as connection:
        for i in range(calls):
            await connection.call(bodies[i % len(bodies)])


async def paced(port: int, path: str, bodies: list[bytes], rate: float, seconds: float) -> list[float]:
    """`rate` calls a second at even times, however long answers take; seconds from the time of a call to its answer."""
    due: asyncio.Queue[float] = asyncio.Queue()
    took: list[float] = []

    async def work() -> None:
        async with Connection(port, path, "late") as connection:
            while (at := await due.get()) >= 0:
                await connection.call(bodies[len(took) % len(bodies)])
                took.append(time.perf_counter() - at)

    working = asyncio.gather(*(work() for _ in range(CONNECTIONS)))
    began = time.perf_counter()
    for i in range(int(rate * seconds)):
        at = began + i / rate
        await asyncio.sleep(at - time.perf_counter())
        due.put_nowait(at)
    for _ in range(CONNECTIONS):
        due.put_nowait(-1.0)
    await working
    return took


def bodies_of(path: str, size: int) -> list[bytes]:
    """Seven calls with so many records."""
    make = features if path == "predict" else record
    return [orjson.dumps({"records": [make(k) for k in range(i * size, (i + 1) * size)]}) for i in range(7)]


def port_of(server: tuple[str, int]) -> int:
    return int(server[0].rpartition(":")[2])


def while_learning(server: tuple[str, int], rate: float, seconds: float) -> np.ndarray:
    """Milliseconds of single predictions while single records are learned at `rate` a second, in ascending order."""
    port = port_of(server)

    async def both() -> list[float]:
        learning = asyncio.create_task(paced(port, "learn", bodies_of("learn", 1), rate, seconds))
        took = await paced(port, "predict", bodies_of("predict", 1), PREDICTIONS_A_SECOND, seconds)
        await learning
        return took

    return np.sort(asyncio.run(both())) * 1000


def processor_seconds(pid: int) -> float:
    """The processor time that the threads of a process have had. Ticks of the clock would miss short turns."""
    return sum(int(times.read_text().split()[0]) for times in Path(f"/proc/{pid}/task").glob("*/schedstat")) / 1e9


def flush_milliseconds(folder: str) -> float:
    """The median time of a write of 4 KiB that is flushed to the disk."""
    took = []
    with open(Path(folder, "flushed"), "wb") as file:
        for _ in range(100):
            began = time.perf_counter()
            file.write(bytes(4096))
            file.flush()
            os.fsync(file.fileno())
            took.append(time.perf_counter() - began)
    return float(np.median(took)) * 1000


def turn(server: tuple[str, int], path: str, bodies: list[bytes], callers: int, calls: int) -> tuple[float, float]:
    """Calls per second, and seconds of the server's processor time for each call."""
    port, pid = port_of(server), server[1]

    async def run() -> float:
        began = time.perf_counter()
        await asyncio.gather(*(caller(port, path, bodies, calls) for _ in range(callers)))
        return callers * calls / (time.perf_counter() - began)

    before = processor_seconds(pid)
    rate = asyncio.run(run())
    return rate, (processor_seconds(pid) - before) / (callers * calls)


def idle(folder: str, seconds: float) -> str:
    """What a service of many jobs takes that have learned a record each, as a sentence."""
    jobs = [f"late{i}" for i in range(IDLE_JOBS)]
    for job in jobs:
        Path(folder, f"{job}.yaml").write_text(JOB.replace("late", job, 1))
    with running("-m", "streamdp", "serve", *(f"{job}.yaml" for job in jobs), "--port", "0", folder=folder) as server:
        for job in jobs:
            asyncio.run(caller(port_of(server), "learn", bodies_of("learn", 1), 1, job))
        before = processor_seconds(server[1])
        time.sleep(seconds)
        core = (processor_seconds(server[1]) - before) / seconds
        threads = len(os.listdir(f"/proc/{server[1]}/task"))
    return (
        f"{IDLE_JOBS} jobs that have learned a record each, and get no calls, take {core:.3f} of a core (goal: 0.02)"
        f" and {threads} threads."
    )


CASES = (
    # what, path, records in a call, callers, calls of each in a turn, goal as a part of the bare application's rate
    ("single durable learns, 1 caller", "learn", 1, 1, 60, 0.4),
    ("single durable learns, 32 callers", "learn", 1, 32, 15, 0.6),
    ("single durable learns, 64 callers", "learn", 1, 64, 8, 0.6),
    ("durable learns, 100 a call, 4 callers", "learn", 100, 4, 25, 0.4),
    ("durable learns, 1,000 a call, 4 callers", "learn", 1000, 4, 6, 0.3),
    ("single predictions, 16 callers", "predict", 1, 16, 25, 0.6),
    ("predictions, 100 a call, 4 callers", "predict", 100, 4, 30, 0.5),
    ("predictions, 1,000 a call, 4 callers", "predict", 1000, 4, 8, 0.5),
)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--write", action="store_true", help=f"write {OUT.name}")
    parser.add_argument("--part", type=float, default=1.0, help="make so large a part of the calls, for a test")
    asked = parser.parse_args()
    rows, learns, load = [], 0.0, os.getloadavg()[0]
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "late.yaml").write_text(JOB)
        with (
            running("-m", "streamdp", "serve", "late.yaml", "--port", "0", folder=folder) as ours,
            running("-c", BARE, folder=folder) as bare,
        ):
            for what, path, size, callers, calls, goal in CASES:
                bodies, number = bodies_of(path, size), max(1, int(calls * asked.part))
                servers = (bare, ours)
                turns = [[turn(server, path, bodies, callers, number) for server in servers] for _ in range(TURNS)]
                rates, seconds = np.moveaxis(turns, -1, 0)
                theirs, mine = rates.max(axis=0)
                of_processor = np.median(seconds, axis=0)
                learns = mine if (path, size) == ("learn", 1) else learns
                each = [f"{mine:,.0f}", f"{mine * size:,.0f}", f"{size / of_processor[1]:,.0f}", f"{theirs:,.0f}"]
                ratio = f"{mine / theirs:.2f} ({np.median(rates[:, 1] / rates[:, 0]):.2f})"
                rows.append([what, *each, ratio, f"{of_processor[0] / of_processor[1]:.2f}", f"{goal}"])
                print(*rows[-1], sep=" | ", flush=True)
            took = while_learning(ours, learns / 2, SECONDS * asked.part)
        late = (
            f"While {learns / 2:,.0f} records a second are learned one by one, half of the rate above, half of "
            f"{len(took):,} single predictions are answered within {np.quantile(took, 0.5):.1f} ms, and 99 % within "
            f"{np.quantile(took, 0.99):.1f} ms (goal: 20)."
        )
        machine = (
            f"{os.cpu_count()} cores ({platform.machine()}), load average at the start {load:.1f}. A write of 4 KiB"
            f" that is flushed to the disk takes {flush_milliseconds(folder):.1f} ms."
        )
        print(machine, late, resting := idle(folder, IDLE_SECONDS * asked.part), sep="\n", flush=True)
    if asked.write:
        head = ["", "calls/s", "records/s", "records per s of processor", "calls/s, bare", "ratio (median turn)"]
        fill(OUT, "calls", table([*head, "ratio of processor", "goal"], rows))
        fill(OUT, "machine", machine)
        fill(OUT, "late", late)
        fill(OUT, "idle", resting)


if __name__ == "__main__":
    main()
