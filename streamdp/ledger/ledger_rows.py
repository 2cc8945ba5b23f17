"""The rows of a ledger that are about no single subject: its mark, its key, its version, its cap, and its former caps.

The version grows with each transaction that begins with `lock`: one that changes rows of subjects in a database that
excludes writers as a whole, and one after which others must read all rows again. Such transactions are made one after
the other, and each of them sees what the others have written.
"""

from __future__ import annotations

import secrets
import time

from sqlalchemy import Connection, insert, select, update

from streamdp.ledger.charged import Charged
from streamdp.ledger.periods import Cap, parse_cap
from streamdp.ledger.tables import CAPS, CHARGED, LEDGER

_LOCK = update(LEDGER).values(version=LEDGER.c.version + 1)
_VERSION = select(LEDGER.c.version)


def create_ledger(connection: Connection, fingerprint: bytes | None = None) -> None:
    """Write the first row of a ledger, in the transaction that creates its tables.

    The fingerprint is that of its subject key. None: the first job with a cap sets it.
    """
    connection.execute(insert(LEDGER).values(mark=secrets.token_bytes(16), key_fingerprint=fingerprint, version=0))


def read_mark(connection: Connection) -> str:
    """Return the mark of a ledger, which identifies it."""
    return bytes(connection.execute(select(LEDGER.c.mark)).scalar_one()).hex()


def read_fingerprint(connection: Connection) -> bytes | None:
    """Return the fingerprint of the subject key; None before the first job with a cap."""
    found: bytes | None = connection.execute(select(LEDGER.c.key_fingerprint)).scalar_one()
    return found


def lock(connection: Connection) -> int:
    """Exclude other writers of the ledger until the end of the transaction, and return its next version."""
    connection.execute(_LOCK)
    return read_version(connection)


def read_version(connection: Connection) -> int:
    """Return the version of the ledger, inside a transaction."""
    return int(connection.execute(_VERSION).scalar_one())


def wait_for_writers(connection: Connection) -> None:
    """Exclude other writers of the ledger until the end of the transaction. Its version stays."""
    connection.execute(_VERSION.with_for_update())  # a transaction on SQLite excludes them anyway


def read_caps(connection: Connection) -> list[tuple[str, float]]:
    """Return all caps that the ledger has had, oldest first: the text, and since when in seconds since 1970 (UTC)."""
    rows = connection.execute(select(CAPS.c.cap, CAPS.c.since).order_by(CAPS.c.number)).all()
    return [(row.cap, row.since) for row in rows]


def read_cap(connection: Connection) -> Cap | None:
    """Return the cap of the ledger; None before the first job with a cap."""
    found = connection.execute(select(CAPS.c.cap).order_by(CAPS.c.number.desc()).limit(1)).scalar()
    return None if found is None else parse_cap(found)


def change_cap(connection: Connection, cap: Cap) -> None:
    """Give the ledger another cap, after `lock`."""
    connection.execute(insert(CAPS).values(cap=str(cap), since=time.time()))


def read_charged(connection: Connection) -> Charged:
    """Return the caps under which the ledger charged."""
    rows = connection.execute(select(CHARGED.c.cap, CHARGED.c.own)).all()
    return frozenset((row.cap, bool(row.own)) for row in rows)


def add_charged(connection: Connection, caps: Charged) -> None:
    """Write further caps, in the transaction of what is charged under them. Other workers may write the same ones."""
    if caps:
        connection.execute(insert(CHARGED), [{"cap": cap, "own": int(own)} for cap, own in sorted(caps)])
