"""A Spark session for tests, a job for it, and a task that fails."""

import os
import signal
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql import SparkSession

from servers.jars import SPARK_KAFKA, jars
from streamdp.spark.task import Gather, PartitionQuestion, ShardTask, SumTask
from tests.support.paths import ROOT

SECRET = "4711.25"
"""A value of records. Nothing but Spark's own shuffle files may hold it."""
PEOPLE = 97


def start(folder: Path, master: str = "local[2,3]", **more: str) -> SparkSession:
    """A small session; a task may fail twice. Its event log and its other files are in `folder`.

    PySpark's handler of Ctrl-C, which fails once the session has ended, does not stay.
    """
    events = folder / "events"
    events.mkdir()
    os.environ["PYSPARK_PYTHON"] = sys.executable
    os.environ["SPARK_WORKER_DIR"] = str(folder / "work")  # of a local-cluster; else beside PySpark's own files
    os.environ["PYTHONPATH"] = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    settings = {
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.sql.shuffle.partitions": "2",
        "spark.sql.codegen.wholeStage": "false",  # tests are short
        "spark.python.daemon.module": "tests.support.spark_daemon",
        "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
        "spark.sql.warehouse.dir": str(folder / "warehouse"),
        "spark.local.dir": str(folder / "local"),
        "spark.eventLog.enabled": "true",
        "spark.eventLog.dir": events.as_uri(),
        "spark.eventLog.compress": "false",  # tests search the files of Spark for values of records
        "spark.shuffle.compress": "false",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.log.level": "ERROR",
        "spark.jars": ",".join(map(str, sorted(jars(*SPARK_KAFKA).glob("*.jar")))),
    } | {name.replace("_", "."): value for name, value in more.items()}
    builder = SparkSession.builder.master(master).appName("tests")
    for name, value in settings.items():
        builder = builder.config(name, value)
    before = signal.getsignal(signal.SIGINT)
    session = builder.getOrCreate()
    signal.signal(signal.SIGINT, before)
    return session


def job(store: Path | str, **more: Any) -> dict[str, Any]:
    """The settings of a job with a cap; `more` replaces some."""
    return {
        "job": "late",
        "schema": {
            "features": {"delay": [-30, 60], "origin": ["EWR", "JFK"]},
            "target": {"column": "late", "classes": ["False", "True"]},
            "subject": "tail",
            "budget": "eps",
        },
        "model": {"estimator": "LDPASGDClassifier", "budget": "eps=1"},
        "cap": "eps=3",
        "source": {"type": "spark", "shards": 2},
        "store": str(store),
    } | more


BATCHED_CAP = 40
"""How many records of a person `batched_job` learns."""


def batched_job(store: Path | str, estimator: str) -> dict[str, Any]:
    """The settings of a job whose estimator learns in batches. No batch has two records of one person."""
    schema = {name: value for name, value in job(store)["schema"].items() if name != "budget"}
    model = {"estimator": estimator, "budget": "eps=1,delta=1e-6", "batch_size": 60}
    return job(store, schema=schema, model=model, cap=f"eps={BATCHED_CAP},delta=1e-2")


def statistics_job(store: Path | str, trust: str, **more: Any) -> dict[str, Any]:
    """The settings of a job with statistics, and the same cap."""
    given = batched_job(store, "PanPrivateClassifier")
    schema = {name: value for name, value in given["schema"].items() if name != "target"}
    model = {"trust": trust, "budget": given["model"]["budget"]} | ({} if trust == "nobody" else {"batch_size": 60})
    declared = {"delay": {"mean": "delay", "by": "origin"}, "origins": {"count": "origin"}}
    return given | {"schema": schema, "model": model, "statistics": declared} | more


def job_of(store: Path | str, name: str) -> dict[str, Any]:
    """The settings of a job of an estimator, or with statistics of a trust: `nobody`, `process` or `shuffler`."""
    if name == "LDPASGDClassifier":
        return job(store)
    return statistics_job(store, name) if name.islower() else batched_job(store, name)


def rows(n: int, first: int = 0) -> dict[str, list[Any]]:
    """n good records by column, with a bad one after every 50th; deterministic."""
    rng = np.random.default_rng(first)
    out: dict[str, list[Any]] = {"delay": [], "origin": [], "late": [], "tail": [], "eps": []}
    for i in range(first, first + n):
        delay = round(rng.uniform(-30, 60), 2)
        late = str(delay + rng.normal(0, 10) > 15)
        records = [(str(delay), ("EWR", "JFK")[i % 2], late, f"t{i % PEOPLE}", ("", "0.5")[i % 2])]
        if i % 50 == 7:
            records.append((SECRET, "XXX", "False", "t1", "1"))
        for record in records:
            for column, value in zip(out.values(), record, strict=True):
                column.append(value)
    return out


def admitted(records: Mapping[str, list[Any]], cap: float) -> tuple[int, int, int]:
    """What a cap must learn, refuse and find dead of all records in order: the truth that a store is compared with."""
    spent: dict[str, float] = {}
    learned = refused = dead = 0
    for origin, tail, eps in zip(records["origin"], records["tail"], records["eps"], strict=True):
        if origin == "XXX":
            dead += 1
            continue
        amount = float(eps or 1)
        if spent.get(tail, 0.0) + amount <= cap * (1 + 1e-9):
            spent[tail] = spent.get(tail, 0.0) + amount
            learned += 1
        else:
            refused += 1
    return learned, refused, dead


def failed_once(results: list[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """All is computed, and the first attempt of each partition fails before Spark gets it."""
    context = TaskContext.get()
    if context is None or context.attemptNumber() == 0:
        raise OSError("the executor lost its network")
    yield from results


@dataclass(frozen=True)
class FailsOnce(ShardTask):
    def results(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        return failed_once(list(super().results(batches)))


@dataclass(frozen=True)
class SumFailsOnce(SumTask):
    def results(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        return failed_once(list(super().results(batches)))


@dataclass(frozen=True)
class GatherFailsOnce(Gather):
    def results(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        return failed_once(list(super().results(batches)))


@dataclass(frozen=True)
class QuestionFailsOnce(PartitionQuestion):
    """The Python worker of the first attempt is killed when it has computed its answer."""

    def results(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        answers = list(super().results(batches))
        context = TaskContext.get()
        if context is None or context.attemptNumber() == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        yield from answers
