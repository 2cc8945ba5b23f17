"""The interface of a database that a store uses: nothing above it depends on SQLite or PostgreSQL."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple, Protocol

from streamdp.errors import StoreVersionError

if TYPE_CHECKING:
    from sqlalchemy import Connection, MetaData


@dataclass(frozen=True)
class Format:
    """The format of a database: its tables and its version.

    A table whose `info` has the entry `only` is created in databases of that dialect alone.
    """

    name: str  # the kind of database, for messages and for PostgreSQL's `format` table
    application_id: int  # in the header of an SQLite file
    version: int  # the version that this program writes and reads
    tables: MetaData

    def check_version(self, name: str, version: int) -> None:
        """Raise `StoreVersionError` if the database `name` says that it has another version."""
        if version != self.version:
            raise StoreVersionError(
                f"{name} has format {version}, and this program reads format {self.version}: use the one that wrote it"
            )

    def create_tables(self, connection: Connection) -> None:
        """Create the tables of the connection's dialect, in an empty database."""
        here = connection.dialect.name
        tables = [table for table in self.tables.sorted_tables if table.info.get("only", here) == here]
        self.tables.create_all(connection, tables, checkfirst=False)


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

    def close(self, connection: Connection) -> None:
        """Close a connection from `open_for_writing`."""
