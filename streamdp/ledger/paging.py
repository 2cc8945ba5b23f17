"""A cache in memory of the rows of subjects in a database: read when they are needed, written with a commit.

Other processes may write to the same database. If one has changed rows since they were read, a commit reads the rows of
its subjects again, adds its own charges to them, and compares the sums with the caps. It is refused
(`LedgerConflictError`) only if a subject would be over its cap: the job then rolls back and learns again. A database
either excludes other writers as a whole, and its version shows that one has written, or it excludes them from each row,
and the row shows it (`SpendPages.excludes`).

A commit writes the changed rows to the log, if there is one and it has room, or to the table. The log has rows of one
process, which has them all in memory. A process that finds a new version moves the log to the table before it reads.

What the database has of a subject is the sum over all committed records of all jobs, within the cap:
docs/proofs/ledger.md.
"""

from collections.abc import Callable, Collection
from contextlib import AbstractContextManager
from enum import Enum, auto

import numpy as np

from streamdp.database.interface import Connection
from streamdp.errors import LedgerConflictError, StoreError, StoreMismatchError
from streamdp.ledger.admission import all_fit
from streamdp.ledger.caps import cap_of_numbers, check_kinds
from streamdp.ledger.charged import with_caps
from streamdp.ledger.charges import Charge, Charges, Owner, added, places_of
from streamdp.ledger.ledger_rows import add_charged, lock, read_cap, read_caps, read_charged, read_mark
from streamdp.ledger.memory_rows import MemoryRows
from streamdp.ledger.periods import Cap, own_cap, parse_cap, same_kind
from streamdp.ledger.postgres_rows import SpendRows
from streamdp.ledger.row_cache import RowCache
from streamdp.ledger.rows import CAP, RECORDS
from streamdp.ledger.sql import transaction
from streamdp.ledger.sqlite_pages import SpendPages
from streamdp.ledger.subject_key import period_of

KEPT_SUBJECTS = 4_000_000
"""Rows that stay in memory after a commit (about 400 MB), so that the next batch need not read them again."""

LOGGED_ROWS = 500_000
"""Rows that the log may have. It may have more if they are at most twice the rows in memory."""


def spends_in(connection: Connection) -> SpendPages | SpendRows:
    """Return the implementation for a database."""
    return SpendRows() if connection.server else SpendPages()


TRIES = 5
"""How often rows are read again because others have just written the first ones of the same subjects."""


def _conflict() -> LedgerConflictError:
    return LedgerConflictError(
        "another job or worker has spent from the same people at the same time, and both spends together are over a"
        " cap: roll back to the last commit and learn again"
    )


class _Written(Enum):
    """Where the last `write_pending` has written the rows."""

    NOWHERE = auto()
    LOG = auto()
    TABLE = auto()


class PagedRows(MemoryRows):
    """The rows of subjects, over the spends in a database; in memory, they are in `cache`.

    `errors` turns the database's errors into `StoreError`s. The subjects' own caps must be of the kind of the total of
    the ledger's cap. `owner` is the shard to whose progress charges belong now. `others` reads how often other jobs
    have committed. `refresh`, `find`, `mark_committed` and `rollback` change the cache.
    """

    def __init__(
        self,
        connection: Connection,
        errors: Callable[[], AbstractContextManager[None]],
        cap: Cap,
        others: Callable[[Connection], int] = lambda _: 0,
    ) -> None:
        self.errors = errors
        self._connection = connection
        self.owner: Owner = None
        self._spends = spends_in(connection)
        self._logged_rows = 0
        self.charges = self._rest = Charges()
        self._written, self._next = _Written.NOWHERE, -1
        self._places = np.empty(0, dtype=np.int64)
        self._others, self._known_others = others, 0
        self._version = -1  # the version for which memory has all rows of the log; -1: none
        with errors(), transaction(connection):
            super().__init__(cap, read_mark(connection), read_charged(connection))
        self._known = self.charged  # without what the next commit writes

    def read_history(self) -> None:
        if not self._connection.closed:
            with self.errors(), transaction(self.open_connection()):
                self._known = read_charged(self._connection)
            self.charged = with_caps(self._known, self.charged)

    def open_connection(self) -> Connection:
        """Return the connection. Raises `StoreError` if it is closed, or in a fork."""
        if self._connection.closed:
            raise StoreError("this ledger is closed")
        self.check_process()
        return self._connection

    def refresh(self) -> None:
        """Read rows again if others have written since they were read, unless charges are pending.

        Raises `StoreMismatchError` if the ledger has another cap now.
        """
        connection = self.open_connection()
        if self._version >= 0 and self.charges:
            return
        with self.errors():
            others = self._commits_of_others(connection)
            if self._spends.version(connection) == self._version and others == self._known_others:
                return
            with transaction(connection):  # one, or another process may write to the log in between
                self._check_cap(connection)
                self._spends.checkpoint(connection)
                version = self._spends.version(connection)
                self._known = read_charged(connection)
            self.charged = with_caps(self._known, self.charged)
            self._known_others = others
            self._read_again(version)

    def _commits_of_others(self, connection: Connection) -> int:
        """How often other jobs have committed, where the version of the ledger does not show it."""
        return 0 if self._spends.excludes else self._others(connection)

    def _read_again(self, version: int) -> None:
        """Begin with an empty cache, and add what is pending to the rows that the database has now."""
        old, new, pending = self.cache, RowCache(), self.charges
        places = places_of(pending.every, old.n, pending.caps)
        moved = np.zeros(old.n, dtype=np.int64)
        if len(places):
            moved[places] = slots = self.find(old.keys[places], np.ones(len(places), dtype=np.bool_), new)
            new.rows[slots, :CAP] += added(pending.every, places, old.n)
            new.rows[moved[pending.caps], CAP:] = old.rows[pending.caps, CAP:]
            new.pending[slots] = True
        self.cache, self.charges, self._logged_rows, self._version = new, pending.moved(moved), 0, version

    def _check_cap(self, connection: Connection) -> None:
        if (cap := read_cap(connection)) is not None and cap != self._cap:
            raise StoreMismatchError(
                f"the cap of this database is {cap!s} now, and this job has {self._cap!s}: change that and start again"
            )

    def admit(self, slots: np.ndarray, terms: np.ndarray) -> np.ndarray:
        admitted = super().admit(slots, terms)
        self.charges.add(self.owner, slots[:, admitted], terms if len(terms) == 1 else terms[admitted])
        return admitted

    def replace(self, slots: np.ndarray, rows: np.ndarray) -> None:
        """Charge what brings the rows at `slots` (n,), which differ, to `rows` (n, ROW)."""
        before = self.cache.rows[slots, :CAP]
        # An infinite sum stays so: each charge of its subject adds infinity to it.
        sums = np.subtract(rows[:, :CAP], before, out=np.zeros_like(before), where=np.isfinite(before))
        self.cache.rows[slots], self.cache.pending[slots] = rows, True
        self.charges.note(self.owner, slots, sums)

    def set_cap(self, slot: int, numbers: tuple[float, float]) -> None:
        super().set_cap(slot, numbers)
        self.charges.caps = np.union1d(self.charges.caps, [slot])

    def holds(self, cache: RowCache) -> bool:
        return super().holds(cache) and self._version >= 0

    def find(self, keys: np.ndarray, present: np.ndarray, cache: RowCache | None = None) -> np.ndarray:
        if cache is None and self._version < 0:  # a commit has emptied the memory
            self.refresh()
        return super().find(keys, present, cache)

    def _read(self, keys: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        with self.errors():
            rows, found = self._spends.read(self.open_connection(), keys)
        self._note(rows)
        return rows, found

    def _note(self, rows: np.ndarray) -> None:
        """Note the own caps in rows (n, ROW) that were read, under which their subjects may be charged from now on."""
        check_kinds(self._limits[-1], rows)
        own = rows[rows[:, CAP] > 0, CAP:]
        if len(own):
            self.charge(own_cap(cap_of_numbers(*own.max(axis=0).tolist()), self._cap), own=True)

    @property
    def is_full(self) -> bool:
        """Whether the next commit will write all rows to the table and remove them from memory."""
        return self.cache.n > KEPT_SUBJECTS

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

    def write_pending(self, connection: Connection, oldest: int = 0, owners: Collection[Owner] | None = None) -> None:
        """Write what a commit of `owners` is charged (see `Charges.due`), inside the caller's transaction.

        Rows of periods before `oldest` are deleted, if the ledger has always had caps of one kind: periods of other
        lengths have other numbers, and of rows without a period any number may be read. Raises `LedgerConflictError` if
        a subject would be over its cap by what others have written, and `StoreMismatchError` if the ledger has another
        cap now.
        """
        if oldest and not all(same_kind(parse_cap(text), self._cap) for text, _ in read_caps(connection)):
            oldest = 0
        if self._version < 0 and self.charges:
            self.refresh()
        self._written, self._next, cache = _Written.NOWHERE, self._version, self.cache
        due, self._rest = self.charges.due(owners)
        charged, self._places = places_of(due, cache.n), places_of(due, cache.n, self.charges.caps)
        if not (len(self._places) or oldest or self.charged - self._known):
            return
        current = self._spends.enter(connection) == self._version
        current &= self._commits_of_others(connection) == self._known_others
        caps = self.charges.caps[: 0 if self._spends.excludes else None]
        if oldest or len(caps):
            lock(connection)  # others must read all rows again
        add_charged(connection, self.charged - self._known)
        # The rows in memory may have charges of shards that are not committed, or caps of which others know nothing.
        mixed = np.isin(self._places, places_of(self._rest.every, cache.n, caps)).any()
        if current and not mixed and len(self._places):
            self._check(cache.keys[charged], cache.rows[charged])
            current = self._write(connection, due)
        if len(self._places) and (mixed or not current):
            self._add(connection, due)
        if oldest:
            self._spends.delete_before(connection, oldest)
        self._next = self._spends.version(connection) if current and not oldest else -1

    def _add(self, connection: Connection, due: list[Charge]) -> None:
        """Add the charges that are due to the rows of the database."""
        self._check_cap(connection)
        self._written = _Written.TABLE
        self._spends.checkpoint(connection)
        cache, places = self.cache, self._places
        keys, charges = cache.keys[places], added(due, places, cache.n)
        own, spent = np.isin(places, self.charges.caps), np.any(charges != 0, axis=1)
        for _ in range(TRIES):
            fresh, there = self._spends.read(connection, keys, hold=True)
            self._note(fresh)
            after = fresh.copy()
            after[:, :CAP] += charges
            after[own, CAP:] = cache.rows[places[own], CAP:]
            self._check(keys[spent], after[spent])
            if self._spends.write(connection, keys, after, fresh, there):
                break
        else:  # others go on writing first rows of these subjects
            raise _conflict()

    def _check(self, keys: np.ndarray, rows: np.ndarray) -> None:
        """Compare rows with the caps, because charges were added to what others have written.

        Of two filters' caps, the second is for rows without a period.
        """
        total = period_of(keys) == 0
        each = (rows,) if len(self._caps) == 1 else (rows[~total], rows[total])
        if not all(all_fit(mine, *cap) for mine, cap in zip(each, self._caps, strict=True)):
            raise _conflict()

    def _write(self, connection: Connection, due: list[Charge]) -> bool:
        """Write the rows as they are in memory; False if another writer has changed one of them."""
        cache, spends, places = self.cache, self._spends, self._places
        if isinstance(spends, SpendPages):
            if self._logged_rows + len(places) <= max(LOGGED_ROWS, 2 * cache.n) and not self.is_full:
                self._written = _Written.LOG
                spends.append(connection, cache.keys[places], cache.rows[places])
                return True
            spends.clear(connection)
            logged = cache.logged.copy()
            logged[places] = True
            self._places = places = np.flatnonzero(logged)
        self._written = _Written.TABLE
        keys, before = cache.keys[places], cache.rows[places]
        if not spends.excludes:  # else nobody compares them
            before[:, RECORDS] -= added(due, places, cache.n)[:, RECORDS]
        return spends.write(connection, keys, cache.rows[places], before, ~cache.absent[places])

    def mark_committed(self) -> None:
        """Note that the transaction of `write_pending` is on disk."""
        cache, places, written = self.cache, self._places, self._written
        again = written is _Written.TABLE and self.is_full
        self.charges, self._known, self._version = self._rest, self.charged, -1 if again else self._next
        if again and not self.charges:
            self.cache, self._logged_rows = RowCache(), 0  # else the next `refresh` needs the keys
            return
        if written is _Written.LOG:
            self._logged_rows += len(places)
            cache.logged[places] = True
        elif written is not _Written.NOWHERE:
            self._logged_rows = 0
            cache.absent[places] = cache.absent[cache.logged] = cache.logged[:] = False
        cache.settle(places_of(self.charges.every, cache.n))

    def rollback(self, owners: Collection[Owner] | None = None) -> None:
        """Discard all rows in memory, or the charges of `owners`. The next `find` reads from the database."""
        if owners is not None:
            if (rest := self.charges.without(owners)) is not self.charges:
                self.charges, self._version = rest, -1
            return
        self.cache, self.charges, self._version = RowCache(), Charges(), -1
        self._rest, self._written, self._next = self.charges, _Written.NOWHERE, -1
        self.charged, self._noted = self._known, None
