"""State, position, counts and spends of one job, committed in ONE transaction.

Only what was committed may be shown. A crash goes back to the last commit, so that no record counts twice and
no spend is lost that something visible was learned from. A job that reads one stream has one shard, `WHOLE`; a job
that reads a partitioned one has a shard for each (topic, partition), and workers that share the store. Each claim of
a shard takes the next epoch of it, and a commit under an older epoch is refused.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from hashlib import blake2b
from types import TracebackType
from typing import Any

from sqlalchemy import (
    Connection,
    Row,
    and_,
    delete,
    insert,
    inspect,
    select,
    text,
    update,
)

from streamdp.data.records import WHOLE, Position, Shard, Subject
from streamdp.database.opening import open_database
from streamdp.errors import FencedError, StoreDamagedError, StoreError, StoreMismatchError
from streamdp.ledger.ledger import Ledger
from streamdp.ledger.subject_key import given_key, key_fingerprint, make_key, matching_key
from streamdp.privacy.guarantees import Budget
from streamdp.store.snapshot import Commit, Counts, Part, Snapshot
from streamdp.store.state_codec import decode_state, encode_state
from streamdp.store.tables import ADD_SHARD, COMMITS, EMPTY, JOBS, NAMES, SHARDS, STORE_FORMAT, is_shard

HISTORY = 10_000
"""Commits of each shard that the history keeps."""


@dataclass(slots=True)
class _Claim:
    """A shard that is ours: under which epoch, and the last commit of it."""

    epoch: int
    seq: int = field(default=0)


class Store:
    """The database of one job: an SQLite file held by one process, or shared by the workers of a group.

    `url_or_path` is a file, `sqlite:///file` or `postgresql://...` (each job then has a namespace of its own in that
    database); `job` is its name; `fingerprint` stands for everything that must not change between runs (model, schema,
    budget, source); `config` is the job's text, without secrets, for readers. With a `cap`, `ledger` holds the spends
    of subjects, hashed under a key that lives beside the database or in the environment (`accounting.subject_key` says
    why): `key`, else `STREAMDP_SUBJECT_KEY`, else `<path>.key`, else (files only) one is drawn. A store made with a cap
    must be opened with one, and the other way round.

    Unless `shared`, the store is held by one process and its one shard is claimed at once. With `shared=True`, workers
    claim the shards that they were assigned.

    Raises, and leaves the database as it was: `StoreBusyError` (held by another process, or twice in this
    one), `StoreVersionError` (newer format), `StoreDamagedError`, `StoreMismatchError` (other job,
    fingerprint or key), `ConfigError` (a malformed key), `StoreUnavailableError` (no answer; try again later),
    `StoreError` (rights, disk).

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
        shared: bool = False,
    ) -> None:
        self.job = job
        self.fingerprint = fingerprint
        self._database = open_database(url_or_path, job)
        self._claims: dict[Shard, _Claim] = {}
        self._ledger: Ledger | None = None
        self._lock = self._database.lock(shared)
        try:
            subject_key = self._make_or_check(config, cap is not None, key)
            self._connection = self._database.open_for_writing(STORE_FORMAT)
            try:
                with self._database.errors(), self._connection.begin():
                    changed = update(JOBS).where(JOBS.c.config != config).values(config=config)
                    self._connection.execute(changed)
                if not shared:
                    self.claim([WHOLE])
                if cap is not None and subject_key is not None:
                    self._ledger = Ledger.within(self._connection, cap, subject_key, self._database.errors, shared)
            except BaseException:
                self._database.close(self._connection)
                raise
        except BaseException:
            self._lock.release()
            raise

    def _make_or_check(self, config: str, capped: bool, key: bytes | None) -> bytes | None:
        """Make the tables where there are none, else everything that may refuse them, read-only; the subject key."""
        path = self._database.key_file
        found = given_key(path, key) if capped else None
        made: list[bytes] = []

        def fill(connection: Connection) -> None:
            if capped:
                made.append(found or make_key(path))
            fingerprint = key_fingerprint(made[0]) if made else None
            row = {"job": self.job, "fingerprint": self.fingerprint, "config": config, "key_fingerprint": fingerprint}
            connection.execute(insert(JOBS), row)

        if self._database.create(STORE_FORMAT, fill):
            return made[0] if made else None
        return self._check(capped, found)

    def _check(self, capped: bool, found: bytes | None) -> bytes | None:
        name = self._database.name
        with self._database.reading(STORE_FORMAT) as connection:
            self._database.check(connection)
            job = _job_row(connection, name)
            if job.job != self.job:
                raise StoreMismatchError(f"{name} belongs to job {job.job!r}, not to {self.job!r}")
            if job.fingerprint != self.fingerprint:
                raise StoreMismatchError(
                    f"{name} was made by another configuration of job {self.job!r}; restore that one,"
                    " or start anew with another store"
                )
            if capped != (job.key_fingerprint is not None):
                made, opened = ("without", "with") if capped else ("with", "without")
                raise StoreMismatchError(f"{name} was made {made} a cap on spends, and is opened {opened} one")
            _read_shards(connection, name)
            if not capped:
                return None
            return matching_key(name, self._database.key_file, found, job.key_fingerprint)

    @property
    def ledger(self) -> Ledger | None:
        """The spends of subjects, committed by `commit`; None without a cap."""
        return self._ledger

    def set_caps(self, caps: Mapping[Subject, Budget | str | None]) -> None:
        """Give subjects caps of their own (`Ledger.set_cap`), on disk when this returns; for all workers.

        Raises `BudgetError` for a cap that is malformed or of another kind, and `StoreError` without a ledger, where
        spends wait for their commit, and as `commit_parts` does.
        """
        if self._ledger is None or self._ledger.n_pending:
            raise StoreError("caps of subjects need a store with a cap, and no spends that wait for their commit")
        try:
            for subject, cap in caps.items():
                self._ledger.set_cap(subject, cap)
            with self._database.errors(), self._open_connection().begin():
                self._ledger.write_pending(self._connection)
        except BaseException:
            self._ledger.rollback()
            raise
        self._ledger.mark_committed()

    def claim(self, shards: Iterable[Shard]) -> dict[Shard, Snapshot | None]:
        """Make the shards this store's, whoever had them, and read what was committed of them (None: nothing).

        Each takes its next epoch, so that from now on the commits of an earlier owner are refused.
        """
        out: dict[Shard, Snapshot | None] = {}
        with self._database.errors(), self._open_connection().begin():
            for shard in sorted(shards):  # in one order, so that two workers cannot wait for each other
                values = {"topic": shard.topic, "partition": shard.partition}
                self._connection.execute(ADD_SHARD, EMPTY | values)
                claimed = update(SHARDS).where(is_shard(SHARDS, shard)).values(epoch=SHARDS.c.epoch + 1)
                self._connection.execute(claimed)
                row = self._connection.execute(select(SHARDS).where(is_shard(SHARDS, shard))).one()
                self._claims[shard] = _Claim(row.epoch, row.seq)
                out[shard] = _read_row(row, _job_row(self._connection, self._database.name), self._database.name)
        return out

    def load(self, shard: Shard = WHOLE) -> Snapshot | None:
        """The last committed snapshot; None before the first. Raises `StoreDamagedError` if its checksum
        fails.
        """
        with self._database.errors(), self._open_connection().begin():
            row = self._connection.execute(select(SHARDS).where(is_shard(SHARDS, shard))).one_or_none()
            job = _job_row(self._connection, self._database.name)
            if row is not None and (claim := self._claims.get(shard)) is not None and claim.epoch == row.epoch:
                claim.seq = row.seq  # ahead of ours after a commit whose answer was lost
            return None if row is None else _read_row(row, job, self._database.name)

    def commit(self, state: Mapping[str, Any], position: Position, counts: Counts) -> None:
        """Commit all of it and the ledger's pending spends, or nothing; on disk when this returns.

        Raises as `commit_parts` does.
        """
        self.commit_parts({WHOLE: Part(state, position, counts)})

    def commit_parts(self, parts: Mapping[Shard, Part]) -> None:
        """Commit several shards and the ledger's pending spends, or nothing; on disk when this returns.

        Raises `FencedError` where a shard was claimed by somebody else since, `LedgerConflictError` where another
        worker spent from the same subjects meanwhile: then what came after the last commit must be forgotten (see
        `rollback`). Raises `StoreUnavailableError` where the database gives no answer and `StoreError` where it cannot
        write: the same call can then be repeated, and will find out whether the first had succeeded after all.
        """
        now = time.time()
        with self._database.errors(), self._open_connection().begin():
            repeated = [self._write(shard, parts[shard], now) for shard in sorted(parts)]
            if self._ledger is not None and not all(repeated):
                self._ledger.write_pending(self._connection)
        for shard in parts:
            self._claims[shard].seq += 1
        if self._ledger is not None:
            self._ledger.mark_committed()

    def _write(self, shard: Shard, part: Part, now: float) -> bool:
        """Write a part inside the transaction at hand; True where an earlier call of the same had written it."""
        claim = self._claims.get(shard)
        if claim is None:
            raise FencedError(f"{shard} of job {self.job!r} is not claimed", shard)
        encoded = encode_state(dict(part.state))
        counts = part.counts
        values: dict[str, Any] = {
            "seq": claim.seq + 1,
            "committed_at": now,
            "learned": counts.learned,
            "refused": counts.refused,
            "dead": counts.dead,
            "position": _position_text(part.position),
        }
        checksum = _checksum(self.job, self.fingerprint, values, encoded)
        ours = and_(is_shard(SHARDS, shard), SHARDS.c.epoch == claim.epoch, SHARDS.c.seq == claim.seq)
        written = update(SHARDS).where(ours).values(**values, state=encoded, checksum=checksum)
        if self._connection.execute(written).rowcount == 0:
            row = self._connection.execute(select(SHARDS).where(is_shard(SHARDS, shard))).one()
            # Nobody else writes under our epoch, so the next number there is our own commit, whose answer was lost.
            same = all(getattr(row, name) == values[name] for name in NAMES if name != "committed_at")
            if row.epoch == claim.epoch and same and row.state == encoded:
                return True
            raise FencedError(f"{shard} of job {self.job!r} was claimed by another worker", shard)
        key = {"topic": shard.topic, "partition": shard.partition}
        self._connection.execute(insert(COMMITS), values | key)
        old = and_(is_shard(COMMITS, shard), COMMITS.c.seq <= values["seq"] - HISTORY)
        self._connection.execute(delete(COMMITS).where(old))
        return False

    def rollback(self) -> None:
        """Forget the spends that came since the last commit, because what they paid for is forgotten too."""
        if self._ledger is not None:
            self._ledger.rollback()

    def release(self, shards: Iterable[Shard]) -> None:
        """Give shards up: commits of them are refused until they are claimed again."""
        for shard in shards:
            self._claims.pop(shard, None)

    @staticmethod
    def snapshot(url_or_path: str | os.PathLike[str], job: str | None = None) -> Snapshot | None:
        """The last committed snapshot of a job of one shard, which may be running; None before the first commit.

        Read-only, without the lock and without the key. A server holds many jobs, so `job` must name one there.
        Raises `StoreError` and its kinds; `StoreError` where there is no such store.
        """
        return next((s for s in Store.snapshots(url_or_path, job) if s.shard == WHOLE), None)

    @staticmethod
    def snapshots(url_or_path: str | os.PathLike[str], job: str | None = None) -> list[Snapshot]:
        """The last committed snapshots of all shards of a job, like `snapshot`."""
        database = open_database(url_or_path, job)
        with database.reading(STORE_FORMAT) as connection:
            return _read_shards(connection, database.name)

    @staticmethod
    def history(url_or_path: str | os.PathLike[str], limit: int = 100, job: str | None = None) -> list[Commit]:
        """The last `limit` commits, oldest first. Read-only, like `snapshot`; none in a file of an older format."""
        with open_database(url_or_path, job).reading(STORE_FORMAT) as connection:
            if not _has_shards(connection):
                return []
            newest = (COMMITS.c.committed_at.desc(), COMMITS.c.seq.desc())
            rows = connection.execute(select(COMMITS).order_by(*newest).limit(limit)).all()
        return [
            Commit(
                r.seq,
                r.committed_at,
                Counts(r.learned, r.refused, r.dead),
                json.loads(r.position),
                Shard(r.topic, r.partition),
            )
            for r in reversed(rows)
        ]

    def close(self) -> None:
        """Close without committing: what was learned since the last commit was never visible and is
        forgotten.
        """
        if not self._connection.closed:
            self._database.close(self._connection)
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


def _position_text(position: Position) -> str:
    try:
        return json.dumps(position)
    except (TypeError, ValueError) as error:
        raise StoreError(f"a position must be plain JSON values: {error}") from None


def _job_row(connection: Connection, name: str) -> Row[Any]:
    rows = connection.execute(select(JOBS)).all()
    if len(rows) != 1:
        raise StoreDamagedError(f"{name} should name one job, it names {len(rows)}")
    return rows[0]


def _read_shards(connection: Connection, name: str) -> list[Snapshot]:
    """All that was committed, in the order of the shards; also from a file that still has an older format."""
    if _has_shards(connection):
        rows = connection.execute(select(SHARDS).order_by(SHARDS.c.topic, SHARDS.c.partition)).all()
    else:
        before = text(
            f"SELECT '' AS topic, 0 AS partition, 0 AS epoch, {', '.join(NAMES)}, state, checksum FROM snapshot"
        )
        rows = list(connection.execute(before).all())
    job = _job_row(connection, name)
    found = [_read_row(row, job, name) for row in rows]
    return [snapshot for snapshot in found if snapshot is not None]


def _has_shards(connection: Connection) -> bool:
    return inspect(connection).has_table("shards")


def _read_row(row: Row[Any], job: Row[Any], name: str) -> Snapshot | None:
    if row.seq == 0:
        return None
    try:
        intact = _checksum(job.job, job.fingerprint, row._mapping, row.state) == row.checksum
    except (TypeError, ValueError):  # a damaged column may come back as bytes, or as text that is none
        intact = False
    if not intact:
        raise StoreDamagedError(f"a snapshot in {name} fails its checksum; restore a copy of the database")
    return Snapshot(
        job=job.job,
        fingerprint=job.fingerprint,
        config=job.config,
        seq=row.seq,
        committed_at=row.committed_at,
        counts=Counts(row.learned, row.refused, row.dead),
        position=json.loads(row.position),
        state=decode_state(row.state),
        shard=Shard(row.topic, row.partition),
        epoch=row.epoch,
    )


def _checksum(job: str, fingerprint: str, values: Mapping[Any, Any], state: str) -> bytes:
    """BLAKE2b over all that a snapshot says; against decay, and against a row from another file."""
    said = json.dumps([job, fingerprint, *(values[name] for name in NAMES), state])
    return blake2b(said.encode("utf-8"), digest_size=32, person=b"streamdp-snapsho").digest()
