"""One model from the shards of a job, and snapshots as text that travels without the database.

A job of one stream has one snapshot, and it is the model. A job of a partitioned stream has one for each shard: the
model is their average, weighted by records (`estimator.merged`, which says what that promises and what it loses).
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from streamdp.config.definition import Definition, read_definition
from streamdp.data.records import WHOLE, Shard
from streamdp.errors import NotAvailableError, StoreDamagedError, StoreMismatchError
from streamdp.ledger.ledger import Ledger
from streamdp.store.snapshot import Counts, Snapshot
from streamdp.store.state_codec import decode_state, encode_state

if TYPE_CHECKING:
    from streamdp.estimators.base import StreamEstimator


@dataclass(frozen=True)
class Model:
    """A committed model, for reading."""

    definition: Definition
    estimator: StreamEstimator
    snapshot: Snapshot


def restore(snapshot: Snapshot) -> Model:
    """The model of a snapshot.

    Raises `ConfigError` where its configuration is none, `StoreDamagedError` where it is not the one it was made with.
    """
    definition = read_definition(snapshot.config)
    if definition.fingerprint() != snapshot.fingerprint:
        raise StoreDamagedError(f"the configuration of job {snapshot.job!r} is not the one that it was made with")
    # The cap is part of the statement. The ledger behind it is empty, for this model learns no more.
    ledger = None if definition.cap is None else Ledger(definition.cap)
    estimator: Any = definition.build_estimator(ledger)
    estimator.load_state_dict(snapshot.state)
    return Model(definition, estimator, snapshot)


def combined(snapshots: Sequence[Snapshot]) -> Snapshot:
    """One snapshot of all shards of a job: states averaged, counts added, positions by shard.

    A single one stays as it is. Raises `NotAvailableError` where there is none, and `StoreMismatchError` where they
    are of different jobs or configurations.
    """
    if not snapshots:
        raise NotAvailableError("there is no commit yet; nothing has been learned that could be shown")
    first = snapshots[0]
    if any((s.job, s.fingerprint) != (first.job, first.fingerprint) for s in snapshots):
        raise StoreMismatchError("expected the shards of one job, all with one configuration")
    position = {str(s.shard): s.position for s in snapshots}
    if len(snapshots) == 1:
        return first if first.shard == WHOLE else replace(first, shard=WHOLE, position=position)
    estimators: list[Any] = [restore(snapshot).estimator for snapshot in snapshots]
    counts = [s.counts for s in snapshots]
    return replace(
        first,
        seq=sum(s.seq for s in snapshots),
        committed_at=max(s.committed_at for s in snapshots),
        counts=Counts(sum(c.learned for c in counts), sum(c.refused for c in counts), sum(c.dead for c in counts)),
        position=position,
        state=estimators[0].merged(*estimators[1:]).state_dict(),
        shard=WHOLE,
    )


def snapshot_to_json(snapshot: Snapshot) -> str:
    """A snapshot as JSON text. It holds what the store holds of it: nothing that is not private."""
    return json.dumps(
        {
            "format": 1,
            "job": snapshot.job,
            "fingerprint": snapshot.fingerprint,
            "config": snapshot.config,
            "seq": snapshot.seq,
            "committed_at": snapshot.committed_at,
            "learned": snapshot.counts.learned,
            "refused": snapshot.counts.refused,
            "dead": snapshot.counts.dead,
            "position": snapshot.position,
            "topic": snapshot.shard.topic,
            "partition": snapshot.shard.partition,
            "epoch": snapshot.epoch,
            "state": encode_state(snapshot.state),
        }
    )


def snapshot_from_json(text: str | bytes) -> Snapshot:
    """What `snapshot_to_json` was given. Raises `StoreDamagedError` for anything else."""
    try:
        item = json.loads(text)
        if item["format"] != 1:
            raise StoreDamagedError("a snapshot in a newer format; use a newer streamdp")
        return Snapshot(
            job=item["job"],
            fingerprint=item["fingerprint"],
            config=item["config"],
            seq=item["seq"],
            committed_at=item["committed_at"],
            counts=Counts(item["learned"], item["refused"], item["dead"]),
            position=item["position"],
            state=decode_state(item["state"]),
            shard=Shard(item["topic"], item["partition"]),
            epoch=item["epoch"],
        )
    except (KeyError, TypeError, ValueError):
        raise StoreDamagedError("expected a snapshot of streamdp as JSON") from None


def newest(snapshots: Iterable[Snapshot], job: str) -> list[Snapshot]:
    """The last of each shard of a job, whatever the order they came in.

    A late one of an earlier owner has an earlier epoch and time; one of a store that was begun anew has only the
    epoch.
    """
    last: dict[Shard, Snapshot] = {}
    for snapshot in snapshots:
        before = last.get(snapshot.shard)
        if snapshot.job == job and (
            before is None
            or (before.epoch, before.seq) < (snapshot.epoch, snapshot.seq)
            or before.committed_at < snapshot.committed_at
        ):
            last[snapshot.shard] = snapshot
    return [last[shard] for shard in sorted(last)]


def load_snapshot(bootstrap_servers: str | list[str], topic: str, job: str, **options: Any) -> Model:
    """The published model of a job, read from the compacted topic that its workers publish to, without the database.

    `options` are those of `kafka.KafkaConsumer` (SASL, TLS, ...). Use `load_snapshot(...).estimator.predict_one(x)`.
    Needs the extra `kafka`. Raises `NotAvailableError` where nothing is published yet, `SourceError` where the broker
    or the topic cannot be read.
    """
    from connectors.kafkasink import read_topic  # the one place where the library asks for a connector

    found = (snapshot_from_json(value) for value in read_topic(bootstrap_servers, topic, options))
    return restore(combined(newest(found, job)))
