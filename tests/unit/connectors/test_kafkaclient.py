"""The errors of Kafka's client: which are worth a retry."""

import socket

import kafka.errors
import pytest
from kafka.net.selector import NetworkSelector
from kafka.net.transport import KafkaTCPTransport

from connectors.kafkaclient import kafka_errors
from streamdp.errors import ConfigError, SourceError, SourceUnavailableError, StoreDamagedError


def raised(error: Exception) -> Exception:
    with pytest.raises(Exception) as caught, kafka_errors("t"):  # noqa: PT011 - the type is what is tested
        raise error
    return caught.value


@pytest.mark.parametrize(
    "name",
    [
        "KafkaTimeoutError",
        "KafkaConnectionError",
        "NotCoordinatorError",
        "UnknownMemberIdError",
        "BrokerNotAvailableError",
    ],
)
def test_what_may_pass_is_waited_for(name: str) -> None:
    error = raised(getattr(kafka.errors, name)())
    assert type(error) is SourceUnavailableError
    assert name in str(error)


@pytest.mark.parametrize(
    "name",
    ["UnsupportedVersionError", "CorruptRecordError", "MessageSizeTooLargeError", "InvalidSessionTimeoutError",
        "InconsistentGroupProtocolError", "LogTruncationError", "KafkaError"],
)  # fmt: skip
def test_what_would_come_again_is_an_error_at_once(name: str) -> None:
    kind = getattr(kafka.errors, name)
    error = raised(kind({}) if name == "LogTruncationError" else kind())
    assert type(error) is SourceError
    assert name in str(error)


def test_a_connection_that_is_cut_before_the_client_writes_is_waited_for() -> None:
    """The kill matrix found it: a worker ended with an unexpected error after its brokers were cut."""
    loop = NetworkSelector()
    ours, theirs = socket.socketpair()
    with theirs:
        transport = KafkaTCPTransport(loop, ours)
        transport.abort()
        with pytest.raises(SourceUnavailableError, match="was cut"), kafka_errors():
            transport.write(b"a request")
    with pytest.raises(RuntimeError, match="another"), kafka_errors():
        raise RuntimeError("another")


def test_errors_with_their_own_words() -> None:
    assert "lz4" in str(raised(kafka.errors.UnsupportedCodecError("Libraries for lz4 compression codec not found")))
    assert type(raised(kafka.errors.KafkaConfigurationError("unknown"))) is ConfigError
    ours = kafka.errors.KafkaError("a callback failed")
    ours.__cause__ = StoreDamagedError("damaged")
    assert raised(ours) is ours.__cause__
