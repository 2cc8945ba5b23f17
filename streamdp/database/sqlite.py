"""One job's tables in an SQLite file: checked before it is opened, created whole or not at all, migrated."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager

from sqlalchemy import Connection

from streamdp.database.durable import sync_directory
from streamdp.database.file_lock import FileLock
from streamdp.database.interface import Format
from streamdp.database.sqlite_connection import BUSY_TIMEOUT_S, close, connect, pragma, store_errors
from streamdp.errors import StoreBusyError, StoreDamagedError, StoreError

CHECKPOINT_PAGES = 8192
"""Pages in SQLite's write-ahead log before a checkpoint: 32 MB.

A commit of many subjects changes most pages of the spends, and the default of 4 MB would write them too often.
"""


class SQLiteFile:
    """See `interface.Database`; its tables are in the file at `path`.

    Parameters
    ----------
    path
        The file, which need not exist. Symbolic links are resolved, so that two names of a file share one lock.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.name = os.path.realpath(path)
        self.key_file: str | None = self.name + ".key"

    def lock(self, shared: bool) -> FileLock:
        """See `Database.lock`.

        A process that finds no file takes the lock alone, even if `shared`, until `create` has made the file. The
        others wait for it up to `BUSY_TIMEOUT_S`.
        """
        deadline = time.monotonic() + (BUSY_TIMEOUT_S if shared else 0.0)
        while True:
            try:
                self._lock = FileLock(self.name, shared=shared and not self._is_new())
                self._shared = shared
                return self._lock
            except StoreBusyError:
                if time.monotonic() >= deadline:
                    raise
                time.sleep(0.05)

    def create(self, form: Format, fill: Callable[[Connection], object]) -> bool:
        """See `Database.create`."""
        new = self._is_new()
        if new:
            with self.errors():
                try:
                    self._create(form, fill)
                except OSError as error:
                    raise StoreError(f"cannot create {self.name}: {error.strerror}") from None
        if self._shared:
            self._lock.share()
        return new

    def _is_new(self) -> bool:
        """Whether there is no database at this path yet.

        Raises `StoreDamagedError` for an empty file, because a database is never that short, and for a write-ahead log
        without its database, because SQLite would replay that log into a new database.
        """
        path = self.name
        if os.path.exists(path):
            if os.path.getsize(path) == 0:
                raise StoreDamagedError(
                    f"{path} is empty: restore the newest copy, or remove it if it never was a store"
                )
            return False
        if os.path.exists(path + "-wal") and os.path.getsize(path + "-wal") > 0:
            raise StoreDamagedError(f"{path} is missing but {path}-wal exists; restore the former or remove the latter")
        return True

    def _create(self, form: Format, fill: Callable[[Connection], object]) -> None:
        # Not `durable.write_durably`: SQLite writes the draft itself, flushes it to disk and has files beside it.
        draft = self.name + ".new"
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
        os.replace(draft, self.name)
        sync_directory(self.name)

    @contextmanager
    def reading(self, form: Format) -> Iterator[Connection]:
        """See `Database.reading`."""
        if not os.path.exists(self.name):
            raise StoreError(f"cannot read {self.name}: No such file or directory")
        with self.errors():
            at_rest = _at_rest(self.name)
            connection = connect(self.name, mode="ro&immutable=1" if at_rest else "ro")
            try:
                _check_header(connection, self.name, form, at_rest)
                with connection.begin():
                    yield connection
            finally:
                close(connection)

    def check(self, connection: Connection) -> None:
        """See `Database.check`. SQLite reads the whole file."""
        if pragma(connection, "quick_check(1)") != "ok":
            raise StoreDamagedError(
                f"{self.name} is damaged; restore the newest copy (after an older copy, records are learned and spent"
                " twice)"
            )

    def open_for_writing(self, form: Format) -> Connection:
        """See `Database.open_for_writing`."""
        with self.errors():
            connection = connect(self.name)
            try:
                pragma(connection, "synchronous = FULL")
                pragma(connection, f"wal_autocheckpoint = {CHECKPOINT_PAGES}")
                with connection.begin():
                    version = pragma(connection, "user_version")
                    form.migrate(connection, version)
                    if version < form.version:
                        connection.exec_driver_sql(f"PRAGMA user_version = {form.version}")
            except BaseException:
                close(connection)
                raise
            return connection

    def within(self, connection: Connection) -> None:
        """See `Database.within`. Each file has transactions of its own."""

    def errors(self) -> AbstractContextManager[None]:
        """See `Database.errors`."""
        return store_errors(self.name)

    def close(self, connection: Connection) -> None:
        """See `Database.close`."""
        close(connection)


def _at_rest(path: str) -> bool:
    """Whether nobody has the file open, and SQLite cannot make the files beside it that it reads a WAL file with."""
    log = f"{path}-wal"
    empty = not os.path.exists(log) or os.path.getsize(log) == 0
    return empty and not os.access(os.path.dirname(os.path.abspath(path)), os.W_OK)


def _check_header(connection: Connection, path: str, form: Format, at_rest: bool = False) -> None:
    """Refuse a file that is not a database of this format.

    The file is read by SQLite alone: if this process opened and closed it in another way, POSIX would drop the locks of
    all its connections, and another process that closes the database would remove the write-ahead log under them
    (https://www.sqlite.org/howtocorrupt.html, section 2.2). Without the log, SQLite does not say which mode a file has.
    Raises `StoreDamagedError` or `StoreVersionError`.
    """
    if pragma(connection, "application_id") != form.application_id:
        raise StoreDamagedError(f"{path} is an SQLite database but not a streamdp {form.name}")
    if not at_rest and pragma(connection, "journal_mode") != "wal":  # it would be read without its newest commits
        raise StoreDamagedError(f"{path} is no longer in write-ahead mode")
    form.check_version(path, pragma(connection, "user_version"))
