"""A Kafka topic of one partition as a log: every reader finds the messages in the same order, at any time."""

import time
from collections.abc import Mapping
from contextlib import closing
from typing import Any

from kafka import KafkaAdminClient, TopicPartition
from kafka.errors import AuthorizationError, KafkaError, OffsetOutOfRangeError

from connectors.kafkaclient import ANSWER_TIMEOUT_S, check_topic, connect_admin, discard, kafka_errors, topic_id
from connectors.kafkasink import TopicReader, TopicWriter
from streamdp.errors import SourceError, SourceUnavailableError, closed_on_error

NO_RIGHT = "this login may not delete records; give it the right, or set the topic's retention"


class TopicLog(TopicReader):
    """Reads a log; a `streamdp.protocol.shuffle_wire.LogReader`.

    For `topic`, `bootstrap_servers` and `options` see `kafkasink.TopicReader`; `admin_options` are those of
    `kafka.KafkaAdminClient`, which deletes messages in `forget`. The attribute `id` is that of `kafkaclient.topic_id`,
    and `kept` says why messages that `forget` should have deleted are still there; None if they are not. Raises the
    errors of `kafkaclient.connect` and `kafkaclient.partitions_of`, and `SourceError` for a topic of several
    partitions.
    """

    def __init__(
        self,
        topic: str,
        bootstrap_servers: str | list[str],
        options: Mapping[str, object] | None = None,
        admin_options: Mapping[str, object] | None = None,
    ) -> None:
        self._servers = bootstrap_servers
        self._partition = TopicPartition(topic, 0)
        self._admin_options = dict(admin_options or {})
        self._admin: KafkaAdminClient | None = None
        self.kept: str | None = None
        self._waiting_since: float | None = None
        super().__init__(topic, bootstrap_servers, options or {})
        with closed_on_error(self):
            if self._partitions != [self._partition]:
                raise SourceError(f"the topic {topic!r} has {len(self._partitions)} partitions; it must have one")
            self.id = topic_id(self._consumer, topic)

    def end(self) -> int:
        """See `Log.end`."""
        return self.ends()[0]

    def seek(self, offset: int) -> int:
        """See `Log.seek`."""
        first, end = self.beginnings()[0], self.end()
        if offset > end:
            raise SourceError(f"the topic {self._partition.topic!r} ends at {end}, before {offset}: it was recreated")
        self._consumer.seek(self._partition, max(first, offset))
        return max(first, offset)

    def poll(self, timeout_s: float) -> list[Any]:
        """See `Log.poll`. Raises `SourceUnavailableError` if the broker does not answer for `ANSWER_TIMEOUT_S`."""
        with kafka_errors():
            try:
                found = self._consumer.poll(timeout_ms=int(1000 * timeout_s)).get(self._partition, [])
            except OffsetOutOfRangeError:  # the broker deleted the next messages
                self.seek(self._consumer.position(self._partition))
                return []
        if found:
            try:
                check_topic(self._consumer, self._partition.topic, self.id)
            except SourceUnavailableError:
                self._consumer.seek(self._partition, found[0].offset)  # so that these messages come again
                raise
            self._waiting_since = None
        elif self._waiting_since is None:
            self._waiting_since = time.monotonic()
        elif time.monotonic() - self._waiting_since > ANSWER_TIMEOUT_S:
            self.end()  # asks the broker: `poll` does not say that it is unavailable
            self._waiting_since = None
        return list(found)

    def forget(self, before: int) -> None:
        """See `Log.forget`. The next call repeats one that fails; without the right to it, no more are made."""
        if self.kept == NO_RIGHT:
            return
        try:
            if self._admin is None:
                self._admin = connect_admin(self._servers, self._admin_options)
            self._admin.delete_records({self._partition: before}, timeout_ms=int(1000 * ANSWER_TIMEOUT_S))
            self.kept = None
        except AuthorizationError:
            self.kept = NO_RIGHT
        except KafkaError as error:
            self.kept = f"the last deletion failed ({type(error).__name__}), and the next run repeats it"
            admin, self._admin = self._admin, None
            discard(admin)

    def close(self) -> None:
        """Close the connections."""
        super().close()
        discard(self._admin)


class TopicOutlet(TopicWriter):
    """Writes to a topic of one partition; a `streamdp.protocol.shuffle_wire.LogWriter`.

    For `bootstrap_servers` see `TopicWriter`; `options` are shared by `kafka.KafkaProducer` and `kafka.KafkaConsumer`.
    Raises the errors of `TopicLog` and `TopicWriter`.
    """

    def __init__(
        self, topic: str, bootstrap_servers: str | list[str], options: Mapping[str, object] | None = None
    ) -> None:
        with closing(TopicLog(topic, bootstrap_servers, options)) as log:
            self._end = log.end()
        super().__init__(topic, bootstrap_servers, options)

    def end(self) -> int:
        """See `Outlet.end`."""
        return self._end
