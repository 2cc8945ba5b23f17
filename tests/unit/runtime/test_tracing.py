"""Spans of runs: polls, learning, commits and publications, and that nobody's values are in them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from streamdp import LDPASGDRegressor
from streamdp.errors import StoreUnavailableError
from streamdp.runtime.tracing import tracing
from streamdp.runtime.worker import Worker
from streamdp.store.store import Store
from tests.support.commands import Quick
from tests.support.memory import BAD
from tests.support.shards import CAP, ScriptedShards, streams

MARK, SECRET = "marked", "0.7712345"
JOB = """
job: late
source: {type: csv, path: rows.csv, dead_letters: dead.jsonl}
schema:
  features: {a: [0, 1]}
  target: {column: y, bounds: [0, 1]}
  subject: who
model: {estimator: LDPASGDRegressor, budget: eps=1}
publish: model.json
"""


@pytest.fixture
def exporter(monkeypatch: pytest.MonkeyPatch) -> Iterator[InMemorySpanExporter]:
    """Gets the spans in place of a collector, and sees that no value is in them."""
    exporter = InMemorySpanExporter()
    place = "opentelemetry.exporter.otlp.proto.http.trace_exporter.OTLPSpanExporter"
    monkeypatch.setattr(place, lambda timeout: exporter)
    yield exporter
    text = "".join(span.to_json() for span in exporter.get_finished_spans())
    assert text.count('"name"') >= 4
    for value in (MARK, SECRET):
        assert value not in text


@pytest.mark.parametrize("asked", ["option", "environment"])
def test_a_run_of_a_file_has_spans_without_a_value(
    tmp_path: Path, quick: Quick, exporter: InMemorySpanExporter, asked: str
) -> None:
    rows = [f"{SECRET},0.5,{MARK}-{i}" for i in range(50)]
    (tmp_path / "rows.csv").write_text("\n".join(["a,y,who", *rows, f"{MARK},0,{MARK}"]) + "\n")
    (tmp_path / "job.yaml").write_text(JOB)
    if asked == "option":
        code, _, said = quick("run", "job.yaml", "--trace")
    else:
        code, _, said = quick("run", "job.yaml", OTEL_TRACES_EXPORTER="otlp")
    assert code == 0, said
    found = {span.name: dict(span.attributes or {}) for span in exporter.get_finished_spans()}
    batch = {"records": 50, "dead_letters": 1}
    assert found == {"poll": batch, "learn": batch, "commit": {"shards": 1}, "publish": {"shards": 1}}


def test_a_worker_has_spans_without_a_value(tmp_path: Path, exporter: InMemorySpanExporter) -> None:
    given = {
        shard: [
            BAD if entry is BAD else ({"a": float(SECRET), "b": 0.0}, 0.5, f"{MARK}-{i}", None) for i, entry in stream
        ]
        for shard, stream in ((shard, list(enumerate(stream))) for shard, stream in streams(2, 500, 0).items())
    }
    source = ScriptedShards(given)
    failures = iter([StoreUnavailableError(f"{MARK} {SECRET}")])
    with tracing(), Store(tmp_path / "a.db", "job", "f", cap=CAP, shared=True) as store:

        def build() -> LDPASGDRegressor:
            return LDPASGDRegressor(features=["a", "b"], budget="mu=1", ledger=store.ledger)

        def publish(snapshots: object) -> None:
            for failure in failures:
                raise failure

        Worker(source, build, store, commit_records=200, publish=[publish], **source.timing).run(idle_seconds=1.0)
    spans = exporter.get_finished_spans()
    sums = dict.fromkeys(("poll", "learn", "dead_letters"), 0)
    for span in spans:
        if span.name in sums:
            sums[span.name] += int(span.attributes["records"])
            sums["dead_letters"] += int(span.attributes.get("dead_letters", 0))
    assert sums == {
        "poll": 1000,
        "learn": 1000 - sums["dead_letters"],
        "dead_letters": sum(s.count(BAD) for s in given.values()),
    }
    assert {"commit", "publish"} <= {span.name for span in spans}
