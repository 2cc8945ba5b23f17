"""What all code that reads and writes spends by SQL shares: plain statements, short transactions, and two errors."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any

from sqlalchemy import Connection

from streamdp.errors import LedgerConflictError, StoreDamagedError


def fetch(connection: Connection, statement: str, parameters: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """All rows of a plain statement, without SQLAlchemy's wrapping of each."""
    cursor = connection.exec_driver_sql(statement, parameters).cursor
    return list(cursor.fetchall())


def conflict() -> LedgerConflictError:
    return LedgerConflictError(
        "another worker spent from the same subjects meanwhile: a subject's records should share a partition, so"
        " produce them with the subject as their key"
    )


def damaged() -> StoreDamagedError:
    return StoreDamagedError("spends of the ledger are damaged; restore a copy of the database")


def transaction(connection: Connection) -> AbstractContextManager[Any]:
    """A short transaction for a read, unless the caller's is open."""
    return nullcontext() if connection.in_transaction() else connection.begin()
