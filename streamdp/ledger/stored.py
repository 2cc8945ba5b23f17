"""The ledger of a store: its spends are committed with states and positions, for all jobs of the database."""

from collections.abc import Collection, Iterator
from contextlib import contextmanager

from streamdp.database.interface import Connection
from streamdp.ledger.charges import Owner
from streamdp.ledger.ledger import Ledger
from streamdp.ledger.paging import PagedRows
from streamdp.ledger.periods import RenewingCap


class StoredLedger(Ledger):
    """A `Ledger` over `PagedRows`. `lock` is also held from `write_pending` to `mark_committed`."""

    of_database = True
    _rows: PagedRows
    _committed_refused = 0

    @property
    def n_pending(self) -> int:
        """How many subjects have spends or caps that the next commit writes."""
        return self._rows.n_pending

    def begin_commit(self, committed_at: float) -> tuple[float, int]:
        """Return the time of the commit that comes now, and before which period it deletes rows, as `Moments.commit`.

        The last commit, also of another job, was `committed_at`.

        Raises `LedgerConflictError` if a record was admitted in a period of which that commit may have deleted the row.
        """
        found = self.moments.commit(committed_at)
        if isinstance(self.cap, RenewingCap):
            self._rows.check_kept(self.cap.oldest(committed_at))
        return found

    @contextmanager
    def charging(self, owner: Owner) -> Iterator[None]:
        """Let what is admitted within belong to the progress of a shard, its `owner`."""
        self._rows.owner = owner
        try:
            yield
        finally:
            self._rows.owner = None

    def end_part(self, owner: Owner) -> None:
        """Note that a shard, the `owner`, is at a boundary: its next commit writes what it was charged until now."""
        with self.lock:
            self._rows.charges.close(owner)

    def write_pending(self, connection: Connection, oldest: int = 0, owners: Collection[Owner] | None = None) -> None:
        """Write the charges of `owners` up to their last boundary, inside the caller's transaction of the `connection`.

        None writes all; charges that no shard owns are always written. Rows of periods before `oldest`, from
        `begin_commit`, are deleted; 0: none.

        Raises `LedgerConflictError` if another job or worker has spent from a subject since its row was read, and both
        spends together exceed the cap; and `StoreMismatchError` if the database has another cap now.
        """
        self._rows.write_pending(connection, oldest, owners)

    def mark_committed(self, at: float = 0.0) -> None:
        """Note that the transaction of `write_pending` is on disk, so that what it has written is not pending any more.

        `at`: what `begin_commit` returned, if that is on disk, too.
        """
        self.moments.committed_at = max(at, self.moments.committed_at)
        self._committed_refused = self.n_refused
        self._rows.mark_committed()

    def rollback(self, owners: Collection[Owner] | None = None) -> None:
        """Discard what came after the last commit, of all or of `owners`, if nothing learned from it was shown."""
        with self.lock:
            self._rows.rollback(owners)
            if owners is None:
                self.n_refused = self._committed_refused
