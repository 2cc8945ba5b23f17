"""Snapshots and the history as columns of tables: with a checksum when written, which is verified when read."""

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import astuple
from hashlib import blake2b
from typing import Any

import orjson

from streamdp.data.records import Position, Shard
from streamdp.database.interface import Database
from streamdp.errors import StoreDamagedError, StoreError
from streamdp.store.snapshot import Commit, Counts, Part, Snapshot
from streamdp.store.state_codec import StoredState, encode_state
from streamdp.store.tables import NAMES, JobRow, ShardRow

_LETTERS = "letters"
"""The key of `Part.letters` in the text of a position. No source uses it."""


def commit_columns(part: Part, seq: int, committed_at: float) -> dict[str, Any]:
    """Return the columns that a snapshot and the history share.

    `seq` counts the shard's commits from 1, and `committed_at` is in seconds since 1970 (UTC). Raises `StoreError` if
    the position is not plain JSON.
    """
    try:
        position = json.dumps(part.position if part.letters is None else {**part.position, _LETTERS: part.letters})
    except (TypeError, ValueError) as error:
        raise StoreError(f"a position must be plain JSON values: {error}") from None
    return dict(zip(NAMES, (seq, committed_at, *astuple(part.counts), position), strict=True))


def state_columns(part: Part, job: str, fingerprint: str, columns: Mapping[str, object]) -> dict[str, object]:
    """Return the columns of a snapshot that the history does not have: the state, its checksum, and what waits.

    `job` and `fingerprint` identify the store, and `columns` are those of `commit_columns`. Raises `StoreError` for a
    state that cannot be encoded.
    """
    state = encode_state(part.state)
    return {"state": state, "checksum": _checksum(job, fingerprint, columns, state), "waiting": part.waiting}


def history_checksum(job: str, shard: Shard, columns: Mapping[str, object]) -> bytes:
    """BLAKE2b over the `columns` of `commit_columns`: against damage, and against a row of another store or job."""
    content = json.dumps([job, *shard, *(columns[name] for name in NAMES)])
    return blake2b(content.encode("utf-8"), digest_size=16, person=b"streamdp-history").digest()


def read_snapshot(row: ShardRow, job: JobRow, database: Database) -> Snapshot | None:
    """Return the snapshot of a shard by its row and that of its job, of a `database`; None before its first commit.

    Raises `StoreDamagedError`, with the name of the database, if the checksum fails.
    """
    if row.seq == 0:
        return None
    columns = row._asdict()
    with _intact(f"a snapshot in {database.name}"):
        columns["waiting"] = int(row.waiting)
        if _checksum(job.job, job.fingerprint, columns, row.state) != row.checksum:
            raise ValueError
    return snapshot_of(job, database, Shard(row.topic, row.partition), columns)


def snapshot_of(job: JobRow, database: Database, shard: Shard, columns: Mapping[str, Any]) -> Snapshot:
    """Return the snapshot of a shard of a job in a `database`, by the `columns` of its row, which are not checked."""
    position, letters = _position(columns["position"])
    counts, state, seq, at = _counts(columns), StoredState(columns["state"]), columns["seq"], columns["committed_at"]
    more = {"epoch": columns["epoch"], "letters": letters, "waiting": columns["waiting"], "doubt": job.doubt}
    held = job.job, job.fingerprint, job.config
    return Snapshot(*held, seq, at, counts, position, state, shard, **more, losses=database.losses)


def read_commit(row: Mapping[str, Any], job: str, name: str) -> Commit:
    """Return a commit of the history of a job, by the columns of its row.

    Raises `StoreDamagedError`, with the name of the database, if the checksum fails.
    """
    shard = Shard(row["topic"], row["partition"])
    with _intact(f"a row of the history in {name}"):
        if history_checksum(job, shard, row) != row["checksum"]:
            raise ValueError
    return Commit(row["seq"], row["committed_at"], _counts(row), _position(row["position"])[0], shard)


@contextmanager
def _intact(what: str) -> Iterator[None]:
    """Raise `StoreDamagedError` for a `ValueError`; a damaged column may also be read as bytes, or as invalid text."""
    try:
        yield
    except (TypeError, ValueError):
        raise StoreDamagedError(f"{what} fails its checksum; restore a copy of the database") from None


def _counts(columns: Mapping[str, Any]) -> Counts:
    return Counts(*(columns[name] for name in NAMES[2:6]))


def _position(text: str) -> tuple[Position, Any]:
    """A position, and where the dead letters up to it end."""
    position = json.loads(text)
    return position, position.pop(_LETTERS, None)


def _checksum(job: str, fingerprint: str, columns: Mapping[str, object], state: str) -> bytes:
    """BLAKE2b over the content of a snapshot: against damage, and against a row from another store."""
    content = orjson.dumps([job, fingerprint, *(columns[name] for name in NAMES), state])
    return blake2b(content, digest_size=32, person=b"streamdp-snapsho").digest()
