"""Three Kafka brokers that replicate one another's topics, for tests that take a leader away."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import TracebackType
from typing import Self

from servers.broker import Broker
from servers.certificates import make_certificates
from servers.process import START_TIMEOUT_S, ServerError


class Cluster:
    """A Kafka cluster: each partition has a replica on every broker, and a message is kept when two of them have it.

    Parameters
    ----------
    folder
        For data, settings and logs.
    secure
        See `servers.broker.Broker`; the brokers share a certificate and `ca_file`.

    Attributes
    ----------
    brokers
        The brokers, with the node numbers 1 to 3.
    """

    def __init__(self, folder: str | Path, *, secure: bool = False) -> None:
        folder = Path(folder).absolute()
        self.brokers = [Broker(folder / str(node), secure=secure, node=node) for node in (1, 2, 3)]
        self.ca_file = folder / "ca.pem"
        if secure:
            make_certificates(self.ca_file, folder / "server.pem")
        voters = ",".join(broker.voters for broker in self.brokers)
        for broker in self.brokers:
            broker.voters, broker.ca_file = voters, str(self.ca_file)

    @property
    def bootstrap(self) -> str:
        return ",".join(broker.bootstrap for broker in self.brokers)

    def start(self) -> None:
        """Start the brokers that do not run, and return when each of them sees all of them.

        Raises `ServerError` if they do not start.
        """
        with ThreadPoolExecutor(len(self.brokers)) as threads:
            list(threads.map(Broker.start, self.brokers))
        deadline = time.monotonic() + START_TIMEOUT_S
        while any(broker.live_nodes() < len(self.brokers) for broker in self.brokers):
            if time.monotonic() > deadline:
                raise ServerError("the Kafka brokers do not find one another")
            time.sleep(0.1)

    def kill(self) -> None:
        """Kill all brokers (SIGKILL)."""
        for broker in self.brokers:
            broker.kill()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.kill()
