"""What a worker of a group says while it runs: a live table on a terminal, JSON lines anywhere else.

Both are `worker.Observer`s and context managers around the run.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from streamdp.data.records import Batch, Position, Shard
from streamdp.runtime.worker import Observer
from streamdp.store.snapshot import Counts, Part, Snapshot

if TYPE_CHECKING:
    from rich.table import Table

Lag = Callable[[Mapping[Shard, Position]], Mapping[Shard, int]]


def worker_display(lag: Lag) -> WorkerLines | WorkerTable:
    """The live table where standard output is a terminal, else JSON lines."""
    return WorkerTable(lag) if sys.stdout.isatty() else WorkerLines(lag)


class _Watching(Observer):
    """What both know: where each shard is, and how many records this run committed."""

    def __init__(self, lag: Lag) -> None:
        self._lag = lag
        self._lags: dict[Shard, int] = {}
        self._counts: dict[Shard, Counts] = {}
        self._trouble = ""
        self._began = time.monotonic()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...

    def learned(self, shard: Shard, batch: Batch, counts: Counts) -> None:
        """Nothing: what is not committed is not shown."""

    def committed(self, parts: dict[Shard, Part], seconds: float) -> None:
        self._trouble = ""
        self._lags |= self._lag({shard: part.position for shard, part in parts.items()})
        self._counts |= {shard: part.counts for shard, part in parts.items()}

    def assigned(self, shards: dict[Shard, Counts]) -> None:
        self._lags = {shard: lag for shard, lag in self._lags.items() if shard in shards}
        self._counts = {shard: self._counts.get(shard, counts) for shard, counts in shards.items()}

    def on_retry(self, kind: str, message: str) -> None:
        self._trouble = message

    def metrics(self, port: int) -> None:
        """Prometheus metrics are on this port of loopback."""

    def measured(self, snapshot: Snapshot, holdout: dict[str, Any] | None) -> None:
        """The whole job's model, all shards, was measured on the public holdout."""

    def finished(self, records: int, reason: str) -> None:
        """The run is over; `records` were committed."""


class WorkerLines(_Watching):
    """One object a commit, one a rebalance, one whenever there is something to get over, and one at the end.

    Another comes first with the port of metrics, and another after a commit with what the holdout says of all shards.
    """

    def committed(self, parts: dict[Shard, Part], seconds: float) -> None:
        super().committed(parts, seconds)
        shards = {
            str(shard): asdict(part.counts) | {"position": part.position, "lag": self._lags.get(shard)}
            for shard, part in parts.items()
        }
        self._write("commit", {"commit_seconds": round(seconds, 4), "shards": shards})

    def assigned(self, shards: dict[Shard, Counts]) -> None:
        super().assigned(shards)
        self._write("assigned", {"shards": sorted(map(str, shards))})

    def on_retry(self, kind: str, message: str) -> None:
        self._write(kind, {"message": message})

    def metrics(self, port: int) -> None:
        self._write("metrics", {"url": f"http://127.0.0.1:{port}/metrics"})

    def measured(self, snapshot: Snapshot, holdout: dict[str, Any] | None) -> None:
        if holdout is not None:
            self._write("holdout", asdict(snapshot.counts) | {"holdout": holdout})

    def finished(self, records: int, reason: str) -> None:
        self._write("end", {"records": records, "reason": reason})

    def _write(self, event: str, more: dict[str, Any]) -> None:
        seconds = round(time.monotonic() - self._began, 3)
        sys.stdout.write(json.dumps({"event": event, "seconds": seconds} | more) + "\n")
        sys.stdout.flush()


class WorkerTable(_Watching):
    """A line for each shard, drawn anew four times a second."""

    def __enter__(self) -> Self:
        from rich.console import Console
        from rich.live import Live

        self._state = "waiting for the group"
        self._notes: dict[str, str] = {}
        self._live = Live(get_renderable=self._table, console=Console(), refresh_per_second=4)
        self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._live.stop()

    def assigned(self, shards: dict[Shard, Counts]) -> None:
        super().assigned(shards)
        self._state = "running"

    def metrics(self, port: int) -> None:
        self._notes["metrics"] = f"http://127.0.0.1:{port}/metrics"

    def measured(self, snapshot: Snapshot, holdout: dict[str, Any] | None) -> None:
        if holdout is not None:
            measures = (f"{name} {value:.4g}" for name, value in holdout.items() if isinstance(value, float))
            self._notes["holdout, all shards"] = ", ".join(measures)

    def finished(self, records: int, reason: str) -> None:
        self._state = f"{reason}, {records:,} records"

    def _table(self) -> Table:
        from rich.table import Table

        title = f"{self._state}, {time.monotonic() - self._began:.0f} s"
        table = Table("shard", box=None, title=f"{title}; {self._trouble}" if self._trouble else title)
        table.caption = "\n".join(f"{name}: {note}" for name, note in self._notes.items()) or None
        for column in ("learned", "refused", "dead", "lag"):
            table.add_column(column, justify="right")
        for shard, counts in sorted(self._counts.items()):
            lag = self._lags.get(shard)
            numbers = (counts.learned, counts.refused, counts.dead)
            table.add_row(str(shard), *(f"{n:,}" for n in numbers), "" if lag is None else f"{lag:,}")
        return table
