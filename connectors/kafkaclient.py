"""Clients of Kafka with our defaults, and the client's errors as ours. Needs the extra `kafka`."""

import contextlib
import logging
import socket
import ssl
import struct
from collections.abc import Iterator, Mapping
from typing import Any

from kafka import KafkaAdminClient, KafkaConsumer, errors
from kafka.protocol.metadata import MetadataRequest

from streamdp.errors import ConfigError, SourceError, SourceUnavailableError, StreamDPError, file_errors, needs

OURS = {"enable_auto_commit", "auto_offset_reset", "group_id", "key_deserializer", "value_deserializer"}
"""Consumer options that exactly-once counting decides."""

NO_TOPIC = "there is no topic {!r}, or this login has no right to it; create the topic first"

PROTOCOLS = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")

PASSING = (
    errors.BrokerNotAvailableError,
    errors.CommitFailedError,
    errors.IllegalGenerationError,
    errors.KafkaProtocolError,
    errors.MemberIdRequiredError,
    errors.RebalanceInProgressError,
    errors.UnknownBrokerIdError,
    errors.UnknownError,
    errors.UnknownMemberIdError,
)
"""Errors after which a call may succeed, although the client does not call them retriable."""

CUT = "Transport closed for writes"
"""What the client says, as a mere `RuntimeError`, of a connection that was cut just before it sends (3.0.12)."""

CONNECT_TIMEOUT_S = 6.0
ANSWER_TIMEOUT_S = 10.0
LOGIN_TIMEOUT_S = 2.0
METADATA_MS = 10_000
"""How often clients ask for new partitions and leaders; by their own default it is five minutes."""
OFFSETS_TIMEOUT_S = 5.0
"""How long a broker may take to answer where a partition begins and ends: others wait meanwhile."""
RECONNECT_MS = 2000
"""The longest pause before a broker is tried again. It must be well below all timeouts: with the 30 s of kafka-python,
messages expired before each new try, and a producer did not send again after its brokers were back."""

SESSION_MS = 15_000
"""After how long without a heartbeat a broker gives the partitions of a worker to others. By their own default the
clients take 45 s, in which nobody reads them. A worker that was only slow commits nothing: its claim has ended."""

CONNECTION = {"bootstrap_timeout_ms": int(1000 * CONNECT_TIMEOUT_S), "reconnect_backoff_max_ms": RECONNECT_MS}
"""What all clients have, if nothing else is given."""

_VERSIONS_REQUEST = (18, 0, 1, -1)
"""ApiVersions, its version 0, a number for the answer, no client id."""


# The client writes all its settings into the log when it starts: passwords, too.
logging.getLogger("kafka.admin.client").addFilter(lambda record: "configuration" not in str(record.msg))


def connect(bootstrap_servers: str | list[str], group: str | None, options: Mapping[str, object]) -> KafkaConsumer:
    """Make a consumer that commits no offsets by itself, and reads no records of open or aborted transactions.

    `bootstrap_servers` is `host:port`, several of them separated by commas, or a list; `group` is None for a consumer
    without a group; `options` are other options of `kafka.KafkaConsumer`. Raises `ConfigError` for an option that is
    unknown or in `OURS`; `SourceError` if the broker rejects the login or the certificate; `SourceUnavailableError` if
    no broker answers within `CONNECT_TIMEOUT_S`.
    """
    if taken := OURS.intersection(options):
        raise ConfigError(f"the consumer option {sorted(taken)[0]!r} is set by streamdp and cannot be given")
    _check_protocol(options)
    settings = CONNECTION | {
        "allow_auto_create_topics": False,
        "max_partition_fetch_bytes": 4 << 20,
        "metadata_max_age_ms": METADATA_MS,
        "isolation_level": "read_committed",
        "session_timeout_ms": SESSION_MS,
        **options,
        "bootstrap_servers": bootstrap_servers,
        "group_id": group,
        "enable_auto_commit": False,
        "auto_offset_reset": "none",
    }
    try:
        with kafka_errors():
            return KafkaConsumer(**settings)
    except SourceUnavailableError:
        explain_refusal(bootstrap_servers, options)
        raise


def _check_protocol(options: Mapping[str, object]) -> None:
    if options.get("security_protocol", "PLAINTEXT") not in PROTOCOLS:  # the client would take it for PLAINTEXT
        raise ConfigError(f"security_protocol: expected one of {', '.join(PROTOCOLS)}")


def connect_admin(bootstrap_servers: str | list[str], options: Mapping[str, object]) -> KafkaAdminClient:
    """Make a client that asks about topics, creates them and deletes records. It raises the errors of `kafka.errors`.

    For `bootstrap_servers` see `connect`; `options` are those of `kafka.KafkaAdminClient`. Raises `ConfigError` for an
    unknown `security_protocol`.
    """
    _check_protocol(options)
    return KafkaAdminClient(**CONNECTION | dict(options), bootstrap_servers=bootstrap_servers)


def discard(admin: KafkaAdminClient | None) -> None:
    """Close a client that may have failed."""
    with contextlib.suppress(Exception):  # there is nothing more to be done with it
        if admin is not None:
            admin.close()


def partitions_of(consumer: KafkaConsumer, topic: str) -> set[int]:
    """The numbers of a topic's partitions.

    Raises `SourceError` if there is no such topic, or if the broker hides it from this login.
    """
    with kafka_errors(topic):
        partitions: set[int] = consumer.partitions_for_topic(topic)
    if not partitions:
        raise SourceError(NO_TOPIC.format(topic))
    return partitions


def topic_id(consumer: KafkaConsumer, topic: str) -> str | None:
    """The id that the brokers gave a topic when it was created: another topic of the same name has another id.

    Returns None if the brokers know no such topic, or if they are older than Kafka 2.8. Raises the errors of
    `kafka_errors`.
    """
    found = _described(consumer, topic)
    return str(found.topic_id) if found is not None and found.topic_id else None


def check_topic(consumer: KafkaConsumer, topic: str, known: str | None, remedy: str = "") -> None:
    """Raise `SourceError` if what was fetched may be of another topic of the same name; `remedy` ends its text.

    The client fetches by name and does not notice it. Ids are never used again, so all that was fetched before the
    answer is of the topic with the id `known`, None of old brokers. Raises the errors of `kafka_errors`, also if the
    brokers do not know the topic at present.
    """
    now = known and topic_id(consumer, topic)
    if known is not None and now is None:
        raise SourceUnavailableError(f"the broker does not know the topic {topic!r} at present")
    if now != known:
        raise SourceError(f"the topic {topic!r} was deleted and created again while it was read{remedy}")


def leaderless(consumer: KafkaConsumer, topic: str) -> set[int]:
    """The partitions of a topic that cannot be read at present, because no broker leads them.

    Raises the errors of `kafka_errors`.
    """
    found = _described(consumer, topic)
    return set() if found is None else {one.partition_index for one in found.partitions if one.leader_id < 0}


def _described(consumer: KafkaConsumer, topic: str) -> Any:
    """What the brokers say of a topic now; None if they know none. The consumer's own metadata may be minutes old."""
    asked = MetadataRequest(
        topics=[MetadataRequest.MetadataRequestTopic(name=topic)],
        allow_auto_topic_creation=False,
        include_cluster_authorized_operations=False,
        include_topic_authorized_operations=False,
    )
    manager = consumer._manager  # noqa: SLF001 - the public calls ask for all topics, or answer from the cache
    with kafka_errors():
        answer = consumer._net.run(manager.wait_for, manager.send(asked), int(1000 * ANSWER_TIMEOUT_S))  # noqa: SLF001
    return next((t for t in answer.topics if t.name == topic and not t.error_code), None)


def explain_refusal(bootstrap_servers: str | list[str], options: Mapping[str, Any]) -> None:
    """Raise a `SourceError` that says why a broker that listens rejects us: the clients report only silence.

    `bootstrap_servers` and `options` are those of `connect`. Raises `SourceUnavailableError` if a broker listens and
    does not answer. Returns if none listens, or all accept us.
    """
    protocol = options.get("security_protocol", "PLAINTEXT")
    servers = bootstrap_servers.split(",") if isinstance(bootstrap_servers, str) else bootstrap_servers
    for server in map(str.strip, servers):
        try:
            rejected = _answers(server, protocol, options) and _rejects_login(server, protocol, options)
        except (OSError, ValueError):
            continue  # no server listens there
        if rejected:
            raise SourceError(
                f"{server} answers but rejects the login: see sasl_mechanism, user and password (security_protocol"
                f" {protocol})"
            )
        raise SourceUnavailableError(
            f"no answer from Kafka: {server} listens but does not answer in {protocol}; see security_protocol"
        )


def _rejects_login(server: str, protocol: str, options: Mapping[str, object]) -> bool:
    """Whether a broker that answers before and after another login does not let us in: one that starts does soon."""
    if not protocol.startswith("SASL"):
        return False
    given = {**options, "bootstrap_servers": server, "bootstrap_timeout_ms": int(1000 * LOGIN_TIMEOUT_S)}
    try:
        KafkaConsumer(**given).close()
    except errors.KafkaError:
        return _answers(server, protocol, options)
    return False


def _answers(server: str, protocol: str, options: Mapping[str, object]) -> bool:
    """Whether a broker says which requests it knows, which it does before a login.

    Raises `SourceError` if TLS fails, and `OSError` or `ValueError` if nothing listens there.
    """
    host, _, port = server.rpartition(":")
    with contextlib.ExitStack() as stack:
        connection = stack.enter_context(socket.create_connection((host, int(port)), timeout=2.0))
        if protocol in ("SSL", "SASL_SSL") and "ssl_context" not in options:
            connection = stack.enter_context(_with_tls(connection, server, host, options))
        try:
            connection.sendall(struct.pack(">ihhih", 10, *_VERSIONS_REQUEST))
            return bool(connection.recv(1))
        except OSError:
            return False


def _with_tls(plain: socket.socket, server: str, host: str, options: Mapping[str, Any]) -> ssl.SSLSocket:
    """TLS on an open socket; raises `SourceError` if a certificate does not fit."""
    with file_errors(SourceError, "cannot read the certificates in ssl_cafile"):
        context = ssl.create_default_context(cafile=options.get("ssl_cafile"))
    context.check_hostname = options.get("ssl_check_hostname", True)
    try:
        return context.wrap_socket(plain, server_hostname=host)
    except (ssl.SSLEOFError, ssl.SSLZeroReturnError):  # as of a broker that starts or ends
        raise SourceUnavailableError(f"{server} ends connections before TLS begins") from None
    except ssl.SSLError as error:
        reason = getattr(error, "verify_message", "") or error.reason
        raise SourceError(f"{server}: TLS failed ({reason}); see ssl_cafile and the broker's certificate") from None
    except OSError as error:
        raise SourceUnavailableError(
            f"{server}: TLS failed ({error.strerror or 'no answer'}); see security_protocol: is this a TLS port?"
        ) from None


@contextlib.contextmanager
def kafka_errors(topic: str = "") -> Iterator[None]:
    """Turn the client's errors into ours: `SourceUnavailableError` only if a repeated call may succeed.

    Messages of the client that may hold a setting's value are not repeated. The topic is for the message about an
    invalid name.
    """
    try:
        yield
    except errors.KafkaConfigurationError as error:
        raise ConfigError(f"Kafka: {error}") from None
    except errors.InvalidTopicError:
        raise SourceError(f"no topic can have the name {topic!r}: expected letters, digits, dots, _ and -") from None
    except (errors.SaslAuthenticationFailedError, errors.AuthorizationError) as error:
        raise SourceError(
            f"the Kafka broker denies access ({type(error).__name__}): see user, password and rights"
        ) from None
    except errors.UnsupportedCodecError as error:
        raise SourceError(needs(f"Kafka: {error.args[0]}: it", "kafka")) from None
    except errors.UnknownTopicOrPartitionError:
        raise SourceError("the topic was deleted") from None
    except errors.KafkaError as error:
        raise _ours(error) from None
    except RuntimeError as error:
        if str(error) != CUT:
            raise
        raise SourceUnavailableError("no answer from the Kafka broker: the connection was cut") from None


def _ours(error: errors.KafkaError) -> BaseException:
    """What stands for an error of the client that has no words of its own."""
    name = type(error).__name__
    if isinstance(error.__cause__, StreamDPError):  # our error, raised in a rebalance inside the client
        return error.__cause__
    if error.retriable or isinstance(error, PASSING):
        return SourceUnavailableError(f"no answer from the Kafka broker ({name})")
    return SourceError(f"Kafka: {name}; see the client's settings, and the limits and the log of the broker")
