"""A cluster of two executors with speculation, whose driver, executors and Python workers are killed at random.

One run for each kind of learner: it learns each record by itself (LDP), or batches that are sums over all executors,
pan-private or shuffled; and for statistics of each trust. `tests/integration/test_spark.py` has the small form: tasks
that fail after they have learned, and a driver that dies between its commit and the note of Spark.

`STREAMDP_SPARK_FOLDER` names a folder in which the kills go on where they ended, in a folder for each estimator;
`STREAMDP_SPARK_SECONDS` ends a part of them, with one more kill of the driver, and the next run goes on.
"""

import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import kafka
import pytest

from servers.broker import Broker, create_topic
from servers.postgres import Postgres
from streamdp.config.job import make_config
from streamdp.serving.snapshots import combined, restore
from streamdp.spark import learn_stream
from streamdp.spark.reading import read
from streamdp.store.snapshot import Counts, Snapshot
from streamdp.store.store import Store
from tests.support.paths import ROOT
from tests.support.schemas import in_schema
from tests.support.spark import BATCHED_CAP, admitted, job, job_of, rows, start
from tests.support.spark_data import write_csv

pytestmark = pytest.mark.campaign

LDP = "LDPASGDClassifier"
KILLS = int(os.environ.get("STREAMDP_SPARK_KILLS", "30"))
FILES, RECORDS = KILLS + 10, 300  # a commit between two kills, and some after the last
SECONDS = float(os.environ.get("STREAMDP_SPARK_SECONDS", "inf"))


def family(pid: int) -> dict[int, str]:
    """The processes that descend from one, with their command lines."""
    parents, names = {}, {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError, IndexError, ValueError):
                parents[int(entry.name)] = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
                names[int(entry.name)] = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
    found, new = {}, {pid}
    while new:
        found |= {child: names.get(child, "") for child in new}
        new = {child for child, parent in parents.items() if parent in new} - found.keys()
    return found


def kill(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


def victims(driver: int, kind: str) -> list[int]:
    """The processes of a kind: both halves of the driver, one executor, or one Python worker."""
    found = family(driver)
    executors = [pid for pid, name in found.items() if "CoarseGrainedExecutorBackend" in name]
    workers = [pid for pid, name in found.items() if "pyspark.worker" in name]
    if kind == "driver":
        return [pid for pid in found if pid not in executors and pid not in workers]
    return random.sample(executors if kind == "executor" else workers, 1) if (executors and workers) else []


@pytest.fixture
def folder(tmp_path: Path, estimator: str) -> Path:
    """The folder of the campaign, with its data."""
    chosen = Path(os.environ.get("STREAMDP_SPARK_FOLDER", tmp_path)) / estimator
    if not (chosen / "data").exists():
        (draft := chosen / "draft").mkdir(parents=True)
        for i in range(FILES):
            write_csv(draft / f"{i:04}.csv", rows(RECORDS, i * RECORDS))
            os.utime(draft / f"{i:04}.csv", (i + 1, i + 1))  # Spark takes the oldest first
        draft.rename(chosen / "data")
    return chosen


def run(folder: Path, estimator: str, done: dict[str, int], until: float) -> bool:
    """Run a driver, and kill what is its until it ends; return whether it has learned all."""
    command = [sys.executable, "-m", "tests.support.spark_driver", str(folder), "local-cluster[2,1,1024]", estimator]
    with (folder / "log").open("ab") as log:
        driver = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=log, text=True)
    lines: list[str] = []
    assert driver.stdout is not None
    reader = threading.Thread(target=lambda out=driver.stdout: lines.extend(out), daemon=True)
    reader.start()
    everybody: dict[int, str] = {}
    heard = 1 + (folder / "job.db").exists()  # it is up, and it shows the last commit
    while driver.poll() is None:
        time.sleep(random.uniform(0.2, 2.0))
        everybody |= family(driver.pid)
        late = time.monotonic() > until
        if late or (len(lines) > heard and sum(done.values()) < KILLS):  # it has committed since the last kill
            kind = "driver" if late else random.choice(["driver", "executor", "executor", "worker"])
            chosen = victims(driver.pid, kind)
            for pid in chosen:
                kill(pid)
            if chosen:
                done[kind] += 1
                heard = len(lines)
    driver.wait()
    for pid, name in everybody.items():
        if name and family(pid).get(pid) == name:  # executors that outlived their driver
            kill(pid)
    reader.join(10)
    print(f"{done}, {len(lines)} lines, code {driver.returncode}", flush=True)
    return "end\n" in lines


@pytest.mark.timeout(7200)
@pytest.mark.parametrize(
    "estimator", [LDP, "PanPrivateClassifier", "ShuffleClassifier", "nobody", "process", "shuffler"]
)
def test_whatever_is_killed_each_record_counts_once_and_no_cap_is_exceeded(folder: Path, estimator: str) -> None:
    until = time.monotonic() + SECONDS
    note = folder / "kills.json"
    done = dict.fromkeys(("driver", "executor", "worker"), 0) | (json.loads(note.read_text()) if note.exists() else {})
    while not run(folder, estimator, done, until):
        note.write_text(json.dumps(done))
        if time.monotonic() > until:
            pytest.skip(f"{done}: run it again, it goes on")
    note.write_text(json.dumps(done))
    every: dict[str, list[str]] = {}
    for i in range(FILES):
        every = {name: every.get(name, []) + values for name, values in rows(RECORDS, i * RECORDS).items()}
    counts = [snapshot.counts for snapshot in Store.snapshots(folder / "job.db")]
    learned, refused, dead = (sum(getattr(c, name) for c in counts) for name in ("learned", "refused", "dead_letters"))
    print(f"{len(every['tail']):,} produced, {learned:,} learned, {refused:,} refused, {dead:,} dead; kills {done}")
    people = sorted(set(every["tail"]))
    config, cap = make_config(job_of(folder / "job.db", estimator)), 3 if estimator == LDP else BATCHED_CAP
    if estimator == LDP:
        assert (learned, refused, dead) == admitted(every, cap)
    else:
        assert (learned, dead) == (cap * len(people), every["origin"].count("XXX"))
        assert learned + refused + dead == len(every["tail"])
    model = restore(combined(Store.snapshots(folder / "job.db"))).estimator
    assert model.n_seen == learned
    with Store(
        folder / "job.db", "late", config.fingerprint(), cap=config.cap_budget, config=config.text(), shared=True
    ) as store:
        spent = [store.ledger.spent(person) for person in people]
    assert sum(one.records for one in spent) == learned
    assert max(one.epsilon for one in spent) <= cap * (1 + 1e-9)
    batches = [c.position["batch"] for c in Store.history(folder / "job.db", 10_000) if c.shard.partition == 0]
    assert batches == list(range(len(batches)))  # at most FILES: after a kill Spark may take two files in a batch
    assert sum(done.values()) >= KILLS


@pytest.mark.timeout(3600)
def test_a_broker_and_a_database_restart_in_mid_stream(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The database is killed right after the second commit, the broker after the fourth; both come back."""
    monkeypatch.setenv("STREAMDP_SUBJECT_KEY", "5a" * 32)
    every = rows(900)
    with Broker(tmp_path / "kafka") as broker, Postgres(tmp_path / "postgres") as postgres:
        create_topic(broker.bootstrap, "flights", 2)
        producer = kafka.KafkaProducer(bootstrap_servers=broker.bootstrap)
        for values in zip(*every.values(), strict=True):
            record = dict(zip(every, values, strict=True))
            producer.send("flights", key=record["tail"].encode(), value=json.dumps(record).encode())
        producer.flush()
        producer.close()
        timers: list[threading.Timer] = []

        def restart(server: Broker | Postgres) -> None:
            server.kill()
            timers.append(threading.Timer(3.0, server.start))
            timers[-1].start()

        def after_commit(snapshots: list[Snapshot]) -> None:
            if (server := {1: postgres, 3: broker}.get(snapshots[0].position["batch"])) is not None:
                restart(server)

        spark = start(tmp_path)
        options = {
            "kafka.bootstrap.servers": broker.bootstrap,
            "subscribe": "flights",
            "startingOffsets": "earliest",
            "maxOffsetsPerTrigger": "150",
        }
        source = {
            "type": "spark",
            "format": "kafka",
            "options": options,
            "stream": True,
            "checkpoint": "c",
            "shards": 2,
        }
        place = in_schema(postgres.url, "spark")
        settings = job(place, source=source | {"trigger": {"available_now": True}})
        stream = read(spark, make_config(settings))
        try:
            with learn_stream(stream, settings, checkpoint=str(tmp_path / "c"), publish=[after_commit]) as learner:
                assert learner.wait()
                learned, refused, dead = admitted(every, 3.0)
                print(f"{len(every['tail'])} produced, {learner.counts}, {len(timers)} restarts")
                assert learner.counts == Counts(learned, refused, dead)
        finally:
            spark.stop()
            for timer in timers:
                timer.join()
        assert len(timers) == 2
        batches = [c.position["batch"] for c in Store.history(place, 100, "late") if c.shard.partition == 0]
        assert batches == sorted(set(batches))
        assert len(batches) >= 6
