"""Writing to Kafka topics; committed snapshots for other services."""

import contextlib
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from operator import attrgetter
from typing import Any

from kafka import KafkaConsumer, KafkaProducer, TopicPartition
from kafka.errors import KafkaError, TopicAlreadyExistsError

from connectors.kafkaclient import ANSWER_TIMEOUT_S, CONNECTION, connect, connect_admin, kafka_errors, partitions_of
from streamdp.data.records import Shard
from streamdp.errors import SourceUnavailableError, closed_on_error

_SENT_AT_ONCE = 10_000


class TopicWriter:
    """Writes messages to a topic; `flush` returns when the broker has acknowledged all of them.

    For `bootstrap_servers` see `kafkaclient.connect`; `options` are those of `kafka.KafkaProducer`. Raises the errors
    of `kafkaclient.connect` and `kafkaclient.partitions_of`.
    """

    def __init__(
        self, topic: str, bootstrap_servers: str | list[str], options: Mapping[str, object] | None = None
    ) -> None:
        self._topic = topic
        self._futures: list[Any] = []
        self._settings: dict[str, object] = (
            CONNECTION
            | {
                "bootstrap_servers": bootstrap_servers,
                "allow_auto_create_topics": False,
                "acks": "all",
                "linger_ms": 20,
                "max_block_ms": int(1000 * ANSWER_TIMEOUT_S),
                "delivery_timeout_ms": int(1000 * ANSWER_TIMEOUT_S),
                "request_timeout_ms": int(800 * ANSWER_TIMEOUT_S),
            }
            | dict(options or {})
        )
        # A producer waits long for a topic that does not exist, and then reports that no broker answers.
        shared = {name: value for name, value in (options or {}).items() if name in KafkaConsumer.DEFAULT_CONFIG}
        with contextlib.closing(connect(bootstrap_servers, None, shared)) as consumer:
            partitions_of(consumer, topic)
        self._made: KafkaProducer | None = None
        with self._producer():
            pass

    @contextlib.contextmanager
    def _producer(self) -> Iterator[KafkaProducer]:
        """The client, made anew after one got no answer: it may wait for one message for ever."""
        try:
            with kafka_errors():
                self._made = self._made or KafkaProducer(**self._settings)
                yield self._made
        except SourceUnavailableError:
            lost, self._made = self._made, None
            if lost is not None:
                with contextlib.suppress(KafkaError):  # do not wait for its messages, as `close` does
                    lost._sender.force_close()  # noqa: SLF001
                    lost.close(timeout=1)
            raise

    def send(
        self,
        key: bytes | None,
        value: bytes | None,
        headers: Sequence[tuple[str, bytes]] = (),
        *,
        timestamp_ms: int | None = None,
    ) -> None:
        """Queue a message: a key, a value, and names and values as `headers`; `timestamp_ms` None is the present."""
        with self._producer() as producer:
            future = producer.send(self._topic, value, key=key, headers=list(headers), timestamp_ms=timestamp_ms)
            self._futures.append(future)

    def flush(self) -> dict[int, int]:
        """Wait until the broker has all queued messages. Returns the offset after the last of them, by partition.

        Raises `SourceUnavailableError` if it does not acknowledge them; they are then no longer queued.
        """
        futures, self._futures = self._futures, []
        with self._producer() as producer:
            producer.flush(timeout=ANSWER_TIMEOUT_S)
            sent = [future.get(timeout=ANSWER_TIMEOUT_S) for future in futures]
        return {message.partition: message.offset + 1 for message in sorted(sent, key=attrgetter("offset"))}

    def close(self) -> None:
        """Close the connection. What `flush` has not confirmed may be lost."""
        with contextlib.suppress(KafkaError):
            if self._made is not None:
                self._made.close(timeout=ANSWER_TIMEOUT_S)


class SnapshotTopic(TopicWriter):
    """Writes committed snapshots for other services, one message for each shard of a job and claim of the shard.

    The topic should be compacted. `streamdp.load_snapshot` reads the snapshots and takes those of the last claim. The
    epoch of the claim is in the key, so that compaction cannot keep a late message of an earlier owner instead of a
    newer model. A new owner deletes the snapshot of the claim before. For `bootstrap_servers` and `options` see
    `TopicWriter`.
    """

    def __init__(
        self, topic: str, bootstrap_servers: str | list[str], options: Mapping[str, object] | None = None
    ) -> None:
        super().__init__(topic, bootstrap_servers, options)
        self._owned: set[tuple[str, Shard, int]] = set()

    def publish(self, job: str, texts: Mapping[tuple[Shard, int], str]) -> None:
        """Send a job's snapshots, JSON `texts` by shard and epoch, and wait until the broker has them.

        Raises `SourceUnavailableError` if the broker does not acknowledge them.
        """
        for (shard, epoch), text in texts.items():
            self.send(f"{job}/{shard}/{epoch}".encode(), text.encode())
        self.flush()
        new = {(job, shard, epoch) for shard, epoch in texts} - self._owned
        for _, shard, epoch in new:
            self.send(f"{job}/{shard}/{epoch - 1}".encode(), None)
        self.flush()
        self._owned |= new


def read_topic(bootstrap_servers: str | list[str], topic: str, options: Mapping[str, object]) -> Iterator[bytes]:
    """Read the values of a topic from its first message to its present end.

    For `bootstrap_servers` see `TopicWriter`; `options` are those of `kafka.KafkaConsumer`. Raises the errors of
    `kafkaclient.connect` and `kafkaclient.partitions_of`, and `SourceUnavailableError` if the broker sends nothing for
    `ANSWER_TIMEOUT_S`.
    """
    with contextlib.closing(TopicReader(topic, bootstrap_servers, options)) as reader:
        yield from (m.value for m in reader.read({}) if m.value is not None)


class TopicReader:
    """Reads a topic from given offsets to its present end, as often as it is asked to.

    For `bootstrap_servers` and `options` see `read_topic`. Raises the errors of `kafkaclient.connect` and
    `kafkaclient.partitions_of`.
    """

    def __init__(self, topic: str, bootstrap_servers: str | list[str], options: Mapping[str, object]) -> None:
        self._topic = topic
        self._consumer = connect(bootstrap_servers, None, options)
        with closed_on_error(self):
            numbers = sorted(partitions_of(self._consumer, topic))
            self._partitions = [TopicPartition(topic, number) for number in numbers]
            with kafka_errors():
                self._consumer.assign(self._partitions)

    def ends(self) -> dict[int, int]:
        """The present end of each partition."""
        with kafka_errors():
            return {key.partition: end for key, end in self._consumer.end_offsets(self._partitions).items()}

    def beginnings(self) -> dict[int, int]:
        """The first offset of each partition."""
        with kafka_errors():
            return {key.partition: first for key, first in self._consumer.beginning_offsets(self._partitions).items()}

    def some(self, most: int, *, latest: bool) -> tuple[int, Iterator[Any]]:
        """Count the offsets of the topic, and read about `most` messages, the `latest` or the earliest.

        There are as many of each partition. Raises as `read`.
        """
        share, firsts, ends = -(-most // len(self._partitions)), self.beginnings(), self.ends()
        size = sum(ends[partition] - first for partition, first in firsts.items())
        if latest:
            return size, self.read({partition: end - share for partition, end in ends.items()}, ends)
        return size, self.read(firsts, {number: min(firsts[number] + share, end) for number, end in ends.items()})

    def read(self, start: Mapping[int, int], ends: Mapping[int, int] | None = None) -> Iterator[Any]:
        """Read from the offsets in `start` by partition; other partitions from their beginning.

        The last offsets are those before `ends`. None: the present ends.

        Raises `SourceUnavailableError` if the broker sends nothing before `ends` for `ANSWER_TIMEOUT_S`.
        """
        ends, consumer = self.ends() if ends is None else ends, self._consumer
        with kafka_errors():
            for number, first in self.beginnings().items():
                key = TopicPartition(self._topic, number)
                consumer.seek(key, min(max(first, start.get(number, first)), ends[number]))
            deadline = time.monotonic() + ANSWER_TIMEOUT_S
            while any(consumer.position(key) < ends[key.partition] for key in self._partitions):
                for key, messages in consumer.poll(timeout_ms=1000).items():
                    if wanted := [message for message in messages if message.offset < ends[key.partition]]:
                        yield from wanted
                        deadline = time.monotonic() + ANSWER_TIMEOUT_S
                if time.monotonic() > deadline:
                    raise SourceUnavailableError("the Kafka broker stopped answering while the topic was read")

    def close(self) -> None:
        """Close the connection."""
        with contextlib.suppress(KafkaError):
            self._consumer.close()


def make_topic(
    topic: str,
    bootstrap_servers: str | list[str],
    partitions: int,
    options: Mapping[str, object] | None = None,
    **config: str,
) -> None:
    """Create a topic of some partitions, with the brokers' default replication, unless it exists.

    For `bootstrap_servers` see `TopicWriter`; `options` are those of `kafka.KafkaAdminClient`, and `config` has
    settings of the topic, such as `retention.ms`.
    """
    with kafka_errors(topic), contextlib.closing(connect_admin(bootstrap_servers, options or {})) as admin:
        settings = {"num_partitions": partitions, "replication_factor": -1, "configs": config}
        with contextlib.suppress(TopicAlreadyExistsError):
            admin.create_topics({topic: settings}, wait_for_metadata=True)


def send_all(writer: TopicWriter, messages: Iterable[tuple[bytes | None, bytes]]) -> int:
    """Send messages, keys and values, and wait for the broker after each batch; returns the number of messages."""
    sent = 0
    for sent, (key, value) in enumerate(messages, start=1):
        writer.send(key, value)
        if sent % _SENT_AT_ONCE == 0:
            writer.flush()
    writer.flush()
    return sent
