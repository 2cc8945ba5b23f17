"""The servers of the kill matrix: some that others use too, and some of its own, which it kills."""

from __future__ import annotations

import contextlib
import random
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import confluent_kafka.admin
from sqlalchemy.engine import make_url

from servers.broker import Broker
from servers.cluster import Cluster
from servers.standby import Pair
from tests.support.proxy import Proxy

SESSION = {"session_timeout_ms": 2000, "heartbeat_interval_ms": 400}


class SharedServers:
    """Servers that keep running; proxies in front of them cut connections.

    Parameters
    ----------
    bootstrap
        The Kafka brokers.
    to_broker
        The proxy in front of the broker.
    url
        The PostgreSQL database.
    """

    def __init__(self, bootstrap: str, to_broker: Proxy, url: str) -> None:
        self.bootstrap = bootstrap
        self._url = make_url(url)
        self.to_database = [Proxy(self._url.port or 5432)]
        self.to_brokers = [to_broker]

    def brokers(self, secure: bool) -> str:
        """What a job's brokers are."""
        return f"127.0.0.1:{self.to_brokers[0].port}"

    def options(self, secure: bool) -> dict[str, Any]:
        """A job's options of the Kafka client."""
        return dict(SESSION)

    def database(self, secure: bool) -> str:
        """The URL of a job's store."""
        return self._url.set(port=self.to_database[0].port).render_as_string(hide_password=False)

    def may(self, fault: str) -> bool:
        """Whether a fault can happen to these servers."""
        return fault in ("database cut at a commit", "database cut", "brokers cut")

    def close(self) -> None:
        """Close the proxies that are its own."""
        for proxy in self.to_database:
            proxy.close()


class FragileServers(SharedServers):
    """Three brokers, a primary and its standby; every connection of a job goes through a proxy.

    Parameters
    ----------
    folder
        For their data.
    """

    def __init__(self, folder: Path) -> None:
        self.cluster = Cluster(folder / "kafka", secure=True)
        self.pair = Pair(folder / "postgres")
        self.to_brokers = []
        for broker in self.cluster.brokers:
            for listener in ("PROXIED", "SASL_SSL"):
                proxy = Proxy(broker.port(listener))
                self.to_brokers.append(proxy)
                broker.advertised[listener] = proxy.port
        self.to_database = [Proxy(server.port) for server in (self.pair.primary, self.pair.standby)]
        self.bootstrap = self.cluster.bootstrap

    def __enter__(self) -> FragileServers:
        with contextlib.ExitStack() as stack:
            stack.callback(self.close)
            stack.enter_context(self.cluster)
            stack.enter_context(self.pair)
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def brokers(self, secure: bool) -> str:
        """See `SharedServers.brokers`."""
        listener = "SASL_SSL" if secure else "PROXIED"
        return ",".join(f"127.0.0.1:{broker.advertised[listener]}" for broker in self.cluster.brokers)

    def options(self, secure: bool) -> dict[str, Any]:
        """See `SharedServers.options`."""
        if not secure:
            return dict(SESSION)
        return SESSION | {
            "security_protocol": "SASL_SSL",
            "sasl_mechanism": "SCRAM-SHA-256",
            "sasl_plain_username": Broker.username,
            "sasl_plain_password": {"env": "KAFKA_PASSWORD"},
            "ssl_cafile": str(self.cluster.ca_file),
        }

    def database(self, secure: bool) -> str:
        """See `SharedServers.database`."""
        user = f"{self.pair.primary.username}:{self.pair.primary.password}" if secure else "postgres"
        hosts = ",".join(f"127.0.0.1:{proxy.port}" for proxy in self.to_database)
        tls = f"?sslmode=verify-full&sslrootcert={self.pair.ca_file}" if secure else ""
        return f"postgresql://{user}@{hosts}/postgres{tls}"

    def may(self, fault: str) -> bool:
        """See `SharedServers.may`."""
        return True

    def close(self) -> None:
        """See `SharedServers.close`."""
        super().close()
        for proxy in self.to_brokers:
            proxy.close()

    def strike(self, fault: str, topic: str, rng: random.Random, go_on: Callable[[], None]) -> None:
        """Let a fault happen to the servers.

        Parameters
        ----------
        fault
            Its name in the matrix.
        topic
            The topic of which a leader is lost.
        rng
            How long servers are away.
        go_on
            Waits until the job goes on; it is called where the job must do so before the servers are back.
        """
        match fault:
            case "database killed":
                self.pair.primary.kill()
                time.sleep(rng.uniform(0, 0.5))
                self.pair.primary.start()
            case "standby takes over":
                self.pair.fail_over()
                self.pair.rebuild()
            case "leader lost":
                leader = self._leader(topic)
                leader.kill()
                go_on()
                self.cluster.start()
            case "brokers killed":
                self.cluster.kill()
                time.sleep(rng.uniform(0, 0.5))
                self.cluster.start()

    def _leader(self, topic: str) -> Broker:
        client = confluent_kafka.admin.AdminClient({"bootstrap.servers": self.bootstrap})
        while (number := client.list_topics(topic, timeout=60).topics[topic].partitions[0].leader) < 1:
            time.sleep(0.1)  # there is no leader at the moment
        return self.cluster.brokers[number - 1]
