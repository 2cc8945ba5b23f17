"""The shard of a job that one service learns: how it is held, and what its commits remember.

A service takes the first shard that no other service holds (`Store.claim_free`): one that a service has left, with all
that was committed there, or a new one. The database ends the hold with the session of its holder. A service that lost
its session without noticing commits nothing more, because the next holder has claimed the next epoch.

Answers and spends are in the store for all shards. If two services get the same call at the same time, or together
spend more from a person than the cap, the later commit is refused, and its service goes back to its last commit and
reads the calls again.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from connectors.http import HTTPSource
from streamdp.data.records import Position, Shard
from streamdp.service.following import Follower
from streamdp.store.answers import Answers
from streamdp.store.snapshot import Counts, Part, Snapshot
from streamdp.store.store import Store


class ShardStore:
    """A claimed shard, whose commits remember what they answer; `runtime.protocols.Committing`.

    `version` adds up the numbers of the last commits of all shards, as far as they were known here.
    """

    def __init__(self, store: Store, shard: Shard, answers: Answers, source: HTTPSource, follower: Follower) -> None:
        self._store, self._shard, self._answers = store, shard, answers
        self._source, self._follower = source, follower
        self.version = 0
        self.ledger, self.rollback, self.abandon = store.ledger, store.rollback, store.abandon
        self.note_waiting = store.note_waiting

    def load(self) -> Snapshot | None:
        """See `Committing.load`."""
        return self._store.load(self._shard)

    def commit(self, state: Mapping[str, Any], position: Position, counts: Counts, *, letters: Any = None) -> Snapshot:
        """See `Committing.commit`. Raises `ConflictError` if another service has answered the same calls, too."""
        others = [snapshot.seq for snapshot in self._follower.shards if snapshot.shard != self._shard]

        def within(connection: Any, number: int) -> None:
            self.version = number + sum(others)
            self._answers.write(connection, self._source.answers(self.version))

        return self._store.commit_parts({self._shard: Part(state, position, counts, letters)}, within)[self._shard]
