"""What one caller sends never becomes a part of what another caller has sent."""

from hashlib import sha256
from pathlib import Path
from typing import Any

import httpx
import pytest

from streamdp.service.access import tokens_in
from tests.support.service import client, job, record

X = {"dep_delay": 20, "origin": "JFK"}
MODEL = "/v1/models/late"


def tokens(**scopes: str) -> Any:
    return tokens_in(";".join(f"{sha256(name.encode()).hexdigest()}:{found}" for name, found in scopes.items()))


def call(http: httpx.Client, token: str, path: str, body: Any, **headers: str) -> httpx.Response:
    return http.post(f"{MODEL}/{path}", json=body, headers={"Authorization": f"Bearer {token}"} | headers)


def predict(http: httpx.Client, token: str, *names: Any, x: dict[str, Any] = X) -> httpx.Response:
    return call(http, token, "predict", {"records": [x] * len(names), "ids": list(names)})


def label(http: httpx.Client, token: str, *names: Any) -> dict[str, Any]:
    records = [{"id": name, "y": "True", "subject": f"person {name}"} for name in names]
    found: dict[str, Any] = call(http, token, "learn", {"records": records}).json()
    return found


PLANTED = [{"$budget": 1_000_000}, {"$subject": "me"}, {"$y": "False"}, {"budget": 5}, {"id": "a"}, {"y": "False"}]


@pytest.mark.slow
def test_a_prediction_that_carries_control_fields_is_refused(tmp_path: Path) -> None:
    """A token that may only predict set the budget, the subject or the label of the record of another token."""
    with client(job(tmp_path, cap=None), tokens=tokens(attacker="predict", owner="predict,learn,read")) as http:
        for planted in PLANTED:
            answer = call(http, "attacker", "predict", {"records": [X | {"id": "a"} | planted]})
            assert (answer.status_code, answer.json()["index"]) == (422, 0)
            assert label(http, "owner", "a")["dead"] == [{"index": 0, "reason": "unknown_id", "column": "id"}]
            answer = call(http, "owner", "predict", {"records": [X | planted], "ids": ["a"]})
            assert (answer.status_code, answer.json()["index"]) == (422, 0)


def test_who_may_only_predict_leaves_nothing(tmp_path: Path) -> None:
    with client(job(tmp_path), tokens=tokens(attacker="predict", owner="predict,learn")) as http:
        assert predict(http, "attacker", "a").status_code == 403
        assert call(http, "attacker", "predict", {"records": [X]}).status_code == 200
        assert label(http, "owner", "a")["learned"] == 0


def test_what_waits_is_joined_by_its_caller_only_and_evicted_by_nobody_else(tmp_path: Path) -> None:
    source = {"type": "http", "label_wait_records": 3}
    with client(job(tmp_path, source=source), tokens=tokens(one="predict,learn", two="predict,learn")) as http:
        assert predict(http, "one", "a", "b").status_code == 200
        assert label(http, "two", "a")["learned"] == 0
        assert predict(http, "two", *range(10), "a").status_code == 200
        assert label(http, "two", 7, 8, 9, "a")["learned"] == 3  # its own three newest
        assert label(http, "one", "a", "b")["learned"] == 2


def test_keys_and_ids_of_one_caller_are_not_those_of_another(tmp_path: Path) -> None:
    """A caller could make the records of another dead by sending their ids, or their idempotency keys, first."""
    body = {"records": [record(1, id="r")]}
    with client(job(tmp_path), tokens=tokens(one="learn", two="learn")) as http:
        first = call(http, "two", "learn", {"records": [record(2, id="r")]}, **{"Idempotency-Key": "k"})
        assert first.json()["learned"] == 1
        for _ in range(2):
            answer = call(http, "one", "learn", body, **{"Idempotency-Key": "k"})
            assert (answer.status_code, answer.json()["learned"], answer.json()["dead"]) == (200, 1, [])


@pytest.mark.parametrize(
    ("one", "other"),
    [('"q"', '"\\u0071"'), ('"a/b"', '"a\\/b"'), ("7", "7 "), ("7", '"7"'), ('"\u00e9"', '"e\\u0301"')],
)
@pytest.mark.slow
def test_an_id_is_its_decoded_value(tmp_path: Path, one: str, other: str) -> None:
    text = '{"records": [{"x": {"dep_delay": 1, "origin": "EWR"}, "y": "True", "subject": "p", "id": %s}]}'
    headers = {"Content-Type": "application/json"}
    with client(job(tmp_path)) as http:
        for body in (text % one, text % other):
            answer = http.post(f"{MODEL}/learn", content=body, headers=headers).json()
            assert (answer["learned"], answer["dead"]) == (1, [])
        assert http.get(MODEL).json()["learned"] == 1
