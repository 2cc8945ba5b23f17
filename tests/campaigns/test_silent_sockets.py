"""A service under connections that send nothing: it answers probes, serves others, and its log stays small.

The service runs with a limit of open files. Silent sockets are opened as fast as it accepts them. Meanwhile a probe
and a caller open a connection for each of their calls. The counts of `served` are asserted, and not their times.

    python -m tests.campaigns.test_silent_sockets
"""

from __future__ import annotations

import contextlib
import resource
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.silent import Found, served_beside

pytestmark = pytest.mark.campaign

LIMITS = (1024, 65_536)
SOCKETS = 5000
CALLS = 50


@contextlib.contextmanager
def _files() -> Iterator[None]:
    """As many open files for this process as the system lets it have."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (before[1], before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)


@pytest.mark.parametrize("limit", LIMITS)
def test_silent_sockets_silence_nobody(limit: int, tmp_path: Path) -> None:
    with _files():
        found = served_beside(tmp_path, limit, SOCKETS, CALLS)
    assert found.probes == [200] * CALLS
    assert found.learned == CALLS
    assert found.log_lines < 100


def main() -> None:
    """Print what was served under each limit."""
    for limit in LIMITS:
        with tempfile.TemporaryDirectory() as folder, _files():
            began = time.perf_counter()
            found: Found = served_beside(Path(folder), limit, SOCKETS, CALLS)
        print(
            f"{found.limit} files, {SOCKETS} silent sockets: {found.probes.count(200)} of {CALLS} probes answered, "
            f"{found.learned} of {CALLS} calls learned, {found.log_bytes} bytes of log, "
            f"{time.perf_counter() - began:.1f} s in all"
        )


if __name__ == "__main__":
    main()
