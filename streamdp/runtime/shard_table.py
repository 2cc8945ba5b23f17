"""The shards of one worker in memory: which are assigned, where each continues, and which parts may be committed."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, cast

from streamdp.data.records import DeadLetter, Position, Shard
from streamdp.runtime.learning import check_finite, total
from streamdp.store.snapshot import Counts, Part, Snapshot

if TYPE_CHECKING:
    from streamdp.estimators.estimator import Estimator
    from streamdp.ledger.stored import StoredLedger


@dataclass(slots=True)
class Lane:
    """The estimator of a shard, and how far it has read and committed."""

    shard: Shard
    estimator: Estimator
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
    changes: int = 0  # how many changes of the stream the estimator had noticed at the last commit
    noted: int = 0  # how many records wait after the last commit, as readers of the store see it

    @property
    def pending(self) -> int:
        """The number of records that were learned, or wait in an open batch, and are not committed."""
        return total(self.counts) - total(self.committed)

    @property
    def uncommitted(self) -> bool:
        """Whether the position has moved since the last commit."""
        return self.position != self.committed_position

    @property
    def _ledger(self) -> StoredLedger | None:
        """The estimator's ledger, which is the store's."""
        return cast("StoredLedger | None", self.estimator.ledger)

    @property
    def charging(self) -> AbstractContextManager[None]:
        """Within it, the ledger charges this shard."""
        return contextlib.nullcontext() if self._ledger is None else self._ledger.charging(self.shard)

    def keep_boundary(self) -> None:
        """Keep the part and its charges, if the estimator is at a boundary; a commit in the next batch takes them."""
        if self.estimator.at_boundary and self.position is not None:
            if self._ledger is not None:
                self._ledger.end_part(self.shard)
            self.boundary = Part(self.estimator.state_dict(), self.position, self.counts)
            self.boundary_letters = len(self.letters)

    def part(self) -> Part | None:
        """The part at the last boundary; None if it is committed already."""
        if self.uncommitted or self.pending:  # another input may end at the same position
            self.keep_boundary()
        if self.boundary is None or self.boundary[1:3] == (self.committed_position, self.committed):
            return None
        return self.boundary._replace(waiting=total(self.counts) - total(self.boundary.counts))

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
    """The shards of one worker, each with its lane.

    The thread of the loop changes it. The store's thread reads `get` and `stale`, and learns into lanes.
    `build` makes an empty estimator.
    """

    def __init__(self, build: Callable[[], Estimator]) -> None:
        super().__init__()
        # the shards that the source does not read yet, and where to start; None: the source decides
        self.to_start: dict[Shard, Position | None] = {}
        self.lost: set[Shard] = set()  # the shards that were taken away during the current call on the store's thread
        self.stale = False  # whether the lanes hold what must not be committed, and must be read from the store again
        self._build = build
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

    def reload(self, shard: Shard, snapshot: Snapshot | None) -> None:
        """Replace the lane of a shard by its last commit, if the shard is still this worker's."""
        if (lane := self.get(shard)) is not None:
            self._put(shard, snapshot, lane.origin)

    def _put(self, shard: Shard, snapshot: Snapshot | None, origin: Position | None) -> None:
        estimator, counts, position = self._build(), Counts(), None
        if snapshot is not None:
            estimator.load_state_dict(snapshot.state)
            counts, position = snapshot.counts, snapshot.position
        self[shard] = Lane(shard, estimator, counts, position, counts, position, origin, changes=estimator.n_changes)
        self.to_start[shard] = position or origin

    def drop(self, shards: Iterable[Shard]) -> None:
        """Remove shards, with what was learned of them."""
        for shard in shards:
            self.pop(shard, None)
            self._fenced.pop(shard, None)

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

    def close_batches(self, shards: Iterable[Shard] | None = None) -> None:
        """Bring the estimators of these shards, or of all, to a boundary, unless the lanes are stale."""
        if not self.stale:
            for shard in self if shards is None else shards:
                if (lane := self.get(shard)) is not None:
                    lane.estimator.close_batch()

    def parts(self) -> dict[Shard, Part]:
        """What is to be committed: every shard that passed a boundary; nothing while the lanes are stale."""
        if self.stale:
            return {}
        parts = {shard: part for shard, lane in self.items() if (part := lane.part()) is not None}
        for part in parts.values():
            check_finite(part.state)
        return parts

    def take_letters(self, parts: Iterable[Shard]) -> dict[Shard, list[DeadLetter]]:
        """The dead letters of parts, by shard, once; only those shards that have some."""
        lanes = ((shard, lane) for shard in parts if (lane := self.get(shard)) is not None)
        return {shard: letters for shard, lane in lanes if (letters := lane.take_letters())}

    def mark_committed(self, parts: Mapping[Shard, Part]) -> int:
        """Note a commit, and return how many records it added. Shards that were dropped since are left out."""
        lanes = ((lane, part) for shard, part in parts.items() if (lane := self.get(shard)) is not None)
        return sum(lane.mark_committed(part) for lane, part in lanes)

    def take_changes(self, shards: Iterable[Shard]) -> dict[Shard, int]:
        """How many changes of the stream were noticed in each of these shards, once for each."""
        found = {}
        for shard in shards:
            if (lane := self.get(shard)) is not None and lane.estimator.n_changes > lane.changes:
                found[shard] = lane.estimator.n_changes - lane.changes
                lane.changes += found[shard]
        return found

    @property
    def waiting(self) -> dict[Shard, int]:
        """How many records of each shard wait in an open batch, if readers of the store do not know it yet."""
        return {shard: lane.pending for shard, lane in self.items() if lane.pending != lane.noted}

    def mark_noted(self, waiting: Mapping[Shard, int]) -> None:
        """Note what readers of the store know now, from `waiting`."""
        for shard, records in waiting.items():
            if (lane := self.get(shard)) is not None:
                lane.noted = records
