"""Devices, a shuffler and a learner, each with a service of its own."""

from pathlib import Path
from typing import Any

import httpx
import pytest

from streamdp.client import Device, Outcome
from streamdp.config.job import JobConfig, make_config
from streamdp.errors import ServiceError
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
        mixing = job(tmp_path, {"type": "mixer", "learner": str(at_learner.base_url)}, **more)
        with client(mixing) as at_shuffler, Device(str(at_shuffler.base_url), "late") as device:
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


def test_a_batch_waits_for_a_learner_that_does_not_answer(tmp_path: Path) -> None:
    config = job(tmp_path, {"type": "http"})
    with client(config) as at_learner:
        address = str(at_learner.base_url)
        with client(shuffler(tmp_path, address)) as at_shuffler:
            mixing = at_shuffler.app.state.jobs["late"]  # type: ignore[attr-defined]
            link = mixing._link
            sent: list[str] = []

            class Lost:
                """The learner takes a call, and its first answer is lost."""

                def send(self, key: str, body: bytes) -> bytes:
                    sent.append(key)
                    answer: bytes = link.send(key, body)
                    return answer if len(sent) > 1 else b"lost"

                def __getattr__(self, name: str) -> Any:
                    return getattr(link, name)

            mixing._link = Lost()
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


def test_a_shuffler_of_fewer_people_than_promised_is_told_so(tmp_path: Path) -> None:
    config = job(tmp_path, {"type": "http"})
    with client(config) as at_learner:
        fewer = {"type": "mixer", "learner": str(at_learner.base_url)}
        with client(job(tmp_path, fewer, shuffled={"people": 2, "delta": 1e-3})) as at_shuffler:
            report(at_shuffler, 2)
            wait_until(lambda: "409" in str(at_shuffler.get("/v1/models/late").json()["trouble"]))
    assert learned(config) == 0
