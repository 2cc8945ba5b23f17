"""The tables of jobs in an SQLite file: checked before it is opened, created whole or not at all.

And SQLite's driver: its transactions and pragmas, and its errors as `StoreError`s.
"""

import os
import sqlite3
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, closing, contextmanager, suppress
from hashlib import blake2b
from typing import Any, cast
from urllib.parse import quote

from streamdp.database.durable import sync_directory
from streamdp.database.file_lock import FileLock
from streamdp.database.interface import Connection, Database, Format, Parameters
from streamdp.database.last_commit import TABLE as LAST_COMMIT
from streamdp.database.last_commit import CountingConnection, LastCommit, LastCommitFile
from streamdp.errors import (
    StoreBusyError,
    StoreDamagedError,
    StoreError,
    StoreLostError,
    StoreUnavailableError,
    check_path,
    closed_on_error,
    file_errors,
    raise_alone,
)
from streamdp.system import NO_LINK

BUSY_TIMEOUT_S = 10.0
"""How long a statement or a shared lock waits for another process."""

CACHE_KIB = 131072
"""SQLite's page cache of a connection, in KiB."""

_LOCKED = {5, 6}
# SQLite's primary result codes for faults outside the file's content: permissions, memory, disk, too large a value; and
# what to do.
_ENVIRONMENT = {
    **dict.fromkeys((7, 10, 13, 22, 23), ""),
    **dict.fromkeys((3, 8, 14), "; this user must be allowed to read it, and for a run to write it and its folder"),
    18: "; the state of the model is too large for a store: declare fewer columns",
}


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
        if code is not None and (more := _ENVIRONMENT.get(code & 0xFF)) is not None:
            raise StoreError(f"cannot use {name}: {error}{more}; committed data are unchanged") from None
        if code == sqlite3.SQLITE_NOTADB:
            raise StoreDamagedError(
                f"{name} is not an SQLite database: expected a store, such as late.db, or its job"
            ) from None
        raise StoreDamagedError(f"{name} is damaged: {error}; restore the newest copy") from None


CHECKPOINT_PAGES = 8192
"""Pages in SQLite's write-ahead log before a checkpoint: 32 MB.

A commit of many subjects changes most pages of the spends, and the default of 4 MB would write them too often.
"""
CHECKED_BYTES = 1 << 26
"""A file up to this size is checked whole when it is opened, which takes some tenths of a second."""
_GROWING = ("answers", "spends", "spend_pages", "spend_log")
"""Tables with a row for each call or person."""


class SQLiteFile(Database):
    """Its tables are in the file at `path`, which need not exist.

    Symbolic links are resolved, so that two names of a file share one lock. Without a job, the file is used as a whole.
    """

    def __init__(self, path: str | os.PathLike[str], job: str | None = None) -> None:
        self._job = job
        self.name = os.path.realpath(check_path("database", path))
        self.key_file = self.name + ".key"
        self.accept_loss = False
        self.losses = 0
        self._file = LastCommitFile(self.name)
        self._known = LastCommit()
        self._lost = self._made = False

    def lock(self, shared: bool) -> Callable[[], None]:
        """See `Database.lock`. A file with two names is refused, because each name has locks of its own.

        A job has a lock of its own beside that of the file, which all jobs share. A process that finds no file takes
        the lock of the file alone until `create` has made it. The others wait for it up to `BUSY_TIMEOUT_S`.
        """
        self._check_file()
        if os.path.exists(self.name) and os.stat(self.name).st_nlink > 1:
            raise StoreError(f"{self.name} is a hard link: the file has another name, which has another lock; copy it")
        if self._job is None:
            self._lock = self._wait_for(lambda: FileLock(self.name, shared and not self._is_new()), shared)
            return self._lock.release
        digest = blake2b(self._job.encode(), digest_size=8).hexdigest()
        what = f"job {self._job!r} in {self.name}"
        with ExitStack() as held:
            held.callback(self._wait_for(lambda: FileLock(f"{self.name}.{digest}", shared, what), shared).release)
            self._lock = self._wait_for(lambda: FileLock(self.name, not self._is_new()), True)
            held.callback(self._lock.release)
            return held.pop_all().close

    def _wait_for(self, take: Callable[[], FileLock], patient: bool) -> FileLock:
        deadline = time.monotonic() + (BUSY_TIMEOUT_S if patient else 0.0)
        while True:
            try:
                return take()
            except StoreBusyError:
                if time.monotonic() >= deadline:
                    raise
                time.sleep(0.05)

    def _check_file(self) -> None:
        if os.path.isdir(self.name):
            raise StoreError(f"{self.name} is a folder: expected the file of a store")
        if os.path.exists(self.name) and not os.path.isfile(self.name):  # opening a pipe may block
            raise StoreError(f"{self.name} is no regular file: expected the file of a store")

    def create(self, form: Format, fill: Callable[[Connection], object]) -> bool:
        new = self._is_new()
        if new:
            if not self._lock.alone():  # it was removed since this process has taken its lock, and others begin it, too
                raise StoreUnavailableError(f"another process begins {self.name} at this moment")
            self._check_absent()
            with self.errors(), file_errors(StoreError, f"cannot create {self.name}"):
                self._create(form, fill)
            self._made = not self.losses  # an accepted loss stays known
        if self._job is not None:
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
                raise _empty(path)
            return False
        if os.path.exists(path + "-wal") and os.path.getsize(path + "-wal") > 0:
            raise StoreDamagedError(f"{path} is missing but {path}-wal exists; restore the former or remove the latter")
        return True

    def _check_absent(self) -> None:
        """Raise `StoreLostError` if there was a database at this path: a file beside it is left.

        A draft is left by a crash in `_create`, which may have made the key before.
        """
        last = self._last()
        if last is not None:
            self._lose(f"{self.name} is missing but {self._file.path} exists")
        elif os.path.exists(self.name + ".key") and not os.path.exists(self._draft):
            self._lose(
                f"{self.name} is missing but its key exists (if there never was a database, move {self.name}.key"
                " away and give the key by the environment)"
            )
        self._set_known(last or LastCommit())

    def _last(self) -> LastCommit | None:
        try:
            return self._file.read()
        except StoreDamagedError as error:
            self._lose(str(error))
            return None

    def _lose(self, what: str) -> None:
        """Go on without the lost commits, or raise `StoreLostError`."""
        if not self.accept_loss:
            raise StoreLostError(
                f"{what}; restore the newest copies of these files together. To go on without what is lost, say"
                " `streamdp run --accept-loss`: its spends are not counted, its records are learned again, and the"
                " statement says so"
            )
        self._lost = True

    def _set_known(self, last: LastCommit) -> None:
        self.losses = last.losses + self._lost
        self._known = LastCommit(last.number, self.losses)

    @property
    def _draft(self) -> str:
        return self.name + ".new"

    def _create(self, form: Format, fill: Callable[[Connection], object]) -> None:
        # Not `durable.write_durably`: SQLite writes the draft itself, flushes it to disk and has files beside it.
        draft = self._draft
        os.close(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | NO_LINK, 0o600))
        for suffix in ("-journal", "-wal", "-shm"):
            if os.path.exists(draft + suffix):
                os.unlink(draft + suffix)
        sync_directory(draft)  # before `fill` makes a key
        with closing(connect(draft)) as connection:
            with connection.begin():
                form.create_tables(connection)
                for statement in LAST_COMMIT:
                    connection.change(statement)
                fill(connection)
                pragma(connection.driver, f"application_id = {form.application_id}")
                pragma(connection.driver, f"user_version = {form.version}")
            pragma(connection.driver, "journal_mode = WAL")
        os.replace(draft, self.name)
        sync_directory(self.name)

    def remove(self, used: str) -> None:
        if not (self._made and self._lock.alone()):
            return
        with closing(connect(self.name)) as connection:
            if connection.fetch(used):
                return
        # In this order, because a crash leaves a store without its last file, or the draft of a new one.
        for path in (self._file.path, f"{self.name}-wal", f"{self.name}-shm"):
            with suppress(FileNotFoundError):
                os.unlink(path)
        os.replace(self.name, self._draft)
        for path in (self.key_file, self._draft):
            with suppress(FileNotFoundError):
                os.unlink(path)

    @contextmanager
    def reading(self, form: Format) -> Iterator[Connection]:
        if not os.path.exists(self.name):
            raise StoreError(
                f"cannot read {self.name}: there is no such store: `streamdp run` makes that of a job; its name ends "
                "in .db, if the job gives none"
            )
        self._check_file()
        with self.errors():
            last = self._last()  # before the database, because it is written after each commit
            at_rest = _at_rest(self.name)
            with closing(open_file(self.name, "ro&immutable=1" if at_rest else "ro")) as driver:
                _check_header(driver, self.name, form, at_rest)
                connection = SQLiteConnection(driver, "BEGIN")
                with connection.begin():
                    self._check_complete(driver, last)
                    yield connection

    def _check_complete(self, driver: sqlite3.Connection, last: LastCommit | None) -> None:
        """Raise `StoreLostError` if the database is older than the file that holds its last commit."""
        rows = driver.execute("SELECT number, losses FROM last_commit").fetchall()
        if len(rows) != 1 or not all(isinstance(value, int) for value in rows[0]):
            raise StoreDamagedError(f"{self.name} is damaged: its last commit has no number")
        found = LastCommit(*rows[0])
        last = last or LastCommit()
        if found.number < last.number:
            self._lose(
                f"{self.name} has {found.number:,} of {last.number:,} commits: its write-ahead log is damaged or"
                " missing, or it is an older copy"
            )
        self._set_known(LastCommit(max(found.number, last.number), max(found.losses, last.losses)))

    def check(self, connection: Connection) -> None:
        """See `Database.check`. SQLite reads the whole file, or of a large one all tables but those that grow.

        It reads every page again when it uses it, so that other damage is found then.
        """
        driver = cast(SQLiteConnection, connection).driver
        tables: list[str] = ["1"]
        if os.path.getsize(self.name) > CHECKED_BYTES:
            names = driver.execute("SELECT name FROM sqlite_schema WHERE type = 'table'").fetchall()
            tables = [name for (name,) in names if name not in _GROWING]
        if any(pragma(driver, f"quick_check({table})") != "ok" for table in tables):
            raise StoreDamagedError(
                f"{self.name} is damaged; restore the newest copy (after an older copy, records are learned and spent"
                " twice)"
            )

    def open_for_writing(self, form: Format) -> Connection:
        with self.errors():
            last = self._last()  # before the database, because it is written after each commit
            connection = connect(self.name, factory=CountingConnection)
            with closed_on_error(connection):
                driver = cast(CountingConnection, connection.driver)
                _check_header(driver, self.name, form, at_rest=False)
                self._check_complete(driver, last)
                pragma(driver, "synchronous = FULL")
                pragma(driver, "fullfsync = ON")  # macOS only: as `system.sync`
                pragma(driver, f"wal_autocheckpoint = {CHECKPOINT_PAGES}")
                driver.count_commits(self._file, self._known)
            return connection

    @contextmanager
    def spending(self, connection: Connection) -> Iterator[None]:
        release = self._wait_for_first(shared=True)
        try:
            with connection.begin():
                yield
        finally:
            release()

    def come_first(self) -> Callable[[], None]:
        return self._wait_for_first(shared=False)

    def _wait_for_first(self, shared: bool) -> Callable[[], None]:
        try:
            return self._wait_for(lambda: FileLock(f"{self.name}.first", shared), True).release
        except StoreBusyError:
            raise StoreUnavailableError(f"{self.name} does not answer (another job holds back all spends)") from None

    def hold(self, connection: Connection, number: int) -> bool:
        """See `Database.hold`. One service has the job's lock, and needs one number."""
        return number == 0

    def held(self, connection: Connection, numbers: Sequence[int]) -> list[int]:
        """See `Database.held`. The lock of a job in a file is not numbered."""
        return []

    def errors(self) -> AbstractContextManager[None]:
        return store_errors(self.name)


def _at_rest(path: str) -> bool:
    """Whether nobody has the file open, and SQLite cannot make the files beside it that it reads a WAL file with."""
    log = f"{path}-wal"
    empty = not os.path.exists(log) or os.path.getsize(log) == 0
    return empty and not os.access(os.path.dirname(os.path.abspath(path)), os.W_OK)


def _empty(path: str) -> StoreDamagedError:
    return StoreDamagedError(f"{path} is empty: restore the newest copy, or remove it if it never was a store")


def _check_header(driver: sqlite3.Connection, path: str, form: Format, at_rest: bool) -> None:
    """Refuse a file that is not a database of this format.

    The file is read by SQLite alone: if this process opened and closed it in another way, POSIX would drop the locks of
    all its connections, and another process that closes the database would remove the write-ahead log under them
    (https://www.sqlite.org/howtocorrupt.html, section 2.2). Without the log, SQLite does not say which mode a file has.
    Raises `StoreDamagedError` or `StoreVersionError`.
    """
    if pragma(driver, "page_count") == 0:
        raise _empty(path)
    if pragma(driver, "application_id") != form.application_id:
        raise StoreDamagedError(f"{path} is an SQLite database but not a streamdp {form.name}")
    if not at_rest and pragma(driver, "journal_mode") != "wal":  # it would be read without its newest commits
        raise StoreDamagedError(f"{path} is no longer in write-ahead mode")
    form.check_version(path, pragma(driver, "user_version"))
