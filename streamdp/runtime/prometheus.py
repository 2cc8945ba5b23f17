"""Prometheus metrics of a worker. They show counts, times and lags, which the statement declares public, and no value.

Everything is updated at commits, from what was committed: a metric never shows what a crash would take back.
"""

from __future__ import annotations

from collections import Counter as Tally
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, start_http_server

from streamdp.data.records import Batch, Position, Shard
from streamdp.runtime.worker import Observer
from streamdp.store.snapshot import Counts, Part

SPEND_BUCKETS = (0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0)
SECONDS_BUCKETS = (0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0)


class _Learned(NamedTuple):
    """A batch that waits for a commit."""

    reasons: Tally[str]
    budgets: np.ndarray


class Metrics(Observer):
    """A `worker.Observer` that keeps the metrics in a registry of its own; `serve` shows them on a port of loopback.

    `default_spend` is what a record spends that brings no budget; `lag` asks the source how many records wait.
    """

    def __init__(self, default_spend: float, lag: Callable[[Mapping[Shard, Position]], Mapping[Shard, int]]) -> None:
        self.registry = registry = CollectorRegistry()
        self._default_spend = default_spend
        self._lag = lag
        self._seen: dict[Shard, Counts] = {}
        self._waiting: dict[Shard, list[_Learned]] = {}
        where = ("topic", "partition")
        self._records = Counter("streamdp_records", "Committed records", (*where, "outcome"), registry=registry)
        self._dead = Counter("streamdp_dead_letters", "Undecodable records", ("reason",), registry=registry)
        self._commits = Counter("streamdp_commits", "Commits of this worker", registry=registry)
        self._seconds = Histogram(
            "streamdp_commit_seconds", "Time of a commit", buckets=SECONDS_BUCKETS, registry=registry
        )
        self._spends = Histogram(
            "streamdp_spend",
            "Budgets that records brought (epsilon or mu), refused ones included",
            buckets=SPEND_BUCKETS,
            registry=registry,
        )
        self._lags = Gauge("streamdp_lag", "Records that wait in the broker", where, registry=registry)
        self._troubles = Counter("streamdp_troubles", "What the worker got over", ("kind",), registry=registry)

    def serve(self, port: int, address: str = "127.0.0.1") -> int:
        """Answer `GET /metrics`; returns the port, for 0 takes any."""
        server, _ = start_http_server(port, address, self.registry)
        return int(server.server_port)

    def learned(self, shard: Shard, batch: Batch, counts: Counts) -> None:
        """Remember what the next commit will show."""
        budgets = np.full(len(batch), np.nan) if batch.budgets is None else batch.budgets
        learned = _Learned(
            Tally(letter.reason for letter in batch.dead), np.where(np.isnan(budgets), self._default_spend, budgets)
        )
        self._waiting.setdefault(shard, []).append(learned)

    def rolled_back(self) -> None:
        """It was not committed, and is not shown."""
        self._waiting.clear()

    def committed(self, parts: dict[Shard, Part], seconds: float) -> None:
        self._commits.inc()
        self._seconds.observe(seconds)
        for shard, part in parts.items():
            before, self._seen[shard] = self._seen.get(shard, part.counts), part.counts
            for outcome in ("learned", "refused", "dead"):
                more = getattr(part.counts, outcome) - getattr(before, outcome)
                self._records.labels(*shard, outcome).inc(max(0, more))
            for learned in self._waiting.pop(shard, ()):
                self._show(learned)
        for shard, lag in self._lag({shard: part.position for shard, part in parts.items()}).items():
            self._lags.labels(*shard).set(lag)

    def _show(self, learned: _Learned) -> None:
        """Thousands of spends at once: the histogram's own `observe` takes one number."""
        for reason, number in learned.reasons.items():
            self._dead.labels(reason).inc(number)
        values, numbers = np.unique(learned.budgets, return_counts=True)
        spends: Any = self._spends
        places = np.searchsorted(spends._upper_bounds, values)
        for place, number in zip(places.tolist(), numbers.tolist(), strict=True):
            spends._buckets[place].inc(number)
        spends._sum.inc(float(learned.budgets.sum()))

    def assigned(self, shards: dict[Shard, Counts]) -> None:
        """Forget the lags of shards that others have now, and count new ones from where they stand."""
        self._lags.clear()
        self._seen = dict(shards)
        self._waiting = {shard: learned for shard, learned in self._waiting.items() if shard in shards}

    def on_retry(self, kind: str, message: str) -> None:
        self._troubles.labels(kind).inc()
