"""A source in memory, for tests and for programs that hold their records already."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from enum import Enum, auto

import numpy as np

from streamdp.data.records import Batch, DeadLetter, Position, Record, Subject
from streamdp.errors import SourceError


class Sentinel(Enum):
    """Not a record, but something that happens where one would be."""

    END = auto()
    ABORT = auto()
    BAD = auto()


END = Sentinel.END
"""The stream ends here, for this run: a run that seeks to the position after it goes on with what follows."""
ABORT = Sentinel.ABORT
"""Polling fails here with `SourceError`, once per source, after everything before was polled: a crash."""
BAD = Sentinel.BAD
"""A record that cannot be decoded: a dead letter with the reason `bad`."""

Item = Record | Sentinel | tuple[Mapping[str, float], float, Subject | None, float | None]
"""A record, (x, y, subject, budget), or a sentinel."""


class MemorySource:
    """Records from a list; a `records.Source`. The position is {"index": items so far}.

    Parameters
    ----------
    items
        Records, (x, y, subject, budget) tuples and sentinels. A feature that `x` lacks is 0.
    features
        The p names of the encoded features.

    >>> source = MemorySource([({"a": 1.0}, 2.0, "ann", None), BAD, END], features=["a"])
    >>> batch = source.poll(10, 0.0)
    >>> len(batch), [letter.reason for letter in batch.dead], batch.position, source.finished
    (1, ['bad'], {'index': 3}, True)
    """

    def __init__(self, items: Iterable[Item], features: Sequence[str]) -> None:
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
        """At most `max_records` records, bad ones included. Raises `SourceError` at `ABORT`."""
        records: list[Record] = []
        dead: list[DeadLetter] = []
        while not self.finished and len(records) + len(dead) < max_records:
            item, place = self._items[self._index], self._index
            if item is ABORT and place not in self._aborted:
                if records or dead:
                    break  # what came before is handed out first
                self._aborted.add(place)
                raise SourceError(f"aborted at item {place}, as the list asked for")
            self._index += 1
            if item is END:
                self._ended = True
            elif item is BAD:
                dead.append(DeadLetter(place, "bad"))
            elif isinstance(item, Record):
                records.append(Record(item.x, item.y, item.subject, item.budget, place))
            elif isinstance(item, tuple):
                records.append(Record(*item, place))
        return Batch(
            features=self._features,
            X=np.array([[r.x.get(f, 0.0) for f in self._features] for r in records], dtype=np.float64).reshape(
                len(records), len(self._features)
            ),
            y=np.array([r.y for r in records], dtype=np.float64),
            positions=np.array([r.position for r in records], dtype=np.int64),
            position=self.position,
            subjects=[r.subject for r in records],
            budgets=np.array([np.nan if r.budget is None else r.budget for r in records], dtype=np.float64),
            dead=dead,
        )

    def seek(self, position: Position) -> None:
        """Continue at `position`; an `END` just before it is behind. Raises `SourceError` if it is not one of ours."""
        index = position.get("index")
        if not (isinstance(index, int) and 0 <= index <= len(self._items)):
            raise SourceError(f"expected an index from 0 to {len(self._items)}")
        self._index, self._ended = index, False

    def commit(self, position: Position) -> None:
        """Nothing: there is no broker to tell."""

    def close(self) -> None:
        """End the stream."""
        self._ended = True
