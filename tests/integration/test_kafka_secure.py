"""Brokers that ask for a password, a certificate or both: the right ones let us in, and the wrong ones say why not."""

import contextlib
import logging
import re
import socket
import struct
import threading
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from connectors import kafkaclient
from connectors.kafka import KafkaSource
from connectors.kafkafast import FastGroup
from servers.broker import Broker, create_topic
from servers.certificates import make_certificates
from streamdp import LDPASGDRegressor, PureDP
from streamdp.cli.kafka_job import lags
from streamdp.data.records import Shard
from streamdp.data.schema import Schema
from streamdp.errors import SourceError, SourceUnavailableError
from streamdp.runtime.worker import Worker
from streamdp.store.snapshot import Counts
from streamdp.store.store import Store
from tests.support.proxy import Proxy
from tests.support.sizes import some
from tests.support.topics import send
from tests.support.waiting import PATIENCE_S

SCHEMA = Schema({"a": (0, 1)}, "y", target_bounds=(0, 1))
WRONG = "hush-hush"


@pytest.fixture(scope="module")
def secure(broker_behind_proxy: tuple[Broker, Proxy]) -> Broker:
    ours, _ = broker_behind_proxy
    create_topic(ours.bootstrap, "people")
    send(ours.bootstrap, "people", ((b"s%d" % i, b'{"a": 0.5, "y": 1}') for i in range(20)))
    return ours


def scram(broker: Broker) -> dict[str, Any]:
    return {
        "security_protocol": "SASL_PLAINTEXT",
        "sasl_mechanism": "SCRAM-SHA-256",
        "sasl_plain_username": broker.username,
        "sasl_plain_password": broker.password,
    }


def tls(broker: Broker) -> dict[str, Any]:
    return {"security_protocol": "SSL", "ssl_cafile": broker.ca_file}


def both(broker: Broker) -> dict[str, Any]:
    return {**scram(broker), **tls(broker), "security_protocol": "SASL_SSL"}


def patient(connect: Callable[[], KafkaSource]) -> KafkaSource:
    """Connect again while the broker is too busy to answer in time."""
    deadline = time.monotonic() + PATIENCE_S
    while True:
        try:
            return connect()
        except SourceUnavailableError:
            assert time.monotonic() < deadline


def source(bootstrap: str, group: str, options: dict[str, Any], client: str = "kafka-python") -> KafkaSource:
    given = {"bootstrap_servers": bootstrap, "group": group, "client": client, "options": options}
    return KafkaSource("people", SCHEMA, key_is_subject=True, **given)


@pytest.mark.parametrize("client", some(["kafka-python", "confluent"], 1))
@pytest.mark.parametrize(
    ("address", "options"), [("sasl_bootstrap", scram), ("tls_bootstrap", tls), ("sasl_tls_bootstrap", both)]
)
def test_the_right_password_and_certificate_let_us_in(
    secure: Broker,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    address: str,
    options: Callable[[Broker], dict[str, Any]],
    client: str,
) -> None:
    caplog.set_level(logging.DEBUG)
    path = tmp_path / "job.db"
    with Store(path, "job", "f", cap=PureDP(3), shared=True) as store:
        reader = patient(lambda: source(getattr(secure, address), f"{address}-{client}", options(secure), client))

        def model() -> LDPASGDRegressor:
            return LDPASGDRegressor(features=["a"], budget="eps=1", ledger=store.ledger)

        assert Worker(reader, model, store).run(20) == 20
    assert [snapshot.counts for snapshot in Store.snapshots(path)] == [Counts(20)]
    assert None not in lags(getattr(secure, address), options(secure), {Shard("people", 0): {"offset": 0}}).values()
    assert secure.password not in caplog.text
    assert secure.password not in repr(vars(reader))
    assert secure.password.encode() not in path.read_bytes()


def refused(bootstrap: str, options: dict[str, Any], match: str, caplog: pytest.LogCaptureFixture) -> SourceError:
    caplog.set_level(logging.DEBUG)
    deadline = time.monotonic() + PATIENCE_S
    while True:
        with pytest.raises(SourceError) as caught:
            source(bootstrap, "refused", {"bootstrap_timeout_ms": 1500} | options)
        if re.search(match, str(caught.value)):
            break
        assert isinstance(caught.value, SourceUnavailableError), caught.value  # as of a busy broker
        assert time.monotonic() < deadline, caught.value
    said = "".join(traceback.format_exception(caught.value)) + caplog.text
    assert WRONG not in said
    assert Broker.password not in said
    return caught.value


@pytest.mark.parametrize(("address", "options"), [("sasl_bootstrap", scram), ("sasl_tls_bootstrap", both)])
def test_a_wrong_password(
    secure: Broker, caplog: pytest.LogCaptureFixture, address: str, options: Callable[[Broker], dict[str, Any]]
) -> None:
    error = refused(
        getattr(secure, address),
        options(secure) | {"sasl_plain_password": WRONG},
        "rejects the login: see sasl_mechanism, user and password",
        caplog,
    )
    assert not isinstance(error, SourceUnavailableError)


def test_a_login_that_fails_later_is_told_by_the_fast_client_too(
    secure: Broker, caplog: pytest.LogCaptureFixture
) -> None:
    """The password is changed while the worker reads."""
    caplog.set_level(logging.DEBUG)
    group = FastGroup(secure.sasl_bootstrap, "late", scram(secure) | {"sasl_plain_password": WRONG})
    group.subscribe("people", *[lambda _: None] * 3)

    def told() -> SourceError | None:
        try:
            with kafkaclient.kafka_errors():
                group.poll(1, 0.2)
        except SourceError as error:
            return error
        return None

    deadline = time.monotonic() + PATIENCE_S
    while (error := told()) is None or "rejects the login" not in str(error):
        assert time.monotonic() < deadline, error
    group.close()
    assert WRONG not in "".join(traceback.format_exception(error)) + caplog.text


@pytest.mark.parametrize(("address", "options"), [("tls_bootstrap", tls), ("sasl_tls_bootstrap", both)])
def test_a_certificate_of_another_authority(
    secure: Broker,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    address: str,
    options: Callable[[Broker], dict[str, Any]],
) -> None:
    other = tmp_path / "other.pem"
    make_certificates(other, tmp_path / "other-server.pem")
    given = options(secure) | {"ssl_cafile": str(other)}
    error = refused(getattr(secure, address), given, r"TLS failed \(.*certificate.*\); see ssl_cafile", caplog)
    assert not isinstance(error, SourceUnavailableError)


def test_the_wrong_protocol(secure: Broker, caplog: pytest.LogCaptureFixture) -> None:
    silent = "listens but does not answer in PLAINTEXT; see security_protocol"
    assert isinstance(refused(secure.tls_bootstrap, {}, silent, caplog), SourceUnavailableError)
    refused(secure.bootstrap, tls(secure), "TLS", caplog)
    refused(secure.bootstrap, scram(secure), "rejects the login: see sasl_mechanism", caplog)


@pytest.mark.parametrize("protocol", ["SASL_PLAINTEXT", "SASL_SSL", "SSL"])
@pytest.mark.parametrize("reset", [True, False])
def test_a_broker_that_is_about_to_start_or_to_end_rejects_nothing(protocol: str, reset: bool) -> None:
    """It accepts connections and ends them; a worker must wait for it."""
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def accept() -> None:
            with contextlib.suppress(OSError):  # until the server is closed
                while True:
                    connection, _ = listening.accept()
                    if reset:
                        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                    else:
                        connection.recv(1)
                    connection.close()

        threading.Thread(target=accept, daemon=True).start()
        login = {"sasl_mechanism": "SCRAM-SHA-256", "sasl_plain_username": "u", "sasl_plain_password": WRONG}
        options = {"security_protocol": protocol, "bootstrap_timeout_ms": 300, **(login if "SASL" in protocol else {})}
        with pytest.raises(SourceUnavailableError):
            source(f"127.0.0.1:{listening.getsockname()[1]}", "g", options)
        listening.shutdown(socket.SHUT_RDWR)


def test_a_broker_that_has_just_started_rejects_no_login(secure: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    """It answers for the first time when the worker has given up, and asks why."""
    answers = kafkaclient._answers
    with Proxy(secure.port("SASL_PLAINTEXT")) as proxy:
        proxy.refuses = True

        def started(*arguments: Any) -> bool:
            proxy.refuses = False
            return answers(*arguments)

        monkeypatch.setattr(kafkaclient, "_answers", started)
        with pytest.raises(SourceUnavailableError):
            source(f"127.0.0.1:{proxy.port}", "g", scram(secure) | {"bootstrap_timeout_ms": 300})
        assert not proxy.refuses
