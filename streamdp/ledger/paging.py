"""Rows of subjects in memory in front of a database: read when they are needed, written with a commit.

A commit writes the changed rows either to the log, if there is one and it has room, or to the table together with all
rows of the log. The log belongs to a process that has the database for itself. Its rows are all in memory too, except
after opening and after a rollback: then a checkpoint writes them to the table before the first row is read.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import AbstractContextManager

import numpy as np
from sqlalchemy import Connection

from streamdp.data.records import Shard
from streamdp.errors import LedgerConflictError, StoreError
from streamdp.ledger import filters
from streamdp.ledger.caps import cap_numbers, check_kinds
from streamdp.ledger.charged import CapHistory, with_caps
from streamdp.ledger.charged_rows import add_charged, read_charged, read_mark
from streamdp.ledger.check_words import update_checks
from streamdp.ledger.periods import Cap
from streamdp.ledger.periods import filters as filters_of
from streamdp.ledger.row_cache import RowCache
from streamdp.ledger.rows import Expected
from streamdp.ledger.spends import spends_in
from streamdp.ledger.sql import transaction
from streamdp.ledger.subject_key import period_of

KEPT_SUBJECTS = 4_000_000
"""Rows that stay in memory after a commit (about 400 MB), so that the next batch need not read them again.

If another worker changes such a row, the next write of it finds out.
"""

LOGGED_ROWS = 500_000
"""Rows that the log may have. It may have more if they are at most twice the rows in memory."""


class PagedRows:
    """The rows of subjects, over the spends in a database.

    Parameters
    ----------
    errors
        Turns the database's errors into `StoreError`s.
    cap
        The ledger's cap. The subjects' own caps must be of the kind of its total.
    shared
        Whether other processes may write to the database.

    Attributes
    ----------
    cache
        The rows in memory. It changes with `find`, `mark_committed` and `rollback`.
    mark
        Tells the ledger from others.
    """

    def __init__(
        self, connection: Connection, errors: Callable[[], AbstractContextManager[None]], cap: Cap, shared: bool
    ) -> None:
        self.errors = errors
        self._connection = connection
        self._process = os.getpid()
        self._limits = filters_of(cap)
        self._caps = [cap_numbers(limit) for limit in self._limits]
        self._deleted = 0  # the last `write_pending` deleted the rows of periods before this one
        self._spends = spends_in(connection)
        self._log = None if shared else self._spends.log
        self._logged_rows = 0
        self._to_log = False  # whether the last `write_pending` wrote to the log
        self.cache, self._log_is_cached = RowCache(), False
        self._shared = shared
        with errors(), transaction(connection):
            self.mark, self._known = read_mark(connection), read_charged(connection)
        self._charged = self._known  # with what the next commit writes
        self._noted: Cap | None = None  # the cap that was noted last

    @property
    def history(self) -> CapHistory:
        """The caps under which the ledger charged, as far as they were read."""
        return CapHistory({self.mark: self._charged} if self._charged else {})

    def read_history(self) -> None:
        """Read under which caps other workers and jobs have charged since."""
        if self._shared and not self._connection.closed:
            with self.errors(), transaction(self.open_connection()):
                self._known = read_charged(self._connection)
            self._charged = with_caps(self._known, self._charged)

    def charge(self, cap: Cap, own: bool = False) -> None:
        """Note a cap under which something is charged.

        Parameters
        ----------
        own
            Whether it is the cap of a single subject.
        """
        if own or cap is not self._noted:
            self._charged = with_caps(self._charged, frozenset([(str(cap), own)]))
            self._noted = None if own else cap

    def check_process(self) -> None:
        """Raise `StoreError` in a fork of the process that opened the database: it would grant each cap once more."""
        if os.getpid() != self._process:
            raise StoreError("this ledger belongs to the process that opened it, and this is a fork of it")

    def open_connection(self) -> Connection:
        """Return the connection. Raises `StoreError` if it is closed, or in a fork."""
        if self._connection.closed:
            raise StoreError("this ledger is closed")
        self.check_process()
        return self._connection

    def _connection_for_reading(self) -> Connection:
        """The connection, after every row of the log is in the table or in memory."""
        connection = self.open_connection()
        if not self._log_is_cached:
            self._spends.checkpoint(connection)
            self._log_is_cached, self._logged_rows = True, 0
        return connection

    def refresh(self, shard: Shard) -> None:
        """Make ready for admissions from a shard. Nothing to do: only this job writes to the database."""

    def admit(self, slots: np.ndarray, terms: np.ndarray, shard: Shard, earlier: np.ndarray) -> np.ndarray:
        """Admit records in order and return (n,) bool; a refused record adds nothing.

        Parameters
        ----------
        slots
            (f, n) int64, from `find`: the row of each record in each filter of the cap.
        terms
            (n, 4) or (1, 4), from `spend_numbers`.
        earlier
            (k, n, 2) uint64: the hashes of the records in each of `prepaid_periods`; zeros for a record that was not
            charged there.
        """
        return filters.admit(self.cache, slots, None, terms, self._caps)

    def prepaid_periods(self, shard: Shard) -> list[int]:
        """Return the periods of charges that no committed state has used (see `prepaid`)."""
        return []

    def find(self, keys: np.ndarray, present: np.ndarray) -> np.ndarray:
        """Return the places (n,) int64 of subjects in `cache`, and read the rows that are not there yet.

        Parameters
        ----------
        keys, present
            (n, 2) uint64 and (n,) bool, from `hash_subjects`.

        Raises `StoreError` if the database cannot be read, and `StoreMismatchError` if a subject's own cap is of
        another kind than the ledger's. Then nothing has changed.
        """
        cache = self.cache
        slots = cache.find(keys, present)
        if len(cache.unread):
            try:
                with self.errors():
                    rows, found = self._spends.read(self._connection_for_reading(), cache.unread)
                check_kinds(self._limits[-1], rows)
                cache.fill(rows, found)
            except BaseException:
                cache.drop_unread()
                raise
        return slots

    @property
    def is_full(self) -> bool:
        """Whether the next commit will write all rows to the table and remove them from memory."""
        return self.cache.n > KEPT_SUBJECTS or self._deleted > 0

    @property
    def n_subjects(self) -> int:
        """The number of subjects that have a row, pending ones included. The database counts its own."""
        cache = self.cache
        with self.errors():
            known = self._spends.count(self._connection_for_reading())
        return known + int(np.count_nonzero(cache.absent & (cache.pending | cache.logged)))

    @property
    def n_pending(self) -> int:
        """The number of rows that the next commit writes."""
        return int(np.count_nonzero(self.cache.pending))

    def check_kept(self, oldest: int) -> None:
        """Raise `LedgerConflictError` if a row that the next commit writes is of a period that may be deleted already.

        Parameters
        ----------
        oldest
            The oldest period that is kept, with a cap that renews.
        """
        periods = period_of(self.cache.keys[self.cache.pending])
        if np.any((periods > 0) & (periods < oldest)):
            raise LedgerConflictError(
                "another job or worker, by a later clock, has deleted the spends of a period in which a record was"
                " admitted: roll back to the last commit and learn again"
            )

    def write_pending(self, connection: Connection, oldest: int = 0) -> None:
        """Write the rows that have changed since the last commit, inside the caller's transaction.

        Parameters
        ----------
        oldest
            Delete the rows of periods before this one (see `periods`). 0: delete none.

        Raises `LedgerConflictError` if a row is no longer what it was when it was read.
        """
        cache, self._deleted = self.cache, oldest
        add_charged(connection, self._charged - self._known)
        changed = np.flatnonzero(cache.pending[: cache.n])
        has_room = self._logged_rows + len(changed) <= max(LOGGED_ROWS, 2 * cache.n)
        self._to_log = self._log is not None and has_room and not self.is_full
        if cache.n:
            self._write(connection, changed)
        if oldest:
            self._spends.delete_before(connection, oldest)

    def _write(self, connection: Connection, changed: np.ndarray) -> None:
        cache = self.cache
        if self._log is not None:
            if self._to_log:
                self._log.append(connection, cache.keys[changed], cache.rows[changed])
                return
            self._log.clear(connection)  # memory has all rows of the log, because at least one row was read
            changed = np.flatnonzero((cache.pending | cache.logged)[: cache.n])
        self._spends.write(connection, changed, cache.keys, cache.rows, Expected(cache.checks, cache.absent))

    def mark_committed(self) -> None:
        """Note that the transaction of `write_pending` is on disk: nothing is pending any more."""
        cache, self._known = self.cache, self._charged
        if self._to_log:
            self._logged_rows += self.n_pending
            cache.logged |= cache.pending
            cache.pending[:] = False
            return
        self._logged_rows = 0
        if self.is_full:
            self.cache, self._deleted = RowCache(), 0
            return
        changed = np.flatnonzero((cache.pending | cache.logged)[: cache.n])
        update_checks(changed, cache.keys, cache.rows.view(np.uint64), cache.checks)
        cache.absent[changed] = cache.pending[changed] = cache.logged[changed] = False

    def rollback(self) -> None:
        """Discard all rows in memory. The next `find` reads from the database."""
        self.cache, self._log_is_cached, self._deleted = RowCache(), False, 0
        self._charged, self._noted = self._known, None
