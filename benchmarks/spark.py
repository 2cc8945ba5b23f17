"""What Spark costs: records/s against `streamdp run`, and where the time goes. `python -m benchmarks.spark [--write]`.

Parquet files of simulated people are learned by the runner of `streamdp run`, by Spark on `local[1]`, and on
`local-cluster[2,1,2048]`, each in a process of its own: by an LDP estimator, and as one window of users with ten
records each. Before the measurement, a session learns a small frame, so that the start of the JVM and of the Python
workers is not counted as learning; it is named apart. `--rows N` is 10^7 by default.

A tenth of the rows, in one session on `local[1]`, says where the time goes. Stages are measured one by one, each with
all stages before it: Spark reads the files; it also divides and sorts the records by shard; it also copies them to a
Python process; and the whole job. There are also a pan-private job, a job with a cap where each record is another
person's, and a window with few records: with one shard, and with many, whose tasks are almost empty.

The cost model: a batch of n records on e executors of one core takes

    T = fixed + record n / e + person m          of a window   T = fixed + record n / e + rounds (round + task shards)

with m people under a cap. The driver's part is what e does not divide. What the driver needs to open the answers of a
round is measured by itself, without Spark: `box`. The model leaves out the network between machines, which one machine
cannot measure. `task` was measured on one core that also runs the tasks, so it is above what a driver needs.
`--write` replaces spark.md beside this file.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from streamdp.datasets import insurance

PAGE = Path(__file__).with_suffix(".md")
ROWS = 10_000_000
SMALL = 20_000
"""Rows of the frame that is learned first, and of the windows that are almost empty."""
BLOCK = 1_000_000
SHARD = 500_000
"""Rows of a shard of a window."""
MANY = 100
BOXES, NUMBERS = 2_000, 90
"""Answers that are opened, and the numbers in each: those of ten features."""
CLUSTER = "local-cluster[2,1,2048]"
MASTERS = {"streamdp run": "", "Spark, local[1]": "local[1]", f"Spark, {CLUSTER}": CLUSTER}
MODELS: dict[str, dict[str, Any]] = {
    "LDP": {"estimator": "LDPASGDRegressor", "budget": "eps=1"},
    "cap": {"estimator": "LDPASGDRegressor", "budget": "eps=1"},
    "pan-private": {"estimator": "PanPrivateRegressor", "budget": "eps=1,delta=1e-8"},
    "window": {"estimator": "WindowedRegressor", "items_per_user": 10, "window": 2**31, "scaling": "none"},
}
ABOUT = """# What Spark costs

`make bench-spark` learns the same Parquet files by the runner of `streamdp run` and by Spark. The start of a session
is not in the times of the first table: {start:.1f} s on local[1] and {cluster_start:.1f} s on {cluster}, with a first
small batch.

{machine}

| rows | learned as | by | s | records/s | most memory of a Python process |
| --- | --- | --- | --- | --- | --- |
{rows}

Where the time of Spark goes, from {parts_rows:,} rows on local[1]:

| part | measured |
| --- | --- |
| fixed: a batch of Spark without records, LDP | {fixed:.2f} s |
| Spark reads the files | {read:.2f} µs a record |
| Spark divides the records into shards and sorts them | {sort:.2f} µs a record |
| copy to the Python process (serialisation) | {copy:.2f} µs a record |
| decode, validate and learn, LDP | {learn:.2f} µs a record |
| `streamdp run`, all of it, LDP | {run:.2f} µs a record |
| person: hashes, spends and loads with a cap, at the driver | {person:.2f} µs a person |
| a pan-private job, beside fixed: {batches} batches of one sum each | {pan:.2f} µs a record |
| `streamdp run`, all of it, pan-private | {pan_run:.2f} µs a record |
| round: one question to a window with one shard | {round:.3f} s |
| task: a shard more in a round | {task:.2f} ms |
| box: the driver opens and adds the answer of a shard | {box:.0f} µs |

The model with these constants; the network between machines is not in it. A window has {rounds} rounds and shards of
{shard:,} records, at least one for each executor:

| executors | 10^7 rows, LDP | 10^8 rows, LDP | 10^8 of 10^7 people, cap | window of 10^7 | window of 10^8 |
| --- | --- | --- | --- | --- | --- |
{model}

Of a round with 10,000 shards, the driver needs {boxes:.1f} s to open and add the answers, and Spark {tasks:.0f} s to
schedule their tasks. So a tree of additions would save {share:.0%} of such a round at most. It would need partial sums
that executors can read, which sealed ones are not.
"""


def make(folder: Path, rows: int) -> None:
    """Parquet files of `rows` people, ten in a household, each in a file of at most a million."""
    folder.mkdir()
    for first in range(0, rows, BLOCK):
        people = insurance(min(BLOCK, rows - first), seed=first).with_row_index("person", first)
        people.with_columns(household=pl.col("person") // 10).write_parquet(folder / f"{first:012}.parquet")


def job(store: Path | str, kind: str, source: dict[str, Any]) -> dict[str, Any]:
    found = {
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
    return found | ({"cap": "eps=1"} if kind == "cap" else {})


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
    return {"learned": learned, "seconds": seconds, "start": 0.0, "memory": most}


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

    executors = 2 if "cluster" in master else 1
    shards = max(executors, rows // SHARD) if kind == "window" else executors
    settings = job(store, kind, {"type": "spark", "shards": shards})

    def warm() -> Any:
        spark = session(master, store)
        learn(spark.read.parquet(data).limit(SMALL), settings | {"store": f"{store}.warm"})
        return spark

    start, spark = timed(warm)
    with most_memory() as memory:
        seconds, counts = timed(lambda: learn(spark.read.parquet(data), settings))
    spark.stop()
    return {"learned": counts.learned, "seconds": seconds, "start": start, "memory": memory.bytes}


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


def drain(batches: Iterable[Any]) -> Iterator[Any]:
    """Read the rows of a partition and do nothing with them."""
    import pyarrow as pa

    rows = sum(batch.num_rows for batch in batches)
    yield pa.RecordBatch.from_pydict({"n": pa.array([rows], pa.int64())})


def stages(data: str, store: Path, rows: int) -> dict[str, float]:
    """Where the time goes; see the text of the module. Seconds of each stage with all before it."""
    from streamdp.config.job import NOTHING, make_config
    from streamdp.serving.publish import committed
    from streamdp.spark import learn
    from streamdp.spark.driver import Driver

    spark = session("local[1]", store)
    frame, made = spark.read.parquet(data), iter(range(100))

    def learned(kind: str, part: Any, shards: int = 1) -> float:
        settings = job(f"{store}.{next(made)}", kind, {"type": "spark", "shards": shards})
        return timed(lambda: learn(part, settings))[0]

    def discard(rows: Any) -> float:
        return timed(lambda: rows.write.format("noop").mode("overwrite").save())[0]

    for kind in MODELS:
        learned(kind, frame.limit(SMALL))
    found = {"fixed": learned("LDP", frame.limit(0))}
    driver = Driver(spark, make_config(job(f"{store}.stages", "LDP", {"type": "spark", "shards": 1})), NOTHING)
    found["read"] = discard(frame.select("age", "smoker", "charges", "person"))
    found["sort"] = discard(driver._batch(frame).rows)
    found["copy"] = timed(lambda: driver._batch(frame).rows.mapInArrow(drain, "n long").collect())[0]
    driver.close()
    for kind in ("LDP", "cap", "pan-private"):
        found[kind] = learned(kind, frame)
    found["batches"] = len(batch_sizes(committed(f"{store}.{next(made) - 1}").estimator, rows))
    with counted_rounds() as rounds:
        found["one"] = learned("window", frame.limit(SMALL))
    found["many"] = learned("window", frame.limit(SMALL), MANY)
    found["rounds"] = len(rounds)
    spark.stop()
    return found


def batch_sizes(estimator: Any, rows: int) -> list[int]:
    """The batches of so many records, by the estimator's own plan."""
    fresh = estimator.clone()
    sizes = [fresh.learner.walk.batch]
    for size, count in fresh.learner.walk.runs():
        for _ in range(count):
            if sum(sizes) >= rows:
                return sizes
            sizes.append(size)
    return sizes


class counted_rounds(list[Any]):
    """The questions that a driver asks, while it is entered."""

    def __enter__(self) -> counted_rounds:
        from streamdp.spark.gathering import GatheredRecords

        self._real = real = GatheredRecords.ask
        GatheredRecords.ask = lambda records, *a: self.append(a) or real(records, *a)  # type: ignore
        return self

    def __exit__(self, *_: object) -> None:
        from streamdp.spark.gathering import GatheredRecords

        GatheredRecords.ask = self._real  # type: ignore[method-assign]


def opening() -> float:
    """Seconds of processor to open and add one answer."""
    from streamdp.spark.sealing import Seal, seal
    from streamdp.store.state_codec import decode_state, encode_state

    keys, total = Seal(), np.zeros(NUMBERS)
    answer = encode_state({"total": np.linspace(0, 1, NUMBERS), "blocks": ["0" * 32]}).encode()
    boxes = [seal(answer, keys.public) for _ in range(BOXES)]
    began = time.process_time()
    for box in boxes:
        total = total + decode_state(keys.open(box).decode())["total"]
    return (time.process_time() - began) / BOXES


def measure(*arguments: str) -> dict[str, float]:
    """One measurement in a process of its own."""
    command = [sys.executable, "-m", "benchmarks.spark", "--one", *arguments]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=ROWS)
    parser.add_argument("--write", action="store_true")
    parser.add_argument("--one", nargs=4, help=argparse.SUPPRESS)
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        if asked.one:
            data, kind, master, rows = asked.one
            store = folder / "job.db"
            if kind == "stages":
                print(json.dumps(stages(data, store, int(rows))))
            elif master:
                print(json.dumps(on_spark(data, kind, store, master, int(rows))))
            else:
                print(json.dumps(in_process(data, kind, store)))
            return
        from benchmarks.speed import machine

        about = machine()
        rows, whole, part = asked.rows, folder / "whole", folder / "part"
        make(whole, rows)
        make(part, rows // 10)
        found: dict[tuple[str, str], dict[str, float]] = {}
        for kind in ("LDP", "window"):
            for by, master in MASTERS.items():
                found[kind, by] = one = measure(str(whole), kind, master, str(rows))
                assert one["learned"] == rows
                print(f"{rows:,} rows, {kind}, {by}: {one}", flush=True)
        parts = measure(str(part), "stages", "local[1]", str(rows // 10))
        parts["pan_run"] = measure(str(part), "pan-private", "", "")["seconds"]
        print(parts, flush=True)
    page = text(about, found, parts, rows)
    if asked.write:
        PAGE.write_text(page)
    else:
        print(page)


def text(about: str, found: dict[tuple[str, str], dict[str, float]], parts: dict[str, float], rows: int) -> str:
    lines = [
        f"| {rows:,} | {kind} | {by} | {one['seconds']:.1f} | {rows / one['seconds']:,.0f} "
        f"| {one['memory'] / 1e6:,.0f} MB |"
        for (kind, by), one in found.items()
    ]
    few = rows // 10
    each = {name: (parts[name] - parts[before]) / few for name, before in (("sort", "read"), ("copy", "sort"))}
    each["read"] = parts["read"] / few
    each["learn"] = max(0.0, parts["LDP"] - parts["copy"]) / few
    person = max(0.0, parts["cap"] - parts["LDP"]) / few
    task = max(0.0, parts["many"] - parts["one"]) / (MANY - 1) / (parts["rounds"] + 1)  # one more job gathers
    box, rounds = opening(), parts["rounds"]
    fixed, record = parts["fixed"], (found["LDP", "Spark, local[1]"]["seconds"] - parts["fixed"]) / rows
    window = found["window", "Spark, local[1]"]["seconds"]
    a_round = parts["one"] / (rounds + 1)

    def windowed(n: float, executors: int) -> float:
        def scheduling(n: float, executors: int) -> float:
            return (rounds + 1) * (a_round + task * (max(executors, n / SHARD) - 1))

        return scheduling(n, executors) + max(0.0, window - scheduling(rows, 1)) / rows * n / executors

    model = [
        f"| {e} | {fixed + record * 1e7 / e:,.0f} s | {fixed + record * 1e8 / e:,.0f} s "
        f"| {fixed + record * 1e8 / e + person * 1e7:,.0f} s | {windowed(1e7, e):,.0f} s | {windowed(1e8, e):,.0f} s |"
        for e in (1, 10, 100)
    ]
    boxes, tasks = 10_000 * box, 10_000 * task
    return ABOUT.format(
        start=found["LDP", "Spark, local[1]"]["start"],
        cluster_start=found["LDP", f"Spark, {CLUSTER}"]["start"],
        cluster=CLUSTER,
        machine=about,
        rows="\n".join(lines),
        parts_rows=few,
        fixed=fixed,
        **{name: value * 1e6 for name, value in each.items()},
        run=found["LDP", "streamdp run"]["seconds"] / rows * 1e6,
        person=person * 1e6,
        batches=int(parts["batches"]),
        pan=max(0.0, parts["pan-private"] - fixed) / few * 1e6,
        pan_run=parts["pan_run"] / few * 1e6,
        round=a_round,
        task=task * 1e3,
        box=box * 1e6,
        rounds=int(rounds),
        shard=SHARD,
        model="\n".join(model),
        boxes=boxes,
        tasks=tasks,
        share=boxes / (boxes + tasks),
    )


if __name__ == "__main__":
    main()
