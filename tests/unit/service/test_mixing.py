"""Devices, a shuffler and a learner, each with a service of its own."""

import asyncio
import time
from pathlib import Path
from typing import Any

import httpx
import pytest

from connectors.learnerlink import LearnerLink
from streamdp.client import Device, Outcome
from streamdp.config.job import JobConfig, make_config
from streamdp.errors import ServiceError, SourceError, SourceUnavailableError
from streamdp.service import mixing
from streamdp.service.problems import ProblemError
from streamdp.store.store import Store
from tests.support.service import client
from tests.support.waiting import wait_until

PERSON = {"dep_delay": 20.0, "origin": "JFK"}


def job(folder: Path, source: dict[str, Any], **more: Any) -> JobConfig:
    settings = {
        "job": "late",
        "source": source,
        "schema": {
            "features": {"dep_delay": [-30, 60], "origin": ["EWR", "JFK", "LGA"]},
            "target": {"column": "late", "classes": ["False", "True"]},
        },
        "model": {"trust": "nobody", "budget": "eps=2"},
        "shuffled": {"people": 20, "delta": 1e-3},
        "store": str(folder / f"{source['type']}.db"),
    }
    return make_config(settings | more)


def shuffler(folder: Path, learner: str) -> JobConfig:
    return job(folder, {"type": "mixer", "learner": learner})


def report(http: httpx.Client, count: int) -> None:
    for _ in range(count):
        with Device(str(http.base_url), "late") as device:
            assert device.report(PERSON, "True") == Outcome("learned")


def learned(config: JobConfig) -> int:
    return sum(snapshot.counts.learned for snapshot in Store.snapshots(config.store_path, config.job))


def test_devices_report_through_a_shuffler(tmp_path: Path) -> None:
    config = job(tmp_path, {"type": "http"})
    with client(config) as at_learner, client(shuffler(tmp_path, str(at_learner.base_url))) as at_shuffler:
        path = "/v1/models/late/randomizer"
        report(at_shuffler, 19)
        first = at_shuffler.get(path).json()
        assert learned(config) == 0  # nothing of an open batch is shown
        assert at_shuffler.get("/v1/models/late").json()["waiting"] == 19
        report(at_shuffler, 1)
        wait_until(lambda: learned(config) == 20)
        second = at_shuffler.get(path).json()  # it is that of the learner's next commit
        assert second["version"] != first["version"]
        document = at_learner.get(path).json()
        assert document["theta"] == second["theta"]
        assert document["agreement"] == second["agreement"] == first["agreement"]
        said = at_learner.get("/v1/models/late").json()["statement"]
        assert "epsilon = 2: no output" in said
        assert "If people trust a shuffler that shows the reports of at least 20 honest people at once" in said
        record = {"x": PERSON, "y": "True"}
        refused = at_learner.post("/v1/models/late/learn", json={"records": [record]})
        assert (refused.status_code, refused.json()["type"]) == (409, "urn:streamdp:problem:shuffled")


def test_devices_report_about_statistics_through_a_shuffler(tmp_path: Path) -> None:
    """The second promise is that of a model with the same budget, and quantiles learn from whole batches."""
    declared = {"shares": {"proportion": "origin"}, "median": {"quantile": 0.5, "of": "dep_delay", "share": 4}}
    schema = {"features": {"dep_delay": [-30, 60], "origin": ["EWR", "JFK", "LGA"]}}
    more = {"schema": schema, "statistics": declared, "shuffled": {"people": 60, "delta": 1e-3}}
    config = job(tmp_path, {"type": "http"}, **more)
    with client(config) as at_learner:
        second = job(tmp_path, {"type": "mixer", "learner": str(at_learner.base_url)}, **more)
        with client(second) as at_shuffler, Device(str(at_shuffler.base_url), "late") as device:
            path = "/v1/models/late/randomizer"
            before = at_shuffler.get(path).json()
            for batch in (1, 2):
                for _ in range(60):
                    assert device.report(PERSON) == Outcome("learned")
                wait_until(lambda batch=batch: learned(config) == 60 * batch)  # type: ignore[misc]
            after = at_shuffler.get(path).json()
            assert after["agreement"] == before["agreement"]
            assert (before["thresholds"], after["thresholds"]) != (before["thresholds"], before["thresholds"])
            said = at_learner.get("/v1/models/late").json()["statement"]
            assert "epsilon = 2: no output" in said
            assert "If people trust a shuffler that shows the reports of at least 60 honest people at once" in said


def test_a_batch_waits_for_a_learner_that_does_not_answer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config, send, sent = job(tmp_path, {"type": "http"}), LearnerLink.send, []

    def lost(link: LearnerLink, key: str, body: bytes) -> int:
        """The learner takes a call, and its first answer is lost."""
        sent.append(key)
        unusable = send(link, key, body)
        if len(sent) == 1:
            raise SourceUnavailableError("the learner's service: ReadError")
        return unusable

    monkeypatch.setattr(LearnerLink, "send", lost)
    with client(config) as at_learner:
        address = str(at_learner.base_url)
        with client(shuffler(tmp_path, address)) as at_shuffler:
            report(at_shuffler, 20)
            wait_until(lambda: len(sent) == 2)
            assert sent[0] == sent[1]  # so that it counts once
            assert learned(config) == 20
            report(at_shuffler, 1)
    with client(shuffler(tmp_path, address)) as alone, Device(str(alone.base_url), "late") as device:
        with pytest.raises(ServiceError):
            device.report(PERSON, "True", id="r")
        assert "the learner's service" in alone.get("/v1/models/late").json()["trouble"]
    assert learned(config) == 20  # the report of the batch that was open is lost, and shown to nobody


@pytest.mark.parametrize("headers", [{}, {"Mixed-People": "19"}, {"Mixed-People": "many"}])
def test_the_learner_takes_no_report_that_was_mixed_with_fewer_than_it_promises(
    tmp_path: Path, headers: dict[str, str]
) -> None:
    with client(job(tmp_path, {"type": "http"})) as at_learner:
        refused = at_learner.post("/v1/models/late/reports", json={"reports": [{}]}, headers=headers)
        assert (refused.status_code, refused.json()["type"]) == (409, "urn:streamdp:problem:mixed-fewer")


def test_a_shuffler_of_fewer_people_than_promised_shows_what_the_learner_says(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It said "409", again and again each second."""
    config, send, calls = job(tmp_path, {"type": "http"}), LearnerLink.send, []
    monkeypatch.setattr(LearnerLink, "send", lambda *call: calls.append(call) or send(*call))
    with client(config) as at_learner:
        fewer = {"type": "mixer", "learner": str(at_learner.base_url)}
        with client(job(tmp_path, fewer, shuffled={"people": 2, "delta": 1e-3})) as at_shuffler:
            report(at_shuffler, 2)
            said = "it answered 409: expected reports of a shuffler that mixes at least 20 people"
            wait_until(lambda: said in str(at_shuffler.get("/v1/models/late").json()["trouble"]))
            time.sleep(1.5)
            assert len(calls) == 1
    for message in (said, "reports of a closed batch are lost"):
        assert sum(message in record.getMessage() for record in caplog.records) == 1
    assert learned(config) == 0


def test_devices_wait_together_for_a_learner_that_does_not_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each one waited behind those before it."""
    monkeypatch.setattr(mixing, "ANSWER_S", 0.2)

    async def asked() -> tuple[float, list[Any]]:
        shuffling = mixing.MixingJob(shuffler(tmp_path, "http://127.0.0.1:1"))
        monkeypatch.setattr(shuffling.mixer, "next_call", lambda: ("key", b""))
        shuffling._forwarding = asyncio.create_task(asyncio.sleep(60))
        began = time.monotonic()
        found = await asyncio.gather(*(shuffling.document() for _ in range(50)), return_exceptions=True)
        await shuffling.stop()
        return time.monotonic() - began, found

    monkeypatch.setattr(mixing, "_STOP_S", 0.0)
    took, found = asyncio.run(asked())
    assert {type(error) for error in found} == {ProblemError}
    assert took < 5


def answering(status: int, body: bytes) -> LearnerLink:
    link = LearnerLink("http://learner", "late", 2)
    answer = httpx.MockTransport(lambda request: httpx.Response(status, content=body))
    link._client = httpx.Client(base_url="http://learner", transport=answer)
    return link


@pytest.mark.parametrize(
    ("status", "body", "said"),
    [
        (200, b"<html>", "does not say what became of the reports"),  # it was taken for a batch that was learned
        (200, b"{}", "does not say what became of the reports"),
        (200, b'{"dead": 1}', "does not say what became of the reports"),
        (503, b'{"detail": "the store does not answer"}', "it answered 503: the store does not answer"),
        (429, b"", "it answered 429"),
    ],
)
def test_a_learner_that_has_not_taken_a_batch_is_asked_again(status: int, body: bytes, said: str) -> None:
    with pytest.raises(SourceUnavailableError, match=said):
        answering(status, body).send("key", b"{}")


@pytest.mark.parametrize(
    ("body", "said"),
    [(b"[1]", "409"), (b'{"detail": "a\\nb"}', "409: a b"), (b'{"detail": "%s"}' % (b"x" * 999), f"409: {'x' * 300}")],
)
def test_what_a_learner_says_is_one_short_line(body: bytes, said: str) -> None:
    with pytest.raises(SourceError) as error:
        answering(409, body).document()
    assert str(error.value) == f"the learner's service: it answered {said}"
    assert not isinstance(error.value, SourceUnavailableError)
