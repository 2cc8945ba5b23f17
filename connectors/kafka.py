"""A Kafka topic as a source of shards: one shard for each partition that the consumer group assigns to this worker.

The store holds the positions. The broker's committed offsets are for lag tools only, and auto-commit is off. A new
partition stays paused until `start` says at which offset to continue. Needs the extra `kafka`.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
from kafka import ConsumerRebalanceListener, TopicPartition
from kafka.errors import KafkaError, OffsetOutOfRangeError
from kafka.structs import MemberState, OffsetAndMetadata

from connectors.jsonrows import encode_json
from connectors.kafkaclient import connect, kafka_errors, partitions_of, topic_id
from streamdp.data.records import (
    Batch,
    DeadLetter,
    Encoder,
    Position,
    RebalanceListener,
    Shard,
    Subject,
)
from streamdp.errors import ConfigError, SourceError, SourceUnavailableError

LAG_TIMEOUT_S = 0.5

_OnPartitions = Callable[[Iterable[TopicPartition]], None]


class KafkaSource:
    """The partitions of a topic that are assigned to this member of a consumer group; a `records.ShardedSource`.

    Parameters
    ----------
    topic
        The topic's name.
    encoder
        Turns the fields of messages into features and target.
    bootstrap_servers
        `host:port`, several of them separated by commas, or a list.
    group
        The consumer group.
    key_is_subject
        True: the message's key is the record's subject, and a message without a key is a dead letter. False: the
        encoder finds the subject among the fields.
    budget_header
        The header that holds the record's budget, for the encoder's budget column.
    start
        Where to begin a partition without a position in the store: `earliest` or `latest`.
    on_missing
        If the broker does not have the offset at which to continue, or the topic was deleted and created again: `stop`
        with a `SourceError`, or continue at the `earliest` or `latest` offset of the broker.
    keep_payload
        Put the raw values of bad messages into their dead letters. They are personal data.
    decode
        Turns values into a batch, as `jsonrows.encode_json` does; for Avro there is `avrorows.AvroDecoder`.
    options
        Other options of `kafka.KafkaConsumer`: SASL, TLS, client ids, fetch sizes.

    Raises the errors of `kafkaclient.connect`, and `ConfigError` for another value of `start` or `on_missing`.

    A position is {"offset": the offset of the next message, "topic_id": the id of the topic}. The brokers give each
    topic an id, so that another topic of the same name is recognised. Brokers before Kafka 2.8 do not, and positions of
    earlier versions have none.
    """

    def __init__(
        self,
        topic: str,
        encoder: Encoder,
        *,
        bootstrap_servers: str | list[str],
        group: str,
        key_is_subject: bool = False,
        budget_header: str | None = None,
        start: str = "earliest",
        on_missing: str = "stop",
        keep_payload: bool = False,
        decode: Callable[..., Batch] = encode_json,
        options: Mapping[str, Any] | None = None,
    ) -> None:
        if start not in ("earliest", "latest") or on_missing not in ("stop", "earliest", "latest"):
            raise ConfigError("expected start earliest or latest, and on_missing stop, earliest or latest")
        self.topic = topic
        self._group = group
        self._encoder = encoder
        self._key_is_subject = key_is_subject
        self._budget_header = budget_header
        self._budget_column = None if budget_header is None else getattr(encoder, "budget", None)
        self._start = start
        self._on_missing = on_missing
        self._keep_payload = keep_payload
        self._decode = decode
        self._listener: RebalanceListener | None = None
        self._new: list[Shard] = []
        self._held: set[TopicPartition] = set()
        self._read: dict[TopicPartition, int] = {}
        self._rebalancing = False
        self._topic_id: str | None = None
        self._consumer = connect(bootstrap_servers, group, options or {})

    def subscribe(self, listener: RebalanceListener) -> None:
        """Join the group.

        Parameters
        ----------
        listener
            Is told which shards are revoked or lost.

        Raises `SourceError` if there is no such topic, and `SourceUnavailableError` if no broker answers; then it may
        be called again.
        """
        partitions_of(self._consumer, self.topic)
        self._topic_id = topic_id(self._consumer, self.topic)
        self._listener = listener
        self._consumer.subscribe([self.topic], listener=_Listener(self._hold, self._revoked, self._lost))

    def _hold(self, partitions: Iterable[TopicPartition]) -> None:
        """Pause new partitions until `start`."""
        for partition in partitions:
            self._consumer.seek(partition, 0)  # any position: without one, the client asks the broker for it
            self._consumer.pause(partition)
            self._held.add(partition)
            self._new.append(Shard(*partition))

    def _revoked(self, partitions: Iterable[TopicPartition]) -> None:
        if (shards := self._forget(partitions)) and self._listener is not None:
            self._rebalancing = True
            try:
                self._listener.revoked(shards)
            finally:
                self._rebalancing = False

    def _lost(self, partitions: Iterable[TopicPartition]) -> None:
        if (shards := self._forget(partitions)) and self._listener is not None:
            self._listener.lost(shards)

    def _forget(self, partitions: Iterable[TopicPartition]) -> set[Shard]:
        shards = {Shard(*partition) for partition in partitions}
        for shard in shards:
            self._held.discard(TopicPartition(*shard))
            self._read.pop(TopicPartition(*shard), None)
        self._new = [shard for shard in self._new if shard not in shards]
        return shards

    def assigned(self) -> list[Shard]:
        """See `ShardedSource.assigned`."""
        new, self._new = self._new, []
        return new

    def start(self, shard: Shard, position: Position | None) -> Position | None:
        """See `ShardedSource.start`. Raises `SourceError` for an offset that the broker does not have.

        If the offset is too large, `poll` raises it: with transactions, only the broker knows where a partition ends.
        """
        partition = TopicPartition(*shard)
        if partition not in self._consumer.assignment():
            return None  # revoked in the meantime
        first, end = self._bounds(partition)
        offset = (first if self._start == "earliest" else end) if position is None else position.get("offset")
        if not isinstance(offset, int):
            raise SourceError(f"{shard}: expected the position of a topic, got another one")
        before = None if position is None else position.get("topic_id")
        if before is not None and self._topic_id is not None and before != self._topic_id:
            offset = self._missing(shard, offset, first, end, "the topic was deleted and created again")
        elif offset < first:
            offset = self._missing(shard, offset, first, end)
        self._read_from(partition, offset)
        return self._position(offset)

    def _position(self, offset: int) -> Position:
        return {"offset": offset} if self._topic_id is None else {"offset": offset, "topic_id": self._topic_id}

    def _bounds(self, partition: TopicPartition) -> tuple[int, int]:
        """The first offset of the broker, and the one before which all can be read."""
        with kafka_errors():
            first = self._consumer.beginning_offsets([partition])[partition]
            end = self._consumer.end_offsets([partition])[partition]
        return first, end

    def _read_from(self, partition: TopicPartition, offset: int) -> None:
        with contextlib.suppress(ValueError):  # revoked in the meantime
            self._consumer.seek(partition, offset)
            self._read[partition] = offset
            self._held.discard(partition)
            self._consumer.resume(partition)

    def _missing(self, shard: Shard, offset: int, first: int, end: int, what: str = "") -> int:
        if self._on_missing == "stop":
            lost = f"{first - offset} records are lost" if offset < first else "the topic was truncated or recreated"
            what = what or lost
            raise SourceError(
                f"{shard}: the store continues at offset {offset}, but the broker has {first} to {end}: {what}."
                " Use --on-missing earliest to continue with the oldest record, or --on-missing latest to continue"
                " with new records"
            )
        return first if self._on_missing == "earliest" else end

    def poll(self, max_records: int, timeout_s: float) -> list[tuple[Shard, list[Any]]]:
        """See `ShardedSource.poll`."""
        with kafka_errors():
            self._finish_rejoin()
            try:
                found = self._consumer.poll(timeout_ms=int(1000 * timeout_s), max_records=max_records)
            except OffsetOutOfRangeError as error:  # the broker deleted the next messages, or never had them
                self._check_topic()
                for partition, offset in error.args[0].items():
                    self._read_from(partition, self._missing(Shard(*partition), offset, *self._bounds(partition)))
                return []
        if found:
            try:
                self._check_topic()
            except SourceUnavailableError:  # the next poll returns these messages again
                for partition, messages in found.items():
                    self._read_from(partition, messages[0].offset)
                raise
        self._read |= {partition: messages[-1].offset + 1 for partition, messages in found.items()}
        return [(Shard(*partition), messages) for partition, messages in found.items()]

    def _check_topic(self) -> None:
        """Raise `SourceError` if what was polled may be of another topic of the same name.

        The client fetches by name and does not notice it. Ids are never used again, so all that was fetched before the
        answer is of the topic with this id.
        """
        now = self._topic_id and topic_id(self._consumer, self.topic)
        if now is None and self._topic_id is not None:
            raise SourceUnavailableError(f"the broker does not know the topic {self.topic!r} at present")
        if now != self._topic_id:
            raise SourceError(
                f"the topic {self.topic!r} was deleted and created again while it was read; start again with"
                " --on-missing earliest to continue with its oldest record, or --on-missing latest to continue with"
                " new records"
            )

    def _finish_rejoin(self) -> None:
        """Mark an unfinished rebalance as needed, so that the next poll continues it.

        A change of metadata starts a rebalance without this mark. If a poll ends between the answers to JoinGroup and
        SyncGroup, the client never reads the result, and the broker removes the member. The Java client had the same
        defect (KAFKA-9815) and the same remedy.
        """
        coordinator = self._consumer._coordinator  # noqa: SLF001 - the client has no public name for it
        if coordinator.rejoining:
            coordinator.request_rejoin()

    @property
    def settled(self) -> bool:
        """See `ShardedSource.settled`."""
        return self._consumer.group_metadata().state is MemberState.STABLE

    def awaited(self) -> str:
        """See `ShardedSource.awaited`."""
        group = f"the group {self._group!r}"
        match self._consumer.group_metadata().state:
            case MemberState.UNJOINED:
                return f"{group}: its broker does not let this worker in yet"
            case MemberState.STABLE:
                return f"a partition of {self.topic!r}: other members of {group} have all of them"
            case _:
                return f"the rebalance of {group}, which ends when all its members have answered"

    def decode(self, shard: Shard, messages: list[Any]) -> Batch:
        """See `ShardedSource.decode`."""
        offsets = np.array([m.offset for m in messages], dtype=np.int64)
        position = self._position(messages[-1].offset + 1)
        given: dict[str, list[str | None]] = {}
        if self._budget_column is not None:
            given[self._budget_column] = [_header(m.headers, self._budget_header) for m in messages]
        batch = self._decode([m.value for m in messages], offsets, position, self._encoder, given)
        kept = np.searchsorted(offsets, batch.positions)
        times = np.array([m.timestamp for m in messages], dtype=np.int64)
        batch = replace(batch, timestamps=times[kept])
        if self._key_is_subject:
            batch = _with_subjects(batch, [messages[i].key for i in kept.tolist()])
        if self._keep_payload and batch.dead:
            places = np.searchsorted(offsets, [letter.position for letter in batch.dead]).tolist()
            dead = [replace(d, payload=messages[i].value) for d, i in zip(batch.dead, places, strict=True)]
            batch = replace(batch, dead=dead)
        return batch

    def advance(self, shard: Shard, position: Position) -> Position:
        """See `ShardedSource.advance`. The client passes markers and aborted records without returning them."""
        partition = TopicPartition(*shard)
        if self._read.get(partition) != position.get("offset"):
            return position
        state = self._consumer._subscription.assignment[partition]  # noqa: SLF001 - the public call may wait and raise
        return self._position(state.position.offset)

    def pause(self) -> None:
        """See `ShardedSource.pause`."""
        self._consumer.pause(*self._consumer.assignment())

    def resume(self) -> None:
        """See `ShardedSource.resume`. Shards that wait for `start` stay paused."""
        self._consumer.resume(*(set(self._consumer.assignment()) - self._held))

    def commit(self, positions: Mapping[Shard, Position]) -> None:
        """See `ShardedSource.commit`. Lag tools read these offsets; an error is ignored."""
        offsets = {TopicPartition(*s): OffsetAndMetadata(p["offset"], "", -1) for s, p in positions.items()}
        with contextlib.suppress(KafkaError, AssertionError):
            self._consumer.commit_async(offsets)

    def lag(self, positions: Mapping[Shard, Position]) -> dict[Shard, int]:
        """The number of offsets after these positions that can be read: not those of open transactions.

        Parameters
        ----------
        positions
            The position of each shard.

        Returns no entry for a shard of another worker; none at all within a rebalance, or if the broker does not answer
        within `LAG_TIMEOUT_S`.
        """
        ours = [TopicPartition(*shard) for shard in positions if TopicPartition(*shard) in self._read]
        if self._rebalancing or not ours:
            return {}
        ends: dict[TopicPartition, int] = {}
        with contextlib.suppress(KafkaError):
            ends = self._consumer.end_offsets(ours, timeout_ms=int(1000 * LAG_TIMEOUT_S))
        return {Shard(*p): max(0, end - positions[Shard(*p)]["offset"]) for p, end in ends.items()}

    def close(self) -> None:
        """See `ShardedSource.close`."""
        self._listener = None
        with contextlib.suppress(KafkaError):
            self._consumer.close(timeout_ms=5000)


@ConsumerRebalanceListener.register  # the client looks for its own class, which is not typed
class _Listener:
    """The three calls that the client makes in a rebalance."""

    def __init__(self, assigned: _OnPartitions, revoked: _OnPartitions, lost: _OnPartitions) -> None:
        self.on_partitions_assigned = assigned
        self.on_partitions_revoked = revoked
        self.on_partitions_lost = lost


def _with_subjects(batch: Batch, keys: list[Subject | None]) -> Batch:
    """The batch with these subjects; a record without a subject becomes a dead letter."""
    if all(keys):
        return replace(batch, subjects=keys)
    good = np.array([bool(key) for key in keys])
    lacking = [DeadLetter(int(place), "missing", "key") for place in batch.positions[~good]]
    return replace(
        batch,
        X=batch.X[good],
        y=batch.y[good],
        positions=batch.positions[good],
        subjects=[key for key in keys if key],
        budgets=None if batch.budgets is None else batch.budgets[good],
        timestamps=None if batch.timestamps is None else batch.timestamps[good],
        times=None if batch.times is None else batch.times[good],
        dead=sorted([*batch.dead, *lacking], key=lambda letter: letter.position),
    )


def _header(headers: Iterable[tuple[str, bytes]], name: str | None) -> str | None:
    """The value of the first header of this name."""
    for key, value in headers:
        if key == name and value is not None:
            return value.decode("utf-8", "replace")
    return None
