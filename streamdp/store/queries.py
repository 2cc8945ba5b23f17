"""Reading the tables of a store on a connection of SQLAlchemy; see `reading` for a file."""

from __future__ import annotations

from typing import Any

from sqlalchemy import Connection, Row, select, text

from streamdp.store.snapshot import Commit, Snapshot
from streamdp.store.snapshot_codec import ALL_SHARDS, job_of, read_commit, snapshots_of
from streamdp.store.tables import COMMITS, JOBS

_JOB = select(JOBS)


def read_job(connection: Connection, job: str | None, name: str) -> Row[Any]:
    """Return the row of a job. `job` and `name` are those of `job_of`, which has the errors."""
    row: Row[Any] = job_of(connection.execute(_JOB).all(), job, name)
    return row


def read_snapshots(connection: Connection, job: str | None, name: str) -> list[Snapshot]:
    """Return the last snapshot of every shard of a job, in the order of the shards.

    `job` and `name` are those of `job_of`. Raises `StoreDamagedError` if a checksum fails, and the errors of `job_of`.
    """
    if job is None and connection.execute(_JOB).first() is None:  # its first job begins at this moment
        return []
    found = read_job(connection, job, name)
    return snapshots_of(connection.execute(text(ALL_SHARDS), {"job": found.job}).all(), found, name)


def read_history(connection: Connection, limit: int, job: str | None, name: str) -> list[Commit]:
    """Return the last commits of a job, at most `limit`, oldest first.

    `job` and `name` are those of `job_of`. Raises `StoreDamagedError` if a checksum fails, and the errors of `job_of`.
    """
    found = read_job(connection, job, name).job
    newest = (COMMITS.c.committed_at.desc(), COMMITS.c.seq.desc())
    rows = connection.execute(select(COMMITS).where(COMMITS.c.job == found).order_by(*newest).limit(limit)).all()
    return [read_commit(row._asdict(), found, name) for row in reversed(rows)]
