"""Whose store a database is: written when the store is created, and checked before anything is written to it."""

from __future__ import annotations

import json
import secrets
from collections.abc import Iterator
from typing import Any, NamedTuple, Protocol

from sqlalchemy import Connection, Row, insert

from streamdp.database.interface import Database
from streamdp.errors import StoreMismatchError
from streamdp.ledger.charged_rows import write_mark
from streamdp.ledger.subject_key import given_key, key_fingerprint, make_key, matching_key
from streamdp.store.queries import read_job, read_snapshots
from streamdp.store.tables import JOBS, STORE_FORMAT


class Terms(NamedTuple):
    """What a job must keep, and the text that says it.

    Parameters
    ----------
    fingerprint
        Stands for everything that must not change between runs.
    config
        The job's text for readers, without secrets.
    """

    fingerprint: str
    config: str


class Continued(Protocol):
    """Says on which terms a job goes on."""

    def __call__(self, stored: str, learned: int, *, losses: int) -> Terms:
        """Return the terms.

        Parameters
        ----------
        stored
            The text in the store; "" for a new store.
        learned
            The number of records learned.
        losses
            How often a loss of commits was accepted.
        """


def create_or_check(
    database: Database,
    job: str,
    terms: Terms,
    *,
    capped: bool,
    key: bytes | None,
    continued: Continued | None,
    ledger_losses: int | None = None,
    alone: bool = False,
) -> tuple[bytes | None, Terms]:
    """Create the store; or, if it exists, make every check that can refuse it, without a write to it.

    Returns the subject key, None without a cap, and the terms of the job from now on. If the ledger is apart, the store
    has no key, and its random mark is returned, by which the ledger tells it from others.

    Parameters
    ----------
    job, terms
        The identity of the store and the job's text, for a new store.
    capped
        Whether the job has a cap on spends.
    key
        The subject key. If None, it is found or drawn as in `subject_key`.
    continued
        Returns the terms for a store that exists, or of which commits were lost. None: they are `terms`.
    ledger_losses
        How often a loss of commits of the shared ledger was accepted. None: the spends are in the store.
    alone
        Whether no other worker holds the job. If nothing was learned, it may then go on with another configuration.

    Raises `StoreMismatchError` for a store of another job, fingerprint or key, and for one with a cap if this job has
    none, or the reverse; `StoreDamagedError` if the database or a snapshot is damaged.
    """
    ledger_apart = ledger_losses is not None
    found = given_key(database.key_file, key) if capped and not ledger_apart else None
    mark = secrets.token_bytes(16) if ledger_apart else None
    made: list[bytes] = []

    def fill(connection: Connection) -> None:
        if capped and not ledger_apart:
            made.append(found or make_key(database.key_file))
        known = key_fingerprint(made[0]) if made else mark
        terms = created()
        row = {"job": job, "fingerprint": terms.fingerprint, "config": terms.config, "key_fingerprint": known}
        connection.execute(insert(JOBS), row)
        write_mark(connection)

    def created() -> Terms:
        return terms if continued is None or not losses() else continued("", 0, losses=losses())

    def losses() -> int:
        return database.losses + (ledger_losses or 0)

    if database.create(STORE_FORMAT, fill):
        return made[0] if made else mark, created()
    with database.reading(STORE_FORMAT) as connection:
        database.check(connection)
        row = read_job(connection, database.name)
        if row.job != job:
            raise StoreMismatchError(f"{database.name} belongs to job {row.job!r}, not to {job!r}")
        snapshots = read_snapshots(connection, database.name)
        learned = sum(snapshot.counts.learned for snapshot in snapshots)
        if continued is not None:
            terms = continued(row.config, learned, losses=losses())
        counts = [snapshot.counts for snapshot in snapshots]
        unspent = alone and not ledger_apart and not any(c.learned or c.refused for c in counts)
        known = _check_job(row, database.name, terms, capped, unspent)
        if ledger_apart:
            return known, terms
        return matching_key(database.name, database.key_file, found, known) if capped else None, terms


def _check_job(row: Row[Any], name: str, terms: Terms, capped: bool, unspent: bool) -> bytes | None:
    """The fingerprint of the store's subject key.

    Raises `StoreMismatchError` if the job has another configuration, unless nothing was learned (`unspent`).
    """
    if row.fingerprint != terms.fingerprint and not unspent:
        raise StoreMismatchError(
            f"{name} was created by another configuration of job {row.job!r}{_changes(row.config, terms.config)};"
            " restore that configuration, or use another store"
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
