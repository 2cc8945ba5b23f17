"""The loop of a job: source -> validate -> admit -> learn -> commit -> publish.

Spend before release: what was learned is shown to nobody until state, position, counts and spends are committed in one
transaction; publishers get the snapshot that the store reads back. After a crash the job goes on from there, and what
came after the last commit had never been seen. Records are validated by the source's encoder and admitted by the
estimator's ledger, which is the store's.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np

from streamdp.data.records import Batch, DeadLetter, Position, Source, Subject
from streamdp.errors import ConfigError, SourceError
from streamdp.runtime.defaults import COMMIT_RECORDS, COMMIT_SECONDS, POLL_TIMEOUT_S
from streamdp.runtime.signals import stopped_by_signals
from streamdp.store.snapshot import Counts, Snapshot

POLL_RECORDS = 65_536
"""At most this many records are learned between two looks at the clock and at the stop signals."""


class Estimator(Protocol):
    """What the loop needs of an estimator."""

    n_seen: int
    n_refused: int
    commits_at_every_boundary: bool

    @property
    def ledger(self) -> Any: ...

    @property
    def at_boundary(self) -> bool: ...

    @property
    def to_boundary(self) -> int: ...

    def boundary_within(self, records: int) -> int: ...

    def close_batch(self) -> None: ...

    def learn_arrays(
        self,
        X: np.ndarray,
        y: np.ndarray,
        budgets: np.ndarray | None = None,
        subjects: Sequence[Subject | None] | None = None,
    ) -> np.ndarray | None: ...

    def state_dict(self) -> dict[str, Any]: ...

    def load_state_dict(self, state: Mapping[str, Any]) -> None: ...


class Committing(Protocol):
    """What the loop needs of a store; `streamdp.store.store.Store` has it."""

    @property
    def ledger(self) -> Any: ...

    def load(self) -> Snapshot | None: ...

    def commit(self, state: Mapping[str, Any], position: Position, counts: Counts) -> None: ...

    def rollback(self) -> None: ...


class DeadLetters(Protocol):
    """Where dead letters go; `connectors.files.DeadLetterFile` is one."""

    def write(self, letters: Sequence[DeadLetter]) -> None: ...

    def commit(self) -> None:
        """Make what was written durable."""


@dataclass(frozen=True, slots=True)
class Progress:
    """Where a running job is: all counts so far, and those that are committed."""

    counts: Counts
    committed: Counts


def total(counts: Counts) -> int:
    """How many records these are: each is learned, refused or dead."""
    return counts.learned + counts.refused + counts.dead


def seek(source: Source, position: Position) -> None:
    """How a job resumes unless told otherwise."""
    source.seek(position)


class Runner:
    """Runs one job until its source ends, `stop` is called or a signal comes.

    Parameters
    ----------
    source, estimator, store
        Any that follow the protocols. The estimator's `ledger` must be the store's (None for both without a cap), so
        that spends are committed with the state they paid for.
    commit_records, commit_seconds
        Commit after exactly this many records (dead and refused ones included), or this many seconds with at least
        one; an estimator that is not at a boundary then puts it off until it is. When a run ends its batch is closed;
        after a crash an unfinished batch is read again. An estimator that `commits_at_every_boundary` is committed at
        every boundary.
    dead_letters
        Gets the letters before their records are committed: after a crash some are written twice, with the same
        position, and none is lost.
    publish
        Each is called with the committed snapshot after every commit, and with the last one when a job goes on: a
        crash may have come between the commit and the call.
    on_progress
        Called after every batch and every commit.
    resume
        Takes the source to the position of the last snapshot.

    Raises `ConfigError` for a ledger that is not the store's.
    """

    def __init__(
        self,
        source: Source,
        estimator: Estimator,
        store: Committing,
        *,
        commit_records: int = COMMIT_RECORDS,
        commit_seconds: float = COMMIT_SECONDS,
        dead_letters: DeadLetters | None = None,
        publish: Sequence[Callable[[Snapshot], None]] = (),
        on_progress: Callable[[Progress], None] | None = None,
        resume: Callable[[Source, Position], None] = seek,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        if estimator.ledger is not store.ledger:
            raise ConfigError("the estimator's ledger must be the store's: build it with ledger=store.ledger")
        if commit_records < 1 or not commit_seconds > 0:
            raise ConfigError("commit_records must be at least 1 and commit_seconds positive")
        self._source = source
        self._estimator = estimator
        self._store = store
        self._commit_records = commit_records
        self._commit_seconds = commit_seconds
        self._dead_letters = dead_letters
        self._publish = tuple(publish)
        self._on_progress = on_progress
        self._resume = resume
        self._clock = clock
        self._stopping = False
        self._committed = Counts()
        self._counts = Counts()
        self._position = self._committed_position = source.position

    @property
    def stopping(self) -> bool:
        """Whether `stop` was called or a signal came."""
        return self._stopping

    def stop(self) -> None:
        """Ask the loop to finish the batch at hand, commit and return. From any thread."""
        self._stopping = True

    def run(self, max_records: int | None = None) -> Counts:
        """Learn until the source has ended, or for `max_records` records; returns the counts that are committed.

        SIGINT and SIGTERM stop it as `stop` does, where this is the main thread; a second SIGINT raises
        `KeyboardInterrupt` at once. Where the source raises `SourceError`, what was learned until then is committed
        before the error goes on; any other error goes on at once and leaves the last commit as it is.

        Raises `ConfigError` for an estimator that has learned what the store knows nothing of, and instead of the
        commit of a state that is not finite.
        """
        with stopped_by_signals(self.stop, lambda: self._stopping):
            self._start()
            self._loop(max_records)
        return self._committed

    def _start(self) -> None:
        self._store.rollback()  # what an earlier run did not commit was never learned
        snapshot = self._store.load()
        if snapshot is None and self._estimator.n_seen:
            raise ConfigError("this estimator has learned records that the store does not know: begin with a new one")
        if snapshot is not None:
            self._estimator.load_state_dict(snapshot.state)
            self._resume(self._source, snapshot.position)
            self._counts = self._committed = snapshot.counts
            self._position = self._committed_position = snapshot.position
            for publish in self._publish:
                publish(snapshot)
        self._committed_at = self._clock()

    def _loop(self, max_records: int | None) -> None:
        end = None if max_records is None else total(self._counts) + max_records
        while not (self._stopping or self._source.finished or (end is not None and total(self._counts) >= end)):
            # Never past the next commit, so that commits of one stream fall on the same records in every run. An
            # estimator that learns in batches puts it off until the next boundary.
            if self._due():
                self._commit()
            due = self._due()
            room = min(POLL_RECORDS, self._estimator.to_boundary if due else self._commit_records - self._pending)
            if end is not None:
                room = min(room, end - total(self._counts))
            try:
                batch = self._source.poll(
                    self._estimator.boundary_within(room), min(POLL_TIMEOUT_S, self._commit_seconds)
                )
            except SourceError:
                self._finish()
                raise
            self._position = batch.position  # it may move without a record
            if len(batch) or batch.dead:
                self._learn(batch)
            if self._estimator.commits_at_every_boundary:
                self._commit()
        self._finish()

    def _due(self) -> bool:
        late = self._clock() - self._committed_at >= self._commit_seconds
        return self._pending >= self._commit_records or (late and self._pending > 0)

    def _finish(self) -> None:
        self._estimator.close_batch()
        self._commit()

    @property
    def _pending(self) -> int:
        return total(self._counts) - total(self._committed)

    def _learn(self, batch: Batch) -> None:
        estimator, counts = self._estimator, self._counts
        seen, refused = estimator.n_seen, estimator.n_refused
        if len(batch):
            estimator.learn_arrays(batch.X, batch.y, batch.budgets, batch.subjects)
        if batch.dead and self._dead_letters is not None:
            self._dead_letters.write(batch.dead)
        self._counts = replace(
            counts,
            learned=counts.learned + estimator.n_seen - seen,
            refused=counts.refused + estimator.n_refused - refused,
            dead=counts.dead + len(batch.dead),
        )
        self._report()

    def _commit(self) -> None:
        """Commit and publish, if there is something to commit and the state may leave memory now."""
        # Another input may end at the very same position; a position may move without a record.
        moved = self._pending or self._position != self._committed_position
        if moved and self._estimator.at_boundary:
            state = self._estimator.state_dict()
            check_finite(state)
            if self._dead_letters is not None:
                self._dead_letters.commit()
            self._store.commit(state, self._position, self._counts)
            self._committed, self._committed_position = self._counts, self._position
            self._source.commit(self._position)
            if self._publish:
                snapshot = self._store.load()
                assert snapshot is not None, "a store lost what it has just committed"
                for publish in self._publish:
                    publish(snapshot)
            self._report()
            self._committed_at = self._clock()

    def _report(self) -> None:
        if self._on_progress is not None:
            self._on_progress(Progress(self._counts, self._committed))


def check_finite(state: Mapping[str, Any]) -> None:
    """Raises `ConfigError` for a state that must not be committed, as nothing could be learned from it any more."""
    if not all(np.isfinite(value).all() for value in state.values() if isinstance(value, np.ndarray)):
        raise ConfigError("the model is no longer finite; the last commit is kept; try a smaller eta, or a domain")
