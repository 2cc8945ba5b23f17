"""What the ledger needs of stored spends: a protocol, the implementation for a database, and the migration to it."""

from __future__ import annotations

from typing import Protocol

import numpy as np
from sqlalchemy import Connection, MetaData

from streamdp.ledger.tables import add_tables


class Spends(Protocol):
    """Rows of subjects, as `admission` has them, under keyed hashes (n, 2) as little-endian uint64."""

    def count(self, connection: Connection) -> int:
        """The number of subjects."""

    def read(self, connection: Connection, keys: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The rows (n, ROW) of these subjects, and which of them there are (n,).

        Raises `StoreDamagedError` where what was read fails its check.
        """

    def write(
        self,
        connection: Connection,
        which: np.ndarray,
        keys: np.ndarray,
        rows: np.ndarray,
        checks: np.ndarray,
        fresh: np.ndarray,
    ) -> None:
        """Write those of the rows that are at the places `which`, inside the caller's transaction.

        Raises `LedgerConflictError` where one that is `fresh` is there already, or another has no longer the check word
        (`admission.check_word`) of when it was read.
        """

    @property
    def log(self) -> Log | None:
        """The log in front of them, for who is alone with the database; None where there is none."""

    def settle(self, connection: Connection) -> None:
        """Write the log's rows to the table, and clear it, in a transaction of its own unless the caller's is open."""


class Log(Protocol):
    """Rows that were committed, and that the table has not got yet."""

    def append(self, connection: Connection, keys: np.ndarray, rows: np.ndarray) -> None:
        """Add rows, inside the caller's transaction; the newest of a subject counts."""

    def clear(self, connection: Connection) -> None:
        """The table has all that it says, or will with the caller's transaction."""


def add_caps(connection: Connection) -> None:
    """The migration from rows of 48 bytes, without caps, which are good still; an SQLite file gets pages."""
    if connection.dialect.name == "sqlite":
        from streamdp.ledger import sqlite_pages

        metadata = MetaData()
        add_tables(metadata)
        for name in ("spend_pages", "spend_log"):
            metadata.tables[name].create(connection)
        sqlite_pages.take_rows(connection)


def spends_in(connection: Connection) -> Spends:
    """What keeps spends in this database."""
    if connection.dialect.name == "postgresql":
        from streamdp.ledger.postgres_rows import SpendRows

        return SpendRows()
    from streamdp.ledger.sqlite_pages import SpendPages

    return SpendPages()
