"""The rows of a ledger that say under which caps it charged (`charged`), and its mark."""

from __future__ import annotations

import secrets

from sqlalchemy import Connection, insert, select

from streamdp.ledger.charged import Charged
from streamdp.ledger.tables import CHARGED, MARKS


def write_mark(connection: Connection) -> None:
    """Write the mark of a new ledger, in the transaction that creates its tables."""
    connection.execute(insert(MARKS).values(mark=secrets.token_bytes(16)))


def read_mark(connection: Connection) -> str:
    """Return the mark of a ledger."""
    return bytes(connection.execute(select(MARKS.c.mark)).scalar_one()).hex()


def read_charged(connection: Connection) -> Charged:
    """Return the caps under which the ledger charged."""
    rows = connection.execute(select(CHARGED.c.cap, CHARGED.c.own)).all()
    return frozenset((row.cap, bool(row.own)) for row in rows)


def add_charged(connection: Connection, caps: Charged) -> None:
    """Write further caps, in the transaction of what is charged under them. Other workers may write the same ones."""
    if caps:
        connection.execute(insert(CHARGED), [{"cap": cap, "own": int(own)} for cap, own in sorted(caps)])
