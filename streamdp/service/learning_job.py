"""A job that learns from requests: its learner runs in a thread of its own, and commits many calls together.

Several services may share a job whose store is on a server. Each has a shard of its own, and all show the average of
what all have committed. A service takes the first shard that no other service holds (`Store.claim_free`): one that a
service has left, with all that was committed there, or a new one. If all are held, it waits for one: it shows what the
others commit, and refuses calls that learn. The database ends the hold with the session of its holder. A service that
lost its session without noticing commits nothing more, because the next holder has claimed the next epoch.

Answers and spends are in the store for all shards. If two services get the same call at the same time, or together
spend more from a person than the cap, the later commit is refused, and its service goes back to its last commit and
reads the calls again.
"""

import asyncio
import contextlib
import logging
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import replace
from typing import Any

from connectors.http import Answered, Call, Flaw, HTTPSource
from streamdp.config.http import CallsConfig, ReportsSourceConfig
from streamdp.config.job import Accepted, JobConfig
from streamdp.data.records import WHOLE, Position, Shard
from streamdp.database.interface import Session
from streamdp.errors import (
    ConfigError,
    QueueFullError,
    ReusedKeyError,
    SourceUnavailableError,
    StoreBusyError,
    StoreUnavailableError,
    reason_of,
)
from streamdp.protocol.report_desk import OF_A_SHARD, ReportDesk
from streamdp.runtime.expected import Expected
from streamdp.runtime.runner import Runner
from streamdp.service import calls
from streamdp.service.jobs import FOLLOW_S, START_S, Found, Job, first_snapshot
from streamdp.service.problems import ProblemError, busy
from streamdp.service.report_reading import read_reports
from streamdp.service.waiting import Waiting
from streamdp.serving.publish import Publisher
from streamdp.serving.snapshots import restore
from streamdp.store.answers import Answers
from streamdp.store.snapshot import Snapshot
from streamdp.store.store import Store

_log = logging.getLogger("streamdp.service.learning")

STOP_S = 3.0
"""How long the last commit may take after the answers to open requests, in seconds."""
ADD_AFTER_S = 25.0
"""A service adds a shard if none is free for so long. A session whose machine was cut off has ended by then."""
RETRY_S = 1.0
"""The time between a failed commit and the next attempt to use the store, in seconds."""

_NOT_OPEN = "the store is not open yet"
_WAITS = "other services learn this job, and this one waits for a shard; repeat the call there, with the same key"


class LearningJob(Job):
    """A job whose source is http."""

    learns = True

    def __init__(self, config: JobConfig, accepted: Accepted) -> None:
        super().__init__(config)
        assert isinstance(config.source, CallsConfig)
        self._settings = config.source
        self._accepted = accepted
        self.labels = Waiting(self._settings.label_wait_seconds, self._settings.label_wait_records)
        """The features of predictions whose labels come later."""
        self._publisher = Publisher(config, (self._committed,))
        self._mine: Snapshot | None = None  # the last commit of this service's shard; None while it has no shard
        self._asking = restore(self.snapshot)  # the model of the shard, at which devices take gradients
        self._version = 0
        self._session: Session | None = None  # of the last store that was opened
        self._stopping = threading.Event()
        self._source: HTTPSource | None = None
        self._answers: Answers | None = None
        self._reading: asyncio.Task[None] | None = None
        self._expiring: asyncio.Task[None] | None = None
        self._desk: ReportDesk | None = None
        try:
            self._desk = ReportDesk(config.job, config, max_staleness=self._settings.max_staleness)
        except ConfigError as error:
            if isinstance(self._settings, ReportsSourceConfig):
                raise ConfigError(f"source.content: this job takes no reports: {error}") from None
        self._trouble = _NOT_OPEN
        self._refusal: str | None = _NOT_OPEN  # why calls are not learned here now; None if they are

    # -- in the thread of the event loop ------------------------------------------------------------------------

    @property
    def waiting(self) -> int:
        return 0 if self._source is None else self._source.waiting

    @property
    def learning(self) -> bool:
        return self._refusal is None

    async def start(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._expiring = asyncio.create_task(self.labels.expire_in_time())
        opened: Future[None] = Future()
        # A daemon, so that a commit that hangs does not keep the process: ending then is as safe as a crash.
        self._thread = threading.Thread(target=self._run, args=(opened,), name=f"learner of {self.name}", daemon=True)
        self._thread.start()
        if self.config.store_on_server:
            self._following = asyncio.create_task(self._follow(asyncio.Event()))
        opening = asyncio.wrap_future(opened)
        if (await asyncio.wait({opening}, timeout=START_S))[0]:
            opening.result()
        else:
            opening.add_done_callback(lambda found: found.cancelled() or found.exception())

    def show(self, found: Found) -> None:
        """See `Job.show`: what other services have committed. The learner knows the troubles of its own store."""
        super().show(found if self._refusal == _WAITS else found._replace(trouble=self.trouble))

    def give_up(self, why: str) -> None:
        """See `Job.give_up`. The learner opens the store again when its last call has ended."""
        self.trouble = self._refusal = why
        if self._source is not None:
            self._source.give_up()

    def take(self, snapshot: Snapshot, measures: dict[str, object] | None) -> None:
        """See `Job.take`. A look at the store that a later commit has overtaken is left out."""
        if snapshot.seq >= self.snapshot.seq or snapshot.committed_at > self.snapshot.committed_at:
            super().take(snapshot, measures)

    def end(self) -> None:
        """See `Job.end`."""
        self._stopping.set()
        if self._source is not None:
            self._source.close()

    async def stop(self) -> None:
        """See `Job.stop`. What was accepted is learned and committed first."""
        self.end()
        await super().stop()
        for task in (self._reading, self._expiring):
            if task is not None:
                task.cancel()
                await asyncio.wait([task])
        await asyncio.to_thread(self._thread.join, STOP_S)
        if self._thread.is_alive():
            raise StoreUnavailableError(
                f"job {self.name!r}: the store did not end its last call within {STOP_S:g} s after the stop; whatever"
                " was not committed was not acknowledged"
            )
        await asyncio.to_thread(self._publisher.close)

    @property
    def unpublished(self) -> list[str]:
        return self._publisher.troubles

    @property
    def desk(self) -> ReportDesk | None:
        desk = self._desk
        if desk is None:
            return None
        desk.elsewhere = self._follower.held
        mine = self._mine or next(iter(self._follower.shards), self.snapshot)
        version = mine.shard.partition * OF_A_SHARD + mine.seq
        if desk.version != version:
            self._asking = restore(mine, self._asking)
            desk.show(version, self._asking.estimator)
        return desk

    def notes(self) -> list[str]:
        kept = f"keyed digests of calls and ids are kept for {self._settings.remember_hours:g} hours"
        hours = f"{kept}, so that a retry counts once"
        if not self._settings.label_wait_records:
            return [hours]
        seconds, records = self._settings.label_wait_seconds, self._settings.label_wait_records
        return [
            "the features of predictions that name an id wait for their label in the memory of the service and nowhere "
            f"else, for at most {seconds:g} seconds and {records} records",
            hours,
        ]

    @property
    def answers(self) -> Answers:
        """What was answered before. Raises `ProblemError` 503 before the store was opened."""
        if self._answers is None:
            raise busy(self._refusal or _NOT_OPEN)
        return self._answers

    async def submit(self, call: Call) -> dict[str, object]:
        """Learn a call of at least one record or report, and return its outcome after the commit.

        Raises `ProblemError`: 422 for a key that was used with another body, 429 for a full queue, and 503 if the
        commit failed.
        """
        if self._source is None or self._refusal is not None:
            raise busy(self._refusal or _NOT_OPEN)
        waiting: asyncio.Future[Answered | Exception] = asyncio.get_running_loop().create_future()

        def tell(answered: Answered | Exception) -> None:
            if not waiting.done():
                waiting.set_result(answered)

        call.tell.append(tell)
        try:
            self._source.submit(call)
            answered = await waiting
            if isinstance(answered, Exception):
                raise answered
        except QueueFullError as error:
            raise ProblemError(429, "queue-full", str(error), headers={"Retry-After": "1"}) from None
        except ReusedKeyError as error:
            raise ProblemError(422, "key-reused", str(error)) from None
        except SourceUnavailableError as error:
            raise busy(str(error)) from None
        except asyncio.CancelledError:  # uvicorn cancels what still waits some seconds after the signal to stop
            raise busy("the service stops; repeat the call with the same key") from None
        outcome: dict[str, Any] = answered.answer
        if outcome["dead"]:
            self.note_reasons(dead["reason"] for dead in outcome["dead"])
        return outcome

    async def learn(self, call: Call, caller: str, labels: dict[int, str | None]) -> dict[str, object]:
        """Learn the records of a call, at least one, and return their outcome after the commit.

        Labels join the features that the same `caller` left. `labels` has the ids of the records without features, by
        index. Raises the errors of `submit`.
        """
        assert call.rows is not None, "a call of records"
        found = {}
        for i, name in labels.items():
            if name is None:
                call.dead[i] = Flaw("missing", "id")
            elif (row := self.labels.find(caller, name)) is None:
                call.dead[i] = Flaw("unknown_id", "id")
            else:
                call.rows.X[i] = row
                found[i] = name
        outcome: Any = await self.submit(call)
        for letter in outcome["dead"]:  # a corrected label may come
            found.pop(letter["index"], None)
        self.labels.forget(caller, found.values())
        return outcome

    # -- in the learner's thread --------------------------------------------------------------------------------

    def _run(self, opened: Future[None]) -> None:
        while not self._stopping.is_set():
            try:
                opening = self.config.open_store(self._accepted, shared=self.config.store_on_server)
                with contextlib.closing(opening) as store:  # callers have digests under its key, so it stays
                    if (shard := self._claim(store, opened)) is None:
                        break
                    self._answers = answers = store.answers(self._settings.remember_hours)
                    self._show_first(shard)
                    self._source = HTTPSource(
                        self.features.complete, answers.recall, self._settings.queue_records, self._in_loop
                    )
                    if self._stopping.is_set():
                        self._source.close()
                    self._tell(None)
                    self._read_reports(store, answers, self._source)
                    if not opened.done():
                        opened.set_result(None)
                    self._learn(store, shard, answers, self._source)
            except Exception as error:  # noqa: BLE001 - the callers get it, and the next attempt begins at the last commit
                if self._source is not None:
                    self._source.fail()
                if isinstance(error, StoreBusyError) and self.config.store_on_server:
                    self._wait_for_shard(opened)
                    continue
                if not opened.done():
                    opened.set_exception(error)
                self._tell(f"back at the last commit, because the store or the learner failed: {reason_of(error)}")
                self._stopping.wait(RETRY_S)
        if self._source is not None:
            self._source.fail()

    def _show_first(self, shard: Shard) -> None:
        """Show what all services have committed, before the first call is learned here."""
        first = first_snapshot(self.config)
        found = self._follower.look(first)
        mine = (snapshot for snapshot in self._follower.shards if snapshot.shard == shard)
        self._mine = next(mine, replace(first, shard=shard))
        if found.snapshot is not None:
            self._show(found.snapshot, found.measures)

    def _in_loop(self, action: Callable[[], object]) -> None:
        with contextlib.suppress(RuntimeError):  # the loop is closed after a forced exit
            self._loop.call_soon_threadsafe(action)

    def _show(self, snapshot: Snapshot, measures: dict[str, object] | None) -> None:
        self._in_loop(lambda: self.take(snapshot, measures))

    def _read_reports(self, store: Store, answers: Answers, source: HTTPSource) -> None:
        """Read the topic of reports from the last commit on, if the job has one."""
        settings = self._settings
        if not isinstance(settings, ReportsSourceConfig):
            return
        snapshot = store.load()
        place: Position = {} if snapshot is None else snapshot.position.get("place", {})

        def call_of(items: list[object], position: Position) -> Call:
            desk = self.desk
            assert desk is not None, "a job without a desk does not start"
            call = calls.of_reports(answers, "", b"", None, len(items), *desk.receive_all(items))
            call.place, call.tell = position, [note]
            return call

        def note(answered: Answered | Exception) -> None:
            if isinstance(answered, Answered):
                self.note_reasons(dead["reason"] for dead in answered.answer["dead"])

        def tell(trouble: str | None) -> None:
            self.trouble = trouble

        def begin() -> None:
            self._end_reading()
            self._reading = asyncio.create_task(read_reports(settings.build_topic, place, call_of, source.submit, tell))

        self._in_loop(begin)

    def _end_reading(self) -> None:
        if self._reading is not None:
            self._reading.cancel()

    def _claim(self, store: Store, opened: Future[None]) -> Shard | None:
        """Take a shard, and wait until one is free; None after the stop."""
        for note in store.notes:
            _log.info("job %r: %s", self.name, note)
        if not self.config.store_on_server:
            return WHOLE
        self._session = store.end_left(self._session)
        since = time.monotonic()
        while not self._stopping.is_set():
            shard = store.claim_free(self._settings.most_shards, add=time.monotonic() - since >= ADD_AFTER_S)
            if shard is not None:
                return shard
            self._wait_for_shard(opened)
        return None

    def _wait_for_shard(self, opened: Future[None]) -> None:
        """Wait until the next attempt to take a shard."""

        def note() -> None:
            self._refusal = _WAITS
            self._end_reading()

        self._mine = None
        self._in_loop(note)
        if not opened.done():
            opened.set_result(None)
        self._stopping.wait(FOLLOW_S)

    def _learn(self, store: Store, shard: Shard, answers: Answers, source: HTTPSource) -> None:
        self._version = 0

        def warn(sentence: str) -> None:
            _log.warning("job %r: %s", self.name, sentence)

        def remember(connection: Any, number: int) -> None:
            """Write the answers of a commit; its version adds up the last commits of all shards, as known here."""
            others = (snapshot.seq for snapshot in self._follower.shards if snapshot.shard != shard)
            self._version = number + sum(others)
            answers.write(connection, source.answers(self._version))

        def publish(mine: Snapshot) -> None:
            self._mine = mine
            self._publisher(self._follower.add(mine))
            expected.learned_in({shard: mine.counts})

        dead_letters = self._settings.build_dead_letters()
        try:
            estimator = self.config.build_estimator(store.ledger)
            expected = Expected(self.config.expected_records, estimator.record_budget, warn)
            Runner(
                source,
                estimator,
                store,
                commit_records=self.config.commit.records,
                commit_seconds=self.config.commit.seconds,
                commit_when_idle=True,
                dead_letters=dead_letters,
                publish=[publish],
                shard=shard,
                within=remember,
            ).run()
        finally:
            if dead_letters is not None:
                dead_letters.close()

    def _committed(self, snapshot: Snapshot, measures: dict[str, object] | None) -> None:
        """Show a commit, then answer its calls: after the answer, a caller sees at least this version."""
        self._show(snapshot, measures)
        if self._source is not None:
            self._source.acknowledge(self._version)

    def _tell(self, trouble: str | None) -> None:
        def note() -> None:
            self.trouble = self._refusal = trouble

        self._in_loop(note)
