"""What Spark costs: records/s against `streamdp run`. `python -m benchmarks.spark [--write]`.

Parquet files of simulated people are learned by the runner of `streamdp run`, by Spark on `local[2]`, and on
`local-cluster[2,1,2048]`, each in a process of its own: by local reports, in batches, and as one window of users with
ten records each. Before the measurement, a session learns a small frame, so that the start of the JVM and of the Python
workers is not counted as learning; it is named apart. `--rows N [N ...]` is 3 and 30 million by default.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import shutil
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import polars as pl

from benchmarks.shared.pages import fill, in_a_process, table
from streamdp.datasets import insurance

PAGE = Path(__file__).with_suffix(".md")
ROWS = (3_000_000, 30_000_000)
SMALL = 20_000
"""Rows of the frame that is learned first."""
BLOCK = 1_000_000
SHARD = 500_000
"""Rows of a shard of one model: two shards of 15 million rows do not fit in the default heap of the JVM."""
EXECUTORS = 2
CLUSTER = "local-cluster[2,1,2048]"
MASTERS = {"streamdp run": "", "Spark, local[2]": "local[2]", f"Spark, {CLUSTER}": CLUSTER}
MODELS: dict[str, dict[str, Any]] = {
    "nobody": {"estimator": "LDPASGDRegressor", "budget": "eps=1"},
    "process": {"estimator": "PanPrivateRegressor", "budget": "eps=1"},
    "window": {"estimator": "WindowedRegressor", "items_per_user": 10, "window": 2**31, "scaling": "none"},
}


def make(folder: Path, rows: int) -> None:
    """Parquet files of `rows` people, ten in a household, each in a file of at most a million."""
    folder.mkdir()
    for first in range(0, rows, BLOCK):
        people = insurance(min(BLOCK, rows - first), seed=first).with_row_index("person", first)
        people.with_columns(household=pl.col("person") // 10).write_parquet(folder / f"{first:012}.parquet")


def job(store: Path | str, kind: str, source: dict[str, Any]) -> dict[str, Any]:
    return {
        "job": "charges",
        "schema": {
            "features": {"age": [18, 65], "smoker": ["no", "yes"]},
            "target": {"column": "charges", "bounds": [0, 40_000]},
            "subject": "household" if kind == "window" else "person",
        },
        "model": MODELS[kind],
        "source": source,
        "store": str(store),
    }


def timed(call: Callable[[], Any]) -> tuple[float, Any]:
    began = time.perf_counter()
    found = call()
    return time.perf_counter() - began, found


def in_process(data: str, kind: str, store: Path) -> dict[str, float]:
    """The runner of `streamdp run`, without the display."""
    from streamdp.config.job import NOTHING, make_config
    from streamdp.runtime.runner import Runner

    config = make_config(job(store, kind, {"type": "parquet", "path": data}))

    def run() -> int:
        with config.open_store(NOTHING) as opened:
            source = config.source.build(config.build_schema())  # type: ignore[union-attr]
            return Runner(source, config.build_estimator(opened.ledger), opened).run().learned

    seconds, learned = timed(run)
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    return {"learned": learned, "seconds": seconds, "start": 0.0, "memory": most, "jobs": 0}


def session(master: str, store: Path) -> Any:
    os.environ["PYSPARK_PYTHON"] = sys.executable
    os.environ["SPARK_WORKER_DIR"] = str(store.with_name("work"))
    from pyspark.sql import SparkSession

    builder = SparkSession.builder.master(master).config("spark.ui.enabled", "false")
    builder = builder.config("spark.driver.host", "127.0.0.1").config("spark.driver.bindAddress", "127.0.0.1")
    builder = builder.config("spark.ui.showConsoleProgress", "false").config("spark.log.level", "ERROR")
    return builder.getOrCreate()


def on_spark(data: str, kind: str, store: Path, master: str, rows: int) -> dict[str, float]:
    """One job in a session of its own."""
    from streamdp.spark import learn

    shards = EXECUTORS if kind == "nobody" else max(EXECUTORS, rows // SHARD)  # the cache of a shard is in the heap
    settings = job(store, kind, {"type": "spark", "shards": shards})

    def warm() -> Any:
        spark = session(master, store)
        learn(spark.read.parquet(data).limit(SMALL), settings | {"store": f"{store}.warm"})
        return spark

    start, spark = timed(warm)
    tracker = spark.sparkContext.statusTracker()
    before = len(tracker.getJobIdsForGroup())
    with most_memory() as memory:
        seconds, counts = timed(lambda: learn(spark.read.parquet(data), settings))
    jobs = len(tracker.getJobIdsForGroup()) - before
    spark.stop()
    return {"learned": counts.learned, "seconds": seconds, "start": start, "memory": memory.bytes, "jobs": jobs}


class most_memory:
    """The most resident memory of a Python worker of this process, which is looked at once a second."""

    def __init__(self) -> None:
        self.bytes = 0
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._look)

    def __enter__(self) -> most_memory:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()

    def _look(self) -> None:
        while not self._ended.wait(1.0):
            parents, resident = {}, {}
            for entry in Path("/proc").iterdir():
                try:
                    pid, command = int(entry.name), (entry / "cmdline").read_bytes()
                    parents[pid] = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
                    if b"pyspark" in command and b"daemon" in command:
                        resident[pid] = int((entry / "statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
                except (OSError, ValueError, IndexError):
                    continue
            for pid, size in resident.items():
                while pid in parents and pid != os.getpid():
                    pid = parents[pid]
                if pid == os.getpid():
                    self.bytes = max(self.bytes, size)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, nargs="+", default=ROWS)
    parser.add_argument("--write", action="store_true")
    parser.add_argument("--one", nargs=4, help=argparse.SUPPRESS)
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        if asked.one:
            data, kind, master, rows = asked.one
            store = folder / "job.db"
            found = on_spark(data, kind, store, master, int(rows)) if master else in_process(data, kind, store)
            print(json.dumps(found))
            return
        from benchmarks.speed import machine

        about, shown, starts = machine(), [], {}
        for rows in asked.rows:
            data = folder / str(rows)
            make(data, rows)
            for kind in MODELS:
                alone = 0.0
                for by, master in MASTERS.items():
                    one = in_a_process("spark", str(data), kind, master, str(rows))
                    assert one["learned"] == rows
                    starts[by] = one["start"]
                    took, memory = one["seconds"], f"{one['memory'] / 1e6:,.0f} MB"
                    alone = alone or took
                    times, rate, jobs = f"{took / alone:.1f}", f"{rows / took:,.0f}", f"{one['jobs']:.0f}"
                    shown.append([f"{rows:,}", kind, by, f"{took:.1f}", times, rate, jobs, memory])
                    print(*shown[-1], sep=" | ", flush=True)
            shutil.rmtree(data)
    head = ["rows", "trust", "by", "s", "times `streamdp run`", "records/s", "Spark jobs", "most memory of a process"]
    began = ", ".join(f"{seconds:.1f} s by {by}" for by, seconds in starts.items() if seconds)
    text = f"{about}\n\n{table(head, shown)}\n\nA session starts, and learns a first small batch, in {began}."
    print(text)
    if asked.write:
        fill(PAGE, "spark", text)


if __name__ == "__main__":
    main()
