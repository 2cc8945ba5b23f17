"""Prometheus metrics of a worker: counts, times and lags, which the statement declares public; never a value.

Counts change at commits, by what was committed: none shows what a crash would roll back. Lags and stalls change also
while nothing is committed.
"""

import contextlib
import time
from collections import Counter as Tally
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import accumulate
from typing import NamedTuple

import numpy as np
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, start_http_server
from prometheus_client.core import HistogramMetricFamily
from prometheus_client.registry import Collector

from streamdp.data.records import Batch, Position, Shard, Stall
from streamdp.runtime.learning import total
from streamdp.runtime.protocols import Observer
from streamdp.store.snapshot import Counts, Part

SPEND_BUCKETS = (0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0)
SECONDS_BUCKETS = (0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0)


class _Spends(Collector):
    """A histogram of budgets that takes thousands of values at once; `prometheus_client.Histogram` takes one."""

    _name = "streamdp_spend"

    def __init__(self) -> None:
        self._bounds = np.array([*SPEND_BUCKETS, np.inf])
        self._seen = (np.zeros(len(self._bounds), dtype=np.int64), 0.0)  # replaced whole: another thread collects it
        self._created = time.time()

    def observe(self, values: np.ndarray) -> None:
        numbers, amount = self._seen
        places = np.searchsorted(self._bounds, values)  # a value on a bound is within it
        self._seen = numbers + np.bincount(places, minlength=len(self._bounds)), amount + float(values.sum())

    def collect(self) -> Iterator[HistogramMetricFamily]:
        numbers, amount = self._seen
        names = [*map(str, self._bounds[:-1].tolist()), "+Inf"]
        buckets = list(zip(names, accumulate(numbers.tolist()), strict=True))
        said = "Budgets that records brought (epsilon or mu), refused ones included"
        family = HistogramMetricFamily(self._name, said, buckets=buckets, sum_value=amount)
        family.add_sample(f"{self._name}_created", {}, self._created)
        yield family


class _Learned(NamedTuple):
    """A batch that is not committed yet."""

    records: int  # of the shard up to its end
    reasons: Tally[str]
    budgets: np.ndarray


class Metrics(Observer):
    """Keeps the metrics of a worker in a registry of its own.

    A record that brings no budget spends `default_spend` (epsilon or mu). `lag` counts the records of each shard that
    wait after these positions.
    """

    def __init__(self, default_spend: float, lag: Callable[[Mapping[Shard, Position]], Mapping[Shard, int]]) -> None:
        self.registry = registry = CollectorRegistry()
        self._default_spend = default_spend
        self._lag = lag
        self._seen: dict[Shard, Counts] = {}
        self._waiting: dict[Shard, list[_Learned]] = {}
        shard = ("topic", "partition")
        self._records = Counter("streamdp_records", "Committed records", (*shard, "outcome"), registry=registry)
        self._dead = Counter("streamdp_dead_letters", "Undecodable records", ("reason",), registry=registry)
        self._commits = Counter("streamdp_commits", "Commits of this worker", registry=registry)
        self._seconds = Histogram(
            "streamdp_commit_seconds", "Time of a commit", buckets=SECONDS_BUCKETS, registry=registry
        )
        self._spends = _Spends()
        registry.register(self._spends)
        self._lags = Gauge("streamdp_lag", "Records that wait in the broker, if known", shard, registry=registry)
        self._stalls = Gauge(
            "streamdp_stall_seconds", "How long a partition has not been read", (*shard, "reason"), registry=registry
        )
        self._retries = Counter(
            "streamdp_troubles", "Transient faults after which the worker retried", ("kind",), registry=registry
        )
        self._changes = Counter("streamdp_model_changes", "Noticed changes of the stream", shard, registry=registry)
        self._shards = Gauge("streamdp_shards", "Shards that this worker has", registry=registry)

    def serve(self, port: int) -> int:
        """Answer `GET /metrics` on loopback from a thread, and return the `port`; 0 for any free port."""
        server, _ = start_http_server(port, "127.0.0.1", self.registry)
        return int(server.server_port)

    def learned(self, shard: Shard, batch: Batch, counts: Counts) -> None:
        """As `Observer.learned`: the next commit will show the batch."""
        budgets = np.full(len(batch), np.nan) if batch.budgets is None else batch.budgets
        reasons = Tally(letter.reason for letter in batch.dead)
        learned = _Learned(total(counts), reasons, np.where(np.isnan(budgets), self._default_spend, budgets))
        self._waiting.setdefault(shard, []).append(learned)

    def rolled_back(self) -> None:
        """Discard the batches that were not committed."""
        self._waiting.clear()

    def committed(self, parts: dict[Shard, Part], seconds: float) -> None:
        """As `Observer.committed`: show the batches of these shards."""
        self._commits.inc()
        self._seconds.observe(seconds)
        for shard, part in parts.items():
            before, self._seen[shard] = self._seen.get(shard, part.counts), part.counts
            for outcome in ("learned", "refused", "left_out", "dead_letters"):
                more = getattr(part.counts, outcome) - getattr(before, outcome)
                self._records.labels(*shard, outcome).inc(max(0, more))
            waiting = self._waiting.pop(shard, [])
            shown = [learned for learned in waiting if learned.records <= total(part.counts)]
            self._waiting[shard] = waiting[len(shown) :]
            for learned in shown:
                for reason, number in learned.reasons.items():
                    self._dead.labels(reason).inc(number)
                self._spends.observe(learned.budgets)
        self._show_lags({shard: part.position for shard, part in parts.items()})

    def _show_lags(self, positions: Mapping[Shard, Position]) -> None:
        lags = self._lag(positions)
        for shard in positions:
            if shard in lags:
                self._lags.labels(*shard).set(lags[shard])
            else:  # not known is not the last number, nor 0
                with contextlib.suppress(KeyError):
                    self._lags.remove(*map(str, shard))

    def changed(self, shard: Shard, changes: int) -> None:
        self._changes.labels(*shard).inc(changes)

    def assigned(self, shards: dict[Shard, Counts]) -> None:
        """As `Observer.assigned`: remove the lags, and count new shards from their last commit."""
        self._lags.clear()
        self._shards.set(len(shards))
        for shard in shards:
            self._changes.labels(*shard)  # 0 is shown, so that the first change is an increase
        self._seen = dict(shards)
        self._waiting = {shard: learned for shard, learned in self._waiting.items() if shard in shards}

    def watched(self, positions: dict[Shard, Position], stalls: Sequence[Stall]) -> None:
        """As `Observer.watched`: show lags and stalls as of now."""
        self._show_lags(positions)
        self._stalls.clear()
        for stall in stalls:
            partition = "" if stall.partition is None else stall.partition
            self._stalls.labels(stall.topic, partition, stall.reason).set(stall.seconds)

    def on_retry(self, kind: str, message: str) -> None:
        self._retries.labels(kind).inc()
