"""The tables of spends in each kind of database.

An SQLite file has `spend_pages` and `spend_log` (see `sqlite_pages`). A PostgreSQL database has `spends`, one row for
each subject (see `postgres_rows`).
"""

from __future__ import annotations

from sqlalchemy import DDL, BigInteger, Column, Double, Integer, LargeBinary, MetaData, Table, Text, event

_metadata = MetaData()
LEDGER = Table(  # one row (see `ledger_rows`)
    "ledger",
    _metadata,
    Column("mark", LargeBinary(16), nullable=False),
    Column("key_fingerprint", LargeBinary(16)),
    Column("version", BigInteger, nullable=False),
)
CAPS = Table(  # the newest row is the cap
    "caps",
    _metadata,
    Column("number", Integer, primary_key=True),
    Column("cap", Text, nullable=False),
    Column("since", Double, nullable=False),
)
CHARGED = Table(  # the caps that were in force while anything was charged; a cap may be there several times
    "charged",
    _metadata,
    Column("cap", Text, nullable=False),
    Column("own", Integer, nullable=False),  # 1: the cap of a single subject
)


def add_tables(metadata: MetaData) -> None:
    """Declare the tables of both kinds of database, in place."""
    for table in (LEDGER, CAPS, CHARGED):
        table.to_metadata(metadata)
    spends = Table(
        "spends",
        metadata,
        Column("subject", LargeBinary(16), primary_key=True),
        Column("spend", LargeBinary, nullable=False),
        info={"only": "postgresql"},
    )
    # So that a new version of a row fits its page, and its index stays. Its own option would load the dialect.
    event.listen(spends, "after_create", DDL("ALTER TABLE %(fullname)s SET (fillfactor = 50)"))  # type: ignore[no-untyped-call]
    Table(
        "spend_pages",
        metadata,
        Column("page", Integer, primary_key=True),
        Column("subjects", Integer, nullable=False),
        Column("spends", LargeBinary, nullable=False),
        info={"only": "sqlite"},
    )
    Table(
        "spend_log",
        metadata,
        Column("entry", Integer, primary_key=True),
        Column("spends", LargeBinary, nullable=False),
        info={"only": "sqlite"},
    )
