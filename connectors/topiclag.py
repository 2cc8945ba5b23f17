"""How many records of Kafka topics lie after given positions. Needs the extra `kafka`."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from kafka import TopicPartition

from connectors.kafkaclient import (
    OFFSETS_TIMEOUT_S,
    connect,
    kafka_errors,
    known_offsets,
    leaderless,
    partitions_of,
    topic_id,
)
from streamdp.data.records import Position, Shard


def unread(
    bootstrap_servers: str,
    options: Mapping[str, Any],
    positions: Mapping[Shard, Position],
    topics: Collection[str] = (),
) -> dict[Shard, int | None]:
    """Count the records that can be read after positions: not those of open transactions, nor those that were deleted.

    Parameters
    ----------
    bootstrap_servers
        `host:port[,host:port]`.
    options
        Options of `kafka.KafkaConsumer`.
    positions
        The position of each shard: the next offset under `offset`, and the topic's id under `topic_id`.
    topics
        Topics that may have no position yet. A partition without a position counts from its beginning.

    Returns the number of records of each partition; None where it is not known: no broker leads the partition, or the
    position is of another topic of the same name, which was deleted. Raises the errors of `kafkaclient.connect` and of
    `kafkaclient.partitions_of`.
    """
    consumer = connect(bootstrap_servers, None, options)
    try:
        named = {shard.topic for shard in positions} | set(topics)
        shards = {Shard(topic, number) for topic in named for number in partitions_of(consumer, topic)}
        away = {Shard(topic, number) for topic in named for number in leaderless(consumer, topic)}
        ids = {topic: topic_id(consumer, topic) for topic in named}
        asked = [TopicPartition(*shard) for shard in shards - away]
        with kafka_errors():
            firsts, ends = (
                known_offsets(ask, asked, OFFSETS_TIMEOUT_S)
                for ask in (consumer.beginning_offsets, consumer.end_offsets)
            )
    finally:
        consumer.close(autocommit=False)

    def count(shard: Shard) -> int | None:
        key, position = TopicPartition(*shard), positions.get(shard, {})
        if key not in firsts or key not in ends or position.get("topic_id") not in (None, ids[shard.topic]):
            return None
        return max(0, int(ends[key] - max(firsts[key], position.get("offset", 0))))

    return {shard: count(shard) for shard in sorted(shards)}
