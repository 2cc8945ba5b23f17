"""The rows of a ledger that are about no single subject: its mark, its key, its version, its cap, and its former caps.

The version grows with each transaction that begins with `lock`: one that changes rows of subjects in a database that
excludes writers as a whole, and one after which others must read all rows again. Such transactions are made one after
the other, and each of them sees what the others have written.
"""

import secrets
import time

from streamdp.database.interface import Connection
from streamdp.ledger.charged import Charged
from streamdp.ledger.periods import Cap, parse_cap


def create_ledger(connection: Connection) -> None:
    """Write the first row of a ledger, in the transaction that creates its tables.

    The first job with a cap sets the fingerprint of its subject key.
    """
    connection.change("INSERT INTO ledger (mark, version) VALUES (:mark, 0)", {"mark": secrets.token_bytes(16)})


def read_mark(connection: Connection) -> str:
    """Return the mark of a ledger, which identifies it."""
    ((mark,),) = connection.fetch("SELECT mark FROM ledger")
    return bytes(mark).hex()


def read_fingerprint(connection: Connection) -> bytes | None:
    """Return the fingerprint of the subject key; None before the first job with a cap."""
    ((found,),) = connection.fetch("SELECT key_fingerprint FROM ledger")
    return found


def lock(connection: Connection) -> int:
    """Exclude other writers of the ledger until the end of the transaction, and return its next version."""
    connection.change("UPDATE ledger SET version = version + 1")
    return read_version(connection)


def read_version(connection: Connection) -> int:
    """Return the version of the ledger, inside a transaction."""
    ((version,),) = connection.fetch("SELECT version FROM ledger")
    return int(version)


def wait_for_writers(connection: Connection) -> None:
    """Exclude other writers of the ledger until the end of the transaction. Its version stays."""
    if connection.server:  # a transaction on SQLite excludes them anyway
        connection.fetch("SELECT version FROM ledger FOR UPDATE")


def read_caps(connection: Connection) -> list[tuple[str, float]]:
    """Return all caps that the ledger has had, oldest first: the text, and since when in seconds since 1970 (UTC)."""
    return [(cap, since) for cap, since in connection.fetch("SELECT cap, since FROM caps ORDER BY number")]


def read_cap(connection: Connection) -> Cap | None:
    """Return the cap of the ledger; None before the first job with a cap."""
    found = connection.fetch("SELECT cap FROM caps ORDER BY number DESC LIMIT 1")
    return parse_cap(found[0][0]) if found else None


def change_cap(connection: Connection, cap: Cap) -> None:
    """Give the ledger another cap, after `lock`."""
    row = {"cap": str(cap), "since": time.time()}
    connection.change("INSERT INTO caps (cap, since) VALUES (:cap, :since)", row)


def read_charged(connection: Connection) -> Charged:
    """Return the caps under which the ledger charged."""
    return frozenset((cap, bool(own)) for cap, own in connection.fetch("SELECT cap, own FROM charged"))


def add_charged(connection: Connection, caps: Charged) -> None:
    """Write further caps, in the transaction of what is charged under them. Other workers may write the same ones."""
    if caps:
        rows = [{"cap": cap, "own": int(own)} for cap, own in sorted(caps)]
        connection.change_each("INSERT INTO charged (cap, own) VALUES (:cap, :own)", rows)
