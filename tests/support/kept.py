"""A ledger whose spends are kept in a file."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from streamdp import Ledger, Store
from streamdp.privacy.guarantees import Budget
from streamdp.store.snapshot import Counts


@contextmanager
def kept(cap: Budget | str, path: Path, key: bytes | None = None) -> Iterator[Ledger]:
    """The ledger of a store, which commits at the end."""
    with Store(path, "job", "1", cap=cap, key=key) as store:
        assert store.ledger is not None
        yield store.ledger
        store.commit({}, {}, Counts())
