"""What `store` needs of a database: seven verbs, so that nothing there is particular to SQLite or PostgreSQL."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Protocol

from sqlalchemy import Connection, MetaData


@dataclass(frozen=True)
class Format:
    """What a database holds: a name for messages, SQLite's `application_id`, a version, tables, migrations.

    `migrations[v]` takes it from version v to v + 1 within the one transaction that takes it to `version`.
    """

    name: str
    application_id: int
    version: int
    tables: MetaData
    migrations: Mapping[int, Callable[[Connection], None]] = field(default_factory=dict)

    def create_tables(self, connection: Connection) -> None:
        """All but those whose `info` says that they are `only` for the other kind of database."""
        here = connection.dialect.name
        tables = [table for table in self.tables.sorted_tables if table.info.get("only", here) == here]
        self.tables.create_all(connection, tables)


class Lock(Protocol):
    """Who may write; released by `release` and by the process's death."""

    def release(self) -> None: ...


class Database(Protocol):
    """One job's tables, in a file or in a namespace of a server."""

    @property
    def name(self) -> str:
        """For messages and for `StoreError`s; without any password."""

    @property
    def key_file(self) -> str | None:
        """Where the subject key may live beside the database; None where there is no such place."""

    def lock(self, shared: bool) -> Lock:
        """For one process, or (`shared`) for the workers of one group. Raises `StoreBusyError`."""

    def create(self, form: Format, fill: Callable[[Connection], object]) -> bool:
        """Make the tables and what `fill` writes, whole or not at all; False where they are there already.

        Only for the holder of the lock, of either kind.
        """

    def reading(self, form: Format) -> AbstractContextManager[Connection]:
        """A connection that cannot write and sees the last commit. Needs no lock."""

    def check(self, connection: Connection) -> None:
        """Let the database look for damage in itself; raises `StoreDamagedError`."""

    def open_for_writing(self, form: Format) -> Connection:
        """A connection whose commits are on disk when they return, to tables of `form.version`."""

    def errors(self) -> AbstractContextManager[None]:
        """Turn the driver's errors into `StoreError` and its kinds."""

    def close(self, connection: Connection) -> None: ...
