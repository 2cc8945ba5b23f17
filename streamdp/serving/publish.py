"""What may be shown of a job. It derives from committed snapshots only and spends no budget."""

import contextlib
import errno
import logging
import math
import os
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import orjson

from streamdp.config.definition import read_definition
from streamdp.errors import NotAvailableError, StoreError, check_level
from streamdp.estimators.estimator import Estimator
from streamdp.reading.doubts import rounded, unresolved
from streamdp.serving.outlet import Outlet
from streamdp.serving.snapshots import Model, combined, restore
from streamdp.store.reading import begun
from streamdp.store.reading import snapshots as stored_snapshots
from streamdp.store.sinks import note_sink
from streamdp.store.snapshot import Counts, Snapshot

if TYPE_CHECKING:
    from streamdp.config.job import JobConfig

_log = logging.getLogger("streamdp.publish")


def committed(store_path: str, job: str | None = None) -> Model:
    """Read the last committed model of a job.

    The job may be running. `store_path` is the store's file, or the URL of its database, which needs the name of the
    `job` if it has several. Raises `NotAvailableError` before the first commit.
    """
    snapshots = stored_snapshots(store_path, job)
    if not snapshots:
        raise NotAvailableError(f"{job or store_path} has no commit yet, so there is nothing to show")
    return restore(combined(snapshots))


def present(store_path: str, job: str | None = None) -> Model:
    """Read the model of a `job` in `store_path` as `committed`, or before its first commit one without records."""
    with contextlib.suppress(NotAvailableError):
        return committed(store_path, job)
    known = begun(store_path, job)
    definition = read_definition(known.config)
    estimator = definition.build_estimator(None)
    state = estimator.state_dict()
    first = Snapshot(known.job, known.fingerprint, known.config, 0, 0.0, Counts(), {}, state, waiting=known.waiting)
    return Model(definition, estimator, first)


@dataclass(frozen=True, slots=True)
class Weight:
    """One coefficient of a model."""

    name: str  # of the feature
    value: float
    low: float | None = None  # the confidence interval is from `low` to `high`; None if there is none
    high: float | None = None
    # whether there are enough records for an interval; None if the estimator has no intervals
    settled: bool | None = None
    label: str | None = None  # the class that it belongs to, if there are more than two
    # about how many records in all give most such weights an interval; None if settled or not yet known
    settles_at: int | None = None


def weights(estimator: Any, level: float = 0.95) -> list[Weight]:
    """List the coefficients of `estimator` in the order of theta, with intervals of a `level` in (0, 1).

    Raises `ConfigError` for a level out of range, and `NotAvailableError` for statistics.
    """
    need_model(estimator)
    check_level(level)
    interval: list[list[float]] | None = None
    records: list[float] = []
    # Some estimators have no intervals, and the others have none before some records.
    with contextlib.suppress(NotAvailableError, AttributeError):
        interval, records = (found.tolist() for found in estimator.settling(level))
    out: list[Weight] = []
    for label, name, value in _flat(estimator.weights):
        if interval is None:
            out.append(Weight(name, value, label=label))
            continue
        (low, high), needed = interval[len(out)], records[len(out)]
        if not math.isnan(low):
            out.append(Weight(name, value, low, high, True, label))
        else:
            enough = None if math.isnan(needed) else rounded(needed)
            out.append(Weight(name, value, None, None, False, label, enough))
    return out


def need_model(estimator: Estimator) -> None:
    """Raise `NotAvailableError` if an `estimator` has statistics, and so no weights and no predictions."""
    if getattr(estimator, "statistics", None) is not None:
        raise NotAvailableError("this job estimates statistics and has no model: `streamdp stats STORE` shows them")


def unsettled(shown: Sequence[Weight]) -> str | None:
    """Say in a sentence what the weights without an interval need. None if all are settled, or have no intervals."""
    waiting = [w for w in shown if w.settled is False]
    if not waiting:
        return None
    records = sorted(w.settles_at for w in waiting if w.settles_at is not None)
    enough = "more records settle them"
    if records:
        counts = " to ".join(f"{n:,}" for n in dict.fromkeys((records[0], records[-1])))
        enough = f"about {counts} records in all settle most such weights"
    return f"{len(waiting)} of {len(shown)} weights have no interval yet: {enough}"


def needs(estimator: Estimator, shown: Sequence[Weight]) -> list[str]:
    """Say what the weights of an `estimator` that have no interval need: narrower bounds of columns, and records."""
    blind = getattr(estimator, "unresolved", [])
    found = [unresolved(blind), unsettled([w for w in shown if w.name not in blind])]
    return [doubt for doubt in found if doubt is not None]


def _flat(named: dict[Any, Any]) -> Iterator[tuple[str | None, str, float]]:
    for key, value in named.items():
        if isinstance(value, dict):
            yield from ((str(key), str(name), number) for name, number in value.items())
        else:
            yield None, str(key), value


def document(model: Model, holdout: dict[str, object] | None = None) -> dict[str, Any]:
    """Describe a committed model by plain values that fit into JSON.

    `holdout` has its measures, from `Holdout.measure`. Returns the job, the commit, the counts, the weights, the
    guarantee, the statement, the doubts, the private validation, what is known about a change, and the measures.
    """
    estimator, snapshot = model.estimator, model.snapshot
    out: dict[str, object] = {
        "job": snapshot.job,
        "commit": snapshot.seq,
        "committed_at": snapshot.committed_at,
        "counts": asdict(snapshot.counts),
        "position": snapshot.position,
        "guarantee": str(estimator.guarantee),
        "statement": model.statement(),
    }
    if estimator.estimated is not None:
        out["statistics"] = estimator.estimated.rows()
    if model.definition.has_model:
        given = map(asdict, weights(estimator))
        out["weights"] = [{key: value for key, value in row.items() if value is not None} for row in given]
    out["doubts"] = model.doubts
    if (quality := model.quality) is not None:
        out["validation"] = quality.document()
    if model.change is not None:
        out["change"] = model.change
    return out if holdout is None else out | {"holdout": holdout}


class Publisher(contextlib.AbstractContextManager["Publisher"]):
    """A listener for committed snapshots: it measures the model, publishes its document, and calls other listeners.

    The places, the holdout and the store are those of the job. The `listeners` get the snapshot and its measures (None
    without a holdout), which do not wait for the places. `tell` gets sentences about places that fail, from their
    threads; the store has what `streamdp status` shows of them. What is published is released: the document follows
    from the committed snapshot alone, whose spends are in the same transaction. A context manager, which ends with
    `close`. Raises `StoreError` if a path can be no file that is replaced, and what `Holdout` raises.
    """

    def __init__(
        self,
        config: "JobConfig",
        listeners: tuple[Callable[[Snapshot, dict[str, object] | None], None], ...] = (),
        tell: Callable[[str], None] = _log.warning,
    ) -> None:
        from streamdp.serving.holdout import Holdout  # commands that read a store load no sources

        places = config.publish
        for path in (place for place in places if isinstance(place, str)):
            if os.path.lexists(path) and not os.path.isfile(path):
                raise StoreError(f"cannot publish to {path}: it is not a regular file")
            try:
                tempfile.TemporaryFile(dir=os.path.dirname(os.path.abspath(path))).close()
            except OSError as error:
                if error.errno not in (errno.ENOSPC, errno.EDQUOT):  # a full disk may have room later
                    raise StoreError(f"cannot publish to {path}: {error.strerror}") from None
        self._outlets = [
            Outlet(place, tell, partial(note_sink, config.store_path, config.job, (number, len(places))))
            for number, place in enumerate(places)
        ]
        self._holdout = None if config.holdout is None else Holdout(config)
        self._listeners = listeners
        self._model: Model | None = None

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        """Wait a moment for the sinks."""
        for outlet in self._outlets:
            outlet.close()

    @property
    def troubles(self) -> list[str]:
        """Why sinks have not taken the last commit, one sentence for each of them."""
        return [trouble for outlet in self._outlets if (trouble := outlet.trouble) is not None]

    def __call__(self, snapshot: Snapshot) -> None:
        """Publish a committed snapshot."""
        from connectors.sinks import Message  # commands that read a store load no connectors

        measures = None
        if self._outlets or self._holdout is not None:
            model = self._model = restore(snapshot, self._model)
            if self._holdout is not None:
                measures = self._holdout.measure(model.estimator)
            if self._outlets:
                written = orjson.dumps(document(model, measures))
                message = Message(snapshot.job, snapshot.seq, snapshot.committed_at, written)
                for outlet in self._outlets:
                    outlet.offer(message)
        for listener in self._listeners:
            listener(snapshot, measures)
