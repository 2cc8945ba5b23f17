"""What all commands that use Kafka share: its client libraries, and the brokers' names in errors."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from streamdp.errors import ConfigError, SourceUnavailableError


def need_clients() -> None:
    """Raise `ConfigError` if the extra `kafka` is not installed."""
    from importlib.util import find_spec

    if not all(map(find_spec, ("kafka", "tenacity", "prometheus_client"))):
        raise ConfigError("Kafka needs further packages: pip install 'streamdp[kafka]'")


@contextmanager
def naming(brokers: str) -> Iterator[None]:
    """Add the `brokers` to the message of a `SourceUnavailableError`, because the client does not name them."""
    try:
        yield
    except SourceUnavailableError as error:
        raise (error if brokers in str(error) else SourceUnavailableError(f"{error}; brokers: {brokers}")) from None
