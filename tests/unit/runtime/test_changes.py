"""A change of the stream that a learner notices is said by the command, its files and the metrics of a worker."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from streamdp import LDPASGDRegressor
from streamdp.data.records import Shard
from streamdp.runtime.prometheus import Metrics
from streamdp.runtime.worker import Worker
from streamdp.serving.publish import committed
from streamdp.store.store import Store
from tests.support.commands import Quick
from tests.support.memory import MemoryShards

JOB = """job: flip
source: {type: csv, path: d.csv}
schema:
  features: {a: [-3, 3], b: [-3, 3]}
  target: {column: y, scale: 1}
model: {estimator: LDPASGDRegressor, budget: eps=8, seed: 1, scaling: none, change: CHANGE}
publish: model.json
commit: {records: 1000}
"""
FLIP = 6_000


def flipped(records: int = 8_000) -> tuple[np.ndarray, np.ndarray]:
    """Two columns and a target; the signs of the coefficients change after `FLIP` records."""
    rng = np.random.default_rng(0)
    X = rng.uniform(-3, 3, (records, 2))
    sign = np.where(np.arange(records) < FLIP, 1.0, -1.0)
    return X, sign * (X @ [0.5, -0.5]) + 0.5 * rng.normal(size=records)


def run(folder: Path, quick: Quick, change: str, *more: str) -> list[dict[str, object]]:
    """The JSON lines of a run over the stream."""
    rows = [f"{a:.4f},{b:.4f},{y:.4f}" for (a, b), y in zip(*flipped(), strict=True)]
    (folder / "d.csv").write_text("\n".join(["a,b,y", *rows]) + "\n")
    (folder / "job.yaml").write_text(JOB.replace("CHANGE", change))
    code, out, err = quick("run", "job.yaml", *more)
    assert code == 0, err
    return [json.loads(line) for line in out.splitlines()]


def test_a_run_and_the_commands_say_when_the_stream_changed(tmp_path: Path, quick: Quick) -> None:
    lines = run(tmp_path, quick, "follow")
    model = committed(str(tmp_path / "flip.db"))
    noticed = model.estimator.last_change
    assert FLIP < noticed <= FLIP + 1_000
    said = f"the stream has changed, as noticed after record {noticed:,} from released numbers; the model follows since"
    events = [line for line in lines if line["event"] == "change"]
    assert [(event["records"], event["changes"]) for event in events] == [(noticed, 1)]
    assert lines[-1]["change"] == said
    assert f"change:       {said}" in quick("status", "flip.db")[1]
    assert json.loads(quick("status", "flip.db", "--json")[1])["change"] == said
    assert said in quick("statement", "flip.db", "--full")[1]
    assert json.loads((tmp_path / "model.json").read_text())["change"] == said


def test_validation_and_the_learner_do_not_contradict_each_other(tmp_path: Path, quick: Quick) -> None:
    """The error rises for a model that does not follow; both rows name what they saw, and none says it follows."""
    lines = run(tmp_path, quick, "ignore", "--set", "validation.budget=eps=8", "--set", "validation.bound=4")
    assert [line["event"] for line in lines if line["event"] in ("drift", "change")] == ["drift"]
    status = json.loads(quick("status", "flip.db", "--json")[1])
    found = status["validation"]["last_drift"]
    assert f"the error has risen, as found after record {found:,} by validation" in status["change"]
    assert "not shown the learner a change" in status["change"]
    assert "the stream has changed" in status["validation"]["sentence"]


@pytest.mark.parametrize("change", ["follow", "ignore"])
def test_the_metrics_of_a_worker_count_changes_once_committed(tmp_path: Path, change: str) -> None:
    shard = Shard("t", 0)
    items = [({"a": a, "b": b}, y, None, None) for (a, b), y in zip(*(v.tolist() for v in flipped()), strict=True)]
    metrics = Metrics(8.0, lambda positions: dict.fromkeys(positions, 0))
    with Store(tmp_path / "job.db", "job", "f", shared=True) as store:
        Worker(
            MemoryShards({shard: items}, ["a", "b"], sleep=lambda _: None),
            lambda: LDPASGDRegressor(features=["a", "b"], budget="eps=8", seed=1, change=change),
            store,
            commit_records=1000,
            observers=[metrics],
        ).run(max_records=len(items))
    found = metrics.registry.get_sample_value("streamdp_model_changes_total", {"topic": "t", "partition": "0"})
    assert found == (change == "follow")
