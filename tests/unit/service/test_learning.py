"""Calls that learn: answered after their commit, counted once, and dead or refused record by record."""

import asyncio
import json
import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import ExitStack, suppress
from dataclasses import astuple
from pathlib import Path
from queue import SimpleQueue
from types import SimpleNamespace
from typing import Any

import httpx
import numpy as np
import pytest

from connectors import jsonpieces
from connectors.http import Call
from servers.process import free_ports
from streamdp.client import Client
from streamdp.config.job import NOTHING
from streamdp.errors import ConfigError, SourceUnavailableError
from streamdp.service import requests
from streamdp.service.learning_job import LearningJob
from streamdp.service.problems import ProblemError
from streamdp.service.schemas import LearnAnswer
from streamdp.service.waiting import Waiting
from streamdp.store.store import Store
from tests.support.clock import FakeClock
from tests.support.service import SECRET, ServiceProcess, client, job, record
from tests.support.sizes import some
from tests.support.waiting import wait_until

LEARN = "/v1/models/late/learn"


def stored(folder: Path, name: str = "late") -> tuple[int, int, int]:
    """What the store has committed: learned, refused, dead."""
    snapshot = Store.snapshot(folder / f"{name}.db")
    return (0, 0, 0) if snapshot is None else astuple(snapshot.counts)[:3]  # type: ignore[return-value]


def learn(http: httpx.Client, records: list[Any], key: str | None = None) -> httpx.Response:
    headers = {} if key is None else {"Idempotency-Key": key}
    return http.post(LEARN, json={"records": records}, headers=headers)


def test_an_answer_comes_after_the_commit_and_the_model_shows_it(tmp_path: Path) -> None:
    with client(job(tmp_path)) as http:
        answer = learn(http, [record(i) for i in range(300)])
        LearnAnswer.model_validate(answer.json())
        assert answer.json() == {"version": 1, "learned": 300, "refused": 0, "left_out": 0, "dead": []}
        assert stored(tmp_path) == (300, 0, 0)
        found = http.get("/v1/models/late").json()
        assert (found["version"], found["learned"], found["guarantee"]["epsilon"]) == (1, 300, 1.0)
        assert learn(http, []).json() == {"version": 1, "learned": 0, "refused": 0, "left_out": 0, "dead": []}
    with client(job(tmp_path)) as http:  # it goes on from there
        assert learn(http, [record(1, subject="new")]).json()["version"] == 2
    assert stored(tmp_path) == (301, 0, 0)


def test_dead_and_refused_records_are_told_apart(tmp_path: Path) -> None:
    x = {"dep_delay": 1, "origin": "EWR"}
    bad: list[tuple[Any, str, str | None]] = [
        ({"x": x, "y": "maybe", "subject": "a"}, "unknown_class", "y"),
        ({"x": x | {"dep_delay": SECRET + "!"}, "y": "True", "subject": "a"}, "not_a_number", "dep_delay"),
        ({"x": x, "y": None, "subject": "a"}, "missing", "y"),
        ({"x": x, "y": "True"}, "missing", "subject"),
        ({"x": {"dep_delay": 1}, "y": "True", "subject": "a"}, "missing", "origin"),
        ({"x": x | {"dep_delay": [1]}, "y": "True", "subject": "a"}, "nested", "dep_delay"),
        ({"x": x | {"dep_delay": 10**400}, "y": "True", "subject": "a"}, "not_finite", "dep_delay"),
        ({"x": x, "y": "True", "subject": "a", "budget": 1e9}, "bad_budget", "budget"),
        ({"x": x, "y": "True", "subject": "a", "budget": 0}, "bad_budget", "budget"),
        ({"y": "True", "subject": "a"}, "missing", "id"),
    ]
    records: list[Any] = []
    for given, _, _ in bad:
        records += [given, record(len(records), subject="one person")]
    with client(job(tmp_path)) as http:
        answer = learn(http, records)
    assert answer.json() == {
        "version": 1,
        "learned": 5,  # the cap is eps=5
        "refused": len(bad) - 5,
        "left_out": 0,
        "dead": [
            {"index": 2 * i, "reason": reason} | ({} if column is None else {"column": column})
            for i, (_, reason, column) in enumerate(bad)
        ],
    }
    assert SECRET not in answer.text
    assert stored(tmp_path) == (5, len(bad) - 5, len(bad))


@pytest.mark.parametrize("name", ["$y", "$subject", "budget", "id", "y", "x"])
@pytest.mark.slow
def test_a_feature_may_have_any_name(name: str, tmp_path: Path) -> None:
    """Features are in a mapping of their own."""
    schema = {"features": {name: [0, 1]}, "target": {"column": "t", "bounds": [0, 1]}}
    model = {"estimator": "LDPSGDRegressor", "budget": "eps=1"}
    with client(job(tmp_path, schema=schema, model=model, cap=None)) as http:
        assert http.post("/v1/models/late/predict", json={"records": [{name: 0.75}]}).status_code == 200
        assert learn(http, [{"x": {name: 0.75}, "y": 0.5, "id": 1}]).json()["learned"] == 1


def test_records_answer_about_the_error_of_the_model(tmp_path: Path) -> None:
    with client(job(tmp_path, validation={"budget": "eps=1"})) as http:
        learn(http, [record(i) for i in range(20)])
        found = http.get("/v1/models/late").json()
    assert found["validation"]["total"]["answers"] == 20
    assert found["guarantee"]["epsilon"] == 2.0


def test_records_bring_their_own_budgets(tmp_path: Path) -> None:
    with client(job(tmp_path)) as http:
        learn(http, [record(1, budget=0.5), record(2, budget=2)])
        assert http.get("/v1/models/late").json()["guarantee"]["epsilon"] == 2.0


GOOD = b'{"x": {"dep_delay": 1, "origin": "EWR"}, "y": "True", "subject": "a"}'


REFUSED = [
    (GOOD.replace(b"1", b'1, "dep_delay": 2'), 400),
    (GOOD.replace(b'"y"', b'"y": "True", "\\u0079"'), 400),
    (GOOD.replace(b"1", b"NaN"), 400),
    (GOOD.replace(b"1", b"[" * 100_000 + b"1" + b"]" * 100_000), 400),
    (GOOD.replace(b"EWR", b"\xff"), 400),
    (GOOD.replace(b"EWR", b"\\ud800"), 400),
    (GOOD.replace(b"1", b"9" * 5000), 400),
    (GOOD.replace(b'"y"', b'"bugdet": 1, "y"'), 422),
    (GOOD.replace(b'"y"', b'"$y": 1, "y"'), 422),
    (GOOD.replace(b'"y": "True"', b'"z": "True"'), 422),
    (GOOD.replace(b'"True"', b"[1]"), 422),
    (GOOD.replace(b'"a"', b"4711.25"), 422),
    (GOOD.replace(b'"y"', b'"budget": "4711.25", "y"'), 422),
    (GOOD.replace(b'"y"', b'"id": "", "y"'), 422),
    (GOOD.replace(b'"y"', b'"id": "%s", "y"' % (b"x" * 257)), 422),
    (b'{"x": [4711.25], "y": 1}', 422),
    (b"4711.25", 422),
]


@pytest.mark.slow
def test_a_malformed_call_is_refused_as_a_whole(tmp_path: Path) -> None:
    headers = {"Content-Type": "application/json"}
    with client(job(tmp_path)) as http:
        answer = http.post(LEARN, content=b'{"records": [%s], "more": 1}' % GOOD, headers=headers)
        assert answer.status_code == 400
        for bad, status in REFUSED:
            answer = http.post(LEARN, content=b'{"records": [%s, %s]}' % (GOOD, bad), headers=headers)
            assert answer.headers["content-type"] == "application/problem+json"
            assert SECRET not in answer.text
            assert (answer.status_code, answer.json().get("index")) == (status, 1 if status == 422 else None), bad[:99]
        assert learn(http, [record(1)]).json()["learned"] == 1
    assert stored(tmp_path) == (1, 0, 0)


def test_a_record_of_a_person_who_is_in_the_batch_is_left_out_and_not_refused(tmp_path: Path) -> None:
    model = {"estimator": "PanPrivateClassifier", "budget": "mu=1"}
    ann = [record(i, subject="ann", id=str(i)) for i in range(2)]
    with client(job(tmp_path, model=model, cap="mu=100")) as http:
        answers = [learn(http, ann, key).json() for key in ("first", "other")]
    expected = {"learned": 1, "refused": 0, "left_out": 1, "dead": []}
    assert [{name: answer[name] for name in expected} for answer in answers] == [expected] * 2
    assert stored(tmp_path) == (1, 0, 0)


def test_a_subject_is_a_number_of_any_length(tmp_path: Path) -> None:
    """Beyond 2**64, numbers were rounded, and different people shared a cap."""
    people = [10**20 + i for i in range(10)]
    with client(job(tmp_path, cap="eps=1")) as http:
        assert learn(http, [record(1, subject=person) for person in people]).json()["learned"] == 10
        assert learn(http, [record(1, subject=str(person)) for person in people]).json()["refused"] == 10


def test_a_retry_with_its_key_counts_once_also_after_a_restart(tmp_path: Path) -> None:
    records = [record(i) for i in range(7)] + [{"x": {}, "y": None}]
    with client(job(tmp_path)) as http:
        first = learn(http, records, "k1").json()
        assert learn(http, records, "k1").json() == first
        answer = learn(http, records[:3], "k1")
        assert (answer.status_code, answer.json()["type"]) == (422, "urn:streamdp:problem:key-reused")
    with client(job(tmp_path)) as http:
        assert learn(http, records, "k1").json() == first
        assert learn(http, records, "k2").json()["learned"] == 7
    assert stored(tmp_path) == (14, 0, 2)


def test_a_record_with_an_id_counts_once(tmp_path: Path) -> None:
    one, other = record(1, id="r1"), record(2, id="r1")
    with client(job(tmp_path)) as http:
        assert learn(http, [one, one, record(3, id="r3")]).json()["learned"] == 3  # each of the three is learned
        assert stored(tmp_path) == (2, 0, 0)
        again = learn(http, [one, other]).json()
        assert (again["learned"], again["dead"]) == (1, [{"index": 1, "reason": "id_reused"}])
    assert stored(tmp_path) == (2, 0, 1)


def test_concurrent_duplicates_count_once(tmp_path: Path) -> None:
    with client(job(tmp_path)) as http:
        gate = threading.Barrier(8)

        def call(i: int) -> dict[str, Any]:
            gate.wait()
            return learn(http, [record(k) for k in range(50)], f"key {i % 2}").json()

        with ThreadPoolExecutor(8) as pool:
            answers = list(pool.map(call, range(8)))
    assert {json.dumps(a["learned"]) for a in answers} == {"50"}
    assert stored(tmp_path) == (100, 0, 0)


def held_commits(http: Any) -> tuple[threading.Event, threading.Event]:
    """Hold every commit of the job: the first event tells that one has begun, and the second lets all go on."""
    inside, go_on = threading.Event(), threading.Event()
    answers = http.app.state.jobs["late"].answers
    write = answers.write

    def slow(*arguments: Any) -> None:
        inside.set()
        assert go_on.wait(60)
        write(*arguments)

    answers.write = slow
    return inside, go_on


def test_many_calls_share_a_commit(tmp_path: Path) -> None:
    """While the learner is in one commit, the calls of others wait; the next commit takes all of them."""
    config = job(tmp_path)
    with client(config) as http:
        inside, go_on = held_commits(http)
        with ThreadPoolExecutor(12) as pool:
            first = pool.submit(learn, http, [record(0)])
            assert inside.wait(60)
            others = [pool.submit(learn, http, [record(i)]) for i in range(1, 11)]
            while http.app.state.jobs["late"].waiting < 10:  # type: ignore[attr-defined]
                assert not first.done()
                assert http.post("/v1/models/late/predict", json={"records": [record(1)["x"]]}).status_code == 200
            go_on.set()
            assert first.result().json()["version"] == 1
            assert {other.result().json()["version"] for other in others} == {2}
    assert stored(tmp_path) == (11, 0, 0)


def source_of(http: Any) -> Any:
    """The source of the records of a service."""
    return http.app.state.jobs["late"]._source


def test_a_service_that_ends_answers_the_calls_of_an_open_batch(tmp_path: Path) -> None:
    """Before, they waited for the end of the batch, and got 500 after six seconds; then they were committed."""
    model = {"trust": "process", "budget": "eps=1,delta=1e-6"}
    with client(job(tmp_path, model=model, cap="eps=5,delta=1e-3", commit={"seconds": 3600})) as http:
        source = source_of(http)
        with ThreadPoolExecutor(1) as pool:
            answer = pool.submit(learn, http, [record(i) for i in range(20)])
            wait_until(lambda: source.position["records"] == 20)
            http.app.state.stop()  # type: ignore[attr-defined]
            assert answer.result(600).json()["learned"] == 20
    assert stored(tmp_path) == (20, 0, 0)


def test_a_call_that_the_end_of_the_service_cuts_off_is_to_be_repeated(tmp_path: Path) -> None:
    async def cut() -> None:
        found: Any = LearningJob(job(tmp_path), NOTHING)
        vars(found).update(_source=SimpleNamespace(submit=lambda _: None), _refusal=None)
        call = asyncio.create_task(found.submit(Call(1, None, None, b"")))
        await asyncio.sleep(0)
        call.cancel()
        with pytest.raises(ProblemError, match="repeat the call"):
            await call

    asyncio.run(cut())


def test_a_full_queue_is_refused_with_429(tmp_path: Path) -> None:
    config = job(tmp_path, source={"type": "http", "queue_records": 10_000})
    with client(config) as http:
        inside, go_on = held_commits(http)
        with ThreadPoolExecutor(2) as pool:
            first = pool.submit(learn, http, [record(0)])
            assert inside.wait(60)
            second = pool.submit(learn, http, [record(i) for i in range(10_000)])
            while http.app.state.jobs["late"].waiting < 10_000:  # type: ignore[attr-defined]
                assert not first.done()
            answer = learn(http, [record(1)])
            assert (answer.status_code, answer.headers["Retry-After"]) == (429, "1")
            go_on.set()
            assert (first.result().status_code, second.result().status_code) == (200, 200)
    assert stored(tmp_path) == (10_001, 0, 0)


@pytest.mark.slow
def test_a_failed_commit_is_told_and_a_retry_counts_once(tmp_path: Path) -> None:
    with client(job(tmp_path)) as http:
        learn(http, [record(0)])
        answers = http.app.state.jobs["late"].answers  # type: ignore[attr-defined]

        def fails(*arguments: Any) -> None:
            raise OSError(SECRET)

        answers.write = fails  # of this store only: it is opened again
        answer = learn(http, [record(1)], "k")
        assert (answer.status_code, answer.json()["type"]) == (503, "urn:streamdp:problem:unavailable")
        assert SECRET not in answer.text
        assert stored(tmp_path) == (1, 0, 0)
        while (answer := learn(http, [record(1)], "k")).status_code == 503:
            pass
        assert answer.json() == {"version": 2, "learned": 1, "refused": 0, "left_out": 0, "dead": []}
    assert stored(tmp_path) == (2, 0, 0)


def test_a_job_that_learns_elsewhere_does_not_learn_here(tmp_path: Path) -> None:
    with client(job(tmp_path, source={"type": "csv", "path": "x.csv"})) as http:
        assert learn(http, [record(1)]).status_code == 409


def test_neither_database_nor_answers_hold_what_was_sent(tmp_path: Path) -> None:
    with client(job(tmp_path)) as http:
        learn(http, [record(1, id="secret-id", subject="secret-subject")], "secret-key")
        learn(http, [{"x": {"dep_delay": SECRET, "origin": "secret-place"}, "y": "True", "subject": "a"}])
    for path in tmp_path.iterdir():
        content = path.read_bytes()
        assert b"secret" not in content
        assert SECRET.encode() not in content


def test_labels_come_later(tmp_path: Path) -> None:
    x = {"dep_delay": 20, "origin": "JFK"}
    with client(job(tmp_path)) as http:
        predict = {"records": [x, x, x], "ids": ["a", None, 7]}
        wrong = {"id": "a", "y": "late", "subject": "ann"}  # its features wait for the corrected label
        assert len(http.post("/v1/models/late/predict", json=predict).json()["predictions"]) == 3
        assert learn(http, [wrong]).json()["dead"][0]["reason"] == "unknown_class"
        labels = [
            {"id": "a", "y": "True", "subject": "ann"},
            {"id": "b", "y": "True", "subject": "bob"},
            {"y": "True", "subject": "cid"},
            {"id": 7, "y": "False", "subject": "dan"},
        ]
        answer = learn(http, labels, "k").json()
        assert answer["learned"] == 2
        dead = [{"index": i, "reason": reason, "column": "id"} for i, reason in ((1, "unknown_id"), (2, "missing"))]
        assert answer["dead"] == dead
        assert learn(http, labels, "k").json() == answer
        # The features are forgotten after the commit, and the same label is remembered.
        assert learn(http, labels[:1]).json()["learned"] == 1
        changed = learn(http, [labels[0] | {"y": "False"}]).json()
        assert changed["dead"] == [{"index": 0, "reason": "id_reused"}]
        assert "wait for their label" in http.get("/v1/models/late").json()["statement"]
    assert stored(tmp_path) == (2, 0, 4)


def test_features_that_wait_are_bounded() -> None:
    clock = FakeClock()
    waiting = Waiting(10, 2, clock)

    def found(*names: str) -> list[float | None]:
        rows = [waiting.find("me", name) for name in names]
        return [None if row is None else float(row[0]) for row in rows]

    for i, name in enumerate("abc"):
        waiting.add("me", [name, None], np.array([[float(i)], [9.0]]))
        waiting.add("another", list("abcde"), np.zeros((5, 1)))
        clock.sleep(4)
    assert found("a", "b", "c") == [None, 1.0, 2.0]
    clock.sleep(4)
    assert found("b", "c") == [None, 2.0]
    waiting.forget("another", ["c"])
    assert found("c") == [2.0]
    waiting.forget("me", ["c"])
    assert found("c") == [None]


def test_features_of_a_caller_that_never_calls_again_are_forgotten_in_time() -> None:
    clock = FakeClock()
    waiting = Waiting(10, 3, clock)
    assert waiting.expire() == 10
    for caller in ("gone", "away", "gone"):
        waiting.add(caller, list("ab"), np.zeros((2, 1)))
        clock.sleep(4)
    assert (len(waiting), waiting.expire()) == (4, 2)  # a name that comes again counts from then on
    clock.sleep(2)
    assert (waiting.expire(), len(waiting)) == (4, 2)
    assert waiting.find("gone", "a") is not None
    clock.sleep(4)
    assert (waiting.expire(), len(waiting)) == (10, 0)
    assert not waiting._callers


def test_a_service_forgets_features_that_no_label_followed(tmp_path: Path) -> None:
    source = {"type": "http", "label_wait_seconds": 0.05}
    with client(job(tmp_path, source=source)) as http:
        predict = {"records": [{"dep_delay": 20, "origin": "JFK"}], "ids": ["a"]}
        assert http.post("/v1/models/late/predict", json=predict).status_code == 200
        labels = http.app.state.jobs["late"].labels  # type: ignore[attr-defined]
        wait_until(lambda: not len(labels))


def test_slow_and_half_bodies_hold_nobody(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(requests, "BODY_SECONDS", 0.5)
    with client(job(tmp_path)) as http, ExitStack() as stack:

        def learned(i: int) -> int:
            while (answer := learn(http, [record(i)])).status_code == 408:  # this process stood still for too long
                pass
            count: int = answer.json()["learned"]
            return count

        address = (http.base_url.host, http.base_url.port)
        head = b"POST /v1/models/late/learn HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        slow = [stack.enter_context(socket.create_connection(address, 60)) for _ in range(20)]
        for one in slow:
            one.sendall(head + b"Content-Length: 1000\r\n\r\n" + b'{"records": [')
        half = socket.create_connection(address, 60)
        half.sendall(head + b"Content-Length: 1000\r\n\r\n" + b'{"records": [')
        half.close()
        assert learned(1) == 1
        assert all(b"HTTP/1.1 408" in one.recv(65_536) for one in slow)
        huge = stack.enter_context(socket.create_connection(address, 60))
        huge.sendall(head + b"X: " + b"x" * 100_000)
        assert b"HTTP/1.1 4" in huge.recv(65_536)
        assert learned(2) == 1
    assert stored(tmp_path) == (2, 0, 0)


MANY = {
    b'{"records": [{"x": {%s"a": 0}}]}' % (b'"a": 0, ' * 900_000): 413,
    b'{"records": [{"x": {"a": [%s0]}}]}' % (b"0," * 3_000_000): 413,
    b'{"records": [{"x": {}}], "ids": [%s0]}' % (b"0," * 3_000_000): 413,
    b'{"records": [%s0]}' % (b"0," * 3_000_000): 413,
    b'{"reports": [%s0]}' % (b"0," * 3_000_000): 413,
    b'{"records": [{"x": {}, "y": %s}]}' % (b"9" * 5000): 400,
}


@pytest.mark.slow
@pytest.mark.parametrize("what", ["learn", "predict", "reports"])
def test_no_piece_of_a_call_that_is_parsed_at_once_is_large(
    what: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A parser keeps the interpreter: the loop answered nobody for a second."""
    parsed: list[int] = []
    parse = jsonpieces.from_json

    def noted(text: bytes, **more: Any) -> Any:
        parsed.append(text.count(b","))
        return parse(text, **more)

    monkeypatch.setattr(jsonpieces, "from_json", noted)
    headers = {"Content-Type": "application/json"}
    with client(job(tmp_path)) as http:
        for body, status in MANY.items():
            answer = http.post(f"/v1/models/late/{what}", content=body, headers=headers)
            if (what == "reports") == body.startswith(b'{"reports"'):
                assert answer.status_code == status, body[:60]
            assert "not JSON" not in answer.text
    assert parsed
    assert max(parsed) <= jsonpieces.MOST_VALUES + jsonpieces.PIECE_BYTES


@pytest.mark.slow
def test_a_call_that_fails_before_it_is_learned_is_told(tmp_path: Path) -> None:
    with client(job(tmp_path)) as http:
        source = source_of(http)

        def broken(keys: Any) -> Any:
            raise OSError(SECRET)

        source._answers = broken  # of this source only: the next attempt has another one
        assert learn(http, [record(1)], "k").status_code == 503
        told: SimpleQueue[Any] = SimpleQueue()
        try:
            source.submit(Call(1, None, None, b"", tell=[told.put]))
        except SourceUnavailableError as error:
            told.put(error)
        assert isinstance(told.get(timeout=60), SourceUnavailableError)  # nobody polls it any more
        while (answer := learn(http, [record(1)], "k")).status_code == 503:
            pass
        assert answer.json()["learned"] == 1


# -- statistics --------------------------------------------------------------------------------------------------------

PEOPLE: dict[str, Any] = {
    "schema": {"features": {"dep_delay": [-30, 60], "origin": ["EWR", "JFK", "LGA"]}, "subject": "tailnum"},
    "statistics": {"delay": {"mean": "dep_delay"}, "flights": {"count": "origin"}},
}


def estimated(folder: Path, trust: str, **more: Any) -> Any:
    budget = "eps=8" if trust == "nobody" else "eps=8,delta=1e-6"
    given = PEOPLE | {"model": {"trust": trust, "budget": budget}, "cap": "eps=8,delta=1e-3"} | more
    return job(folder, **given)


def person(i: int, **more: Any) -> dict[str, Any]:
    found = record(i, **more)
    del found["y"]
    return found


@pytest.mark.parametrize("trust", ["process", "nobody"])
def test_a_service_learns_statistics_from_records(trust: str, tmp_path: Path) -> None:
    """The answer comes when the batch has ended; a person over the cap is refused, and a bad record is dead."""
    bad = person(1, x={"dep_delay": SECRET + "!", "origin": "EWR"})
    records = [person(i) for i in range(1200)]
    with client(estimated(tmp_path, trust, commit={"seconds": 0.05})) as http:
        answer = learn(http, [*records, bad], "key")
        assert answer.json() == {
            "version": 1,
            "learned": 1200,
            "refused": 0,
            "left_out": 0,
            "dead": [{"index": 1200, "reason": "not_a_number", "column": "dep_delay"}],
        }
        assert SECRET not in answer.text
        assert learn(http, [*records, bad], "key").json() == answer.json()  # a retry counts once
        assert learn(http, [person(3)]).json()["refused"] == 1
        found = Client(str(http.base_url)).statistics("late")
        assert found["version"] >= 1
        counts = [row["value"] for row in found["statistics"] if row["statistic"] == "flights"]
        assert sum(counts) == pytest.approx(1200, abs=200)
        assert learn(http, [record(1)]).status_code == 422
    assert stored(tmp_path) == (1200, 1, 1)


@pytest.mark.parametrize("estimator", ["LDPASGDClassifier", "PanPrivateClassifier"])
def test_a_service_learns_a_model_and_statistics_from_records(estimator: str, tmp_path: Path) -> None:
    """Both are shown; a device cannot report, because its report would be about the model alone."""
    beside = {"statistics": {"flights": {"count": "origin"}, "late": {"proportion": "late"}}}
    given = {"estimator": estimator, "budget": "eps=1" if estimator[0] == "L" else "eps=1,delta=1e-6"}
    cap = {"cap": "eps=5" if estimator[0] == "L" else "eps=5,delta=5e-6", "commit": {"seconds": 0.05}}
    with client(job(tmp_path, model=given, **cap, **beside)) as http:
        assert learn(http, [record(i) for i in range(600)]).json()["learned"] == 600
        rows = http.get("/v1/models/late/statistics").json()["statistics"]
        assert {row["statistic"] for row in rows} == {"flights", "late"}
        assert http.get("/v1/models/late/weights").status_code == 200
        with http.stream("GET", "/v1/models/late/events") as events:
            line = next(line for line in events.iter_lines() if line.startswith("data: "))
        assert {"weights", "statistics"} <= json.loads(line[6:]).keys()
        assert http.get("/v1/models/late/randomizer").status_code == 409


def test_a_window_of_people_is_no_source_of_calls(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="trust: nobody, process or shuffler"):
        job(tmp_path, model={"trust": "window", "budget": "eps=1"})


def test_records_of_a_model_need_their_target(tmp_path: Path) -> None:
    with client(job(tmp_path)) as http:
        answer = learn(http, [record(1), person(2)])
    assert (answer.status_code, answer.json()["index"]) == (422, 1)
    assert "y" in answer.json()["detail"]


@pytest.mark.parametrize("kind", some(["process", "nobody", "pan-private model"], 2))
@pytest.mark.slow
def test_two_kills_of_a_service_with_batches_lose_and_repeat_no_record(kind: str, tmp_path: Path) -> None:
    """Half of the calls have no answer when the service is killed; all are sent again with their keys."""
    more: dict[str, Any] = {"commit": {"seconds": 0.2}, "store": "late.db"}
    if has_model := kind == "pan-private model":
        config = job(tmp_path, model={"trust": "process", "budget": "eps=1"}, cap="eps=1,delta=1e-3", **more)
    else:
        config = estimated(tmp_path, kind, **more)
    (tmp_path / "late.yaml").write_text(config.model_dump_json(by_alias=True, exclude_unset=True))  # JSON is YAML
    calls = [[(record if has_model else person)(20 * k + i) for i in range(20)] for k in range(40)]
    answered: set[int] = set()

    def send(http: httpx.Client, k: int) -> None:
        with suppress(httpx.HTTPError):
            if learn(http, calls[k], f"call {k}").status_code == 200:
                answered.add(k)

    port = free_ports(tmp_path, ["service"])["service"]
    for size in (20, 40):
        service = ServiceProcess(tmp_path, port)
        with httpx.Client(base_url=service.address, timeout=60) as http, ThreadPoolExecutor(20) as pool:
            sent = [pool.submit(send, http, k) for k in range(size) if k not in answered]
            while not answered:
                time.sleep(0.001)
            service.kill()
            wait(sent)
    with ServiceProcess(tmp_path, port) as service, httpx.Client(base_url=service.address, timeout=60) as http:
        with ThreadPoolExecutor(20) as pool:
            outcomes = list(pool.map(lambda k: learn(http, calls[k], f"call {k}").json(), range(40)))
        assert all((found["learned"], found["refused"]) == (20, 0) for found in outcomes)
    assert stored(tmp_path) == (800, 0, 0)
