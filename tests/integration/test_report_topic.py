"""A job whose reports come by a Kafka topic as well as by calls."""

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx

from servers.broker import Broker
from streamdp.protocol.local_half import LocalHalf
from streamdp.service.jobs import Job
from streamdp.service.pages import lag
from streamdp.store.store import Store
from tests.support import topics
from tests.support.service import client, job

PATIENCE_S = 120.0
MARK = "marked"


def produce(broker: Broker, topic: str, *values: bytes | None) -> None:
    topics.send(broker.bootstrap, topic, ((b"nothing" if value is None else None, value) for value in values))


def counted(http: httpx.Client, total: int) -> tuple[int, int, int]:
    """What is learned, refused and dead when so many reports are counted."""
    deadline = time.monotonic() + PATIENCE_S
    while True:
        found = http.get("/v1/models/late").json()
        numbers = found["learned"], found["refused"], found["dead"]
        if sum(numbers) >= total:
            return numbers
        assert time.monotonic() < deadline, (numbers, http.get("/readyz").text)
        time.sleep(0.05)


def device(http: httpx.Client) -> LocalHalf:
    return LocalHalf(http.get("/v1/models/late/randomizer").content, None)


def report(half: LocalHalf, name: str, subject: str) -> dict[str, Any]:
    return half.report({"dep_delay": 3.0, "origin": "JFK"}, "True", name, subject=subject)


def test_reports_of_a_topic_are_checked_and_count_once(
    tmp_path: Path, broker: Broker, make_topic: Callable[..., str]
) -> None:
    topic = make_topic(2)
    source = {"type": "kafka", "content": "reports", "topic": topic, "brokers": broker.bootstrap, "max_staleness": 3}
    model = {"estimator": "LDPASGDClassifier", "budget": "eps=1", "scaling": "none"}
    config = job(tmp_path, source=source, model=model, cap="eps=1")
    with client(config) as http:
        half = device(http)
        first, second = report(half, "first", f"{MARK}-1"), report(half, "second", f"{MARK}-2")
        produce(broker, topic, *(json.dumps(item).encode() for item in (first, first, second)))
        assert counted(http, 2) == (2, 0, 0)
        again = http.post("/v1/models/late/reports", json={"reports": [first]})  # the other way in
        assert again.json()["learned"] == 1
        assert counted(http, 2) == (2, 0, 0)

        forged = [0.125 * i for i in range(len(first["gradient"]))]
        bad: list[Any] = [
            first | {"id": "a", "budget": "eps=2"},
            first | {"id": "b", "version": 10**6},
            first | {"id": "c", "gradient": forged},
            first | {"subject": f"{MARK}-3"},
            {"id": MARK},
        ]
        produce(broker, topic, b"no JSON, " + MARK.encode(), None, *(json.dumps(item).encode() for item in bad))
        assert counted(http, 9) == (2, 0, 7)
        produce(broker, topic, json.dumps(report(device(http), "over the cap", f"{MARK}-1")).encode())
        assert counted(http, 10) == (2, 1, 7)
        reasons = {"budget", "version", "impossible", "id_reused", "malformed"}
        assert reasons == set(http.get("/page/job/late").json()["reasons"])
        assert http.get("/page/job/late").json()["lag"] == 0

    produce(broker, topic, json.dumps(second).encode())  # while the service is away
    followed = job(tmp_path, "of workers", source={"type": "kafka", "topic": topic, "brokers": broker.bootstrap})
    assert lag(Job(followed)) == 12  # its workers have committed nothing
    with client(config) as http:
        for _ in range(5):
            assert http.post("/v1/models/late/reports", json={"reports": [{}]}).json()["dead"]
        produce(broker, topic, json.dumps(first | {"id": "old", "subject": f"{MARK}-4"}).encode())
        assert counted(http, 16) == (2, 1, 13)
        assert http.get("/page/job/late").json()["reasons"]["stale"] == 1
        assert http.get("/readyz").status_code == 200
    snapshot = Store.snapshot(config.store_path)
    assert sum(snapshot.position["place"][number] for number in ("0", "1")) == 13
    for path in tmp_path.iterdir():
        assert MARK.encode() not in path.read_bytes()


def test_reports_about_statistics_come_by_a_topic_and_count_once(
    tmp_path: Path, broker: Broker, make_topic: Callable[..., str]
) -> None:
    topic = make_topic(2)
    schema = {"features": {"hours": [0, 60], "sector": ["public", "private"]}}
    declared = {"hours": {"mean": "hours"}, "median": {"quantile": 0.5, "of": "hours"}, "s": {"proportion": "sector"}}
    source = {"type": "kafka", "content": "reports", "topic": topic, "brokers": broker.bootstrap}
    model = {"trust": "nobody", "budget": "eps=4"}
    config = job(tmp_path, source=source, schema=schema, statistics=declared, model=model, cap=None)
    sent: list[bytes] = []
    with client(config) as http:
        for i in range(4):  # each round answers one document
            half = device(http)
            made = [half.report({"hours": 30 + n % 10, "sector": "private"}, None, f"{i} {n}") for n in range(100)]
            sent += [json.dumps(report).encode() for report in made]
            produce(broker, topic, *sent[-100:])
            assert counted(http, 100 * (i + 1)) == (100 * (i + 1), 0, 0)
        bad = [made[0] | {"id": "a", "answer": [9]}, made[0] | {"id": "b", "statistic": 3}, {"id": MARK}]
        produce(broker, topic, sent[0], *(json.dumps(item).encode() for item in bad))
        assert counted(http, 403) == (400, 0, 3)
        assert set(http.get("/page/job/late").json()["reasons"]) == {"impossible", "question", "malformed"}
        asked = http.get("/v1/models/late/randomizer").json()["thresholds"]
    assert asked != [[], [0.0], []]
    produce(broker, topic, sent[7], sent[250])  # while the service is away
    with client(config) as http:
        assert http.get("/v1/models/late/randomizer").json()["thresholds"] == asked
        produce(broker, topic, json.dumps(device(http).report({"hours": 1, "sector": "public"}, None, "last")).encode())
        assert counted(http, 404) == (401, 0, 3)
        rows = http.get("/v1/models/late/statistics").json()["statistics"]
        (mean,) = [row["value"] for row in rows if row["statistic"] == "hours"]
        assert 25 < mean < 45
