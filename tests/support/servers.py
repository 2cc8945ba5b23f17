"""Servers that were running before the tests."""

from typing import NamedTuple


class RunningBroker(NamedTuple):
    """A Kafka cluster."""

    bootstrap: str


class RunningPostgres(NamedTuple):
    """A PostgreSQL database."""

    url: str
