"""Jobs of one service do not hinder each other, and a bad one says why."""

import asyncio
import json
import sqlite3
import threading
from pathlib import Path
from typing import Any

import pytest

from streamdp.cli.serve import serve
from streamdp.config.job import NOTHING
from streamdp.errors import ConfigError, StoreDamagedError
from streamdp.service import server as running
from streamdp.service.events import event_stream
from streamdp.service.jobs import Job
from streamdp.store.snapshot import Counts
from streamdp.store.store import Store
from tests.support.commands import Quick
from tests.support.service import client, job, record


def test_a_damaged_store_stops_its_own_job_only(tmp_path: Path) -> None:
    (tmp_path / "bad.db").write_bytes(b"no database at all" * 100)
    with client(job(tmp_path), job(tmp_path, "bad")) as http:
        assert http.post("/v1/models/late/learn", json={"records": [record(1)]}).json()["learned"] == 1
        assert http.post("/v1/models/bad/learn", json={"records": [record(1)]}).status_code == 503
        answer = http.get("/readyz")
        assert (answer.status_code, "job 'bad': " in answer.json()["detail"]) == (503, True)
        assert "bad.db" in answer.json()["detail"]
        assert "job 'late'" not in answer.json()["detail"]
        assert http.get("/readyz?job=late").status_code == 200
        assert http.get("/readyz?job=nosuch").status_code == 404
        wrong = http.get("/readyz?jbo=late")
        assert (wrong.status_code, wrong.headers["content-type"]) == (400, "application/problem+json")
        assert wrong.json()["detail"] == "unknown query parameter: this path takes job; did you mean 'job'?"
        assert http.get("/?from=a-mail").status_code == 200
        troubles = {model["job"]: model["trouble"] for model in http.get("/v1/models").json()["models"]}
        assert (troubles["late"], "bad.db" in troubles["bad"]) == (None, True)


def test_a_job_without_a_database_stops_itself_only(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    dead = job(tmp_path, "bad", store="postgresql://nobody@127.0.0.1:1/none")
    with client(job(tmp_path), dead) as http:
        assert http.post("/v1/models/late/learn", json={"records": [record(1)]}).json()["learned"] == 1
        assert "job 'bad': " in http.get("/readyz").json()["detail"]
    lines = [r.getMessage() for r in caplog.records if "'bad'" in r.getMessage()]
    assert any("127.0.0.1/none" in line for line in lines)


def test_an_unexpected_error_is_said_and_does_not_end_following(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*given: Any) -> None:
        raise RuntimeError("the value 4711 of a record")

    async def troubles() -> list[str | None]:
        followed = Job(job(tmp_path, source={"type": "csv", "path": str(tmp_path / "data.csv")}))
        with monkeypatch.context() as patched:
            patched.setattr(Store, "snapshots", broken)
            await followed.start()
            found = [followed.trouble]
        await followed.refresh()
        found.append(followed.trouble)
        await followed.stop()
        return found

    unexpected, next_look = asyncio.run(troubles())
    assert unexpected == "the store cannot be read: unexpected RuntimeError"
    assert next_look is not None
    assert "late.db: there is no such store" in next_look


def test_a_question_that_takes_long_is_no_silent_database(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before, an open page of a job with many people made it unready, and calls that learned got 503."""
    ended, given_up = threading.Event(), list[str]()
    monkeypatch.setattr(Job, "give_up", lambda _, why: (given_up.append(why), ended.set()))

    async def look() -> None:
        followed = Job(job(tmp_path, source={"type": "csv", "path": str(tmp_path / "data.csv")}))
        asking = asyncio.create_task(followed.ask(ended.wait))
        await asyncio.sleep(0)
        await followed.refresh()
        ended.set()
        await asking
        await followed.stop()

    asyncio.run(look())
    assert given_up == []


def test_a_store_that_was_made_anew_is_shown(tmp_path: Path) -> None:
    """With as many commits as before, its model was taken for the one that is shown."""
    config = job(tmp_path, source={"type": "csv", "path": str(tmp_path / "data.csv")})

    async def learned() -> list[int]:
        followed, found = Job(config), []
        for records in (10, 20):
            for file in tmp_path.iterdir():
                file.unlink()
            with config.open_store(NOTHING) as store:
                state = config.build_estimator(store.ledger).state_dict()
                store.commit(state, {"row": records}, Counts(learned=records))
            await followed.refresh()
            found.append(followed.snapshot.counts.learned)
            events = event_stream(followed, asyncio.Event())
            assert b'"learned":%d' % records in await anext(events)
            await events.aclose()  # type: ignore[attr-defined]
        return found

    assert asyncio.run(learned()) == [10, 20]


def test_a_bad_configuration_stops_its_own_job_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Any] = []
    monkeypatch.setattr(running, "serve", lambda configs, *_, unusable, **__: seen.extend((configs, unusable)))
    good, bad = tmp_path / "good.yaml", tmp_path / "bad.yaml"
    good.write_text(
        "job: late\nsource: {type: http}\nschema: {features: {a: [0, 1]}, target: {column: b, bounds: [0, 1]}}\n"
        "model: {estimator: LDPSGDRegressor, budget: eps=1}\n"
    )
    bad.write_text("job: bad\n")
    serve([str(bad), str(good)])
    (config,), unusable = seen
    assert (config.job, list(unusable)) == ("late", [str(bad)])
    with pytest.raises(ConfigError, match=r"bad\.yaml"):
        serve([str(bad)])


def test_a_bad_configuration_is_named(tmp_path: Path) -> None:
    wrong = {"bad.yaml": ConfigError("bad.yaml, line 1: expected a model")}
    with client(job(tmp_path), unusable=wrong) as http:
        assert "expected a model" in http.get("/readyz").json()["detail"]
        (found,) = http.get("/v1/models").json()["unusable"]
        assert found == {"job": "bad.yaml", "trouble": str(wrong["bad.yaml"])}
        assert 'streamdp_ready{job="bad.yaml"} 0.0' in http.get("/metrics").text


@pytest.mark.parametrize(("table", "opens"), [("answers", True), ("shards", False)])
def test_a_large_file_opens_without_reading_what_grows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, table: str, opens: bool
) -> None:
    """Ten million remembered ids took 20 s at each start."""
    monkeypatch.setattr("streamdp.database.sqlite.CHECKED_BYTES", 0)
    config = job(tmp_path, cap=None)
    with client(config) as http:
        http.post("/v1/models/late/learn", json={"records": [record(i, id=i) for i in range(1000)]})
    with sqlite3.connect(config.store_path) as driver:
        driver.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        (page,) = driver.execute("SELECT rootpage FROM sqlite_schema WHERE name = ?", (table,)).fetchone()
        (size,) = driver.execute("PRAGMA page_size").fetchone()
    driver.close()
    with open(config.store_path, "r+b") as file:
        file.seek((page - 1) * size)
        file.write(b"\xff" * size)
    if opens:
        Store(config.store_path, "late", config.fingerprint(), config=config.text()).close()
    else:
        with pytest.raises(StoreDamagedError):
            Store(config.store_path, "late", config.fingerprint(), config=config.text())


@pytest.mark.parametrize(("trust", "said"), [("nobody", True), ("process", False)])
def test_serve_says_what_ldp_costs_records_that_callers_send(
    trust: str, said: bool, tmp_path: Path, quick: Quick, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = {
        "job": "late",
        "source": {"type": "http"},
        "schema": {"features": {"a": [-1, 1]}, "target": {"column": "y", "classes": ["no", "yes"]}},
        "model": {"trust": trust, "budget": "eps=1"},
        "store": "late.db",
    }
    (tmp_path / "job.yaml").write_text(json.dumps(job))
    monkeypatch.setattr("streamdp.service.server.serve", lambda *given, **more: None)
    code, _, told = quick("serve", "job.yaml", folder=tmp_path)
    assert code == 0
    assert ("do with trust: process, by `streamdp plan`; this is about records that callers send" in told) == said
