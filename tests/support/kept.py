"""Ledgers whose spends are kept in a file, or in a temporary database."""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from weakref import WeakKeyDictionary

from streamdp import Ledger, Store
from streamdp.database.interface import Format
from streamdp.database.sqlite import connect, store_errors
from streamdp.ledger import tables
from streamdp.ledger.ledger_rows import create_ledger
from streamdp.ledger.paging import PagedRows
from streamdp.ledger.periods import parse_cap
from streamdp.ledger.stored import StoredLedger
from streamdp.privacy.guarantees import Budget
from streamdp.store.snapshot import Counts

LEDGER_FORMAT = Format("ledger", 0x7344506C, 1, tables.TABLES, tables.ON_SERVER, tables.IN_FILE)
"""A database that has spends and nothing else."""


@contextmanager
def kept(cap: Budget | str, path: Path, key: bytes | None = None) -> Iterator[Ledger]:
    """The ledger of a store, which commits at the end."""
    with Store(path, "job", "1", cap=cap, key=key) as store:
        assert store.ledger is not None
        yield store.ledger
        store.commit({}, {}, Counts())


def paged(cap: str) -> StoredLedger:
    """A ledger over a temporary database, of which a test makes the `commit`s."""
    connection = connect("")
    with connection.begin():
        LEDGER_FORMAT.create_tables(connection)
        create_ledger(connection)
    rows = PagedRows(connection, partial(store_errors, "the ledger"), parse_cap(cap))
    ledger = StoredLedger.over(rows, parse_cap(cap), bytes(32))
    _rows[ledger] = rows
    return ledger


_rows: WeakKeyDictionary[StoredLedger, PagedRows] = WeakKeyDictionary()


def commit(ledger: StoredLedger) -> None:
    """Write the pending spends of a `paged` ledger."""
    connection = _rows[ledger].open_connection()
    with ledger.lock:
        with connection.begin():
            ledger.write_pending(connection)
        ledger.mark_committed()
