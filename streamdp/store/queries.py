"""Reading the tables of a store on a connection of SQLAlchemy; see `reading` for a file."""

from __future__ import annotations

from typing import Any

from sqlalchemy import Connection, Row, select, text

from streamdp.store.snapshot import Commit, Snapshot
from streamdp.store.snapshot_codec import ALL_SHARDS, only_job, read_commit, snapshots_of
from streamdp.store.tables import COMMITS, JOBS

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
    """Return the last snapshot of every shard, in the order of the shards.

    Parameters
    ----------
    name
        The database, for messages.

    Raises `StoreDamagedError` if a checksum fails.
    """
    rows = connection.execute(text(ALL_SHARDS)).all()
    return snapshots_of(rows, read_job(connection, name), name)


def read_history(connection: Connection, limit: int, name: str) -> list[Commit]:
    """Return the last commits, oldest first.

    Parameters
    ----------
    limit
        The most commits to return.
    name
        The database, for messages.

    Raises `StoreDamagedError` if a checksum fails.
    """
    newest = (COMMITS.c.committed_at.desc(), COMMITS.c.seq.desc())
    rows = connection.execute(select(COMMITS).order_by(*newest).limit(limit)).all()
    job = read_job(connection, name).job
    return [read_commit(row._asdict(), job, name) for row in reversed(rows)]
