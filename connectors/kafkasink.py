"""Kafka topics to which workers write: dead letters, and committed snapshots for other services."""

from __future__ import annotations

import base64
import contextlib
import json
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from kafka import KafkaConsumer, KafkaProducer, TopicPartition
from kafka.errors import KafkaError, TopicAlreadyExistsError

from connectors.kafkaclient import (
    ANSWER_TIMEOUT_S,
    CONNECT_TIMEOUT_S,
    connect,
    connect_admin,
    kafka_errors,
    partitions_of,
)
from streamdp.data.records import DeadLetter, Shard
from streamdp.errors import SourceUnavailableError

MAX_PAYLOAD = 700_000
"""In bytes. In base64 this is less than the megabyte that brokers allow for a message."""


class TopicWriter:
    """Writes messages to a topic; `flush` returns when the broker has acknowledged all of them.

    Parameters
    ----------
    topic
        The topic's name.
    bootstrap_servers
        `host:port`, several of them separated by commas, or a list.
    options
        Other options of `kafka.KafkaProducer`.

    Raises the errors of `kafkaclient.connect` and `kafkaclient.partitions_of`.
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
        # A producer waits long for a topic that does not exist, and then reports that no broker answers.
        shared = {name: value for name, value in (options or {}).items() if name in KafkaConsumer.DEFAULT_CONFIG}
        with contextlib.closing(connect(bootstrap_servers, None, shared)) as consumer:
            partitions_of(consumer, topic)
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
        """Queue a message.

        Parameters
        ----------
        key, value
            None: without a key, or without a value.
        headers
            Names and values.
        timestamp_ms
            Milliseconds since 1970 (UTC); None: now.
        """
        with kafka_errors():
            future = self._producer.send(self._topic, value, key=key, headers=list(headers), timestamp_ms=timestamp_ms)
            self._futures.append(future)

    def flush(self) -> None:
        """Wait until the broker has all queued messages.

        Raises `SourceUnavailableError` if it does not acknowledge them; they are then no longer queued.
        """
        futures, self._futures = self._futures, []
        with kafka_errors():
            self._producer.flush(timeout=ANSWER_TIMEOUT_S)
            for future in futures:
                future.get(timeout=ANSWER_TIMEOUT_S)

    def close(self) -> None:
        """Send what is queued, and close the connection."""
        self._producer.close(timeout=ANSWER_TIMEOUT_S)


class DeadLetterTopic:
    """Writes dead letters as JSON: topic, partition, offset, reason, column, and the payload (base64) if there is one.

    A payload of more than `MAX_PAYLOAD` bytes is left out, as brokers refuse such messages by default; `payload_bytes`
    is its length.

    Parameters
    ----------
    topic, bootstrap_servers, options
        See `TopicWriter`.
    """

    def __init__(
        self, topic: str, bootstrap_servers: str | list[str], options: Mapping[str, Any] | None = None
    ) -> None:
        self._writer = TopicWriter(topic, bootstrap_servers, options)
        self._waiting: list[tuple[bytes, bytes]] = []

    def write(self, letters: Sequence[DeadLetter], shard: Shard) -> None:
        """Keep letters until `commit`.

        Parameters
        ----------
        letters
            Their positions are offsets.
        shard
            The shard of these offsets.
        """
        for letter in letters:
            place = {"topic": shard.topic, "partition": shard.partition, "offset": letter.position}
            entry: dict[str, Any] = place | {"reason": letter.reason, "column": letter.column}
            if letter.payload is not None and len(letter.payload) > MAX_PAYLOAD:
                entry["payload_bytes"] = len(letter.payload)
            elif letter.payload is not None:
                entry["payload"] = base64.b64encode(letter.payload).decode("ascii")
            self._waiting.append((f"{shard}/{letter.position}".encode(), json.dumps(entry).encode()))

    def commit(self) -> None:
        """Send the letters, and wait until the broker has them. It can be called again after an error."""
        for key, value in self._waiting:
            self._writer.send(key, value)
        self._writer.flush()
        self._waiting.clear()

    def close(self) -> None:
        """Close the connection."""
        self._writer.close()


class SnapshotTopic:
    """Writes committed snapshots for other services, one message for each shard of a job and claim of the shard.

    The topic should be compacted. `streamdp.load_snapshot` reads the snapshots and takes those of the last claim. The
    epoch of the claim is in the key, so that compaction cannot keep a late message of an earlier owner instead of a
    newer model. A new owner deletes the snapshot of the claim before.

    Parameters
    ----------
    topic, bootstrap_servers, options
        See `TopicWriter`.
    """

    def __init__(
        self, topic: str, bootstrap_servers: str | list[str], options: Mapping[str, Any] | None = None
    ) -> None:
        self._writer = TopicWriter(topic, bootstrap_servers, options)
        self._owned: set[tuple[str, Shard, int]] = set()

    def publish(self, job: str, texts: Mapping[tuple[Shard, int], str]) -> None:
        """Send snapshots, and wait until the broker has them.

        Parameters
        ----------
        job
            The job's name.
        texts
            The JSON text of each shard's snapshot, by shard and epoch.

        Raises `SourceUnavailableError` if the broker does not acknowledge them.
        """
        for (shard, epoch), text in texts.items():
            self._writer.send(f"{job}/{shard}/{epoch}".encode(), text.encode())
        self._writer.flush()
        new = {(job, shard, epoch) for shard, epoch in texts} - self._owned
        for _, shard, epoch in new:
            for old in (f"{job}/{shard}/{epoch - 1}", f"{job}/{shard}"):  # the second is of earlier versions
                self._writer.send(old.encode(), None)
        self._writer.flush()
        self._owned |= new

    def close(self) -> None:
        """Close the connection."""
        self._writer.close()


def read_topic(bootstrap_servers: str | list[str], topic: str, options: Mapping[str, Any]) -> Iterator[bytes]:
    """Read the values of a topic from its first message to its present end.

    Parameters
    ----------
    bootstrap_servers, topic
        See `TopicWriter`.
    options
        Other options of `kafka.KafkaConsumer`.

    Raises the errors of `kafkaclient.connect` and `kafkaclient.partitions_of`, and `SourceUnavailableError` if the
    broker sends nothing for `ANSWER_TIMEOUT_S`.
    """
    consumer = connect(bootstrap_servers, None, options)
    try:
        partitions = [TopicPartition(topic, number) for number in partitions_of(consumer, topic)]
        with kafka_errors():
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
                    raise SourceUnavailableError("the Kafka broker stopped answering while the topic was read")
    finally:
        with contextlib.suppress(KafkaError):
            consumer.close()


def make_topic(
    topic: str,
    bootstrap_servers: str | list[str],
    partitions: int,
    options: Mapping[str, Any] | None = None,
    **config: str,
) -> None:
    """Create a topic, with the brokers' default replication, unless it exists.

    Parameters
    ----------
    topic, bootstrap_servers
        See `TopicWriter`.
    partitions
        The number of partitions, at least 1.
    options
        Other options of `kafka.KafkaAdminClient`.
    config
        Settings of the topic, such as `retention.ms`.
    """
    with kafka_errors(topic), contextlib.closing(connect_admin(bootstrap_servers, options or {})) as admin:
        settings = {"num_partitions": partitions, "replication_factor": -1, "configs": config}
        with contextlib.suppress(TopicAlreadyExistsError):
            admin.create_topics({topic: settings}, wait_for_metadata=True)


def send_all(writer: TopicWriter, messages: Iterable[tuple[bytes | None, bytes]], batch: int = 10_000) -> int:
    """Send messages, and wait for the broker after each batch; returns the number of messages.

    Parameters
    ----------
    writer
        Writes to the topic.
    messages
        Keys and values.
    batch
        The number of messages between two waits, at least 1.
    """
    sent = 0
    for sent, (key, value) in enumerate(messages, start=1):
        writer.send(key, value)
        if sent % batch == 0:
            writer.flush()
    writer.flush()
    return sent
