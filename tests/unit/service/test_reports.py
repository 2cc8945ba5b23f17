"""Devices over the real service: reports are learned once, what is not from the agreed randomizer is dead."""

import json
from pathlib import Path
from typing import Any

import httpx
import pytest

from streamdp.client import Device
from streamdp.config.job import JobConfig
from streamdp.errors import SchemaError
from streamdp.protocol.local_half import LocalHalf
from streamdp.store.store import Store
from tests.support.node import node
from tests.support.service import client, job

PERSON = {"dep_delay": 20.0, "origin": "JFK"}


def fresh(http: httpx.Client, name: str, subject: str | None = None, y: str = "True") -> dict[str, Any]:
    """The report of a new device."""
    half = LocalHalf(http.get("/v1/models/late/randomizer").content)
    return half.report(PERSON, y, name, subject=subject or f"person of {name}")


def send(http: httpx.Client, *reports: Any, **headers: str) -> dict[str, Any]:
    answer = http.post("/v1/models/late/reports", json={"reports": reports}, headers=headers)
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    return found


def url(http: httpx.Client) -> str:
    return str(http.base_url)


def committed(config: JobConfig) -> tuple[int, int, int]:
    (snapshot,) = Store.snapshots(config.store_path, config.job)
    return snapshot.counts.learned, snapshot.counts.refused, snapshot.counts.dead_letters


def test_a_person_reports_up_to_the_cap(tmp_path: Path) -> None:
    config = job(tmp_path, cap="eps=2")
    with client(config) as http, Device(url(http), "late") as device:
        outcomes = [device.report(PERSON, "True", subject="ann").outcome for _ in range(3)]
    assert outcomes == ["learned", "learned", "refused"]
    assert committed(config) == (2, 1, 0)


@pytest.mark.slow
def test_a_report_counts_once_also_when_it_would_be_stale_or_the_service_starts_anew(tmp_path: Path) -> None:
    config = job(tmp_path, source={"type": "http", "max_staleness": 0})
    with client(config) as http:
        report = fresh(http, "a")
        first = send(http, report)
        assert (first["learned"], first["dead"]) == (1, [])
        again = send(http, report)  # it is stale now, and was learned
        assert (again["learned"], again["dead"]) == (1, [])
        stale = fresh(http, "b")
        send(http, fresh(http, "c"))
        assert send(http, stale)["dead"] == [{"index": 0, "reason": "stale"}]
        assert send(http, report | {"budget": "eps=0.5"})["dead"] == [{"index": 0, "reason": "id_reused"}]
    with client(config) as http:
        assert send(http, report)["learned"] == 1
    assert committed(config)[0] == 2


def test_a_call_tells_each_report_its_outcome(tmp_path: Path) -> None:
    config = job(tmp_path)
    with client(config) as http:
        good = [fresh(http, name) for name in "abcd"]
        call = [good[0], good[1] | {"gradient": [0.0] * 4}, None, good[2], good[0], good[3] | {"version": 9}]
        answer = send(http, *call)
    reasons = {d["index"]: d["reason"] for d in answer["dead"]}
    assert reasons == {1: "malformed" if "bit" in good[0] else "impossible", 2: "malformed", 5: "version"}
    assert answer["learned"] == 3  # a report that came twice is told its outcome twice
    assert committed(config) == (2, 0, 3)


def test_the_document_has_a_tag(tmp_path: Path) -> None:
    with client(job(tmp_path)) as http:
        path = "/v1/models/late/randomizer"
        first = http.get(path)
        assert first.headers["Content-Type"] == "application/json"
        for tag in (first.headers["ETag"], f'"x", W/{first.headers["ETag"]}', "*"):
            same = http.get(path, headers={"If-None-Match": tag})
            assert (same.status_code, same.content) == (304, b"")
        send(http, fresh(http, "a"))
        changed = http.get(path, headers={"If-None-Match": first.headers["ETag"]})
        assert changed.status_code == 200
        assert changed.json()["version"] == first.json()["version"] + 1
        assert changed.json()["agreement"] == first.json()["agreement"]


BODIES = [
    (b"", 400),
    (b"[]", 400),
    (b'{"reports": 1}', 400),
    (b'{"reports": [], "x": 1}', 400),
    (b'{"reports": []}', 200),
]


@pytest.mark.slow
def test_other_bodies_are_refused(tmp_path: Path) -> None:
    with client(job(tmp_path)) as http:
        for body, status in BODIES:
            headers = {"Content-Type": "application/json"}
            assert http.post("/v1/models/late/reports", content=body, headers=headers).status_code == status
            many = json.dumps({"reports": [0] * 10_001}).encode()
            assert http.post("/v1/models/late/reports", content=many, headers=headers).status_code == 413


def test_jobs_that_take_no_reports_say_so(tmp_path: Path) -> None:
    csv = job(tmp_path, "csv", source={"type": "csv", "path": "never-read.csv"})
    loud = job(tmp_path, "loud", model={"estimator": "LDPASGDClassifier", "mechanism": "none"})
    with client(csv, loud) as http:
        for name in ("csv", "loud"):
            answer = http.get(f"/v1/models/{name}/randomizer")
            assert (answer.status_code, answer.json()["type"]) == (409, "urn:streamdp:problem:no-reports")
            assert http.post(f"/v1/models/{name}/reports", json={"reports": [1]}).status_code == 409
        assert http.get("/v1/models/nobody/randomizer").status_code == 404


SURVEY: dict[str, Any] = {
    "schema": {"features": {"hours": [0, 60], "sector": ["public", "private"]}, "subject": "who"},
    "statistics": {
        "mean hours": {"mean": "hours", "by": "sector"},
        "median": {"quantile": 0.5, "of": "hours"},
        "sectors": {"proportion": "sector"},
    },
    "model": {"trust": "nobody", "budget": "eps=4"},
    "cap": "eps=8",
}
WORKER: dict[str, Any] = {"hours": 38, "sector": "private"}


def test_devices_report_about_statistics_up_to_the_cap(tmp_path: Path) -> None:
    config = job(tmp_path, **SURVEY)
    with client(config) as http, Device(url(http), "late") as device:
        outcomes = [device.report(WORKER, subject=f"p{i // 3}").outcome for i in range(90)]
        assert outcomes == ["learned", "learned", "refused"] * 30
        found = http.get("/v1/models/late/statistics").json()
        assert found["version"] > 0
        shares = {row["item"]: row["value"] for row in found["statistics"] if row["statistic"] == "sectors"}
        assert shares["private"] > shares["public"]
        statement = http.get("/v1/models/late").json()["statement"]
        assert "nobody, if reports come from people's devices" in statement
        with pytest.raises(SchemaError, match="statistics have no target"):
            device.report(WORKER, 1.0, subject="late")
    assert committed(config) == (60, 30, 0)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("changes", "x", "targets"),
    [({}, {"dep_delay": 20, "origin": "JFK"}, ["False", "True"]), (SURVEY, WORKER, [None])],
    ids=["model", "statistics"],
)
def test_a_device_in_javascript_reports_to_the_real_service(
    changes: dict[str, Any], x: dict[str, Any], targets: list[str | None], tmp_path: Path
) -> None:
    config = job(tmp_path, **changes)
    script = """
        import { webcrypto } from "node:crypto";
        globalThis.crypto ??= webcrypto;
        const { Device } = await import("./clients/js/streamdp.js");
        const [x, targets] = JSON.parse(process.argv[2]);
        const device = new Device(process.argv[1], "late"), outcomes = [];
        for (let i = 0; i < 40; i++) {
          const note = await device.report(x, targets[i % targets.length], { subject: `p${i}` });
          outcomes.push(note.outcome + (note.reason ?? ""));
        }
        console.log(JSON.stringify([outcomes, device.agreement]));
    """
    with client(config) as http, Device(url(http), "late") as device:
        ran = node("--input-type=module", "-e", script, url(http), json.dumps([x, targets]))
        assert ran.returncode == 0, ran.stderr.decode()
        outcomes, agreement = json.loads(ran.stdout)
        device.report(x, targets[-1], subject="python")
        assert agreement == device.agreement
    assert outcomes == ["learned"] * 40
    assert committed(config) == (41, 0, 0)


def test_what_quantiles_ask_outlives_the_service_and_a_report_counts_once(tmp_path: Path) -> None:
    """A device that was cut off sends its report again to the service that starts anew, which asks the same."""
    config = job(tmp_path, **SURVEY | {"statistics": {"median": SURVEY["statistics"]["median"]}})
    with client(config) as http:
        for i in range(80):
            send(http, survey_report(http, f"a{i}"))
        document = http.get("/v1/models/late/randomizer").json()
        kept = survey_report(http, "kept")
    assert document["thresholds"] != [[0.0]]
    with client(config) as http:
        again = http.get("/v1/models/late/randomizer").json()
        assert {**again, "expires_at": 0} == {**document, "expires_at": 0}
        for _ in range(2):
            assert send(http, kept)["learned"] == 1
        reasons = [{"answer": [2]}, {"statistic": 1}, {"budget": "eps=1"}, {"answer": "0"}]
        bad = [survey_report(http, f"b{i}") | change for i, change in enumerate(reasons)]
        dead = [one["reason"] for one in send(http, *bad)["dead"]]
        assert dead == ["impossible", "question", "budget", "malformed"]
    assert committed(config) == (81, 0, 4)


def survey_report(http: httpx.Client, name: str) -> dict[str, Any]:
    """The report of a new device."""
    return LocalHalf(http.get("/v1/models/late/randomizer").content).report(WORKER, None, name, subject=name)
