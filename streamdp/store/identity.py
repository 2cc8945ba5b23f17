"""What a database holds: checked before anything is written to it, and written when a job is new."""

import json
from collections.abc import Iterator
from typing import NamedTuple, Protocol

from streamdp.database.interface import Connection, Database
from streamdp.errors import StoreMismatchError, StoreUnavailableError, listed
from streamdp.ledger.ledger_rows import change_cap, create_ledger, lock, read_cap, read_fingerprint, wait_for_writers
from streamdp.ledger.periods import Cap, allows_more, same_kind
from streamdp.ledger.subject_key import given_key, key_fingerprint, make_key, matching_key
from streamdp.store.reading import read_job, read_snapshots
from streamdp.store.tables import ALL_JOBS, STORE_FORMAT, JobRow


class Terms(NamedTuple):
    """What a job must keep, and the text that says it."""

    fingerprint: str  # stands for everything that must not change between runs
    config: str  # the job's text for readers, without secrets
    replaced: str = ""  # if a new model was asked for: what is kept of the former one, as a sentence


class Continued(Protocol):
    """Says on which terms a job goes on."""

    def __call__(self, stored: str, learned: int, *, cap: Cap | None) -> Terms:
        """Return the terms; `stored` is the text, `learned` counts records, and `cap` is that of the ledger, if any."""


def create_or_check(
    database: Database,
    job: str,
    terms: Terms,
    *,
    cap: Cap | None,
    key: bytes | None,
    continued: Continued | None,
    alone: bool,
) -> tuple[Terms, JobRow | None]:
    """Create the database; or, if it exists, make every check that can refuse the job, without a write.

    Returns the terms of the job from now on, of a job that exists those that `continued` returns; and the row of the
    job, None if it is new. Without a key, it is found as in `subject_key`. If no other
    worker holds the job (`alone`) and nothing was learned, it may go on with another configuration.

    Raises `StoreMismatchError` for a job with another fingerprint, for another key or cap than that of the ledger, and
    for a job with a cap that was created without one, or the reverse; `StoreDamagedError` if the database or a snapshot
    is damaged; `ConfigError` if a server has no key.
    """
    if cap is not None and given_key(database.key_file, key) is None and database.key_file is None:
        make_key(None)  # raises
    database.create(STORE_FORMAT, create_ledger)
    with database.reading(STORE_FORMAT) as connection:
        database.check(connection)
        row = next((row for row in map(JobRow._make, connection.fetch(ALL_JOBS)) if row.job == job), None)
        if row is not None:
            snapshots = read_snapshots(connection, job, database)
            learned = sum(snapshot.counts.learned for snapshot in snapshots)
            if continued is not None:
                terms = continued(row.config, learned, cap=read_cap(connection))
            counts = [snapshot.counts for snapshot in snapshots]
            unspent = alone and not any(c.learned or c.refused for c in counts)
            _check_job(row, database.name, terms, cap is not None, unspent or bool(terms.replaced))
        if cap is not None:
            _check_ledger(connection, database, job, cap, key)
    return terms, row


def _check_ledger(
    connection: Connection, database: Database, job: str, cap: Cap, key: bytes | None
) -> tuple[bytes | None, Cap | None]:
    """The subject key and the cap of the ledger, as far as there are any.

    Raises `StoreMismatchError` if the ledger has another key or cap. Its only job may change its cap.
    """
    fingerprint = read_fingerprint(connection)
    found = given_key(database.key_file, key)  # after the fingerprint, because another job may have made it just now
    if fingerprint is not None:
        matching_key(database.name, database.key_file, found, fingerprint)
    before, others = read_cap(connection), jobs_with_caps(connection, job)
    if others and before != cap:
        advice = f"write cap: {before!s} in this one, or change that of the database by streamdp ledger set-cap"
        if not same_kind(before, cap):
            advice = f"this one is of another kind; begin all jobs in a new database with cap: {cap!s}"
        raise StoreMismatchError(
            f"{database.name} has the cap {before!s}, and this job has {cap!s}. A database has one cap for all its jobs"
            f" ({listed(others)}): {advice}"
        )
    return found if fingerprint is not None else None, before


def jobs_with_caps(connection: Connection, job: str) -> list[str]:
    """Return the names of the jobs of which the ledger admits the records, without this job."""
    others = "SELECT job FROM jobs WHERE capped = 1 AND job <> :job ORDER BY job"
    return [name for (name,) in connection.fetch(others, {"job": job})]


def enter(
    connection: Connection,
    database: Database,
    job: str,
    checked: tuple[Terms, JobRow | None],
    cap: Cap | None,
    key: bytes | None,
) -> tuple[bytes | None, list[str]]:
    """Write what is new about a job, inside a transaction, after `create_or_check`, which returned `checked`.

    Returns the subject key, and what to say of the cap: that it is lower than it was, or which jobs a new one shares it
    with.
    Raises `StoreMismatchError` if another job has begun with another key or cap since then, and `StoreUnavailableError`
    if another worker has begun this job, or changed it, otherwise: then it must be checked again.
    """
    wait_for_writers(connection)  # jobs and workers that start at the same time do so one after the other
    found, notes = None, list[str]()
    if cap is not None:
        found, before = _check_ledger(connection, database, job, cap, key)
        if found is None:
            found = given_key(database.key_file, key) or make_key(database.key_file)
            connection.change("UPDATE ledger SET key_fingerprint = :known", {"known": key_fingerprint(found)})
        if before != cap:
            lock(connection)
            change_cap(connection, cap)
            if before is not None and same_kind(before, cap) and allows_more(before, cap):
                notes.append(
                    f"a person could spend {before} and now {cap}: records of those who have spent more are refused"
                    f" (cap: {before} keeps it)"
                )
    terms, known = checked
    row = JobRow(job, terms.fingerprint, terms.config, int(cap is not None))
    add = "INSERT INTO jobs VALUES (:job, :fingerprint, :config, :capped, :doubt) ON CONFLICT (job) DO NOTHING"
    if connection.change(add, row._asdict()):
        if cap is not None and (others := jobs_with_caps(connection, job)):
            notes.append(f"{database.name} has other jobs, {listed(others)}: one cap, {cap}, holds over all of them")
        return found, notes
    if read_job(connection, job, database.name)._replace(doubt="") not in (known and known._replace(doubt=""), row):
        raise StoreUnavailableError(f"{database.name}: another worker has just begun job {job!r} otherwise")
    return found, notes


def _check_job(row: JobRow, name: str, terms: Terms, capped: bool, unspent: bool) -> None:
    """Raise `StoreMismatchError` if the job has another configuration, unless nothing was learned (`unspent`)."""
    if row.fingerprint != terms.fingerprint and not unspent:
        raise StoreMismatchError(
            f"{name} was created by another configuration of job {row.job!r}{_changes(row.config, terms.config)};"
            " restore that configuration, or begin a new model by --new-model: it keeps what people have spent, and"
            " they spend again; another store would not count the spends so far"
        )
    if capped != bool(row.capped):
        created, opened = ("without", "with") if capped else ("with", "without")
        raise StoreMismatchError(
            f"{name} was created {created} a cap on spends, and is opened {opened} one: restore that, or begin a job"
            " of another name"
        )


def _changes(before: str, now: str) -> str:
    """Which settings differ between two texts of a configuration, as a part of a sentence; "" if that is unknown."""
    try:
        old, new = dict(_settings(json.loads(before))), dict(_settings(json.loads(now)))
    except ValueError:  # a program's own text
        return ""
    differ = [key for key in {**old, **new} if old.get(key) != new.get(key)]
    said = [f"{key} was {old.get(key, 'not set')} and is {new.get(key, 'not set')}" for key in differ]
    return f": {', '.join(said)}" if said else ""


def _settings(value: object, key: str = "") -> Iterator[tuple[str, object]]:
    """Dotted keys and values of nested objects."""
    if not isinstance(value, dict):
        yield key, value
        return
    for name, inner in value.items():
        yield from _settings(inner, f"{key}.{name}" if key else name)
