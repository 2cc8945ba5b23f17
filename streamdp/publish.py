"""What may be shown of a job: everything here starts from a committed snapshot, and spends nothing."""

from __future__ import annotations

import contextlib
import json
import os
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

from streamdp.config import JobConfig
from streamdp.errors import NotAvailable, SourceError, StoreError
from streamdp.estimators.base import ClassifierFace, RegressorFace, StreamEstimator
from streamdp.snapshots import Model, combined, restore
from streamdp.store import Snapshot, Store

HOLDOUT_NOTE = "measured on a holdout file that was declared public; it spends nothing and is not protected"


def committed(store_path: str, job: str | None = None) -> Model:
    """The last committed model of a job, which may be running; `job` names it where the store is a server.

    Raises `NotAvailable` before the first commit.
    """
    snapshots = Store.snapshots(store_path, job)
    if not snapshots:
        raise NotAvailable(f"{job or store_path} has no commit yet; nothing has been learned that could be shown")
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
    with contextlib.suppress(NotAvailable, AttributeError):
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
    """Raises `StoreError` where `write_atomically` could not write, before anything depends on it."""
    if os.path.lexists(path) and not os.path.isfile(path):
        raise StoreError(f"cannot publish to {path}: it is no regular file")
    try:
        tempfile.TemporaryFile(dir=os.path.dirname(os.path.abspath(path))).close()
    except OSError as error:
        raise StoreError(f"cannot publish to {path}: {error.strerror}") from None


def write_atomically(path: str, text: str) -> None:
    """Replace the file at `path`, so that a reader finds the old text or the new. Raises `StoreError`."""
    folder, name = os.path.split(os.path.abspath(path))
    try:
        descriptor, draft = tempfile.mkstemp(prefix=f".{name}.", dir=folder)
        try:
            with os.fdopen(descriptor, "w", encoding="utf-8") as file:
                file.write(text)
            os.chmod(draft, 0o644)  # what is published is for everyone to read; mkstemp thinks otherwise
            os.replace(draft, path)
        except BaseException:
            os.unlink(draft)
            raise
    except OSError as error:
        raise StoreError(f"cannot publish to {path}: {error.strerror}") from None


class Holdout:
    """A public file of the job's columns (subject and budget may be missing), to measure committed models on.

    Raises `SourceError` and `SchemaError` where the file cannot be read or does not fit.
    """

    def __init__(self, config: JobConfig) -> None:
        path = config.holdout
        assert path is not None
        public = config.schema_.model_copy(update={"subject": None, "budget": None})
        source = config.source.for_file(path).build(public.build())
        batches = []
        while not source.finished:
            batches.append(source.poll(1 << 20, 1.0))
        source.close()
        self._X = np.concatenate([batch.X for batch in batches]) if batches else np.zeros((0, 0))
        self._y = np.concatenate([batch.y for batch in batches]) if batches else np.zeros(0)
        self._scale = config.schema_.target.scale or 1.0
        if not len(self._y):
            raise SourceError(f"{path}: the holdout has no records")

    def measure(self, estimator: StreamEstimator) -> dict[str, Any]:
        """Accuracy and log loss, or mean absolute and root mean squared error in the target's own unit."""
        out: dict[str, Any] = {"records": len(self._y)}
        if isinstance(estimator, ClassifierFace):
            out["accuracy"] = float(np.mean(estimator.predict_arrays(self._X) == self._y))
            with contextlib.suppress(NotImplementedError):  # the hinge loss has no probabilities
                likelihood = probabilities(estimator, self._X)[np.arange(len(self._y)), self._y.astype(int)]
                out["log_loss"] = float(-np.mean(np.log(np.maximum(likelihood, 1e-300))))
        elif isinstance(estimator, RegressorFace):
            error = (estimator.predict_arrays(self._X) - self._y) * self._scale
            out["mean_absolute_error"] = float(np.mean(np.abs(error)))
            out["root_mean_squared_error"] = float(np.sqrt(np.mean(error**2)))
        return out | {"note": HOLDOUT_NOTE}


def probabilities(estimator: ClassifierFace, X: np.ndarray) -> np.ndarray:
    """The (n, K) class probabilities. Raises `NotImplementedError` where the loss gives none."""
    if not estimator._probabilistic:
        raise NotImplementedError("the hinge loss gives no probabilities")
    return estimator.predict_proba_arrays(X)


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
                write_atomically(self._path, json.dumps(document(model, measures), indent=2) + "\n")
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
