"""A Kafka topic of one partition as a log: its order is the same for all who read it, whenever they do."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Mapping
from typing import Any

from kafka import KafkaAdminClient, TopicPartition
from kafka.errors import KafkaError, OffsetOutOfRangeError

from connectors.kafka import CONNECT_TIMEOUT_S, connect, kafka_errors
from connectors.kafkasink import ANSWER_TIMEOUT_S, TopicWriter
from streamdp.errors import SourceError


class TopicLog:
    """To read. `options` are those of `kafka.KafkaConsumer`, `admin_options` those for deleting what was read.

    Raises as `connectors.kafka.KafkaSource` does, and `SourceError` for a topic of several partitions.
    """

    def __init__(
        self,
        topic: str,
        bootstrap_servers: str | list[str],
        options: Mapping[str, Any] | None = None,
        admin_options: Mapping[str, Any] | None = None,
    ) -> None:
        self._servers = bootstrap_servers
        self._partition = TopicPartition(topic, 0)
        self._admin_options = dict(admin_options or {})
        self._admin: KafkaAdminClient | None = None
        self._may_forget = True
        self._waiting_since: float | None = None
        self._consumer = connect(bootstrap_servers, None, dict(options or {}))
        try:
            with kafka_errors():
                partitions = self._consumer.partitions_for_topic(topic)
                if not partitions:
                    raise SourceError(f"there is no topic {topic!r}, or we may not read it; create it first")
                if partitions != {0}:
                    raise SourceError(f"the topic {topic!r} has {len(partitions)} partitions; it must have one")
                self._consumer.assign([self._partition])
        except BaseException:
            self.close()
            raise

    def _first(self) -> int:
        with kafka_errors():
            first: int = self._consumer.beginning_offsets([self._partition])[self._partition]
        return first

    def end(self) -> int:
        """The offset that the next message will have."""
        with kafka_errors():
            end: int = self._consumer.end_offsets([self._partition])[self._partition]
        return end

    def seek(self, offset: int) -> int:
        """Go on at `offset`, or at the oldest that there is; returns which. Raises `SourceError` past the end."""
        first, end = self._first(), self.end()
        if offset > end:
            raise SourceError(f"the topic {self._partition.topic!r} ends at {end}, before {offset}: it was made anew")
        self._consumer.seek(self._partition, max(first, offset))
        return max(first, offset)

    def poll(self, timeout_s: float) -> list[Any]:
        """The next messages, with `offset`, `key`, `value` and `timestamp`; none after `timeout_s` seconds without any.

        Raises `SourceUnavailableError` where messages wait that the broker does not give.
        """
        with kafka_errors():
            try:
                found = self._consumer.poll(timeout_ms=int(1000 * timeout_s)).get(self._partition, [])
            except OffsetOutOfRangeError:  # deleted meanwhile
                self.seek(self._consumer.position(self._partition))
                return []
        if found:
            self._waiting_since = None
        elif self._waiting_since is None:
            self._waiting_since = time.monotonic()
        elif time.monotonic() - self._waiting_since > ANSWER_TIMEOUT_S:
            self.end()  # the client reports a broker that is away as silence
            self._waiting_since = None
        return list(found)

    def forget(self, before: int) -> None:
        """Delete the messages before this offset; where we may not, once is asked and no more."""
        if not self._may_forget:
            return
        try:
            if self._admin is None:
                self._admin = KafkaAdminClient(
                    bootstrap_servers=self._servers,
                    bootstrap_timeout_ms=int(1000 * CONNECT_TIMEOUT_S),
                    **self._admin_options,
                )
            self._admin.delete_records({self._partition: before}, timeout_ms=int(1000 * ANSWER_TIMEOUT_S))
        except KafkaError:
            self._may_forget = False

    @property
    def forgets(self) -> bool:
        """Whether the broker lets us delete what was read."""
        return self._may_forget

    def close(self) -> None:
        for client in (self._consumer, self._admin):
            with contextlib.suppress(KafkaError):
                if client is not None:
                    client.close()


class TopicOutlet(TopicWriter):
    """To write, to a topic of one partition."""

    def __init__(
        self, topic: str, bootstrap_servers: str | list[str], options: Mapping[str, Any] | None = None
    ) -> None:
        log = TopicLog(topic, bootstrap_servers, options)
        try:
            self._end = log.end()
        finally:
            log.close()
        super().__init__(topic, bootstrap_servers, options)

    def end(self) -> int:
        """The offset that the next message would have had when this was opened."""
        return self._end
