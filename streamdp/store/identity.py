"""Whose store a database is: written when the store is created, and checked before anything is written to it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from sqlalchemy import Connection, insert

from streamdp.database.interface import Database
from streamdp.errors import StoreMismatchError
from streamdp.ledger.subject_key import given_key, key_fingerprint, make_key, matching_key
from streamdp.store.snapshot_codec import read_job, read_snapshots
from streamdp.store.tables import JOBS, STORE_FORMAT


def create_or_check(
    database: Database, job: str, fingerprint: str, *, config: str, capped: bool, key: bytes | None
) -> bytes | None:
    """Create the store; or, if it exists, make every check that can refuse it, without a write to it.

    Returns the subject key; None without a cap.

    Parameters
    ----------
    database
        The database, whose lock the caller holds.
    job, fingerprint
        The identity of the store.
    config
        The job's text, for a new store.
    capped
        Whether the job has a cap on spends.
    key
        The subject key. If None, it is found or drawn as in `subject_key`.

    Raises `StoreMismatchError` for a store of another job, fingerprint or key, and for one with a cap if this job has
    none, or the reverse; `StoreDamagedError` if the database or a snapshot is damaged.
    """
    found = given_key(database.key_file, key) if capped else None
    made: list[bytes] = []

    def fill(connection: Connection) -> None:
        if capped:
            made.append(found or make_key(database.key_file))
        known = key_fingerprint(made[0]) if made else None
        row = {"job": job, "fingerprint": fingerprint, "config": config, "key_fingerprint": known}
        connection.execute(insert(JOBS), row)

    if database.create(STORE_FORMAT, fill):
        return made[0] if made else None
    with database.reading(STORE_FORMAT) as connection:
        database.check(connection)
        known = _check_job(connection, database.name, job, fingerprint, config, capped)
        read_snapshots(connection, database.name)
        return matching_key(database.name, database.key_file, found, known) if capped else None


def _check_job(
    connection: Connection, name: str, job: str, fingerprint: str, config: str, capped: bool
) -> bytes | None:
    """The fingerprint of the store's subject key. Raises `StoreMismatchError` if the store is not this job's."""
    row = read_job(connection, name)
    if row.job != job:
        raise StoreMismatchError(f"{name} belongs to job {row.job!r}, not to {job!r}")
    if row.fingerprint != fingerprint:
        raise StoreMismatchError(
            f"{name} was created by another configuration of job {job!r}{_changes(row.config, config)}; restore that"
            " configuration, or use another store"
        )
    known: bytes | None = row.key_fingerprint
    if capped != (known is not None):
        created, opened = ("without", "with") if capped else ("with", "without")
        raise StoreMismatchError(f"{name} was created {created} a cap on spends, and is opened {opened} one")
    return known


def _changes(before: str, now: str) -> str:
    """Which settings differ between two texts of a configuration, as a part of a sentence; "" if that is unknown."""
    try:
        old, new = dict(_settings(json.loads(before))), dict(_settings(json.loads(now)))
    except ValueError:  # a program's own text
        return ""
    differ = [key for key in {**old, **new} if old.get(key) != new.get(key)]
    said = [f"{key} was {old.get(key, 'not set')} and is {new.get(key, 'not set')}" for key in differ]
    return f": {', '.join(said)}" if said else ""


def _settings(value: Any, key: str = "") -> Iterator[tuple[str, Any]]:
    """Dotted keys and values of nested objects."""
    if not isinstance(value, dict):
        yield key, value
        return
    for name, inner in value.items():
        yield from _settings(inner, f"{key}.{name}" if key else name)
