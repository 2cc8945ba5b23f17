"""Sources in memory."""

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from enum import Enum, auto
from typing import Final, Literal

import numpy as np

from streamdp.data.records import (
    Batch,
    DeadLetter,
    Position,
    RebalanceListener,
    Record,
    Shard,
    Stall,
    Subject,
    check_poll,
)
from streamdp.errors import ConfigError, SourceError


class Sentinel(Enum):
    """An event in a list of records, in the place of a record."""

    END = auto()
    ABORT = auto()
    BAD = auto()


END: Final = Sentinel.END
"""The stream ends here for this run. A run that seeks to the position after it continues with what follows."""
ABORT: Final = Sentinel.ABORT
"""Here a poll raises `SourceError`, once per source and after it has returned everything before: a crash."""
BAD: Final = Sentinel.BAD
"""A record that cannot be decoded: a dead letter with the reason `bad`."""

Entry = Record | tuple[Mapping[str, float], float, Subject | None, float | None] | Literal[Sentinel.BAD]
"""A record, (x, y, subject, budget), or `BAD`."""

Item = Entry | Sentinel
"""As `Entry`, or another sentinel."""


def _batch(given: Iterable[tuple[int, Entry]], features: tuple[str, ...], position: Position) -> Batch:
    """Encode items with their places. A feature that a record lacks is 0."""
    records: list[Record] = []
    dead: list[DeadLetter] = []
    for place, item in given:
        if isinstance(item, Record):
            records.append(Record(item.x, item.y, item.subject, item.budget, place))
        elif isinstance(item, tuple):
            records.append(Record(*item, place))
        else:
            dead.append(DeadLetter(place, "bad"))
    X = np.array([[r.x.get(f, 0.0) for f in features] for r in records], dtype=np.float64)
    return Batch(
        features=features,
        X=X.reshape(len(records), len(features)),
        y=np.array([r.y for r in records], dtype=np.float64),
        positions=np.array([r.position for r in records], dtype=np.int64),
        position=position,
        subjects=[r.subject for r in records],
        budgets=np.array([np.nan if r.budget is None else r.budget for r in records], dtype=np.float64),
        dead=dead,
    )


class MemorySource:
    """Records from a list; a `records.Source`. The position is {"index": number of items read}.

    Items are records, (x, y, subject, budget) tuples, and sentinels. A feature of the encoded `features` that `x` lacks
    is 0.

    >>> source = MemorySource([({"a": 1.0}, 2.0, "ann", None), BAD, END], features=["a"])
    >>> batch = source.poll(10, 0.0)
    >>> len(batch), [letter.reason for letter in batch.dead], batch.position, source.finished
    (1, ['bad'], {'index': 3}, True)
    """

    def __init__(self, items: Iterable[Item], features: Sequence[str]) -> None:
        if isinstance(features, str) or not isinstance(features, Sequence):
            raise ConfigError(f"features: expected a list of names, got {type(features).__name__}")
        self._items = list(items)
        self._features = tuple(features)
        self._index = 0
        self._ended = False
        self._aborted: set[int] = set()

    @property
    def position(self) -> Position:
        """The position after the last polled item."""
        return {"index": self._index}

    @property
    def finished(self) -> bool:
        """True after the last item, after `END`, and after `close()`."""
        return self._ended or self._index >= len(self._items)

    def poll(self, max_records: int, timeout_s: float) -> Batch:
        """See `Source.poll`. Raises `SourceError` at `ABORT`."""
        check_poll(max_records, timeout_s)
        given: list[tuple[int, Entry]] = []
        while not self.finished and len(given) < max_records:
            item, place = self._items[self._index], self._index
            if item is ABORT and place not in self._aborted:
                if given:
                    break  # return what came before it first
                self._aborted.add(place)
                raise SourceError(f"aborted at item {place}, as the list asked for")
            self._index += 1
            if item is END:
                self._ended = True
            elif item is not ABORT:
                given.append((place, item))
        return _batch(given, self._features, self.position)

    def seek(self, position: Position) -> None:
        """See `Source.seek`; an `END` just before the position is passed. Raises `SourceError` for a wrong position."""
        index = position.get("index") if isinstance(position, dict) else None
        if not (isinstance(index, int) and 0 <= index <= len(self._items)):
            raise SourceError(f"expected an index from 0 to {len(self._items)}")
        self._index, self._ended = index, False

    def commit(self, position: Position) -> None:
        """See `Source.commit`; there is no broker."""

    def close(self) -> None:
        """End the stream."""
        self._ended = True


class MemoryShards:
    """Shards from lists; a `records.ShardedSource` for a group of one worker, which gets all of them.

    The position of a shard is {"index": number of items read}. `rebalance` takes shards away and assigns them again.
    `streams` has the items of each shard: as for `MemorySource`, without `END`. For each shard in each poll, `sizes`
    gives the most items to return; the default has no such limit. A poll calls `sleep` with a number of seconds if
    there is nothing to return. `committed` has the last position of each shard that was given to `commit`.

    >>> shard = Shard("clicks", 0)
    >>> source = MemoryShards({shard: [({"a": 1.0}, 2.0, "ann", None), BAD]}, features=["a"])
    >>> source.start(shard, None)
    {'index': 0}
    >>> [(shard, raw)] = source.poll(10, 0.0)
    >>> batch = source.decode(shard, raw)
    >>> len(batch), [letter.reason for letter in batch.dead], batch.position
    (1, ['bad'], {'index': 2})
    """

    def __init__(
        self,
        streams: Mapping[Shard, Iterable[Entry]],
        features: Sequence[str],
        *,
        sizes: Iterator[int] | None = None,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self.committed: dict[Shard, Position] = {}
        self._streams = {shard: list(items) for shard, items in streams.items()}
        self._features = tuple(features)
        self._sizes = sizes
        self._sleep = sleep
        self._new = list(self._streams)
        self._next: dict[Shard, int | None] = dict.fromkeys(self._new)  # None until `start`
        self._rebalances: list[tuple[set[Shard], set[Shard], list[Shard]]] = []
        self._paused = False

    @property
    def positions(self) -> dict[Shard, Position]:
        """The position after the last polled item, of each shard that was started and is still assigned."""
        return {shard: {"index": index} for shard, index in self._next.items() if index is not None}

    def rebalance(
        self, *, revoked: Iterable[Shard] = (), lost: Iterable[Shard] = (), assigned: Iterable[Shard] = ()
    ) -> None:
        """Have the next poll change the shards, as a group does when workers come and go. Any thread may call it.

        Shards in `revoked` are taken in an orderly way, those in `lost` without notice; then those in `assigned` are
        assigned.
        """
        self._rebalances.append((set(revoked), set(lost), list(assigned)))

    def subscribe(self, listener: RebalanceListener) -> None:
        """See `ShardedSource.subscribe`."""
        self._listener = listener

    def assigned(self) -> list[Shard]:
        """See `ShardedSource.assigned`."""
        new, self._new = self._new, []
        return new

    @property
    def settled(self) -> bool:
        """See `ShardedSource.settled`."""
        return not self._rebalances

    def awaited(self) -> str:
        """See `ShardedSource.awaited`."""
        return "a call of `rebalance`"

    def stalls(self) -> list[Stall]:
        """See `ShardedSource.stalls`; a list is always there."""
        return []

    def start(self, shard: Shard, position: Position | None) -> Position | None:
        """See `ShardedSource.start`. Raises `SourceError` for a wrong position."""
        if shard not in self._next:
            return None
        index = 0 if position is None else position.get("index")
        if not (isinstance(index, int) and 0 <= index <= len(self._streams[shard])):
            raise SourceError(f"{shard}: expected an index from 0 to {len(self._streams[shard])}")
        self._next[shard] = index
        return {"index": index}

    def poll(self, max_records: int, timeout_s: float) -> list[tuple[Shard, Sequence[int]]]:
        """See `ShardedSource.poll`."""
        check_poll(max_records, timeout_s)
        rebalances, self._rebalances = self._rebalances, []
        for revoked, lost, assigned in rebalances:
            self._take(revoked, self._listener.revoked)
            self._take(lost, self._listener.lost)
            self._new += assigned
            self._next |= dict.fromkeys(assigned)
        polled: list[tuple[Shard, Sequence[int]]] = []
        for shard, index in self._next.items() if not self._paused else ():
            if index is not None and index < len(self._streams[shard]) and max_records:
                size = max_records if self._sizes is None else min(max_records, next(self._sizes))
                raw = range(index, min(index + size, len(self._streams[shard])))
                polled.append((shard, raw))
                self._next[shard] = raw.stop
                max_records -= len(raw)
        if not polled:
            self._sleep(timeout_s)
        return polled

    def _take(self, shards: set[Shard], tell: Callable[[set[Shard]], None]) -> None:
        if ours := shards & self._next.keys():
            self._new = [shard for shard in self._new if shard not in ours]
            tell(ours)
            for shard in ours:
                del self._next[shard]

    def decode(self, shard: Shard, raw: Sequence[int]) -> Batch:
        """See `ShardedSource.decode`."""
        items = self._streams[shard]
        return _batch(((place, items[place]) for place in raw), self._features, {"index": raw[-1] + 1})

    def advance(self, shard: Shard, position: Position) -> Position:
        """See `ShardedSource.advance`; every item is a record."""
        return position

    def pause(self) -> None:
        """See `ShardedSource.pause`."""
        self._paused = True

    def resume(self) -> None:
        """See `ShardedSource.resume`."""
        self._paused = False

    def commit(self, positions: Mapping[Shard, Position]) -> None:
        """See `ShardedSource.commit`."""
        self.committed |= positions

    def close(self) -> None:
        """See `ShardedSource.close`."""
        self._next.clear()
