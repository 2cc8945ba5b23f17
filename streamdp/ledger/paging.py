"""A cache in memory of the rows of subjects in a database: read when they are needed, written with a commit.

Other processes may write to the same database, one commit after the other. If the version of the ledger shows that one
has written since the rows were read, a commit reads the rows of its subjects again, adds its own charges to them, and
compares the sums with the caps. It is refused (`LedgerConflictError`) only if a subject would be over its cap: the job
then rolls back and learns again.

A commit writes the changed rows to the log, if there is one and it has room, or to the table. The log has rows of one
process, which has them all in memory. A process that finds a new version moves the log to the table before it reads.

What the database has of a subject is the sum over all committed records of all jobs, within the cap:
docs/proofs/ledger.md.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import AbstractContextManager
from enum import Enum, auto

import numpy as np
from sqlalchemy import Connection

from streamdp.errors import LedgerConflictError, StoreError, StoreMismatchError
from streamdp.ledger import filters
from streamdp.ledger.caps import cap_numbers, check_kinds
from streamdp.ledger.charged import CapHistory, with_caps
from streamdp.ledger.ledger_rows import add_charged, lock, read_cap, read_caps, read_charged, read_mark
from streamdp.ledger.periods import Cap, budgets_of, parse_cap, same_kind
from streamdp.ledger.row_cache import RowCache
from streamdp.ledger.rows import CAP
from streamdp.ledger.spends import Spends
from streamdp.ledger.sql import transaction
from streamdp.ledger.subject_key import period_of

KEPT_SUBJECTS = 4_000_000
"""Rows that stay in memory after a commit (about 400 MB), so that the next batch need not read them again."""

LOGGED_ROWS = 500_000
"""Rows that the log may have. It may have more if they are at most twice the rows in memory."""


def spends_in(connection: Connection) -> Spends:
    """Return the implementation for a database."""
    if connection.dialect.name == "postgresql":
        from streamdp.ledger.postgres_rows import SpendRows

        return SpendRows()
    from streamdp.ledger.sqlite_pages import SpendPages

    return SpendPages()


class _Written(Enum):
    """Where the last `write_pending` has written the rows."""

    NOWHERE = auto()
    LOG = auto()
    TABLE = auto()
    ADDED = auto()  # to the table, added to what others have written


class PagedRows:
    """The rows of subjects, over the spends in a database; in memory, they are in `cache`.

    `errors` turns the database's errors into `StoreError`s. The subjects' own caps must be of the kind of the total of
    the ledger's cap. If it is `alone`, no other process may write to the database. `mark` identifies the ledger.
    `refresh`, `find`, `mark_committed` and `rollback` change the cache.
    """

    def __init__(
        self, connection: Connection, errors: Callable[[], AbstractContextManager[None]], cap: Cap, *, alone: bool
    ) -> None:
        self.errors = errors
        self._connection = connection
        self._process = os.getpid()
        self._cap, self._alone = cap, alone
        self._limits = budgets_of(cap)
        self._caps = [cap_numbers(limit) for limit in self._limits]
        self._deleted = 0  # the last `write_pending` deleted the rows of periods before this one
        self._spends = spends_in(connection)
        self._logged_rows = 0
        self._written, self._next = _Written.NOWHERE, -1
        self.cache, self._version = RowCache(), -1  # the version for which memory has all rows of the log; -1: none
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
        if not self._alone and not self._connection.closed:
            with self.errors(), transaction(self.open_connection()):
                self._known = read_charged(self._connection)
            self._charged = with_caps(self._known, self._charged)

    def charge(self, cap: Cap, own: bool = False) -> None:
        """Note a cap under which something is charged; `own` if it is the cap of a single subject."""
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

    def refresh(self) -> None:
        """Forget the rows in memory if others have written since they were read, unless charges are pending.

        Raises `StoreMismatchError` if the ledger has another cap now.
        """
        if self._version >= 0 and (self._alone or self.cache.before):
            return
        connection = self.open_connection()
        with self.errors():
            if self._version >= 0 and self._spends.version(connection) == self._version:
                return
            with transaction(connection):  # one, or another process may write to the log in between
                self._check_cap(connection)
                self._spends.checkpoint(connection)
                version = self._spends.version(connection)
            self.cache, self._logged_rows = RowCache(), 0
            self._version = version

    def _check_cap(self, connection: Connection) -> None:
        if (cap := read_cap(connection)) is not None and cap != self._cap:
            raise StoreMismatchError(
                f"the cap of this database is {cap} now, and this job has {self._cap}: change that, and start it again"
            )

    def admit(self, slots: np.ndarray, terms: np.ndarray) -> np.ndarray:
        """Admit records in order and return (n,) bool; a refused record adds nothing.

        `slots` (f, n) int64, from `find`, is the row of each record in each filter of the cap; `terms` is (n, 4) or (1,
        4), from `spend_numbers`.
        """
        if not self._alone:
            self.cache.remember(slots)
        return filters.admit(self.cache, slots, terms, self._caps)

    def find(self, keys: np.ndarray, present: np.ndarray) -> np.ndarray:
        """Return the places (n,) int64 of subjects in `cache`, and read the rows that are not there yet.

        `keys` and `present` are those of `hash_subjects`. Raises `StoreError` if the database cannot be read, and
        `StoreMismatchError` if a subject's own cap is of another kind than the ledger's. Then nothing has changed.
        """
        if self._version < 0:
            self.refresh()
        cache = self.cache
        slots = cache.find(keys, present)
        if len(cache.unread):
            try:
                with self.errors():
                    rows, found = self._spends.read(self.open_connection(), cache.unread)
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
        self.refresh()
        cache = self.cache
        with self.errors():
            known = self._spends.count(self.open_connection())
        return known + int(np.count_nonzero(cache.absent & (cache.pending | cache.logged)))

    @property
    def n_pending(self) -> int:
        """The number of rows that the next commit writes."""
        return int(np.count_nonzero(self.cache.pending))

    def check_kept(self, oldest: int) -> None:
        """Raise `LedgerConflictError` if the next commit writes a row of a period before `oldest`.

        Another process may have deleted it.
        """
        periods = period_of(self.cache.keys[self.cache.pending])
        if np.any((periods > 0) & (periods < oldest)):
            raise LedgerConflictError(
                "another job or worker, by a later clock, has deleted the spends of a period in which a record was"
                " admitted: roll back to the last commit and learn again"
            )

    def write_pending(self, connection: Connection, oldest: int = 0) -> None:
        """Write the rows that have changed since the last commit, inside the caller's transaction.

        Rows of periods before `oldest` are deleted, if the ledger has always had caps of one kind: periods of other
        lengths have other numbers, and of rows without a period any number may be read. Raises `LedgerConflictError` if
        a subject would be over its cap by what others have written, and `StoreMismatchError` if the ledger has another
        cap now.
        """
        if oldest and not all(same_kind(parse_cap(text), self._cap) for text, _ in read_caps(connection)):
            oldest = 0
        cache, self._deleted = self.cache, oldest
        changed = np.flatnonzero(cache.pending[: cache.n])
        self._written, self._next = _Written.NOWHERE, self._version
        if not (len(changed) or oldest or self._charged - self._known):
            return
        if self._version < 0:
            self.refresh()
        version = lock(connection)
        add_charged(connection, self._charged - self._known)
        if not self._alone and version != self._version + 1:
            self._add(connection, changed)
        elif len(changed):
            self._write(connection, changed)
        if oldest:
            self._spends.delete_before(connection, oldest)
        self._next = self._spends.version(connection)

    def _add(self, connection: Connection, changed: np.ndarray) -> None:
        """Add the pending charges to the rows of the database."""
        self._check_cap(connection)
        self._written = _Written.ADDED
        self._spends.checkpoint(connection)
        keys, rows = self.cache.keys[changed], self.cache.rows[changed]
        before = self.cache.before_rows(changed)
        fresh, _ = self._spends.read(connection, keys)
        # An infinite sum stays so: each charge of its subject adds infinity to it.
        charges = np.subtract(rows, before, out=np.zeros_like(rows), where=np.isfinite(before))
        own = np.any(rows[:, CAP:] != before[:, CAP:], axis=1)
        after = fresh.copy()
        after[:, :CAP] += charges[:, :CAP]
        after[own, CAP:] = rows[own, CAP:]
        spent = np.any(charges[:, :CAP] != 0, axis=1)
        if not filters.within(keys[spent], after[spent], self._caps):
            raise LedgerConflictError(
                "another job or worker has spent from the same people at the same time, and both spends together are"
                " over a cap: roll back to the last commit and learn again"
            )
        self._spends.write(connection, np.arange(len(keys)), keys, after)

    def _write(self, connection: Connection, changed: np.ndarray) -> None:
        """Write the pending rows as they are in memory."""
        cache, log = self.cache, self._spends.log
        if log is not None:
            if self._logged_rows + len(changed) <= max(LOGGED_ROWS, 2 * cache.n) and not self.is_full:
                self._written = _Written.LOG
                log.append(connection, cache.keys[changed], cache.rows[changed])
                return
            log.clear(connection)
            changed = np.flatnonzero((cache.pending | cache.logged)[: cache.n])
        self._written = _Written.TABLE
        self._spends.write(connection, changed, cache.keys, cache.rows)

    def mark_committed(self) -> None:
        """Note that the transaction of `write_pending` is on disk: nothing is pending any more."""
        cache, self._known, self._version = self.cache, self._charged, self._next
        if self._written is _Written.ADDED or self._deleted or (self._written is _Written.TABLE and self.is_full):
            self.cache, self._deleted, self._logged_rows = RowCache(), 0, 0
        elif self._written is _Written.LOG:
            self._logged_rows += self.n_pending
            cache.logged |= cache.pending
            cache.settle()
        else:
            if self._written is _Written.TABLE:
                self._logged_rows = 0
                cache.absent[cache.pending | cache.logged] = cache.logged[:] = False
            cache.settle()
        self._written = _Written.NOWHERE

    def rollback(self) -> None:
        """Discard all rows in memory. The next `find` reads from the database."""
        self.cache, self._version, self._deleted = RowCache(), -1, 0
        self._written, self._next = _Written.NOWHERE, -1
        self._charged, self._noted = self._known, None
