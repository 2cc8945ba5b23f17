"""Fixtures for tests against real servers: started when a test first asks for them, ended with the session."""

from __future__ import annotations

import os
import uuid
from collections.abc import Callable, Iterator
from typing import NamedTuple

import pytest

from servers.broker import Broker, create_topic
from servers.postgres import Postgres


class RunningBroker(NamedTuple):
    """A cluster that was there before the tests."""

    bootstrap: str


class RunningPostgres(NamedTuple):
    """A database that was there before the tests."""

    url: str


@pytest.fixture(scope="session")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker | RunningBroker]:
    """A Kafka cluster with a `.bootstrap`: that of STREAMDP_KAFKA (host:port), or one of our own."""
    if address := os.environ.get("STREAMDP_KAFKA"):
        yield RunningBroker(address)
        return
    ours = Broker(tmp_path_factory.mktemp("kafka"))
    with ours:
        yield ours


@pytest.fixture(scope="session")
def make_topic(broker: Broker | RunningBroker) -> Callable[..., str]:
    """`make_topic(partitions=1, config=None)` makes a topic of a name never used before, and returns the name."""

    def make(partitions: int = 1, config: dict[str, str] | None = None) -> str:
        name = f"test-{uuid.uuid4().hex[:12]}"
        create_topic(broker.bootstrap, name, partitions, config)
        return name

    return make


@pytest.fixture(scope="session")
def postgres(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Postgres | RunningPostgres]:
    """A PostgreSQL database with a `.url`: that of STREAMDP_POSTGRES, or one of our own."""
    if url := os.environ.get("STREAMDP_POSTGRES"):
        yield RunningPostgres(url)
        return
    ours = Postgres(tmp_path_factory.mktemp("postgres"))
    with ours:
        yield ours
