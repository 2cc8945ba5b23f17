"""How many records of Kafka topics lie after given positions. Needs the extra `kafka`."""

import contextlib
from collections import defaultdict
from collections.abc import Collection, Mapping
from typing import NamedTuple

from kafka import IsolationLevel, KafkaAdminClient, OffsetSpec, TopicPartition
from kafka.errors import KafkaError, UnknownTopicOrPartitionError, for_code

from connectors.kafkaclient import (
    METADATA_MS,
    NO_TOPIC,
    OFFSETS_TIMEOUT_S,
    connect_admin,
    explain_refusal,
    kafka_errors,
)
from streamdp.data.records import Position, Shard
from streamdp.errors import SourceError, SourceUnavailableError


class Bounds(NamedTuple):
    """Where a partition begins and ends."""

    first: int
    stable: int  # the offset before which all transactions have ended: a reader of committed records reads up to here
    end: int  # the offset after the last message

    def after(self, offset: int) -> int:
        """The number of messages at an offset and after it that were not deleted."""
        return max(0, self.end - max(self.first, offset))


def connect_asking(
    bootstrap_servers: str | list[str], options: Mapping[str, object], timeout_s: float
) -> KafkaAdminClient:
    """A client for `survey`, with the arguments of `kafkaclient.connect`; a broker may take `timeout_s` for an answer.

    Of the `options`, those that are not about connections are not used. For `bootstrap_servers` and the errors see
    `kafkaclient.connect`.
    """
    ours = {"request_timeout_ms": int(1000 * timeout_s), "metadata_max_age_ms": METADATA_MS}
    given = {name: value for name, value in options.items() if name in KafkaAdminClient.DEFAULT_CONFIG}
    try:
        with kafka_errors():
            return connect_admin(bootstrap_servers, given | ours)
    except SourceUnavailableError:
        explain_refusal(bootstrap_servers, options)
        raise


def survey(admin: KafkaAdminClient, topic: str, stable: bool = True) -> tuple[str | None, dict[int, Bounds | str]]:
    """Ask where the partitions of a topic begin and end; without `stable`, `Bounds.stable` is the end.

    Returns the topic's id, None of brokers before Kafka 2.8; and of each partition its bounds, or which broker has not
    answered, or an empty text if no broker leads it. Raises `UnknownTopicOrPartitionError` if there is no such topic,
    and other errors of `kafka.errors` if no broker answers.
    """
    (found,) = admin.describe_topics([topic])
    if found["error_code"]:
        raise for_code(found["error_code"])(topic)
    led: dict[int, list[TopicPartition]] = defaultdict(list)
    for one in found["partitions"]:
        led[one["leader_id"]].append(TopicPartition(topic, one["partition_index"]))
    answers: dict[int, Bounds | str] = {}
    for leader, keys in led.items():
        answers |= dict.fromkeys((key.partition for key in keys), f"broker {leader}" if leader >= 0 else "")
        if leader >= 0:
            with contextlib.suppress(KafkaError):
                answers |= _bounds(admin, keys, stable)
    return str(found["topic_id"]) if found.get("topic_id") else None, answers


def _bounds(admin: KafkaAdminClient, keys: Collection[TopicPartition], stable: bool) -> dict[int, Bounds]:
    """The bounds of partitions that one broker leads. The end is asked first, so that no transaction seems open."""
    latest = dict.fromkeys(keys, OffsetSpec.LATEST)
    ends = admin.list_partition_offsets(latest)
    stables = admin.list_partition_offsets(latest, IsolationLevel.READ_COMMITTED) if stable else ends
    firsts = admin.list_partition_offsets(dict.fromkeys(keys, OffsetSpec.EARLIEST))
    return {key.partition: Bounds(firsts[key].offset, stables[key].offset, ends[key].offset) for key in keys}


def unread(
    bootstrap_servers: str,
    options: Mapping[str, object],
    positions: Mapping[Shard, Position],
    topics: Collection[str] = (),
) -> dict[Shard, int | None]:
    """Count the messages after positions that were not deleted: also those of open transactions.

    `bootstrap_servers` and `options` are as for `connect_asking`, positions as for `TopicWatch.lag`. Partitions of
    `topics` without a position count from their beginning.

    Returns the number of messages of each partition; None where it is not known: no broker leads the partition, its
    broker does not answer, or the position is of another topic of the same name, which was deleted. Raises the errors
    of `kafkaclient.connect`, and `SourceError` if there is no such topic.
    """
    named = sorted({shard.topic for shard in positions} | set(topics))
    surveys: dict[str, tuple[str | None, dict[int, Bounds | str]]] = {}
    with contextlib.closing(connect_asking(bootstrap_servers, options, OFFSETS_TIMEOUT_S)) as admin:
        for topic in named:
            with kafka_errors(topic):
                try:
                    surveys[topic] = survey(admin, topic)
                except UnknownTopicOrPartitionError:
                    raise SourceError(NO_TOPIC.format(topic)) from None

    def count(shard: Shard, id_: str | None, answer: Bounds | str) -> int | None:
        position = positions.get(shard, {})
        if isinstance(answer, str) or position.get("topic_id") not in (None, id_):
            return None
        return answer.after(position.get("offset", 0))

    return {
        shard: count(shard, id_, answer)
        for topic, (id_, answers) in surveys.items()
        for partition, answer in sorted(answers.items())
        for shard in (Shard(topic, partition),)
    }
