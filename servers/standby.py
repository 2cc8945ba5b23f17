"""A PostgreSQL server and its synchronous standby, for tests that let the standby take over."""

from __future__ import annotations

import contextlib
from pathlib import Path
from types import TracebackType
from typing import Self

from servers.postgres import Postgres

# A commit is acknowledged when both servers have it, and a standby that was away comes back soon.
_SETTINGS = {"synchronous_standby_names": "*", "wal_retrieve_retry_interval": "200ms", "hot_standby": "on"}


class Pair:
    """Two PostgreSQL servers of which one, the standby, has every commit that the other one has acknowledged.

    See `servers.postgres.Postgres` about `secure`: both servers have the certificate of the first primary.

    Parameters
    ----------
    folder
        For logs, and for data as in `servers.postgres.Postgres`.

    Attributes
    ----------
    primary, standby
        The servers; they swap their places when the standby takes over.
    ca_file
        The authority of both servers' certificate (PEM).
    """

    def __init__(self, folder: Path) -> None:
        self.primary, self.standby = (Postgres(folder / name, _SETTINGS, secure=True) for name in "ab")
        self.ca_file = self.primary.ca_file

    def fail_over(self) -> None:
        """Kill the primary (SIGKILL), and let the standby take over. Commits then wait for the next `rebuild`."""
        self.primary.kill()
        self.standby.promote()
        self.primary, self.standby = self.standby, self.primary

    def rebuild(self) -> None:
        """Make the standby anew, as a copy of the primary."""
        self.standby.follow(self.primary)

    def __enter__(self) -> Self:
        with contextlib.ExitStack() as stack:
            stack.enter_context(self.primary)
            stack.push(self.standby)
            self.rebuild()
            self._stack = stack.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.close()
