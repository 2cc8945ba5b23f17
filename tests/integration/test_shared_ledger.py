"""Two jobs that read one topic of a real broker at the same time, with one ledger in PostgreSQL."""

from __future__ import annotations

import contextlib
import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy.engine import make_url

from streamdp.cli.kafka_job import produce
from streamdp.ledger.report import ledger_status
from streamdp.ledger.subject_key import ENVIRONMENT
from tests.support.commands import Command, Quick
from tests.support.kafka_job import counts

pytestmark = pytest.mark.slow
JOB = """job: {job}
source: {{type: kafka, topic: {topic}}}
schema:
  features: {{delay: [-30, 60]}}
  target: {{column: late, classes: ["False", "True"]}}
  subject: tail
model: {{estimator: LDPASGDClassifier, budget: eps=1}}
cap: eps=20
commit: {{seconds: 0.2}}
store: {store}
ledger: {ledger}
"""
PEOPLE, CAP = 40, 20


@pytest.mark.parametrize(
    "stores", ["on the server of the ledger", pytest.param("in files", marks=pytest.mark.campaign)]
)
def test_two_jobs_on_one_topic_share_the_cap(
    tmp_path: Path, broker: Any, make_topic: Callable[..., str], server_database: str, quick: Quick, stores: str
) -> None:
    topic = make_topic(2)
    tails = [f"t{(i * i) % PEOPLE}" for i in range(1500)]
    rows = [f"{i % 90 - 30},{i % 3 == 0},{tail}" for i, tail in enumerate(tails)]
    (tmp_path / "data.csv").write_text("\n".join(["delay,late,tail", *rows]) + "\n")
    assert produce(str(tmp_path / "data.csv"), topic, broker.bootstrap, "tail") == len(rows)
    database = make_url(server_database)
    places = {job: server_database if "server" in stores else str(tmp_path / f"{job}.db") for job in ("late", "slow")}
    with contextlib.ExitStack() as stack:
        for job, store in places.items():
            text = JOB.format(job=job, topic=topic, store=store, ledger=server_database)
            (tmp_path / f"{job}.yaml").write_text(text)
        key = {ENVIRONMENT: "5a" * 32}
        arguments = ("--idle-seconds", "3")
        workers = [
            stack.enter_context(Command(tmp_path, broker.bootstrap, "run", f"{job}.yaml", *arguments, **key))
            for job in places
        ]
        assert [worker.end() for worker in workers] == [0, 0], [worker.errors for worker in workers]
    found = {job: counts(store, job) for job, store in places.items()}
    assert all(count.learned + count.refused == len(rows) for count in found.values())
    there = Counter(tails)
    assert sum(count.learned for count in found.values()) == sum(min(CAP, 2 * n) for n in there.values())
    status = ledger_status(server_database)
    assert {job.job: job.records for job in status.jobs} == {job: count.learned for job, count in found.items()}
    assert (status.people, status.own_caps) == (len(there), 0)
    assert [set(job.shards) for job in status.jobs] == [{f"{topic}/0", f"{topic}/1"}] * 2
    shown = quick("statement", places["late"], "--job", "late")[1]
    assert "the person's total over all jobs of its ledger would pass eps=20" in shown
    code, out, _ = quick("ledger", "status", server_database)
    assert code == 0
    assert f"{topic}/1: commit" in out
    for text in (out, json.dumps([w.events for w in workers]), *(e for w in workers for e in w.errors)):
        assert not database.password or database.password not in text
        assert "t39" not in text
