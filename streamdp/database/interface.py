"""The interface of a database that a store uses: nothing above it depends on SQLite or PostgreSQL."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

from streamdp.errors import StoreVersionError

Parameters = Mapping[str, object] | tuple[object, ...]
"""The parameters of a statement: by name for `:name`, or in order for the placeholders of the driver."""


class Connection(Protocol):
    """A connection to a database. Statements are made inside a transaction, but for a few that say so."""

    server: bool
    """Whether it is to a PostgreSQL server, and not to an SQLite file."""

    closed: bool = False
    """Whether the connection was closed."""

    def fetch(self, statement: str, parameters: Parameters = ()) -> list[tuple[Any, ...]]:
        """Return all rows of a statement."""

    def change(self, statement: str, parameters: Parameters = ()) -> int:
        """Execute a statement that returns no rows; return how many rows it changed."""

    def change_each(self, statement: str, rows: Sequence[Parameters]) -> int:
        """Execute a statement for each of some rows of parameters, at least one; return how many rows were changed."""

    def in_transaction(self) -> bool:
        """Return whether a transaction is open."""

    def begin(self) -> AbstractContextManager[object]:
        """Begin a transaction: it is committed at the end, or rolled back after an exception."""

    def close(self) -> None:
        """Close it. An open transaction is rolled back."""


@dataclass(frozen=True)
class Format:
    """The format of a database: its tables and its version.

    The `tables` are statements that make them, in the words of PostgreSQL. Those of `on_server` and `in_file` are made
    in databases of one kind alone.
    """

    name: str  # the kind of database, for messages and for PostgreSQL's `format` table
    application_id: int  # in the header of an SQLite file
    version: int  # the version that this program writes and reads
    tables: Sequence[str]
    on_server: Sequence[str]
    in_file: Sequence[str]

    def check_version(self, name: str, version: int) -> None:
        """Raise `StoreVersionError` if the database `name` says that it has another version."""
        if version != self.version:
            raise StoreVersionError(
                f"{name} has format {version}, and this program reads format {self.version}: use the one that wrote it"
            )

    def create_tables(self, connection: Connection) -> None:
        """Create the tables of the connection's kind of database, in an empty one."""
        for statement in (*self.tables, *(self.on_server if connection.server else self.in_file)):
            connection.change(statement if connection.server else in_sqlite(statement))


def in_sqlite(statement: str) -> str:
    """Return a statement that makes a table in the words of SQLite."""
    return statement.replace("BYTEA", "BLOB").replace("SERIAL", "INTEGER")


class Session(NamedTuple):
    """A session of a server."""

    number: int
    begun: str  # later sessions may have the same number


class Database(Protocol):
    """The tables of any number of jobs, in a file or in a schema of a server; used by one of them."""

    name: str
    """The name for messages, without any password."""

    accept_loss: bool
    """Whether a database that has lost commits is opened all the same. Set it before `lock`."""

    losses: int
    """How often a user accepted a loss of commits. Known after `create` has made the database, or `reading`."""

    key_file: str | None
    """The path of the subject key beside the database; None if the database is on a server."""

    def lock(self, shared: bool) -> Callable[[], None]:
        """Take the lock that a writer of the job needs, which other workers of the job may hold too if it is `shared`.

        Return what gives it up, as the end of the process does. Raises `StoreBusyError` if another holder excludes this
        one.
        """

    def create(self, form: Format, fill: Callable[[Connection], object]) -> bool:
        """Create the tables and write their first rows, or nothing; False if the tables exist already.

        Only for the holder of the lock, shared or not. `fill` writes the first rows, inside the transaction that
        creates the tables. Raises `StoreLostError` if there was a database, unless `accept_loss` is set.
        """

    def remove(self, used: str) -> None:
        """Remove a file that `create` has made, unless others have its lock or the statement `used` finds a row.

        Only for the holder of the lock, when its connections are closed. The tables of a server stay.
        """
        return

    def reading(self, form: Format) -> AbstractContextManager[Connection]:
        """Return a connection that cannot write and sees the last commit, without a lock.

        Raises `StoreError` if there is no such database, `StoreDamagedError` if it has another format,
        `StoreVersionError` if it has another version, and `StoreLostError` if it has lost commits, unless `accept_loss`
        is set.
        """

    def check(self, connection: Connection) -> None:
        """Let the database look for damage in its files, by a connection from `reading`. A server checks its own.

        Raises `StoreDamagedError` if it finds any.
        """
        return

    def open_for_writing(self, form: Format) -> Connection:
        """Return a connection whose commits are on disk when they return."""

    def spending(self, connection: Connection) -> AbstractContextManager[object]:
        """Return a transaction that writes spends, by a connection from `open_for_writing`.

        It waits while another connection holds spends back.
        """

    def come_first(self) -> Callable[[], None]:
        """Wait for the transactions of `spending` under way, and hold further ones back; return what ends that.

        The end of the process ends it, too, and so does a server if the process does not go on for some seconds.
        Transactions of the caller must not be `spending` before the end.
        """

    def hold(self, connection: Connection, number: int) -> bool:
        """Take a lock by its number, from 0, which ends with the connection; False if another connection has it.

        The connection is from `open_for_writing`, inside a transaction. The lock stays when the transaction ends.
        """

    def held(self, connection: Connection, numbers: Sequence[int]) -> list[int]:
        """Return which locks of these numbers a connection has taken by `hold`, seen by a connection from `reading`."""

    def session(self, connection: Connection) -> Session | None:
        """Return the session of a connection from `open_for_writing`, inside a transaction; None if it has none."""
        return None

    def end_session(self, connection: Connection, session: Session) -> None:
        """End another session, of an earlier connection of the caller, and what it holds, if it has not ended yet.

        A server may notice late that a connection was cut. The connection is as for `session`.
        """
        return

    def errors(self) -> AbstractContextManager[None]:
        """Turn the driver's errors into `StoreError` and its kinds."""
