"""What both loops learn and commit: state, positions, counts, spends and dead letters of shards, or nothing of them.

A commit and the progress that it makes are one fact, and `Commits` owns it. A loop says what is read, and when.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

from streamdp.data.records import Batch, DeadLetter, Shard
from streamdp.runtime.bad_records import FirstRecords, Unlearned
from streamdp.runtime.calls import Loop
from streamdp.runtime.defaults import FIRST_S, NOTE_WAITING_S
from streamdp.runtime.learning import learn
from streamdp.runtime.shard_table import Lane, ShardTable
from streamdp.runtime.tracing import span
from streamdp.store.snapshot import Part, Snapshot

if TYPE_CHECKING:
    from streamdp.store.store import Store, Within


Caller = Callable[[Callable[[], Any]], Any]
"""Makes a call of the store on the loop's thread, and returns its result."""


@dataclass
class Commits:
    """Learns batches of `shards`, commits them to the `store`, and publishes; a file is one shard.

    `loop` is the loop, and `call` makes the calls of the store. Each function of `publish` gets the committed
    snapshots. For `within` see `streamdp.runtime.runner.Runner`.
    """

    loop: Loop
    shards: ShardTable
    store: "Store"
    call: Caller
    publish: Sequence[Callable[[list[Snapshot]], None]]
    within: "Within | None" = None
    unlearned: Unlearned = field(default_factory=Unlearned)
    done: int = 0  # the records that were committed
    # after a conflict: commit so many records, or give way at a time
    again: tuple[int, float] | None = None

    def __post_init__(self) -> None:
        self.clock, self.dead_letters = self.loop.clock, self.loop.dead_letters
        self.first_records = FirstRecords(self.loop.name, self.loop.max_bad_share)
        self._committed_at = self._noted_at = self.clock()

    @property
    def most(self) -> int:
        """The records after which a commit is due."""
        records = self.loop.commit_records
        return records if self.again is None else min(records, self.again[0])

    @property
    def due(self) -> bool:
        """Whether it is time for a commit."""
        late = self.clock() - self._committed_at >= self.loop.commit_seconds
        full = self.shards.pending >= self.most or self._overdue
        return full or (late and self.shards.uncommitted) or self.shards.unpinned

    @property
    def _overdue(self) -> bool:
        return self.again is not None and self.clock() >= self.again[1]

    def learn(self, lane: Lane, batch: Batch) -> None:
        """Learn a `batch` of the shard of a `lane`. If this fails, nothing was learned and it may be repeated."""
        with span("learn", records=len(batch), dead_letters=len(batch.dead)), lane.charging:
            counts = learn(lane.estimator, batch, lane.counts)
        self.first_records.note(batch)
        if self.dead_letters is not None:
            lane.letters += batch.dead
        if (warning := self.unlearned.note(batch, lane.counts, counts)) is not None:
            self.loop.on_unfit(warning)
        lane.counts, lane.position = counts, batch.position

    def write(self, parts: dict[Shard, Part], call: Caller) -> list[Snapshot]:
        """Commit dead letters, then `parts` and spends, by `call`. Returns what is committed.

        Raises `FencedError` and `ConflictError` if the store refuses them.
        """
        with span("commit", shards=len(parts)):
            parts = self._write_letters(parts, call)
            written = call(partial(self.store.commit_parts, parts, self.within))
        self.again = None
        self.done += self.shards.mark_committed(parts)
        self.note_learned(parts.values())
        self._committed_at = self.clock()
        return list(written.values())

    def note_learned(self, found: Iterable[Part | Snapshot]) -> None:
        """Once a job has learned, its schema fits."""
        if any(each.counts.learned for each in found):
            self.first_records.limit = None

    def _write_letters(self, parts: dict[Shard, Part], call: Caller) -> dict[Shard, Part]:
        """Write the dead letters of parts; returns the parts with the place after them."""
        if self.dead_letters is None:
            return parts
        if letters := self.shards.take_letters(parts):
            call(partial(self.store.check_claims, letters))  # else their owner writes them too
            self.write_letters(letters)
        place = [self.dead_letters.name, call(self.dead_letters.commit)]
        return {shard: part._replace(letters=place) for shard, part in parts.items()}

    def write_letters(self, letters: Mapping[Shard, Sequence[DeadLetter]]) -> None:
        """Write dead `letters` of shards, whose records need not be committed: then the next run finds them."""
        for shard, found in letters.items():
            if self.dead_letters is not None and found:
                self.dead_letters.write(found, shard)

    def resume_letters(self, snapshots: Mapping[Shard, Snapshot | None]) -> None:
        """Find the dead letters that were written after the last commits."""
        if (writer := self.dead_letters) is not None:
            ends = {shard: (snapshot and snapshot.letters) or (None, None) for shard, snapshot in snapshots.items()}
            writer.resume({shard: place if name == writer.name else None for shard, (name, place) in ends.items()})

    def note_waiting(self, *, last: bool = False) -> None:
        """Tell the readers of the store, from time to time and at the end, how many records open batches hold."""
        waiting = self.shards.waiting
        if waiting and (last or self.clock() - self._noted_at >= NOTE_WAITING_S):
            self.call(partial(self.store.note_waiting, waiting))
            self.shards.mark_noted(waiting)
            self._noted_at = self.clock()

    def show(self, snapshots: Iterable[Snapshot | None]) -> None:
        """Publish what is committed."""
        committed = [snapshot for snapshot in snapshots if snapshot is not None]
        for publish in self.publish if committed else ():
            with span("publish", shards=len(committed)):
                publish(committed)

    def conflict(self) -> None:
        """A commit was refused, because others have spent from the same people: hold them back after `roll_back`.

        Otherwise a job whose commits are larger than those of others would never commit.
        """
        self.again = (max(1, self.shards.pending), self.clock() + FIRST_S)

    def give_way(self, *, last: bool = False) -> None:
        """Hold the commits of others back no longer, if it was long enough, or at the end."""
        if self._overdue or (last and self.again):
            self.again = None
            self.call(self.store.give_way)

    def roll_back(self) -> None:
        """Discard what came after the last commits, and read the shards from the store again."""
        self.call(self.store.rollback)
        if self.again is not None:
            self.call(self.store.come_first)
        loaded = {shard: self.call(partial(self.store.load, shard)) for shard in self.shards}
        self.call(partial(self.resume_letters, loaded))
        self.shards.reload(loaded)
        self._committed_at = self.clock()
