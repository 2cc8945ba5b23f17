"""A service under connections that send nothing: it answers probes, serves others, and its log stays small.

The service runs with a limit of open files: 1,024, and 65,536 or what the machine allows. Silent sockets are opened as
fast as it accepts them. Meanwhile a probe and a caller open a connection for each of their calls. The counts of
`served` are asserted, and not their times.

    python -m tests.campaigns.test_silent_sockets --write
"""

import contextlib
import resource
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.paths import ROOT
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


PAGE = """# Silent sockets

`python -m tests.campaigns.test_silent_sockets --write` serves a job over HTTP with a limit of open files, opens
{sockets:,} connections that send nothing, and meanwhile makes {calls} probes of `/healthz` and {calls} calls of
`learn`, each on a connection of its own. A limit above that of the machine is that of the machine. Other work ran on
the machine.

| files | silent sockets | probes answered | calls learned | lines of log | bytes of log | seconds |
|---|---|---|---|---|---|---|
{rows}

Run on {date}.
"""


def main() -> None:
    """Print what was served under each limit; with `--write`, replace benchmarks/silent_sockets.md."""
    rows = []
    for limit in LIMITS:
        with tempfile.TemporaryDirectory() as folder, _files():
            began = time.perf_counter()
            found: Found = served_beside(Path(folder), limit, SOCKETS, CALLS)
        rows.append(
            f"| {found.limit:,} | {SOCKETS:,} | {found.probes.count(200)} of {CALLS} | {found.learned} of {CALLS} "
            f"| {found.log_lines} | {found.log_bytes:,} | {time.perf_counter() - began:.0f} |"
        )
        print(rows[-1], flush=True)
    if "--write" in sys.argv:
        page = PAGE.format(sockets=SOCKETS, calls=CALLS, rows="\n".join(rows), date=time.strftime("%Y-%m-%d"))
        (ROOT / "benchmarks" / "silent_sockets.md").write_text(page)


if __name__ == "__main__":
    main()
