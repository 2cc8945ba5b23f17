"""Models from committed snapshots: restore one, combine the shards of a job, read and write snapshots as JSON.

The single snapshot of an unpartitioned stream is the model. A partitioned stream has one snapshot for each shard. Each
worker keeps the state of its model in one of them, and the others have none. With several workers, the model is
made of the states of all; `estimator.merged` documents what it guarantees.
"""

import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property

from streamdp.config.definition import StoredDefinition, read_definition
from streamdp.data.records import WHOLE, Shard
from streamdp.errors import NotAvailableError, StoreDamagedError, StoreMismatchError, check_texts
from streamdp.estimators.estimator import Estimator
from streamdp.learners.batches import Batches
from streamdp.learners.sums import Sums
from streamdp.learners.user_windows import Windows
from streamdp.privacy.guarantees import PureDP
from streamdp.privacy.statement import with_notes
from streamdp.reading.doubts import of_model
from streamdp.store.snapshot import ON_SPARK, Counts, Snapshot, counts_sum
from streamdp.store.state_codec import decode_state, encode_state
from streamdp.validation.quality import Quality


@dataclass(frozen=True)
class Model:
    """A committed model, for reading."""

    definition: StoredDefinition  # the schema, the model and the cap of the job
    estimator: Estimator  # with the committed state
    snapshot: Snapshot  # from which it was restored

    @property
    def quality(self) -> Quality | None:
        """What private answers say about the model, in the unit of the target column; None without `validation`."""
        return self.definition.quality(self.estimator)

    @cached_property
    def doubts(self) -> list[str]:
        """Why it may be no better than a constant, as sentences, which are shown with it and with its predictions."""
        return [*of_model(self.estimator, self.quality), *self.snapshot.doubts]

    @property
    def change(self) -> str | None:
        """What is known about changes of the stream, as a sentence without a full stop; None: nothing is."""
        quality = self.quality
        if self.estimator.n_changes or quality is None or quality.last_drift is None:
            return self.estimator.change_note
        return (
            f"the error has risen, as found after record {quality.last_drift:,} by validation; released numbers have "
            "not shown the learner a change, and what it learned before counts as before"
        )

    def statement(self) -> str:
        """Return the guarantee in words, with what was promised before budget or cap were changed."""
        definition = self.definition
        said = self.estimator.statement(definition.cap_budget)
        limits = [*definition.limits(self.snapshot.losses), *_on_spark(self.snapshot, self.estimator)]
        spent = [budget for budget in self.estimator.guarantee.budgets if isinstance(budget, PureDP)]
        shuffled = [] if definition.shuffled is None else [definition.shuffled.said(budget) for budget in spent]
        return with_notes(said, {"Columns of the job": definition.notes()}, limits, shuffled)


def _on_spark(snapshot: Snapshot, estimator: Estimator) -> list[str]:
    """A note on the machines of Spark, if they learned the model."""
    if not any(place.startswith(f"{ON_SPARK}/") for place in (str(snapshot.shard), *snapshot.position)):
        return []
    trusted = (
        "it was learned on Spark: people must trust the machines of the cluster and their disks, where Spark keeps raw "
        "records until a batch ends, and longer if it fails, whatever the estimator protects"
    )
    repeated = "if a batch failed and was repeated, noisy query points of both attempts were on these disks"
    if isinstance(estimator.learner, Windows):
        return [
            f"{trusted}. There, each batch of Spark is a window. The machines return sums over users that the driver "
            f"alone can open, and the driver adds the noise, once to each sum; {repeated}"
        ]
    if issubclass(estimator.learns, Batches | Sums):
        mixed = estimator.learner.shuffled or getattr(estimator, "trust", "") == "shuffler"
        roles = ". The machines act as the devices, and the driver as the shuffler" if mixed else ""
        opened = "it opens a sum over the records of each machine, adds it and forgets it"
        points = f"; {repeated}" if issubclass(estimator.learns, Batches) else ""
        return [
            f"{trusted}{roles}. While a batch is learned, people must trust the driver's memory, too: {opened}{points}"
        ]
    return [
        f"{trusted}. Each machine draws its noise from its operating system; if Spark runs a task twice, one of the "
        "two results is opened, and nothing else of them is stored in the clear"
    ]


def restore(snapshot: Snapshot, reuse: Model | None = None) -> Model:
    """Restore the model of a snapshot.

    The estimator of `reuse`, a model that is not read any more, takes the state if the configuration is the same.
    Raises `ConfigError` if the snapshot has no valid configuration, and `StoreDamagedError` if the configuration does
    not have the fingerprint of the snapshot.
    """
    if reuse is not None and reuse.snapshot.config == snapshot.config:
        if reuse.snapshot is not snapshot:
            reused = reuse.estimator
            reused.load_state_dict(snapshot.state)
        return replace(reuse, snapshot=snapshot)
    definition = read_definition(snapshot.config)
    if definition.fingerprint() != snapshot.fingerprint:
        raise StoreDamagedError(f"the configuration of job {snapshot.job!r} does not have its stored fingerprint")
    estimator = definition.build_estimator(None)  # without a ledger, because it does not learn
    estimator.load_state_dict(snapshot.state)
    return Model(definition, estimator, snapshot)


def combined(snapshots: Sequence[Snapshot]) -> Snapshot:
    """Combine the snapshots of all shards of a job into one.

    Returns a snapshot with the merged states, added counts and the positions by shard; the snapshot of an unpartitioned
    stream is returned unchanged. Raises `NotAvailableError` if there is no snapshot or none with a state, and
    `StoreMismatchError` if the snapshots belong to different jobs or configurations.
    """
    if not snapshots:
        raise NotAvailableError("there is no commit yet, so there is nothing to show")
    first = snapshots[0]
    if any((s.job, s.fingerprint) != (first.job, first.fingerprint) for s in snapshots):
        raise StoreMismatchError("expected the shards of one job with one configuration")
    if len(snapshots) == 1 and first.shard == WHOLE:
        return first
    if not (states := [snapshot for snapshot in snapshots if snapshot.state]):
        raise NotAvailableError("the snapshot with the model's state is not there yet, so there is nothing to show")
    state = states[0].state
    if len(states) > 1:
        first_model, *models = [restore(snapshot).estimator for snapshot in states]
        state = first_model.merged(*models).state_dict()
    return replace(
        first,
        config=max(snapshots, key=lambda s: s.committed_at).config,
        seq=sum(s.seq for s in snapshots),
        committed_at=max(s.committed_at for s in snapshots),
        counts=counts_sum(s.counts for s in snapshots),
        position={str(s.shard): s.position for s in snapshots},
        state=state,
        shard=WHOLE,
        waiting=sum(s.waiting for s in snapshots),
        losses=max(s.losses for s in snapshots),
    )


_PLAIN = ("job", "fingerprint", "config", "seq", "committed_at", "position", "epoch", "waiting", "losses")
"""What a snapshot has as JSON as it is."""


def snapshot_to_json(snapshot: Snapshot) -> str:
    """Write a snapshot as JSON text. It holds what the store holds: only private values."""
    counts, shard = asdict(snapshot.counts), {"topic": snapshot.shard.topic, "partition": snapshot.shard.partition}
    plain = {name: getattr(snapshot, name) for name in _PLAIN}
    return json.dumps({"format": 1, **plain, **counts, **shard, "state": encode_state(snapshot.state)})


def snapshot_from_json(text: str | bytes) -> Snapshot:
    """Read a snapshot from the JSON `text` of `snapshot_to_json`. Raises `StoreDamagedError` for any other text."""
    try:
        item = json.loads(text)
        if item["format"] != 1:
            raise StoreDamagedError("the snapshot has a newer format; use a newer streamdp")
        counts = Counts(*(item[name] for name in ("learned", "refused", "dead_letters", "left_out")))
        shard = Shard(item["topic"], item["partition"])
        plain = {name: item[name] for name in _PLAIN}
        return Snapshot(**plain, counts=counts, shard=shard, state=decode_state(item["state"]))
    except (KeyError, TypeError, ValueError):
        raise StoreDamagedError("expected a streamdp snapshot as JSON") from None


def newest(snapshots: Iterable[Snapshot], job: str) -> list[Snapshot]:
    """Select the newest snapshot of each shard of the `job` of this name.

    A late snapshot of an earlier owner has an earlier epoch and an earlier time. A snapshot of a store that was created
    again has an earlier epoch but a later time. Returns the snapshots in the order of their shards.
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


def load_snapshot(bootstrap_servers: str | list[str], topic: str, job: str, **options: object) -> Model:
    """Read the published model of a `job` from a compacted topic, without the database. Needs the extra `kafka`.

    Use `load_snapshot(...).estimator.predict_one(x)` for predictions. `bootstrap_servers` are the brokers,
    `host:port[,host:port]` or a list. The workers of the job publish to `topic`. `options` are those of
    `kafka.KafkaConsumer`, such as those for SASL and TLS.

    Raises `NotAvailableError` if nothing is published yet, and `SourceError` if the broker or the topic cannot be read.
    """
    from connectors.kafkasink import read_topic  # the only connector that this room uses

    check_texts(topic=topic, job=job)
    several = isinstance(bootstrap_servers, list) and bootstrap_servers
    for servers in bootstrap_servers if several else [bootstrap_servers]:
        check_texts(bootstrap_servers=servers)
    found = (snapshot_from_json(value) for value in read_topic(bootstrap_servers, topic, options))
    return restore(combined(newest(found, job)))
