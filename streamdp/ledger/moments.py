"""The time by which a cap renews, and when the rows of old periods go (see `periods`)."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable
from datetime import UTC, datetime, timedelta

from streamdp.ledger.periods import Cap, RenewingCap


class Moments:
    """The clock of a ledger. All times are in seconds since 1970 (UTC).

    `clock` returns the time of the machine, and `committed_at` is that of the last commit; 0 if it is not known.
    """

    def __init__(self, cap: Cap) -> None:
        self._cap = cap
        self.clock: Callable[[], float] = time.time
        self.committed_at = 0.0

    def begin(self, committed_at: float) -> None:
        """Note the time of the last commit before this start, `committed_at`; 0 if there was none.

        Warns if the clock is so far behind it that records with true times are too late.
        """
        self.committed_at = committed_at
        if isinstance(self._cap, RenewingCap) and committed_at - self._cap.late > self.clock():
            until = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(seconds=committed_at - self._cap.late)
            warnings.warn(
                f"this clock is behind the last commit: until {until:%Y-%m-%d %H:%M} UTC, records with true times are"
                " too late. Set the clock, if it is wrong now; if it was wrong at that commit, see docs/pitfalls.md,"
                " A cap that renews",
                stacklevel=2,
            )

    def now(self) -> float:
        """Return the time, or that of the last commit if the clock was set back."""
        return max(self.clock(), self.committed_at)

    def commit(self, committed_at: float) -> tuple[float, int]:
        """Return the time of the commit that comes now, and before which period it deletes rows; 0 for none.

        It deletes only if a period has ended since the last commit, `committed_at`. The caller writes the time in the
        same transaction.
        """
        self.committed_at = max(committed_at, self.committed_at)
        now = self.now()
        if not isinstance(self._cap, RenewingCap):
            return now, 0
        oldest = self._cap.oldest(now)
        return now, oldest if oldest > self._cap.oldest(committed_at) else 0
