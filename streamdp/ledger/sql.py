"""SQL helpers for spends: plain statements, short transactions, and two errors."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any

from sqlalchemy import Connection

from streamdp.errors import LedgerConflictError, StoreDamagedError


def fetch(connection: Connection, statement: str, parameters: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Return all rows of a statement as the driver's tuples, without the cost of SQLAlchemy's row objects.

    Parameters
    ----------
    statement, parameters
        SQL with the placeholders of the driver, and their values.
    """
    cursor = connection.exec_driver_sql(statement, parameters).cursor
    return list(cursor.fetchall())


def conflict() -> LedgerConflictError:
    """Return the error for spends that another worker has changed since they were read."""
    return LedgerConflictError(
        "another worker spent from the same subjects at the same time: all records of a subject should be in one"
        " partition, so produce them with the subject as their key"
    )


def damaged() -> StoreDamagedError:
    """Return the error for spends that fail their check."""
    return StoreDamagedError("spends of the ledger are damaged; restore a copy of the database")


def transaction(connection: Connection) -> AbstractContextManager[Any]:
    """Return a transaction for some statements; if the caller has one open, they run in that one."""
    return nullcontext() if connection.in_transaction() else connection.begin()
