"""A source whose process ends at a position."""

from collections.abc import Sequence

from streamdp.data.records import Batch
from tests.support.memory import Entry, MemorySource


class Crash(Exception):
    """Stands for the end of the process."""


class Crashing(MemorySource):
    """Gives five records a poll, and raises `Crash` once it stands at `crash_at` or after it."""

    def __init__(self, entries: Sequence[Entry], columns: Sequence[str], crash_at: int) -> None:
        super().__init__(entries, columns)
        self._crash_at = crash_at

    def poll(self, max_records: int, timeout_s: float) -> Batch:
        """See `MemorySource.poll`."""
        if self.position["index"] >= self._crash_at:
            raise Crash
        return super().poll(min(max_records, 5), timeout_s)
