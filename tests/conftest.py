"""Fixtures: real servers, which start when a test first asks for them and end with the session; the command line."""

from __future__ import annotations

import os
import sys
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from servers.broker import Broker, create_topic
from servers.postgres import Postgres
from streamdp.cli.main import main
from tests.support.commands import Quick
from tests.support.servers import RunningBroker, RunningPostgres


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


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Quick:
    """Run the command in this process: exit code, standard output, standard error; by default without brokers."""

    def run(*arguments: str, folder: Path = tmp_path, bootstrap: str | None = None, **more: str) -> Any:
        monkeypatch.chdir(folder)
        monkeypatch.setattr(sys, "argv", ["streamdp", *arguments])
        monkeypatch.delenv("STREAMDP_SUBJECT_KEY", raising=False)
        monkeypatch.delenv("STREAMDP_KAFKA", raising=False)
        for name, value in (more if bootstrap is None else more | {"STREAMDP_KAFKA": bootstrap}).items():
            monkeypatch.setenv(name, value)
        with pytest.raises(SystemExit) as caught:
            main()
        return caught.value.code or 0, *capsys.readouterr()

    return run
