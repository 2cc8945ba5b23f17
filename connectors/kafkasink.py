"""Kafka topics that workers write to: dead letters, and committed snapshots for other services to read."""

from __future__ import annotations

import base64
import contextlib
import json
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from kafka import KafkaAdminClient, KafkaConsumer, KafkaProducer, TopicPartition
from kafka.errors import InvalidTopicError, TopicAlreadyExistsError

from connectors.kafka import CONNECT_TIMEOUT_S, connect, kafka_errors
from streamdp.data.records import DeadLetter, Shard
from streamdp.errors import SourceError, SourceUnavailableError

ANSWER_TIMEOUT_S = 10.0
MAX_PAYLOAD = 700_000
"""Bytes, of which base64 makes less than the megabyte of a message."""


class TopicWriter:
    """Messages to one topic; `flush` returns when the broker has acknowledged all of them.

    `options` are those of `kafka.KafkaProducer`. Raises as `connectors.kafka.KafkaSource` does.
    """

    def __init__(
        self, topic: str, bootstrap_servers: str | list[str], options: Mapping[str, Any] | None = None
    ) -> None:
        self._topic = topic
        self._futures: list[Any] = []
        settings = {
            "bootstrap_timeout_ms": int(1000 * CONNECT_TIMEOUT_S),
            "allow_auto_create_topics": False,
            "acks": "all",
            "linger_ms": 20,
            "max_block_ms": int(1000 * ANSWER_TIMEOUT_S),
            "delivery_timeout_ms": int(1000 * ANSWER_TIMEOUT_S),
            "request_timeout_ms": int(800 * ANSWER_TIMEOUT_S),
        } | dict(options or {})
        # A producer would wait long for a topic that is not there, and take that for silence.
        shared = {name: value for name, value in (options or {}).items() if name in KafkaConsumer.DEFAULT_CONFIG}
        consumer = connect(bootstrap_servers, None, shared)
        try:
            with kafka_errors(), _names(topic):
                if not consumer.partitions_for_topic(topic):
                    raise SourceError(f"there is no topic {topic!r}, or we may not write to it; create it first")
        finally:
            consumer.close(autocommit=False)
        with kafka_errors():
            self._producer = KafkaProducer(**settings, bootstrap_servers=bootstrap_servers)

    def send(
        self,
        key: bytes | None,
        value: bytes | None,
        headers: Sequence[tuple[str, bytes]] = (),
        *,
        timestamp_ms: int | None = None,
    ) -> None:
        """Queue a message; its time is now, in milliseconds since 1970, where none is given."""
        with kafka_errors():
            future = self._producer.send(self._topic, value, key=key, headers=list(headers), timestamp_ms=timestamp_ms)
            self._futures.append(future)

    def flush(self) -> None:
        """Wait for the broker. Raises `SourceUnavailableError`, and what was queued is then forgotten."""
        futures, self._futures = self._futures, []
        with kafka_errors():
            self._producer.flush(timeout=ANSWER_TIMEOUT_S)
            for future in futures:
                future.get(timeout=ANSWER_TIMEOUT_S)

    def close(self) -> None:
        self._producer.close(timeout=ANSWER_TIMEOUT_S)


class DeadLetterTopic:
    """Dead letters as JSON: topic, partition, offset, reason, column; the payload (base64) where letters have it.

    A payload over `MAX_PAYLOAD` bytes, which brokers refuse by default, is left out: `payload_bytes` says how long.
    """

    def __init__(
        self, topic: str, bootstrap_servers: str | list[str], options: Mapping[str, Any] | None = None
    ) -> None:
        self._writer = TopicWriter(topic, bootstrap_servers, options)
        self._waiting: list[tuple[bytes, bytes]] = []

    def write(self, letters: Sequence[DeadLetter], shard: Shard) -> None:
        """Keep letters for `commit`."""
        for letter in letters:
            place = {"topic": shard.topic, "partition": shard.partition, "offset": letter.position}
            said: dict[str, Any] = place | {"reason": letter.reason, "column": letter.column}
            if letter.payload is not None and len(letter.payload) > MAX_PAYLOAD:
                said["payload_bytes"] = len(letter.payload)
            elif letter.payload is not None:
                said["payload"] = base64.b64encode(letter.payload).decode("ascii")
            self._waiting.append((f"{shard}/{letter.position}".encode(), json.dumps(said).encode()))

    def commit(self) -> None:
        """Send what was written; the broker has it when this returns. Can be repeated after an error."""
        for key, value in self._waiting:
            self._writer.send(key, value)
        self._writer.flush()
        self._waiting.clear()

    def close(self) -> None:
        self._writer.close()


class SnapshotTopic:
    """Committed snapshots for other services: the topic should be compacted, with one message for each shard of a job.

    `streamdp.load_snapshot` reads them back.
    """

    def __init__(
        self, topic: str, bootstrap_servers: str | list[str], options: Mapping[str, Any] | None = None
    ) -> None:
        self._writer = TopicWriter(topic, bootstrap_servers, options)

    def publish(self, job: str, texts: Mapping[Shard, str]) -> None:
        """The broker has them when this returns. Raises `SourceUnavailableError`."""
        for shard, text in texts.items():
            self._writer.send(f"{job}/{shard}".encode(), text.encode())
        self._writer.flush()

    def close(self) -> None:
        self._writer.close()


def read_topic(bootstrap_servers: str | list[str], topic: str, options: Mapping[str, Any]) -> Iterator[bytes]:
    """The values of a topic from its beginning to its present end."""
    consumer = connect(bootstrap_servers, None, dict(options))
    try:
        with kafka_errors():
            partitions = [TopicPartition(topic, number) for number in consumer.partitions_for_topic(topic) or ()]
            if not partitions:
                raise SourceError(f"there is no topic {topic!r}, or we may not read it")
            consumer.assign(partitions)
            ends = consumer.end_offsets(partitions)
            for partition, first in consumer.beginning_offsets(partitions).items():
                consumer.seek(partition, first)
            deadline = time.monotonic() + ANSWER_TIMEOUT_S
            while any(consumer.position(partition) < ends[partition] for partition in partitions):
                for messages in consumer.poll(timeout_ms=1000).values():
                    yield from (m.value for m in messages if m.value is not None)
                    deadline = time.monotonic() + ANSWER_TIMEOUT_S
                if time.monotonic() > deadline:
                    raise SourceUnavailableError("the Kafka broker went away while we read from it")
    finally:
        with contextlib.suppress(Exception):
            consumer.close(autocommit=False)


def make_topic(
    topic: str,
    bootstrap_servers: str | list[str],
    partitions: int,
    options: Mapping[str, Any] | None = None,
    **config: str,
) -> None:
    """Make a topic where there is none, replicated as the brokers do by default. `options`: of `KafkaAdminClient`."""
    admin = None
    try:
        with kafka_errors(), _names(topic), contextlib.suppress(TopicAlreadyExistsError):
            admin = KafkaAdminClient(
                bootstrap_servers=bootstrap_servers,
                bootstrap_timeout_ms=int(1000 * CONNECT_TIMEOUT_S),
                **dict(options or {}),
            )
            what = {"num_partitions": partitions, "replication_factor": -1, "configs": config}
            admin.create_topics({topic: what}, wait_for_metadata=True)
    finally:
        if admin is not None:
            admin.close()


@contextlib.contextmanager
def _names(topic: str) -> Iterator[None]:
    try:
        yield
    except InvalidTopicError:
        raise SourceError(f"no topic can have the name {topic!r}: letters, digits, dots, _ and - make one") from None


def send_all(writer: TopicWriter, messages: Iterable[tuple[bytes | None, bytes]], batch: int = 10_000) -> int:
    """Send messages and wait for the broker every `batch`; returns how many there were."""
    sent = 0
    for sent, (key, value) in enumerate(messages, start=1):
        writer.send(key, value)
        if sent % batch == 0:
            writer.flush()
    writer.flush()
    return sent
