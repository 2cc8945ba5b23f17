"""The start of a Kafka worker: it waits for its servers."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from streamdp.cli import kafka_job
from streamdp.config.job import Accepted, load_config
from streamdp.errors import StoreUnavailableError
from streamdp.store.store import Store

JOB = """
job: away
schema: {target: {column: y, bounds: [0, 1]}, features: {a: {bounds: [0, 1]}}}
model: {trust: nobody, budget: eps=1}
source: {type: kafka, brokers: "127.0.0.1:1", topic: t, options: {bootstrap_timeout_ms: 200}}
store: s.db
"""


class Enough(Exception):
    """The test has seen what it waits for."""


def test_a_database_that_goes_away_during_the_start_is_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The kill matrix found it: the store was open, and the next question ended the worker."""
    snapshots, asked, waited = Store.snapshots, [], []

    def away(*arguments: Any) -> Any:
        asked.append(arguments)
        if len(asked) == 1:
            raise StoreUnavailableError("the database does not answer")
        return snapshots(*arguments)

    def wait(seconds: float) -> None:
        waited.append(seconds)
        if len(waited) == 2:
            raise Enough

    monkeypatch.chdir(tmp_path)
    Path("job.yaml").write_text(JOB)
    monkeypatch.setattr(Store, "snapshots", away)
    monkeypatch.setattr(kafka_job, "time", SimpleNamespace(sleep=wait))
    with pytest.raises(Enough):
        kafka_job.run_worker(load_config("job.yaml"), accepted=Accepted())
    first, second = [line for line in capsys.readouterr().err.splitlines() if "trying again" in line]
    assert "the database does not answer; trying again" in first
    assert "no answer from" in second
