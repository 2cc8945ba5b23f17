"""The committed snapshots of a job and its sinks, for readers. A file is read without SQLAlchemy (it loads slowly)."""

from __future__ import annotations

import os
import sqlite3
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

from streamdp.database.opening import open_database
from streamdp.database.sqlite import SQLiteFile
from streamdp.store.snapshot import Snapshot
from streamdp.store.snapshot_codec import ALL_JOBS, ALL_SHARDS, STORE_HEADER, WAITING, job_of, snapshots_of

_SINKS = "SELECT name, seq, committed_at, failing_since, reason FROM sinks WHERE job = :job ORDER BY place"


@dataclass(frozen=True)
class Sink:
    """What is known of a sink."""

    name: str
    commit: int  # the number of the newest commit that it has; 0: none
    committed_at: float  # of that commit, in seconds since 1970 (UTC)
    failing_since: float  # in seconds since 1970 (UTC); 0: it does not fail
    reason: str  # why it fails; "" if it does not


def snapshots(url_or_path: str | os.PathLike[str], job: str | None = None) -> list[Snapshot]:
    """Return the last committed snapshot of every shard of a job, in the order of the shards.

    The job may be running: this only reads, and needs neither the lock nor the key. For `url_or_path` see `Store`.
    Raises `StoreError` and its kinds: `StoreError` if there is no such store, or if it holds several jobs and none is
    named; `StoreMismatchError` if it does not hold the job.
    """
    database = open_database(url_or_path, job)
    if isinstance(database, SQLiteFile):
        with database.plain_reading(STORE_HEADER) as driver:
            return _of_file(driver, database.name, job)
    from streamdp.store.queries import read_snapshots
    from streamdp.store.tables import STORE_FORMAT

    with database.reading(STORE_FORMAT) as connection:
        return read_snapshots(connection, job, database.name)


@dataclass(frozen=True)
class Begun:
    """A job that may have no commit yet."""

    job: str
    fingerprint: str
    config: str
    waiting: int  # the records that were read and wait for the end of their batch or window


def begun(url_or_path: str | os.PathLike[str], job: str | None = None) -> Begun:
    """Return a job that has begun, with a commit or not. For `url_or_path` and errors see `snapshots`."""
    database = open_database(url_or_path, job)
    if isinstance(database, SQLiteFile):
        with database.plain_reading(STORE_HEADER) as driver:
            driver.row_factory = _row
            row = job_of(driver.execute(ALL_JOBS).fetchall(), job, database.name)
            driver.row_factory = None
            (waiting,) = driver.execute(WAITING, {"job": row.job}).fetchone()
            return Begun(row.job, row.fingerprint, row.config, waiting)
    from sqlalchemy import text

    from streamdp.store.queries import read_job
    from streamdp.store.tables import STORE_FORMAT

    with database.reading(STORE_FORMAT) as connection:
        row = read_job(connection, job, database.name)
        waiting = connection.execute(text(WAITING), {"job": row.job}).scalar_one()
        return Begun(row.job, row.fingerprint, row.config, int(waiting))


def sinks(url_or_path: str | os.PathLike[str], job: str) -> list[Sink]:
    """Return the sinks of a `job` that have got a commit or failed. For `url_or_path` and errors see `snapshots`."""
    database, key = open_database(url_or_path, job), {"job": job}
    if isinstance(database, SQLiteFile):
        with database.plain_reading(STORE_HEADER) as driver:
            return [Sink(*row) for row in driver.execute(_SINKS, key)]
    from sqlalchemy import text

    from streamdp.store.tables import STORE_FORMAT

    with database.reading(STORE_FORMAT) as connection:
        return [Sink(*row) for row in connection.execute(text(_SINKS), key)]


def _of_file(driver: sqlite3.Connection, name: str, expected: str | None) -> list[Snapshot]:
    driver.row_factory = _row
    jobs = driver.execute(ALL_JOBS).fetchall()
    if expected is None and not jobs:  # its first job begins at this moment
        return []
    job = job_of(jobs, expected, name)
    return snapshots_of(driver.execute(ALL_SHARDS, {"job": job.job}).fetchall(), job, name)


def _row(cursor: sqlite3.Cursor, values: tuple[Any, ...]) -> SimpleNamespace:
    return SimpleNamespace(**dict(zip((column[0] for column in cursor.description), values, strict=True)))
