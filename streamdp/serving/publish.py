"""What may be shown of a job. It derives from committed snapshots only and spends no budget.

An `Outlet` brings published documents to a file or a sink: a thread sends the last one, until the sink has it.
Learning never waits for a sink. While the sink does not take a document, later commits replace it. What was not sent
before the end of the process is sent by the next one, because a job publishes its last commit when it resumes.
"""

from __future__ import annotations

import contextlib
import errno
import json
import logging
import math
import os
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import orjson

from streamdp import system
from streamdp.config.definition import read_definition
from streamdp.database.durable import write_durably
from streamdp.errors import NotAvailableError, SinkError, StoreError, StoreUnavailableError, check_level, reason_of
from streamdp.estimators.estimator import Estimator
from streamdp.reading.doubts import rounded, unresolved
from streamdp.serving.snapshots import Model, combined, restore
from streamdp.store.reading import begun
from streamdp.store.reading import snapshots as stored_snapshots
from streamdp.store.sinks import note_doubt, note_sink
from streamdp.store.snapshot import Snapshot

if TYPE_CHECKING:
    from connectors.sinks import Message, Sink
    from streamdp.config.job import JobConfig
    from streamdp.config.publish import SinkConfig

FIRST_WAIT_S, LONGEST_WAIT_S = 0.5, 60.0
"""After a failure the next attempt is made after so many seconds, then after twice as many each time, up to this."""
CLOSE_S = 5.0
"""How long the end of a run waits for a sink."""
NOTE_S = 5.0
"""While all goes well, what a sink has is noted so often, and at the end."""

Note = Callable[[str, tuple[int, float], str], None]
"""Notes for readers that a sink, by its name, has a commit, or the reason why it has not: see `store.sinks`."""


class FileSink:
    """The file at `path`, which each document replaces, unless it has a later commit. Everybody may read it."""

    def __init__(self, path: str) -> None:
        self._path = path

    def send(self, message: Message) -> None:
        """Write the document of the `message`. Raises `SinkError`."""
        document = json.dumps(orjson.loads(message.document), indent=2)
        try:
            folder = os.open(os.path.dirname(os.path.realpath(self._path)), os.O_RDONLY)
            try:
                with contextlib.suppress(OSError):  # of a network's file system, which may lock no folders
                    system.lock(folder)  # workers of a group write one after the other
                if not self._has_later(message):
                    write_durably(self._path, document + "\n", mode=0o644)
            finally:
                os.close(folder)
        except OSError as error:
            raise SinkError(error.strerror or type(error).__name__) from None

    def _has_later(self, message: Message) -> bool:
        """Whether another worker has published a later commit of the job."""
        try:
            with open(self._path, "rb") as file:
                shown = orjson.loads(file.read())
            job, commit, at = shown["job"], shown["commit"], shown["committed_at"]
            return bool(job == message.job and commit > message.commit and at >= message.committed_at)
        except (OSError, ValueError, KeyError, TypeError):
            return False

    def close(self) -> None:
        """Do nothing: the file is open during `send` only."""


class Outlet:
    """Sends the last message to the sink of a `config`, or to the file of this path.

    `tell` gets a sentence when it fails for the first time, and when it is over; then, and from time to time, `note` is
    called. What `note` cannot write is left out.

    Raises `ConfigError` if what the sink needs is not installed.
    """

    def __init__(self, config: SinkConfig | str, tell: Callable[[str], None], note: Note) -> None:
        self._build: Callable[[], Sink]
        if isinstance(config, str):
            self.name, self._build = config, partial(FileSink, config)
        else:
            config.check_installed()
            self.name, self._build = config.name, config.build
        self._tell, self._note = tell, note
        self.trouble: str | None = None
        """Why the sink has not taken the last message; None if it has, or if none was sent."""
        self._changed = threading.Condition()
        self._message: Message | None = None  # None if the sink has it
        self._closing = False
        self._thread: threading.Thread | None = None  # a daemon: a sink that hangs does not keep the process

    def offer(self, message: Message) -> None:
        """Send a `message` in place of an earlier one that the sink has not taken. It returns at once."""
        with self._changed:
            self._message = message
            self._changed.notify()
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name=f"to {self.name}", daemon=True)
            self._thread.start()

    def close(self) -> None:
        """Wait for the sink, for at most `CLOSE_S`."""
        if self._thread is None:
            return
        with self._changed:
            self._closing = True
            self._changed.notify()
        self._thread.join(CLOSE_S)
        self._thread = None
        if (left := self._message) is not None:
            self._tell(f"{self.name} does not have commit {left.commit}: the next run of the job publishes it")

    def _run(self) -> None:
        sink: Sink | None = None
        wait_s = 0.0
        sent: Message | None = None  # not noted yet
        noted_at = -NOTE_S
        while (message := self._next(wait_s)) is not None:
            try:
                sink = sink or self._build()
                sink.send(message)
            except Exception as error:  # noqa: BLE001 - whatever it is, the next attempt connects again
                _close(sink)
                sink = None
                wait_s = min(max(2 * wait_s, FIRST_WAIT_S), LONGEST_WAIT_S)
                before, self.trouble = self.trouble, reason_of(error)
                if before != self.trouble:
                    self._write(message, self.trouble)
                if before is None:
                    self._tell(f"cannot publish to {self.name}, trying again: {self.trouble}")
                if self._closing:
                    return
                continue
            with self._changed:
                if self._message is message:
                    self._message = None
            sent = message
            if self.trouble is not None or time.monotonic() - noted_at >= NOTE_S:
                self._write(message)
                sent, noted_at = None, time.monotonic()
            if self.trouble is not None:
                self._tell(f"published to {self.name} again")
            wait_s, self.trouble = 0.0, None
        if sent is not None:
            self._write(sent)
        _close(sink)

    def _write(self, message: Message, reason: str = "") -> None:
        with contextlib.suppress(Exception):  # whatever it is, the sink goes on
            self._note(self.name, (0, 0.0) if reason else (message.commit, message.committed_at), reason)

    def _next(self, wait_s: float) -> Message | None:
        """Wait, at most until the end, and return the message to send; None if the sink has all, and no other comes."""
        with self._changed:
            if wait_s:
                self._changed.wait_for(lambda: self._closing, wait_s)
            else:
                self._changed.wait_for(lambda: self._closing or self._message is not None)
            return self._message


def _close(sink: Sink | None) -> None:
    if sink is not None:
        sink.close()


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
    return Model(definition, estimator, replace(known, state=estimator.state_dict()))


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


def shown_weights(model: Model, level: float = 0.95) -> list[Weight]:
    """List the coefficients of a committed `model` as `weights` does, in the unit of the target column."""
    scale, linear = model.definition.schema_.target.scale or 1.0, model.estimator.link is None

    def plain(name: str, number: float | None) -> Any:
        if number is None:
            return None
        return scale * number if linear else number + math.log(scale) * (name == "(intercept)")

    found = weights(model.estimator, level)
    return [replace(w, **{end: plain(w.name, getattr(w, end)) for end in ("value", "low", "high")}) for w in found]


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
        given = map(asdict, shown_weights(model))
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
        config: JobConfig,
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
        self._note = partial(note_doubt, config.store_path, config.job)

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

    def model(self, snapshot: Snapshot) -> Model:
        """The model of a committed snapshot, which is restored once."""
        self._model = restore(snapshot, self._model)
        return self._model

    def __call__(self, snapshot: Snapshot) -> None:
        """Publish a committed snapshot."""
        from connectors.sinks import Message  # commands that read a store load no connectors
        from streamdp.serving.holdout import WORSE

        measures = None if self._holdout is None else self._holdout.measure(self.model(snapshot).estimator)
        shown = replace(snapshot, doubt=WORSE if "warning" in (measures or {}) else "")
        if self._holdout is not None or snapshot.doubt:
            with contextlib.suppress(StoreUnavailableError):  # for readers only; it is noted after the next commit
                self._note(shown.doubt)
        if self._outlets:
            written = orjson.dumps(document(replace(self.model(snapshot), snapshot=shown), measures))
            message = Message(snapshot.job, snapshot.seq, snapshot.committed_at, written)
            for outlet in self._outlets:
                outlet.offer(message)
        for listener in self._listeners:
            listener(shown, measures)
