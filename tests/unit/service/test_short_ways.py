"""The short ways of the service, for plain calls and for the routes called most, answer as the long ways do."""

from __future__ import annotations

import asyncio
from collections import Counter
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from connectors import jsonrows
from connectors.jsoncalls import cut
from streamdp.data.records import Batch
from streamdp.errors import SchemaError
from streamdp.service.access import tokens_in
from streamdp.service.app import create_app
from streamdp.service.features import FeatureReader
from streamdp.service.learning_job import _encoder
from streamdp.service.problems import ProblemError
from tests.support.service import job

FILE = {"type": "csv", "path": "never-read.csv"}
SCHEMAS = {
    "plain": {"delay": [-30, 60], "origin": ["EWR", "JFK", "LGA"], "late": ["False", "True"]},
    "names": {"a.b": [0, 1], "c:d": [-1, 1], "records": [0, 1]},
    "members": {"x": [0, 1], "y": [0, 1], "subject": [0, 1], "budget": [0, 1]},
    "path": {"a.b": [0, 1], "a": [0, 1]},
    "id": {"id": [0, 1]},
}
SCHEMA = st.sampled_from(sorted(SCHEMAS))
NUMBERS = ["0", "-0", "-0.0", "1", "-7", "2.5", "1e3", "1E-3", "4.9e-324", "1e308", "1e309", "-1e999"]
NUMBERS += ["9007199254740993", "18446744073709551616"]
NO_NUMBERS = ["123456789" * 40, "01", "+1", ".5", "1.", "0x1", "1_0", "NaN", "-Infinity", "true", "false", "null"]
TEXTS = ["EWR", "JFK", "True", "false", "TRUE", "0", "1.5", " 1 ", "nan", "inf", "", " ", ":", '\\"', "\\u0045WR"]
TEXTS += ["\\ud800", "\\ud83d\\ude00", "\\x", "\0", "\ud800", "é", "\n"]
NESTED = ["{}", "[]", "[1]", '{"a": 1}', "[" * 2000 + "]" * 2000, '{"a":' * 2000 + "1" + "}" * 2000, "[", "}"]
NUMBER = st.sampled_from(NUMBERS) | st.floats(-100, 100).map(repr)
TEXT = st.sampled_from([f'"{text}"' for text in TEXTS])
ORIGIN = st.sampled_from(['"EWR"', '"JFK"', '"LGA"'])
HOSTILE = st.sampled_from(NO_NUMBERS + NESTED) | TEXT
FRAMES = ['{"records": [%s], "more": 1}', '{"records": [], "records": [%s]}', '{"records": [%s]} x', "[[%s]]", "%s"]
FRAMES += ['\ufeff{"records": [%s]}', '{"records": %s}', '{"record\\u0073": [%s]}', '\n{ "records":[%s\t] } ']


def configured(folder: Path, name: str) -> Any:
    target = {"column": "label", "classes": ["False", "True"]}
    columns = {"features": SCHEMAS[name], "target": target, "subject": "person", "budget": "share"}
    return job(folder, source=FILE, schema=columns)


def rarely(draw: st.DrawFn, usual: st.SearchStrategy[str], other: st.SearchStrategy[str]) -> str:
    return draw(other if draw(st.integers(0, 12)) == 7 else usual)


def written(draw: st.DrawFn, members: list[tuple[str, str]]) -> str:
    """An object of these members in any order; sometimes one is more, missing, twice, or has an escape in its key."""
    (key, value), *rest = members
    match draw(st.integers(0, 15)):
        case 5:
            more = draw(st.sampled_from(["id", "more", "", ":", "x", "budget", "$y"]))
            members = [*members, (more, draw(NUMBER | HOSTILE))]
        case 6:
            members = rest
        case 7:
            members = [*members, (key, draw(NUMBER))]
        case 9:
            members = [(f"\\u{ord(key[0]):04x}{key[1:]}", value), *rest]
    return "{" + ",".join(f'"{key}": {value}' for key, value in draw(st.permutations(members))) + "}"


def features(draw: st.DrawFn, name: str) -> str:
    """A record of features."""
    usual = {"origin": ORIGIN, "late": TEXT}
    return written(draw, [(column, rarely(draw, usual.get(column, NUMBER), HOSTILE)) for column in SCHEMAS[name]])


def framed(draw: st.DrawFn, records: list[str]) -> bytes:
    """A call of records, or something like it."""
    frame = rarely(draw, st.just('{"records": [%s]}'), st.sampled_from(FRAMES))
    return (frame % ", ".join(records)).encode(errors="surrogatepass")


@st.composite
def predict_call(draw: st.DrawFn) -> tuple[str, bytes]:
    name = draw(SCHEMA)
    return name, framed(draw, [features(draw, name) for _ in range(draw(st.integers(0, 3)))])


@st.composite
def learn_call(draw: st.DrawFn) -> tuple[str, bytes]:
    name = draw(SCHEMA)
    records = []
    for _ in range(draw(st.integers(1, 2))):
        label = rarely(draw, st.sampled_from(['"True"', '"False"', "true", '"1"']), HOSTILE | NUMBER)
        members = [("x", features(draw, name)), ("y", label), ("subject", rarely(draw, ORIGIN, HOSTILE))]
        if draw(st.integers(0, 3)) == 2:
            members.append(("budget", rarely(draw, st.just("null"), HOSTILE | NUMBER)))
        records.append(written(draw, members))
    return name, framed(draw, records)


def test_plain_predictions_are_read_as_all_are(tmp_path: Path) -> None:
    """A body that the short way reads is one that the long way reads, to the same features."""
    readers = {name: FeatureReader(configured(tmp_path, name).schema_) for name in SCHEMAS}
    ways: Counter[bool] = Counter()

    @settings(max_examples=300, deadline=None, derandomize=True)
    @given(predict_call())
    def check(case: tuple[str, bytes]) -> None:
        name, body = case
        short = readers[name].plain(body)
        ways[short is not None] += 1
        if short is None:
            return
        try:
            long, _ = readers[name].read(body)
        except ProblemError as error:
            pytest.fail(f"{name}: {error.detail}: {body!r}")
        np.testing.assert_array_equal(short, long)

    check()
    assert min(ways[True], ways[False]) >= 20, ways


def test_plain_records_are_learned_as_all_are(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A body has the same records and reasons whether it is read one by one, scanned, or read exactly."""
    encoders = {name: _encoder(configured(tmp_path, name)) for name in SCHEMAS}
    plain = 0

    @settings(max_examples=300, deadline=None, derandomize=True)
    @given(learn_call())
    def check(case: tuple[str, bytes]) -> None:
        nonlocal plain
        name, body = case
        try:
            flat = cut(body, True, 10).flat
        except SchemaError:
            return
        rows = np.arange(len(flat.ends))
        good = [i for i in rows.tolist() if i not in flat.flaws]
        texts = flat.raw(good)
        exact = jsonrows._encode_exactly(texts, rows[good], {}, encoders[name], {})
        with monkeypatch.context() as patched:
            patched.setattr(jsonrows, "FEW", 0)
            scanned = jsonrows.encode_json_lines(flat, rows, encoders[name])
        assert_equal(replace(scanned, dead=[d for d in scanned.dead if d.position not in flat.flaws]), exact)
        short = jsonrows._encode_plain(texts, rows[good], {}, encoders[name]) if good else None
        if short is not None:
            plain += 1
            assert_equal(short, exact)

    check()
    assert plain >= 20, plain


def assert_equal(one: Batch, other: Batch) -> None:
    assert one.dead == other.dead
    assert one.subjects == other.subjects
    for name in ("X", "y", "positions", "budgets"):
        np.testing.assert_array_equal(getattr(one, name), getattr(other, name))


ROOTS = st.sampled_from(["/v1/models/", "/v1//models/", "//v1/models/", "/V1/models/"])
JOBS = st.sampled_from(["late", "other", "", "la%74e", "late%2F", "late%0A", "..", "%FF", "é", " "])
ROUTES = st.sampled_from(["predict", "learn", "reports", "weights", "randomizer", "Predict", "", "predict%0A"])
ENDS = st.sampled_from(["", "/", "?q=1", "//"])
PATHS = st.sampled_from(["/v1/models/late/predict", "/v1/models/other/predict", "/v1/models/late/reports"])
METHODS = st.sampled_from(["POST", "GET", "HEAD", "OPTIONS", "PUT", "post"])
HEADERS = st.fixed_dictionaries(
    {},
    optional={
        "authorization": st.sampled_from(["bearer  good ", "Bearer bad", "Basic good", "", "good"]),
        "content-type": st.sampled_from(["Application/JSON; charset=x", "text/plain", ""]),
        "origin": st.sampled_from(["https://page.example", "https://else.example"]),
        "idempotency-key": st.sampled_from(["", "k" * 257]),
    },
)
GOOD = {"content-type": "application/json", "authorization": "Bearer good"}
BODIES = st.sampled_from([b"", b"{}", b"[]", b'{"records": []}', b'{"reports": []}', b'{"records": [{}]}', b"\xff"])


def test_hot_routes_answer_as_fastapi_does(tmp_path: Path) -> None:
    """Status, headers, body and path template of the log are the same with and without the short way to a route."""
    late = job(tmp_path, source=FILE, service={"origins": ["https://page.example"]})
    tokens = tokens_in(f"{sha256(b'good').hexdigest()}:predict,learn,report")
    direct, routed = (create_app([late, job(tmp_path, "other", source=FILE)], tokens) for _ in range(2))
    guard: Any = routed.middleware_stack
    guard._app._app._routes.clear()
    statuses: Counter[int] = Counter()

    @settings(max_examples=300, deadline=None, derandomize=True)
    @given(
        st.just("POST") | METHODS,
        PATHS | st.builds("{}{}/{}{}".format, ROOTS, JOBS, ROUTES, ENDS),
        HEADERS.map(lambda more: GOOD | more) | HEADERS,
        st.just([b'{"records": [{}]}']) | st.lists(BODIES, min_size=1, max_size=2),
        st.just(False) | st.booleans(),
    )
    def check(method: str, path: str, headers: dict[str, str], parts: list[bytes], left: bool) -> None:
        answers = [asyncio.run(answered(app, method, path, headers, parts, left)) for app in (direct, routed)]
        assert answers[0] == answers[1]
        statuses[answers[0][0][0]["status"]] += 1

    check()
    assert statuses.keys() >= {200, 307, 400, 401, 404, 405, 409, 415, 422}, statuses


async def answered(
    app: Any, method: str, path: str, headers: dict[str, str], parts: list[bytes], left: bool
) -> tuple[list[Any], str]:
    """What an application sends, and the template of the path. `left`: the last part of the body does not come."""
    path, _, query = path.partition("?")
    bodies = [{"type": "http.request", "body": part, "more_body": i < len(parts)} for i, part in enumerate(parts, 1)]
    messages: list[Any] = [*bodies[: len(parts) - left], {"type": "http.disconnect"}]
    sent: list[Any] = []

    async def receive() -> Any:
        return messages.pop(0)

    async def send(message: Any) -> None:
        sent.append(message)

    scope = {
        "type": "http",
        "http_version": "1.1",
        "method": method,
        "scheme": "http",
        "path": unquote(path),
        "raw_path": path.encode(),
        "query_string": query.encode(),
        "headers": [(name.encode(), value.encode()) for name, value in ({"host": "127.0.0.1"} | headers).items()],
    }
    await app(scope, receive, send)
    return sent, getattr(scope.get("route"), "path", "(none)")
