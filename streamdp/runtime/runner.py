"""The loop of a job with one source: poll, admit, learn, commit, publish.

Nothing that was learned is shown until state, position, counts and spends are committed in one transaction. Publishers
get the snapshot that the store reads back. After a crash the job continues from the last commit; what came after it was
never visible. The source validates records, and the estimator's ledger, which is the store's, admits them. A commit is
refused if another process has spent from the same people, or has answered the same calls: then the loop does the same
as after a crash, at once.

While the source or the store does not answer, the loop tries again. That is exact: a source that does not answer has
lost nothing, and a commit whose answer was lost is found by its epoch, its number and its state, and not made twice; if
another process has claimed the job meanwhile, its epoch is another one and the commit is refused.
"""

import logging
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from functools import partial
from typing import TYPE_CHECKING, TypeVar

from streamdp.data.records import WHOLE, Batch, Position, Shard, Source
from streamdp.errors import ConfigError, ConflictError, NotAvailableError, SourceError, SourceUnavailableError
from streamdp.runtime.calls import HANGS, LongCalls, Loop, Rarely, Reminder
from streamdp.runtime.commits import Commits
from streamdp.runtime.defaults import POLL_TIMEOUT_S, QUIET_POLL_TIMEOUT_S
from streamdp.runtime.learning import total
from streamdp.runtime.shard_table import Lane, ShardTable
from streamdp.runtime.signals import stopped_by_signals
from streamdp.runtime.tracing import note_span
from streamdp.store.snapshot import Counts, Snapshot

if TYPE_CHECKING:
    from streamdp.estimators.estimator import Estimator
    from streamdp.store.store import Store, Within

POLL_RECORDS = 65_536
"""The most records that are learned between two checks of the clock and of the stop signals."""

AGAIN = (
    "another job or worker has spent from the same people at the same time: the records since the last commit are"
    " learned again, and the commits of others wait for them"
)
"""What a run reports after a conflict."""

log = logging.getLogger(__name__)
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Progress:
    """The counts of a running job: of all records so far, and of those that are committed."""

    counts: Counts
    committed: Counts


def seek(source: Source, position: Position) -> None:
    """Resume by seeking the position of the last snapshot; the default of `Runner`."""
    source.seek(position)


@dataclass(eq=False, repr=False)
class Runner(Loop):
    """Runs one job until its source ends, `stop` is called or a signal comes.

    - `source`, `estimator`, `store`: any `streamdp.data.records.Source`. The estimator's `ledger` must be the store's
      (None for both without a cap), so that spends are committed with the state that was learned from them.
    - `commit_records`, `commit_seconds`: commit after exactly this many records (with dead letters and refused ones),
      or after this many seconds with at least one record, what was learned up to the last boundary. At the end of a run
      the open batch is closed; after a crash an open batch is read again. An estimator that `commits_at_every_boundary`
      is committed at every boundary.
    - `commit_when_idle`: somebody waits for each commit: commit also as soon as the source has no more records at the
      moment, and end an open batch when a commit is due. If the store does not answer, the run ends at once, so that
      they get an answer. The run is stopped by `close` of the source, which must end a poll. It calls the store in its
      own thread. If such a call does not return, the run does not end: wait for the run with a time limit.
    - `max_bad_share`: stop with `TooManyBadRecordsError`, before anything is committed, if a larger share of the
      records before the first commit of a job does not fit the schema. None: no limit.
    - `name`: what messages call the source.
    - `dead_letters`: gets the dead letters before their records are committed. A new job commits its start, so that a
      later run finds what was written after it; so does a job whose first window may not end in this run.
    - `publish`: each function is called with the committed snapshot after every commit. When a job resumes, it is
      called with the last snapshot, because a crash may have come between the commit and the call.
    - `on_progress`: called after every batch and every commit.
    - `resume`: takes the source to the position of the last snapshot.
    - `shard`, `within`: what the store commits of the job, and what it calls in the transaction; see
      `Store.commit_parts`.
    - `on_waiting`: called with what the run waits for: a source or a store that does not answer, or a call of the
      store that does not return; every 30 seconds at most.
    - `on_unfit`: called with a warning, a sentence, if none of the first records fits the schema.
    - `clock`: returns the time in seconds; it never goes backward.
    - `wait`: waits for calls of the store, as `concurrent.futures.wait` does, for at most a number of seconds.
    - `sleep`, `randomness`: see `streamdp.runtime.worker.Worker`.

    Raises `ConfigError` if the estimator's ledger is not the store's, or if a commit interval is not positive.
    """

    source: Source
    estimator: "Estimator"
    store: "Store"
    _: KW_ONLY
    commit_when_idle: bool = False
    publish: Sequence[Callable[[Snapshot], None]] = ()
    on_progress: Callable[[Progress], None] | None = None
    resume: Callable[[Source, Position], None] = seek
    shard: Shard = WHOLE
    within: "Within | None" = None
    on_waiting: Callable[[str], None] = log.warning

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.estimator.ledger is not self.store.ledger:
            raise ConfigError("the estimator's ledger must be the store's: build it with ledger=store.ledger")
        self._reminder = Reminder(self.clock)
        self._tell = Rarely(self.clock, self.on_waiting)
        self._calls: LongCalls | None = None
        self.stopping = False
        """Whether `stop` was called or a signal came."""
        self._first: Mapping[str, object] | None = (
            None  # the state of a new job, for a conflict before its first commit
        )
        self._shards = ShardTable(self._build)
        publish = [partial(_show, show) for show in self.publish]
        self._commits = Commits(self, self._shards, self.store, self._call, publish, self.within)
        self.unlearned = self._commits.unlearned
        """The records of this run, until one is learned."""

    def stop(self) -> None:
        """Ask the loop to finish the current batch, commit and return. Any thread may call it."""
        self.stopping = True
        if (calls := self._calls) is not None:
            calls.stop()

    def run(self, max_records: int | None = None) -> Counts:
        """Learn until the source ends, or for `max_records`; return the committed counts.

        In the main thread, SIGINT and SIGTERM stop the run as `stop` does; a second SIGINT raises `KeyboardInterrupt`
        at once. If the source raises `SourceError`, what was learned is committed before the error is raised; after
        `SourceUnavailableError` the run goes on, and so it does after `StoreUnavailableError` until a stop. Any other
        error is raised at once and leaves the last commit as it is.

        Raises `ConfigError` if the estimator has learned records that the store does not know, and in place of the
        commit of a state that is not finite. Raises `StoreUnavailableError` if the store does not answer 10 seconds
        after a stop, or a call of it has not returned 20 seconds after the stop.
        """
        with stopped_by_signals(self.stop, lambda: self.stopping):
            self._calls = calls = LongCalls(self._retried, self)
            if self.stopping:
                calls.stop()
            try:
                self._start()
                end = None if max_records is None else self._read + max_records
                while True:
                    try:
                        self._loop(end)
                        return self._lane.committed
                    except ConflictError:
                        self._commits.conflict()
                        self._commits.roll_back()
                        self._seek()
                        self.on_waiting(AGAIN)
            finally:
                calls.close(self.store.abandon)
                for lane in self._shards.values():  # the letters of an open batch: the next run finds them
                    self._commits.write_letters({self.shard: lane.letters})
                    lane.letters = []

    @property
    def _lane(self) -> Lane:
        return self._shards[self.shard]

    def _build(self) -> "Estimator":
        """The estimator, as it was when the job began, or is to load a state."""
        if self._first is not None:
            self.estimator.load_state_dict(self._first)
        return self.estimator

    def _call(self, call: Callable[[], T]) -> T:
        assert self._calls is not None, "within a run only"
        if self.commit_when_idle:
            return call()
        self._reminder.reset()

        def meanwhile() -> None:
            if self._reminder.due():
                self.on_waiting(HANGS)

        return self._calls.result(self._calls.submit(partial(self._calls.retry, call)), POLL_TIMEOUT_S, meanwhile)

    def _retried(self, error: BaseException) -> None:
        self._reminder.reset()
        self._tell(f"{error}; trying again")

    def _start(self) -> None:
        self.store.rollback()  # the uncommitted spends of an earlier run
        snapshot = self._call(partial(self.store.load, self.shard))
        if snapshot is None and self.estimator.n_seen:
            raise ConfigError("this estimator has learned records that the store does not know: begin with a new one")
        self._first = None
        self._shards.drop({self.shard})
        self._shards.claim({self.shard: snapshot})
        if snapshot is not None:
            self._commits.note_learned([snapshot])
            self.resume(self.source, snapshot.position)
            self._commits.resume_letters({self.shard: snapshot})
            self._commits.show([snapshot])
        else:
            self._begin_job()

    def _begin_job(self) -> None:
        lane = self._lane
        lane.origin = lane.position = self.source.position
        try:
            self._first = self.estimator.state_dict()
        except NotAvailableError:  # the first record will declare the features
            if self.dead_letters is not None:
                raise
        else:
            if self.dead_letters is not None or self.estimator.commits_at_every_boundary:
                self._commits.write(self._shards.parts(), self._call)
        lane.committed_position = lane.position

    def _seek(self) -> None:
        """Read from the last commit, or the start of the job."""
        position, lane = self._shards.to_start.pop(self.shard), self._lane
        assert position is not None
        self.source.seek(position)
        lane.position = lane.committed_position = position

    def _loop(self, end: int | None) -> None:
        while not (self.stopping or self.source.finished or (end is not None and self._read >= end)):
            # Polls end at the next commit, so that commits of one stream fall on the same records in every run, and at
            # the next boundary, because what is committed of an estimator that learns in batches ends at the last one.
            if self._commits.due:
                if self.commit_when_idle:
                    self._call(self.estimator.close_batch)
                self._commit()
                self._commits.give_way()
            if due := self._commits.due:
                self._commits.note_waiting()
            room = min(POLL_RECORDS, self.estimator.to_boundary if due else self._commits.most - self.waiting)
            if end is not None:
                room = min(room, end - self._read)
            at_once = self.commit_when_idle and self.waiting and self.estimator.at_boundary
            quiet = self.commit_when_idle and not (self.waiting or self._commits.again)
            longest_s = QUIET_POLL_TIMEOUT_S if quiet else POLL_TIMEOUT_S
            timeout_s = 0.0 if at_once else min(longest_s, self.commit_seconds if self.waiting else math.inf)
            if (batch := self._poll(min(room, self.estimator.to_boundary or room), timeout_s)) is None:
                continue
            if len(batch) or batch.dead:
                self._learn(batch)
            self._lane.position = batch.position  # it may change without a record
            idle = self.commit_when_idle and not (len(batch) or batch.dead)
            if self.estimator.commits_at_every_boundary or idle:
                self._commit()
        self._finish()

    def _poll(self, most: int, timeout_s: float) -> Batch | None:
        """Records of the source; None if it does not answer."""
        began = time.time_ns()
        try:
            batch = self.source.poll(most, timeout_s)
        except SourceUnavailableError as error:
            self._tell(f"{error}; trying again")
            self.sleep(POLL_TIMEOUT_S)
            return None
        except SourceError:
            self._finish()
            raise
        if len(batch) or batch.dead:
            note_span("poll", began, records=len(batch), dead_letters=len(batch.dead))
        return batch

    def _finish(self) -> None:
        self._call(self.estimator.close_batch)
        self._commit()
        self._commits.give_way(last=True)
        self._commits.note_waiting(last=True)

    @property
    def waiting(self) -> int:
        """How many records were read and are not committed. At the end they are those of an open batch or window.

        The next run reads them again.
        """
        return self._shards.pending

    @property
    def _read(self) -> int:
        return total(self._lane.counts)

    def _learn(self, batch: Batch) -> None:
        batches = self.estimator.to_boundary and self._lane.counts.learned
        if batches and not self.commit_when_idle:  # who waits is answered for all or nothing
            self._shards.keep_boundary()
        self._call(partial(self._commits.learn, self._lane, batch))
        self._report()

    def _commit(self) -> None:
        """Commit and publish what was learned up to the last boundary, if it is uncommitted."""
        if parts := self._shards.parts():
            self._commits.first_records.check()
            snapshots = self._commits.write(parts, self._call)
            self.source.commit(parts[self.shard].position)
            self._commits.show(snapshots)
            self._report()

    def _report(self) -> None:
        if self.on_progress is not None:
            self.on_progress(Progress(self._lane.counts, self._lane.committed))


def _show(publish: Callable[[Snapshot], None], snapshots: list[Snapshot]) -> None:
    publish(snapshots[0])
