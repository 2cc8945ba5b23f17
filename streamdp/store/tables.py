"""The tables of a store, the same in SQLite and PostgreSQL, and the migrations of older SQLite files."""

from __future__ import annotations

from typing import Any

from sqlalchemy import (
    BigInteger,
    Column,
    ColumnElement,
    Connection,
    Double,
    Integer,
    LargeBinary,
    MetaData,
    Table,
    Text,
    and_,
    bindparam,
    inspect,
    text,
)

from streamdp.data.records import Shard
from streamdp.database.interface import Format
from streamdp.ledger.spends import add_caps
from streamdp.ledger.tables import add_tables
from streamdp.store.snapshot_codec import NAMES, STORE_HEADER

_metadata = MetaData()
add_tables(_metadata)  # what a job's ledger writes
JOBS = Table(
    "jobs",
    _metadata,
    Column("job", Text, primary_key=True),
    Column("fingerprint", Text, nullable=False),
    Column("config", Text, nullable=False),
    Column("key_fingerprint", LargeBinary(16)),  # NULL: no cap; if the ledger is apart, the store's random mark
)


def _shard_columns() -> tuple[Column[Any], ...]:
    return (
        Column("topic", Text, primary_key=True),
        Column("partition", Integer, primary_key=True, autoincrement=False),
    )


def _commit_columns() -> tuple[Column[Any], ...]:
    return (
        Column("committed_at", Double, nullable=False),
        Column("learned", BigInteger, nullable=False),
        Column("refused", BigInteger, nullable=False),
        Column("dead", BigInteger, nullable=False),
        Column("position", Text, nullable=False),
    )


SHARDS = Table(  # since format 3; before it, a job had one shard, in the table `snapshot`
    "shards",
    _metadata,
    *_shard_columns(),
    Column("epoch", BigInteger, nullable=False),
    Column("seq", BigInteger, nullable=False),  # 0: claimed, nothing committed yet
    *_commit_columns(),
    Column("state", Text, nullable=False),
    Column("checksum", LargeBinary(32), nullable=False),
    Column("waiting", BigInteger, nullable=False, server_default="0"),  # since format 6; the checksum is without it
)
COMMITS = Table(  # since format 2
    "commits",
    _metadata,
    *_shard_columns(),
    Column("seq", BigInteger, primary_key=True, autoincrement=False),
    *_commit_columns(),
    Column("checksum", LargeBinary(16)),  # since format 5; NULL in older rows
)

ADD_SHARD = text(
    f"INSERT INTO shards (topic, partition, epoch, {', '.join(NAMES)}, state, checksum)"
    " VALUES (:topic, :partition, 0, 0, 0, 0, 0, 0, '', '', :checksum) ON CONFLICT (topic, partition) DO NOTHING"
).bindparams(checksum=b"")
"""Add a shard without any commit, unless it exists."""


def _add_commits(connection: Connection) -> None:
    """From format 1, which has no history: it begins with the last snapshot."""
    connection.execute(text("CREATE TABLE commits AS SELECT " + ", ".join(NAMES) + " FROM snapshot"))


def _add_shards(connection: Connection) -> None:
    """From format 2, which has one shard."""
    connection.execute(text("ALTER TABLE commits RENAME TO old_commits"))
    SHARDS.create(connection)
    COMMITS.create(connection)
    names = ", ".join(NAMES)
    connection.execute(text(f"INSERT INTO commits (topic, partition, {names}) SELECT '', 0, {names} FROM old_commits"))
    connection.execute(
        text(
            f"INSERT INTO shards (topic, partition, epoch, {names}, state, checksum)"
            f" SELECT '', 0, 0, {names}, state, checksum FROM snapshot"
        )
    )
    for table in ("old_commits", "snapshot"):
        connection.execute(text(f"DROP TABLE {table}"))


def _add_checksums(connection: Connection) -> None:
    """From format 4, whose history has no checksums."""
    if not has_checksums(connection):  # the migration from format 2 has made the table new
        kind = "BLOB" if connection.dialect.name == "sqlite" else "BYTEA"
        connection.execute(text(f"ALTER TABLE commits ADD COLUMN checksum {kind}"))


def _add_waiting(connection: Connection) -> None:
    """From format 5, which does not know how many records wait in an open batch."""
    if not _has_column(connection, "shards", "waiting"):  # as above
        connection.execute(text("ALTER TABLE shards ADD COLUMN waiting BIGINT DEFAULT 0 NOT NULL"))


MIGRATIONS = {1: _add_commits, 2: _add_shards, 3: add_caps, 4: _add_checksums, 5: _add_waiting}
STORE_FORMAT = Format(STORE_HEADER.name, STORE_HEADER.application_id, STORE_HEADER.version, _metadata, MIGRATIONS)


def has_checksums(connection: Connection) -> bool:
    """Whether the rows of the history have checksums, as they do since format 5."""
    return _has_column(connection, "commits", "checksum")


def _has_column(connection: Connection, table: str, name: str) -> bool:
    return any(column["name"] == name for column in inspect(connection).get_columns(table))


def of_shard(table: Table) -> ColumnElement[bool]:
    """Return the condition that a row belongs to the shard that `named` gives to a statement."""
    return and_(table.c.topic == bindparam("of_topic"), table.c.partition == bindparam("of_partition"))


def named(shard: Shard) -> dict[str, Any]:
    """Return the parameters of a statement with `of_shard`."""
    return {"of_topic": shard.topic, "of_partition": shard.partition}
