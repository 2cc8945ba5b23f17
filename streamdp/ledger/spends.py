"""Stored spends: the interface that the ledger uses. `sqlite_pages` and `postgres_rows` implement it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar, Protocol

import numpy as np

from streamdp.database.interface import Connection


class Spends(Protocol):
    """The rows of all subjects in a database (see `rows`), by the keyed hashes of the subjects."""

    excludes: ClassVar[bool]
    """Whether one transaction that writes rows excludes all others. Otherwise a row is written only if it is still the
    one that the writer knows, and two writers wait for each other only where they write the same rows."""

    def count(self, connection: Connection) -> int:
        """Return the number of subjects."""

    def every(self, connection: Connection) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """Yield the keys and rows of all subjects in groups: (n, 2) uint64 and (n, ROW).

        Raises `StoreDamagedError` if a row fails its check.
        """

    def read(self, connection: Connection, keys: np.ndarray, *, hold: bool = False) -> tuple[np.ndarray, np.ndarray]:
        """Return the rows (n, ROW) of some subjects, and whether each is in the database (n,) bool.

        `keys` (n, 2) uint64 are the little-endian words of the hashes. To `hold` the rows keeps other writers from them
        until the end of the caller's transaction. Raises `StoreDamagedError` if a row fails its check.
        """

    def enter(self, connection: Connection) -> int:
        """Begin to write rows, inside the caller's transaction; return the version that the ledger had before."""

    def write(
        self, connection: Connection, keys: np.ndarray, rows: np.ndarray, before: np.ndarray, there: np.ndarray
    ) -> bool:
        """Write rows (m, ROW) of the subjects `keys` (m, 2), inside the caller's transaction, after `enter`.

        `before` (m, ROW) are those that the database has, as far as is known, and `there` (m,) says of which subjects
        it has any. If another writer has changed one of them, nothing is written and False is returned. A row has
        changed if its number of records or its own cap has: each charge adds a record.
        """

    def version(self, connection: Connection) -> int:
        """Return the version of the ledger. It grows with each transaction that excludes others and changes rows."""

    def delete_before(self, connection: Connection, period: int) -> None:
        """Delete the rows of periods before `period` (see `subject_key.period_of`), inside the caller's transaction."""

    @property
    def log(self) -> Log | None:
        """The write-ahead log of the spends. None if the database needs none."""

    def checkpoint(self, connection: Connection) -> None:
        """Write the log's rows to the table and clear the log, in one transaction: the caller's if one is open.

        If there were any, this changes the version of the ledger (see `ledger_rows.lock`).
        """


class Log(Protocol):
    """Committed rows that are not in the table yet, of one process, which has them all in memory."""

    def append(self, connection: Connection, keys: np.ndarray, rows: np.ndarray) -> None:
        """Add keys (n, 2) uint64 and rows (n, ROW), inside the caller's transaction. A subject's newest row counts."""

    def clear(self, connection: Connection) -> None:
        """Remove all rows, inside the caller's transaction, which also writes them to the table."""
