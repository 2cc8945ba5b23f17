"""What the live page gets beside the model."""

import asyncio
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from streamdp.config.job import JobConfig
from streamdp.data.records import Shard
from streamdp.service import pages
from streamdp.service.jobs import Job
from streamdp.store.snapshot import Counts, Part
from streamdp.store.store import Store
from tests.support.service import client, job, record

SHARDS = [Shard("t", 0), Shard("t", 1)]


@contextmanager
def learned_elsewhere(folder: Path) -> Iterator[tuple[JobConfig, Store, Mapping[str, Any]]]:
    """A job that its own workers learn, its store with `SHARDS`, and the state of a model without records."""
    config = job(folder, source={"type": "csv", "path": "never-read.csv"})
    state = config.build_estimator().state_dict()  # type: ignore[attr-defined]
    named: Any = {"cap": config.cap_budget, "config": config.text(), "shared": True}
    with Store(config.store_path, config.job, config.fingerprint(), **named) as store:
        store.claim(SHARDS)
        yield config, store, state


def test_the_history_adds_up_the_shards_as_they_were(tmp_path: Path) -> None:
    with learned_elsewhere(tmp_path) as (config, store, state):
        for shard, learned, dead in ((0, 10, 0), (1, 5, 1), (0, 30, 2)):
            store.commit_parts({SHARDS[shard]: Part(state, {"offset": learned}, Counts(learned, 0, dead))})
    with client(config) as http:
        rows = http.get("/page/job/late").json()["history"]
    assert [(row["learned"], row["dead"]) for row in rows] == [(10, 0), (15, 1), (35, 3)]


def test_a_job_without_commits_has_no_history(tmp_path: Path) -> None:
    with client(job(tmp_path)) as http:
        found = http.get("/page/job/late").json()
        assert (found["history"], found["constant"], found["reasons"]) == ([], None, {})
        assert http.get("/page/job/nobody").status_code == 404


def test_a_page_does_not_wait_for_brokers_that_another_one_asks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before, pages of one job held all threads of the service, and calls of other jobs waited for them."""
    config = job(tmp_path, source={"type": "kafka", "topic": "t", "brokers": "127.0.0.1:1"})
    found, meanwhile = Job(config), []
    monkeypatch.setattr(pages, "_unread", lambda *_: meanwhile.append(pages.lag(found)) or 7)
    assert (pages.lag(found), meanwhile) == (7, [None])


def test_people_are_counted_by_the_share_of_their_cap(tmp_path: Path) -> None:
    with client(job(tmp_path, cap="eps=4"), job(tmp_path, "free", cap=None)) as http:
        sent = [record(i, subject=f"p{i % 3}") for i in range(7)] + [record(1, subject="p0")]
        assert http.post("/v1/models/late/learn", json={"records": sent}).json()["learned"] == 8
        spent = http.get("/page/job/late").json()["spent"]
        assert [(row["share"], row["people"]) for row in spent] == [(0.25, 0), (0.5, 2), (0.75, 0), (0.9, 0), (1.0, 1)]
        assert http.get("/page/job/free").json()["spent"] is None


def test_reasons_are_noted_over_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("streamdp.service.jobs._BETWEEN_S", 0.0)
    with client(job(tmp_path)) as http:
        for call in ({"x": {}, "y": "True", "subject": "a"}, {"x": {}, "y": "True"}):
            assert http.post("/v1/models/late/learn", json={"records": [call]}).json()["dead"]
        rows = http.get("/page/job/late").json()["reasons_over_time"]
    assert [sum(row["reasons"].values()) for row in rows] == [1, 2]
    assert rows[0]["at"] <= rows[1]["at"]


def test_a_job_that_others_learn_shows_how_many_records_wait(tmp_path: Path) -> None:
    """Their number changes without a commit: nobody gets an event, and the version stays."""
    with learned_elsewhere(tmp_path) as (config, store, state):
        store.commit_parts({shard: Part(state, {"offset": 10}, Counts(10)) for shard in SHARDS})
        with client(config) as http:
            followed = http.app.state.jobs["late"]  # type: ignore[attr-defined]
            events: list[Any] = []
            followed.listeners.add(lambda *event: events.append(event))
            store.note_waiting({SHARDS[0]: 3, SHARDS[1]: 4})
            asyncio.run(followed.refresh())
            found = http.get("/v1/models/late").json()
            assert (found["version"], found["learned"], found["waiting"]) == (2, 20, 7)
            assert http.get("/page/job/late").json()["waiting"] == 7
            assert 'streamdp_waiting{job="late"} 0.0' in http.get("/metrics").text  # an alert is about calls
            assert not events
