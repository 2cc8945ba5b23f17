"""A cluster of two executors with speculation, whose driver, executors and Python workers are killed at random.

`tests/integration/test_spark.py` has the small form: tasks that fail after they have learned, and a driver that dies
between its commit and the note of Spark.
"""

from __future__ import annotations

import contextlib
import os
import random
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from streamdp.config.job import make_config
from streamdp.store.store import Store
from tests.support.paths import ROOT
from tests.support.spark import admitted, job, rows
from tests.support.spark_data import write_csv

KILLS = int(os.environ.get("STREAMDP_SPARK_KILLS", "30"))
FILES, RECORDS = 2 * KILLS, 300


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
    workers = [pid for pid, name in found.items() if "pyspark.daemon" in name]
    if kind == "driver":
        return [pid for pid in found if pid not in executors and pid not in workers]
    return random.sample(executors if kind == "executor" else workers, 1) if (executors and workers) else []


@pytest.mark.campaign
@pytest.mark.timeout(7200)
def test_whatever_is_killed_each_record_counts_once_and_no_cap_is_exceeded(tmp_path: Path) -> None:
    seed = random.randrange(1 << 32)
    random.seed(seed)
    (tmp_path / "data").mkdir()
    every: dict[str, list[str]] = {}
    for i in range(FILES):
        records = rows(RECORDS, i * RECORDS)
        write_csv(tmp_path / "data" / f"{i:04}.csv", records)
        os.utime(tmp_path / "data" / f"{i:04}.csv", (i + 1, i + 1))  # Spark takes the oldest first
        every = {name: every.get(name, []) + values for name, values in records.items()}
    done = dict.fromkeys(("driver", "executor", "worker"), 0)
    command = [sys.executable, "-m", "tests.support.spark_driver", str(tmp_path), "local-cluster[2,1,1024]"]
    ended = False
    while not ended:
        with (tmp_path / "log").open("ab") as log:
            driver = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=log, text=True)
        lines: list[str] = []
        assert driver.stdout is not None
        reader = threading.Thread(target=lambda out=driver.stdout, to=lines: to.extend(out), daemon=True)
        reader.start()
        everybody: dict[int, str] = {}
        heard = 1
        while driver.poll() is None:
            time.sleep(random.uniform(0.2, 2.0))
            everybody |= family(driver.pid)
            if len(lines) > heard and sum(done.values()) < KILLS:  # it has committed since the last kill
                kind = random.choice(["driver", "executor", "executor", "worker"])
                chosen = victims(driver.pid, kind)
                for pid in chosen:
                    kill(pid)
                done[kind] += bool(chosen)
                heard = len(lines)
        driver.wait()
        for pid, name in everybody.items():
            if name and family(pid).get(pid) == name:  # executors that outlived their driver
                kill(pid)
        reader.join(10)
        ended = "end\n" in lines
        print(f"seed {seed}: {done}, {len(lines)} lines, code {driver.returncode}", flush=True)
    config = make_config(job(tmp_path / "job.db"))
    counts = [snapshot.counts for snapshot in Store.snapshots(tmp_path / "job.db")]
    learned, refused, dead = (sum(getattr(c, name) for c in counts) for name in ("learned", "refused", "dead"))
    assert (learned, refused, dead) == admitted(every, 3.0), seed
    with Store(tmp_path / "job.db", "late", config.fingerprint(), cap="eps=3", config=config.text(), shared=True) as s:
        assert s.ledger is not None
        assert max(s.ledger.spent(tail).epsilon for tail in set(every["tail"])) <= 3 * (1 + 1e-9)
    batches = [c.position["batch"] for c in Store.history(tmp_path / "job.db", 10_000) if c.shard.partition == 0]
    assert batches == sorted(set(batches)), seed
    assert len(batches) == FILES
    assert sum(done.values()) >= min(KILLS, 1)
