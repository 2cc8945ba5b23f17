"""Snapshots and the history as rows of tables: writing with a checksum, and reading that verifies it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from hashlib import blake2b
from typing import Any

from sqlalchemy import Connection, Row, inspect, select, text

from streamdp.data.records import Position, Shard
from streamdp.errors import StoreDamagedError, StoreError
from streamdp.store.snapshot import Commit, Counts, Part, Snapshot
from streamdp.store.state_codec import decode_state, encode_state
from streamdp.store.tables import COMMITS, JOBS, NAMES, SHARDS, has_checksums

_LETTERS = "dead_letters"
"""The key of `Part.letters` in the text of a position. No source uses it."""


def commit_columns(part: Part, seq: int, committed_at: float) -> dict[str, Any]:
    """Return the columns that a snapshot and the history share.

    Parameters
    ----------
    part
        What is committed.
    seq
        The number of the shard's commit, from 1.
    committed_at
        In seconds since 1970 (UTC).

    Raises `StoreError` if the position is not plain JSON.
    """
    try:
        position = json.dumps(part.position if part.letters is None else {**part.position, _LETTERS: part.letters})
    except (TypeError, ValueError) as error:
        raise StoreError(f"a position must be plain JSON values: {error}") from None
    learned, refused, dead = part.counts.learned, part.counts.refused, part.counts.dead
    return dict(zip(NAMES, (seq, committed_at, learned, refused, dead, position), strict=True))


def state_columns(part: Part, job: str, fingerprint: str, columns: Mapping[str, Any]) -> dict[str, Any]:
    """Return the columns of a snapshot that the history does not have: the state and the checksum.

    Parameters
    ----------
    part
        What is committed.
    job, fingerprint
        The identity of the store.
    columns
        What `commit_columns` returned.

    Raises `StoreError` for a state that cannot be encoded.
    """
    state = encode_state(dict(part.state))
    return {"state": state, "checksum": _checksum(job, fingerprint, columns, state)}


def history_checksum(job: str, shard: Shard, columns: Mapping[str, Any]) -> bytes:
    """BLAKE2b over a row of the history: against damage, and against a row from another store.

    Parameters
    ----------
    job, shard
        Whose row it is.
    columns
        What `commit_columns` returned.
    """
    content = json.dumps([job, *shard, *(columns[name] for name in NAMES)])
    return blake2b(content.encode("utf-8"), digest_size=16, person=b"streamdp-history").digest()


def read_job(connection: Connection, name: str) -> Row[Any]:
    """Return the row of the job.

    Parameters
    ----------
    connection
        The database.
    name
        The database, for messages.

    Raises `StoreDamagedError` unless there is exactly one.
    """
    rows = connection.execute(select(JOBS)).all()
    if len(rows) != 1:
        raise StoreDamagedError(f"{name} should have one job, but it has {len(rows)}")
    return rows[0]


def read_snapshot(row: Row[Any], job: Row[Any], name: str) -> Snapshot | None:
    """Return the snapshot of a shard; None before its first commit.

    Parameters
    ----------
    row, job
        The rows of the shard and of the job.
    name
        The database, for messages.

    Raises `StoreDamagedError` if the checksum fails.
    """
    if row.seq == 0:
        return None
    columns = {column: getattr(row, column) for column in NAMES}
    try:
        intact = _checksum(job.job, job.fingerprint, columns, row.state) == row.checksum
    except (TypeError, ValueError):  # a damaged column may be read as bytes, or as invalid text
        intact = False
    if not intact:
        raise StoreDamagedError(f"a snapshot in {name} fails its checksum; restore a copy of the database")
    position, letters = _position(row.position)
    return Snapshot(
        job=job.job,
        fingerprint=job.fingerprint,
        config=job.config,
        seq=row.seq,
        committed_at=row.committed_at,
        counts=Counts(row.learned, row.refused, row.dead),
        position=position,
        state=decode_state(row.state),
        shard=Shard(row.topic, row.partition),
        epoch=row.epoch,
        letters=letters,
    )


def read_snapshots(connection: Connection, name: str) -> list[Snapshot]:
    """Return the last snapshot of every shard, in the order of the shards; also from an older format.

    Parameters
    ----------
    connection
        The database.
    name
        The database, for messages.

    Raises `StoreDamagedError` if a checksum fails.
    """
    if _has_shards(connection):
        rows = connection.execute(select(SHARDS).order_by(SHARDS.c.topic, SHARDS.c.partition)).all()
    else:
        older = f"SELECT '' AS topic, 0 AS partition, 0 AS epoch, {', '.join(NAMES)}, state, checksum FROM snapshot"
        rows = list(connection.execute(text(older)).all())
    job = read_job(connection, name)
    found = [read_snapshot(row, job, name) for row in rows]
    return [snapshot for snapshot in found if snapshot is not None]


def read_history(connection: Connection, limit: int, name: str) -> list[Commit]:
    """Return the last commits, oldest first; none from a format before 3.

    Parameters
    ----------
    connection
        The database.
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
    return [_read_commit(row._asdict(), job, name) for row in reversed(rows)]


def _read_commit(row: dict[str, Any], job: str, name: str) -> Commit:
    shard, known = Shard(row["topic"], row["partition"]), row.get("checksum")
    try:
        intact = known is None or history_checksum(job, shard, row) == known
    except (TypeError, ValueError):  # a damaged column may be read as bytes, or as invalid text
        intact = False
    if not intact:
        raise StoreDamagedError(f"a row of the history in {name} fails its checksum; restore a copy of the database")
    return Commit(
        seq=row["seq"],
        committed_at=row["committed_at"],
        counts=Counts(row["learned"], row["refused"], row["dead"]),
        position=_position(row["position"])[0],
        shard=shard,
    )


def _position(text: str) -> tuple[Position, Any]:
    """A position, and where the dead letters up to it end."""
    position = json.loads(text)
    return position, position.pop(_LETTERS, None)


def _has_shards(connection: Connection) -> bool:
    return inspect(connection).has_table("shards")


def _checksum(job: str, fingerprint: str, columns: Mapping[str, Any], state: str) -> bytes:
    """BLAKE2b over the content of a snapshot: against damage, and against a row from another store."""
    content = json.dumps([job, fingerprint, *(columns[name] for name in NAMES), state])
    return blake2b(content.encode("utf-8"), digest_size=32, person=b"streamdp-snapsho").digest()
