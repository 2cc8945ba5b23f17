"""The jobs of a service: each shows its last committed model. A job that does not learn here follows its store.

`Follower` reads what all processes have committed of a job from its store, without its lock.
"""

import asyncio
import contextlib
import logging
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import cached_property, partial
from typing import NamedTuple, TypeVar

from streamdp.config.http import CallsConfig
from streamdp.config.job import JobConfig
from streamdp.errors import StoreError, StoreMismatchError, StreamDPError, reason_of
from streamdp.protocol.report_desk import ReportDesk
from streamdp.protocol.reports import Issued
from streamdp.runtime.calls import Calls
from streamdp.service.features import RecordReader
from streamdp.service.problems import ProblemError, busy
from streamdp.serving.holdout import Holdout
from streamdp.serving.snapshots import Model, combined, newest, restore
from streamdp.store.snapshot import Counts, Snapshot
from streamdp.store.store import Store

FOLLOW_S = 0.5
"""The time between two looks at the store of a job that another process learns, in seconds."""

LEFT_S = 60.0
"""After this time without a service, reports for a shard are no longer kept for the next one, in seconds."""


class Found(NamedTuple):
    """What a look at the store found."""

    snapshot: Snapshot | None = None  # the last committed one, all shards combined; None if it is the known one
    measures: dict[str, object] | None = None  # scores on the public holdout; None without a holdout
    trouble: str | None = None  # why the store cannot be read, without values; None if it can


class Follower:
    """Reads the store of one job. Threads may share it."""

    def __init__(self, config: JobConfig) -> None:
        self._config = config
        self._holdout = None if config.holdout is None else Holdout(config)
        self._lock = threading.Lock()
        self._read: list[Snapshot] = []
        self._mine: Snapshot | None = None
        source = config.source
        self._several = config.store_on_server and isinstance(source, CallsConfig) and source.most_shards > 1
        self._held: dict[int, float] = {}

    @property
    def shards(self) -> list[Snapshot]:
        """The last known commit of each shard, in their order."""
        with self._lock:
            return self._known()

    @property
    def held(self) -> frozenset[int]:
        """The numbers of the shards that a service holds, or held in the last `LEFT_S`."""
        since = time.monotonic() - LEFT_S
        return frozenset(number for number, at in self._held.items() if at > since)

    def _known(self) -> list[Snapshot]:
        return newest([*self._read, *([] if self._mine is None else [self._mine])], self._config.job)

    def add(self, mine: Snapshot) -> Snapshot:
        """Take a commit of this process before the next look; return the snapshot of all shards combined."""
        with self._lock:
            self._mine = mine
            return combined(self._known())

    def look(self, known: Snapshot) -> Found:
        """Read the store, if it has another commit, or another note after the last one. Any thread may call it."""
        try:
            read = Store.snapshots(self._config.store_path, self._config.job)
            if self._several:
                held = Store.held_shards(self._config.store_path, self._config.job)
                self._held = self._held | dict.fromkeys(held, time.monotonic())  # a new one: another thread may read it
            with self._lock:
                self._read = read
                snapshots = self._known()
            if not snapshots:
                return Found()
            commit = sum(s.seq for s in snapshots), max(s.committed_at for s in snapshots)
            if commit == known.commit:
                noted = replace(known, waiting=sum(s.waiting for s in snapshots), doubt=snapshots[0].doubt)
                return Found() if (noted.waiting, noted.doubt) == (known.waiting, known.doubt) else Found(noted)
            snapshot = combined(snapshots)
            if self._config.fingerprint() != snapshot.fingerprint:
                raise StoreMismatchError("the store belongs to another configuration of the job")
            measures = None if self._holdout is None else self._holdout.measure(restore(snapshot).estimator)
            return Found(snapshot, measures)
        except StoreError as error:
            return Found(trouble=f"the store cannot be read: {error}")
        except StreamDPError as error:
            return Found(trouble=f"the store does not fit the job: {error}")


_MOST_TIMES, _BETWEEN_S = 1000, 1.0

ANSWER_S = 3.0
"""A database that has not answered for so long is taken for one that does not answer, in seconds."""
START_S = 10.0
"""How long the service waits for the store of a job before it serves the others, in seconds."""
SILENT = f"the database has not answered for {ANSWER_S:g} s"

T = TypeVar("T")
_log = logging.getLogger("streamdp.service.jobs")

Listener = Callable[[Snapshot, dict[str, object] | None], None]


class Job:
    """A job, and its last committed model. All methods are called in the thread of the event loop.

    Its own workers learn it, and the store is only read; a `LearningJob` is learned here.
    """

    learns = False
    """Whether the job learns from requests."""

    def __init__(self, config: JobConfig) -> None:
        self.config = config
        self.name = config.job
        self._trouble: str | None = None
        # on threads that a silent database may keep: no request and no stop waits for them
        self._calls, self._questions = Calls(), Calls()
        # how often each reason of an unusable record was answered since the service started
        self.reasons: Counter[str] = Counter()
        # the same at earlier times: seconds since 1970 (UTC), and the counts then
        self.reasons_over_time: deque[tuple[float, dict[str, int]]] = deque(maxlen=_MOST_TIMES)
        self.listeners: set[Listener] = set()
        self.measures: dict[str, object] | None = None
        self.event = ((-1, 0.0), b"")
        """The commit and the text of the last event."""
        self.lag: int | None = None
        self.lag_asked_at = float("-inf")
        """The last answer of `service.pages.lag`, and its time."""
        self.features = RecordReader(config.schema_, coded=config.coded)
        """Reads the records of calls."""
        self.snapshot = first_snapshot(config)
        self._model = restore(self.snapshot)
        self._follower = Follower(config)
        self._following: asyncio.Task[None] | None = None

    @property
    def trouble(self) -> str | None:
        """Why the store or the source cannot be used now, without values; None if they can."""
        return self._trouble

    @trouble.setter
    def trouble(self, why: str | None) -> None:
        if why not in (None, self._trouble):
            _log.error("job %r: %s", self.name, why)
        self._trouble = why

    async def ask(self, question: Callable[..., T], *given: object) -> T:
        """Ask the database a `question` with what is `given`. Raises `ProblemError` 503 after `ANSWER_S`."""
        call = asyncio.wrap_future(self._questions.submit(partial(question, *given)))
        if not (await asyncio.wait({call}, timeout=ANSWER_S))[0]:
            raise busy(SILENT)
        return call.result()

    def give_up(self, why: str) -> None:
        """Note that the store cannot be used, and `why`; nothing waits for it any longer."""
        self.trouble = why

    @property
    def model(self) -> Model:
        """The last committed model; version 0 has learned nothing. Valid until the event loop runs again."""
        if self._model.snapshot is not self.snapshot:
            self._model = restore(self.snapshot, self._model)
        return self._model

    @cached_property
    def constant(self) -> dict[str, float] | None:
        """The measures of the best constant on the public holdout; None without one. It reads the file."""
        return None if self.config.holdout is None else Holdout(self.config).constant()

    def take(self, snapshot: Snapshot, measures: dict[str, object] | None) -> None:
        """Show another committed snapshot and its `measures` on the holdout (None without one); call the listeners."""
        self.snapshot, self.measures = snapshot, measures
        for listener in tuple(self.listeners):
            listener(snapshot, measures)

    def note_reasons(self, reasons: Iterable[str]) -> None:
        """Count the `reasons` of unusable records, one of each."""
        before = self.reasons.total()
        self.reasons.update(reasons)
        times = self.reasons_over_time
        if self.reasons.total() > before and (not times or time.time() - times[-1][0] >= _BETWEEN_S):
            times.append((time.time(), dict(self.reasons)))

    def show(self, found: Found) -> None:
        """Show what another process has committed."""
        self.trouble = found.trouble
        if found.snapshot is not None and found.snapshot.commit == self.snapshot.commit:
            self.snapshot = found.snapshot  # no commit: another note
        elif found.snapshot is not None:
            self.take(found.snapshot, found.measures)

    @property
    def waiting(self) -> int:
        """How many records of calls wait for their commit. An alert names them if nothing is committed."""
        return 0

    @property
    def uncommitted(self) -> int:
        """How many records were read and are not committed: `waiting`, and those of open batches and windows."""
        return self.waiting + self.snapshot.waiting

    @property
    def learning(self) -> bool:
        """Whether this service learns the job now."""
        return False

    @property
    def desk(self) -> ReportDesk | None:
        """The desk of reports, at the last commit; None if the job takes no reports."""
        return None

    async def document(self) -> Issued:
        """The randomizer document for devices. Raises `ProblemError` if there is none."""
        if self.desk is None:
            raise no_reports()
        return self.desk.document()

    @property
    def unpublished(self) -> list[str]:
        """Why sinks have not taken the last commit of this service."""
        return []

    def notes(self) -> list[str]:
        """Notes for the privacy statement: what waits in memory."""
        return []

    async def start(self) -> None:
        """Begin to learn or to follow, for at most `START_S`. Raises the store's errors, and retries until `stop`."""
        looked = asyncio.Event()
        self._following = asyncio.create_task(self._follow(looked))
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(looked.wait(), START_S)

    def end(self) -> None:
        """Take no more calls, and answer those that wait, whose batch ends now. Idempotent."""
        return

    async def stop(self) -> None:
        """End what `start` began.

        Raises `StoreUnavailableError` if the database does not answer.
        """
        self._calls.shutdown(wait=False)
        self._questions.shutdown(wait=False)
        if self._following is not None:
            self._following.cancel()
            await asyncio.wait([self._following])

    async def refresh(self) -> None:
        """Read the store, and show what was committed since. While it does not answer, the job is not ready."""
        call = asyncio.wrap_future(self._calls.submit(partial(self._follower.look, self.snapshot)))
        if not (await asyncio.wait({call}, timeout=ANSWER_S))[0]:
            self.give_up(SILENT)
            await asyncio.wait({call})
        try:
            found = call.result()
        except Exception as error:  # noqa: BLE001 - the loop that asks goes on: its next look may succeed
            found = Found(trouble=f"the store cannot be read: {reason_of(error)}")
        self.show(found)

    async def _follow(self, looked: asyncio.Event) -> None:
        """Show what other processes commit, every `FOLLOW_S`."""
        while True:
            await self.refresh()
            looked.set()
            await asyncio.sleep(FOLLOW_S)


def no_reports() -> ProblemError:
    """The problem of a job without a desk."""
    return ProblemError(409, "no-reports", "this job takes no reports: see docs/reports.md")


def first_snapshot(config: JobConfig) -> Snapshot:
    """Version 0 of a job: its estimator has learned nothing."""
    state = config.build_estimator()
    return Snapshot(config.job, config.fingerprint(), config.text(), 0, 0.0, Counts(), {}, state.state_dict())
