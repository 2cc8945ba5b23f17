"""A store or ledger that somebody has open."""

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from streamdp.database import postgres, sqlite
from streamdp.errors import StoreBusyError


@contextmanager
def refused_as_busy() -> Iterator[pytest.ExceptionInfo[StoreBusyError]]:
    """Expect that a lock is refused, and do not wait for its holder."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(postgres, "LOCK_TIMEOUT_MS", 1)
        patch.setattr(sqlite, "BUSY_TIMEOUT_S", 0.0)
        with pytest.raises(StoreBusyError) as caught:
            yield caught
