"""Spans of the service: what they name, and that nobody's values are in them."""

from pathlib import Path

import pytest
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from streamdp.runtime.tracing import asked_for, span, tracing
from tests.support.service import SECRET, client, job, record

MARK = "marked-subject"


def test_requests_learning_and_commits_are_spans_without_a_value(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OTEL_RESOURCE_ATTRIBUTES", "deployment.environment=test")
    exporter = InMemorySpanExporter()
    with tracing(exporter), client(job(tmp_path)) as http:
        secret = {"dep_delay": float(SECRET), "origin": "EWR"}
        records = [record(i) for i in range(20)] + [{"x": secret, "y": "True", "subject": MARK}]
        headers = {"Idempotency-Key": MARK, "Authorization": f"Bearer {MARK}", "tracestate": f"a={MARK}"}
        learn = "/v1/models/late/learn"
        assert http.post(learn, json={"records": records}, headers=headers).json()["learned"] == 21
        half = {"content": f'{{"{MARK}'.encode(), "headers": {"Content-Type": "application/json"}}
        assert http.post(f"{learn}?{MARK}", **half).status_code == 400
        assert http.get(f"/{MARK}").status_code == 404
        assert http.request(MARK.upper().replace("-", ""), "/").status_code in (404, 405)
        monkeypatch.setattr(http.app.state.jobs["late"], "learn", _fails)  # type: ignore[attr-defined]
        assert http.post(learn, json={"records": records[-1:]}).status_code == 500
    spans = exporter.get_finished_spans()
    found = {one.name: dict(one.attributes or {}) for one in spans}
    assert found["learn"] == {"records": 21, "dead_letters": 0}
    assert found["commit"] == {"shards": 1}
    route = "POST /v1/models/{job}/learn"
    statuses = {one.attributes["http.response.status_code"] for one in spans if one.name == route and one.attributes}
    assert statuses == {200, 400, 500}
    text = "".join(one.to_json() for one in spans)
    assert "deployment.environment" in text
    for value in (MARK, MARK.upper().replace("-", ""), SECRET, "secret"):
        assert value not in text


async def _fails(*_: object) -> None:
    raise ValueError(f"{MARK} and {SECRET}")


def test_without_tracing_a_span_is_nothing() -> None:
    with span("learn", records=1) as current:
        assert current is None


@pytest.mark.parametrize(
    ("variables", "expected"),
    [
        ({}, False),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://collector:4318"}, True),
        ({"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "http://collector:4318/v1/traces"}, True),
        ({"OTEL_TRACES_EXPORTER": "otlp"}, True),
        ({"OTEL_TRACES_EXPORTER": "none", "OTEL_EXPORTER_OTLP_ENDPOINT": "http://collector:4318"}, False),
        ({"OTEL_SDK_DISABLED": "true", "OTEL_TRACES_EXPORTER": "otlp"}, False),
    ],
)
def test_the_environment_asks_for_traces(
    monkeypatch: pytest.MonkeyPatch, variables: dict[str, str], expected: bool
) -> None:
    for name in ("SDK_DISABLED", "TRACES_EXPORTER", "EXPORTER_OTLP_ENDPOINT", "EXPORTER_OTLP_TRACES_ENDPOINT"):
        monkeypatch.delenv(f"OTEL_{name}", raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert asked_for() is expected
