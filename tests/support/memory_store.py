"""A store in memory and an estimator that only remembers: what a simulation needs, in a hundredth of the time."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from itertools import chain
from typing import Any

import numpy as np

from streamdp.data.records import Shard
from streamdp.errors import FencedError
from streamdp.store.snapshot import Counts, Part, Snapshot


class MemoryDatabase:
    """The rows of shards that several stores share: epoch, number of the last commit, and what it wrote."""

    def __init__(self) -> None:
        self.rows: dict[Shard, tuple[int, int, Part | None]] = {}


class MemoryStore:
    """What a worker needs of `streamdp.store.store.Store`, without a ledger; its commits are fenced by epochs, too.

    Parameters
    ----------
    database
        It outlives the stores.
    """

    ledger = None

    def __init__(self, database: MemoryDatabase) -> None:
        self.rows = database.rows
        self._claims: dict[Shard, tuple[int, int]] = {}

    def claim(self, shards: Iterable[Shard]) -> dict[Shard, Snapshot | None]:
        """See `Store.claim`."""
        shards = list(shards)
        for shard in shards:
            epoch, seq, part = self.rows.get(shard, (0, 0, None))
            self.rows[shard] = (epoch + 1, seq, part)
            self._claims[shard] = (epoch + 1, seq)
        return {shard: self._snapshot(shard) for shard in shards}

    def load(self, shard: Shard) -> Snapshot | None:
        """See `Store.load`."""
        epoch, seq, _ = self.rows[shard]
        if shard in self._claims and self._claims[shard][0] == epoch:
            self._claims[shard] = (epoch, seq)  # greater than ours after a commit whose answer was lost
        return self._snapshot(shard)

    def commit_parts(self, parts: Mapping[Shard, Part], within: None = None) -> dict[Shard, Snapshot | None]:
        """See `Store.commit_parts`."""
        for shard, part in parts.items():
            epoch, seq, last = self.rows[shard]
            mine = self._claims.get(shard)
            repeated = mine == (epoch, seq - 1) and last == part
            if mine != (epoch, seq) and not repeated:
                raise FencedError(f"{shard} was claimed by another worker", shard)
        for shard, part in parts.items():
            epoch, seq = self._claims[shard]
            self.rows[shard], self._claims[shard] = (epoch, seq + 1, part), (epoch, seq + 1)
        return {shard: self._snapshot(shard) for shard in parts}

    def note_waiting(self, waiting: Mapping[Shard, int]) -> None:
        """See `Store.note_waiting`."""

    def rollback(self) -> None:
        """See `Store.rollback`."""

    def come_first(self) -> None:
        """See `Store.come_first`."""

    def give_way(self) -> None:
        """See `Store.give_way`."""

    def release(self, shards: Iterable[Shard]) -> None:
        """See `Store.release`."""
        for shard in shards:
            self._claims.pop(shard, None)

    def close(self) -> None:
        """See `Store.close`."""

    def abandon(self) -> None:
        """See `Store.abandon`."""

    def _snapshot(self, shard: Shard) -> Snapshot | None:
        epoch, seq, part = self.rows[shard]
        if part is None:
            return None
        return Snapshot("job", "f", "", seq, 0.0, part.counts, part.position, dict(part.state), shard, epoch)


class Remembering:
    """An estimator whose state is the targets that it has learned, a list for each state that it was merged from."""

    n_changes = 0
    ledger = None
    at_boundary = True
    to_boundary = 0
    commits_at_every_boundary = False
    n_refused = n_left_out = 0

    def __init__(self) -> None:
        self.learned: list[list[float]] = [[]]

    @property
    def n_seen(self) -> int:
        return sum(map(len, self.learned))

    def boundary_within(self, records: int) -> int:
        """See `Estimator.boundary_within`."""
        return records

    def close_batch(self) -> None:
        """See `Estimator.close_batch`."""

    def learn_encoded(self, X: np.ndarray, y: np.ndarray, budgets: object, subjects: Sequence[object] | None) -> None:
        """See `Estimator.learn_encoded`."""
        *merged, last = self.learned
        self.learned = [*merged, [*last, *y.tolist()]]

    def merged(self, *others: Remembering) -> Remembering:
        """See `Estimator.merged`."""
        found = Remembering()
        found.learned = [learned for each in (self, *others) for learned in each.learned]
        return found

    def state_dict(self) -> dict[str, Any]:
        """See `Estimator.state_dict`."""
        return {"learned": self.learned, "n_seen": self.n_seen}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """See `Estimator.load_state_dict`."""
        self.learned = state["learned"]


def check_remembered(database: MemoryDatabase, given: Mapping[Shard, Sequence[Any]]) -> None:
    """Each record of each shard was learned once, in order in each state before it was merged; bad ones are counted."""
    good = {shard: [item[1] for item in stream if isinstance(item, tuple)] for shard, stream in given.items()}
    states = [learned for _, _, part in database.rows.values() if part.state for learned in part.state["learned"]]
    assert Counter(chain(*states)) == Counter(chain(*good.values()))
    for shard, stream in given.items():
        _, _, part = database.rows[shard]
        assert part.position == {"index": len(stream)}
        assert part.counts == Counts(len(good[shard]), 0, len(stream) - len(good[shard]))
        places = {value: i for i, value in enumerate(good[shard])}
        for learned in states:
            at = [places[value] for value in learned if value in places]
            assert at == sorted(at)
