"""The tables of jobs in a PostgreSQL database.

They are in one schema, `streamdp`, or that which the URL names. The tables have the same names as in an SQLite file.
`DROP SCHEMA` deletes all jobs. DDL is transactional in PostgreSQL: the tables are created whole or not at all.

Each transaction names its schema itself, so no name depends on earlier settings of the session. Locks belong to a
session, so a pooler that gives each transaction another session is refused (`_check_sessions`).
"""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from functools import lru_cache
from typing import Any

import psycopg

from streamdp.database.interface import Connection, Database, Format, Parameters, Session
from streamdp.errors import (
    ConfigError,
    StoreBusyError,
    StoreDamagedError,
    StoreError,
    StoreUnavailableError,
    closed_on_error,
)

SCHEMA = "streamdp"
"""The schema of the tables, unless the URL names another one."""

LONGEST_NAME = 63
"""Bytes of a PostgreSQL identifier. PostgreSQL cuts a longer one, and two schemas could get the same name."""

CONNECT_TIMEOUT_S = 5
LOCK_TIMEOUT_MS = 5_000
"""The server releases a lock a moment after its holder has closed the connection or was killed."""

ANSWER_TIMEOUT_MS = 15_000
"""A server that has not acknowledged data for this long is treated as unreachable."""

_SETTINGS = f"""
-- numbers are read as they were written, or checksums fail
SET extra_float_digits TO 3;
SET synchronous_commit TO on;
-- a worker that is suspended inside a transaction must not keep its rows locked
SET idle_in_transaction_session_timeout TO {ANSWER_TIMEOUT_MS};
-- the session of a machine that is cut off ends, and its locks with it, within about 20 seconds
SET tcp_keepalives_idle TO 5; SET tcp_keepalives_interval TO 5; SET tcp_keepalives_count TO 3
"""
"""What each session is set to."""

_HELD = "hashtextextended(:name, 2 + :number)"
"""The key of a numbered lock of a job; those with the seeds 0 and 1 are of the job and of the schema."""
_FIRST = "hashtextextended(:name, -1)"
"""The key of the lock of a schema that `spending` shares, and that `come_first` has alone."""

_BEGUN = "extract(epoch FROM backend_start)::text"
_LOCKED = ("40001", "40P01", "55P03")  # serialization failure, deadlock, lock not available
# Connection exception, shutdown, too many connections, a read-only standby, a name that another process just created.
_UNAVAILABLE = ("08", "57", "53", "25006", "23505")
# A server that stops within the handshake says "SSL SYSCALL error" or "unexpected eof": it will be back.
_TLS = "SSL error: (?!unexpected eof)|does not support SSL|invalid response to SSL negotiation|certificate"
# What the server says to a connection that it will refuse again; it gives no code then.
_FINAL = re.compile(
    "authentication failed|no password supplied|does not exist|no pg_hba.conf entry|not permitted to log in|" + _TLS
)
_WHY = (
    ("failed to resolve host|could not translate host name", "unknown host"),
    ("Connection refused", "nothing listens at this host and port"),
    (_TLS, "TLS failed: see sslmode and sslrootcert"),
    ("timeout expired|timed out", "no answer in time"),
)
"""What the client's own texts of a failed connection mean."""
_DAMAGED = ("XX", "42P01", "42703")  # internal error or corruption; a missing table; a missing column


@lru_cache(maxsize=256)
def _text(statement: str) -> str:
    """A statement with the placeholders of the driver in place of `:name`."""
    return re.sub(r"(?<!:):([a-z]\w*)", r"%(\1)s", statement.replace("%", "%%"))


class ServerConnection(Connection):
    """A connection to a server by the driver, from `connect`. A transaction opens it again if a server has ended it.

    Each transaction begins with the statement `begins`.
    """

    server = True

    def __init__(self, connect: Callable[[], psycopg.Connection[Any]], begins: str) -> None:
        self._connect, self._begins = connect, begins
        self._over, self._begun = connect(), False

    def fetch(self, statement: str, parameters: Parameters = ()) -> list[tuple[object, ...]]:
        return self._execute(statement, parameters).fetchall()

    def change(self, statement: str, parameters: Parameters = ()) -> int:
        return self._execute(statement, parameters).rowcount

    def change_each(self, statement: str, rows: Sequence[Parameters]) -> int:
        cursor = self._over.cursor()
        cursor.executemany(_text(statement), rows)
        return cursor.rowcount

    def _execute(self, statement: str, parameters: Parameters) -> psycopg.Cursor[tuple[object, ...]]:
        text = _text(statement) if isinstance(parameters, Mapping) else statement
        return self._over.execute(text, parameters or None)  # None: a % is no placeholder

    def in_transaction(self) -> bool:
        return self._begun  # and not what the server says, which may have ended the connection

    @contextmanager
    def begin(self) -> Iterator[None]:
        if self._over.closed and not self.closed:
            self._over = self._connect()
        try:
            self._begun = True
            self._over.execute(self._begins)
            yield
            self._over.commit()
        except BaseException:
            with suppress(psycopg.Error):
                self._over.rollback()
            if self._over.info.transaction_status != psycopg.pq.TransactionStatus.IDLE:  # it may go on at the server
                self._over.close()
            raise
        finally:
            self._begun = False

    def close(self) -> None:
        self.closed = True
        self._over.close()


class PostgresNamespace(Database):
    """Its tables are in one schema of the PostgreSQL database at an `address`: the parameters of a connection.

    The parameter `schema` names the schema. Without a job, the schema is used as a whole. Raises `ConfigError` for the
    name of a schema that PostgreSQL would cut.
    """

    key_file = None
    accept_loss = False
    losses = 0  # the server recognises damage to its own log

    def __init__(self, address: Mapping[str, Any], job: str | None) -> None:
        schema = address.get("schema", SCHEMA)
        if not 0 < len(schema.encode()) <= LONGEST_NAME or "\0" in schema:
            raise ConfigError(f"store: expected one schema in the URL, whose name has 1 to {LONGEST_NAME} bytes")
        self._schema = schema
        self._job, self._of_job = job, f"{schema}/{job}"
        self._quoted = '"' + self._schema.replace('"', '""') + '"'
        hosts = address.get("host", "localhost").split(",")
        several, ports = len(hosts) > 1, address.get("port", "").split(",")
        shown = [f"{host}:{port}" for host, port in zip(hosts, ports, strict=False)] if several else hosts
        self.name = f"{','.join(shown)}/{address['dbname']} ({self._schema})"
        # Of several hosts, only the primary can be written. A URL may say otherwise, for readers.
        given: dict[str, Any] = {"target_session_attrs": "read-write"} if several else {}
        given |= {name: value for name, value in address.items() if name != "schema"}
        given |= {
            "hostaddr": address.get("hostaddr", ""),  # PGHOSTADDR would lead to another server than the URL
            "client_encoding": "utf8",
            "connect_timeout": CONNECT_TIMEOUT_S,
            "tcp_user_timeout": ANSWER_TIMEOUT_MS,
            "keepalives_idle": 5,
            "application_name": f"streamdp {job or schema}"[:63],
        }
        # a function, which shows no password
        self._connect: Callable[[], psycopg.Connection[Any]] = lambda: psycopg.connect(**given)

    def _connection(self) -> ServerConnection:
        return ServerConnection(self._prepared, f"SET LOCAL search_path TO {self._quoted}")

    def _prepared(self) -> psycopg.Connection[Any]:
        driver = self._connect()
        with closed_on_error(driver):
            if (encoding := driver.info.parameter_status("server_encoding")) != "UTF8":
                raise StoreError(
                    f"{self.name} has the encoding {encoding}, and UTF8 is needed: CREATE DATABASE ... ENCODING 'UTF8'"
                    " TEMPLATE template0"
                )
            driver.execute(_SETTINGS)
            driver.commit()
        return driver

    def lock(self, shared: bool) -> Callable[[], None]:
        with self.errors():
            self._check_sessions()
            return self._take_lock(shared)

    def _take_lock(self, shared: bool) -> Callable[[], None]:
        """Take an advisory lock of a session, and return what gives it up. The session's end releases it, too.

        A session can end before its process, so commits are fenced by epochs as well. PostgreSQL keeps advisory
        locks apart by database, and the lock is named after the schema and the name of the job: the names of the host
        do not matter. The lock holds one connection. Other holders that ask for a `shared` lock are allowed beside a
        shared one. Raises `StoreBusyError` if another holder still excludes this one after `LOCK_TIMEOUT_MS`.
        """
        connection = self._connection()
        function = "pg_advisory_lock_shared" if shared else "pg_advisory_lock"
        with suppress(psycopg.errors.LockNotAvailable), closed_on_error(connection), connection.begin():
            connection.change(f"SET lock_timeout TO {LOCK_TIMEOUT_MS}")
            connection.fetch(f"SELECT {function}(hashtextextended(:name, 0))", {"name": self._of_job})
            return connection.close
        name = f"job {self._job!r} in {self.name}"
        raise StoreBusyError(f"{name} is in use; stop the other process, or wait until it ends")

    def _check_sessions(self) -> None:
        """Raise `StoreError` if one connection has several sessions, or several connections share one.

        PgBouncer with `pool_mode = transaction` does both: locks would stay in a session that others use.
        """
        with closing(self._connection()) as one, closing(self._connection()) as other:
            sessions = []
            for connection in (one, other, one):
                with connection.begin():
                    sessions += connection.fetch("SELECT pg_backend_pid()")
        if sessions[0] != sessions[2] or sessions[0] == sessions[1]:
            raise StoreError(
                f"{self.name} is behind a pooler that gives each transaction another session, and locks need one for a"
                " connection: set pool_mode = session in PgBouncer, or connect to the server itself"
            )

    def create(self, form: Format, fill: Callable[[Connection], object]) -> bool:
        with self.errors(), closing(self._connection()) as connection, connection.begin():
            alone = "SELECT pg_advisory_xact_lock(hashtextextended(:name, 1))"
            connection.fetch(alone, {"name": self._schema})
            if _exists(connection):
                return False
            connection.change(f"CREATE SCHEMA IF NOT EXISTS {self._quoted}")
            form.create_tables(connection)
            connection.change("CREATE TABLE format (name text NOT NULL, version integer NOT NULL)")
            row = {"name": form.name, "version": form.version}
            connection.change("INSERT INTO format VALUES (:name, :version)", row)
            fill(connection)
            return True

    @contextmanager
    def reading(self, form: Format) -> Iterator[Connection]:
        with self.errors(), closing(self._connection()) as connection, connection.begin():
            connection.change("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ READ ONLY")
            if not _exists(connection):
                raise StoreError(f"{self.name} has no jobs: there is no such schema")
            self._check_version(connection, form)
            yield connection

    def open_for_writing(self, form: Format) -> Connection:
        with self.errors():
            connection = self._connection()
            with closed_on_error(connection), connection.begin():
                self._check_version(connection, form)
            return connection

    def _check_version(self, connection: Connection, form: Format) -> None:
        rows = connection.fetch("SELECT name, version FROM format")
        if len(rows) != 1 or rows[0][0] != form.name:
            raise StoreDamagedError(f"{self.name} is not a streamdp {form.name}")
        form.check_version(self.name, rows[0][1])

    @contextmanager
    def spending(self, connection: Connection) -> Iterator[None]:
        with connection.begin():
            connection.fetch(f"SELECT pg_advisory_xact_lock_shared({_FIRST})", {"name": self._schema})
            yield

    def come_first(self) -> Callable[[], None]:
        """See `Database.come_first`. A transaction holds them back, which the server ends if it is idle for long."""
        with self.errors():
            connection = self._connection()
            with closed_on_error(connection):  # the statement begins a transaction, which ends with the connection
                connection.fetch(f"SELECT pg_advisory_xact_lock({_FIRST})", {"name": self._schema})
            return connection.close

    def hold(self, connection: Connection, number: int) -> bool:
        """See `Database.hold`. The server ends the lock with the session, also if the process was killed."""
        lock = f"SELECT pg_try_advisory_lock({_HELD})"
        ((taken,),) = connection.fetch(lock, {"name": self._of_job, "number": number})
        return bool(taken)

    def held(self, connection: Connection, numbers: Sequence[int]) -> list[int]:
        granted = connection.fetch(
            "SELECT (classid::bigint << 32) | objid::bigint"
            " FROM pg_locks JOIN pg_database ON pg_database.oid = database"
            " WHERE locktype = 'advisory' AND granted AND objsubid = 1 AND datname = current_database()"
        )
        key, name = f"SELECT {_HELD}", self._of_job
        return [n for n in numbers if connection.fetch(key, {"name": name, "number": n})[0] in granted]

    def session(self, connection: Connection) -> Session | None:
        ((pid, begun),) = connection.fetch(f"SELECT pid, {_BEGUN} FROM pg_stat_activity WHERE pid = pg_backend_pid()")
        return Session(pid, begun)

    def end_session(self, connection: Connection, session: Session) -> None:
        ends = (
            f"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE pid = :number AND {_BEGUN} = :begun"
            " AND pid != pg_backend_pid()"
        )
        connection.fetch(ends, session._asdict())

    @contextmanager
    def errors(self) -> Iterator[None]:
        try:
            yield
        except psycopg.Error as error:
            code = error.sqlstate or ""
            # An error without a code does not come from the server: it was unreachable, or it refused the connection.
            unreachable = isinstance(error, psycopg.OperationalError | psycopg.InterfaceError) and not code
            if unreachable and _FINAL.search(str(error)):
                raise StoreError(
                    f"{self.name} refuses the connection ({_refusal(error)}); see user, password, database and TLS"
                ) from None
            if unreachable or code.startswith(_UNAVAILABLE) or code in _LOCKED:
                raise StoreUnavailableError(f"{self.name} does not answer ({code or _refusal(error)})") from None
            if code.startswith(_DAMAGED):
                raise StoreDamagedError(f"{self.name} is damaged: PostgreSQL says {code}") from None
            raise StoreError(f"cannot use {self.name}: PostgreSQL says {code or str(error).strip()}") from None


def _exists(connection: Connection) -> bool:
    return connection.fetch("SELECT to_regclass('format')") != [(None,)]


def _refusal(error: psycopg.Error) -> str:
    """Why the server refused the connection, such as `password authentication failed for user "me"`, if it said so."""
    _, said, reason = str(error).partition("FATAL:")
    if said:
        return reason.strip().partition("\n")[0]
    return next((why for pattern, why in _WHY if re.search(pattern, str(error))), "no connection")
