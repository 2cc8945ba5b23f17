"""Whether a job's memory, threads and files stay flat at full rate: `python -m benchmarks.soak [--minutes 30]`.

A `streamdp run` reads standard input, which always has more: people with a cap, bad rows with dead letters, a commit
every second. Its memory, threads and open files are read from /proc each second (Linux). After a warm-up of a third,
in which every person has been seen, the slope of each (Theil and Sen's, which ignores single peaks) must be below a
limit. `--write` puts the figures into soak.md beside this file; the exit code is 1 if something grows.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import IO, NamedTuple

import numpy as np
from scipy.stats import theilslopes

from benchmarks.shared.pages import fill
from benchmarks.speed import machine
from streamdp.store.store import Store

PEOPLE = 100_000
BAD_EVERY = 10_000
BLOCK = 200_000
"""Rows of one block, which is sent again and again."""
WARM_UP = 1 / 3
LIMITS = {"memory": 0.5, "threads": 0.02, "files": 0.02}
"""The largest slopes: MiB, threads and open files a minute. A leak of 8 bytes a record would be far above."""

JOB = """job: soak
source: {path: "-", max_bad_share: 0.1, dead_letters: dead.jsonl}
schema:
  features: {a: [-1, 1], b: [-1, 1], c: [x, y, z]}
  target: {column: t, classes: ["0", "1"]}
  subject: person
model: {estimator: LDPASGDClassifier, budget: eps=1}
cap: eps=1000000
commit: {seconds: 1}
store: soak.db
"""


class Sample(NamedTuple):
    """What a process uses: MiB of memory, threads, open files."""

    memory: float
    threads: int
    files: int


def block(seed: int) -> bytes:
    """Rows of every person."""
    rng = random.Random(seed)
    rows = []
    for i in range(BLOCK):
        a = "n/a" if i % BAD_EVERY == 7 else f"{rng.uniform(-1, 1):.3f}"
        rows.append(f"{a},{rng.uniform(-1, 1):.3f},{rng.choice('xyz')},{rng.randrange(2)},p{i % PEOPLE}\n")
    return "".join(rows).encode()


def feed(stdin: IO[bytes], over: threading.Event) -> None:
    """Write rows until the time is over, as fast as they are read."""
    data = block(0)
    stdin.write(b"a,b,c,t,person\n")
    while not over.is_set():
        stdin.write(data)
    stdin.close()


def sample(pid: int) -> Sample:
    """What the process uses now."""
    fields = dict(line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines())
    return Sample(
        int(fields["VmRSS"].split()[0]) / 1024, int(fields["Threads"]), len(os.listdir(f"/proc/{pid}/fd"))
    )  # fmt: skip


def soak(folder: Path, minutes: float) -> tuple[np.ndarray, np.ndarray, int, float]:
    """Run the job; returns times in minutes (n,), samples (n, 3), the records and the processor's seconds."""
    (folder / "job.yaml").write_text(JOB)
    command = [sys.executable, "-m", "streamdp", "run", "job.yaml"]
    over, times, samples = threading.Event(), [], []
    root = str(Path(__file__).parent.parent)
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, [root, os.environ.get("PYTHONPATH")]))}
    with (folder / "out").open("wb") as out:
        process = subprocess.Popen(command, cwd=folder, stdin=subprocess.PIPE, stdout=out, env=environment)
        assert process.stdin is not None
        feeder = threading.Thread(target=feed, args=(process.stdin, over))
        feeder.start()
        while process.poll() is None and b'"commit"' not in (folder / "out").read_bytes():
            time.sleep(0.1)
        began = time.monotonic()
        while time.monotonic() - began < 60 * minutes and process.poll() is None:
            time.sleep(1.0)
            times.append((time.monotonic() - began) / 60)
            samples.append(sample(process.pid))
        used = os.times()
        over.set()
        feeder.join()
        code = process.wait()
        done = os.times()
    if code:
        raise SystemExit(f"the job ended with code {code}")
    snapshot = Store.snapshot(folder / "soak.db")
    assert snapshot is not None
    counts = snapshot.counts
    letters = (folder / "dead.jsonl").read_bytes().count(b"\n")
    if counts.refused or counts.dead_letters != letters:
        raise SystemExit(
            f"{counts.refused} records were refused, and {counts.dead_letters} bad ones have {letters} letters"
        )
    seconds = done.children_user + done.children_system - used.children_user - used.children_system
    return np.array(times), np.array(samples), counts.learned + counts.dead_letters, seconds


def slopes(times: np.ndarray, samples: np.ndarray) -> dict[str, float]:
    """What a minute adds to memory, threads and files after the warm-up (Theil and Sen's slopes).

    Parameters
    ----------
    times
        (n,) minutes.
    samples
        (n, 3), as `Sample`.
    """
    steady = times > times[-1] * WARM_UP
    return {name: float(theilslopes(samples[steady, i], times[steady])[0]) for i, name in enumerate(LIMITS)}


def main() -> int:
    """Soak, and print the figures."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.soak", description=main.__doc__)
    parser.add_argument("--minutes", type=float, default=30.0)
    parser.add_argument("--write", action="store_true")
    given = parser.parse_args()
    if given.write and given.minutes < 30:
        parser.error("less than 30 minutes are for a look: the figures cannot be written")
    with tempfile.TemporaryDirectory() as folder:
        times, samples, records, seconds = soak(Path(folder), given.minutes)
        store = sum(path.stat().st_size for path in Path(folder).glob("soak.db*")) / 2**20
    steady = times > times[-1] * WARM_UP
    lines = [
        "| | at the end of the warm-up | at the end | largest | slope a minute | limit |",
        "|---|---|---|---|---|---|",
    ]
    found = slopes(times, samples)
    grows = [name for name, limit in LIMITS.items() if found[name] > limit]
    units = {"memory": "MiB", "threads": "", "files": ""}
    for i, (name, limit) in enumerate(LIMITS.items()):
        values = samples[steady, i]
        numbers = [f"{value:,.0f} {units[name]}".strip() for value in (values[0], values[-1], values.max())]
        lines.append("| " + " | ".join([name, *numbers, f"{found[name]:+.3f}", f"{limit:g}"]) + " |")
    facts = (
        f"{given.minutes:g} minutes, {records:,} records ({records / 60 / times[-1]:,.0f} a second), {PEOPLE:,} people,"
        f" {seconds:,.0f} s of processor; the store has {store:,.0f} MiB. {machine()}"
    )
    text = "\n".join([facts, "", *lines])
    print(text)
    if given.write:
        fill(Path(__file__).with_name("soak.md"), "soak", text)
    print(json.dumps({"grows": grows}))
    return int(bool(grows))


if __name__ == "__main__":
    sys.exit(main())
