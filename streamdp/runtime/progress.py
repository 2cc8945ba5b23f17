"""What `streamdp run` says while it runs: a live table on a terminal, JSON lines anywhere else."""

from __future__ import annotations

import json
import sys
import time
from dataclasses import asdict
from types import TracebackType
from typing import TYPE_CHECKING, Any, Protocol, Self

from streamdp.runtime.runner import Progress, total
from streamdp.store.snapshot import Counts, Snapshot

if TYPE_CHECKING:
    from rich.table import Table


class Display(Protocol):
    """A place to show progress; used as a context manager around the run."""

    def __enter__(self) -> Self: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...

    def resumed(self, snapshot: Snapshot) -> None:
        """Before the run, where there were commits already; `snapshot` is the last."""

    def progress(self, progress: Progress) -> None:
        """After every batch and commit."""

    def committed(self, snapshot: Snapshot, holdout: dict[str, Any] | None) -> None:
        """After every commit, and where a run goes on for the last one before it."""

    def finished(self, counts: Counts, reason: str) -> None:
        """At the end of the run."""


def display_for_stdout() -> Display:
    """The live table where standard output is a terminal, else JSON lines."""
    return LiveTable() if sys.stdout.isatty() else JSONLines()


class _Timed:
    """Counts since this run began: a resumed job must not claim the records of earlier runs for its speed."""

    def __enter__(self) -> Self:
        self._began = time.monotonic()
        self._first: Snapshot | None = None
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...

    def resumed(self, snapshot: Snapshot) -> None:
        self._first = snapshot

    def _speed(self, counts: Counts) -> tuple[float, float]:
        """Seconds, and records a second."""
        seconds = time.monotonic() - self._began
        first = 0 if self._first is None else total(self._first.counts)
        return seconds, (total(counts) - first) / max(seconds, 1e-9)


class JSONLines(_Timed):
    """One object for each commit of this run, and one at the end."""

    def progress(self, progress: Progress) -> None:
        """Nothing: what is not committed is not written down."""

    def committed(self, snapshot: Snapshot, holdout: dict[str, Any] | None) -> None:
        if self._first is not None and snapshot.seq <= self._first.seq:
            return
        more: dict[str, Any] = {"commit": snapshot.seq, "committed_at": snapshot.committed_at}
        if holdout is not None:
            more["holdout"] = holdout
        self._write("commit", snapshot.counts, more)

    def finished(self, counts: Counts, reason: str) -> None:
        self._write("end", counts, {"reason": reason})

    def _write(self, event: str, counts: Counts, more: dict[str, Any]) -> None:
        seconds, speed = self._speed(counts)
        timing = {"seconds": round(seconds, 3), "records_per_second": round(speed)}
        sys.stdout.write(json.dumps({"event": event} | asdict(counts) | timing | more) + "\n")
        sys.stdout.flush()


class LiveTable(_Timed):
    """A table that is drawn anew four times a second."""

    def __enter__(self) -> Self:
        from rich.console import Console
        from rich.live import Live

        super().__enter__()
        self._progress = Progress(Counts(), Counts())
        self._holdout: dict[str, Any] | None = None
        self._state = "running"
        self._live = Live(get_renderable=self._table, console=Console(), refresh_per_second=4)
        self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._live.stop()

    def progress(self, progress: Progress) -> None:
        self._progress = progress

    def committed(self, snapshot: Snapshot, holdout: dict[str, Any] | None) -> None:
        self._holdout = holdout

    def finished(self, counts: Counts, reason: str) -> None:
        self._progress = Progress(counts, counts)
        self._state = reason

    def _table(self) -> Table:
        from rich.table import Table

        counts, done = self._progress.counts, self._progress.committed
        seconds, speed = self._speed(counts)
        table = Table(box=None, show_header=False)
        rows = [
            ("state", f"{self._state}, {seconds:.0f} s"),
            ("records/s", f"{speed:,.0f}"),
            ("learned", f"{counts.learned:,}"),
            ("refused", f"{counts.refused:,}"),
            ("dead", f"{counts.dead:,}"),
            ("committed", f"{total(done):,}"),
        ]
        for name, value in (self._holdout or {}).items():
            if isinstance(value, float):
                rows.append((f"holdout {name.replace('_', ' ')} (public)", f"{value:.4f}"))
        for name, value in rows:
            table.add_row(name, value)
        return table
