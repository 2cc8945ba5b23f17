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
from scipy.special import expit, ndtri
from sqlalchemy import Column, Connection, LargeBinary, MetaData, Table, select

from streamdp import sqlite_file
from streamdp.accounting.spend_table import SpendTable
from streamdp.accounting.subject_key import (
    check_key,
    given_key,
    hash_subject,
    key_fingerprint,
    make_key,
    matching_key,
)
from streamdp.database import Format
from streamdp.errors import BudgetError, NotAvailable, StoreError
from streamdp.guarantees import (
    ApproxDP,
    Budget,
    GaussianDP,
    PureDP,
    Spend,
    amount,
    parse_budget,
)
from streamdp.records import Subject

PENDING_SUBJECTS = 50_000
"""A ledger of its own commits by itself when this many subjects wait in memory (about 10 MB)."""

KEPT_SUBJECTS = 200_000
"""So many stay in memory after a commit (about 40 MB), so that the next batch need not read them again. A row that
another worker has changed meanwhile is found out when it is written.
"""

_metadata = MetaData()
_spends = SpendTable(_metadata)
_key = Table("subject_key", _metadata, Column("fingerprint", LargeBinary(16), primary_key=True))
_errors = partial(sqlite_file.store_errors, "the ledger")
LEDGER_FILE = Format("ledger", 0x7344506C, 1, _metadata)


class Ledger:
    """Spends of every subject under one cap. Subjects are stored as keyed hashes only (see `subject_key`).

    `cap` is a budget or its text (`"eps=3"`); with the sums of a `Spend` over a subject's admitted records,

    * `PureDP(E)`: epsilon <= E. Only PureDP spends.
    * `GaussianDP(M)`: mu_squared + pure_mu_squared <= M^2. PureDP spends enter as the GDP they imply
      (`GaussianDP.from_pure`); no GDP follows from (epsilon, delta), so ApproxDP spends raise.
    * `ApproxDP(E, D)`: gdp_delta(sqrt(mu_squared), E - epsilon) <= D - delta, and without GDP spends epsilon
      <= E and delta <= D. Composition is commutative in trade-off functions (Dong, Roth, Su 2022, section 3),
      so the PureDP and ApproxDP spends may be gathered into one (epsilon, delta) by basic composition and the
      others into one mu; the latter is (E - epsilon, delta')-DP with delta' as on the left; adding both gives
      (E, D).

    Each comparison has a relative slack of 1e-9, for sums of floats. What a record may spend must not depend
    on what was released before (it is the record's or the job's own number). A record without a subject
    (None) is always admitted, as there is nobody to charge: what is promised is then promised per record and
    not per person.

    Without `path` the spends page to a temporary database that vanishes with the ledger. With a path they are
    a database of their own, for one process at a time: call `commit` before you show anything that was
    learned, as a crash forgets what was not committed; the ledger does it by itself every 50,000 subjects and
    on `close`. The cap is not stored. `key`: 32 to 64 secret bytes; else `STREAMDP_SUBJECT_KEY`,
    `<path>.key`, or drawn anew.

    One ledger is one truth: `copy` and `deepcopy` (River's `clone`) give the same ledger, so that clones
    share the cap; pickling raises `NotAvailable`, and a fork of the process may not use it. Not for several threads.

    Raises `BudgetError` for a malformed cap, `ConfigError` for a bad key, and the `StoreError`s of `Store`.

    >>> ledger = Ledger("eps=3")
    >>> [ledger.admit("ann", PureDP(2)), ledger.admit("ann", PureDP(2)), ledger.admit("ann", PureDP(1))]
    [True, False, True]
    >>> ledger.spent("ann").guarantee()
    PureDP(epsilon=3.0)
    """

    def __init__(
        self, cap: Budget | str, *, path: str | os.PathLike[str] | None = None, key: bytes | None = None
    ) -> None:
        self._lock: sqlite_file.FileLock | None = None
        self.cap = parse_budget(cap)
        if path is None:
            self._start(secrets.token_bytes(32) if key is None else check_key(key), _temporary(), _errors)
            return
        path = os.path.realpath(path)
        self._lock = sqlite_file.FileLock(path)
        try:
            found = _key_of_file(path, key)
            connection = sqlite_file.open_for_writing(path, LEDGER_FILE)
            try:
                self._start(found, connection, _errors)
            except BaseException:
                sqlite_file.close(connection)
                raise
        except BaseException:
            self._lock.release()
            raise

    @classmethod
    def within(
        cls, connection: Connection, cap: Budget, key: bytes, errors: Callable[[], AbstractContextManager[None]]
    ) -> Ledger:
        """A ledger over the `spends` table of a store's database; the store commits it with the rest.

        Several workers may have one over the same table. `errors` turns the database's errors into `StoreError`s.
        """
        ledger = cls.__new__(cls)
        ledger._lock = None
        ledger.cap = cap
        ledger._start(key, connection, errors)
        ledger._owned = False
        return ledger

    def _start(
        self,
        key: bytes,
        connection: Connection,
        errors: Callable[[], AbstractContextManager[None]],
    ) -> None:
        self._key = key
        self._process = os.getpid()
        self._connection: Connection | None = connection
        self._errors = errors
        self._owned = True
        with self._errors():
            self._committed = (_spends.count(connection), 0)
        self._forget()

    def _forget(self) -> None:
        """Drop what is in memory; the next admission reads from the database."""
        from streamdp.accounting import admission

        self.n_refused = self._committed[1]
        # Where a subject's row is; nobody's is -1, which the compiled loop lets through.
        self._slots: dict[bytes | None, int] = {None: -1}
        self._rows = np.zeros((1024, admission.ROW))
        self._before = np.zeros((1024, admission.ROW))  # the same as the database has them
        self._touched = np.zeros(1024, dtype=np.bool_)  # rows that differ from the database's
        self._fresh = np.zeros(1024, dtype=np.bool_)  # rows that the database has not

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
        from streamdp.accounting import admission

        self._same_process()
        terms = _terms(budget, amounts, len(subjects))
        kind, cap, cap_delta = _cap_numbers(self.cap, budget)
        key = self._key
        hashes = [None if subject is None else hash_subject(subject, key) for subject in subjects]
        if self._owned and len(self._slots) > PENDING_SUBJECTS:
            self.commit()
            self._forget()
        self._page_in(hashes)
        slots = np.fromiter(map(self._slots.__getitem__, hashes), dtype=np.int64, count=len(hashes))
        admitted = admission.admit_in_order(slots, terms, self._rows, self._touched, kind, cap, cap_delta)
        self.n_refused += int(len(admitted) - np.count_nonzero(admitted))
        return admitted

    def prepare(self, subjects: Sequence[Subject | None]) -> None:
        """Read what these have spent, so that to admit them next asks nothing of the database and cannot fail for it.

        Raises as `admit_many`.
        """
        self._same_process()
        self._page_in([None if subject is None else hash_subject(subject, self._key) for subject in subjects])

    def _page_in(self, hashes: Sequence[bytes | None]) -> None:
        """Give every subject a row in memory: the database's, or zeros."""
        from streamdp.accounting import admission

        unknown = {subject for subject in hashes if subject is not None and subject not in self._slots}
        if not unknown:
            return
        with self._errors():
            found, rows = _spends.read(self._open_connection(), list(unknown))
        start = len(self._slots) - 1
        middle, stop = start + len(found), start + len(unknown)
        if stop > len(self._rows):
            size = max(stop, 2 * len(self._rows))
            more = np.zeros((size - len(self._rows), admission.ROW))
            self._rows, self._before = np.vstack([self._rows, more]), np.vstack([self._before, more])
            self._touched = np.append(self._touched, np.zeros(size - len(self._touched), dtype=np.bool_))
            self._fresh = np.append(self._fresh, np.zeros(size - len(self._fresh), dtype=np.bool_))
        self._rows[start:middle] = self._before[start:middle] = rows
        self._fresh[middle:stop] = True
        self._slots.update(zip(found, range(start, middle), strict=True))
        self._slots.update(zip(unknown.difference(found), range(middle, stop), strict=True))

    @property
    def n_subjects(self) -> int:
        """How many subjects have spent something."""
        return self._committed[0] + int(np.count_nonzero(self._fresh & self._touched))

    def spent(self, subject: Subject) -> Spend:
        """What the subject has spent, admissions not yet committed included."""
        subject_hash = hash_subject(subject, self._key)
        self._page_in([subject_hash])
        row = self._rows[self._slots[subject_hash]].tolist()
        return Spend(row[0], row[1], row[2], row[3], int(row[4]))

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
        changed = np.flatnonzero(self._touched[: len(self._slots) - 1])
        hashes = [subject for subject in self._slots if subject is not None]  # in the order of their rows
        fresh = self._fresh[changed]
        new, old = changed[fresh], changed[~fresh]
        _spends.insert(connection, [hashes[i] for i in new], self._rows[new])
        _spends.update(connection, [hashes[i] for i in old], self._before[old], self._rows[old])

    def mark_committed(self) -> None:
        """The caller's transaction is on disk: nothing is pending any more."""
        self._committed = (self.n_subjects, self.n_refused)
        if len(self._slots) > KEPT_SUBJECTS:
            self._forget()
            return
        changed = np.flatnonzero(self._touched[: len(self._slots) - 1])
        self._before[changed] = self._rows[changed]
        self._fresh[changed] = self._touched[changed] = False

    def rollback(self) -> None:
        """Forget what came since the last commit. Only if nothing learned from it was shown."""
        self._forget()

    def close(self) -> None:
        """Commit and close. After an error too: to count a spend that taught nothing harms nobody."""
        if not self._owned or self._connection is None:
            return
        try:
            self.commit()
        finally:
            sqlite_file.close(self._connection)
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
        raise NotAvailable("a ledger cannot be pickled: two copies would each grant the cap; pickle with ledger=None")

    def __repr__(self) -> str:
        return f"Ledger({str(self.cap)!r})"


def _temporary() -> Connection:
    connection = sqlite_file.connect("")
    _spends.table.create(connection)
    connection.commit()
    return connection


def _key_of_file(path: str, key: bytes | None) -> bytes:
    """The key of the ledger's file, which is made, or checked without writing to it."""
    found = given_key(path + ".key", key)
    if sqlite_file.is_new(path):
        made = found or make_key(path + ".key")
        fingerprint = key_fingerprint(made)
        sqlite_file.create(
            path,
            LEDGER_FILE,
            lambda connection: connection.execute(_key.insert(), {"fingerprint": fingerprint}),
        )
        return made
    with sqlite_file.reading(path, LEDGER_FILE) as connection:
        sqlite_file.quick_check(connection, path)
        return matching_key(path, path + ".key", found, connection.execute(select(_key.c.fingerprint)).scalar())


def _terms(budget: Budget, amounts: np.ndarray | None, n: int) -> np.ndarray:
    """`guarantees.spend_terms` for n records: (n, 4), or (1, 4) where all spend the same."""
    values = np.array([amount(budget)] if amounts is None else amounts, dtype=np.float64)
    if amounts is not None and values.shape != (n,):
        raise BudgetError(f"expected {n} amounts for {n} subjects, got an array of shape {values.shape}")
    values[np.isnan(values)] = amount(budget)
    if not np.all((values > 0) & (values < np.inf)):
        raise BudgetError("amounts must be positive and finite")
    terms = np.zeros((len(values), 4))
    with np.errstate(over="ignore"):  # a square may well be infinite: it fits no cap
        match budget:
            case PureDP():
                # mu = -2 Phi^-1(1 / (1 + e^eps)) loses its digits near 0; its tangent there lies above it.
                mu = np.where(values < 1e-4, np.sqrt(np.pi / 2) * values, -2 * ndtri(expit(-values)))
                terms[:, 0], terms[:, 3] = values, mu**2
            case ApproxDP(_, delta):
                terms[:, 0], terms[:, 1], terms[:, 3] = values, delta, np.inf
            case GaussianDP():
                terms[:, 2] = values**2
    return terms


def _cap_numbers(cap: Budget, budget: Budget) -> tuple[int, float, float]:
    """The cap for the compiled loop; raises `BudgetError` where it cannot count this kind of budget."""
    from streamdp.accounting import admission

    match cap, budget:
        case PureDP(epsilon), PureDP():
            return admission.PURE, epsilon, 0.0
        case ApproxDP(epsilon, delta), _:
            return admission.APPROX, epsilon, delta
        case GaussianDP(mu), PureDP() | GaussianDP():
            return admission.GAUSSIAN, mu * mu, 0.0
    raise BudgetError(f"a cap of {cap} cannot count {type(budget).__name__}; one of ApproxDP (eps=E,delta=D) can")
