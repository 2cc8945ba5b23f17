"""One connection to an SQLite file: its transactions, its pragmas, and SQLite's errors as `StoreError`s."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from urllib.parse import quote

from sqlalchemy import Connection, create_engine, event
from sqlalchemy.exc import DBAPIError
from sqlalchemy.pool import NullPool

from streamdp.errors import StoreDamagedError, StoreError, StoreUnavailableError

BUSY_TIMEOUT_S = 10.0
"""How long a statement or a shared lock waits for another process."""

CACHE_KIB = 131072
"""SQLite's page cache of a connection, in KiB."""

_LOCKED = {5, 6}
# SQLite's primary result codes for faults outside the file's content: permissions, memory, disk.
_ENVIRONMENT = {3, 7, 8, 10, 13, 14, 22, 23}


def connect(path: str, mode: str = "rw", factory: type[sqlite3.Connection] = sqlite3.Connection) -> Connection:
    """Open a plain connection. Transactions begin when SQLAlchemy begins one, also for DDL.

    Parameters
    ----------
    path
        An existing file, or "" for a temporary database that is deleted when the connection is closed.
    mode
        "rw", "ro" for a connection that cannot write, or "ro&immutable=1" if nobody writes to the file.
    factory
        The class of the driver's connection.
    """
    target = f"file:{quote(os.path.abspath(path))}?mode={mode}" if path else ""

    def creator() -> sqlite3.Connection:
        return sqlite3.connect(
            target,
            uri=bool(path),
            timeout=BUSY_TIMEOUT_S,
            isolation_level=None,
            check_same_thread=False,
            factory=factory,
        )

    engine = create_engine("sqlite://", creator=creator, poolclass=NullPool)
    event.listen(engine, "begin", lambda connection: connection.exec_driver_sql("BEGIN"))
    connection = engine.connect()
    pragma(connection, f"cache_size = -{CACHE_KIB}")
    return connection


def close(connection: Connection) -> None:
    """Close a connection and its engine.

    Parameters
    ----------
    connection
        A connection that `connect` returned.
    """
    connection.close()
    connection.engine.dispose()


def pragma(connection: Connection, text: str) -> Any:
    """Run a PRAGMA on the driver's connection and return the first value of its answer, or None.

    Most pragmas must run outside a transaction, and SQLAlchemy would begin one.

    Parameters
    ----------
    connection
        A connection that `connect` returned.
    text
        The pragma without the word PRAGMA, such as `"user_version"`.
    """
    driver: Any = connection.connection.driver_connection
    try:
        row = driver.execute(f"PRAGMA {text}").fetchone()
    except sqlite3.Error as error:
        raise DBAPIError(f"PRAGMA {text}", None, error) from error
    return row[0] if row else None


@contextmanager
def store_errors(name: str) -> Iterator[None]:
    """Turn database errors into `StoreError` and its kinds.

    Parameters
    ----------
    name
        The database, for messages.

    Raises `StoreUnavailableError` if another process holds the lock for too long, `StoreError` for permissions, memory
    or disk, and `StoreDamagedError` for everything else.
    """
    try:
        yield
    except DBAPIError as error:
        code = getattr(error.orig, "sqlite_errorcode", None)
        if code is not None and code & 0xFF in _LOCKED:
            raise StoreUnavailableError(
                f"another process has held {name} for more than {BUSY_TIMEOUT_S:g} s"
            ) from error
        if code is not None and code & 0xFF in _ENVIRONMENT:
            raise StoreError(f"cannot use {name}: {error.orig}; committed data are unchanged") from error
        if code == sqlite3.SQLITE_NOTADB:
            raise StoreDamagedError(f"{name} is not an SQLite database") from error
        raise StoreDamagedError(f"{name} is damaged: {error.orig}") from error
