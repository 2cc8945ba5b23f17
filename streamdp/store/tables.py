"""The tables of a database of jobs, the same in SQLite and PostgreSQL."""

from __future__ import annotations

from typing import Any

from sqlalchemy import (
    BigInteger,
    Column,
    ColumnElement,
    Double,
    Integer,
    LargeBinary,
    MetaData,
    Table,
    Text,
    and_,
    bindparam,
    text,
)

from streamdp.data.records import Shard
from streamdp.database.interface import Format
from streamdp.ledger.tables import add_tables
from streamdp.store.snapshot_codec import NAMES

_metadata = MetaData()
add_tables(_metadata)  # the ledger of all jobs
JOBS = Table(
    "jobs",
    _metadata,
    Column("job", Text, primary_key=True),
    Column("fingerprint", Text, nullable=False),
    Column("config", Text, nullable=False),
    Column("capped", Integer, nullable=False),  # 1: the ledger admits its records
)


def _shard_columns() -> tuple[Column[object], ...]:
    return (
        Column("job", Text, primary_key=True),
        Column("topic", Text, primary_key=True),
        Column("partition", Integer, primary_key=True, autoincrement=False),
    )


def _commit_columns() -> tuple[Column[object], ...]:
    return (
        Column("committed_at", Double, nullable=False),
        Column("learned", BigInteger, nullable=False),
        Column("refused", BigInteger, nullable=False),
        Column("dead", BigInteger, nullable=False),
        Column("left_out", BigInteger, nullable=False),
        Column("position", Text, nullable=False),
    )


SHARDS = Table(
    "shards",
    _metadata,
    *_shard_columns(),
    Column("epoch", BigInteger, nullable=False),
    Column("seq", BigInteger, nullable=False),  # 0: claimed, nothing committed yet
    *_commit_columns(),
    Column("state", Text, nullable=False),
    Column("checksum", LargeBinary(32), nullable=False),
    Column("waiting", BigInteger, nullable=False, server_default="0"),  # not in the checksum
)
COMMITS = Table(
    "commits",
    _metadata,
    *_shard_columns(),
    Column("seq", BigInteger, primary_key=True, autoincrement=False),
    *_commit_columns(),
    Column("checksum", LargeBinary(16), nullable=False),
)
SINKS = Table(
    "sinks",
    _metadata,
    Column("job", Text, primary_key=True),
    Column("place", Integer, primary_key=True, autoincrement=False),  # in the job's list
    Column("name", Text, nullable=False),
    Column("seq", BigInteger, nullable=False),  # of the newest commit that it has; 0: none
    Column("committed_at", Double, nullable=False),
    Column("failing_since", Double, nullable=False),  # 0: it does not fail
    Column("reason", Text, nullable=False),
)

ADD_SHARD = text(
    f"INSERT INTO shards (job, topic, partition, epoch, {', '.join(NAMES)}, state, checksum)"
    " VALUES (:job, :topic, :partition, 0, 0, 0, 0, 0, 0, 0, '', '', :checksum)"
    " ON CONFLICT (job, topic, partition) DO NOTHING"
).bindparams(checksum=b"")
"""Add a shard without any commit, unless it exists."""


STORE_FORMAT = Format("store", 0x73445073, 1, _metadata)


def of_shard(table: Table) -> ColumnElement[bool]:
    """Return the condition that a row belongs to the shard that `named` gives to a statement."""
    mine = table.c.job == bindparam("of_job")
    return and_(mine, table.c.topic == bindparam("of_topic"), table.c.partition == bindparam("of_partition"))


def named(job: str, shard: Shard) -> dict[str, Any]:
    """Return the parameters of a statement with `of_shard`: a job and one of its shards."""
    return {"of_job": job, "of_topic": shard.topic, "of_partition": shard.partition}
