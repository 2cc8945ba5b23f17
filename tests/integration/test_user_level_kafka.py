"""User-level learning from a real topic: a worker that is killed loses and doubles nothing, and caps hold."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from streamdp.cli.kafka_job import produce
from streamdp.config.job import load_config
from streamdp.privacy.guarantees import parse_budget
from streamdp.serving.snapshots import restore
from streamdp.store.store import Store
from tests.support.commands import Command
from tests.support.kafka_job import DEAD, JOB, PEOPLE, TOTAL, counts, rows

CAP = "eps=40,delta=1e-4"
"""Five reports or windows."""

pytestmark = pytest.mark.campaign

MODELS = {
    "UserLevelLDPClassifier": "items_per_user: 4\n  window: 150",
    "WindowedClassifier": "items_per_user: 4\n  window: 150\n  method: private-range",
}


@pytest.mark.parametrize("estimator", MODELS)
def test_a_topic_is_learned_by_users(
    estimator: str, tmp_path: Path, broker: Any, make_topic: Callable[..., str]
) -> None:
    """Every message is counted once, and every report or window is spent for."""
    topic = f"people-{estimator.lower()}-{os.getpid()}"
    words = {"JOBNAME": "people", "DEADTOPIC": make_topic(), "TOPIC": topic, "STORE": "people.db"}
    words["MODELS"] = make_topic(1, {"cleanup.policy": "compact"})
    text = JOB
    for old, new in (
        ("LDPASGDClassifier\n  budget: eps=1", f"{estimator}\n  budget: eps=8,delta=1e-6\n  {MODELS[estimator]}"),
        ("cap: eps=3", f"cap: {CAP}"),
        ("  budget: eps\n", ""),
        ("holdout: data.csv\n", ""),
        *words.items(),
    ):
        assert old in text
        text = text.replace(old, new)
    (tmp_path / "job.yaml").write_text(text)
    (tmp_path / "data.csv").write_text(rows(2000))
    assert produce(str(tmp_path / "data.csv"), topic, broker.bootstrap, "tail", partitions=2) == TOTAL
    with Command(tmp_path, broker.bootstrap, "run", "job.yaml") as first:
        first.until(lambda: any(event["event"] == "commit" for event in first.events), 180)
        first.process.kill()
    left = TOTAL - sum(snapshot.position["offset"] for snapshot in Store.snapshots(tmp_path / "people.db"))
    with Command(tmp_path, broker.bootstrap, "run", "job.yaml", "--max-records", str(left)) as second:
        second.end(180)
    snapshots = Store.snapshots(tmp_path / "people.db")
    found = counts(tmp_path / "people.db")
    assert (found.learned + found.refused + found.dead_letters, found.dead_letters) == (TOTAL, DEAD)
    models = [restore(snapshot).estimator for snapshot in snapshots if snapshot.state]
    assert {type(model).__name__ for model in models} == {estimator}
    assert all(model.n_users > 100 for model in models)
    assert sum(model.n_seen for model in models) == found.learned
    fingerprint = load_config(tmp_path / "job.yaml").fingerprint()
    with Store(tmp_path / "people.db", "people", fingerprint, shared=True, cap=parse_budget(CAP)) as store:
        spent = [store.ledger.spent(f"t{k}").records for k in range(PEOPLE)]
    assert max(spent) <= 5
    assert sum(spent) >= sum(model.n_users for model in models)
