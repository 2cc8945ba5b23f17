"""Workers on a real broker: what is counted, who may commit, what happens to bad messages and to bad connections."""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import kafka
import pytest

from connectors.kafka import KafkaSource
from servers.broker import Broker
from streamdp import LDPASGDRegressor, PureDP
from streamdp.records import Shard
from streamdp.schema import Schema
from streamdp.store import Counts, Store
from streamdp.worker import Worker

CAP = PureDP(3.0)
SCHEMA = Schema({"a": (0, 1), "b": (-1, 1)}, "y", target_bounds=(0, 1))


def fields(i: int) -> dict[str, Any]:
    return {"a": (i % 7) / 7, "b": (i % 3) - 1.0, "y": i % 5 / 5, "extra": "x"}


def produce(bootstrap: str, topic: str, messages: list[tuple[str | None, Any]], partitions: int = 1) -> None:
    """JSON values, or bytes as they are; keys are spread over the partitions by Kafka's own rule."""
    producer = kafka.KafkaProducer(bootstrap_servers=bootstrap, linger_ms=20, max_request_size=20_000_000)
    for key, value in messages:
        data = value if isinstance(value, bytes) or value is None else json.dumps(value).encode()
        producer.send(topic, data, key=None if key is None else key.encode())
    producer.flush()
    producer.close()


def source(bootstrap: str, topic: str, **options: Any) -> KafkaSource:
    given = {"group": f"g-{topic}", "key_is_subject": True, "options": {"session_timeout_ms": 6000}} | options
    return KafkaSource(topic, SCHEMA, bootstrap_servers=bootstrap, **given)


def model(store: Store) -> LDPASGDRegressor:
    return LDPASGDRegressor(features=["a", "b"], budget="eps=1", ledger=store.ledger)


def work(path: Path | str, source: KafkaSource, **options: Any) -> int:
    with Store(path, "job", "f", cap=CAP, shared=True) as store:
        return Worker(source, lambda: model(store), store, **options).run(idle_seconds=2.0)


def summed(path: Path | str) -> Counts:
    found = [snapshot.counts for snapshot in Store.snapshots(path, "job")]
    return Counts(*(sum(getattr(c, name) for c in found) for name in ("learned", "refused", "dead")))


def test_every_record_counts_once_over_restarts(broker: Broker, make_topic: Callable[..., str], tmp_path: Path) -> None:
    topic = make_topic(4)
    produce(broker.bootstrap, topic, [(f"s{i % 500}", fields(i)) for i in range(1000)])
    path = tmp_path / "job.db"
    assert work(path, source(broker.bootstrap, topic), commit_records=100) == 1000
    assert summed(path) == Counts(1000, 0, 0)
    produce(broker.bootstrap, topic, [(f"s{i % 500}", fields(i)) for i in range(1000)])
    assert work(path, source(broker.bootstrap, topic), commit_records=100) == 1000
    assert summed(path) == Counts(1500, 500, 0)  # each subject has 3, and 4 records
    shards = {snapshot.shard: snapshot.position for snapshot in Store.snapshots(path)}
    assert set(shards) == {Shard(topic, i) for i in range(4)}
    assert sum(position["offset"] for position in shards.values()) == 2000
