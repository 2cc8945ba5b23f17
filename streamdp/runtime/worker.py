"""The loop of one worker in a group: it learns all of its shards with one estimator, and commits them together.

Every failure is handled the same way: roll back to the last commit. A shard that another worker has claimed is dropped.
After a conflict in the ledger, the remaining shards are read from the store again, and the source starts them there.
While the database does not answer, the worker pauses its source, stays in the group and retries: no record is lost or
counted twice.

A shard is committed as of its last boundary, with the spends up to there. The spends of an open batch wait for its end:
if its records must be read again, they have spent nothing.
"""

import logging
import sys
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import KW_ONLY, dataclass
from functools import partial
from typing import TYPE_CHECKING, TypeVar

from streamdp.data.records import MOST_RECORDS, Batch, Shard, ShardedSource, Stall
from streamdp.errors import (
    ConfigError,
    FencedError,
    LedgerConflictError,
    ShardUnavailableError,
    SourceError,
    SourceUnavailableError,
    StoreUnavailableError,
    check_whole,
)
from streamdp.runtime.bad_records import bad_in_a_row
from streamdp.runtime.calls import HANGS, LongCalls, Loop, Rarely, Reminder
from streamdp.runtime.commits import Caller, Commits
from streamdp.runtime.defaults import POLL_TIMEOUT_S, WATCH_S
from streamdp.runtime.protocols import Observer
from streamdp.runtime.shard_table import Lane, ShardTable
from streamdp.runtime.signals import stopped_by_signals
from streamdp.runtime.tracing import note_span
from streamdp.store.snapshot import Part, Snapshot
from streamdp.store.store import Store

if TYPE_CHECKING:
    from streamdp.estimators.estimator import Estimator

POLL_RECORDS = 16_384
"""The most records of one poll."""
PAUSE_AFTER_S = 1.0
"""A call that takes longer pauses the source, and polling continues only to stay in the group."""
LAST_BATCH_S = 2.0
"""How long a rebalance waits for the current batch."""
LAST_CALL_S = 5.0
"""How long a rebalance waits for each call of the store: the group waits for the rebalance."""
RECLAIM_AFTER_S = 3.0
"""After this time, a shard that another worker has claimed is claimed again if the source still assigns it here."""

log = logging.getLogger(__name__)
T = TypeVar("T")


@dataclass(eq=False, repr=False)
class Worker(Loop):
    """Runs one worker of a job's group until `stop` is called or a signal comes. A worker runs once.

    - `source`: the shards.
    - `build`: makes an empty estimator over the store's ledger.
    - `store`: opened with `shared=True`.
    - `commit_records`, `commit_seconds`: commit after about this many records, or after this many seconds in which a
      position moved.
    - `max_bad_in_a_row`: stop with `TooManyBadRecordsError` above this many undecodable records of a shard in a row;
      None for no limit.
    - `max_bad_share`, `name`: stop so, before anything is committed, if a larger share of the records before the
      worker's first commit does not fit the schema; None for no limit, as for a job that has learned. `name` is that of
      the source.
    - `dead_letters`, `on_unfit`, `clock`, `wait`: see `streamdp.runtime.runner.Runner`.
    - `observers`: called at every event; see `streamdp.runtime.protocols.Observer`.
    - `publish`: each function is called with the committed snapshots, of the shards of each commit and of each claim.
    - `sleep`, `randomness`: sleep for a number of seconds, and draw uniformly between two numbers: the delays of
      retries, on which no privacy depends.

    Raises `ConfigError` if the ledger of the estimators is not the store's, or if a number is out of range.
    """

    source: ShardedSource
    build: "Callable[[], Estimator]"
    store: Store
    _: KW_ONLY
    max_bad_in_a_row: int | None = 10_000
    observers: Sequence[Observer] = ()
    publish: Sequence[Callable[[list[Snapshot]], None]] = ()

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.build().ledger is not self.store.ledger:
            raise ConfigError("the estimators' ledger must be the store's: build them with ledger=store.ledger")
        if self.max_bad_in_a_row is not None:
            check_whole("max_bad_in_a_row", self.max_bad_in_a_row, 0, MOST_RECORDS)
        self._shards = ShardTable(self.build)
        publish = [partial(self._show, show) for show in self.publish]
        self._commits = Commits(self, self._shards, self.store, self._call, publish)
        self.unlearned = self._commits.unlearned
        """The records of this run, until one is learned."""
        self._thread = LongCalls(self._retried, self)
        self._paused = False
        self._learning: Future[None] | None = None
        self._stopping = threading.Event()
        self._heard = self.clock()
        self._watched_at = float("-inf")
        self._stalls: dict[tuple[str, str], Stall] = {}
        self._tell_source = Rarely(self.clock, partial(self._tell, "source"))
        self._reminder = Reminder(self.clock)

    @property
    def stopping(self) -> bool:
        """Whether `stop` was called or a signal came."""
        return self._stopping.is_set()

    def stop(self) -> None:
        """Ask the loop to finish the current batch, commit, leave the group and return. Any thread may call it."""
        self._thread.stop()
        self._stopping.set()

    def run(self, max_records: int | None = None, idle_seconds: float | None = None) -> int:
        """Learn until `stop` is called, and return the number of records that were polled and committed.

        In the main thread, SIGINT and SIGTERM stop the run as `stop` does. It also stops after `max_records`, and
        if no record came for `idle_seconds`, also because this worker has no shard; None for no end. The time to join
        the group does not count.

        Raises `SourceError`, `TooManyBadRecordsError` and `StoreError`, after it has committed what it could.
        """
        with stopped_by_signals(self.stop, lambda: self.stopping):
            try:
                self.source.subscribe(self)
                self._loop(max_records, idle_seconds)
            finally:
                self._thread.stop()
                try:
                    self.source.close()
                finally:
                    self._thread.close(self.store.abandon)
        return self._commits.done

    def _loop(self, max_records: int | None, idle_seconds: float | None) -> None:
        try:
            while True:
                self._rounds(max_records, idle_seconds)
                self._call(self._shards.close_batch)
                if self._commit(last=True) or self.stopping:
                    return  # after a refused commit, the records since the last one have to be read again first
        except SourceError:
            self._end_learning()
            self._call(self._shards.close_batch)
            self._commit(last=True)
            raise

    def _rounds(self, max_records: int | None, idle_seconds: float | None) -> None:
        """Poll, learn and commit until there is a reason to stop; the last records may be uncommitted then."""
        self._heard = self.clock()
        self._reminder.reset()
        timeout = min(POLL_TIMEOUT_S, self.commit_seconds)
        size = 0  # of the poll before, whose records may not be pending yet
        while not self.stopping and (self._shards.stale or self._left(max_records) > 0):
            polled = [
                (self._shards.get(shard), shard, raw)
                for shard, raw in self._poll(max(1, min(POLL_RECORDS, self._left(max_records) - size)), timeout)
                if shard not in self._shards.to_start  # else these records are not at the shard's position
            ]
            self._finish_learning()  # of the poll before: the store's thread learned while this one polled
            self._follow_group()
            self._report_waiting()
            self._report_stalls()
            if self._commits.due:
                self._commit()
            self._commits.give_way()
            size = sum(len(raw) for _, _, raw in polled)
            if polled:
                self._heard = self.clock()
                self._learning = self._submit(partial(self._learn_all, polled))
                if self._left(max_records) <= size:
                    self._finish_learning()  # this may be the last batch: do not wait for more in a poll
            if not len(self._shards) and not self.source.settled:
                self._heard = self.clock()  # to join the group may take longer than `idle_seconds`
            if idle_seconds is not None and self.clock() - self._heard > idle_seconds:
                break
        self._finish_learning()

    def _left(self, max_records: int | None) -> int:
        """How many records this run may still poll."""
        return sys.maxsize if max_records is None else max_records - self._commits.done - self._shards.pending

    def _follow_group(self) -> None:
        """Claim the shards that were assigned, read again what is stale, and start what waits for it."""
        if new := [*self.source.assigned(), *self._shards.take_reclaimable(self.clock())]:
            self._claim(new)
            self._heard = self.clock()
        if self._shards.stale:
            self._roll_back()
        self._start_shards()

    def _report_waiting(self) -> None:
        """Tell the observers, from time to time, that this worker has no shard, and what it waits for."""
        if len(self._shards):
            self._reminder.reset()
        elif self._reminder.due():
            self._tell("waiting", f"this worker has no shard; it waits for {self.source.awaited()}")

    def _report_stalls(self) -> None:
        """Tell the observers what is not read, and why, when that begins and when it ends."""
        if self.clock() - self._watched_at < WATCH_S:
            return
        self._watched_at = self.clock()
        before = self._stalls
        self._stalls = {(stall.where, stall.reason): stall for stall in self.source.stalls()}
        for key in self._stalls.keys() - before.keys():
            log.warning("%s %s", self._stalls[key].where, self._stalls[key].message)
        changed = [(stall, True) for key, stall in before.items() if key not in self._stalls]
        changed += [(stall, False) for key, stall in self._stalls.items() if key not in before]
        for observer in self.observers:
            for stall, ended in changed:
                observer.on_stall(stall, ended=ended)
            observer.watched(self._shards.committed_positions, list(self._stalls.values()))

    def _poll(self, max_records: int, timeout_s: float) -> list[tuple[Shard, Sequence[object]]]:
        began = time.time_ns()
        try:
            polled = self.source.poll(max_records, timeout_s)
        except SourceUnavailableError as error:  # the next round polls again
            self._tell_source(str(error))
            self.sleep(POLL_TIMEOUT_S)
            return []
        if polled:
            note_span("poll", began, records=sum(len(raw) for _, raw in polled))
        return polled

    def _stay(self) -> None:
        """Pause the source while a call takes long, and poll it, which keeps this worker in the group."""
        if not self._paused:
            self.source.pause()
            self._paused = True
        self._heard = self.clock()
        if self._reminder.due():
            self._tell("waiting", HANGS)
        self._report_stalls()
        if self._poll(1, 0.0):
            self._shards.stale = True  # a paused source should return nothing; if it does, read it again

    def _retried(self, error: BaseException) -> None:
        self._reminder.reset()
        self._tell("source" if isinstance(error, SourceError) else "store", error)

    def _learn_all(self, polled: Sequence[tuple[Lane | None, Shard, Sequence[object]]]) -> None:
        for lane, shard, raw in polled:
            # A lane that was dropped or replaced after the poll: this worker or another one reads the records again.
            while raw and lane is not None and self._shards.get(shard) is lane and not self._shards.stale:
                self._shards.keep_boundary()
                size = lane.estimator.boundary_within(len(raw))
                decode = partial(self.source.decode, shard, raw[:size])
                try:
                    batch = self._thread.retry(decode, give_up_s=0.0, longest_delay_s=1.0)
                except SourceUnavailableError:  # after a stop: the next run reads these records
                    return
                self._learn(lane, shard, batch)
                raw = raw[size:]

    def _learn(self, lane: Lane, shard: Shard, batch: Batch) -> None:
        self._thread.retry(partial(self._commits.learn, lane, batch))
        for observer in self.observers:
            observer.learned(shard, batch, lane.counts)
        lane.bad_in_a_row = bad_in_a_row(shard, batch, lane.bad_in_a_row, self.max_bad_in_a_row)

    def _finish_learning(self) -> None:
        if (learning := self._learning) is not None:
            self._learning = None
            self._result(learning)
        self._shards.advance(self.source.advance)

    def _end_learning(self) -> None:
        """After the source has failed: wait until the current batch is learned; its failure makes the lanes stale."""
        self._thread.stop()
        learning, self._learning = self._learning, None
        if learning is not None:
            ended = self._thread.ends(learning)
            self._shards.stale |= not (ended and isinstance(learning.exception(), SourceError | None))

    def _commit(self, *, last: bool = False) -> bool:
        """Commit every shard that moved, or roll back; returns whether no record has to be read again."""
        if parts := self._shards.parts():
            self._commits.first_records.check()
            if (snapshots := self._write(parts, self._call)) is None:
                return False
            self.source.commit({shard: part.position for shard, part in parts.items() if shard in self._shards})
            self._commits.show(snapshots)
        if not self._shards.stale:
            self._commits.note_waiting(last=last)
        return not self._shards.stale

    def _write(self, parts: dict[Shard, Part], call: Caller) -> list[Snapshot] | None:
        """Commit parts, and return what is committed; None if the store has refused them."""
        began = self.clock()
        try:
            snapshots = self._commits.write(parts, call)
        except (FencedError, LedgerConflictError) as error:
            self._refused(error)
            return None
        for observer in self.observers:
            observer.committed(parts, self.clock() - began)
        for shard, changes in self._shards.take_changes().items():
            log.warning("%s: the model has noticed that the stream changed", shard)
            for observer in self.observers:
                observer.changed(shard, changes)
        return snapshots

    def _show(self, publish: Callable[[list[Snapshot]], None], snapshots: list[Snapshot]) -> None:
        try:
            publish(snapshots)
        except (SourceUnavailableError, StoreUnavailableError) as error:  # the snapshots remain in the store
            self._tell("publish", error)

    def _refused(self, error: FencedError | LedgerConflictError) -> None:
        """A commit was refused: nothing since the last commit was visible, and it must be rolled back."""
        if isinstance(error, FencedError):
            self._tell("fenced", error)
            if error.shard in self._shards:  # else the source has taken it away during the commit
                self._drop({error.shard})
                self._shards.fence(error.shard, self.clock() + RECLAIM_AFTER_S)
        else:
            self._tell("conflict", error)
            self._commits.conflict()
        self._shards.stale = True

    def _roll_back(self) -> None:
        """Discard what came after the last commit, and read the remaining shards from the store again."""
        self._shards.stale = False
        self._commits.roll_back()
        for observer in self.observers:
            observer.rolled_back()

    def _claim(self, shards: Sequence[Shard]) -> None:
        claimed = self._call(partial(self._claim_in_store, shards))
        self._shards.claim(claimed)
        self._tell_assigned()
        self._commits.show(claimed.values())  # the previous owner may have committed them without publishing them

    def _claim_in_store(self, shards: Sequence[Shard]) -> dict[Shard, Snapshot | None]:
        claimed = self.store.claim(shards)
        self._commits.resume_letters({shard: snapshot for shard, snapshot in claimed.items() if snapshot is not None})
        return claimed

    def _start_shards(self) -> None:
        """Start shards at their positions; if the source does not answer, the next round tries again.

        A shard that alone is not available keeps no other one waiting.
        """
        for shard, position in list(self._shards.to_start.items()):
            if (lane := self._shards.get(shard)) is not None:
                try:
                    lane.origin = self.source.start(shard, position)
                except SourceUnavailableError as error:
                    self._tell_source(f"{shard}: {error}")
                    self._shards.to_start[shard] = self._shards.to_start.pop(shard)  # the others come first next time
                    if isinstance(error, ShardUnavailableError):
                        continue
                    return
                if lane.origin is not None:
                    if lane.position != lane.origin:  # it is committed soon: next time it may be another one
                        lane.position, lane.committed_position = lane.origin, None
                    self.source.commit({shard: lane.origin})  # the previous owner may not have done it
            del self._shards.to_start[shard]

    def revoked(self, shards: set[Shard]) -> None:
        """See `RebalanceListener.revoked`. The source calls it within this worker's own poll."""
        if not self._may_commit():
            self.lost(shards)  # the current call commits them, or their next owner learns them again
            return
        try:
            self._thread.within(self._shards.close_batch, LAST_CALL_S)
            self._shards.leave(shards)
            if parts := self._shards.parts():
                self._write(parts, lambda call: self._thread.within(call, LAST_CALL_S))
        except (StoreUnavailableError, SourceUnavailableError) as error:
            self._tell("store", error)
            self._shards.stale = True
        self._drop(shards)

    def _may_commit(self) -> bool:
        """Whether a rebalance may commit: all was learned, and no call is under way. It waits for the current batch."""
        call = self._thread.call
        if call is not None and call is self._learning:
            self.wait([call], LAST_BATCH_S)
            learned = call.done() and call.exception() is None
        else:
            learned = call is None
        return learned and not self._shards.stale and self._commits.first_records.problem is None

    def lost(self, shards: set[Shard]) -> None:
        """See `RebalanceListener.lost`. A call that is under way may learn or commit them: then all are rolled back."""
        if self._thread.call is not None:
            self._shards.stale = True
        self._drop(shards)

    def _drop(self, shards: set[Shard]) -> None:
        if self._thread.call is not None:
            self._shards.lost |= shards  # they are released when the call has ended
        else:
            self.store.release(shards)
        self._shards.drop(shards)
        self._tell_assigned()

    def _call(self, call: Callable[[], T]) -> T:
        return self._result(self._submit(partial(self._thread.retry, call)))

    def _submit(self, call: Callable[[], T]) -> Future[T]:
        self._shards.lost.clear()
        return self._thread.submit(call)

    def _result(self, call: Future[T]) -> T:
        try:
            return self._thread.result(call, PAUSE_AFTER_S, self._stay)
        finally:
            if self._paused:
                self._paused = False
                self.source.resume()
            if self._thread.call is None:  # else a rebalance left another one
                self.store.release(self._shards.lost)

    def _tell(self, kind: str, error: BaseException | str) -> None:
        log.warning("%s: %s", kind, error)
        for observer in self.observers:
            observer.on_retry(kind, str(error))

    def _tell_assigned(self) -> None:
        for observer in self.observers:
            observer.assigned(self._shards.committed)
