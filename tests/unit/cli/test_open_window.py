"""A file that ends within a window: run and status say how many records wait, and the next run reads them again."""

from __future__ import annotations

import json
from pathlib import Path

from tests.support.commands import Quick

JOB = """
job: late
source: {type: csv, path: rows.csv}
schema:
  features: {a: [0, 1]}
  target: {column: y, bounds: [0, 1]}
  subject: who
model: {estimator: WindowedRegressor, budget: "eps=8,delta=1e-6", window: 100}
"""


def test_the_last_event_and_status_count_the_records_of_an_open_window(tmp_path: Path, quick: Quick) -> None:
    (tmp_path / "job.yaml").write_text(JOB)
    rows = [f"{i % 7 / 7:.3f},{i % 5 / 5},p{i % 100}" for i in range(300)]
    for size, waiting in ((3, {"waiting": 3}), (203, {"waiting": 3}), (300, {})):
        (tmp_path / "rows.csv").write_text("\n".join(["a,y,who", *rows[:size]]) + "\n")
        code, out, said = quick("run", "job.yaml")
        assert code == 0, said
        end = json.loads(out.splitlines()[-1])
        learned = size - waiting.get("waiting", 0)
        assert (code, end["event"], end["learned"]) == (0, "end", learned)
        assert {name: value for name, value in end.items() if name == "waiting"} == waiting
        assert ("3 users are too few" in said) == bool(waiting)
        found = json.loads(quick("status", "late.db", "--json")[1])
        assert (found["learned"], found["waiting"]) == (learned, size - learned)
