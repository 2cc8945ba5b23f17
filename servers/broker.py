"""Apache Kafka on this machine, for tests, demos and `make kafka`: nodes in KRaft mode, with jars from Maven."""

from __future__ import annotations

import argparse
import os
import re
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Self

from servers.jars import jars, program
from servers.process import START_TIMEOUT_S, Process, ServerError, free_ports, without

VERSION = "4.1.1"
_LISTENERS = ("PLAINTEXT", "PROXIED", "CONTROLLER", "SASL_PLAINTEXT", "SSL", "SASL_SSL")
_SCRAM = "org.apache.kafka.common.security.scram.ScramLoginModule required;"
# Nodes that start and rebalance fast. Nothing is deleted by age, because replayed records are old.
_SETTINGS = {
    "process.roles": "broker,controller",
    "controller.listener.names": "CONTROLLER",
    "inter.broker.listener.name": "PLAINTEXT",
    "listener.security.protocol.map": "CONTROLLER:PLAINTEXT,PROXIED:PLAINTEXT,"
    + ",".join(f"{name}:{name}" for name in _LISTENERS if name not in ("CONTROLLER", "PROXIED")),
    # After a crash, the broker may return only after this time; without a heartbeat for so long, it is no broker.
    "broker.session.timeout.ms": "9000",
    "broker.heartbeat.interval.ms": "500",
    "auto.create.topics.enable": "false",
    "offsets.topic.num.partitions": "5",
    "transaction.state.log.num.partitions": "5",
    "share.coordinator.state.topic.num.partitions": "5",
    "group.initial.rebalance.delay.ms": "0",
    "group.min.session.timeout.ms": "1000",
    "group.consumer.min.session.timeout.ms": "1000",
    "group.consumer.session.timeout.ms": "6000",
    "group.consumer.min.heartbeat.interval.ms": "500",
    "group.consumer.heartbeat.interval.ms": "1000",
    "message.max.bytes": str(20 * 1024 * 1024),
    "replica.fetch.max.bytes": str(20 * 1024 * 1024),
    "log.retention.ms": "-1",
}
_REPLICATED = (
    "default.replication.factor",
    "offsets.topic.replication.factor",
    "transaction.state.log.replication.factor",
    "share.coordinator.state.topic.replication.factor",
)
_IN_SYNC = ("min.insync.replicas", "transaction.state.log.min.isr", "share.coordinator.state.topic.min.isr")


class Broker:
    """A Kafka broker. A later broker in the same folder continues with the same data.

    Parameters
    ----------
    folder
        For data, settings and log.
    secure
        Listen also on `sasl_bootstrap`, which requires SCRAM-SHA-256 with `username` and `password`; on
        `tls_bootstrap`, with a certificate signed by `ca_file`; and on `sasl_tls_bootstrap`, with both.
        `bootstrap` needs no password.
    node
        The number of this node; see `servers.cluster.Cluster`.
    settings
        Further settings of the broker.

    Attributes
    ----------
    voters
        The controllers of all nodes of the cluster.
    advertised
        The ports that clients are told, by the names of listeners, if they are to connect through a proxy. With a port
        for `PROXIED`, there is a listener of this name, which needs no password. To be set before the start.
    """

    username = "streamdp"
    password = "only-for-tests"

    def __init__(
        self, folder: str | Path, settings: Mapping[str, str] | None = None, *, secure: bool = False, node: int = 1
    ) -> None:
        self._settings = {**_SETTINGS, **(settings or {})}
        self.folder = Path(folder).absolute()
        self.folder.mkdir(parents=True, exist_ok=True)
        self.secure = secure
        self.node = node
        self.advertised: dict[str, int] = {}
        self.log_file = self.folder / "kafka.log"
        self.ca_file = str(self.folder / "ca.pem")
        self._ports = free_ports(self.folder, _LISTENERS)
        self.voters = f"{node}@127.0.0.1:{self._ports['CONTROLLER']}"
        self._process: Process | None = None

    @property
    def bootstrap(self) -> str:
        return self._address("PLAINTEXT")

    @property
    def sasl_bootstrap(self) -> str:
        return self._address("SASL_PLAINTEXT")

    @property
    def tls_bootstrap(self) -> str:
        return self._address("SSL")

    @property
    def sasl_tls_bootstrap(self) -> str:
        return self._address("SASL_SSL")

    def port(self, listener: str) -> int:
        """The port at which a listener listens."""
        return self._ports[listener]

    def _address(self, listener: str) -> str:
        if listener != "PLAINTEXT" and not self.secure:
            raise ServerError(f"this broker has no {listener} listener; make it with secure=True")
        return f"127.0.0.1:{self._ports[listener]}"

    def start(self) -> None:
        """Start the broker, and return when it answers.

        Raises `ServerError`, with the end of the log, if it does not start.
        """
        if self.running:
            return
        folder = jars("pom.xml", f"kafka-{VERSION}", f"-Dkafka.version={VERSION}")
        java = [program("java"), "-Xmx512m", "-Xms128m", "-XX:+UseSerialGC"]
        java += ["-XX:TieredStopAtLevel=1", "-XX:-UsePerfData"]  # halves the time to start
        java += ["-Dorg.slf4j.simpleLogger.showDateTime=true", "-cp", f"{folder}/*"]
        settings = self._write_settings()
        self._format([*java, "kafka.tools.StorageTool"], settings)
        environment = without(os.environ, "KAFKA_")
        self._process = Process([*java, "kafka.Kafka", str(settings)], self.log_file, env=environment)
        self._process.wait_until(self.live_nodes, f"Kafka ({self.log_file})", START_TIMEOUT_S)

    def stop(self) -> None:
        """Shut the broker down (SIGTERM)."""
        self._end(signal.SIGTERM)

    def kill(self) -> None:
        """Kill the broker (SIGKILL), as a crash does."""
        self._end(signal.SIGKILL)

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.running

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def _end(self, how: signal.Signals) -> None:
        if self._process:
            self._process.end(how)
            self._process = None

    def _write_settings(self) -> Path:
        names = [name for name in _LISTENERS if self.secure or name in ("PLAINTEXT", "CONTROLLER", "PROXIED")]
        names = [name for name in names if name != "PROXIED" or name in self.advertised]
        told = self._ports | self.advertised
        nodes = self.voters.count("@")
        settings = {"node.id": str(self.node), **self._settings}
        settings |= dict.fromkeys(_REPLICATED, str(nodes)) | dict.fromkeys(_IN_SYNC, str(nodes // 2 + 1))
        settings["listeners"] = ",".join(f"{name}://127.0.0.1:{self._ports[name]}" for name in names)
        settings["advertised.listeners"] = ",".join(
            f"{name}://127.0.0.1:{told[name]}" for name in names if name != "CONTROLLER"
        )
        settings["controller.quorum.voters"] = self.voters
        settings["log.dirs"] = str(self.folder / "data")
        if self.secure:
            server_file = Path(self.ca_file).with_name("server.pem")
            if not server_file.exists():
                from servers.certificates import make_certificates  # it needs a package; `make kafka` needs none

                make_certificates(Path(self.ca_file), server_file)
            settings |= {
                "ssl.keystore.type": "PEM",
                "ssl.keystore.location": str(server_file),
                "sasl.enabled.mechanisms": "SCRAM-SHA-256",
                "listener.name.sasl_plaintext.scram-sha-256.sasl.jaas.config": _SCRAM,
                "listener.name.sasl_ssl.scram-sha-256.sasl.jaas.config": _SCRAM,
            }
        file = self.folder / "server.properties"
        # In Java's properties files a backslash begins an escape, and other letters than ASCII's need one.
        text = "".join(f"{name}={value}\n".replace("\\", "\\\\") for name, value in settings.items())
        file.write_text(re.sub(r"[^\x00-\x7f]", lambda letter: f"\\u{ord(letter[0]):04x}", text))
        return file

    def _format(self, storage_tool: list[str], settings: Path) -> None:
        if (self.folder / "data" / "meta.properties").exists():
            return
        user = f"SCRAM-SHA-256=[name={self.username},password={self.password}]"  # also for a later secure=True
        arguments = ["format", "--cluster-id", "c3RyZWFtZHAtdGVzdHMtMQ", "--config", str(settings), "--add-scram", user]
        done = subprocess.run([*storage_tool, *arguments], capture_output=True, text=True)
        if done.returncode:
            raise ServerError(f"cannot format {self.folder} for Kafka:\n{(done.stdout + done.stderr).strip()}")

    def live_nodes(self) -> int:
        """Ask this node for the cluster's metadata (version 4, no topic); returns the number of live brokers."""
        body = struct.pack(">hhihi?", 3, 4, 1, -1, 0, False)
        try:
            with socket.create_connection(("127.0.0.1", self._ports["PLAINTEXT"]), timeout=1) as connection:
                connection.sendall(struct.pack(">i", len(body)) + body)
                reply = connection.makefile("rb").read(16)  # length, correlation, throttle time, brokers
        except OSError:
            return 0
        return int(struct.unpack(">4i", reply)[3]) if len(reply) == 16 else 0


def create_topic(bootstrap: str, name: str, partitions: int = 1, config: Mapping[str, str] | None = None) -> None:
    """Create a topic, and return when each partition has a leader. Needs kafka-python (`streamdp[kafka]`).

    Parameters
    ----------
    bootstrap
        `host:port` of the broker.
    name
        The topic.
    partitions
        The number of partitions, at least 1.
    config
        Settings of the topic, such as `cleanup.policy`.
    """
    from kafka import KafkaAdminClient

    admin = KafkaAdminClient(bootstrap_servers=bootstrap)
    try:
        # -1: as many replicas as the brokers' own setting says
        topic = {"num_partitions": partitions, "replication_factor": -1, "configs": dict(config or {})}
        admin.create_topics({name: topic}, wait_for_metadata=True)
    finally:
        admin.close()


def main() -> int:
    """Run a broker in the foreground until Ctrl-C or SIGTERM."""
    parser = argparse.ArgumentParser(prog="python -m servers.broker", description=main.__doc__)
    parser.add_argument("folder", nargs="?", help="folder for the data; default: a temporary folder")
    folder = parser.parse_args().folder
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    print("waiting for Kafka to start", file=sys.stderr)
    try:
        with tempfile.TemporaryDirectory(prefix="streamdp-kafka-") as temporary, Broker(folder or temporary) as broker:
            print(f"STREAMDP_KAFKA={broker.bootstrap}", flush=True)
            print("Kafka runs until Ctrl-C; in another shell, export the line above", file=sys.stderr)
            while broker.running:
                time.sleep(0.2)
        print(f"Kafka ended unexpectedly, see {broker.log_file}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 0
    except ServerError as error:
        print(error, file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main())
