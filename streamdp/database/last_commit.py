"""The number of the last commit of an SQLite file, in the database and in a second file.

SQLite stops reading its write-ahead log at the first damaged frame, and reports no error: the commits after it are lost
in silence. So does a database whose log was deleted, or that was replaced by an older copy. Therefore each commit of a
writer increments a number in the database, and the number is written to `<path>.last` before the commit returns. A
database with a smaller number than its file has lost commits that were acknowledged. A larger number is allowed: the
process died between the commit and the write of the file, or the file was deleted.

The file has two places, in different sectors, that are written in turn. If a write is cut off, the other place is
whole.
"""

import contextlib
import os
import sqlite3
import time
from hashlib import blake2b
from typing import NamedTuple

from streamdp import system
from streamdp.database.durable import sync_directory
from streamdp.errors import StoreDamagedError, StoreError

CHECKPOINT_S = 60.0
"""The time after which a commit also moves the write-ahead log into the database."""

_PLACE_BYTES = 4096
_LINE_BYTES = 128


class LastCommit(NamedTuple):
    """The last commit of a database."""

    number: int = 0  # how many commits writers have made
    losses: int = 0  # how often a user went on with a database that had lost commits


class LastCommitFile:
    """The file beside a database that holds its last commit."""

    def __init__(self, database: str) -> None:
        self.path = database + ".last"
        self._database = database

    def database_node(self) -> int | None:
        """The file that the name of the database means now; None if there is none."""
        with contextlib.suppress(FileNotFoundError):
            return os.stat(self._database).st_ino
        return None

    def read(self) -> LastCommit | None:
        """Return the newest commit in the file; None if there is no file, or nothing was written to it yet.

        None also for a user who may read the database and not this file. A writer would fail at its first commit.

        Raises `StoreDamagedError` if no place of the file is whole, and `StoreError` if it cannot be read.
        """
        try:
            descriptor = os.open(self.path, os.O_RDONLY)
        except (FileNotFoundError, PermissionError):
            return None
        except OSError as error:
            raise StoreError(f"cannot read {self.path}: {error.strerror}") from None
        try:
            found = newest(descriptor)
            if found is None and os.fstat(descriptor).st_size > 0:
                system.lock(descriptor, shared=True)  # another process may be writing its first commit just now
                found = newest(descriptor)
                if found is not None:
                    return found
                raise StoreDamagedError(f"{self.path} is damaged, so it is not known whether commits were lost")
            return found
        finally:
            os.close(descriptor)

    def write(self, last: LastCommit) -> None:
        """Write a commit, unless the file has a newer one. It is on disk when this returns.

        Raises `OSError` if it cannot be written.
        """
        flags = os.O_RDWR | os.O_CREAT | system.NO_LINK
        # An object: after an interruption anywhere, it closes the file, and so unlocks it.
        with os.fdopen(os.open(self.path, flags, 0o600), "r+b", buffering=0) as file:
            descriptor = file.fileno()
            system.lock(descriptor)  # workers that share the database write one after the other
            before = newest(descriptor)
            if before is None or before.number < last.number:
                os.pwrite(descriptor, _line(last), _PLACE_BYTES * (last.number % 2))
                system.sync(descriptor)
            if before is None:
                sync_directory(self.path)


def newest(descriptor: int) -> LastCommit | None:
    """The newer of the two commits in the open file `descriptor`; None if it has none."""
    places = (os.pread(descriptor, _LINE_BYTES, _PLACE_BYTES * i) for i in range(2))
    return max((last for place in places if (last := _parsed(place)) is not None), default=None)


def _parsed(place: bytes) -> LastCommit | None:
    line = place.partition(b"\n")[0]
    with contextlib.suppress(ValueError):
        last = LastCommit(*map(int, line.split()[:2]))
        if _line(last) == line + b"\n":
            return last
    return None


def _line(last: LastCommit) -> bytes:
    content = b"%d %d" % last
    return b"%s %s\n" % (content, blake2b(content, digest_size=16, person=b"streamdp-last").hexdigest().encode())


TABLE = (
    "CREATE TABLE last_commit (number INTEGER NOT NULL, losses INTEGER NOT NULL)",
    "INSERT INTO last_commit VALUES (0, 0)",
)
"""The statements that make the table of the last commit in a new database."""


class CountingConnection(sqlite3.Connection):
    """A connection that counts its commits as the module describes, once `count_commits` was called.

    It also moves the write-ahead log into the database from time to time, so that less depends on the log.
    """

    _file: LastCommitFile | None = None
    _changes = 0
    _unwritten: LastCommit | None = None
    _moved_at = 0.0
    _node: int | None = None

    def count_commits(self, file: LastCommitFile, known: LastCommit) -> None:
        """Count every commit from now on, after the last known one."""
        self._file, self._moved_at, self._node = file, time.monotonic(), file.database_node()
        self.execute("BEGIN IMMEDIATE")
        behind = "number < :number OR losses < :losses"
        self.execute(
            "UPDATE last_commit SET number = max(number, :number), losses = max(losses, :losses) WHERE " + behind,
            known._asdict(),
        )
        self.commit()

    def commit(self) -> None:
        """Commit, with the next number if the transaction changed a row. The number is on disk when this returns.

        Nothing is committed to a file that was removed or replaced: nobody could read it.
        """
        counted = None
        if self._file is not None and self.in_transaction and self.total_changes != self._changes:
            if self._file.database_node() != self._node:
                raise _failed("the file was removed or replaced while it was open")
            self.execute("UPDATE last_commit SET number = number + 1")
            counted = LastCommit(*self.execute("SELECT number, losses FROM last_commit").fetchone())
        super().commit()
        self._changes = self.total_changes
        if self._file is None:
            return
        self._unwritten = counted or self._unwritten  # not before: the file must never be ahead of the database
        if self._unwritten is not None:
            try:
                self._file.write(self._unwritten)
            except OSError as error:
                raise _failed(f"cannot write {self._file.path}: {error.strerror}") from None
            self._unwritten = None
        if time.monotonic() - self._moved_at >= CHECKPOINT_S:
            self._moved_at = time.monotonic()
            with contextlib.suppress(sqlite3.Error):  # the commit is on disk already
                self.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchall()

    def rollback(self) -> None:
        """Roll back."""
        super().rollback()
        self._changes = self.total_changes


def _failed(what: str) -> sqlite3.OperationalError:
    error = sqlite3.OperationalError(what)
    error.sqlite_errorcode = sqlite3.SQLITE_IOERR
    return error
