"""How many messages of a job's Kafka topic are not committed yet: for the live page, asked of the brokers."""

from __future__ import annotations

import time

from streamdp.config.http import ReportsSourceConfig
from streamdp.config.kafka import KafkaSourceConfig
from streamdp.data.records import Position, Shard
from streamdp.errors import StreamDPError
from streamdp.service.jobs import Job
from streamdp.store.store import Store

ASK_S = 5.0
"""The least time between two questions about one job, in seconds."""


def lag(job: Job) -> int | None:
    """The number of messages after the last commit, at most `ASK_S` old. Any thread may call it; it waits for a broker.

    Returns None if the job reads no topic, or if the brokers do not answer for all partitions.
    """
    source = job.config.source
    if not isinstance(source, KafkaSourceConfig | ReportsSourceConfig):
        return None
    if time.monotonic() - job.lag_asked_at >= ASK_S:
        try:
            job.lag = _ask(job, source)
        except (StreamDPError, ImportError):  # the extra `kafka` may not be installed where the service follows
            job.lag = None
        job.lag_asked_at = time.monotonic()
    return job.lag


def _ask(job: Job, source: KafkaSourceConfig | ReportsSourceConfig) -> int | None:
    from connectors.topiclag import unread

    positions: dict[Shard, Position]
    if isinstance(source, ReportsSourceConfig):
        place = job.snapshot.position.get("place", {})
        positions = {Shard(source.topic, int(n)): {"offset": at} for n, at in place.items() if n.isdigit()}
    else:
        snapshots = Store.snapshots(job.config.store_path, job.name) if job.snapshot.seq else []
        positions = {snapshot.shard: snapshot.position for snapshot in snapshots}
    found = unread(source.servers, source.client_options(), positions, (source.topic,)).values()
    known = [lag for lag in found if lag is not None]
    return sum(known) if len(known) == len(found) else None
