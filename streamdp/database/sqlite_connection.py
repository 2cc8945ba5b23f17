"""One connection of SQLAlchemy to an SQLite file, and its transactions."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from functools import cache
from typing import Any

from sqlalchemy import Connection, Dialect, Engine, create_engine, event, make_url
from sqlalchemy.util import LRUCache

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


def _connected(creator: Callable[[], Any], begin: str) -> Connection:
    """Transactions begin when SQLAlchemy begins one, also for DDL."""
    dialect, compiled = _dialect()
    options = {"compiled_cache": compiled}
    engine = Engine(NoPool(creator, dialect=dialect), dialect, make_url("sqlite://"), execution_options=options)
    event.listen(engine, "begin", lambda connection: connection.exec_driver_sql(begin))
    return engine.connect()


@cache
def _dialect() -> tuple[Dialect, LRUCache[Any, Any]]:
    """SQLite's dialect and the statements that it has compiled, which is half of the time to open a file."""
    engine = create_engine("sqlite://", poolclass=NoPool)
    engine.connect().close()  # the dialect asks for the version of SQLite
    return engine.dialect, LRUCache(500)


def driver_of(connection: Connection) -> Any:
    """Return the driver's connection: most pragmas must run outside a transaction, and SQLAlchemy would begin one."""
    return connection.connection.driver_connection


def close(connection: Connection) -> None:
    """Close a connection from `connect` or `over`, and its engine."""
    connection.close()
    connection.engine.dispose()
