"""A Kafka worker is killed with SIGKILL while it learns, and another one goes on: for `notebooks/07`.

A real broker, real processes, synthetic insured people keyed by person. Some are in the topic when the first worker
starts, some come while it learns, and the last ones after it was killed. What is committed is noted all the time.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, fields
from pathlib import Path

import numpy as np

from servers.broker import Broker
from streamdp import datasets
from streamdp.cli.kafka_job import produce
from streamdp.store.snapshot import Counts
from streamdp.store.store import Store

ROOT = Path(__file__).parents[1]
PARTITIONS = 4
PARTS = {"first": 0.4, "second": 0.3, "third": 0.3}
"""Shares of the people."""
PATIENCE_S = 300.0
"""How long a worker may take to come to its goal: the machine may be busy."""
JOB = """job: killed
source:
  type: kafka
  topic: {topic}
  subject_from: key
  options: {{session_timeout_ms: 6000, heartbeat_interval_ms: 500}}
schema:
  features: {{smoker: ["no", "yes"], coverage: [basic, standard, premium]}}
  target: {{column: charges, bounds: [0, 40000]}}
  subject: person
model: {{estimator: LDPASGDRegressor, budget: eps=1}}
cap: eps=1
commit: {{seconds: 0.2}}
store: killed.db
"""


@contextmanager
def brokers() -> Iterator[str]:
    """The address of the brokers that STREAMDP_KAFKA names, or of one that is started here."""
    with ExitStack() as stack:
        address = os.environ.get("STREAMDP_KAFKA")
        yield address or stack.enter_context(Broker(stack.enter_context(tempfile.TemporaryDirectory()))).bootstrap


@dataclass
class Story:
    """What the store had committed at which second, by partition, and when the workers began and ended."""

    records: int
    seconds: list[float] = field(default_factory=list)
    committed: list[np.ndarray] = field(default_factory=list)
    began: list[float] = field(default_factory=list)
    ended: list[float] = field(default_factory=list)
    counts: Counts = field(default_factory=Counts)

    @property
    def lines(self) -> np.ndarray:
        """(times, partitions)."""
        return np.array(self.committed)


class Teller:
    """Runs workers in a folder and notes the story."""

    def __init__(self, folder: Path, address: str, records: int) -> None:
        self.folder, self.address = folder, address
        self.topic = f"killed-{os.getpid()}-{time.time_ns()}"
        self.story, self._started = Story(records), time.monotonic()
        people = datasets.insurance(records, seed=7).with_row_index("person")
        begin = 0
        for name, share in PARTS.items():
            part = people[begin : begin + round(records * share)]
            part.select("person", "smoker", "coverage", "charges").write_csv(folder / f"{name}.csv")
            begin += len(part)
        (folder / "job.yaml").write_text(JOB.format(topic=self.topic), encoding="utf-8")

    def now(self) -> float:
        """Seconds since the beginning."""
        return time.monotonic() - self._started

    def send(self, name: str) -> None:
        """Send a part of the people to the topic."""
        produce(str(self.folder / f"{name}.csv"), self.topic, self.address, "person", PARTITIONS)

    def note(self) -> int:
        """Note what is committed; return how many records that is."""
        offsets, counts = np.zeros(PARTITIONS), []
        if (self.folder / "killed.db").exists():
            for snapshot in Store.snapshots(self.folder / "killed.db"):
                offsets[snapshot.shard.partition] = snapshot.position["offset"]
                counts.append(snapshot.counts)
        self.story.seconds.append(self.now())
        self.story.committed.append(offsets)
        self.story.counts = Counts(*(sum(getattr(c, f.name) for c in counts) for f in fields(Counts)))
        return int(offsets.sum())

    @contextmanager
    def worker(self, end: signal.Signals) -> Iterator[subprocess.Popen[bytes]]:
        """A worker as a process of its own, which gets this signal at the end."""
        command = [sys.executable, "-m", "streamdp", "run", "job.yaml"]
        environment = os.environ | {"STREAMDP_KAFKA": self.address, "PYTHONPATH": str(ROOT)}
        self.story.began.append(self.now())
        with (self.folder / "worker.log").open("ab") as log:
            process = subprocess.Popen(command, cwd=self.folder, env=environment, stdout=log, stderr=log)
        try:
            yield process
        finally:
            process.send_signal(end)
            process.wait()
            self.story.ended.append(self.now())

    def wait(self, process: subprocess.Popen[bytes], reached: Callable[[int], bool]) -> None:
        """Note what is committed until so much is. Raises `RuntimeError` if the worker ends or takes too long."""
        limit = time.monotonic() + PATIENCE_S
        while not reached(self.note()):
            if process.poll() is not None or time.monotonic() > limit:
                raise RuntimeError((self.folder / "worker.log").read_text(errors="replace")[-2000:])
            time.sleep(0.05)


def story(records: int) -> Story:
    """Kill the first worker when it has committed half of the people, and let a second one finish."""
    with brokers() as address, tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(1) as sender:
        teller = Teller(Path(folder), address, records)
        teller.send("first")
        with teller.worker(signal.SIGKILL) as process:
            teller.wait(process, lambda done: done > 0)
            sent = sender.submit(teller.send, "second")
            teller.wait(process, lambda done: done >= records / 2)
        sent.result()
        sent = sender.submit(teller.send, "third")
        with teller.worker(signal.SIGTERM) as process:
            teller.wait(process, lambda done: done >= records)
        sent.result()
        return teller.story
