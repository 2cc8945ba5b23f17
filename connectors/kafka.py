"""A Kafka topic as a source of shards: one shard for each partition that the consumer group assigns to this worker.

The store holds the positions. The broker's committed offsets are for lag tools only, and auto-commit is off. A new
partition stays paused until `start` says at which offset to continue. Needs the extra `kafka`.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
from kafka import TopicPartition
from kafka.errors import KafkaError, OffsetOutOfRangeError, UnknownTopicOrPartitionError
from kafka.structs import MemberState

from connectors.jsonrows import encode_json
from connectors.kafkaclient import (
    OFFSETS_TIMEOUT_S,
    check_topic,
    connect,
    kafka_errors,
    leaderless,
    partitions_of,
    topic_id,
)
from connectors.kafkagroup import PythonGroup
from connectors.kafkakeys import NoSubject, framed_json, subjects_of
from connectors.topicwatch import TopicWatch
from streamdp.data.records import (
    Batch,
    DeadLetter,
    Encoder,
    Position,
    RebalanceListener,
    Shard,
    ShardedSource,
    Stall,
    Subject,
    by_position,
    check_poll,
)
from streamdp.errors import ShardUnavailableError, SourceError, SourceUnavailableError, check_choice, closed_on_error

if TYPE_CHECKING:
    from connectors.kafkafast import FastGroup

CLOSE_TIMEOUT_S = 0.5
"""How long the brokers may take to answer that this worker leaves, in seconds."""


class KafkaSource(ShardedSource):
    """The partitions of a topic that are assigned to this member of a consumer group; a `records.ShardedSource`.

    For `bootstrap_servers` and `options` see `kafkaclient.connect`. With `key_is_subject`, the message's key is the
    record's subject (see `kafkakeys`), and a message whose key names none is a dead letter; `framed_key` returns the
    subject of a key that has a frame. `keep_payload` puts the raw values of bad messages, which are personal data, into
    their dead letters. `decode` turns values into a batch, as `jsonrows.encode_json` does. For Avro there is
    `avrorows.AvroDecoder`, with its `subject` for keys. The `client` is `kafka-python`, or `confluent`, which is
    several times as fast (extra `kafka-fast`).

    A partition without a position in the store begins at its `earliest` or `latest` offset, by `start`. If the broker
    does not have the offset at which to continue, or the topic was deleted and created again, `on_missing` says what
    happens: `stop` with a `SourceError`, or continue at the `earliest` or `latest` offset of the broker.

    Raises the errors of `kafkaclient.connect`, `kafkaclient.partitions_of` and `kafkafast.FastGroup`, and `ConfigError`
    for another value of `client`, `start` or `on_missing`.

    A position is {"offset": the offset of the next message, "topic_id": the id of the topic}. The id distinguishes the
    topic from another one of the same name. Brokers before Kafka 2.8 give none.
    """

    def __init__(
        self,
        topic: str,
        encoder: Encoder,
        *,
        bootstrap_servers: str | list[str],
        group: str,
        key_is_subject: bool = False,
        framed_key: Callable[[bytes], Subject | NoSubject | None] = framed_json,
        start: str = "earliest",
        on_missing: str = "stop",
        keep_payload: bool = False,
        decode: Callable[..., Batch] = encode_json,
        client: str = "kafka-python",
        options: Mapping[str, object] | None = None,
    ) -> None:
        check_choice("client", client, ("kafka-python", "confluent"))
        check_choice("start", start, ("earliest", "latest"))
        check_choice("on_missing", on_missing, ("stop", "earliest", "latest"))
        self.topic = topic
        self._group_name = group
        self._encoder = encoder
        self._key_is_subject, self._framed_key = key_is_subject, framed_key
        self._start = start
        self._on_missing = on_missing
        self._keep_payload = keep_payload
        self._decode = decode
        self._closed = False
        self._new: list[Shard] = []
        self._read: dict[int, int] = {}
        self._ends: dict[tuple[int, int | None], int] = {}
        self._paused = False
        self._polls = 0
        self._watch = TopicWatch(topic, bootstrap_servers, options or {})
        self.lag = self._watch.lag
        """See `TopicWatch.lag`. It never waits for a broker."""
        self._group: PythonGroup | FastGroup
        self._consumer = connect(bootstrap_servers, None if client == "confluent" else group, options or {})
        with closed_on_error(self._consumer):
            partitions_of(self._consumer, topic)
            self._topic_id = self._watch.topic_id = topic_id(self._consumer, topic)
            if client == "confluent":
                from connectors.kafkafast import FastGroup

                self._group = FastGroup(bootstrap_servers, group, options or {})
            else:
                self._group = PythonGroup(self._consumer)

    def subscribe(self, listener: RebalanceListener) -> None:
        """Join the group."""
        self._watch.start()
        leave = partial(self._leave, listener.revoked), partial(self._leave, listener.lost)
        self._group.subscribe(self.topic, self._hold, *leave)

    def _hold(self, partitions: set[int]) -> None:
        self._new += [Shard(self.topic, number) for number in sorted(partitions)]

    def _leave(self, notify: Callable[[set[Shard]], None], partitions: set[int]) -> None:
        shards = {Shard(self.topic, number) for number in partitions}
        for number in partitions:
            self._read.pop(number, None)
        self._new = [shard for shard in self._new if shard not in shards]
        if shards and not self._closed:
            notify(shards)

    def assigned(self) -> list[Shard]:
        new, self._new = self._new, []
        return new

    def start(self, shard: Shard, position: Position | None) -> Position | None:
        """See `ShardedSource.start`. Raises `SourceError` for an offset that the broker does not have.

        If the offset is too large, `poll` raises it: with transactions, only the broker knows where a partition ends.
        """
        if shard.partition not in self._group.partitions:
            return None  # revoked in the meantime
        if shard.partition in leaderless(self._consumer, self.topic):
            raise ShardUnavailableError("no broker leads it at present")
        first, end = self._bounds(shard.partition)
        if position is None:
            offset: object = first if self._start == "earliest" else self._newest(shard, None, first, end)
        else:
            offset = position.get("offset")
        if not isinstance(offset, int):
            raise SourceError(f"{shard}: expected the position of a topic, got another one")
        before = None if position is None else position.get("topic_id")
        if before is not None and self._topic_id is not None and before != self._topic_id:
            offset = self._missing(shard, offset, first, end, "the topic was deleted and created again")
        elif offset < first:
            offset = self._missing(shard, offset, first, end)
        self._read_from(shard.partition, offset)
        return self._position(offset)

    def _position(self, offset: int) -> Position:
        return {"offset": offset} if self._topic_id is None else {"offset": offset, "topic_id": self._topic_id}

    def _bounds(self, partition: int) -> tuple[int, int]:
        """The first offset of the broker, and the one before which all can be read."""
        key, timeout_ms = TopicPartition(self.topic, partition), int(1000 * OFFSETS_TIMEOUT_S)
        with kafka_errors():
            try:
                first = self._consumer.beginning_offsets([key], timeout_ms)[key]
                end = self._consumer.end_offsets([key], timeout_ms)[key]
            except (KeyError, KafkaError) as error:
                if isinstance(error, KeyError) or error.retriable:
                    raise ShardUnavailableError("its offsets cannot be known at present") from None
                raise
        return first, end

    def _read_from(self, partition: int, offset: int) -> None:
        if partition in self._group.partitions:  # else it was taken away in the meantime
            self._read[partition] = offset
            self._group.read_from(partition, offset)

    def _missing(self, shard: Shard, offset: int, first: int, end: int, what: str = "") -> int:
        if self._on_missing == "stop":
            lost = f"{first - offset} records are lost" if offset < first else "the topic was truncated or recreated"
            what = what or lost
            raise SourceError(
                f"{shard}: the store continues at offset {offset}, but the broker has {first} to {end}: {what}."
                " Use --on-missing earliest to continue with the oldest record, or --on-missing latest to continue"
                " with new records"
            )
        return first if self._on_missing == "earliest" else self._newest(shard, offset, first, end)

    def _newest(self, shard: Shard, offset: int | None, first: int, end: int) -> int:
        """Where new records begin after `offset`: the end when this was first asked.

        After a rebalance, a position that no commit has stored yet is asked for again; records that came meanwhile
        must not be skipped.
        """
        return min(max(first, self._ends.setdefault((shard.partition, offset), end)), end)

    def poll(self, max_records: int, timeout_s: float) -> list[tuple[Shard, Sequence[object]]]:
        check_poll(max_records, timeout_s)
        self._polls += not self._paused
        with kafka_errors():
            try:
                found = self._group.poll(max_records, timeout_s)
            except UnknownTopicOrPartitionError:  # the group notices if it was deleted
                raise SourceUnavailableError(f"the broker does not know the topic {self.topic!r} at present") from None
            except OffsetOutOfRangeError as error:  # the broker deleted the next messages, or never had them
                self._check_topic()
                for key, offset in error.args[0].items():
                    shard = Shard(*key)
                    self._read_from(key.partition, self._missing(shard, offset, *self._bounds(key.partition)))
                return []
        place = self._group.messages.offset
        ends = {partition: (place(raw[0]), place(raw[-1])) for partition, raw in found.items()}
        if found:
            try:
                self._check_topic()
            except SourceUnavailableError:  # the next poll returns these messages again
                for partition, (first, _) in ends.items():
                    self._read_from(partition, first)
                raise
        self._read |= {partition: last + 1 for partition, (_, last) in ends.items()}
        return [(Shard(self.topic, partition), raw) for partition, raw in found.items()]

    def _check_topic(self) -> None:
        check_topic(
            self._consumer,
            self.topic,
            self._topic_id,
            "; start again with --on-missing earliest to continue with its oldest record, or --on-missing latest to"
            " continue with new records",
        )

    @property
    def settled(self) -> bool:
        return self._group.state == str(MemberState.STABLE)

    def awaited(self) -> str:
        if away := self._watch.away():
            return away
        group = f"the group {self._group_name!r}"
        match self._group.state:
            case MemberState.UNJOINED:
                return f"{group}: its broker does not let this worker in yet"
            case MemberState.STABLE:
                return f"a partition of {self.topic!r}: other members of {group} have all of them"
            case _:
                return f"the rebalance of {group}, which ends when all its members have answered"

    def stalls(self) -> list[Stall]:
        group = self._group
        begun = self._read.keys()
        return self._watch.stalls({n: group.position(n) if n in begun else None for n in group.partitions}, self._polls)

    def decode(self, shard: Shard, messages: Sequence[object]) -> Batch:
        read = self._group.messages
        offsets, times = (
            np.fromiter(map(part, messages), np.int64, len(messages)) for part in (read.offset, read.time)
        )
        values = list(map(read.value, messages))
        batch = self._decode(values, offsets, self._position(int(offsets[-1]) + 1), self._encoder)
        kept = np.searchsorted(offsets, batch.positions)
        batch = replace(batch, timestamps=times[kept])
        if self._key_is_subject:
            keys = subjects_of(list(map(read.key, messages)), self._framed_key)
            batch = _with_subjects(batch, keys if len(kept) == len(keys) else [keys[i] for i in kept.tolist()])
        if self._keep_payload and batch.dead:
            places = np.searchsorted(offsets, [letter.position for letter in batch.dead]).tolist()
            dead = [replace(d, payload=values[i]) for d, i in zip(batch.dead, places, strict=True)]
            batch = replace(batch, dead=dead)
        return batch

    def advance(self, shard: Shard, position: Position) -> Position:
        """See `ShardedSource.advance`. The client passes markers and aborted records without returning them."""
        if self._read.get(shard.partition) != position.get("offset"):
            return position
        offset = self._group.position(shard.partition)
        return self._position(position["offset"] if offset is None else offset)

    def pause(self) -> None:
        self._paused = True
        self._group.pause()

    def resume(self) -> None:
        """See `ShardedSource.resume`. Shards that wait for `start` stay paused."""
        self._paused = False
        self._group.resume()

    def commit(self, positions: Mapping[Shard, Position]) -> None:
        """See `ShardedSource.commit`. Lag tools read these offsets; an error is ignored."""
        self._group.commit({shard.partition: position["offset"] for shard, position in positions.items()})

    def close(self) -> None:
        self._closed = True
        self._watch.close()
        self._group.close()
        with contextlib.suppress(KafkaError):
            self._consumer.close(autocommit=False, timeout_ms=int(1000 * CLOSE_TIMEOUT_S))


_NO_KEY = NoSubject("missing", "key")


def _with_subjects(batch: Batch, keys: Sequence[Subject | NoSubject | None]) -> Batch:
    """The batch with these subjects; a record without a subject becomes a dead letter."""
    found = [_NO_KEY if key is None else key for key in keys]
    good = np.array([not isinstance(key, NoSubject) for key in found], dtype=bool)
    places = zip(batch.positions.tolist(), found, strict=True)
    lacking = [DeadLetter(place, *key) for place, key in places if isinstance(key, NoSubject)]
    subjects: list[Subject | None] = [key for key in found if not isinstance(key, NoSubject)]
    return replace(batch.take(good), subjects=subjects, dead=by_position([*batch.dead, *lacking]))
