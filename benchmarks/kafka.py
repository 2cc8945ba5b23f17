"""How fast a worker is beside a loop that only polls, with each client: `python -m benchmarks.kafka [--write]`.

It needs a JDK. Four partitions, JSON of 200 bytes, ten features, one consumer, a broker on the same machine, one run.
Contenders take turns and the best of the rounds counts, for other work on the machine can only add time. Rates are
given by the clock and by the processor time of this process; shares are those of the clock.

`python -m benchmarks.kafka groups [--write]` measures groups of one, two and four `streamdp run` with the same records,
and needs a PostgreSQL server, too. The rate of a group is that of all of its workers by the clock, from their
assignment, which the broker delays until all have joined, to the last commit.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

import confluent_kafka
import kafka
import numpy as np
from kafka import TopicPartition

from benchmarks.shared import pages
from benchmarks.speed import README, Row, machine, shown
from connectors.kafka import KafkaSource, connect
from servers.broker import Broker, create_topic
from servers.postgres import Postgres
from streamdp import GaussianDP, LDPASGDRegressor
from streamdp.cli.start import rare_collections
from streamdp.data.records import Shard
from streamdp.data.schema import Schema
from streamdp.runtime.protocols import Observer
from streamdp.runtime.worker import POLL_RECORDS, Worker
from streamdp.serving.publish import committed
from streamdp.store.snapshot import Counts, Part
from streamdp.store.store import Store

TOPIC, PARTITIONS = "records", 4
RECORDS, ROUNDS = 600_000, 3
BARE = "bare poll loop that counts, as many a poll as the worker, garbage collected rarely"
WORKER = "worker: decoded, learned with mu=1, committed"
CAPPED = "worker, 100,000 subjects under a cap: admitted as well"
FEATURES = [f"x{j}" for j in range(10)]
PAGE = Path(__file__).with_suffix(".md")
WORKERS, GROUP_PARTITIONS, GROUP_ROUNDS = (1, 2, 4), (8, 64), 2
TOGETHER = {"group.initial.rebalance.delay.ms": "1500"}
SCHEMA = Schema(dict.fromkeys(FEATURES, (0, 1)), "y", target_bounds=(0, 1))


def message(row: np.ndarray) -> bytes:
    """A record of 200 bytes."""
    fields: dict[str, Any] = dict(zip(FEATURES, row.tolist(), strict=True)) | {"y": round(float(row.mean()), 3)}
    text = json.dumps(fields)
    return json.dumps(fields | {"note": "x" * (200 - len(text) - 12)}).encode()


def fill(bootstrap: str, records: int, topic: str = TOPIC, partitions: int = PARTITIONS) -> int:
    """Produce the records, with 100,000 subjects as keys; returns the bytes of one."""
    create_topic(bootstrap, topic, partitions)
    values = [message(row) for row in np.random.default_rng(0).random((1000, len(FEATURES))).round(3)]
    producer = kafka.KafkaProducer(bootstrap_servers=bootstrap, linger_ms=50, batch_size=1 << 18)
    for i in range(records):
        producer.send(topic, values[i % len(values)], key=b"subject-%d" % (i % 100_000))
    producer.flush()
    producer.close()
    return round(sum(map(len, values)) / len(values))


class Rate(NamedTuple):
    """Records a second: by the clock, and of processor."""

    clock: float
    processor: float

    def __str__(self) -> str:
        return f"{self.clock / 1000:,.0f} k/s ({self.processor / 1000:,.0f} of processor)"


@contextmanager
def rate_of(records: int) -> Iterator[list[Rate]]:
    """The rate at which the body reads records: the list has it afterwards."""
    found: list[Rate] = []
    began, busy = time.perf_counter(), time.process_time()
    yield found
    found.append(Rate(records / (time.perf_counter() - began), records / (time.process_time() - busy)))


def poll_only(bootstrap: str, poll_records: int = POLL_RECORDS) -> Rate:
    """A loop of kafka-python that polls the whole topic and counts."""
    consumer = connect(bootstrap, None, {})
    partitions = [TopicPartition(TOPIC, number) for number in range(PARTITIONS)]
    consumer.assign(partitions)
    for partition in partitions:
        consumer.seek(partition, 0)
    total = sum(consumer.end_offsets(partitions).values())
    with rate_of(total) as found:
        polled = 0
        while polled < total:
            polled += sum(map(len, consumer.poll(timeout_ms=200, max_records=poll_records).values()))
    consumer.close()
    return found[0]


def consume_only(bootstrap: str) -> Rate:
    """The same with confluent-kafka."""
    settings = {"bootstrap.servers": bootstrap, "group.id": "none", "enable.auto.commit": False}
    consumer = confluent_kafka.Consumer(settings)
    consumer.assign([confluent_kafka.TopicPartition(TOPIC, number, 0) for number in range(PARTITIONS)])
    total = sum(consumer.get_watermark_offsets(confluent_kafka.TopicPartition(TOPIC, n))[1] for n in range(PARTITIONS))
    with rate_of(total) as found:
        polled = 0
        while polled < total:
            polled += len(consumer.consume(POLL_RECORDS, 0.2))
    consumer.close()
    return found[0]


def poll_only_without_crc32c(bootstrap: str) -> Rate:
    """The same in a process where the C extension cannot be imported."""
    code = "import sys; sys.modules['crc32c'] = None; from benchmarks.kafka import *; "
    code += f"print(*poll_only({bootstrap!r}))"
    out = subprocess.run([sys.executable, "-W", "ignore", "-c", code], stdout=subprocess.PIPE, check=True, text=True)
    return Rate(*map(float, out.stdout.split()))


def collecting_rarely(run: Callable[[], Rate]) -> Rate:
    """As `streamdp run` does: with rare collections of garbage."""
    with rare_collections():
        return run()


@dataclass
class Stopwatch(Observer):
    """From the first assignment, when polling can begin, to the last commit: by the clock, and of processor."""

    began: tuple[float, float] | None = None
    ended: tuple[float, float] = (0.0, 0.0)

    def committed(self, parts: dict[Shard, Part], seconds: float) -> None:
        self.ended = time.perf_counter(), time.process_time()

    def assigned(self, shards: dict[Shard, Counts]) -> None:
        if shards and self.began is None:
            self.began = time.perf_counter(), time.process_time()


def work(bootstrap: str, records: int, client: str, cap: bool) -> Rate:
    """A worker: polled, decoded, admitted, learned with noise, committed to SQLite."""
    watch = Stopwatch()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "job.db"
        with Store(path, "job", "f", cap=GaussianDP(100) if cap else None, shared=True) as store:
            source = KafkaSource(
                TOPIC, SCHEMA, bootstrap_servers=bootstrap, group=uuid.uuid4().hex, key_is_subject=True, client=client
            )
            worker = Worker(
                source,
                lambda: LDPASGDRegressor(features=FEATURES, budget="mu=1", ledger=store.ledger),
                store,
                observers=[watch],
            )
            done = worker.run(max_records=records)  # else the end would wait for more
    assert done == records, f"{done} of {records} records were committed"
    assert watch.began is not None
    return Rate(*(records / (ended - began) for began, ended in zip(watch.began, watch.ended, strict=True)))


def contenders(bootstrap: str, records: int) -> dict[tuple[str, str], Callable[[], Rate]]:
    """What is measured, by client."""
    found: dict[tuple[str, str], Callable[[], Rate]] = {}
    for client, bare in (("kafka-python", poll_only), ("confluent", consume_only)):
        found[client, BARE] = partial(collecting_rarely, partial(bare, bootstrap))
        found[client, WORKER] = partial(collecting_rarely, partial(work, bootstrap, records, client, False))
        found[client, CAPPED] = partial(collecting_rarely, partial(work, bootstrap, records, client, True))
    found["kafka-python", "bare poll loop, 500 a poll (the client's default)"] = lambda: poll_only(bootstrap, 500)
    found["kafka-python", "bare poll loop, garbage collected as usual"] = lambda: poll_only(bootstrap)
    return found


def measure(records: int, rounds: int) -> tuple[int, list[Row]]:
    with tempfile.TemporaryDirectory() as folder, Broker(folder) as broker:
        size = fill(broker.bootstrap, records)
        runs = contenders(broker.bootstrap, records)
        best: dict[tuple[str, str], Rate] = {}
        for _ in range(rounds):
            best |= {name: max(best.get(name, Rate(0, 0)), run()) for name, run in runs.items()}
        best["kafka-python", "bare poll loop without the C `crc32c`"] = poll_only_without_crc32c(broker.bootstrap)
    return size, [row(client, what, rate, best[client, BARE]) for (client, what), rate in best.items()]


def row(client: str, what: str, rate: Rate, bare: Rate) -> Row:
    """One line of the table."""
    share = rate.clock / bare.clock
    beside = "" if what == BARE else f"{share:.2f} of its bare poll loop"
    if what not in (WORKER, CAPPED):
        return Row(f"{client}: {what}", str(rate), beside)
    if client == "kafka-python":
        return Row(f"{client}: {what}", str(rate), beside, "0.90", share >= 0.9)
    return Row(f"{client}: {what}", str(rate), beside, "0.90; 400 k/s", share >= 0.9 and rate.clock >= 400_000)


def group_rate(bootstrap: str, records: int, server: str | None, cap: bool, partitions: int, workers: int) -> float:
    """Records a second of so many processes, with these partitions and a new store: on the server, or a file."""
    schema = {
        "features": {name: [0, 1] for name in FEATURES},
        "target": {"column": "y", "bounds": [0, 1]},
        "subject": "s",
    }
    source = {"type": "kafka", "topic": f"{TOPIC}-{partitions}", "brokers": bootstrap, "client": "confluent"}
    name, model = f"job_{uuid.uuid4().hex}", {"trust": "nobody", "budget": "mu=1"}
    with tempfile.TemporaryDirectory() as folder:
        store = f"{folder}/job.db" if server is None else f"{server}?schema={name}"
        job = {"job": name, "source": source, "schema": schema, "model": model, "store": store}
        path = Path(folder, "job.yaml")
        path.write_text(json.dumps(job | ({"cap": "mu=100"} if cap else {})))
        outputs = [path.with_name(f"{number}.jsonl") for number in range(workers)]
        processes, environment = [], os.environ | {"STREAMDP_SUBJECT_KEY": "0" * 64}
        for output in outputs:
            with output.open("w") as file:
                command = [sys.executable, "-m", "streamdp", "run", str(path), "--idle-seconds", "1"]
                processes.append(subprocess.Popen(command, stdout=file, env=environment))
        codes = [process.wait() for process in processes]
        assert not any(codes), f"workers ended with {codes}"
        learned = committed(store, name).snapshot.counts.learned
        lines = [line for output in outputs for line in output.read_text().splitlines()]
    assert learned == records, f"{learned} of {records} records were learned"
    events = [event for event in map(json.loads, lines) if event.get("shards")]
    began = min(event["time"] for event in events if event["event"] == "assigned")
    ended = max(event["time"] for event in events if event["event"] == "commit")
    return records / (datetime.fromisoformat(ended) - datetime.fromisoformat(began)).total_seconds()


def groups(records: int) -> str:
    """The rates of all rounds, as a table."""
    found: dict[tuple[str, str, str], dict[int, list[float]]] = {}
    with tempfile.TemporaryDirectory() as folder, Broker(folder, TOGETHER) as broker, Postgres(folder) as server:
        for partitions in GROUP_PARTITIONS:
            fill(broker.bootstrap, records, f"{TOPIC}-{partitions}", partitions)
        places, settings = {"SQLite": None, "PostgreSQL": server.url}, product((False, True), GROUP_PARTITIONS, WORKERS)
        for _, place, (cap, partitions, workers) in product(range(GROUP_ROUNDS), places, list(settings)):
            rate = group_rate(broker.bootstrap, records, places[place], cap, partitions, workers)
            line = found.setdefault((place, "yes" if cap else "no", str(partitions)), {})
            line.setdefault(workers, []).append(rate)
            print(place, cap, partitions, workers, f"{rate:,.0f}", flush=True)
    rows = [
        [*what, *(f"{max(r) / 1000:,.0f} ({min(r) / 1000:,.0f})" for r in line.values())]
        for what, line in found.items()
    ]
    return pages.table(["store", "cap", "partitions", *(f"{n} worker{'s' * (n > 1)}" for n in WORKERS)], rows)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", nargs="?", choices=["groups"], help="groups of workers, instead of one worker")
    parser.add_argument("--write", action="store_true", help=f"replace the table in README.md, or in {PAGE.name}")
    parser.add_argument("--records", type=int, default=RECORDS)
    options = parser.parse_args(arguments)
    about = machine()
    if options.what:
        text = f"{about} {options.records:,} records.\n\n{groups(options.records)}"
    else:
        size, rows = measure(options.records, ROUNDS)
        text = f"{about} {options.records:,} records of {size} bytes.\n\n{shown(rows)}"
    print(text)
    if options.write:
        pages.fill(PAGE if options.what else README, "kafka", text)


if __name__ == "__main__":
    main()
