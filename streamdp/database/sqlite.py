"""One SQLite file of a known format: look before touching, create whole or not at all, migrate.

All that is particular to SQLite is here; `SQLiteFile` has the verbs of `database.Database`.
"""

from __future__ import annotations

import os
import sqlite3
import struct
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any
from urllib.parse import quote

from sqlalchemy import Connection, create_engine, event
from sqlalchemy.exc import DBAPIError
from sqlalchemy.pool import NullPool

from streamdp.database.durable import sync_directory
from streamdp.database.interface import Format
from streamdp.errors import (
    StoreBusyError,
    StoreDamagedError,
    StoreError,
    StoreUnavailableError,
    StoreVersionError,
)

BUSY_TIMEOUT_S = 10.0
CACHE_KIB = 131072
_LOCKED = {5, 6}
# SQLite's primary result codes that speak of the surroundings (rights, memory, disk) and not of the file's content.
_SURROUNDINGS = {3, 7, 8, 10, 13, 14, 22, 23}


class FileLock:
    """A lock on `<path>.lock`, held until `release`; the kernel releases it when the process dies.

    Exclusive, or `shared` by others that ask for it so. Raises `StoreBusyError` where it cannot be had, also within one
    process. The file stays behind on purpose: to remove it would let a third process lock a new file of the same name
    while the second holds the old one.
    """

    def __init__(self, path: str, shared: bool = False) -> None:
        import fcntl  # here, so that streamdp imports where there is no fcntl

        try:
            descriptor = os.open(path + ".lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise StoreError(f"cannot create {path}.lock: {error.strerror}") from None
        self._file = os.fdopen(descriptor, "rb")  # closes, and so unlocks, with an owner that is only dropped
        try:
            fcntl.flock(self._file, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
        except OSError:
            self.release()
            raise StoreBusyError(f"{path} is in use; stop the other one, or wait for it to end") from None

    def share(self) -> None:
        """Let others share it from now on."""
        import fcntl

        fcntl.flock(self._file, fcntl.LOCK_SH)

    def release(self) -> None:
        self._file.close()


def is_new(path: str) -> bool:
    """Whether there is nothing at `path` yet.

    Raises `StoreDamagedError` for an empty file, as ours are never that short, and for a write-ahead log without its
    database: SQLite would replay it into the new one.
    """
    if os.path.exists(path):
        if os.path.getsize(path) == 0:
            raise StoreDamagedError(f"{path} is empty: restore the newest copy, or remove it if it never was a store")
        return False
    if os.path.exists(path + "-wal") and os.path.getsize(path + "-wal") > 0:
        raise StoreDamagedError(f"{path} is missing but {path}-wal is there; restore the one or remove the other")
    return True


def create(path: str, form: Format, fill: Callable[[Connection], object]) -> None:
    """Make the file with its tables, and what `fill` writes, under another name; then give it its own.

    A crash leaves no file or a whole one. Only for the holder of the lock.
    """
    draft = path + ".new"
    with store_errors(path):
        try:
            for suffix in ("", "-journal", "-wal", "-shm"):
                if os.path.exists(draft + suffix):
                    os.unlink(draft + suffix)
            os.close(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))
            connection = connect(draft)
            try:
                with connection.begin():
                    form.create_tables(connection)
                    fill(connection)
                    connection.exec_driver_sql(f"PRAGMA application_id = {form.application_id}")
                    connection.exec_driver_sql(f"PRAGMA user_version = {form.version}")
                pragma(connection, "journal_mode = WAL")
            finally:
                close(connection)
            os.replace(draft, path)
            sync_directory(path)
        except OSError as error:
            raise StoreError(f"cannot create {path}: {error.strerror}") from None


def check_header(path: str, form: Format) -> None:
    """Read the file's first 100 bytes without SQLite, which may write on opening, and refuse what is not
    ours.

    Raises `StoreDamagedError` or `StoreVersionError`. Offsets: https://www.sqlite.org/fileformat2.html,
    section 1.3.
    """
    try:
        with open(path, "rb") as file:
            header = file.read(100)
    except OSError as error:
        raise StoreError(f"cannot read {path}: {error.strerror}") from None
    if len(header) < 100 or header[:16] != b"SQLite format 3\0":
        raise StoreDamagedError(f"{path} is not an SQLite database")
    (version,) = struct.unpack_from(">I", header, 60)
    (application_id,) = struct.unpack_from(">I", header, 68)
    if application_id != form.application_id:
        raise StoreDamagedError(f"{path} is an SQLite database but not a streamdp {form.name}")
    if header[18:20] != b"\2\2":  # a file that lost its WAL mark would be read without its newest commits
        raise StoreDamagedError(f"{path} is not in write-ahead mode any more")
    _check_version(path, form, version)


def _check_version(path: str, form: Format, version: int) -> None:
    if version > form.version:
        raise StoreVersionError(
            f"{path} has format {version}, this program knows up to {form.version}; use a newer streamdp"
        )
    if any(step not in form.migrations for step in range(version, form.version)):
        raise StoreDamagedError(f"{path} says format {version}, which never was")


@contextmanager
def reading(path: str, form: Format) -> Iterator[Connection]:
    """A connection that cannot write, after `check_header`. It needs no lock and sees the last commit."""
    check_header(path, form)
    with store_errors(path):
        connection = connect(path, mode="ro")
        try:
            with connection.begin():
                # Again: the newest version may stand in the log still, where the header bytes do not show it.
                _check_version(path, form, pragma(connection, "user_version"))
                yield connection
        finally:
            close(connection)


def quick_check(connection: Connection, path: str) -> None:
    """Let SQLite walk the whole file; raises `StoreDamagedError` for what it finds."""
    if pragma(connection, "quick_check(1)") != "ok":
        raise StoreDamagedError(
            f"{path} is damaged; restore the newest copy (records after an older one are learned, and spent, twice)"
        )


def open_for_writing(path: str, form: Format) -> Connection:
    """A connection whose commits are on disk when they return, to a file migrated to `form.version`."""
    with store_errors(path):
        connection = connect(path)
        try:
            pragma(connection, "synchronous = FULL")
            # A commit of many subjects dirties most pages of the spends: checkpoint every 32 MB, not every 4.
            pragma(connection, "wal_autocheckpoint = 8192")
            with connection.begin():
                version = pragma(connection, "user_version")
                for step in range(version, form.version):
                    form.migrations[step](connection)
                if version < form.version:
                    connection.exec_driver_sql(f"PRAGMA user_version = {form.version}")
        except BaseException:
            close(connection)
            raise
        return connection


def connect(path: str, mode: str = "rw") -> Connection:
    """One plain connection; transactions begin where SQLAlchemy says so, tables included. "" is a temporary
    file.
    """
    target = f"file:{quote(os.path.abspath(path))}?mode={mode}" if path else ""

    def creator() -> sqlite3.Connection:
        return sqlite3.connect(
            target, uri=bool(path), timeout=BUSY_TIMEOUT_S, isolation_level=None, check_same_thread=False
        )

    engine = create_engine("sqlite://", creator=creator, poolclass=NullPool)
    event.listen(engine, "begin", lambda connection: connection.exec_driver_sql("BEGIN"))
    connection = engine.connect()
    pragma(connection, f"cache_size = -{CACHE_KIB}")
    return connection


def close(connection: Connection) -> None:
    connection.close()
    connection.engine.dispose()


def pragma(connection: Connection, text: str) -> Any:
    """Run a PRAGMA on the driver's connection: most must stand outside a transaction, which SQLAlchemy would
    begin.
    """
    driver: Any = connection.connection.driver_connection
    try:
        row = driver.execute(f"PRAGMA {text}").fetchone()
    except sqlite3.Error as error:
        raise DBAPIError(f"PRAGMA {text}", None, error) from error
    return row[0] if row else None


@contextmanager
def store_errors(path: str) -> Iterator[None]:
    """Turn database errors into `StoreError` (lock, rights, full disk) or `StoreDamagedError` (others)."""
    try:
        yield
    except DBAPIError as error:
        code = getattr(error.orig, "sqlite_errorcode", None)
        if code is not None and code & 0xFF in _LOCKED:
            raise StoreUnavailableError(f"{path} is held by others for over {BUSY_TIMEOUT_S:g} s") from error
        if code is not None and code & 0xFF in _SURROUNDINGS:
            raise StoreError(f"cannot use {path}: {error.orig}; what was committed is unchanged") from error
        raise StoreDamagedError(f"{path} is damaged: {error.orig}") from error


class SQLiteFile:
    """The verbs of `database.Database` for the file at `path`, so that two names of one file meet at one lock."""

    def __init__(self, path: str) -> None:
        self.name = os.path.realpath(path)
        self.key_file: str | None = self.name + ".key"

    def lock(self, shared: bool) -> FileLock:
        """Where several may share a file that is not there yet, the first to come is alone until it has made it."""
        deadline = time.monotonic() + (BUSY_TIMEOUT_S if shared else 0.0)
        while True:
            try:
                self._lock = FileLock(self.name, shared=shared and not is_new(self.name))
                self._shared = shared
                return self._lock
            except StoreBusyError:
                if time.monotonic() >= deadline:
                    raise
                time.sleep(0.05)

    def create(self, form: Format, fill: Callable[[Connection], object]) -> bool:
        """See `Database.create`."""
        new = is_new(self.name)
        if new:
            create(self.name, form, fill)
        if self._shared:
            self._lock.share()
        return new

    def reading(self, form: Format) -> AbstractContextManager[Connection]:
        return reading(self.name, form)

    def check(self, connection: Connection) -> None:
        quick_check(connection, self.name)

    def open_for_writing(self, form: Format) -> Connection:
        return open_for_writing(self.name, form)

    def errors(self) -> AbstractContextManager[None]:
        return store_errors(self.name)

    def close(self, connection: Connection) -> None:
        close(connection)
