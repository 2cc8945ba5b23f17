"""The service beside a bare FastAPI application that parses the same JSON and does nothing.

Run with `python -m benchmarks.service [--write]`. Both run in processes of their own, with the same server; this
process sends calls over kept connections and waits for each answer.
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

import orjson

ROOT = Path(__file__).parents[1]
OUT = ROOT / "benchmarks" / "service.md"

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


async def caller(port: int, path: str, bodies: list[bytes], calls: int) -> None:
    """One connection: the bodies in turn, each after the answer to the one before."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    head = f"POST /v1/models/late/{path} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
    for i in range(calls):
        body = bodies[i % len(bodies)]
        writer.write(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
        answer = await reader.readuntil(b"\r\n\r\n")
        assert answer.startswith(b"HTTP/1.1 200"), answer
        length = next(line for line in answer.split(b"\r\n") if line.lower().startswith(b"content-length"))
        await reader.readexactly(int(length.partition(b":")[2]))
    writer.close()


def processor_seconds(pid: int) -> float:
    """The processor time that a process has had."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def measure(server: tuple[str, int], path: str, bodies: list[bytes], callers: int, calls: int) -> tuple[float, float]:
    """Calls per second, the best of three runs, and calls per second of the server's processor time."""
    address, pid = server
    port = int(address.rpartition(":")[2])

    async def run(number: int) -> float:
        began = time.perf_counter()
        await asyncio.gather(*(caller(port, path, bodies, number) for _ in range(callers)))
        return callers * number / (time.perf_counter() - began)

    asyncio.run(run(max(1, calls // 5)))  # to warm up
    before = processor_seconds(pid)
    best = max(asyncio.run(run(calls)) for _ in range(3))
    return best, 3 * callers * calls / max(processor_seconds(pid) - before, 0.01)


CASES = (
    # what, path, records in a call, callers, calls of each, goal as a ratio of calls, goal in records/s
    ("single predictions, 16 callers", "predict", 1, 16, 150, "0.7", ""),
    ("single durable learns, 64 callers", "learn", 1, 64, 40, "0.5", ""),
    ("predictions, 1,000 a call, 4 callers", "predict", 1000, 4, 40, "", "500,000"),
    ("durable learns, 1,000 a call, 4 callers", "learn", 1000, 4, 40, "", "150,000"),
)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--write", action="store_true", help=f"write {OUT.name}")
    write = parser.parse_args().write
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "late.yaml").write_text(JOB)
        with (
            running("-m", "streamdp", "serve", "late.yaml", "--port", "0", folder=folder) as ours,
            running("-c", BARE, folder=folder) as bare,
        ):
            for what, path, size, callers, calls, ratio_goal, speed_goal in CASES:
                make = features if path == "predict" else record
                bodies = [
                    orjson.dumps({"records": [make(k) for k in range(i * size, (i + 1) * size)]}) for i in range(7)
                ]
                without, without_cpu = measure(bare, path, bodies, callers, calls)
                mine, mine_cpu = measure(ours, path, bodies, callers, calls)
                rows.append(
                    f"| {what} | {mine:,.0f} | {mine * size:,.0f} | {mine_cpu * size:,.0f} | {speed_goal} "
                    f"| {without:,.0f} | {mine / without:.2f} | {mine_cpu / without_cpu:.2f} | {ratio_goal} |"
                )
                print(rows[-1], flush=True)
    table = "\n".join(
        [
            "| | calls/s | records/s | records per s of processor | goal "
            "| calls/s, bare | ratio | ratio of processor | goal |",
            "|---|---|---|---|---|---|---|---|---|",
            *rows,
        ]
    )
    if write:
        head = (__doc__ or "").partition("\n\n")[0]
        OUT.write_text(
            f"# The service\n\n{head}\n\n{table}\n\n{os.cpu_count()} cores ({platform.machine()}), which the service, "
            "the callers and whatever else ran at the time shared. A durable learn is answered after its commit is on "
            "disk.\n"
        )


if __name__ == "__main__":
    main()
