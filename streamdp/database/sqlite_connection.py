"""One connection of SQLAlchemy to an SQLite file, and its transactions."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from typing import Any

from sqlalchemy import Connection, create_engine, event

from streamdp.database.pool import NoPool
from streamdp.database.sqlite_driver import open_file


def connect(path: str, factory: type[sqlite3.Connection] = sqlite3.Connection) -> Connection:
    """Open a plain connection, which may write. Its transactions begin by waiting for those of other writers.

    `path` and `factory` are those of `open_file`.
    """
    # BEGIN IMMEDIATE, because SQLite refuses a write after a read that another process has made out of date.
    return _connected(lambda: open_file(path, factory=factory), "BEGIN IMMEDIATE")  # again, after an interrupt


def over(driver: sqlite3.Connection) -> Connection:
    """Return a connection for reading over one of `open_file`, the driver, which is closed with it."""
    return _connected(lambda: driver, "BEGIN")


def _connected(creator: Callable[[], sqlite3.Connection], begin: str) -> Connection:
    """Transactions begin when SQLAlchemy begins one, also for DDL."""
    engine = create_engine("sqlite://", creator=creator, poolclass=NoPool)
    event.listen(engine, "begin", lambda connection: connection.exec_driver_sql(begin))
    return engine.connect()


def driver_of(connection: Connection) -> Any:
    """Return the driver's connection: most pragmas must run outside a transaction, and SQLAlchemy would begin one."""
    return connection.connection.driver_connection


def close(connection: Connection) -> None:
    """Close a connection from `connect` or `over`, and its engine."""
    connection.close()
    connection.engine.dispose()
