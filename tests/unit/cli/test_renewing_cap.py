"""A job whose cap renews, from its file to its statement."""

import json
import time
from collections import Counter
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from streamdp.config.job import make_config
from streamdp.errors import ConfigError
from tests.support.commands import Quick

DAY = 86_400
JOB = """
job: visits
schema:
  features: {a: [0, 1]}
  target: {column: y, bounds: [0, 1]}
  subject: who
  time: {column: at, unit: %s}
model: {estimator: LDPSGDRegressor, budget: eps=1}
cap: eps=2 per 30 days, late 100 days, total eps=5
source: {type: %s, path: visits.%s, dead_letters: dead.jsonl}
"""


def visits(now: float) -> list[tuple[str, float]]:
    """The person and the time of each record. Spends of each kind are known from them alone."""
    period = now // (30 * DAY)
    ann = [("ann", (period - k) * 30 * DAY + 60 + i) for k in range(3) for i in range(3)]
    return [*ann, ("bob", now), ("bob", now - 101 * DAY), ("bob", now + 7200), ("bob", -1.0)]


@pytest.mark.parametrize("kind", ["csv", "jsonl"])
def test_a_job_counts_by_the_times_of_its_records(tmp_path: Path, quick: Quick, kind: str) -> None:
    now = time.time()
    unit = "iso" if kind == "csv" else "milliseconds"
    (tmp_path / "job.yaml").write_text(JOB % (unit, kind, kind))
    rows: list[dict[str, Any]] = [
        {"a": 0.5, "y": 0.5, "who": who, "at": at * 1000 if kind == "jsonl" else iso(at)} for who, at in visits(now)
    ]
    lines = [json.dumps(row) for row in rows]
    if kind == "csv":
        lines = ["a,y,who,at", *(",".join(map(str, row.values())) for row in rows)]
    (tmp_path / f"visits.{kind}").write_text("\n".join(lines) + "\n")
    assert quick("run", "job.yaml")[0] == 0
    _, out, _ = quick("status", "visits.db", "--json")
    found = json.loads(out)
    # ann has 9 records in 3 periods: two in each, and five in all.
    assert (found["learned"], found["refused"], found["dead_letters"]) == (6, 4, 3)
    assert found["cap"] == "eps=2 per 30 days, late 100 days, ahead 1 hour, total eps=5"
    reasons = Counter(json.loads(line)["reason"] for line in (tmp_path / "dead.jsonl").read_text().splitlines())
    assert reasons == {"too_late": 1, "too_early": 1, "before_1970": 1}
    _, said, _ = quick("statement", "visits.db", "--full")
    assert "a record's own time is its column 'at'" in said
    assert "in any span of 30 days, wherever it begins" in said
    assert "at most 6 periods in 30 days by the clock" in said


def test_a_file_of_the_past_is_told_how_to_learn_it(tmp_path: Path, quick: Quick) -> None:
    (tmp_path / "job.yaml").write_text((JOB % ("iso", "csv", "csv")).replace(", late 100 days", ""))
    rows = [f"0.5,0.5,p{i},{iso(time.time() - 80 * DAY)}" for i in range(150)]
    (tmp_path / "visits.csv").write_text("\n".join(["a,y,who,at", *rows]) + "\n")
    assert "'at': say in the cap how late records may come, such as late 90 days" in quick.error(3, "run", "job.yaml")
    assert quick("run", "job.yaml", "--set", "cap=eps=2 per 30 days, late 90 days")[0] == 0


def iso(at: float) -> str:
    return datetime.fromtimestamp(at, UTC).isoformat()


def test_the_ledger_shows_the_present_period(tmp_path: Path, quick: Quick) -> None:
    now = time.time()
    cap = "eps=2 per 30 days, late 100 days"
    (tmp_path / "rows.csv").write_text(
        "a,y,who,at\n" + "".join(f"0.5,0.5,{who},{at}\n" for who, at in visits(now)[:10])
    )
    options = ["--target", "y", "--feature", "a=0:1", "--target-bounds", "0:1", "--subject", "who", "--cap", cap]
    options += ["--trust", "nobody"]
    time_column = ["--set", "schema.time={column: at, unit: seconds}", "--store", "people.db"]
    assert quick("run", "rows.csv", *options, *time_column)[0] == 0
    out = quick.output("ledger", "status", "people.db")
    for line in (
        "cap:     eps=2 per 30 days, late 100 days, ahead 1 hour since",
        "people:  2 in the present period; 0 have a total of their own",
        "2 rows of people in other periods are kept",
        "1 spent 25% to 50% of their cap of the period",
        "1 spent 90% to 100% of their cap of the period",
        "job rows: 7 records learned, 3 refused, 0 left out, 0 do not fit",
    ):
        assert line in out
    _, out, _ = quick("ledger", "export", "people.db")
    begins = Counter(line.split(",")[-1] for line in out.splitlines()[1:])
    period = int(now // (30 * DAY))
    assert begins == {str((period - k) * 30 * DAY): 2 if k == 0 else 1 for k in range(3)}
    code, _, said = quick("ledger", "set-cap", "people.db", "eps=3")
    assert code == 2
    assert "may differ in its amounts only" in said


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"cap": "eps=5"}, "time is for a cap that renews"),
        ({"cap": None}, "time is for a cap that renews"),
        ({"source": {"type": "http"}, "model": {"estimator": "LDPSGDRegressor"}}, "requests have no times"),
        ({"cap": "eps=0.5 per 30 days"}, "no record would fit"),
        ({"cap": "eps=5 per month"}, "expected a cap such as"),
        ({"time": {"column": "at"}}, "unit"),
        ({"time": {"column": "who", "unit": "iso"}}, "distinct columns"),
    ],
)
def test_what_contradicts_a_cap_that_renews(settings: dict[str, Any], message: str) -> None:
    schema = {"features": {"a": [0, 1]}, "target": {"column": "y"}, "subject": "who"}
    schema["time"] = settings.pop("time", {"column": "at", "unit": "iso"})
    job: dict[str, Any] = {"job": "j", "cap": "eps=5 per 30 days", "source": {"type": "csv", "path": "x.csv"}}
    job |= {"model": {"estimator": "LDPSGDRegressor"}, "schema": schema} | settings
    with pytest.raises(ConfigError, match=message):
        make_config(job)
