"""What Spark costs: records/s against `streamdp run`. `python -m benchmarks.spark [--rows N ...] [--write]`.

The same Parquet files of simulated people are learned by the runner of `streamdp run`, by Spark on `local[1]`, and on
`local-cluster[2,1,2048]`, each in a process of its own: by an LDP estimator with and without a cap, and as one window
of users with ten records each. Before the measurement, a session learns a small frame, so that the start of the JVM
and of the Python workers is not counted as learning; it is named apart. The time of a frame that is almost empty is
the fixed cost of a batch. `--write` replaces spark.md beside this file. Two million rows are the default;
`--rows 10000000` takes five times as long.

The cost model: a batch of n records on e executors of one core takes

    T = a + b n / e + c n_subjects

where a is the fixed cost of a batch (of a window: of its 16 rounds), b what an executor needs for a record (the source,
the shuffle, the copy to Python, validation, learning), and c what the driver needs for a person with a cap (hashes,
rows, ciphertexts). a and b are measured on local[1] without a cap and for a window, c from the difference with a cap,
where each record is another person's. The model leaves out the network between machines, which one machine cannot
measure.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import polars as pl

from streamdp.datasets import insurance

PAGE = Path(__file__).with_suffix(".md")
ROWS = [2_000_000]
KINDS = "no cap", "cap", "window"
SMALL = 20_000
"""Rows of the frame that is learned first, and of the window that is almost empty."""
BLOCK = 1_000_000
CLUSTER = "local-cluster[2,1,2048]"
MASTERS = {"streamdp run": "", "Spark, local[1]": "local[1]", f"Spark, {CLUSTER}": CLUSTER}
ABOUT = """# What Spark costs

`make bench-spark` learns the same Parquet files by the runner of `streamdp run` and by Spark. The start of a session
({start:.0f} s on {cluster}) is not in these times; the fixed cost of a batch is.

{machine}

| rows | learned as | by | s | records/s |
| --- | --- | --- | --- | --- |
{rows}

The model T = a + b n / e + c n_subjects for a batch on e executors of one core, with a = {a:.2f} s, b = {b:.2f} µs and
c = {c:.2f} µs; of a window a = {window_a:.2f} s and b = {window_b:.2f} µs. They were measured here, on local[1]; the
network between machines is not in it:

| executors | 10^7 rows, no cap | 10^8 rows, no cap | 10^8 rows of 10^7 people, with a cap | a window of 10^8 rows |
| --- | --- | --- | --- | --- |
{model}
"""


def make(folder: Path, rows: int) -> None:
    """Parquet files of `rows` people, ten in a household, each in a file of at most a million."""
    for first in range(0, rows, BLOCK):
        people = insurance(min(BLOCK, rows - first), seed=first).with_row_index("person", first)
        people.with_columns(household=pl.col("person") // 10).write_parquet(folder / f"{first:012}.parquet")


def job(store: Path, kind: str, source: dict[str, Any]) -> dict[str, Any]:
    window = {"estimator": "WindowedRegressor", "items_per_user": 10, "window": 2**31, "scaling": "none"}
    found = {
        "job": "charges",
        "schema": {
            "features": {"age": [18, 65], "smoker": ["no", "yes"]},
            "target": {"column": "charges", "bounds": [0, 40_000]},
            "subject": "household" if kind == "window" else "person",
        },
        "model": window if kind == "window" else {"estimator": "LDPASGDRegressor", "budget": "eps=1"},
        "source": source,
        "store": str(store),
    }
    return found | ({"cap": "eps=1"} if kind == "cap" else {})


def in_process(data: str, kind: str, store: Path) -> dict[str, float]:
    """The runner of `streamdp run`, without the display."""
    from streamdp.config.job import NOTHING, make_config
    from streamdp.runtime.runner import Runner

    config = make_config(job(store, kind, {"type": "parquet", "path": data}))
    began = time.perf_counter()
    with config.open_store(NOTHING) as opened:
        source = config.source.build(config.build_schema())  # type: ignore[union-attr]
        counts = Runner(source, config.build_estimator(opened.ledger), opened).run()
    return {"learned": counts.learned, "seconds": time.perf_counter() - began, "start": 0.0, "fixed": 0.0}


def on_spark(data: str, kind: str, store: Path, master: str) -> dict[str, float]:
    os.environ["PYSPARK_PYTHON"] = sys.executable
    os.environ["SPARK_WORKER_DIR"] = str(store.with_name("work"))
    from pyspark.sql import SparkSession

    from streamdp.spark import learn

    began = time.perf_counter()
    builder = SparkSession.builder.master(master).config("spark.ui.enabled", "false")
    builder = builder.config("spark.ui.showConsoleProgress", "false").config("spark.log.level", "ERROR")
    shards = 2 if "cluster" in master else 1
    spark = builder.config("spark.sql.shuffle.partitions", str(shards)).getOrCreate()
    settings, frame = job(store, kind, {"type": "spark", "shards": shards}), spark.read.parquet(data)
    learn(frame.limit(SMALL), settings | {"store": f"{store}.warm"})
    start = time.perf_counter() - began
    began = time.perf_counter()
    learn(frame.limit(SMALL if kind == "window" else 0), settings | {"store": f"{store}.fixed"})
    fixed = time.perf_counter() - began
    began = time.perf_counter()
    counts = learn(frame, settings)
    seconds = time.perf_counter() - began
    spark.stop()
    return {"learned": counts.learned, "seconds": seconds, "start": start, "fixed": fixed}


def measure(data: Path, kind: str, master: str) -> dict[str, float]:
    """One measurement in a process of its own."""
    command = [sys.executable, "-m", "benchmarks.spark", "--one", str(data), "--master", master, "--kind", kind]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, nargs="+", default=ROWS)
    parser.add_argument("--write", action="store_true")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    parser.add_argument("--master", default="", help=argparse.SUPPRESS)
    parser.add_argument("--kind", default="", help=argparse.SUPPRESS)
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        if asked.one:
            store = folder / "job.db"
            one = on_spark(asked.one, asked.kind, store, asked.master) if asked.master else None
            print(json.dumps(one or in_process(asked.one, asked.kind, store)))
            return
        found: dict[tuple[int, str, str], dict[str, float]] = {}
        for rows in asked.rows:
            (data := folder / str(rows)).mkdir()
            make(data, rows)
            for kind in KINDS:
                for by, master in MASTERS.items():
                    found[rows, kind, by] = one = measure(data, kind, master)
                    assert one["learned"] == rows
                    print(f"{rows:,} rows, {kind}, {by}: {one}", flush=True)
    page = text(found, max(asked.rows))
    if asked.write:
        PAGE.write_text(page)
    else:
        print(page)


def text(found: dict[tuple[int, str, str], dict[str, float]], rows: int) -> str:
    from benchmarks.speed import machine

    lines = [
        f"| {n:,} | {kind} | {by} | {one['seconds']:.1f} | {n / one['seconds']:,.0f} |"
        for (n, kind, by), one in found.items()
    ]
    plain, capped, window = (found[rows, kind, "Spark, local[1]"] for kind in KINDS)
    a, window_a = plain["fixed"], window["fixed"]
    b, window_b = (plain["seconds"] - a) / rows, (window["seconds"] - window_a) / rows
    c = max(0.0, capped["seconds"] - capped["fixed"] - (plain["seconds"] - a)) / rows
    model = [
        f"| {e} | {a + b * 1e7 / e:,.0f} s | {a + b * 1e8 / e:,.0f} s | {a + b * 1e8 / e + c * 1e7:,.0f} s "
        f"| {window_a + window_b * 1e8 / e:,.0f} s |"
        for e in (2, 10, 100)
    ]
    return ABOUT.format(
        start=found[rows, KINDS[0], f"Spark, {CLUSTER}"]["start"],
        cluster=CLUSTER,
        machine=machine(),
        rows="\n".join(lines),
        a=a,
        b=b * 1e6,
        c=c * 1e6,
        window_a=window_a,
        window_b=window_b * 1e6,
        model="\n".join(model),
    )


if __name__ == "__main__":
    main()
