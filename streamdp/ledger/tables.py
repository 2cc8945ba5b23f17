"""The tables of spends in each kind of database.

An SQLite file has `spend_pages` and `spend_log` (see `sqlite_pages`). A PostgreSQL database has `spends`, one row for
each subject (see `postgres_rows`), so that workers that write different subjects do not wait for each other.
"""

from __future__ import annotations

from sqlalchemy import Column, Integer, LargeBinary, MetaData, Table, Text

_metadata = MetaData()
MARKS = Table("ledger_mark", _metadata, Column("mark", LargeBinary(16), nullable=False))  # one row: which ledger it is
CHARGED = Table(  # the caps that were in force while anything was charged; a cap may be there several times
    "charged",
    _metadata,
    Column("cap", Text, nullable=False),
    Column("own", Integer, nullable=False),  # 1: the cap of a single subject
)


def add_tables(metadata: MetaData) -> None:
    """Declare the tables of both kinds of database, in place."""
    for table in (MARKS, CHARGED):
        table.to_metadata(metadata)
    Table(
        "spends",
        metadata,
        Column("subject", LargeBinary(16), primary_key=True),
        Column("spend", LargeBinary, nullable=False),
        info={"only": "postgresql"},
    )
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
