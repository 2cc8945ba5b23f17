"""The start of a Kafka worker, and the parties of a shuffle: they wait for their servers."""

import signal
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from streamdp.cli import kafka_job, shuffle
from streamdp.config.job import Accepted, load_config
from streamdp.config.kafka import KafkaSourceConfig
from streamdp.config.shuffle import ShuffleSourceConfig
from streamdp.errors import SourceUnavailableError, StoreUnavailableError
from streamdp.store.store import Store

JOB = """
job: away
schema: {target: {column: y, bounds: [0, 1]}, features: {a: {bounds: [0, 1]}}}
model: {trust: nobody, budget: eps=1}
source: {type: kafka, brokers: "127.0.0.1:1", topic: t}
store: s.db
"""


class Enough(Exception):
    """The test has seen what it waits for."""


def test_servers_that_are_away_during_the_start_are_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The kill matrix found it: the store was open, and the next question ended the worker.

    The brokers come first, so that what they refuse leaves no store behind.
    """
    closed: list[bool] = []
    answers: list[Any] = [
        SourceUnavailableError("the brokers do not answer"),
        SimpleNamespace(lag=lambda _: {}, close=lambda: closed.append(True)),
    ]

    def ask(*_: Any) -> Any:
        assert not Path("s.db").exists()
        if isinstance(answer := answers.pop(0), Exception):
            raise answer
        return answer

    def away(*_: Any) -> Any:
        raise StoreUnavailableError("the database does not answer")

    def wait(seconds: float) -> None:
        if Path("s.db").exists():
            raise Enough

    monkeypatch.chdir(tmp_path)
    Path("job.yaml").write_text(JOB)
    monkeypatch.setattr(KafkaSourceConfig, "build_source", ask)
    monkeypatch.setattr(Store, "snapshots", away)
    monkeypatch.setattr("tenacity.nap.time", SimpleNamespace(sleep=wait))
    with pytest.raises(Enough):
        kafka_job.run_worker(load_config("job.yaml"), accepted=Accepted())
    first, second = [line for line in capsys.readouterr().err.splitlines() if "trying again" in line]
    assert "the brokers do not answer" in first
    assert "the database does not answer; trying again" in second
    assert closed


def test_a_party_that_is_stopped_while_it_waits_does_not_try_again(monkeypatch: pytest.MonkeyPatch) -> None:
    tries: list[bool] = []

    def attempt(stopping: shuffle.Stopping) -> None:
        tries.append(stopping())
        if stopping():
            raise Enough
        raise SourceUnavailableError("the brokers do not answer")

    monkeypatch.setattr("tenacity.nap.time", SimpleNamespace(sleep=lambda _: signal.raise_signal(signal.SIGTERM)))
    source = ShuffleSourceConfig(type="shuffle", brokers="host:1", points="p", messages="m", shuffled="s")
    assert shuffle._patiently(source, attempt) == "stopped"
    assert tries == [False]
