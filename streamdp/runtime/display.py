"""What a run shows of itself: JSON lines; a run of one source on a terminal shows a live table in their place."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Self

from streamdp.data.records import Position, Shard, Stall
from streamdp.runtime.bad_records import dropped
from streamdp.runtime.learning import total
from streamdp.runtime.protocols import Observer
from streamdp.runtime.runner import Progress
from streamdp.store.snapshot import Counts, Part, Snapshot, counts_sum

if TYPE_CHECKING:
    from rich.live import Live
    from rich.table import Table

    from streamdp.estimators.estimator import Estimator
    from streamdp.validation.quality import Quality

COUNTS = {"learned": "learned", "refused": "refused", "dead_letters": "do not fit", "left_out": "left out"}
"""What a table calls the numbers of `Counts`."""
Lag = Callable[[Mapping[Shard, Position]], Mapping[Shard, int]]


class _Display:
    """Shows one run; a context manager around it."""

    warning: str | None = None
    """What the last measures on a public holdout warn of."""
    quality: Quality | None = None
    """What private answers say about the committed model."""
    change: str | None = None
    """What the learner noticed of changes of the stream; None: nothing."""
    _changes: int | None = None

    def __enter__(self) -> Self:
        self._began = time.monotonic()
        return self

    def __exit__(self, *error: object) -> None:
        """Nothing is to be closed."""

    def judged(self, quality: Quality | None) -> None:
        """After a commit: what private answers say about the model.

        A new drift is an event of its own. None: the model has no validation.
        """
        before = 0 if self.quality is None else self.quality.drifts
        first, self.quality = self.quality is None, quality
        if quality is not None and quality.drifts > before and not first:
            self._write("drift", {"records": quality.last_drift, "drifts": quality.drifts})

    def followed(self, estimator: Estimator) -> None:
        """After a commit, and before the first one: which changes of the stream the `estimator` has noticed.

        A new one is an event of its own. It spends nothing, because it was noticed in released numbers.
        """
        before, self._changes = self._changes, estimator.n_changes
        self.change = estimator.change_note
        if before is not None and self._changes > before:
            records = estimator.last_change or estimator.n_seen
            self._write("change", {"records": records, "changes": self._changes, "message": self.change})

    def published(self, message: str) -> None:
        """When a sink does not take what is published, and when it does again; `message` says it."""
        self._write("publish", {"message": message})
        sys.stderr.write(f"streamdp: warning: {message}\n")

    def conclusions(self) -> list[str]:
        """What the last measures, the last private answers and the learner say, as lines.

        The end of the run has the sentences, too: they are lines for a person at a terminal who has sent it elsewhere.
        """
        found = [] if self.warning is None else [f"warning: {self.warning}"]
        if sys.stdout.isatty() or not sys.stderr.isatty():
            return found
        return found + [f"{name}: {sentence}" for name, sentence in self._judged.items()]

    @property
    def _judged(self) -> dict[str, str]:
        """What the last private answers and the learner say, as sentences."""
        found = {"validation": None if self.quality is None else self.quality.sentence(), "change": self.change}
        return {name: sentence for name, sentence in found.items() if sentence is not None}

    @property
    def _seconds(self) -> float:
        return time.monotonic() - self._began

    def _write(self, event: str, more: dict[str, object]) -> None:
        """Write an event as a JSON line."""
        now = datetime.now(UTC).isoformat(timespec="milliseconds")
        line: dict[str, object] = {"event": event, "time": now, "seconds": round(self._seconds, 3)} | more
        sys.stdout.write(json.dumps(line) + "\n")
        sys.stdout.flush()


class RunnerDisplay(_Display):
    """Shows a `runner.Runner`. On a terminal `table` is drawn four times a second in place of JSON lines.

    JSON lines: one object for each commit of this run, and one at the end. `share` returns the share of the source that
    was read, in [0, 1]; None if that is unknown. `facts` are more rows for the table, such as the budget. `following`
    says what to do after the run.
    """

    _live: Live | None = None

    def __init__(
        self,
        share: Callable[[], float | None] = lambda: None,
        facts: Mapping[str, str] | None = None,
        following: str = "",
    ) -> None:
        self._share = share
        self._facts = dict(facts or {})
        self._following = following
        self._progress = Progress(Counts(), Counts())
        self._first: Snapshot | None = None
        self._holdout: dict[str, object] | None = None
        self._state = "running"
        self._doubts: tuple[str, ...] = ()
        self._waits = ""

    def __enter__(self) -> Self:
        super().__enter__()
        if sys.stdout.isatty():
            from rich.console import Console
            from rich.live import Live

            self._live = Live(get_renderable=self.table, console=Console(), refresh_per_second=4)
            self._live.start()
        return self

    def __exit__(self, *error: object) -> None:
        if self._live is not None:
            self._live.stop()

    def _write(self, event: str, more: dict[str, object]) -> None:
        if self._live is None:
            super()._write(event, more)

    def resumed(self, snapshot: Snapshot) -> None:
        """Before a run that resumes a job: its records are not of this run, and do not count for its speed."""
        self._first = snapshot

    def progress(self, progress: Progress) -> None:
        """After every batch and commit. JSON lines show what is committed only."""
        self._progress, self._waits = progress, ""

    def committed(self, snapshot: Snapshot, holdout: dict[str, Any] | None) -> None:
        """After every commit, and after a resume; with scores on the public `holdout`, or None."""
        self._holdout, self.warning = holdout, (holdout or {}).get("warning")
        if self._first is None or snapshot.seq > self._first.seq:
            more: dict[str, object] = {"commit": snapshot.seq, "committed_at": snapshot.committed_at}
            if self.quality is not None:  # the end of the run has the sentence
                more["validation"] = asdict(self.quality)
            self._count("commit", snapshot.counts, more if holdout is None else more | {"holdout": holdout})

    def waiting(self, message: str) -> None:
        """When the run waits for something that does not come; `message` says what."""
        self._waits = message
        self._write("waiting", {"message": message})

    def finished(self, counts: Counts, reason: str, doubts: Sequence[str] = (), waiting: int = 0) -> None:
        """At the end of the run, for this `reason`, with `doubts` about the model as sentences.

        `waiting` records belong to a batch or window that is open, and are not learned.
        """
        self._progress, self._state, self._doubts = Progress(counts, counts), reason, tuple(doubts)
        more: dict[str, object] = {"waiting": waiting} if waiting else {}
        self._waits = f"{waiting:,} records, for those that fill their batch or window" if waiting else ""
        self._count("end", counts, {"reason": reason} | more | self._judged | _doubted(doubts))

    def _speed(self, counts: Counts) -> float:
        first = 0 if self._first is None else total(self._first.counts)
        return (total(counts) - first) / max(self._seconds, 1e-9)

    def _count(self, event: str, counts: Counts, more: dict[str, object]) -> None:
        self._write(event, asdict(counts) | {"records_per_second": round(self._speed(counts))} | more)

    def table(self) -> Table:
        """One row for each number."""
        from rich.table import Table

        counts = self._progress.counts
        rows = {"state": f"{self._state}, {self._seconds:.0f} s", "records/s": f"{self._speed(counts):,.0f}"}
        rows |= {COUNTS[name]: f"{number:,}" for name, number in asdict(counts).items()}
        rows["committed"] = f"{total(self._progress.committed):,}"
        if (share := self._share()) is not None:
            rows["done"] = f"{100 * share:.0f} %"
        for name, value in (self._holdout or {}).items():
            if isinstance(value, float):
                rows[f"holdout {name.replace('_', ' ')} (public)"] = f"{value:.4f}"
        rows |= self._facts
        rows |= {name.replace("validation", "validation (private)"): said for name, said in self._judged.items()}
        rows |= {"waiting": self._waits} if self._waits else {}
        if self._following and self._state == "done":
            rows["next"] = self._following
        table = Table(box=None, show_header=False)
        for row in [*rows.items(), *(("doubt", doubt) for doubt in self._doubts)]:
            table.add_row(*row)
        return table


def _doubted(doubts: Sequence[str]) -> dict[str, list[str]]:
    return {"doubts": [*doubts]} if doubts else {}


class WorkerDisplay(_Display, Observer):
    """Shows a `worker.Worker`.

    JSON lines: one object for each commit, change of shards, retry, measurement on the holdout, beginning and end of a
    stall; one with the port of the metrics, and one at the end.
    """

    def __init__(self, lag: Lag) -> None:
        self._lag = lag
        self._counts: dict[Shard, Counts] = {}

    def conclusions(self) -> list[str]:
        """See `_Display.conclusions`; also whether many records of this worker's shards do not fit the schema."""
        bad = dropped(counts_sum(self._counts.values()))
        return super().conclusions() + ([] if bad is None else [f"warning: {bad}"])

    def committed(self, parts: dict[Shard, Part], seconds: float) -> None:
        lags = self._lag({shard: part.position for shard, part in parts.items()})
        self._counts |= {shard: part.counts for shard, part in parts.items()}
        shards = {
            str(shard): asdict(part.counts) | {"position": part.position, "lag": lags.get(shard)}
            for shard, part in parts.items()
        }
        self._write("commit", {"commit_seconds": round(seconds, 4), "shards": shards})

    def assigned(self, shards: dict[Shard, Counts]) -> None:
        self._counts = {shard: self._counts.get(shard, counts) for shard, counts in shards.items()}
        self._write("assigned", {"shards": sorted(map(str, shards))})

    def on_stall(self, stall: Stall, *, ended: bool) -> None:
        said = {"shard": stall.where, "reason": stall.reason, "seconds": round(stall.seconds, 1)}
        if ended:
            self._write("stall_end", said)
        else:
            self._write("stall", said | {"message": f"{stall.where} {stall.message}"})

    def on_retry(self, kind: str, message: str) -> None:
        self._write(kind, {"message": message})

    def metrics(self, port: int) -> None:
        """Before the run, if it serves Prometheus metrics on this `port` of loopback."""
        self._write("metrics", {"url": f"http://127.0.0.1:{port}/metrics"})

    def measured(self, snapshot: Snapshot, holdout: dict[str, Any] | None) -> None:
        """After a commit, if the model of all shards was measured on a public `holdout`; None without a holdout."""
        self.warning = (holdout or {}).get("warning")
        if holdout is not None:
            self._write("holdout", asdict(snapshot.counts) | {"holdout": holdout})

    def judged(self, quality: Quality | None) -> None:
        """See `_Display.judged`; here of the model of all shards."""
        super().judged(quality)
        if quality is not None:
            self._write("validation", quality.document())

    def finished(self, records: int, reason: str, doubts: Sequence[str] = ()) -> None:
        """At the end of the run, for this `reason`: how many `records` were committed, and `doubts` about the model."""
        self._write("end", {"records": records, "reason": reason} | self._judged | _doubted(doubts))
