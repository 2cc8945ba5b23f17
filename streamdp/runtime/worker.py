"""The loop of a worker in a group: shards come and go, each with a state of its own; all of it is committed at once.

What may go wrong has one remedy: go back to the last commit. A shard that others have claimed is dropped; after a
conflict in the ledger, the shards that are still ours are read from the store again and sought there. While the
database is away, the worker holds its source, stays in the group and tries again: nothing is lost or counts twice.

But for the spends of estimators that learn in batches: a shard is committed as of its last boundary, the ledger as it
is. What a shard has learned since is spent already, and when it must be learned again, after a crash or a conflict, it
is spent once more (for who has seen both states, rightly so): up to a batch of each shard.
"""

from __future__ import annotations

import logging
import random
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from concurrent.futures import TimeoutError as NotYet
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol, TypeVar

from tenacity import Retrying, retry_if_exception_type, wait_random_exponential

from streamdp.data.records import Batch, DeadLetter, Position, Shard, ShardedSource
from streamdp.errors import (
    ConfigError,
    FencedError,
    LedgerConflictError,
    SourceError,
    SourceUnavailableError,
    StoreUnavailableError,
    TooManyBadRecordsError,
)
from streamdp.runtime.defaults import COMMIT_RECORDS, COMMIT_SECONDS, POLL_TIMEOUT_S
from streamdp.runtime.runner import Estimator, check_finite, total
from streamdp.runtime.signals import stopped_by_signals
from streamdp.store.snapshot import Counts, Part, Snapshot
from streamdp.store.store import Store

POLL_RECORDS = 16_384
HOLD_AFTER_S = 1.0
"""A database call that takes longer holds the source, and polling goes on for the group's sake."""
LAST_BATCH_S = 2.0
"""How long a rebalance waits for the batch at hand."""
GIVE_UP_S = 10.0
"""How long a worker that was asked to stop waits for a database that gives no answer."""
RECLAIM_AFTER_S = 3.0
"""A shard that was claimed by another worker and is still ours, as the source says, is claimed again after so long."""

log = logging.getLogger(__name__)
T = TypeVar("T")


class ShardedDeadLetters(Protocol):
    """Where the dead letters of a group go."""

    def write(self, letters: Sequence[DeadLetter], shard: Shard) -> None: ...

    def commit(self) -> None:
        """Make what was written durable."""


class Observer:
    """Watches a worker: progress, metrics. Called from the worker's own threads; it must be quick."""

    def learned(self, shard: Shard, batch: Batch, counts: Counts) -> None:
        """A batch was learned; nothing of it is committed yet, and it may still be `rolled_back`."""

    def rolled_back(self) -> None:
        """All that was learned since the last commit is forgotten, and will be learned again by whoever has it."""

    def committed(self, parts: dict[Shard, Part], seconds: float) -> None:
        """These shards were committed, which took so long."""

    def assigned(self, shards: dict[Shard, Counts]) -> None:
        """These are ours now, all of them, with what was committed of them."""

    def on_retry(self, kind: str, message: str) -> None:
        """`fenced`, `conflict`, `store`, `source` or `publish`: something that the worker gets over by itself."""


@dataclass(slots=True)
class _Lane:
    """A shard that is ours."""

    estimator: Estimator
    counts: Counts
    position: Position | None
    committed: Counts
    committed_position: Position | None
    origin: Position | None  # where reading began, if nothing was committed yet
    rest: Part | None = None  # the last boundary

    @property
    def uncommitted(self) -> bool:
        return self.position != self.committed_position

    def part(self) -> Part | None:
        """The last boundary, if it is not committed yet."""
        if self.estimator.at_boundary and self.position is not None:
            self.rest = Part(self.estimator.state_dict(), self.position, self.counts)
        return None if self.rest is None or self.rest.position == self.committed_position else self.rest


class Worker:
    """Runs one worker of a job's group until `stop` is called, a signal comes, or it has `caught_up`.

    Parameters
    ----------
    source
        The shards.
    build
        Makes an empty estimator over the store's ledger; one for each shard.
    store
        Opened with `shared=True`.
    commit_records, commit_seconds
        Commit after about this many records, or this many seconds with at least one.
    max_bad_in_a_row, max_bad_share
        Stop with `TooManyBadRecordsError` after this many undecodable records of a shard on end, or over this share
        of all that were polled (once there are 1000); None for no limit.
    dead_letters, observers, publish
        `publish` is called with the committed snapshots of the shards that were committed.

    Raises `ConfigError` for an estimator whose ledger is not the store's.
    """

    def __init__(
        self,
        source: ShardedSource,
        build: Callable[[], Estimator],
        store: Store,
        *,
        commit_records: int = COMMIT_RECORDS,
        commit_seconds: float = COMMIT_SECONDS,
        max_bad_in_a_row: int | None = 10_000,
        max_bad_share: float | None = None,
        dead_letters: ShardedDeadLetters | None = None,
        observers: Sequence[Observer] = (),
        publish: Sequence[Callable[[list[Snapshot]], None]] = (),
    ) -> None:
        if build().ledger is not store.ledger:
            raise ConfigError("the estimators' ledger must be the store's: build them with ledger=store.ledger")
        self._source = source
        self._build = build
        self._store = store
        self._commit_records = commit_records
        self._commit_seconds = commit_seconds
        self._max_bad_in_a_row = max_bad_in_a_row
        self._max_bad_share = max_bad_share
        self._dead_letters = dead_letters
        self._observers = tuple(observers)
        self._publish = tuple(publish)
        self._lanes: dict[Shard, _Lane] = {}
        self._to_begin: dict[Shard, Position | None] = {}
        self._fenced: dict[Shard, float] = {}  # claimed by others, but not taken away from us: when to claim them again
        self._lost: set[Shard] = set()  # taken away while a call of ours was under way
        self._stale = False  # what is in memory must be read from the store again
        self._busy: Future[Any] | None = None
        self._learning: Future[None] | None = None
        self._pending = 0
        self._in_a_row: dict[Shard, int] = {}
        self._polled = self._bad = 0
        self._heard = 0.0
        self._stopping = threading.Event()
        self._stopped_at: float | None = None
        self._thread = ThreadPoolExecutor(1, "streamdp")

    @property
    def stopping(self) -> bool:
        """Whether `stop` was called or a signal came."""
        return self._stopping.is_set()

    def stop(self) -> None:
        """Ask the loop to finish the batch at hand, commit, leave the group and return. From any thread."""
        self._stopped_at = time.monotonic()
        self._stopping.set()

    def run(self, max_records: int | None = None, idle_seconds: float | None = None) -> int:
        """Learn until `stop`, for about `max_records` records, or until none came for `idle_seconds`.

        Returns the number of records that were polled and committed. SIGINT and SIGTERM stop it as `stop` does, where
        this is the main thread. Raises `SourceError`, `TooManyBadRecordsError` and `StoreError` after committing what
        could be committed.
        """
        with stopped_by_signals(self.stop, lambda: self.stopping):
            self._source.subscribe(self)
            try:
                self._loop(max_records, idle_seconds)
            finally:
                self._stopped_at = self._stopped_at or time.monotonic()
                self._source.close()
                self._thread.shutdown()
        return self._done

    def _loop(self, max_records: int | None, idle_seconds: float | None) -> None:
        self._done = 0
        self._committed_at = time.monotonic()
        try:
            while True:
                self._rounds(max_records, idle_seconds)
                self._close_batches()
                if self._commit() or self.stopping:
                    return  # if it was refused, what came after the last commit has to be read again first
        except SourceError:
            self._finish_or_forget()
            self._close_batches()
            self._commit()
            raise

    def _rounds(self, max_records: int | None, idle_seconds: float | None) -> None:
        """Poll, learn and commit until there is a reason to stop; some of it may not be committed yet."""
        self._heard = time.monotonic()
        timeout = min(POLL_TIMEOUT_S, self._commit_seconds)
        while not self.stopping and (max_records is None or self._stale or self._done + self._pending < max_records):
            polled = [
                (self._lanes.get(s), s, raw)
                for s, raw in self._poll(POLL_RECORDS, timeout)
                if s not in self._to_begin  # else it is not yet where the lane goes on
            ]
            self._finish_learning()  # of the poll before, which went on while we polled
            if new := [*self._source.assigned(), *self._to_reclaim()]:
                self._claim(new)
                self._heard = time.monotonic()  # to join may take longer than a stream is quiet
            if self._stale:
                self._go_back()
            self._begin()
            late = time.monotonic() - self._committed_at >= self._commit_seconds
            if self._pending >= self._commit_records or (late and self._pending) or self._unpinned():
                self._commit()
            if polled:
                self._heard = time.monotonic()
                self._learning = self._submit(partial(self._learn_all, polled))
                size = sum(len(raw) for _, _, raw in polled)
                if max_records is not None and self._done + self._pending + size >= max_records:
                    self._finish_learning()  # it may be the last one: no poll that waits for more
            if idle_seconds is not None and self._lanes and time.monotonic() - self._heard > idle_seconds:
                break
        self._finish_learning()

    def _finish_or_forget(self) -> None:
        """The source has failed while a batch was being learned: let it end, or forget it where it fails as well."""
        self._stopped_at = self._stopped_at or time.monotonic()
        learning, self._learning = self._learning, None
        if learning is not None:
            wait([learning])
            self._stale = self._stale or not isinstance(learning.exception(), SourceError | None)
        self._busy = None

    def _poll(self, max_records: int, timeout_s: float) -> list[tuple[Shard, Sequence[Any]]]:
        try:
            return self._source.poll(max_records, timeout_s)
        except SourceUnavailableError as error:  # it is asked again in the next round
            self._tell("source", str(error))
            self._stopping.wait(POLL_TIMEOUT_S)
            return []

    # -- learning ----------------------------------------------------------------------------------------------------

    def _learn_all(self, polled: Sequence[tuple[_Lane | None, Shard, Sequence[Any]]]) -> None:
        for lane, shard, raw in polled:
            # Taken away or forgotten after it was polled: others, or we ourselves, will read it again.
            while raw and lane is not None and self._lanes.get(shard) is lane and not self._stale:
                lane.part()
                size = lane.estimator.boundary_within(len(raw))
                self._learn(lane, shard, self._source.decode(shard, raw[:size]))
                raw = raw[size:]

    def _learn(self, lane: _Lane, shard: Shard, batch: Batch) -> None:
        estimator = lane.estimator
        seen, refused = estimator.n_seen, estimator.n_refused
        if len(batch):
            # Admission comes first and is what may fail: then nothing was spent or learned, and it can be repeated.
            learn = partial(estimator.learn_arrays, batch.X, batch.y, batch.budgets, batch.subjects)
            self._until_answered(learn)
        if batch.dead and self._dead_letters is not None:
            self._dead_letters.write(batch.dead, shard)
        lane.counts = Counts(
            lane.counts.learned + estimator.n_seen - seen,
            lane.counts.refused + estimator.n_refused - refused,
            lane.counts.dead + len(batch.dead),
        )
        lane.position = batch.position
        size = len(batch) + len(batch.dead)
        self._pending += size
        self._polled += size
        for observer in self._observers:
            observer.learned(shard, batch, lane.counts)
        self._watch_for_bad(shard, batch)

    def _finish_learning(self) -> None:
        if (learning := self._learning) is not None:
            self._learning = None
            self._wait(learning)

    def _watch_for_bad(self, shard: Shard, batch: Batch) -> None:
        self._bad += len(batch.dead)
        if not batch.dead:
            self._in_a_row[shard] = 0
            return
        last_good = int(batch.positions[-1]) if len(batch) else -1
        since = sum(letter.position > last_good for letter in batch.dead)
        self._in_a_row[shard] = since + (0 if len(batch) else self._in_a_row.get(shard, 0))
        if self._max_bad_in_a_row is not None and self._in_a_row[shard] > self._max_bad_in_a_row:
            raise TooManyBadRecordsError(
                f"{shard}: {self._in_a_row[shard]} records on end cannot be decoded, the last for "
                f"{batch.dead[-1].reason!r}; mend the schema or the producer, or raise max_bad_in_a_row"
            )
        if self._max_bad_share is not None and self._bad > self._max_bad_share * max(self._polled, 1000):
            raise TooManyBadRecordsError(
                f"{self._bad} of {self._polled} records cannot be decoded, over the share of {self._max_bad_share:g}; "
                "mend the schema or the producer, or raise max_bad_share"
            )

    # -- committing --------------------------------------------------------------------------------------------------

    def _commit(self) -> bool:
        """Commit every shard that moved, or go back to the last commit; whether nothing is left to be read again."""
        parts = self._parts()
        if not parts:
            return not self._stale
        if self._dead_letters is not None:
            self._patiently(self._dead_letters.commit)
        began = time.monotonic()
        try:
            self._patiently(lambda: self._store.commit_parts(parts))
        except (FencedError, LedgerConflictError) as error:
            self._refused(error)
            if not self.stopping:
                self._go_back()
            return False
        self._after_commit(parts, time.monotonic() - began)
        self._source.commit({shard: part.position for shard, part in parts.items() if shard in self._lanes})
        if self._publish:
            self._show(self._patiently(lambda: [self._store.load(shard) for shard in parts]))
        return True

    def _show(self, snapshots: Iterable[Snapshot | None]) -> None:
        committed = [snapshot for snapshot in snapshots if snapshot is not None]
        for publish in self._publish if committed else ():
            try:
                publish(committed)
            except (SourceUnavailableError, StoreUnavailableError) as error:  # they stay in the store
                self._tell("publish", str(error))

    def _parts(self) -> dict[Shard, Part]:
        if self._stale:
            return {}
        parts = {shard: part for shard, lane in self._lanes.items() if (part := lane.part()) is not None}
        for part in parts.values():
            check_finite(part.state)
        return parts

    def _close_batches(self) -> None:
        for lane in self._lanes.values() if not self._stale else ():
            lane.estimator.close_batch()

    def _unpinned(self) -> bool:
        """Whether a shard has begun whose beginning is not committed: `latest` is another place the next time."""
        return any(lane.committed_position is None and lane.position is not None for lane in self._lanes.values())

    def _after_commit(self, parts: dict[Shard, Part], seconds: float) -> None:
        for shard, part in parts.items():
            lane = self._lanes.get(shard)
            if lane is not None:
                self._done += total(part.counts) - total(lane.committed)
                lane.committed, lane.committed_position = part.counts, part.position
        self._pending = sum(total(lane.counts) - total(lane.committed) for lane in self._lanes.values())
        self._committed_at = time.monotonic()
        for observer in self._observers:
            observer.committed(parts, seconds)

    def _refused(self, error: FencedError | LedgerConflictError) -> None:
        """A commit was refused: nothing that we learned since the last one was seen, and it must be forgotten."""
        if isinstance(error, FencedError):
            self._tell("fenced", str(error))
            self._drop({error.shard})
            self._fenced[error.shard] = time.monotonic() + RECLAIM_AFTER_S
        else:
            self._tell("conflict", str(error))
            time.sleep(random.uniform(0, 0.1))  # so that the two do not meet again
        self._stale = True

    def _go_back(self) -> None:
        """Forget what came after the last commit: read the shards that are still ours again."""
        self._stale = False
        self._store.rollback()
        for shard in list(self._lanes):
            snapshot = self._patiently(partial(self._store.load, shard))
            if shard in self._lanes:
                self._lanes[shard] = lane = self._lane(snapshot, self._lanes[shard].origin)
                self._to_begin[shard] = lane.position or lane.origin
                self._in_a_row[shard] = 0  # they are counted again as they are read again
        self._pending = 0
        self._committed_at = time.monotonic()
        for observer in self._observers:
            observer.rolled_back()

    # -- shards come and go ------------------------------------------------------------------------------------------

    def _claim(self, shards: Sequence[Shard]) -> None:
        if not shards:
            return
        claimed = self._patiently(lambda: self._store.claim(shards))
        for shard, snapshot in claimed.items():
            if shard not in self._lost:
                self._lanes[shard] = lane = self._lane(snapshot)
                self._to_begin[shard] = lane.position
                self._in_a_row[shard] = 0
        self._tell_assigned()
        self._show(claimed.values())  # whoever had them may not have come to it

    def _to_reclaim(self) -> list[Shard]:
        """Fenced shards that have not been taken away since.

        If another worker has them, we will hear of it by then. If not, its claim came late, from a time before they
        were ours, and without us they would have no owner.
        """
        due = [shard for shard, moment in self._fenced.items() if time.monotonic() >= moment]
        for shard in due:
            del self._fenced[shard]
        return due

    def _begin(self) -> None:
        """Take the source to where the shards go on; a source that gives no answer is asked again in the next round."""
        for shard, position in list(self._to_begin.items()):
            if shard in self._lanes:
                try:
                    lane = self._lanes[shard]
                    lane.origin = self._source.start(shard, position)
                except SourceUnavailableError as error:
                    self._tell("source", str(error))
                    return
                if lane.position is None:
                    lane.position = lane.origin
                elif lane.origin is not None:
                    self._source.commit({shard: lane.origin})  # whoever had it before may not have told the broker
            del self._to_begin[shard]

    def _lane(self, snapshot: Snapshot | None, origin: Position | None = None) -> _Lane:
        estimator = self._build()
        if snapshot is None:
            return _Lane(estimator, Counts(), None, Counts(), None, origin)
        estimator.load_state_dict(snapshot.state)
        position = snapshot.position
        return _Lane(estimator, snapshot.counts, position, snapshot.counts, position, origin)

    def revoked(self, shards: set[Shard]) -> None:
        """Commit once more while they are ours. On the source's thread, from within our own poll."""
        learning, busy = self._learning, self._busy
        if busy is not None and busy is learning:
            wait([busy], timeout=LAST_BATCH_S)
        if self._stale or (busy is not None and not (busy is learning and busy.done() and busy.exception() is None)):
            self.lost(shards)  # the call under way commits them, or nobody does and their next owner learns them anew
            return
        for shard in shards & self._lanes.keys():
            self._lanes[shard].estimator.close_batch()
        parts = self._parts()
        if parts:
            try:
                if self._dead_letters is not None:
                    self._dead_letters.commit()
                began = time.monotonic()
                self._store.commit_parts(parts)
                self._after_commit(parts, time.monotonic() - began)
            except (FencedError, LedgerConflictError) as error:
                self._refused(error)
            except (StoreUnavailableError, SourceUnavailableError) as error:
                self._tell("store", str(error))
                self._stale = True
        self._drop(shards)

    def lost(self, shards: set[Shard]) -> None:
        """Forget them: others may have claimed them. Their spends wait in one ledger with ours, so all goes back."""
        if self._busy is not None or any(s in self._lanes and self._lanes[s].uncommitted for s in shards):
            self._stale = True
        self._drop(shards)

    def _drop(self, shards: set[Shard]) -> None:
        if self._busy is not None:
            self._lost |= shards
        else:
            self._store.release(shards)
        for shard in shards:
            self._lanes.pop(shard, None)
            self._fenced.pop(shard, None)
        self._tell_assigned()

    # -- patience ----------------------------------------------------------------------------------------------------

    def _patiently(self, call: Callable[[], T]) -> T:
        """Call the store until it answers."""
        return self._wait(self._submit(partial(self._until_answered, call)))

    def _submit(self, call: Callable[[], T]) -> Future[T]:
        """Everything that uses the store or an estimator runs on one thread, one after the other."""
        self._lost = set()
        self._busy = self._thread.submit(call)
        return self._busy

    def _wait(self, future: Future[T]) -> T:
        """The result. When that takes long, hold the source and poll it, to stay in the group."""
        held = False
        try:
            while True:
                try:
                    return future.result(POLL_TIMEOUT_S if held else HOLD_AFTER_S)
                except NotYet:
                    if future.done():
                        raise
                    if not held:
                        self._source.pause()
                        held = True
                    self._heard = time.monotonic()
                    if self._poll(1, 0.0):
                        self._stale = True  # it should bring nothing now; what it brings all the same is read again
        finally:
            self._busy = None
            self._store.release(self._lost)
            if held:
                self._source.resume()

    def _until_answered(self, call: Callable[[], T]) -> T:
        def note(state: Any) -> None:
            self._tell("store", str(state.outcome.exception()))

        def give_up(state: Any) -> bool:
            return self._stopped_at is not None and time.monotonic() - self._stopped_at > GIVE_UP_S

        trying = Retrying(
            retry=retry_if_exception_type((StoreUnavailableError, SourceUnavailableError)),
            wait=wait_random_exponential(multiplier=0.1, max=3.0),
            stop=give_up,
            before_sleep=note,
            reraise=True,
        )
        return trying(call)

    def _tell(self, kind: str, message: str) -> None:
        log.warning("%s: %s", kind, message)
        for observer in self._observers:
            observer.on_retry(kind, message)

    def _tell_assigned(self) -> None:
        for observer in self._observers:
            observer.assigned({shard: lane.committed for shard, lane in self._lanes.items()})
