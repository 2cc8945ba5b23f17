"""A worker that ends within a window: status says how many messages wait, and its spans have no value."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from tests.support.commands import Quick

MARK, SECRET = "marked", "0.7712345"
JOB = f"""
job: late
source: {{type: kafka, topic: TOPIC, subject_from: key}}
schema:
  features: {{a: [0, 1], b: [{MARK}-1, {MARK}-2]}}
  target: {{column: y, bounds: [0, 1]}}
  subject: who
model: {{estimator: WindowedRegressor, budget: "eps=8,delta=1e-6", window: 100}}
commit: {{seconds: 0.2}}
"""


def test_status_counts_the_messages_of_an_open_window(
    tmp_path: Path, quick: Quick, broker: Any, make_topic: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    exporter, topic = InMemorySpanExporter(), make_topic(1)
    place = "opentelemetry.exporter.otlp.proto.http.trace_exporter.OTLPSpanExporter"
    monkeypatch.setattr(place, lambda timeout: exporter)
    (tmp_path / "job.yaml").write_text(JOB.replace("TOPIC", topic))
    rows = [f"{SECRET},{MARK}-1,0.5,{MARK}-{i % 100}" for i in range(203)]
    (tmp_path / "rows.csv").write_text("\n".join(["a,b,y,who", *rows]) + "\n")
    kafka = {"bootstrap": broker.bootstrap}
    assert quick("produce", "rows.csv", "--topic", topic, "--key", "who", **kafka)[0] == 0
    code, _, said = quick("run", "job.yaml", "--trace", "--max-records", "203", **kafka)
    assert code == 0, said
    found = json.loads(quick("status", "late.db", "--json")[1])
    assert (found["learned"], found["waiting"]) == (200, 3)
    spans = exporter.get_finished_spans()
    numbers = [(span.name, dict(span.attributes or {}).get("records", 0)) for span in spans]
    sums = {name: sum(int(str(n)) for of, n in numbers if of == name) for name in ("poll", "learn")}
    assert sums == {"poll": 203, "learn": 203}
    assert "commit" in {span.name for span in spans}
    text = "".join(span.to_json() for span in spans)
    assert MARK not in text
    assert SECRET not in text
