"""The committed snapshots of a job, its history and its sinks, for readers."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from streamdp.database.interface import Connection, Database
from streamdp.database.opening import open_database
from streamdp.errors import StoreError, StoreMismatchError, listed
from streamdp.store.snapshot import Commit, Counts, Snapshot
from streamdp.store.snapshot_codec import read_commit, read_snapshot
from streamdp.store.tables import ALL_JOBS, NAMES, OF_JOB, STORE_FORMAT, JobRow, ShardRow


@dataclass(frozen=True)
class SinkState:
    """What is known of a sink."""

    name: str
    commit: int  # the number of the newest commit that it has; 0: none
    committed_at: float  # of that commit, in seconds since 1970 (UTC)
    failing_since: float  # in seconds since 1970 (UTC); 0: it does not fail
    reason: str  # why it fails; "" if it does not


@contextmanager
def _reading(url_or_path: str | os.PathLike[str], job: str | None) -> Iterator[tuple[Connection, Database]]:
    """A connection for readers, and its database."""
    database = open_database(url_or_path, job)
    with database.reading(STORE_FORMAT) as connection:
        yield connection, database


def snapshots(url_or_path: str | os.PathLike[str], job: str | None = None) -> list[Snapshot]:
    """Return the last committed snapshot of every shard of a job, in the order of the shards.

    The job may be running: this only reads, and needs neither the lock nor the key. For `url_or_path` see `Store`.
    Raises `StoreError` and its kinds: `StoreError` if there is no such store, or if it holds several jobs and none is
    named; `StoreMismatchError` if it does not hold the job.
    """
    with _reading(url_or_path, job) as (connection, database):
        return read_snapshots(connection, job, database)


def begun(url_or_path: str | os.PathLike[str], job: str | None = None) -> Snapshot:
    """Return a job that may have no commit yet, as its snapshot 0, without a state.

    For `url_or_path` and errors see `snapshots`.
    """
    with _reading(url_or_path, job) as (connection, database):
        row = read_job(connection, job, database.name)
        waiting = sum(ShardRow(*shard).waiting for shard in connection.fetch(OF_JOB, {"job": row.job}))
        held = row.job, row.fingerprint, row.config
        return Snapshot(*held, 0, 0.0, Counts(), {}, {}, waiting=waiting, losses=database.losses)


def sinks(url_or_path: str | os.PathLike[str], job: str) -> list[SinkState]:
    """Return the sinks of a `job` that have got a commit or failed. For `url_or_path` and errors see `snapshots`."""
    of_job = "SELECT name, seq, committed_at, failing_since, reason FROM sinks WHERE job = :job ORDER BY place"
    with _reading(url_or_path, job) as (connection, _):
        return [SinkState(*row) for row in connection.fetch(of_job, {"job": job})]


def history(url_or_path: str | os.PathLike[str], limit: int, job: str | None = None) -> list[Commit]:
    """Return the last commits of a `job`, at most `limit`, oldest first. For `url_or_path` and errors see `snapshots`.

    Raises `StoreDamagedError` if a checksum fails, too.
    """
    columns = ("topic", "partition", *NAMES, "checksum")
    newest = f"SELECT {', '.join(columns)} FROM commits WHERE job = :job ORDER BY committed_at DESC, seq DESC LIMIT :n"
    with _reading(url_or_path, job) as (connection, database):
        found = read_job(connection, job, database.name).job
        rows = connection.fetch(newest, {"job": found, "n": limit})
        return [read_commit(dict(zip(columns, row, strict=True)), found, database.name) for row in reversed(rows)]


def read_job(connection: Connection, job: str | None, name: str) -> JobRow:
    """Return the row of a job; of the only one if it is None. `name` is that of the database.

    Raises `StoreMismatchError` if there is no such job, and `StoreError` if there are several and none is named.
    """
    rows = [JobRow(*row) for row in connection.fetch(ALL_JOBS)]
    names = [row.job for row in rows]
    if job is None and len(names) > 1:
        raise StoreError(f"{name} holds {len(names)} jobs ({listed(names)}): name one with --job")
    found = next((row for row in rows if job in (None, row.job)), None)
    if found is None:
        held = listed([*map(repr, names)]) or "no job"
        raise StoreMismatchError(f"{name} holds {held}" + ("" if job is None else f", and not {job!r}"))
    return found


def read_snapshots(connection: Connection, job: str | None, database: Database) -> list[Snapshot]:
    """Return the last snapshot of every shard of a job in a `database`, in the order of the shards.

    `job` is that of `read_job`. Raises `StoreDamagedError` if a checksum fails, and the errors of
    `read_job`.
    """
    if job is None and not connection.fetch(ALL_JOBS):  # its first job begins at this moment
        return []
    found = read_job(connection, job, database.name)
    rows = [ShardRow(*row) for row in connection.fetch(OF_JOB, {"job": found.job})]
    return [snapshot for row in rows if (snapshot := read_snapshot(row, found, database)) is not None]
