"""One member of a consumer group by confluent-kafka, which reads several times as fast. Needs the extra `kafka-fast`.

It takes part in the group and reads messages. All questions about topics and offsets remain kafka-python's.
"""

import contextlib
import logging
from collections.abc import Mapping, Sequence
from functools import partial
from itertools import groupby
from typing import Any, cast

import kafka
from kafka.errors import KafkaConnectionError, OffsetOutOfRangeError, for_code
from kafka.structs import MemberState

from connectors.kafkaclient import METADATA_MS, RECONNECT_MS, SESSION_MS, explain_refusal
from connectors.kafkagroup import Messages, OnChange
from streamdp.errors import ConfigError, needing

with needing("the client confluent", "kafka-fast"):
    from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicPartition

NAMES = {
    "fetch_max_wait_ms": "fetch.wait.max.ms",
    "receive_buffer_bytes": "socket.receive.buffer.bytes",
    "send_buffer_bytes": "socket.send.buffer.bytes",
    "sasl_plain_username": "sasl.username",
    "sasl_plain_password": "sasl.password",
    "sasl_kerberos_service_name": "sasl.kerberos.service.name",
    "ssl_cafile": "ssl.ca.location",
    "ssl_certfile": "ssl.certificate.location",
    "ssl_keyfile": "ssl.key.location",
    "ssl_password": "ssl.key.password",
    "ssl_crlfile": "ssl.crl.location",
    "ssl_ciphers": "ssl.cipher.suites",
}
"""Options of kafka-python that librdkafka knows under another name."""

SAME = {
    *("check_crcs", "client_id", "client_rack", "connections_max_idle_ms", "fetch_max_bytes", "fetch_min_bytes"),
    *("group_instance_id", "heartbeat_interval_ms", "isolation_level", "max_partition_fetch_bytes"),
    *("max_poll_interval_ms", "metadata_max_age_ms", "receive_message_max_bytes", "reconnect_backoff_max_ms"),
    *("reconnect_backoff_ms", "retry_backoff_ms", "sasl_mechanism", "security_protocol", "session_timeout_ms"),
}
"""Options with the same name, but for dots."""

UNUSED = {"bootstrap_timeout_ms", "request_timeout_ms", "api_version", "ssl_check_hostname"}
"""Options that only kafka-python's connection uses, or that are treated apart."""

_QUEUE_FULL_MS = 20
_LONGEST_SENT = 1_000_000
"""The longest message in bytes that the client sends, if nothing else is set."""

log = logging.getLogger("kafka.confluent")  # below the logger of kafka-python, for which users have settings


class Codes:
    """Errors of librdkafka's own. The names that the client has for them begin with an underscore."""

    END = -191
    GONE = -140
    EXPELLED = -147
    LOGIN = -169
    DOWN = -187


def fast_settings(bootstrap_servers: str | list[str], group: str, options: Mapping[str, object]) -> dict[str, object]:
    """The settings of librdkafka for options of `kafka.KafkaConsumer`; `bootstrap_servers`, `group`: see `kafkaclient`.

    Raises `ConfigError` for an option that librdkafka does not have.
    """
    if unknown := set(options).difference(NAMES, SAME, UNUSED):
        raise ConfigError(
            f"the client confluent has no option {sorted(unknown)[0]!r}; leave it out, or use the client kafka-python"
        )
    given = {NAMES.get(name, name.replace("_", ".")): v for name, v in options.items() if name not in UNUSED}
    if not options.get("ssl_check_hostname", True):
        given["ssl.endpoint.identification.algorithm"] = "none"
    if isinstance(fetched := options.get("fetch_max_bytes"), int) and fetched < _LONGEST_SENT:
        given["message.max.bytes"] = fetched  # the client demands it, although a consumer sends no messages
    servers = bootstrap_servers if isinstance(bootstrap_servers, str) else ",".join(bootstrap_servers)
    defaults = {
        "check.crcs": True,
        "fetch.queue.backoff.ms": _QUEUE_FULL_MS,  # its 1000 ms let a fast reader wait for the next fetch
        "isolation.level": "read_committed",
        "max.partition.fetch.bytes": 4 << 20,
        "reconnect.backoff.max.ms": RECONNECT_MS,
        "session.timeout.ms": SESSION_MS,
        "topic.metadata.refresh.interval.ms": METADATA_MS,
    }
    return defaults | given | {
        "bootstrap.servers": servers,
        "group.id": group,
        "allow.auto.create.topics": False,
        "auto.offset.reset": "error",
        "enable.auto.commit": False,
        "enable.auto.offset.store": False,
        "enable.partition.eof": True,
        "partition.assignment.strategy": "range,roundrobin",  # as kafka-python: both may be in one group
    }  # fmt: skip


class FastGroup:
    """As `kafkagroup.PythonGroup`, by confluent-kafka, with the settings of `fast_settings`.

    A broker was reached with the same bootstrap_servers, group and options, which shows what is wrong with them in
    words. Raises `ConfigError` if librdkafka does not accept the options.
    """

    messages = Messages(Message.offset, lambda m: m.timestamp()[1], Message.value, Message.key)

    def __init__(self, bootstrap_servers: str | list[str], group: str, options: Mapping[str, object]) -> None:
        settings = fast_settings(bootstrap_servers, group, options)
        self._explain = partial(explain_refusal, bootstrap_servers, options)
        self._topic = ""
        self.partitions: set[int] = set()
        self._next: dict[int, int] = {}
        self._gone: dict[int, int] = {}
        self._error: KafkaError | None = None
        self._moved = self._told = self._joined = self._restart = self._paused = False
        try:
            self._consumer = Consumer(settings | {"error_cb": self._failed}, logger=log)
        except (KafkaException, TypeError, ValueError):  # their text may show a value
            raise ConfigError(
                f"the client confluent does not accept a value of source.options: one of {', '.join(sorted(options))}"
            ) from None

    def _failed(self, error: KafkaError) -> None:
        """Note an error that does not belong to a message; librdkafka recovers from all others by itself."""
        if error.fatal() or error.code() in (Codes.DOWN, Codes.LOGIN):
            self._error = error

    def subscribe(self, topic: str, assigned: OnChange, revoked: OnChange, lost: OnChange) -> None:
        """See `PythonGroup.subscribe`."""
        self._topic = topic

        def hold(consumer: Consumer, partitions: list[TopicPartition]) -> None:
            self._moved = self._told = True
            self.partitions = {key.partition for key in partitions}
            consumer.assign([])  # `read_from` adds them
            assigned(set(self.partitions))

        def leave(notify: OnChange, _: Consumer, partitions: list[TopicPartition]) -> None:
            self._moved, self._told = True, False
            self._next.clear()
            self._gone.clear()
            self.partitions.clear()  # all: no cooperative assignor is used
            notify({key.partition for key in partitions})

        self._consumer.subscribe(
            [topic], on_assign=hold, on_revoke=partial(leave, revoked), on_lost=partial(leave, lost)
        )

    @property
    def state(self) -> str:
        """See `PythonGroup.state`."""
        if self._told:
            return str(MemberState.STABLE)
        return str(MemberState.REBALANCING if self._joined else MemberState.UNJOINED)

    def read_from(self, partition: int, offset: int) -> None:
        """See `PythonGroup.read_from`. It takes effect in the next poll."""
        self._next[partition] = offset
        self._gone.pop(partition, None)
        self._restart = True

    def _assign(self) -> None:
        """Let librdkafka read exactly what `read_from` has begun.

        A seek is not enough, because librdkafka stops a partition whose offset the broker does not have, and cannot
        seek it. A partition that is held is not assigned at all: only a logical offset would be valid in every topic,
        and the late answer to the question for it moves a partition that was sought in the meantime.
        """
        self._restart = False
        self._consumer.assign(
            [TopicPartition(self._topic, n, at) for n, at in self._next.items() if n not in self._gone]
        )
        (self.pause if self._paused else self.resume)()

    def poll(self, max_records: int, timeout_s: float) -> Mapping[int, Sequence[Any]]:
        """See `PythonGroup.poll`."""
        self._raise_noted()
        self._moved = False
        try:
            if self._restart:
                self._assign()
            found = self._consumer.consume(max_records, 0.0)
            if not found and (found := self._consumer.consume(1, timeout_s)) and max_records > 1:
                found += self._consumer.consume(max_records - 1, 0.0)
        except KafkaException as error:
            raise KafkaConnectionError(error.args[0].name()) from None
        if not self._told:  # not in `state`: a thread that asks the client keeps this one out of it
            self._joined = bool(self._consumer.memberid())
        ends: dict[Any, Any] = {}
        if any(map(Message.error, found)):
            for message in found:
                self._note(message, ends)
            found = [message for message in found if message.error() is None]
        polled: dict[Any, list[Any]] = {}
        if not self._moved:  # else they are of partitions that were taken away
            for partition, messages in groupby(found, Message.partition):
                polled.setdefault(partition, []).extend(messages)
            self._next |= {partition: messages[-1].offset() + 1 for partition, messages in polled.items()}
            self._next |= {partition: max(at, self._next[partition]) for partition, at in ends.items()}
        if not polled:
            self._raise_noted()
        return polled

    def _note(self, message: Message, ends: dict[Any, object]) -> None:
        """Note what came in the place of a message: the end of a partition, or an error, which is raised later."""
        if (error := message.error()) is None:
            return
        match error.code():
            case Codes.END:  # after markers and aborted records, which are not returned
                ends[message.partition()] = message.offset()
            case Codes.GONE:
                self._gone[cast(int, message.partition())] = cast(int, message.offset())
            case Codes.EXPELLED:
                pass  # the group reports the lost partitions
            case _:
                self._error = error

    def _raise_noted(self) -> None:
        error, self._error = self._error, None
        if error is not None:
            if error.code() == Codes.LOGIN:
                self._explain()
            if error.code() >= 0 or error.fatal():
                raise for_code(error.code())(error.name())
            raise KafkaConnectionError(error.name())
        if self._gone:
            raise OffsetOutOfRangeError(
                {kafka.TopicPartition(self._topic, n): offset for n, offset in self._gone.items()}
            )

    def position(self, partition: int) -> int | None:
        """See `PythonGroup.position`."""
        return self._next.get(partition)

    def pause(self) -> None:
        """See `PythonGroup.pause`."""
        self._paused = True
        if self._next:
            self._consumer.pause([TopicPartition(self._topic, number) for number in self._next])

    def resume(self) -> None:
        """See `PythonGroup.resume`."""
        self._paused = False
        if self._next:
            self._consumer.resume([TopicPartition(self._topic, number) for number in self._next])

    def commit(self, offsets: Mapping[int, int]) -> None:
        """See `PythonGroup.commit`."""
        with contextlib.suppress(KafkaException):
            self._consumer.commit(offsets=[TopicPartition(self._topic, n, offset) for n, offset in offsets.items()])

    def close(self) -> None:
        """See `PythonGroup.close`."""
        self._consumer.close()
