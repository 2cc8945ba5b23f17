"""`weights` names baselines, and commands that read a store take the job that names it."""

import json
from pathlib import Path

import numpy as np
import pytest

from tests.support.commands import Quick

JOB = """job: late
source: {type: csv, path: d.csv}
schema:
  features: {delay: [-30, 60], origin: [EWR, JFK, LGA]}
  target: {column: late, classes: [false, true]}
model: {estimator: LDPASGDClassifier, budget: eps=1}
commit: {records: 500}
holdout: holdout.csv
"""


@pytest.fixture
def trained(tmp_path: Path, quick: Quick) -> Path:
    rng = np.random.default_rng(0)
    delays = rng.uniform(-30, 60, 2_500)
    origins = rng.choice(["EWR", "JFK", "LGA"], 2_500)
    lines = [f"{delay:.1f},{origin},{delay > 10}" for delay, origin in zip(delays, origins, strict=True)]
    (tmp_path / "d.csv").write_text("\n".join(["delay,origin,late", *lines]) + "\n")
    (tmp_path / "holdout.csv").write_text("\n".join(["delay,origin,late", *lines[:100]]) + "\n")
    (tmp_path / "job.yaml").write_text(JOB)
    quick.output("run", "job.yaml")
    return tmp_path


def test_weights_name_their_baselines(trained: Path, quick: Quick) -> None:
    out = quick("weights", "late.db")[1].splitlines()
    assert out[0].startswith("delay")
    assert "beside" not in out[0]
    assert all(line.endswith("beside origin=EWR") for line in out[1:3])
    rows = json.loads(quick("weights", "late.db", "--json")[1])
    assert [row.get("baseline") for row in rows] == [None, "origin=EWR", "origin=EWR", None]


def test_commands_that_read_a_store_take_the_job_that_names_it(trained: Path, quick: Quick) -> None:
    for command in (["status"], ["statement"], ["weights", "--json"], ["export", "--to", "json"]):
        assert quick(*command, "job.yaml") == quick(*command, "late.db")
    assert quick("weights", "job.yaml", "--job", "other")[0] == 4
    assert "a model and no statistics" in quick.error(6, "stats", "job.yaml")
    assert quick("ledger", "status", "job.yaml") == quick("ledger", "status", "late.db")
    assert "none.yaml" in quick.error(2, "weights", "none.yaml")
