"""One job's namespace in a PostgreSQL database: the verbs of `database.Database`.

Each job has a PostgreSQL schema of its own, `streamdp_<job>`, so that its tables are those of the SQLite file, and
`DROP SCHEMA` is all it takes to forget a job. DDL is transactional there: the tables are made whole or not at all.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from sqlalchemy import Connection, Engine, create_engine, event, text
from sqlalchemy.engine import URL
from sqlalchemy.exc import DBAPIError, InterfaceError, OperationalError
from sqlalchemy.pool import NullPool
from sqlalchemy.schema import CreateSchema

from streamdp.database.interface import Format
from streamdp.errors import (
    ConfigError,
    StoreBusyError,
    StoreDamagedError,
    StoreError,
    StoreUnavailableError,
    StoreVersionError,
)

PREFIX = "streamdp_"
LONGEST_NAME = 63
"""Bytes of a PostgreSQL identifier; a longer one would be cut, and two jobs might meet."""

CONNECT_TIMEOUT_S = 5
ANSWER_TIMEOUT_MS = 15_000
"""A server that has not acknowledged for so long is taken to be gone."""

_LOCKED = ("40001", "40P01", "55P03")  # serialization failure, deadlock, lock not available
# Connection exceptions, shutdown, too many connections, a standby that is read-only, a name that another just made.
_UNAVAILABLE = ("08", "57", "53", "25006", "23505")
_DAMAGED = ("XX", "42P01", "42703")  # internal error or corruption; a table or a column that is not there


class PostgresLock:
    """An advisory lock of one connection's session, which its end releases; the work is fenced by epochs as well.

    PostgreSQL keeps them apart by database, so the schema names it: the host may have several names.
    """

    def __init__(self, engine: Engine, schema: str, name: str, shared: bool) -> None:
        self._connection = engine.connect()
        function = "pg_try_advisory_lock_shared" if shared else "pg_try_advisory_lock"
        try:
            got = self._connection.execute(text(f"SELECT {function}(hashtextextended(:name, 0))"), {"name": schema})
            if not got.scalar():
                raise StoreBusyError(f"{name} is in use; stop the other one, or wait for it to end")
            self._connection.commit()
        except BaseException:
            self.release()
            raise

    def release(self) -> None:
        self._connection.close()


class PostgresNamespace:
    """The verbs of `database.Database` for one job in the database at `url`. Raises `ConfigError` for a long name."""

    key_file: str | None = None

    def __init__(self, url: URL, job: str) -> None:
        self._schema = PREFIX + job
        if len(self._schema.encode()) > LONGEST_NAME or "\0" in job:
            raise ConfigError(f"job: in PostgreSQL a name has at most {LONGEST_NAME - len(PREFIX)} bytes")
        self.name = f"{url.host or 'localhost'}/{url.database} ({self._schema})"
        try:
            self._engine = create_engine(
                url.set(drivername="postgresql+psycopg"),
                poolclass=NullPool,
                hide_parameters=True,  # an error's text would show states, settings and spends
                connect_args={
                    "connect_timeout": CONNECT_TIMEOUT_S,
                    "tcp_user_timeout": ANSWER_TIMEOUT_MS,
                    "keepalives_idle": 5,
                    "application_name": f"streamdp {job}"[:63],
                },
            )
        except ImportError:
            raise ConfigError("a PostgreSQL store needs psycopg: pip install 'streamdp[postgres]'") from None
        event.listen(self._engine, "connect", self._choose_schema)

    def _choose_schema(self, driver: Any, record: object) -> None:
        quoted = '"' + self._schema.replace('"', '""') + '"'
        driver.autocommit = True
        driver.execute(f"SET search_path TO {quoted}")
        driver.execute("SET synchronous_commit TO on")
        # A worker that is stopped within a transaction must not hold its rows for ever.
        driver.execute(f"SET idle_in_transaction_session_timeout TO {ANSWER_TIMEOUT_MS}")
        driver.autocommit = False

    def lock(self, shared: bool) -> PostgresLock:
        with self.errors():
            return PostgresLock(self._engine, self._schema, self.name, shared)

    def create(self, form: Format, fill: Callable[[Connection], object]) -> bool:
        """See `Database.create`."""
        with self.errors(), self._engine.begin() as connection:
            alone = text("SELECT pg_advisory_xact_lock(hashtextextended(:name, 1))")
            connection.execute(alone, {"name": self._schema})
            if _exists(connection):
                return False
            connection.execute(CreateSchema(self._schema, if_not_exists=True))
            form.create_tables(connection)
            connection.execute(text("CREATE TABLE format (name text NOT NULL, version integer NOT NULL)"))
            row = {"name": form.name, "version": form.version}
            connection.execute(text("INSERT INTO format VALUES (:name, :version)"), row)
            fill(connection)
            return True

    @contextmanager
    def reading(self, form: Format) -> Iterator[Connection]:
        with self.errors(), self._engine.connect() as connection:
            connection.execute(text("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ READ ONLY"))
            if not _exists(connection):
                raise StoreError(f"{self.name} has no such job")
            self._check_version(connection, form)
            yield connection

    def check(self, connection: Connection) -> None:
        """Nothing: the server watches over its own files."""

    def open_for_writing(self, form: Format) -> Connection:
        with self.errors():
            connection = self._engine.connect()
            try:
                with connection.begin():
                    version = self._check_version(connection, form)
                    for step in range(version, form.version):
                        form.migrations[step](connection)
                    if version < form.version:
                        connection.execute(text("UPDATE format SET version = :version"), {"version": form.version})
            except BaseException:
                connection.close()
                raise
            return connection

    def _check_version(self, connection: Connection, form: Format) -> int:
        rows = connection.execute(text("SELECT name, version FROM format")).all()
        if len(rows) != 1 or rows[0].name != form.name:
            raise StoreDamagedError(f"{self.name} is not a streamdp {form.name}")
        version: int = rows[0].version
        if version > form.version:
            raise StoreVersionError(
                f"{self.name} has format {version}, this program knows up to {form.version}; use a newer streamdp"
            )
        return version

    @contextmanager
    def errors(self) -> Iterator[None]:
        try:
            yield
        except DBAPIError as error:
            code = getattr(error.orig, "sqlstate", None) or ""
            # Without a code, there was no server to give one: it could not be reached, went away, or let us not in.
            away = isinstance(error, OperationalError | InterfaceError) and not code
            if error.connection_invalidated or away or code.startswith(_UNAVAILABLE) or code in _LOCKED:
                raise StoreUnavailableError(f"{self.name} gives no answer ({code or _refusal(error)})") from error
            if code.startswith(_DAMAGED):
                raise StoreDamagedError(f"{self.name} is damaged: PostgreSQL says {code}") from error
            raise StoreError(f"cannot use {self.name}: PostgreSQL says {code or str(error.orig).strip()}") from error

    def close(self, connection: Connection) -> None:
        connection.close()
        self._engine.dispose()


def _exists(connection: Connection) -> bool:
    return connection.execute(text("SELECT to_regclass('format')")).scalar() is not None


def _refusal(error: DBAPIError) -> str:
    """Why the server let us not in, as in `password authentication failed for user "me"`, where it said so."""
    _, said, reason = str(error.orig).partition("FATAL:")
    return reason.strip().partition("\n")[0] if said else "no connection"
