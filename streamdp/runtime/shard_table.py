"""The shards of one worker in memory: which are assigned, where each continues, and which parts may be committed.

A worker learns all of its shards with one estimator, so that its batches and their noise are those of one stream. The
row of one of them, the home, holds its state; the other rows hold positions and counts. All are committed as of the
same boundary. If the home is taken away, the state stays with another shard, unless nothing can be committed then: the
next owner gets it with the row. A worker with the states of several rows merges them; the commit that writes the sum to
one row empties the others, so that each counts once.
"""

import contextlib
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, cast

from streamdp.data.records import DeadLetter, Position, Shard
from streamdp.errors import NotAvailableError
from streamdp.runtime.learning import check_finite, total
from streamdp.store.snapshot import Counts, Part, Snapshot

if TYPE_CHECKING:
    from streamdp.estimators.estimator import Estimator
    from streamdp.ledger.stored import StoredLedger


@dataclass(slots=True)
class Lane:
    """The estimator of a shard, and how far it has read and committed."""

    shard: Shard
    estimator: "Estimator"
    counts: Counts  # after the last learned record, as `position`
    position: Position | None  # None until the source has started an uncommitted shard
    committed: Counts  # at the last commit, as `committed_position`; zero and None before the first
    committed_position: Position | None
    origin: Position | None  # where the source started; None before
    # the dead letters since the last commit, written when their records are committed
    letters: list[DeadLetter] = field(default_factory=list)
    boundary: Part | None = None  # the part at the last boundary; None before the first
    boundary_letters: int = 0  # how many of `letters` belong to that part
    bad_in_a_row: int = 0  # how many undecodable records came since the last good one
    noted: int = 0  # how many records wait after the last commit, as readers of the store see it
    kept: Mapping[str, object] = field(default_factory=dict)  # the state of the row that was read, if it has one

    @property
    def pending(self) -> int:
        """The number of records that were learned, or wait in an open batch, and are not committed."""
        return total(self.counts) - total(self.committed)

    @property
    def uncommitted(self) -> bool:
        """Whether the position has moved since the last commit."""
        return self.position != self.committed_position

    @property
    def _ledger(self) -> "StoredLedger | None":
        """The estimator's ledger, which is the store's."""
        return cast("StoredLedger | None", self.estimator.ledger)

    @property
    def charging(self) -> AbstractContextManager[None]:
        """Within it, the ledger charges this shard."""
        return contextlib.nullcontext() if self._ledger is None else self._ledger.charging(self.shard)

    def end_part(self) -> None:
        """Keep the part at a boundary, without the state, and its charges: a commit in the next batch takes them."""
        if self.position is not None:
            if self._ledger is not None:
                self._ledger.end_part(self.shard)
            self.boundary = Part({}, self.position, self.counts)
            self.boundary_letters = len(self.letters)

    @property
    def ended(self) -> Part | None:
        """As of the last boundary, without a state; None if the source has not started an uncommitted shard.

        No record of a shard that came after the boundary was learned before it.
        """
        position, counts = self.committed_position or self.origin, self.committed
        if self.boundary is not None:
            position, counts = self.boundary.position, self.boundary.counts
        return None if position is None else Part({}, position, counts, waiting=total(self.counts) - total(counts))

    def take_letters(self) -> list[DeadLetter]:
        """The letters of the kept part, once: if its commit fails, they are found by the run that reads them again."""
        taken, self.letters = self.letters[: self.boundary_letters], self.letters[self.boundary_letters :]
        self.boundary_letters = 0
        return taken

    def mark_committed(self, part: Part) -> int:
        """Note the commit of a part, and return how many records it added."""
        added = total(part.counts) - total(self.committed)
        self.committed, self.committed_position, self.noted = part.counts, part.position, part.waiting
        return added


class ShardTable(dict[Shard, Lane]):
    """The shards of one worker, each with its lane, and the estimator that learns all of them.

    The thread of the loop changes it. The store's thread reads `get` and `stale`, and learns into lanes.
    `build` makes an empty estimator.
    """

    def __init__(self, build: "Callable[[], Estimator]") -> None:
        super().__init__()
        # the shards that the source does not read yet, and where to start; None: the source decides
        self.to_start: dict[Shard, Position | None] = {}
        self.lost: set[Shard] = set()  # the shards that were taken away during the current call on the store's thread
        self.stale = False  # whether the lanes hold what must not be committed, and must be read from the store again
        self._build = build
        self._estimator: Estimator | None = None  # None before the first claim
        self._state: Mapping[str, object] = {}  # of the estimator at the last boundary
        self._home: Shard | None = None  # whose row holds the state; None before anything is learned
        self._moved: set[Shard] = set()  # the rows that the state has left, or come to, since the last commit
        self._noticed = 0  # how many changes of the stream the estimator had noticed at the last boundary
        self._changes = 0  # and at the last commit
        self._fenced: dict[Shard, float] = {}

    def __iter__(self) -> Iterator[Shard]:
        return iter(list(super().__iter__()))  # a rebalance within the loop may change the table

    @property
    def committed_positions(self) -> dict[Shard, Position]:
        """The position of the last commit of each shard that has one."""
        positions = {shard: lane.committed_position for shard, lane in self.items()}
        return {shard: position for shard, position in positions.items() if position is not None}

    @property
    def committed(self) -> dict[Shard, Counts]:
        """The committed counts of all shards."""
        return {shard: lane.committed for shard, lane in self.items()}

    @property
    def pending(self) -> int:
        """The number of records that were learned and not committed."""
        return sum(lane.pending for lane in list(self.values()))

    @property
    def uncommitted(self) -> bool:
        """Whether a shard has moved since its last commit."""
        return any(lane.uncommitted for lane in self.values())

    def advance(self, move: Callable[[Shard, Position], Position]) -> None:
        """Pass what cannot be read with `move`: the broker may delete it, and it does not count as records to come."""
        for shard, lane in self.items():
            if lane.position is not None and shard not in self.to_start:
                lane.position = move(shard, lane.position)

    @property
    def unpinned(self) -> bool:
        """Whether a shard has started whose origin is not committed: `latest` would be another position next time."""
        return any(lane.committed_position is None and lane.position is not None for lane in self.values())

    def claim(self, claimed: Mapping[Shard, Snapshot | None]) -> None:
        """Take claimed shards in, with their last commits, except those that were lost during the claim."""
        for shard, snapshot in claimed.items():
            if shard not in self.lost:
                self._put(shard, snapshot, None)
        if self._estimator is None or (self._home is None and not self.pending):
            self._go_on()
        elif any(self[shard].kept for shard in claimed if shard in self):
            self.stale = True  # to go on with all of them

    def reload(self, snapshots: Mapping[Shard, Snapshot | None]) -> None:
        """Replace the lanes of shards by their last commits, those that are still this worker's."""
        for shard, snapshot in snapshots.items():
            if (lane := self.get(shard)) is not None:
                self._put(shard, snapshot, lane.origin)
        self._go_on()

    def _put(self, shard: Shard, snapshot: Snapshot | None, origin: Position | None) -> None:
        counts, position = Counts(), None
        kept: Mapping[str, object] = {}
        if snapshot is not None:
            counts, position, kept = snapshot.counts, snapshot.position, snapshot.state
        estimator: Any = self._estimator
        self[shard] = Lane(shard, estimator, counts, position, counts, position, origin, kept=kept)
        self.to_start[shard] = position or origin

    def _go_on(self) -> None:
        """Go on from the states of all lanes."""
        self._estimator = estimator = self._build()
        rows = [shard for shard, lane in self.items() if lane.kept]
        self._home, self._moved = next(iter(rows), None), set(rows[1:])
        if self._home is not None:
            first, *others = [self._build() for _ in rows]
            for each, shard in zip((first, *others), rows, strict=True):
                each.load_state_dict(self[shard].kept)
                self[shard].kept = {}
            estimator.load_state_dict((first.merged(*others) if others else first).state_dict())
        with contextlib.suppress(NotAvailableError):  # the first record will declare the features
            self._state = estimator.state_dict()
        self._changes = self._noticed = estimator.n_changes
        for lane in self.values():
            lane.estimator = estimator

    def drop(self, shards: Collection[Shard]) -> None:
        """Remove shards. What was learned of them since the last commit has to leave the estimator, too."""
        gone = {shard: lane for shard in shards if (lane := self.pop(shard, None)) is not None}
        for shard in shards:
            self._fenced.pop(shard, None)
        if not self:
            self._estimator = self._home = None
        elif self._home in gone or self._moved & gone.keys() or any(lane.pending for lane in gone.values()):
            self.stale = True

    def leave(self, shards: Collection[Shard]) -> None:
        """Let the state stay in the row of another shard, if there is one, because `shards` are taken away."""
        if self._home is not None and self._home in shards:
            rows = (shard for shard, lane in self.items() if shard not in shards and lane.ended is not None)
            if (stays := next(rows, None)) is not None:
                self._moved |= {self._home, stays}
                self._home = stays

    def fence(self, shard: Shard, until: float) -> None:
        """Note a shard that another worker has claimed; it is claimed again at `until` on the worker's clock."""
        self._fenced[shard] = until

    def take_reclaimable(self, now: float) -> list[Shard]:
        """The fenced shards to claim again, because the source has not taken them away up to the time `now`.

        If the other worker owned the shard, the source would have revoked it here by now. Otherwise that claim was
        late: it was sent before the shard was assigned to this worker, and now the shard has no owner.
        """
        due = [shard for shard, until in self._fenced.items() if now >= until]
        for shard in due:
            del self._fenced[shard]
        return due

    def close_batch(self) -> None:
        """Bring the estimator to a boundary, unless the lanes are stale."""
        if not self.stale and self._estimator is not None:
            self._estimator.close_batch()

    def keep_boundary(self) -> None:
        """Keep the state and the part of each shard, if the estimator is at a boundary."""
        if self._estimator is not None and self._estimator.at_boundary:
            self._state, self._noticed = self._estimator.state_dict(), self._estimator.n_changes
            for lane in self.values():
                if lane.boundary is None or lane.boundary[1:3] != (lane.position, lane.counts):
                    lane.end_part()
            if self._home is None:
                self._home = next((shard for shard, lane in self.items() if lane.ended is not None), None)

    def parts(self) -> dict[Shard, Part]:
        """What is to be committed: every shard that passed a boundary, and the home; nothing while lanes are stale."""
        if self.stale:
            return {}
        if self.uncommitted or self.pending or self._moved:
            self.keep_boundary()
        ended = {shard: part for shard, lane in self.items() if (part := lane.ended) is not None}
        moved = {s for s, part in ended.items() if part[1:3] != (self[s].committed_position, self[s].committed)}
        if not (moved := moved | self._moved & ended.keys()):
            return {}
        check_finite(self._state)
        return {
            shard: part._replace(state=self._state if shard == self._home else {})
            for shard, part in ended.items()
            if shard in moved or shard == self._home
        }

    def take_letters(self, parts: Iterable[Shard]) -> dict[Shard, list[DeadLetter]]:
        """The dead letters of parts, by shard, once; only those shards that have some."""
        lanes = ((shard, lane) for shard in parts if (lane := self.get(shard)) is not None)
        return {shard: letters for shard, lane in lanes if (letters := lane.take_letters())}

    def mark_committed(self, parts: Mapping[Shard, Part]) -> int:
        """Note a commit, and return how many records it added. Shards that were dropped since are left out."""
        self._moved -= parts.keys()
        lanes = ((lane, part) for shard, part in parts.items() if (lane := self.get(shard)) is not None)
        return sum(lane.mark_committed(part) for lane, part in lanes)

    def take_changes(self) -> dict[Shard, int]:
        """How many changes of the stream the commits since this was last asked have noticed, by the home's shard."""
        found, self._changes = self._noticed - self._changes, self._noticed
        return {} if self._home is None or found <= 0 else {self._home: found}

    @property
    def waiting(self) -> dict[Shard, int]:
        """How many records of each shard wait in an open batch, if readers of the store do not know it yet."""
        return {shard: lane.pending for shard, lane in self.items() if lane.pending != lane.noted}

    def mark_noted(self, waiting: Mapping[Shard, int]) -> None:
        """Note what readers of the store know now, from `waiting`."""
        for shard, records in waiting.items():
            if (lane := self.get(shard)) is not None:
                lane.noted = records
