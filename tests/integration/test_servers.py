"""The servers that the other tests rely on: they answer, they refuse, and they keep what they promised to keep."""

from __future__ import annotations

import random
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import kafka
import psycopg
import pytest

from servers.broker import Broker, create_topic
from servers.certificates import make_certificates
from servers.postgres import Postgres
from servers.process import Process, ServerError, free_ports
from tests.support.paths import ROOT
from tests.support.servers import RunningBroker
from tests.support.waiting import PATIENCE_S, wait_until


@pytest.fixture(scope="module")
def secure(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    ours = Broker(tmp_path_factory.mktemp("secure"), secure=True)
    with ours:
        create_topic(ours.bootstrap, "kept", config={"retention.ms": "-1"})
        yield ours


def send(topic: str, value: bytes, **options: Any) -> None:
    producer = kafka.KafkaProducer(**options)
    try:
        producer.send(topic, value).get(PATIENCE_S)
    finally:
        producer.close(5)


def read(topic: str, count: int, **options: Any) -> list[bytes]:
    patience = {"consumer_timeout_ms": 1000 * PATIENCE_S}
    consumer = kafka.KafkaConsumer(topic, auto_offset_reset="earliest", **patience, **options)
    try:
        return [message.value for _, message in zip(range(count), consumer, strict=False)]
    finally:
        consumer.close()


def test_a_message_goes_through(broker: Broker | RunningBroker, make_topic: Callable[..., str]) -> None:
    topic = make_topic(2)
    assert topic != make_topic()
    send(topic, b"hello", bootstrap_servers=broker.bootstrap)
    assert read(topic, 1, bootstrap_servers=broker.bootstrap) == [b"hello"]


@pytest.mark.campaign  # two more brokers; test_kafka_secure.py has passwords and certificates
def test_passwords_certificates_and_a_crash(secure: Broker, caplog: pytest.LogCaptureFixture) -> None:
    scram = {
        "sasl_mechanism": "SCRAM-SHA-256",
        "sasl_plain_username": secure.username,
        "sasl_plain_password": secure.password,
    }
    password = {"bootstrap_servers": secure.sasl_bootstrap, "security_protocol": "SASL_PLAINTEXT", **scram}
    tls = {"bootstrap_servers": secure.tls_bootstrap, "security_protocol": "SSL", "ssl_cafile": secure.ca_file}
    both = {**tls, **scram, "bootstrap_servers": secure.sasl_tls_bootstrap, "security_protocol": "SASL_SSL"}
    for options in (password, tls, both):
        send("kept", options["security_protocol"].encode(), **options)

    other = secure.folder / "other.pem"
    make_certificates(other, secure.folder / "other-server.pem")
    # kafka-python 3.0.12 says only that it cannot bootstrap; the reason stands in the broker's log, or in its own.
    for options in (password | {"sasl_plain_password": "wrong"}, both | {"sasl_plain_password": "wrong"}):
        refusals = secure.log_file.read_text().count("Failed authentication")
        with pytest.raises(kafka.errors.KafkaTimeoutError):
            send("kept", b"never", bootstrap_timeout_ms=1500, **options)
        assert secure.log_file.read_text().count("Failed authentication") > refusals
    with pytest.raises(kafka.errors.KafkaTimeoutError):
        send("kept", b"never", bootstrap_timeout_ms=1500, **(tls | {"ssl_cafile": str(other)}))
    assert "CERTIFICATE_VERIFY_FAILED" in caplog.text

    addresses = secure.bootstrap, secure.sasl_tls_bootstrap
    secure.kill()
    assert not secure.running
    again = Broker(secure.folder, secure=True)  # as another process would
    with again:
        assert (again.bootstrap, again.sasl_tls_bootstrap) == addresses
        expected = [b"SASL_PLAINTEXT", b"SSL", b"SASL_SSL"]
        assert read("kept", 3, **both) == expected


def test_postgres_keeps_commits_through_a_crash(postgres: Postgres, tmp_path: Path) -> None:
    with psycopg.connect(postgres.url) as connection:
        assert connection.execute("SHOW fsync").fetchone() == ("on",)
    ours = Postgres(tmp_path)
    with ours:
        with psycopg.connect(ours.url) as connection:
            connection.execute("CREATE TABLE kept (n int)")
            connection.execute("INSERT INTO kept VALUES (1)")
        unfinished = psycopg.connect(ours.url)
        unfinished.execute("INSERT INTO kept VALUES (2)")
        ours.kill()
        with pytest.raises(psycopg.OperationalError):
            unfinished.execute("SELECT 1")
        ours.start()
        with psycopg.connect(ours.url) as connection:
            assert connection.execute("SELECT n FROM kept").fetchall() == [(1,)]


def test_a_failure_to_start_shows_the_log(tmp_path: Path) -> None:
    process = Process([sys.executable, "-c", "print('no such setting'); raise SystemExit(3)"], tmp_path / "log")
    with pytest.raises(ServerError, match="status 3:\nno such setting"):
        process.wait_until(lambda: False, "it", PATIENCE_S)


def test_no_two_processes_get_the_same_port(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The other process has not begun to listen."""
    folders = [tmp_path / name for name in ("ours", "theirs")]
    for folder in folders:
        folder.mkdir()
    program = "import sys; from pathlib import Path; from servers.process import free_ports as f\n"
    program += "print(f(Path(sys.argv[1]), ['a'])['a'], flush=True); input()"
    command = [sys.executable, "-c", program, str(folders[1])]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=ROOT) as other:
        theirs = int(other.stdout.readline())
        drawn = iter([theirs, theirs, *range(20_000, 32_000)])
        monkeypatch.setattr(random.SystemRandom, "randrange", lambda *_: next(drawn))
        first, second = free_ports(folders[0], ["a", "b"]).values()
        assert len({first, second, theirs}) == 3
        other.communicate(b"\n")


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells a child of its parent's death")
def test_no_server_outlives_its_parent(tmp_path: Path) -> None:
    program = """
import sys, threading, time
from pathlib import Path
from servers.process import Process
def start():
    print(Process(["sleep", "60"], Path(sys.argv[1])).pid, flush=True)
thread = threading.Thread(target=start)  # a thread that ends does not take the server along
thread.start()
thread.join()
print("ended", flush=True)
time.sleep(60)
"""
    command = [sys.executable, "-c", program, str(tmp_path / "log")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, cwd=ROOT) as parent:
        server = int(parent.stdout.readline())
        assert parent.stdout.readline() == b"ended\n"
        state = Path(f"/proc/{server}/stat")
        wait_until(lambda: " (sleep) " in state.read_text())  # first it is the program that starts it
        parent.send_signal(signal.SIGKILL)

    def gone() -> bool:
        try:
            return ") Z " in state.read_text()
        except (FileNotFoundError, ProcessLookupError):
            return True

    wait_until(gone)
