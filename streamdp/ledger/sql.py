"""What the ledger's statements share: short transactions, and an error."""

from contextlib import AbstractContextManager, nullcontext

from streamdp.database.interface import Connection
from streamdp.errors import StoreDamagedError


def damaged() -> StoreDamagedError:
    """Return the error for spends that fail their check."""
    return StoreDamagedError("spends of the ledger are damaged; restore a copy of the database")


def transaction(connection: Connection) -> AbstractContextManager[object]:
    """Return a transaction for some statements; if the caller has one open, they run in that one."""
    return nullcontext() if connection.in_transaction() else connection.begin()
