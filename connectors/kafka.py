"""A Kafka topic as a source of shards: one for each partition that the consumer group gave this worker.

Positions come from the store, so the broker's committed offsets are for lag tools only and auto-commit is off. A new
partition is held back until `start` says where to go on. Bulk: a poll of thousands of messages becomes arrays, with no
Python object for a field. Needs the extra `kafka`.
"""

from __future__ import annotations

import contextlib
import socket
import ssl
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
from kafka import ConsumerRebalanceListener, KafkaConsumer, TopicPartition
from kafka.errors import (
    AuthorizationError,
    CorruptRecordError,
    KafkaConfigurationError,
    KafkaError,
    MessageSizeTooLargeError,
    OffsetOutOfRangeError,
    SaslAuthenticationFailedError,
    UnknownTopicOrPartitionError,
)
from kafka.structs import OffsetAndMetadata

from connectors.jsonrows import encode_json
from streamdp.data.records import (
    Batch,
    DeadLetter,
    Encoder,
    Position,
    RebalanceListener,
    Shard,
    Subject,
)
from streamdp.errors import ConfigError, SourceError, SourceUnavailableError, StreamDPError

OURS = {"enable_auto_commit", "auto_offset_reset", "group_id", "key_deserializer", "value_deserializer"}
"""Consumer options that exactly-once counting decides."""

PROTOCOLS = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")

CONNECT_TIMEOUT_S = 6.0


class KafkaSource:
    """The partitions of `topic` that this member of `group` was assigned; a `records.ShardedSource`.

    Parameters
    ----------
    encoder
        Turns the fields of messages into features and target.
    key_is_subject
        The message's key says whose record it is (then a message without one is a dead letter); otherwise the encoder
        finds the subject among the fields.
    budget_header
        A header that holds what the record may spend, for the encoder's column of that name.
    start
        Where a partition begins that the store knows nothing of: `earliest` or `latest`.
    on_missing
        What to do where the broker no longer has (or has not yet) the offset to go on from: `stop` with a
        `SourceError`, or go on at the `earliest` or `latest` that there is.
    decode
        Turns values into a batch, as `jsonrows.encode_json` does; for Avro there is `avrorows.AvroDecoder`.
    options
        Any other option of `kafka.KafkaConsumer`: SASL, TLS, client ids, fetch sizes.

    Raises `ConfigError` for options that are unknown or ours, `SourceError` where the broker refuses us (wrong
    password, certificate or rights), and `SourceUnavailableError` where none answers within 6 s.

    A position is {"offset": the offset that follows}.
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
        self._consumer = connect(bootstrap_servers, group, dict(options or {}))

    def subscribe(self, listener: RebalanceListener) -> None:
        """Join the group. Raises `SourceError` where there is no such topic."""
        if not self._partitions():
            self._consumer.close(timeout_ms=1000)
            raise SourceError(f"there is no topic {self.topic!r}, or we may not read it; create it first")
        self._listener = listener
        self._consumer.subscribe([self.topic], listener=_Listener(self))

    def _partitions(self) -> set[int]:
        with kafka_errors():
            return set(self._consumer.partitions_for_topic(self.topic) or ())

    def assigned(self) -> list[Shard]:
        """The shards that came since the last call; each waits for `start`."""
        new, self._new = self._new, []
        return new

    def start(self, shard: Shard, position: Position | None) -> Position | None:
        """Read the shard from `position`, or from the start where there is none; returns where it goes on.

        Raises `SourceError` for a position that the broker has not, and for what is no position of ours.
        """
        partition = TopicPartition(*shard)
        if partition not in self._consumer.assignment():
            return None  # gone again
        with kafka_errors():
            first = self._consumer.beginning_offsets([partition])[partition]
            end = self._consumer.end_offsets([partition])[partition]
        offset = (first if self._start == "earliest" else end) if position is None else position.get("offset")
        if not isinstance(offset, int):
            raise SourceError(f"{shard}: expected the position of a topic, got another one")
        if not first <= offset <= end:
            offset = self._missing(shard, offset, first, end)
        with contextlib.suppress(ValueError):  # unassigned in between
            self._consumer.seek(partition, offset)
            self._held.discard(partition)
            self._consumer.resume(partition)
        return {"offset": offset}

    def _missing(self, shard: Shard, offset: int, first: int, end: int) -> int:
        if self._on_missing == "stop":
            what = f"{first - offset} records are lost" if offset < first else "the topic was cut or made anew"
            raise SourceError(
                f"{shard}: the store goes on at offset {offset}, but the broker has {first} to {end}: {what}."
                " Say --on-missing earliest to go on with the oldest, or --on-missing latest to go on with new ones"
            )
        return first if self._on_missing == "earliest" else end

    def poll(self, max_records: int, timeout_s: float) -> list[tuple[Shard, list[Any]]]:
        """At most `max_records` messages; none after `timeout_s` seconds without any, or while held."""
        with kafka_errors():
            try:
                found = self._consumer.poll(timeout_ms=int(1000 * timeout_s), max_records=max_records)
            except OffsetOutOfRangeError:  # what we were about to read is gone
                for partition in set(self._consumer.assignment()) - self._held:
                    self.start(Shard(*partition), {"offset": self._consumer.position(partition)})
                return []
        return [(Shard(*partition), messages) for partition, messages in found.items()]

    def decode(self, shard: Shard, messages: list[Any]) -> Batch:
        """The records of one shard's messages."""
        offsets = np.array([m.offset for m in messages], dtype=np.int64)
        position = {"offset": messages[-1].offset + 1}
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

    def pause(self) -> None:
        """Let `poll` keep us in the group and bring nothing."""
        self._consumer.pause(*self._consumer.assignment())

    def resume(self) -> None:
        """Go on after `pause`; what waits for `start` goes on waiting."""
        self._consumer.resume(*(set(self._consumer.assignment()) - self._held))

    def commit(self, positions: Mapping[Shard, Position]) -> None:
        """Tell the broker, for lag tools. It does not matter whether that succeeds."""
        offsets = {TopicPartition(*s): OffsetAndMetadata(p["offset"], "", -1) for s, p in positions.items()}
        with contextlib.suppress(KafkaError, AssertionError):
            self._consumer.commit_async(offsets)

    def lag(self, positions: Mapping[Shard, Position]) -> dict[Shard, int]:
        """How many records wait after these positions, by what the broker said last; shards it said nothing of are
        left out.
        """
        ours = self._consumer.assignment()
        ends = {s: self._consumer.highwater(TopicPartition(*s)) for s in positions if TopicPartition(*s) in ours}
        return {shard: max(0, end - positions[shard]["offset"]) for shard, end in ends.items() if end is not None}

    def close(self) -> None:
        """Leave the group."""
        self._listener = None
        with contextlib.suppress(KafkaError):
            self._consumer.close(autocommit=False, timeout_ms=5000)


class _Listener(ConsumerRebalanceListener):
    """Holds new partitions until `start`, and tells who must know."""

    def __init__(self, source: KafkaSource) -> None:
        self._source = source

    def on_partitions_assigned(self, assigned: Iterable[TopicPartition]) -> None:
        source = self._source
        for partition in assigned:
            source._consumer.seek(partition, 0)  # any position, so that the client asks for none
            source._consumer.pause(partition)
            source._held.add(partition)
            source._new.append(Shard(*partition))

    def on_partitions_revoked(self, revoked: Iterable[TopicPartition]) -> None:
        self._gone(revoked, "revoked")

    def on_partitions_lost(self, lost: Iterable[TopicPartition]) -> None:
        self._gone(lost, "lost")

    def _gone(self, partitions: Iterable[TopicPartition], how: str) -> None:
        source = self._source
        shards = {Shard(*partition) for partition in partitions}
        source._held -= {TopicPartition(*shard) for shard in shards}
        source._new = [shard for shard in source._new if shard not in shards]
        if source._listener is not None and shards:
            getattr(source._listener, how)(shards)


def connect(bootstrap_servers: str | list[str], group: str | None, options: dict[str, Any]) -> KafkaConsumer:
    """A consumer with our defaults. Raises as `KafkaSource` says."""
    if taken := OURS.intersection(options):
        raise ConfigError(f"the consumer option {sorted(taken)[0]!r} is set by streamdp and cannot be given")
    protocol = options.get("security_protocol", "PLAINTEXT")
    if protocol not in PROTOCOLS:  # the client would take it for PLAINTEXT
        raise ConfigError(f"security_protocol: expected one of {', '.join(PROTOCOLS)}")
    defaults = {
        "bootstrap_timeout_ms": int(1000 * CONNECT_TIMEOUT_S),
        "reconnect_backoff_max_ms": 2000,
        "allow_auto_create_topics": False,
        "max_partition_fetch_bytes": 4 << 20,
    }
    settings = (
        defaults
        | options
        | {
            "bootstrap_servers": bootstrap_servers,
            "group_id": group,
            "enable_auto_commit": False,
            "auto_offset_reset": "none",
        }
    )
    try:
        with kafka_errors():
            return KafkaConsumer(**settings)
    except SourceUnavailableError:
        explain_refusal(bootstrap_servers, options)
        raise


def explain_refusal(bootstrap_servers: str | list[str], options: Mapping[str, Any]) -> None:
    """Raise `SourceError` where a broker listens but lets us not in: the client itself reports that as silence."""
    protocol = options.get("security_protocol", "PLAINTEXT")
    servers = bootstrap_servers.split(",") if isinstance(bootstrap_servers, str) else bootstrap_servers
    for server in servers:
        host, _, port = server.strip().rpartition(":")
        try:
            plain = socket.create_connection((host, int(port)), timeout=2.0)
        except (OSError, ValueError):
            continue  # nobody there
        with plain:
            if protocol in ("SSL", "SASL_SSL") and "ssl_context" not in options:
                _shake_hands(plain, server, host, options)
        if protocol.startswith("SASL"):
            raise SourceError(
                f"{server} answers but does not let us in: see sasl_mechanism, user and password (security_protocol"
                f" {protocol})"
            )
        raise SourceUnavailableError(
            f"no answer from Kafka: {server} listens but does not answer in {protocol}; see security_protocol"
        )


def _shake_hands(plain: socket.socket, server: str, host: str, options: Mapping[str, Any]) -> None:
    try:
        context = ssl.create_default_context(cafile=options.get("ssl_cafile"))
    except OSError as error:
        raise SourceError(f"cannot read the certificates in ssl_cafile: {error.strerror or 'not PEM'}") from None
    context.check_hostname = options.get("ssl_check_hostname", True)
    try:
        with context.wrap_socket(plain, server_hostname=host):
            pass
    except ssl.SSLError as error:
        reason = getattr(error, "verify_message", "") or error.reason
        raise SourceError(f"{server}: TLS failed ({reason}); see ssl_cafile and the broker's certificate") from None
    except OSError as error:
        raise SourceUnavailableError(
            f"{server}: TLS failed ({error.strerror or 'no answer'}); see security_protocol, if it is no TLS port"
        ) from None


@contextlib.contextmanager
def kafka_errors() -> Any:
    """Turn the client's errors into ours. None of its messages is repeated that may hold a setting's value."""
    try:
        yield
    except KafkaConfigurationError as error:
        raise ConfigError(f"Kafka: {error}") from None
    except (SaslAuthenticationFailedError, AuthorizationError) as error:
        raise SourceError(
            f"the Kafka broker refuses us ({type(error).__name__}): see user, password and rights"
        ) from None
    except (CorruptRecordError, MessageSizeTooLargeError) as error:  # the same again would end the same
        raise SourceError(f"Kafka: {type(error).__name__}; see the broker's log and its limits") from None
    except UnknownTopicOrPartitionError:
        raise SourceError("the topic was deleted") from None
    except KafkaError as error:
        if isinstance(error.__cause__, StreamDPError):  # ours, on its way through the client from a rebalance
            raise error.__cause__ from None
        raise SourceUnavailableError(f"no answer from the Kafka broker ({type(error).__name__})") from error


def _with_subjects(batch: Batch, keys: list[Subject | None]) -> Batch:
    """The batch with its subjects; a record without one goes to the dead letters."""
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
        dead=sorted([*batch.dead, *lacking], key=lambda letter: letter.position),
    )


def _header(headers: Iterable[tuple[str, bytes]], name: str | None) -> str | None:
    for key, value in headers:
        if key == name and value is not None:
            return value.decode("utf-8", "replace")
    return None
