"""How many records of Kafka topics lie after given positions. Needs the extra `kafka`."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from kafka import TopicPartition

from connectors.kafkaclient import connect, kafka_errors, partitions_of
from streamdp.data.records import Position, Shard


def unread(
    bootstrap_servers: str,
    options: Mapping[str, Any],
    positions: Mapping[Shard, Position],
    topics: Collection[str] = (),
) -> dict[Shard, int]:
    """Count the records that can be read after positions: not those of open transactions.

    Parameters
    ----------
    bootstrap_servers
        `host:port[,host:port]`.
    options
        Options of `kafka.KafkaConsumer`.
    positions
        The position of each shard: the next offset under `offset`.
    topics
        Topics that may have no position yet. A partition without a position counts from its beginning.

    Returns the number of records of each partition. Raises the errors of `kafkaclient.connect` and of
    `kafkaclient.partitions_of`.
    """
    consumer = connect(bootstrap_servers, None, options)
    try:
        named = {shard.topic for shard in positions} | set(topics)
        shards = {Shard(topic, number) for topic in named for number in partitions_of(consumer, topic)}
        with kafka_errors():
            ends = consumer.end_offsets([TopicPartition(*shard) for shard in shards])
            new = [TopicPartition(*shard) for shard in shards - set(positions)]
            begun = {Shard(*key): first for key, first in consumer.beginning_offsets(new).items()} if new else {}
    finally:
        consumer.close(autocommit=False)
    begun |= {shard: position["offset"] for shard, position in positions.items()}
    return {shard: max(0, ends[TopicPartition(*shard)] - begun[shard]) for shard in sorted(shards)}
