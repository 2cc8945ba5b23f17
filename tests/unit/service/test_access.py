"""Tokens, scopes, origins, events and the access log."""

import json
import logging
import socket
from contextlib import suppress
from hashlib import sha256
from pathlib import Path

import pytest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from streamdp.errors import ConfigError
from streamdp.service.access import Access, tokens_in
from streamdp.service.app import create_app
from streamdp.service.problems import ProblemError
from streamdp.service.server import listen
from tests.support.service import SECRET, client, job, record

LEARN = {"records": [record(1)]}
PREDICT = {"records": [record(1)["x"]]}


def digest(token: str) -> str:
    return sha256(token.encode()).hexdigest()


def bearer(token: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {token}"}


@pytest.mark.slow
def test_a_token_allows_its_scopes_of_its_job(tmp_path: Path) -> None:
    service = {"tokens": [{"sha256": digest("r"), "scopes": ["read"]}, {"sha256": digest("l"), "scopes": ["learn"]}]}
    late, other = job(tmp_path, service=service), job(tmp_path, "other")
    everywhere = tokens_in(f"{digest('m')}:metrics,predict")
    with client(late, other, tokens=everywhere) as http:
        assert http.get("/healthz").status_code == 200
        for path in ("/v1/models", "/v1/models/late", "/v1/models/late/weights", "/v1/models/late/events", "/metrics"):
            answer = http.get(path)
            assert (answer.status_code, answer.headers["WWW-Authenticate"][:6]) == (401, "Bearer")
            assert http.get(path, headers=bearer("wrong")).status_code == 401
        assert [m["job"] for m in http.get("/v1/models", headers=bearer("r")).json()["models"]] == ["late"]
        assert http.get("/v1/models/other", headers=bearer("r")).status_code == 403
        assert http.get("/v1/models/nothing", headers=bearer("r")).status_code == 403
        assert http.post("/v1/models/late/learn", json=LEARN, headers=bearer("r")).status_code == 403
        assert http.post("/v1/models/late/learn", json=LEARN, headers=bearer("l")).status_code == 200
        assert http.get("/v1/models/late", headers=bearer("l")).status_code == 403
        assert http.post("/v1/models/late/predict", json=PREDICT, headers=bearer("l")).status_code == 403
        for name in ("late", "other"):
            assert http.post(f"/v1/models/{name}/predict", json=PREDICT, headers=bearer("m")).status_code == 200
        assert http.get("/metrics", headers=bearer("m")).status_code == 200
        assert http.get("/metrics", headers=bearer("r")).status_code == 403


@pytest.mark.parametrize("text", ["abc:read", digest("a") + ":all", digest("a"), f"{digest('a')}:read;oops"])
def test_tokens_that_are_none_are_refused_unseen(text: str) -> None:
    with pytest.raises(ConfigError, match="STREAMDP_TOKENS: expected") as caught:
        tokens_in(text)
    assert text not in str(caught.value)


def test_without_tokens_only_loopback_is_served(tmp_path: Path) -> None:
    tokens = tokens_in(f"{digest('a')}:read")
    for access in (Access((), {"late": ()}), Access((), {"late": (), "other": tokens})):
        for host in ("127.0.0.1", "localhost", "::1"):
            access.check_host(host)
        for host in ("0.0.0.0", "192.0.2.1", "example.org", "::"):
            with pytest.raises(ConfigError, match="job 'late' has no tokens"):
                access.check_host(host)
    Access(tokens, {"late": ()}).check_host("0.0.0.0")


def test_a_page_of_a_named_origin_may_use_its_job(tmp_path: Path) -> None:
    page = {"Origin": "https://page.example", "Access-Control-Request-Method": "POST"}
    late, other = job(tmp_path, service={"origins": ["https://page.example"]}), job(tmp_path, "other")
    with client(late, other) as http:
        assert http.options("/v1/models/late/predict", headers=page).headers["Access-Control-Allow-Origin"]
        for origin, name in (("https://page.example", "other"), ("https://else.example", "late")):
            answer = http.options(f"/v1/models/{name}/predict", headers=page | {"Origin": origin})
            assert "Access-Control-Allow-Origin" not in answer.headers


@pytest.mark.parametrize("origin", ["*", "https://*.example", "page.example", "https://page.example/path"])
def test_an_origin_is_named_exactly(tmp_path: Path, origin: str) -> None:
    with pytest.raises(ConfigError, match="expected origins"):
        job(tmp_path, service={"origins": [origin]})


def test_each_commit_is_an_event(tmp_path: Path) -> None:
    with client(job(tmp_path)) as http, http.stream("GET", "/v1/models/late/events") as events:
        lines = (line for line in events.iter_lines() if line.startswith("data: "))
        assert json.loads(next(lines)[6:])["version"] == 0
        for version in (1, 2, 3):
            http.post("/v1/models/late/learn", json={"records": [record(version)]})
            found = json.loads(next(lines)[6:])
            assert (found["version"], found["learned"], found["dead"]) == (version, version, 0)
            assert [w["name"] for w in found["weights"]][:2] == ["dep_delay", "origin=JFK"]


def test_the_access_log_has_no_path_query_body_or_token(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logging.getLogger("streamdp.service"), "propagate", True)
    caplog.set_level(logging.DEBUG)
    with client(job(tmp_path), tokens=tokens_in(f"{digest('secret')}:predict")) as http:
        http.post("/v1/models/late/predict", json=PREDICT, headers=bearer("secret"))
        http.post(f"/v1/models/late/predict?{SECRET}={SECRET}", json=PREDICT, headers=bearer("secret"))
        http.post(f"/v1/models/{SECRET}/predict", json=[SECRET], headers=bearer(SECRET))
        http.get(f"/{SECRET}")
        http.request(SECRET, "/healthz")
        http.request("BREW", "/nosuch")
        metrics = http.app.state.metrics.text().decode()  # type: ignore[attr-defined]
    lines = [r.getMessage() for r in caplog.records if r.name == "streamdp.service.access"]
    assert [line.split()[:3] for line in lines[1:]] == [
        ["POST", "/v1/models/{job}/predict", "200"],
        ["POST", "/v1/models/{job}/predict", "400"],
        ["POST", "/v1/models/{job}/predict", "401"],
        ["GET", "(none)", "404"],
        ["_OTHER", "/healthz", "405"],
        ["_OTHER", "(none)", "404"],
    ]
    assert 'method="_OTHER"' in metrics
    assert SECRET not in metrics
    ours = [r.getMessage() for r in caplog.records if not r.name.startswith("http")]  # the client logs its own URLs
    assert not any("secret" in line or SECRET in line for line in ours)


def test_an_unexpected_error_shows_no_value(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logging.getLogger("streamdp.service"), "propagate", True)
    with client(job(tmp_path)) as http:
        found = http.app.state.jobs["late"]  # type: ignore[attr-defined]

        def fails(_: object) -> None:
            raise RuntimeError(SECRET)

        monkeypatch.setattr(found.features, "read", fails)
        monkeypatch.setattr("streamdp.service.documents.description", fails)
        answers = [http.post("/v1/models/late/predict", json=PREDICT), http.get("/v1/models/late")]
    for answer in answers:
        assert (answer.status_code, answer.headers["content-type"]) == (500, "application/problem+json")
        assert SECRET not in answer.text
    assert caplog.text.count("unexpected RuntimeError at test_access.py") == 2
    assert SECRET not in caplog.text


def test_names_that_are_no_part_of_a_path_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="without /"):
        create_app([job(tmp_path).model_copy(update={"job": "a/b"})])
    with pytest.raises(ConfigError, match="given twice"):
        create_app([job(tmp_path), job(tmp_path)])


def test_tokens_are_all_compared_in_constant_time(monkeypatch: pytest.MonkeyPatch) -> None:
    tokens = [*tokens_in(f"{digest('a')}:read;{digest('b')}:learn"), *tokens_in(f"{digest('c')}:read")]
    access = Access(tokens[:1], {"late": tokens[1:2], "other": tokens[2:]})
    compared = []
    monkeypatch.setattr("hmac.compare_digest", lambda one, other: compared.append(one) or one == other)
    for token in ("a", "b", "c", "wrong", ""):
        for job_name in (None, "late", "none"):
            with suppress(ProblemError):
                access.check(f"Bearer {token}", job_name, "read")
            assert compared == [given.sha256 for given in tokens]
            compared.clear()


def test_fastapi_exports_no_spans_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its spans would have the path and the query of a request."""
    exporter = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    monkeypatch.setattr("opentelemetry.trace._TRACER_PROVIDER", provider)
    with client(job(tmp_path)) as http:
        http.get(f"/v1/models/late?q={SECRET}")
        http.post(f"/v1/models/late/predict?q={SECRET}", json=PREDICT)
    assert not exporter.get_finished_spans()


def test_answers_are_sent_at_once() -> None:
    """Without TCP_NODELAY, the second packet of an answer waits up to 40 ms for the acknowledgement of the first."""
    with listen("127.0.0.1", 0) as listening, socket.create_connection(listening.getsockname()):
        connection, _ = listening.accept()
        with connection:
            assert connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
