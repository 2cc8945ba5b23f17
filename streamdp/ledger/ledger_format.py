"""The format of a ledger that has a database of its own: its spends, and what the jobs that share it leave there."""

from __future__ import annotations

from sqlalchemy import BigInteger, Column, Connection, Double, Integer, LargeBinary, MetaData, Table, Text

from streamdp.database.interface import Format
from streamdp.ledger.charged_rows import write_mark
from streamdp.ledger.tables import add_tables

_metadata = MetaData()
add_tables(_metadata)
SUBJECT_KEY = Table("subject_key", _metadata, Column("fingerprint", LargeBinary(16), primary_key=True))
VERSION = Table(  # one row; a transaction that writes updates it first, so there is one writer at a time
    "version",
    _metadata,
    Column("version", BigInteger, primary_key=True, autoincrement=False),
)
CAPS = Table(  # the newest row is the cap of the jobs that share the ledger
    "caps",
    _metadata,
    Column("number", Integer, primary_key=True),
    Column("cap", Text, nullable=False),
    Column("since", Double, nullable=False),
)
JOBS = Table(  # what each job has charged; `store` is the mark of its store
    "jobs",
    _metadata,
    Column("job", Text, primary_key=True),
    Column("store", LargeBinary(16), nullable=False),
    Column("records", BigInteger, nullable=False),
    Column("epsilon", Double, nullable=False),
    Column("delta", Double, nullable=False),
    Column("mu_squared", Double, nullable=False),
    Column("charged_at", Double, nullable=False),
)
SPANS = Table(  # of each shard of a job: who may charge, and what is prepaid after the commit `seq` and after the next
    "spans",
    _metadata,
    Column("job", Text, primary_key=True),
    Column("topic", Text, primary_key=True),
    Column("partition", Integer, primary_key=True, autoincrement=False),
    Column("token", LargeBinary(16), nullable=False),
    Column("charges", BigInteger, nullable=False),
    Column("seq", BigInteger, nullable=False),
    Column("position", Text, nullable=False),
    Column("prepaid", LargeBinary, nullable=False),
    Column("remaining", LargeBinary, nullable=False),
    Column("epoch", BigInteger, nullable=False),  # that of the claim in the store; 0: not known
)


def first_version(connection: Connection) -> None:
    """Write the row of the table `version` and the mark, in the transaction that creates the database."""
    connection.execute(VERSION.insert().values(version=0))
    write_mark(connection)


LEDGER_FORMAT = Format("ledger", 0x7344506C, 1, _metadata)
