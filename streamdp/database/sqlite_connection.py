"""One connection to an SQLite file, and its transactions."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from streamdp.database.interface import Connection, Parameters
from streamdp.database.sqlite_driver import open_file


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
