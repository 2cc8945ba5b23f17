"""Reading the tables of a store on a connection of SQLAlchemy; see `reading` for a file."""

from __future__ import annotations

from typing import Any

from sqlalchemy import Connection, Row, inspect, select, text

from streamdp.store.snapshot import Commit, Snapshot
from streamdp.store.snapshot_codec import ALL_SHARDS, OLDER_SHARDS, only_job, read_commit, snapshots_of
from streamdp.store.tables import COMMITS, JOBS, has_checksums

_JOB = select(JOBS)


def read_job(connection: Connection, name: str) -> Row[Any]:
    """Return the row of the job.

    Parameters
    ----------
    name
        The database, for messages.

    Raises `StoreDamagedError` unless there is exactly one.
    """
    row: Row[Any] = only_job(connection.execute(_JOB).all(), name)
    return row


def read_snapshots(connection: Connection, name: str) -> list[Snapshot]:
    """Return the last snapshot of every shard, in the order of the shards; also from an older format.

    Parameters
    ----------
    name
        The database, for messages.

    Raises `StoreDamagedError` if a checksum fails.
    """
    rows = connection.execute(text(ALL_SHARDS if _has_shards(connection) else OLDER_SHARDS)).all()
    return snapshots_of(rows, read_job(connection, name), name)


def read_history(connection: Connection, limit: int, name: str) -> list[Commit]:
    """Return the last commits, oldest first; none from a format before 3.

    Parameters
    ----------
    limit
        The most commits to return.
    name
        The database, for messages.

    Raises `StoreDamagedError` if a checksum fails. Rows of a format before 5 have none.
    """
    if not _has_shards(connection):
        return []
    newest = (COMMITS.c.committed_at.desc(), COMMITS.c.seq.desc())
    columns = [column for column in COMMITS.c if column.name != "checksum" or has_checksums(connection)]
    rows = connection.execute(select(*columns).order_by(*newest).limit(limit)).all()
    job = read_job(connection, name).job
    return [read_commit(row._asdict(), job, name) for row in reversed(rows)]


def _has_shards(connection: Connection) -> bool:
    return inspect(connection).has_table("shards")
