"""Prometheus metrics of a service: its requests, and the committed records of its jobs."""

from collections.abc import Iterable, Iterator, Mapping
from functools import cache

from prometheus_client import CollectorRegistry, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from streamdp.service.jobs import Job

SECONDS_BUCKETS = (0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0)


class ServiceMetrics(Collector):
    """The metrics, in a registry of their own.

    `jobs` are by name; `unusable` are the names of jobs that are not served, because something is wrong with them.
    """

    def __init__(self, jobs: Mapping[str, Job], unusable: Iterable[str]) -> None:
        self._jobs, self._unusable = jobs, tuple(unusable)
        self._registry = registry = CollectorRegistry()
        self._requests = Histogram(
            "streamdp_request_seconds",
            "Time to answer a request",
            ("method", "path", "status"),
            buckets=SECONDS_BUCKETS,
            registry=registry,
        )
        self._of_kind = cache(self._requests.labels)
        registry.register(self)

    def answered(self, method: str, path: str, status: int, seconds: float) -> None:
        """Count a request by `method`, one of few, template `path`, `status` (0: it broke off) and `seconds`."""
        self._of_kind(method, path, str(status)).observe(seconds)

    def collect(self) -> Iterator[Metric]:
        """The committed records of the jobs; see `prometheus_client`."""
        records = CounterMetricFamily("streamdp_records", "Committed records", labels=("job", "outcome"))
        commits = CounterMetricFamily("streamdp_commits", "Commits", labels=("job",))
        changes = CounterMetricFamily("streamdp_model_changes", "Noticed changes of the stream", labels=("job",))
        waiting = GaugeMetricFamily("streamdp_waiting", "Records that wait for their commit", labels=("job",))
        ready = GaugeMetricFamily("streamdp_ready", "Whether the store can be used", labels=("job",))
        learning = GaugeMetricFamily("streamdp_learning", "Whether this service learns the job", labels=("job",))
        for name, job in self._jobs.items():
            counts = job.snapshot.counts
            for outcome in ("learned", "refused", "left_out", "dead_letters"):
                records.add_metric((name, outcome), getattr(counts, outcome))
            commits.add_metric((name,), job.snapshot.seq)
            changes.add_metric((name,), job.model.estimator.n_changes)
            waiting.add_metric((name,), job.waiting)
            ready.add_metric((name,), float(job.trouble is None))
            if job.learns:
                learning.add_metric((name,), float(job.learning))
        for name in self._unusable:
            ready.add_metric((name,), 0.0)
        yield from (records, commits, changes, waiting, ready, learning)

    def text(self) -> bytes:
        """All metrics in Prometheus' text format."""
        return generate_latest(self._registry)
