"""What may be shown of a job: everything here starts from a committed snapshot, and spends nothing."""

from __future__ import annotations

import contextlib
import json
import os
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from typing import Any

from streamdp.database.durable import write_durably
from streamdp.errors import NotAvailableError, StoreError
from streamdp.serving.holdout import Holdout
from streamdp.serving.snapshots import Model, combined, restore
from streamdp.store.snapshot import Snapshot
from streamdp.store.store import Store


def committed(store_path: str, job: str | None = None) -> Model:
    """The last committed model of a job, which may be running; `job` names it where the store is a server.

    Raises `NotAvailableError` before the first commit.
    """
    snapshots = Store.snapshots(store_path, job)
    if not snapshots:
        raise NotAvailableError(f"{job or store_path} has no commit yet; nothing has been learned that could be shown")
    return restore(combined(snapshots))


@dataclass(frozen=True, slots=True)
class Weight:
    """One coefficient, of one class where there are more than two, with its interval where there is one."""

    name: str
    value: float
    low: float | None = None
    high: float | None = None
    label: str | None = None


def weights(estimator: Any, level: float = 0.95) -> list[Weight]:
    """The coefficients in the order of theta. Raises `ConfigError` for a level that is not tabulated."""
    interval: list[list[float]] | None = None
    # Not every estimator has intervals, and none has one at once.
    with contextlib.suppress(NotAvailableError, AttributeError):
        interval = estimator.interval(level).tolist()
    out: list[Weight] = []
    for label, name, value in _flat(estimator.weights):
        low, high = (None, None) if interval is None else interval[len(out)]
        out.append(Weight(name, value, low, high, label))
    return out


def _flat(named: dict[Any, Any]) -> Iterator[tuple[str | None, str, float]]:
    for key, value in named.items():
        if isinstance(value, dict):
            yield from ((str(key), str(name), number) for name, number in value.items())
        else:
            yield None, str(key), value


def document(model: Model, holdout: dict[str, Any] | None = None) -> dict[str, Any]:
    """A committed model as plain values: counts, weights, guarantee, statement, and the holdout's measures."""
    snapshot = model.snapshot
    out = {
        "job": snapshot.job,
        "commit": snapshot.seq,
        "committed_at": snapshot.committed_at,
        "counts": asdict(snapshot.counts),
        "position": snapshot.position,
        "guarantee": str(model.estimator.guarantee),
        "weights": [
            {key: value for key, value in asdict(weight).items() if value is not None}
            for weight in weights(model.estimator)
        ],
        "statement": model.estimator.statement(),
    }
    return out if holdout is None else out | {"holdout": holdout}


def check_place(path: str) -> None:
    """Raises `StoreError` where `Publisher` could not write, before anything depends on it."""
    if os.path.lexists(path) and not os.path.isfile(path):
        raise StoreError(f"cannot publish to {path}: it is no regular file")
    try:
        tempfile.TemporaryFile(dir=os.path.dirname(os.path.abspath(path))).close()
    except OSError as error:
        raise StoreError(f"cannot publish to {path}: {error.strerror}") from None


class Publisher:
    """Called with every committed snapshot: measures it on the holdout, writes the JSON file, tells the listeners.

    Raises `StoreError` at once where the file cannot be written.
    """

    def __init__(
        self,
        path: str | None,
        holdout: Holdout | None,
        listeners: tuple[Callable[[Snapshot, dict[str, Any] | None], None], ...] = (),
    ) -> None:
        if path is not None:
            check_place(path)
        self._path = path
        self._holdout = holdout
        self._listeners = listeners
        self._model: Model | None = None

    def __call__(self, snapshot: Snapshot) -> None:
        measures = None
        if self._path is not None or self._holdout is not None:
            model = self._read(snapshot)
            if self._holdout is not None:
                measures = self._holdout.measure(model.estimator)
            if self._path is not None:
                try:  # what is published may be read by everybody
                    write_durably(self._path, json.dumps(document(model, measures), indent=2) + "\n", mode=0o644)
                except OSError as error:
                    raise StoreError(f"cannot publish to {self._path}: {error.strerror}") from None
        for listener in self._listeners:
            listener(snapshot, measures)

    def _read(self, snapshot: Snapshot) -> Model:
        """One model for all snapshots of the run: only its state changes from commit to commit."""
        if self._model is None:
            self._model = restore(snapshot)
        else:
            estimator: Any = self._model.estimator
            estimator.load_state_dict(snapshot.state)
            self._model = replace(self._model, snapshot=snapshot)
        return self._model
