"""The histogram of spends shows what the client's own would, which takes one value at a time."""

from __future__ import annotations

import numpy as np
import pytest
from prometheus_client import CollectorRegistry, Histogram, generate_latest

from streamdp.data.records import Batch, Shard
from streamdp.runtime.prometheus import SPEND_BUCKETS, Metrics
from streamdp.store.snapshot import Counts, Part

MINE = Shard("t", 0)


def samples(registry: CollectorRegistry) -> dict[str, float]:
    found = (line.rsplit(" ", 1) for line in generate_latest(registry).decode().splitlines() if line[0] != "#")
    return {name: float(value) for name, value in found if name.startswith("streamdp_spend")}


@pytest.mark.parametrize("seed", range(3))
def test_spends_are_counted_as_one_by_one(seed: int) -> None:
    rng = np.random.default_rng(seed)
    metrics = Metrics(0.7, lambda positions: {})
    registry = CollectorRegistry()
    one_by_one = Histogram("streamdp_spend", "The same", buckets=SPEND_BUCKETS, registry=registry)
    metrics.assigned({MINE: Counts()})
    for commit in range(4):
        budgets = np.where(rng.random(500) < 0.3, rng.choice(SPEND_BUCKETS, 500), rng.lognormal(0, 3, 500))
        budgets[rng.random(500) < 0.2] = np.nan
        batch = Batch(("a",), np.zeros((500, 1)), np.zeros(500), np.arange(500), {}, budgets=budgets)
        metrics.learned(MINE, batch, Counts())
        metrics.committed({MINE: Part({}, {"index": commit}, Counts())}, 0.01)
        for budget in budgets:
            one_by_one.observe(0.7 if np.isnan(budget) else budget)
    expected, found = samples(registry), samples(metrics.registry)
    assert found.pop("streamdp_spend_created") <= expected.pop("streamdp_spend_created")
    assert found == pytest.approx(expected, rel=1e-12)
    assert found["streamdp_spend_count"] == 2000


def test_retries_are_counted_by_kind() -> None:
    metrics = Metrics(1.0, lambda positions: {})
    for kind in ("store", "store", "conflict"):
        metrics.on_retry(kind, "no answer")
    assert metrics.registry.get_sample_value("streamdp_troubles_total", {"kind": "store"}) == 2
    assert metrics.registry.get_sample_value("streamdp_troubles_total", {"kind": "conflict"}) == 1


def test_a_worker_without_shards_shows_zero() -> None:
    metrics = Metrics(1.0, lambda positions: {})

    def shards() -> float | None:
        return metrics.registry.get_sample_value("streamdp_shards")

    assert shards() == 0
    metrics.assigned({MINE: Counts(), Shard("t", 1): Counts()})
    assert shards() == 2
    metrics.assigned({})
    assert shards() == 0


def test_a_lag_that_is_not_known_is_not_the_last_one() -> None:
    known = {MINE: 7}
    metrics = Metrics(1.0, lambda positions: known)
    part = {MINE: Part({}, {"offset": 1}, Counts())}
    labels = {"topic": "t", "partition": "0"}
    metrics.assigned({MINE: Counts()})
    metrics.committed(part, 0.01)
    assert metrics.registry.get_sample_value("streamdp_lag", labels) == 7
    known.clear()
    metrics.committed(part, 0.01)
    metrics.committed(part, 0.01)
    assert metrics.registry.get_sample_value("streamdp_lag", labels) is None


def test_a_commit_shows_no_batch_that_came_after_it() -> None:
    """A crash would roll it back, and it would be counted again."""
    metrics, counts = Metrics(1.0, lambda positions: {}), [Counts(learned=100), Counts(learned=200)]
    batch = Batch(("a",), np.zeros((100, 1)), np.zeros(100), np.arange(100), {})
    metrics.assigned({MINE: Counts()})
    for after in counts:
        metrics.learned(MINE, batch, after)
    for after in counts:
        metrics.committed({MINE: Part({}, {"index": 1}, after)}, 0.01)
        assert samples(metrics.registry)["streamdp_spend_count"] == after.learned
