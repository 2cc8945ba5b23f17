"""What each subject has spent, and a cap on it: admit a record, or refuse it before anything is learned.

`Ledger` decides, and keeps what changed since the last commit in arrays; `spend_table` pages the rest in and
out. A job's `Store` holds a ledger over its own database, so that spends, state and position are committed
together.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from functools import partial
from types import TracebackType
from typing import Any, NoReturn

import numpy as np
from sqlalchemy import Column, Connection, LargeBinary, MetaData, Table, select

from streamdp.data.records import Subject
from streamdp.database import sqlite
from streamdp.database.interface import Format
from streamdp.errors import BudgetError, NotAvailableError, SchemaError, StoreError
from streamdp.ledger.caps import cap_numbers, cap_of_numbers, check_counts, check_kinds, spend_numbers
from streamdp.ledger.spends import add_caps, spends_in
from streamdp.ledger.subject_key import check_key, given_key, hash_subjects, key_fingerprint, make_key, matching_key
from streamdp.ledger.tables import add_tables
from streamdp.privacy.composition import Spend
from streamdp.privacy.guarantees import Budget, parse_budget

PENDING_RECORDS = 50_000
"""A ledger of its own commits by itself after so many."""

KEPT_SUBJECTS = 4_000_000
"""So many stay in memory after a commit (about 400 MB), so that the next batch need not read them again. A row that
another worker has changed meanwhile is found out when it is written.
"""

LOGGED_ROWS = 500_000
"""The log goes to the pages when it has more rows, and twice as many as there are in memory."""

_metadata = MetaData()
add_tables(_metadata)
_key = Table("subject_key", _metadata, Column("fingerprint", LargeBinary(16), primary_key=True))
_errors = partial(sqlite.store_errors, "the ledger")
LEDGER_FILE = Format("ledger", 0x7344506C, 2, _metadata, {1: add_caps})


class Ledger:
    """Spends of every subject under a cap, one for all or its own (`set_cap`). Subjects are stored as keyed hashes only
    (see `subject_key`).

    `cap` is a budget or its text (`"eps=3"`); with the sums of a `Spend` over a subject's admitted records,

    * `PureDP(E)`: epsilon <= E. Only PureDP spends.
    * `GaussianDP(M)`: mu_squared + pure_mu_squared <= M^2. PureDP spends enter as the GDP they imply
      (`GaussianDP.from_pure`); no GDP follows from (epsilon, delta), so ApproxDP spends raise.
    * `ApproxDP(E, D)`: of PureDP and ApproxDP spends epsilon <= E and delta <= D, of GaussianDP spends
      gdp_delta(sqrt(mu_squared), E) <= D. A subject's first spend decides which of the two, and a spend of the other
      kind is refused: the mix would be no filter. `GaussianDP.from_approx(cap)` promises the same and counts PureDP and
      GaussianDP spends together.

    Each comparison has a relative slack of 1e-9, for sums of floats. A record without a subject (None) is always
    admitted, as there is nobody to charge: what is promised is then promised per record and not per person.

    What a record may spend is public, so it must not depend on the values of its subject's records; it may depend on
    all that was released before (fully adaptive composition), since each cap is a privacy filter for each subject
    (`caps` has the arguments).

    Without `path` the spends page to a temporary database that vanishes with the ledger. With a path they are
    a database of their own, for one process at a time: call `commit` before you show anything that was
    learned, as a crash forgets what was not committed; the ledger does it by itself every 50,000 records and
    on `close`. The cap is not stored. `key`: 32 to 64 secret bytes; else `STREAMDP_SUBJECT_KEY`,
    `<path>.key`, or drawn anew.

    One ledger is one truth: `copy` and `deepcopy` (River's `clone`) give the same ledger, so that clones
    share the cap; pickling raises `NotAvailableError`, and a fork of the process may not use it. Not for several
    threads.

    Raises `BudgetError` for a malformed cap, `ConfigError` for a bad key, and the `StoreError`s of `Store`.

    >>> from streamdp.privacy.guarantees import PureDP
    >>> ledger = Ledger("eps=3")
    >>> [ledger.admit("ann", PureDP(2)), ledger.admit("ann", PureDP(2)), ledger.admit("ann", PureDP(1))]
    [True, False, True]
    >>> ledger.spent("ann").guarantee()
    PureDP(epsilon=3.0)
    """

    def __init__(
        self, cap: Budget | str, *, path: str | os.PathLike[str] | None = None, key: bytes | None = None
    ) -> None:
        self._lock: sqlite.FileLock | None = None
        self.cap = parse_budget(cap)
        if path is None:
            self._start(secrets.token_bytes(32) if key is None else check_key(key), _temporary(), _errors)
            return
        path = os.path.realpath(path)
        self._lock = sqlite.FileLock(path)
        try:
            found = _key_of_file(path, key)
            connection = sqlite.open_for_writing(path, LEDGER_FILE)
            try:
                self._start(found, connection, _errors)
            except BaseException:
                sqlite.close(connection)
                raise
        except BaseException:
            self._lock.release()
            raise

    @classmethod
    def within(
        cls,
        connection: Connection,
        cap: Budget,
        key: bytes,
        errors: Callable[[], AbstractContextManager[None]],
        shared: bool,
    ) -> Ledger:
        """A ledger over the spends in a store's database; the store commits it with the rest.

        `shared`: several workers may have one over the same spends. `errors` turns the database's errors into
        `StoreError`s.
        """
        ledger = cls.__new__(cls)
        ledger._lock = None
        ledger.cap = cap
        ledger._start(key, connection, errors, shared)
        ledger._owned = False
        return ledger

    def _start(
        self,
        key: bytes,
        connection: Connection,
        errors: Callable[[], AbstractContextManager[None]],
        shared: bool = False,
    ) -> None:
        self._key = key
        self._process = os.getpid()
        self._connection: Connection | None = connection
        self._errors = errors
        self._owned = True
        self._n_prepared = -1  # so many records come next without a commit; -1: none was asked for
        self._spends = spends_in(connection)
        self._log = None if shared else self._spends.log
        self._logged_rows = 0
        self._settled = False  # whether what the log has is in memory too
        self._to_log = False  # what the last `write_pending` did
        self.n_refused = self._committed_refused = self._n_waiting = 0
        self._forget()

    def _forget(self) -> None:
        """Drop what is in memory; the next admission reads from the database."""
        from streamdp.ledger.row_cache import RowMemory

        self._memory = RowMemory()

    def _settled_connection(self) -> Connection:
        """The connection, with nothing in the log that memory has not."""
        connection = self._open_connection()
        if not self._settled:
            self._spends.settle(connection)
            self._settled, self._logged_rows = True, 0
        return connection

    def set_cap(self, subject: Subject, cap: Budget | str | None) -> None:
        """Give the subject a cap of its own, of the ledger's kind; None: the ledger's again.

        It is written with the spends by the next commit, and kept. Whoever has spent more already is only refused.
        Raises `BudgetError` for a malformed cap or one of another kind, and as `admit_many` does.
        """
        numbers = (0.0, 0.0)
        if cap is not None:
            cap = parse_budget(cap)
            if type(cap) is not type(self.cap):
                raise BudgetError(f"the ledger's cap is {self.cap}, so a subject's must be {type(self.cap).__name__}")
            numbers = cap_numbers(cap)[1:]
        self._make_room(1)
        slot = self._slot(subject)
        self._memory.rows[slot, -2:], self._memory.touched[slot] = numbers, True
        self._n_waiting += 1

    def cap_of(self, subject: Subject) -> Budget:
        """The cap that holds for the subject."""
        slot = self._slot(subject)
        cap, cap_delta = self._memory.rows[slot, -2:].tolist()
        return cap_of_numbers(cap, cap_delta) if cap else self.cap

    def admit(self, subject: Subject | None, budget: Budget) -> bool:
        """Whether the subject may spend this budget; if so it is spent. See `admit_many`."""
        return bool(self.admit_many([subject], budget)[0])

    def admit_many(
        self, subjects: Sequence[Subject | None], budget: Budget, amounts: np.ndarray | None = None
    ) -> np.ndarray:
        """Admit records in order: (n,) booleans. A refused one spends nothing; a later smaller one may fit.

        `amounts` (n,) are the records' own epsilon or mu, of `budget`'s kind (and delta); where it is NaN,
        and where there are none, `budget` itself is spent. Raises `BudgetError` for a kind that the cap
        cannot count and for amounts that are not positive and finite, `SchemaError` for a subject that is
        neither str nor bytes, and `StoreError`; in each case nothing was spent.
        """
        from streamdp.ledger import admission

        self._same_process()
        numbers = spend_numbers(budget, amounts, len(subjects))
        check_counts(self.cap, budget)
        kind, cap, cap_delta = cap_numbers(self.cap)
        self._make_room(len(subjects))
        slots, memory = self._page_in(subjects), self._memory
        admitted = admission.admit_in_order(slots, numbers, memory.rows, memory.touched, kind, cap, cap_delta)
        self._n_waiting += len(slots)
        self.n_refused += int(len(admitted) - np.count_nonzero(admitted))
        return admitted

    def prepare(self, subjects: Sequence[Subject | None]) -> None:
        """Read what these have spent, so that to admit them next, at once or in parts, asks nothing of the database and
        cannot fail for it.

        Raises as `admit_many`.
        """
        self._same_process()
        self._n_prepared = -1
        self._make_room(0)
        self._page_in(subjects)
        self._n_prepared = len(subjects)

    def _make_room(self, coming: int) -> None:
        """Commit, where the ledger does that by itself, so that memory stays bounded; not before what was prepared."""
        if coming <= self._n_prepared:
            self._n_prepared -= coming
            return
        self._n_prepared = -1
        if self._owned and (self._memory.n > KEPT_SUBJECTS or self._n_waiting > PENDING_RECORDS):
            self.commit()

    def _page_in(self, subjects: Sequence[Subject | None]) -> np.ndarray:
        """Give every subject a row in memory, the database's or zeros; the numbers of the rows."""
        memory = self._memory
        slots = memory.find(*hash_subjects(subjects, self._key))
        if len(memory.unread):
            try:
                with self._errors():
                    rows, found = self._spends.read(self._settled_connection(), memory.unread)
                check_kinds(self.cap, rows)
                memory.fill(rows, found)
            except BaseException:
                memory.drop_unread()
                raise
        return slots

    @property
    def n_subjects(self) -> int:
        """How many subjects have spent something or have a cap of their own; they are counted in the database."""
        memory = self._memory
        with self._errors():
            known = self._spends.count(self._settled_connection())
        return known + int(np.count_nonzero(memory.fresh & (memory.touched | memory.logged)))

    @property
    def n_pending(self) -> int:
        """How many subjects' spends or caps wait for the next commit."""
        return int(np.count_nonzero(self._memory.touched))

    def spent(self, subject: Subject) -> Spend:
        """What the subject has spent, admissions not yet committed included."""
        slot = self._slot(subject)
        row = self._memory.rows[slot].tolist()
        return Spend(row[0], row[1], row[2], row[3], int(row[4]))

    def _slot(self, subject: Subject) -> int:
        if subject is None:
            raise SchemaError("nobody has spends or a cap; a subject must be str or bytes")
        return int(self._page_in([subject])[0])

    def commit(self) -> None:
        """Write all spends to the database in one transaction; on disk when this returns.

        Raises `StoreError` where that fails (the spends stay pending), or where a store does it
        (`Store.commit`).
        """
        if not self._owned:
            raise StoreError("this ledger is part of a store; Store.commit writes its spends with the state")
        connection = self._open_connection()
        with self._errors(), connection.begin():
            self.write_pending(connection)
        self.mark_committed()

    def write_pending(self, connection: Connection) -> None:
        """Write what changed since the last commit, inside the caller's transaction.

        Raises `LedgerConflictError` where a row is no more what it was when it was read: another worker of the same
        job spent from it, and both together may go over the cap.
        """
        memory = self._memory
        changed = np.flatnonzero(memory.touched[: memory.n])
        room = self._logged_rows + len(changed) <= max(LOGGED_ROWS, 2 * memory.n)
        self._to_log = self._log is not None and room and memory.n <= KEPT_SUBJECTS
        if memory.n == 0:
            return
        if self._log is not None:
            if self._to_log:
                self._log.append(connection, memory.keys[changed], memory.rows[changed])
                return
            self._log.clear(connection)  # memory has it all, since somebody was paged in
            changed = np.flatnonzero((memory.touched | memory.logged)[: memory.n])
        self._spends.write(connection, changed, memory.keys, memory.rows, memory.checks, memory.fresh)

    def mark_committed(self) -> None:
        """The caller's transaction is on disk: nothing is pending any more."""
        from streamdp.ledger import admission

        memory = self._memory
        self._committed_refused, self._n_waiting = self.n_refused, 0
        if self._to_log:
            self._logged_rows += int(np.count_nonzero(memory.touched))
            memory.logged |= memory.touched
            memory.touched[:] = False
            return
        self._logged_rows = 0
        if memory.n > KEPT_SUBJECTS:
            self._forget()
            return
        changed = np.flatnonzero((memory.touched | memory.logged)[: memory.n])
        admission.check_in_place(changed, memory.keys, memory.rows.view(np.uint64), memory.checks)
        memory.fresh[changed] = memory.touched[changed] = memory.logged[changed] = False

    def rollback(self) -> None:
        """Forget what came since the last commit. Only if nothing learned from it was shown."""
        self._forget()
        self.n_refused, self._n_waiting = self._committed_refused, 0
        self._settled = False

    def close(self) -> None:
        """Commit and close. After an error too: to count a spend that taught nothing harms nobody."""
        if not self._owned or self._connection is None:
            return
        try:
            self.commit()
        finally:
            sqlite.close(self._connection)
            self._connection = None
            if self._lock is not None:
                self._lock.release()

    def _open_connection(self) -> Connection:
        if self._connection is None or self._connection.closed:
            raise StoreError("this ledger is closed")
        self._same_process()
        return self._connection

    def _same_process(self) -> None:
        """A fork must not grant the cap once more."""
        if os.getpid() != self._process:
            raise StoreError("this ledger belongs to the process that opened it, and this is a fork of it")

    def __enter__(self) -> Ledger:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __copy__(self) -> Ledger:
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> Ledger:
        return self

    def __reduce__(self) -> NoReturn:
        raise NotAvailableError(
            "a ledger cannot be pickled: two copies would each grant the cap; pickle with ledger=None"
        )

    def __repr__(self) -> str:
        return f"Ledger({str(self.cap)!r})"


def _temporary() -> Connection:
    connection = sqlite.connect("")
    with connection.begin():
        LEDGER_FILE.create_tables(connection)
    return connection


def _key_of_file(path: str, key: bytes | None) -> bytes:
    """The key of the ledger's file, which is made, or checked without writing to it."""
    found = given_key(path + ".key", key)
    if sqlite.is_new(path):
        made = found or make_key(path + ".key")
        fingerprint = key_fingerprint(made)
        sqlite.create(
            path,
            LEDGER_FILE,
            lambda connection: connection.execute(_key.insert(), {"fingerprint": fingerprint}),
        )
        return made
    with sqlite.reading(path, LEDGER_FILE) as connection:
        sqlite.quick_check(connection, path)
        return matching_key(path, path + ".key", found, connection.execute(select(_key.c.fingerprint)).scalar())
