"""One member of a consumer group that reads one topic: what `kafka.KafkaSource` needs of a client, by kafka-python.

`kafkafast` has the same by confluent-kafka. A new partition is held: it returns no messages until `read_from` says at
which offset to begin. Clients raise the errors of `kafka.errors`. Needs the extra `kafka`.
"""

import contextlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from operator import attrgetter
from typing import Any, NamedTuple

from kafka import ConsumerRebalanceListener, KafkaConsumer, TopicPartition
from kafka.errors import KafkaError, LogTruncationError, OffsetOutOfRangeError
from kafka.structs import OffsetAndMetadata

from connectors.kafkaclient import kafka_errors
from streamdp.errors import StreamDPError

_CLOSE_S = 5.0


OnChange = Callable[[set[int]], None]
"""Is called within `PythonGroup.poll` with the numbers of partitions; what it raises, `poll` raises."""


class Messages(NamedTuple):
    """What returns the parts of one message: its time is in milliseconds since 1970."""

    offset: Callable[[Any], Any]
    time: Callable[[Any], int]
    value: Callable[[Any], bytes | None]
    key: Callable[[Any], bytes | None]


class PythonGroup:
    """One member of a consumer group. One thread makes all calls.

    The consumer is connected by `kafkaclient.connect` with a group.
    """

    messages = Messages(*map(attrgetter, ("offset", "timestamp", "value", "key")))
    """Reads the messages of `poll`, in any thread."""

    def __init__(self, consumer: KafkaConsumer) -> None:
        self._consumer = consumer
        self._topic = ""
        self._held: set[TopicPartition] = set()

    def subscribe(self, topic: str, assigned: OnChange, revoked: OnChange, lost: OnChange) -> None:
        """Join the group, for a topic that exists.

        `assigned` is called with new partitions, which are held; `revoked` with partitions that go to other members
        when it returns; `lost` with partitions that may have other owners already.
        """
        self._topic = topic

        def hold(partitions: Iterable[TopicPartition]) -> None:
            for partition in partitions:
                self._consumer.seek(partition, 0)  # any position: without one, the client asks the broker for it
                self._consumer.pause(partition)
                self._held.add(partition)
            assigned(_numbers(partitions))

        def leave(notify: OnChange, partitions: Iterable[TopicPartition]) -> None:
            self._held.difference_update(partitions)
            notify(_numbers(partitions))

        self._consumer.subscribe([topic], listener=_Calls(hold, partial(leave, revoked), partial(leave, lost)))

    @property
    def state(self) -> str:
        """A `MemberState` of kafka-python. Any thread may ask."""
        return str(self._consumer.group_metadata().state)

    @property
    def partitions(self) -> set[int]:
        """The partitions that are assigned."""
        return _numbers(self._consumer.assignment())

    def read_from(self, partition: int, offset: int) -> None:
        """Begin a partition, or continue elsewhere; `offset` is that of the next message."""
        key = TopicPartition(self._topic, partition)
        self._consumer.seek(key, offset)
        self._held.discard(key)
        self._consumer.resume(key)

    def poll(self, max_records: int, timeout_s: float) -> Mapping[int, Sequence[Any]]:
        """Return the next messages by partition, at most `max_records`, and wait `timeout_s` for the first.

        Raises `kafka.errors.OffsetOutOfRangeError` with the offsets by `TopicPartition` if the broker does not have
        them.
        """
        self._finish_rejoin()
        try:
            found = self._consumer.poll(timeout_ms=int(1000 * timeout_s), max_records=max_records)
        except LogTruncationError as error:  # the broker has fewer messages than were read
            lost = {key: self.position(key.partition) for key in error.divergent_offsets}
            raise OffsetOutOfRangeError(lost) from None
        return {key.partition: messages for key, messages in found.items()}

    def _finish_rejoin(self) -> None:
        """Mark an unfinished rebalance as needed, so that the next poll continues it.

        A change of metadata starts a rebalance without this mark. If a poll ends between the answers to JoinGroup and
        SyncGroup, the client never reads the result, and the broker removes the member. The Java client had the same
        defect (KAFKA-9815) and the same remedy.
        """
        coordinator = self._consumer._coordinator  # noqa: SLF001 - the client has no public name for it
        if coordinator.rejoining:
            coordinator.request_rejoin()

    def position(self, partition: int) -> int | None:
        """Where a partition is read on: after markers and aborted records, too. None if that is not known."""
        assigned = self._consumer._subscription.assignment  # noqa: SLF001 - the public call may wait and raise
        return int(assigned[TopicPartition(self._topic, partition)].position.offset)

    def pause(self) -> None:
        """Let `poll` return no messages."""
        self._consumer.pause(*self._consumer.assignment())

    def resume(self) -> None:
        """End `pause`."""
        self._consumer.resume(*(set(self._consumer.assignment()) - self._held))

    def commit(self, offsets: Mapping[int, int]) -> None:
        """Tell the broker the next offsets by partition, without waiting for it; an error is ignored."""
        given = {TopicPartition(self._topic, p): OffsetAndMetadata(offset, "", -1) for p, offset in offsets.items()}
        # It is for readers of the lag only. Which errors are the client's, `kafka_errors` says.
        with contextlib.suppress(StreamDPError, AssertionError), kafka_errors(self._topic):
            self._consumer.commit_async(given)

    def close(self) -> None:
        """Leave the group. The listener may be called."""
        with contextlib.suppress(KafkaError):
            self._consumer.close(timeout_ms=int(1000 * _CLOSE_S))


def _numbers(partitions: Iterable[TopicPartition]) -> set[int]:
    return {key.partition for key in partitions}


@ConsumerRebalanceListener.register  # the client looks for its own class, which is not typed
class _Calls:
    """The three calls that the client makes in a rebalance."""

    def __init__(self, *calls: Callable[[Iterable[TopicPartition]], None]) -> None:
        self.on_partitions_assigned, self.on_partitions_revoked, self.on_partitions_lost = calls
