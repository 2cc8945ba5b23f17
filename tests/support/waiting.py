"""Waiting for what another thread, process or server does."""

import time
from collections.abc import Callable

PATIENCE_S = 120.0
"""No test waits so long unless something is wrong."""


def wait_until(holds: Callable[[], object], seconds: float = PATIENCE_S) -> None:
    deadline = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < deadline, "it does not happen"
        time.sleep(0.02)
