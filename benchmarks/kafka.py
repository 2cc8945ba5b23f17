"""How fast a worker is beside a loop that only polls. Run with `python -m benchmarks.kafka [--write]`; needs a JDK.

Four partitions, JSON of 200 bytes, ten features, one consumer, a broker on the same machine, one run. Contenders take
turns and the best of the rounds counts, for other work on the machine can only add time. `--write` puts the table into
README.md beside this file.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import kafka
import numpy as np
from kafka import TopicPartition

from benchmarks.speed import README, Row, machine, table, write_between
from connectors.kafka import KafkaSource, connect
from servers.broker import Broker, create_topic
from streamdp import GaussianDP, LDPASGDRegressor
from streamdp.cli.collector import rare_collections
from streamdp.data.records import Shard
from streamdp.data.schema import Schema
from streamdp.runtime.protocols import Observer
from streamdp.runtime.worker import POLL_RECORDS, Worker
from streamdp.store.snapshot import Counts, Part
from streamdp.store.store import Store

BEGIN, END = "<!-- kafka: begin -->", "<!-- kafka: end -->"
TOPIC, PARTITIONS = "records", 4
RECORDS, ROUNDS = 600_000, 3
FEATURES = [f"x{j}" for j in range(10)]
SCHEMA = Schema(dict.fromkeys(FEATURES, (0, 1)), "y", target_bounds=(0, 1))


def message(row: np.ndarray) -> bytes:
    """A record of 200 bytes."""
    fields: dict[str, Any] = dict(zip(FEATURES, row.tolist(), strict=True)) | {"y": round(float(row.mean()), 3)}
    text = json.dumps(fields)
    return json.dumps(fields | {"note": "x" * (200 - len(text) - 12)}).encode()


def fill(bootstrap: str, records: int) -> int:
    """Produce the records, with 100,000 subjects as keys; returns the bytes of one."""
    create_topic(bootstrap, TOPIC, PARTITIONS)
    values = [message(row) for row in np.random.default_rng(0).random((1000, len(FEATURES))).round(3)]
    producer = kafka.KafkaProducer(bootstrap_servers=bootstrap, linger_ms=50, batch_size=1 << 18)
    for i in range(records):
        producer.send(TOPIC, values[i % len(values)], key=b"subject-%d" % (i % 100_000))
    producer.flush()
    producer.close()
    return round(sum(map(len, values)) / len(values))


def poll_only(bootstrap: str, poll_records: int) -> float:
    """Records a second of a loop that polls the whole topic and counts."""
    consumer = connect(bootstrap, None, {})
    partitions = [TopicPartition(TOPIC, number) for number in range(PARTITIONS)]
    consumer.assign(partitions)
    for partition in partitions:
        consumer.seek(partition, 0)
    total = sum(consumer.end_offsets(partitions).values())
    found, began = 0, time.perf_counter()
    while found < total:
        found += sum(map(len, consumer.poll(timeout_ms=200, max_records=poll_records).values()))
    seconds = time.perf_counter() - began
    consumer.close()
    return total / seconds


def poll_only_without_crc32c(bootstrap: str) -> float:
    """The same in a process where the C extension cannot be imported."""
    code = "import sys; sys.modules['crc32c'] = None; from benchmarks.kafka import *; "
    code += f"print(poll_only({bootstrap!r}, {POLL_RECORDS}))"
    out = subprocess.run([sys.executable, "-W", "ignore", "-c", code], stdout=subprocess.PIPE, check=True, text=True)
    return float(out.stdout)


def collecting_rarely(run: Callable[[], float]) -> float:
    """As `streamdp run` does: with rare collections of garbage."""
    with rare_collections():
        return run()


@dataclass
class Stopwatch(Observer):
    """From the first assignment, when polling can begin, to the last commit."""

    began: float = 0.0
    ended: float = 0.0

    def committed(self, parts: dict[Shard, Part], seconds: float) -> None:
        self.ended = time.perf_counter()

    def assigned(self, shards: dict[Shard, Counts]) -> None:
        if shards and not self.began:
            self.began = time.perf_counter()


def work(bootstrap: str, records: int, cap: bool) -> float:
    """Records a second of a worker: polled, decoded, admitted, learned with noise, committed to SQLite."""
    watch = Stopwatch()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "job.db"
        with Store(path, "job", "f", cap=GaussianDP(100) if cap else None, shared=True) as store:
            source = KafkaSource(
                TOPIC, SCHEMA, bootstrap_servers=bootstrap, group=uuid.uuid4().hex, key_is_subject=True
            )
            worker = Worker(
                source,
                lambda: LDPASGDRegressor(features=FEATURES, budget="mu=1", ledger=store.ledger),
                store,
                observers=[watch],
            )
            done = worker.run(max_records=records)  # else the end would wait for more
    assert done == records, f"{done} of {records} records were committed"
    return records / (watch.ended - watch.began)


def measure(records: int, rounds: int) -> tuple[int, list[Row]]:
    with tempfile.TemporaryDirectory() as folder, Broker(folder) as broker:
        bootstrap = broker.bootstrap
        size = fill(bootstrap, records)
        contenders = {
            "bare": lambda: poll_only(bootstrap, POLL_RECORDS),
            "bare, 500 a poll": lambda: poll_only(bootstrap, 500),
            "bare, rare collections": lambda: collecting_rarely(lambda: poll_only(bootstrap, POLL_RECORDS)),
            "worker": lambda: collecting_rarely(lambda: work(bootstrap, records, False)),
            "capped": lambda: collecting_rarely(lambda: work(bootstrap, records, True)),
        }
        best = dict.fromkeys(contenders, 0.0)
        for _ in range(rounds):
            best = {name: max(best[name], run()) for name, run in contenders.items()}
        slow = poll_only_without_crc32c(bootstrap)
    bare = best["bare"]

    def rate(value: float) -> str:
        return f"{value / 1000:,.0f} k/s"

    beside = f"bare poll loop: {rate(bare)}"
    share = best["worker"] / bare
    return size, [
        Row("bare poll loop that counts, as many a poll as the worker", rate(bare)),
        Row("bare poll loop that counts, 500 a poll (the client's default)", rate(best["bare, 500 a poll"])),
        Row(
            "bare poll loop, garbage collected rarely, as `streamdp run` does",
            rate(best["bare, rare collections"]),
            f"{best['bare, rare collections'] / bare:.2f} of {beside}",
        ),
        Row("bare poll loop without the C `crc32c`", rate(slow), f"{slow / bare:.2f} of {beside}"),
        Row(
            "worker: decoded, learned with mu=1, committed",
            rate(best["worker"]),
            f"{share:.2f} of {beside}",
            "0.90",
            share >= 0.9,
        ),
        Row(
            "worker, 100,000 subjects under a cap: admitted as well",
            rate(best["capped"]),
            f"{best['capped'] / bare:.2f} of {beside}",
            "0.90",
            best["capped"] / bare >= 0.9,
        ),
    ]


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--write", action="store_true", help="replace the table in README.md")
    parser.add_argument("--records", type=int, default=RECORDS)
    options = parser.parse_args(arguments)
    about = machine()
    size, rows = measure(options.records, ROUNDS)
    text = f"{about} {options.records:,} records of {size} bytes.\n\n{table(rows)}"
    print(text)
    if options.write:
        write_between(README, BEGIN, END, text)


if __name__ == "__main__":
    main()
