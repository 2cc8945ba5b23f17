"""State, position, counts and spends of one job, committed in ONE transaction.

Only what was committed may be shown. A crash goes back to the last commit, so that no record counts twice and
no spend is lost that something visible was learned from. An SQLite file belongs to one job.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import blake2b
from types import TracebackType
from typing import Any

from sqlalchemy import (
    BigInteger,
    Column,
    Connection,
    Double,
    LargeBinary,
    MetaData,
    Row,
    Table,
    Text,
    delete,
    insert,
    select,
    update,
)
from sqlalchemy.engine import make_url
from sqlalchemy.exc import ArgumentError

from streamdp import sqlite_file
from streamdp.accounting.ledger import Ledger, SpendTable, matching_key
from streamdp.accounting.subject_key import given_key, key_fingerprint, make_key
from streamdp.encoding import decode_state, encode_state
from streamdp.errors import StoreDamagedError, StoreError, StoreMismatchError
from streamdp.guarantees import Budget
from streamdp.records import Position

HISTORY = 10_000
"""Commits that the history keeps."""

_metadata = MetaData()
_spends = SpendTable(_metadata)
_jobs = Table(
    "jobs",
    _metadata,
    Column("job", Text, primary_key=True),
    Column("fingerprint", Text, nullable=False),
    Column("config", Text, nullable=False),
    Column("key_fingerprint", LargeBinary(16)),  # NULL: no cap, no spends
)
_snapshot = Table(
    "snapshot",
    _metadata,
    Column("seq", BigInteger, primary_key=True, autoincrement=False),
    Column("committed_at", Double, nullable=False),
    Column("learned", BigInteger, nullable=False),
    Column("refused", BigInteger, nullable=False),
    Column("dead", BigInteger, nullable=False),
    Column("position", Text, nullable=False),
    Column("state", Text, nullable=False),
    Column("checksum", LargeBinary(32), nullable=False),
)
_commits = Table(  # since format 2
    "commits",
    _metadata,
    Column("seq", BigInteger, primary_key=True, autoincrement=False),
    Column("committed_at", Double, nullable=False),
    Column("learned", BigInteger, nullable=False),
    Column("refused", BigInteger, nullable=False),
    Column("dead", BigInteger, nullable=False),
    Column("position", Text, nullable=False),
)


def _add_commits(connection: Connection) -> None:
    """Format 1 kept no history: begin it with the snapshot there is."""
    _commits.create(connection)
    columns = [column.name for column in _commits.columns]
    connection.execute(insert(_commits).from_select(columns, select(*(_snapshot.c[name] for name in columns))))


MIGRATIONS = {1: _add_commits}
STORE_FILE = sqlite_file.Format("store", 0x73445073, 2, _metadata, MIGRATIONS)


@dataclass(frozen=True, slots=True)
class Counts:
    """Records since the job began: learned from, refused by the ledger, and dead (undecodable)."""

    learned: int = 0
    refused: int = 0
    dead: int = 0


@dataclass(frozen=True, slots=True)
class Commit:
    """One line of a job's history. `committed_at` is in seconds since 1970 (UTC)."""

    seq: int
    committed_at: float
    counts: Counts
    position: Position


@dataclass(frozen=True, slots=True, eq=False)
class Snapshot:
    """A committed state with everything that was committed with it. `seq` counts commits from 1."""

    job: str
    fingerprint: str
    config: str
    seq: int
    committed_at: float
    counts: Counts
    position: Position
    state: dict[str, Any]


class Store:
    """The database of one job, held by one process.

    `url_or_path` is a file or `sqlite:///file`; `job` is its name; `fingerprint` stands for everything that
    must not change between runs (model, schema, budget, source); `config` is the job's text, without secrets,
    for readers. With a `cap`, `ledger` holds the spends of subjects, hashed under a key that lives beside the
    database or in the environment (`accounting.subject_key` says why): `key`, else `STREAMDP_SUBJECT_KEY`,
    else `<path>.key`, else one is drawn. A store made with a cap must be opened with one, and the other way
    round.

    Raises, and leaves the database as it was: `StoreBusyError` (held by another process, or twice in this
    one), `StoreVersionError` (newer format), `StoreDamagedError`, `StoreMismatchError` (other job,
    fingerprint or key), `ConfigError` (a malformed key), `StoreError` (rights, disk).

    >>> import tempfile
    >>> directory = tempfile.TemporaryDirectory()
    >>> with Store(directory.name + "/job.db", "trips", "1") as store:
    ...     store.commit({"theta": [0.5]}, {"row": 7}, Counts(learned=7))
    >>> Store.snapshot(directory.name + "/job.db").position
    {'row': 7}
    """

    def __init__(
        self,
        url_or_path: str | os.PathLike[str],
        job: str,
        fingerprint: str,
        *,
        cap: Budget | None = None,
        key: bytes | None = None,
        config: str = "",
    ) -> None:
        self.path = _file_path(url_or_path)
        self.job = job
        self.fingerprint = fingerprint
        self._lock = sqlite_file.FileLock(self.path)
        try:
            found = None if cap is None else given_key(self.path, key)
            if sqlite_file.is_new(self.path):
                subject_key = None if cap is None else found or make_key(self.path)
                self._create(config, subject_key)
            else:
                subject_key = self._check(cap is not None, found)
            self._connection = sqlite_file.open_for_writing(self.path, STORE_FILE)
            try:
                with sqlite_file.store_errors(self.path), self._connection.begin():
                    changed = update(_jobs).where(_jobs.c.config != config).values(config=config)
                    self._connection.execute(changed)
                    self._seq = self._connection.execute(select(_snapshot.c.seq)).scalar() or 0
                self._ledger = None
                if cap is not None and subject_key is not None:
                    self._ledger = Ledger.within(self._connection, cap, subject_key)
            except BaseException:
                sqlite_file.close(self._connection)
                raise
        except BaseException:
            self._lock.release()
            raise

    def _create(self, config: str, subject_key: bytes | None) -> None:
        row = {
            "job": self.job,
            "fingerprint": self.fingerprint,
            "config": config,
            "key_fingerprint": None if subject_key is None else key_fingerprint(subject_key),
        }
        sqlite_file.create(self.path, STORE_FILE, lambda connection: connection.execute(insert(_jobs), row))

    def _check(self, capped: bool, found: bytes | None) -> bytes | None:
        """Everything that may refuse the file, read-only; the subject key where there is a cap."""
        with sqlite_file.reading(self.path, STORE_FILE) as connection:
            sqlite_file.quick_check(connection, self.path)
            job = _job_row(connection, self.path)
            if job.job != self.job:
                raise StoreMismatchError(f"{self.path} belongs to job {job.job!r}, not to {self.job!r}")
            if job.fingerprint != self.fingerprint:
                raise StoreMismatchError(
                    f"{self.path} was made by another configuration of job {self.job!r}; restore that one,"
                    " or start anew with another file"
                )
            if capped != (job.key_fingerprint is not None):
                made, opened = ("without", "with") if capped else ("with", "without")
                raise StoreMismatchError(f"{self.path} was made {made} a cap on spends, and is opened {opened} one")
            _read_snapshot(connection, self.path)
            return matching_key(self.path, found, job.key_fingerprint) if capped else None

    @property
    def ledger(self) -> Ledger | None:
        """The spends of subjects, committed by `commit`; None without a cap."""
        return self._ledger

    def load(self) -> Snapshot | None:
        """The last committed snapshot; None before the first. Raises `StoreDamagedError` if its checksum
        fails.
        """
        with sqlite_file.store_errors(self.path), self._open_connection().begin():
            return _read_snapshot(self._connection, self.path)

    def commit(self, state: Mapping[str, Any], position: Position, counts: Counts) -> None:
        """Commit all of it and the ledger's pending spends, or nothing; on disk when this returns.

        Raises `StoreError` where that fails: the last snapshot is intact and the spends stay pending, so that
        the same commit can be tried again.
        """
        values: dict[str, Any] = {
            "seq": self._seq + 1,
            "committed_at": time.time(),
            "learned": counts.learned,
            "refused": counts.refused,
            "dead": counts.dead,
            "position": _position_text(position),
        }
        encoded = encode_state(dict(state))
        connection = self._open_connection()
        with sqlite_file.store_errors(self.path), connection.begin():
            connection.execute(delete(_snapshot))
            checksum = _checksum(self.job, self.fingerprint, values, encoded)
            connection.execute(insert(_snapshot), values | {"state": encoded, "checksum": checksum})
            connection.execute(insert(_commits), values)
            connection.execute(delete(_commits).where(_commits.c.seq <= values["seq"] - HISTORY))
            if self._ledger is not None:
                self._ledger.write_pending(connection)
        self._seq += 1
        if self._ledger is not None:
            self._ledger.mark_committed()

    @staticmethod
    def snapshot(url_or_path: str | os.PathLike[str]) -> Snapshot | None:
        """The last committed snapshot of a job that may be running: read-only, without its lock or its key.

        None before the first commit. Raises `StoreError` and its kinds; `StoreError` where there is no file.
        """
        path = _file_path(url_or_path)
        with sqlite_file.reading(path, STORE_FILE) as connection:
            return _read_snapshot(connection, path)

    @staticmethod
    def history(url_or_path: str | os.PathLike[str], limit: int = 100) -> list[Commit]:
        """The last `limit` commits, oldest first. Read-only, like `snapshot`; none in a file of format 1."""
        path = _file_path(url_or_path)
        with sqlite_file.reading(path, STORE_FILE) as connection:
            if sqlite_file.pragma(connection, "user_version") < 2:
                return []
            rows = connection.execute(select(_commits).order_by(_commits.c.seq.desc()).limit(limit)).all()
        return [
            Commit(r.seq, r.committed_at, Counts(r.learned, r.refused, r.dead), json.loads(r.position))
            for r in reversed(rows)
        ]

    def close(self) -> None:
        """Close without committing: what was learned since the last commit was never visible and is
        forgotten.
        """
        if not self._connection.closed:
            sqlite_file.close(self._connection)
            self._lock.release()

    def _open_connection(self) -> Connection:
        if self._connection.closed:
            raise StoreError("this store is closed")
        return self._connection

    def __enter__(self) -> Store:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _file_path(url_or_path: str | os.PathLike[str]) -> str:
    """The real path of an SQLite file, so that two names of one file meet at one lock."""
    text = os.fspath(url_or_path)
    if "://" in text:
        try:
            url = make_url(text)
        except ArgumentError:
            raise StoreError("expected a file path or sqlite:///PATH, got a malformed URL") from None
        if url.get_backend_name() != "sqlite" or not url.database:
            raise StoreError(f"expected a file path or sqlite:///PATH, got a URL of {url.get_backend_name()}")
        text = url.database
    return os.path.realpath(text)


def _position_text(position: Position) -> str:
    try:
        return json.dumps(position)
    except (TypeError, ValueError) as error:
        raise StoreError(f"a position must be plain JSON values: {error}") from None


def _job_row(connection: Connection, path: str) -> Row[Any]:
    rows = connection.execute(select(_jobs)).all()
    if len(rows) != 1:
        raise StoreDamagedError(f"{path} should name one job, it names {len(rows)}")
    return rows[0]


def _read_snapshot(connection: Connection, path: str) -> Snapshot | None:
    row = connection.execute(select(_snapshot)).one_or_none()
    if row is None:
        return None
    job = _job_row(connection, path)
    try:
        intact = _checksum(job.job, job.fingerprint, row._mapping, row.state) == row.checksum
    except (TypeError, ValueError):  # a damaged column may come back as bytes, or as text that is none
        intact = False
    if not intact:
        raise StoreDamagedError(f"the snapshot in {path} fails its checksum; restore a copy of the database")
    return Snapshot(
        job=job.job,
        fingerprint=job.fingerprint,
        config=job.config,
        seq=row.seq,
        committed_at=row.committed_at,
        counts=Counts(row.learned, row.refused, row.dead),
        position=json.loads(row.position),
        state=decode_state(row.state),
    )


def _checksum(job: str, fingerprint: str, values: Mapping[Any, Any], state: str) -> bytes:
    """BLAKE2b over all that a snapshot says; against decay, and against a row from another file."""
    names = ("seq", "committed_at", "learned", "refused", "dead", "position")
    text = json.dumps([job, fingerprint, *(values[name] for name in names), state])
    return blake2b(text.encode("utf-8"), digest_size=32, person=b"streamdp-snapsho").digest()
