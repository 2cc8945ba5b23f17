"""SQLite's driver: opening a file, its transactions and pragmas, and its errors as `StoreError`s."""

import os
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any
from urllib.parse import quote

from streamdp.database.interface import Connection, Parameters
from streamdp.errors import StoreDamagedError, StoreError, StoreUnavailableError, raise_alone

BUSY_TIMEOUT_S = 10.0
"""How long a statement or a shared lock waits for another process."""

CACHE_KIB = 131072
"""SQLite's page cache of a connection, in KiB."""

_LOCKED = {5, 6}
# SQLite's primary result codes for faults outside the file's content: permissions, memory, disk.
_ENVIRONMENT = {3, 7, 8, 10, 13, 14, 22, 23}
_PERMISSIONS = {3, 8, 14}


def open_file(
    path: str, mode: str = "rw", factory: type[sqlite3.Connection] = sqlite3.Connection
) -> sqlite3.Connection:
    """Open a connection in which transactions begin by statements only.

    The path is an existing file, or "" for a temporary database that is deleted when the connection is closed. The mode
    is "rw", "ro" for a connection that cannot write, or "ro&immutable=1" if nobody writes to the file. `factory` is the
    class of the connection.
    """
    driver = sqlite3.connect(
        f"file:{quote(os.path.abspath(path))}?mode={mode}" if path else "",
        uri=bool(path),
        timeout=BUSY_TIMEOUT_S,
        isolation_level=None,
        check_same_thread=False,
        factory=factory,
    )
    pragma(driver, f"cache_size = -{CACHE_KIB}")
    return driver


class SQLiteConnection(Connection):
    """A connection over one of `open_file`, the `driver`. Its transactions begin by the statement `begins`."""

    server = False

    def __init__(self, driver: sqlite3.Connection, begins: str) -> None:
        self.driver, self._begins = driver, begins

    def fetch(self, statement: str, parameters: Parameters = ()) -> list[tuple[object, ...]]:
        return self.driver.execute(statement, parameters).fetchall()

    def change(self, statement: str, parameters: Parameters = ()) -> int:
        return self.driver.execute(statement, parameters).rowcount

    def change_each(self, statement: str, rows: Sequence[Parameters]) -> int:
        return self.driver.executemany(statement, rows).rowcount

    def in_transaction(self) -> bool:
        return self.driver.in_transaction

    @contextmanager
    def begin(self) -> Iterator[None]:
        try:
            self.driver.execute(self._begins)
            yield
            self.driver.commit()
        except BaseException:
            self.driver.rollback()
            raise

    def close(self) -> None:
        self.closed = True
        self.driver.close()


def connect(path: str, factory: type[sqlite3.Connection] = sqlite3.Connection) -> SQLiteConnection:
    """Open a plain connection, which may write. Its transactions begin by waiting for those of other writers.

    `path` and `factory` are those of `open_file`.
    """
    # BEGIN IMMEDIATE, because SQLite refuses a write after a read that another process has made out of date.
    return SQLiteConnection(open_file(path, factory=factory), "BEGIN IMMEDIATE")


def pragma(driver: sqlite3.Connection, text: str) -> Any:
    """Run a PRAGMA by the driver, and return the first value of its answer, or None; text: `"user_version"`."""
    row = driver.execute(f"PRAGMA {text}").fetchone()
    return row[0] if row else None


@contextmanager
def store_errors(name: str) -> Iterator[None]:
    """Turn database errors into `StoreError` and its kinds, with the name of the database.

    Raises `StoreUnavailableError` if another process holds the lock for too long, `StoreError` for permissions, memory
    or disk, and `StoreDamagedError` for everything else.
    """
    try:
        yield
    except Exception as error:
        if isinstance(error, UnicodeDecodeError):  # of a message of SQLite that quotes a damaged schema
            raise_alone(StoreDamagedError(f"{name} is damaged: its schema is no text; restore the newest copy"))
        if not isinstance(error, sqlite3.Error):
            raise
        code = getattr(error, "sqlite_errorcode", None)
        if code is not None and code & 0xFF in _LOCKED:
            raise StoreUnavailableError(f"another process has held {name} for more than {BUSY_TIMEOUT_S:g} s") from None
        if code is not None and code & 0xFF in _ENVIRONMENT:
            hint = "; this user must be allowed to read it, and for a run to write it and its folder"
            more = hint if code & 0xFF in _PERMISSIONS else ""
            raise StoreError(f"cannot use {name}: {error}{more}; committed data are unchanged") from None
        if code == sqlite3.SQLITE_NOTADB:
            raise StoreDamagedError(
                f"{name} is not an SQLite database: expected a store, such as late.db, or its job"
            ) from None
        raise StoreDamagedError(f"{name} is damaged: {error}; restore the newest copy") from None
