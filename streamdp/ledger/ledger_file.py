"""The database of a ledger that is not part of a store: its own file, or a temporary database."""

from __future__ import annotations

import os
import secrets
from collections.abc import Callable
from functools import partial

from sqlalchemy import Connection

from streamdp.database.sqlite import SQLiteFile
from streamdp.database.sqlite_connection import close, connect
from streamdp.database.sqlite_driver import store_errors
from streamdp.ledger.ledger_rows import create_ledger, read_fingerprint
from streamdp.ledger.subject_key import check_key, given_key, key_fingerprint, make_key, matching_key
from streamdp.ledger.tables import LEDGER_FORMAT


class LedgerFile:
    """An open database with spends and nothing else, for one process at a time.

    The file at `path` is created if it does not exist. None is a temporary database that is deleted on `close`; without
    a key it gets a random one, and a file is opened as in `subject_key`. `errors` turns the errors of `connection` into
    `StoreError`s. Raises as `Store`.
    """

    def __init__(self, path: str | os.PathLike[str] | None, key: bytes | None) -> None:
        self._unlock: Callable[[], None] | None = None
        if path is None:
            self.key = secrets.token_bytes(32) if key is None else check_key(key)
            self.errors = partial(store_errors, "the ledger")
            self.connection = _temporary()
            return
        file = SQLiteFile(path)
        self._unlock = unlock = file.lock(shared=False)
        try:
            self.key = _key_of(file, key)
            self.errors = partial(store_errors, file.name)
            self.connection = file.open_for_writing(LEDGER_FORMAT)
        except BaseException:
            unlock()
            raise

    def close(self) -> None:
        """Close the database and release its lock."""
        close(self.connection)
        if self._unlock is not None:
            self._unlock()


def _temporary() -> Connection:
    connection = connect("")
    with connection.begin():
        LEDGER_FORMAT.create_tables(connection)
        create_ledger(connection)
    return connection


def _key_of(database: SQLiteFile, key: bytes | None) -> bytes:
    """Create the file; or, if it exists, check it without a write to it. Returns the subject key.

    Raises `StoreMismatchError` for another key, and `StoreDamagedError` if the file is damaged.
    """
    found = given_key(database.key_file, key)
    made: list[bytes] = []

    def fill(connection: Connection) -> None:
        made.append(found or make_key(database.key_file))
        create_ledger(connection, key_fingerprint(made[0]))

    if database.create(LEDGER_FORMAT, fill):
        return made[0]
    with database.reading(LEDGER_FORMAT) as connection:
        database.check(connection)
        return matching_key(database.name, database.key_file, found, read_fingerprint(connection))
