"""Transactions of an SQLite file that several processes write to."""

import contextlib
import sqlite3
from pathlib import Path

import pytest

from streamdp.database.sqlite import SQLiteFile, store_errors
from streamdp.errors import StoreError, StoreUnavailableError
from streamdp.ledger.ledger_rows import create_ledger
from tests.support.kept import LEDGER_FORMAT


def test_a_transaction_may_read_before_it_writes(tmp_path: Path) -> None:
    """Nobody writes in between: the other one waits. SQLite would refuse the write after it, and no wait would help."""
    file = SQLiteFile(tmp_path / "shared.db")
    unlock = file.lock(shared=True)
    file.create(LEDGER_FORMAT, create_ledger)
    one, other = file.open_for_writing(LEDGER_FORMAT), file.open_for_writing(LEDGER_FORMAT)
    other.fetch("PRAGMA busy_timeout = 0")
    caps, row = "SELECT cap FROM caps", "INSERT INTO caps (cap, since) VALUES ('eps=1', 0.0)"
    with file.errors(), one.begin():
        assert one.fetch(caps) == []
        with pytest.raises(StoreUnavailableError, match=r"shared\.db"), file.errors(), other.begin():
            other.change(row)
        one.change(row)
    with file.errors(), other.begin():
        assert other.fetch(caps) == [("eps=1",)]
        other.change(row)
    with file.reading(LEDGER_FORMAT) as reader:
        assert len(reader.fetch(caps)) == 2
    for connection in (one, other):
        connection.close()
    unlock()


def test_a_file_that_a_user_may_not_open_says_what_the_user_needs() -> None:
    error = sqlite3.OperationalError("unable to open database file")
    error.sqlite_errorcode = sqlite3.SQLITE_CANTOPEN
    wanted = "unable to open database file; this user must be allowed to read it"
    with pytest.raises(StoreError, match=wanted), store_errors("a.db"):
        raise error


def test_a_state_that_is_too_large_is_no_damage() -> None:
    driver = sqlite3.connect(":memory:")
    driver.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, 1000)
    wanted = "string or blob too big; the state of the model is too large for a store: declare fewer columns"
    with contextlib.closing(driver), pytest.raises(StoreError, match=wanted), store_errors("a.db"):
        driver.execute("SELECT ?", [bytes(1001)])
