"""SQL helpers for spends: plain statements, short transactions, and an error."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any

from sqlalchemy import Connection

from streamdp.errors import StoreDamagedError


def fetch(connection: Connection, statement: str, parameters: tuple[object, ...] = ()) -> list[tuple[Any, ...]]:
    """Return all rows of a statement as the driver's tuples, without the cost of SQLAlchemy's row objects.

    `parameters` are the values of the driver's placeholders in it.
    """
    cursor = connection.exec_driver_sql(statement, parameters).cursor
    return list(cursor.fetchall())


def damaged() -> StoreDamagedError:
    """Return the error for spends that fail their check."""
    return StoreDamagedError("spends of the ledger are damaged; restore a copy of the database")


def transaction(connection: Connection) -> AbstractContextManager[Any]:
    """Return a transaction for some statements; if the caller has one open, they run in that one."""
    return nullcontext() if connection.in_transaction() else connection.begin()
