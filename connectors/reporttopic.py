"""Messages of a Kafka topic that one process reads whole, from positions that its own store keeps."""

import threading
from collections.abc import Mapping
from typing import NamedTuple

from kafka import TopicPartition
from kafka.errors import LogTruncationError, OffsetOutOfRangeError

from connectors.kafkaclient import check_topic, connect, kafka_errors, partitions_of, topic_id
from streamdp.data.records import Position
from streamdp.errors import SourceError, closed_on_error

_TOPIC = "topic"


class Polled(NamedTuple):
    """Messages, in the order of each partition; the value of one without a value is None.

    The topic is read on at `position` after them, and after all polled before: the id of the topic under `topic`, and
    the next offset of each partition under its number.
    """

    values: list[bytes | None]
    position: Position


class ReportTopic:
    """A topic, all partitions of which are read from a position on. No consumer group is used.

    `bootstrap_servers` are `host:port`, separated by commas; `options` are those of `kafka.KafkaConsumer`. An empty
    position is the oldest message that the broker has. Raises the errors of `kafkaclient.connect` and
    `kafkaclient.partitions_of`, and `SourceError` if the topic is not the one of the position.
    """

    def __init__(self, topic: str, bootstrap_servers: str, options: Mapping[str, object], position: Position) -> None:
        self._topic = topic
        self._lock = threading.Lock()  # the thread that polls may be left alone with its last poll
        self._position: Position = dict(position)
        self._consumer = connect(bootstrap_servers, None, options)
        with closed_on_error(self._consumer):
            found = topic_id(self._consumer, topic)
            if found is not None and self._position.setdefault(_TOPIC, found) != found:
                raise SourceError(f"the topic {topic!r} was deleted and created again; use another store")
            self._read: set[int] = set()
            self._assign()

    def _assign(self) -> None:
        """Begin with partitions that are new. After an error, the next call begins with them again."""
        found = partitions_of(self._consumer, self._topic) | self._read
        if found == self._read:
            return
        with kafka_errors(self._topic):
            self._consumer.assign([TopicPartition(self._topic, number) for number in sorted(found)])
            for number in found:
                partition = TopicPartition(self._topic, number)
                if (offset := self._position.get(str(number))) is None:
                    self._position[str(number)] = offset = self._consumer.beginning_offsets([partition])[partition]
                self._consumer.seek(partition, offset)
        self._read = found

    def poll(self, max_records: int, timeout_s: float) -> Polled:
        """Return the next messages, at most `max_records`; none if there are none within `timeout_s`.

        Raises the errors of `kafkaclient.check_topic`, and `SourceError` if the broker no longer has the next message;
        then another object reads on from the last position.
        """
        values: list[bytes | None] = []
        with self._lock, kafka_errors(self._topic):
            self._assign()
            try:
                polled = self._consumer.poll(timeout_ms=int(1000 * timeout_s), max_records=max_records)
            except (OffsetOutOfRangeError, LogTruncationError):
                lost = f"the broker no longer has the next messages of {self._topic!r}; use another store"
                raise SourceError(lost) from None
            if polled:
                check_topic(self._consumer, self._topic, self._position.get(_TOPIC), "; use another store")
            for partition in polled:
                values += [message.value for message in polled[partition]]
                self._position[str(partition.partition)] = self._consumer.position(partition)
        return Polled(values, dict(self._position))

    def close(self) -> None:
        """Close the connection, after the poll that is under way."""
        with self._lock:
            self._consumer.close()
