"""A job that learns from requests: its learner runs in a thread of its own, and commits many calls together.

Several services may share a job whose store is on a server. One holds the store and learns. The others stand by: they
show what it commits, refuse calls that learn, and try to take the store. The database gives it to one of them when the
session of the holder ends. A holder that lost its session without noticing cannot commit, because the next holder has
claimed the next epoch. What the store has answered is in the store, so a retry counts once at any of them.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
from collections.abc import Iterator, Mapping
from concurrent.futures import Future
from typing import Any

import numpy as np

from connectors.http import HTTPSource
from connectors.httpcall import Answered, Call
from connectors.jsoncalls import BUDGET, SUBJECT, TARGET, Cut
from streamdp.config.http import CallsConfig, ReportsSourceConfig
from streamdp.config.job import Accepted, JobConfig
from streamdp.config.schema import SubjectConfig
from streamdp.data.records import Position
from streamdp.data.schema import Schema
from streamdp.errors import ConfigError, QueueFullError, ReusedKeyError, SourceUnavailableError, StoreBusyError
from streamdp.estimators.ldp.learner import LDPLearner
from streamdp.protocol.report_desk import ReportDesk
from streamdp.runtime.runner import Runner
from streamdp.service.following import FOLLOW_S, Follower
from streamdp.service.jobs import Job
from streamdp.service.problems import ProblemError, busy
from streamdp.service.report_reading import read_reports
from streamdp.service.waiting import Waiting
from streamdp.serving.holdout import Holdout
from streamdp.serving.publish import Publisher
from streamdp.store.answers import Answers
from streamdp.store.snapshot import Counts, Snapshot
from streamdp.store.store import Store

STOP_S = 3.0
"""How long the last commit may take after the answers to open requests, in seconds."""
RETRY_S = 1.0
"""The time between a failed commit and the next attempt to use the store, in seconds."""

_NOT_OPEN = "the store is not open yet"
_STANDS_BY = "another service learns this job, and this one stands by; repeat the call there, with the same key"

_log = logging.getLogger("streamdp.service.learning")


class LearningJob(Job):
    """A job whose source is http.

    Parameters
    ----------
    config
        The job.
    accepted
        What the operator accepts.
    """

    learns = True

    def __init__(self, config: JobConfig, accepted: Accepted) -> None:
        super().__init__(config)
        assert isinstance(config.source, CallsConfig)
        self._settings = config.source
        self._accepted = accepted
        self._labels = Waiting(self._settings.label_wait_seconds, self._settings.label_wait_records)
        holdout = None if config.holdout is None else Holdout(config)
        self._publisher = Publisher(config.publish, holdout, (self._committed,))
        self._stopping = threading.Event()
        self._source: HTTPSource | None = None
        self._answers: Answers | None = None
        self._reading: asyncio.Task[None] | None = None
        self._follower = Follower(config)
        self._desk: ReportDesk | None = None
        with contextlib.suppress(ConfigError):  # its mechanism makes no noise
            self._desk = ReportDesk(config.job, config, max_staleness=self._settings.max_staleness)
        self.trouble = _NOT_OPEN
        self._refusal: str | None = _NOT_OPEN  # why calls are not learned here now; None if they are

    # -- in the thread of the event loop ------------------------------------------------------------------------

    @property
    def waiting(self) -> int:
        """See `Job.waiting`."""
        return 0 if self._source is None else self._source.waiting

    @property
    def learning(self) -> bool:
        """See `Job.learning`."""
        return self._refusal is None

    async def start(self) -> None:
        """Open the store and begin to learn, or to stand by.

        Raises the errors of the store, and `ConfigError` for a topic of reports if the job takes none.
        """
        if isinstance(self._settings, ReportsSourceConfig) and self._desk is None:
            raise ConfigError("source.content: this job takes no reports, because its mechanism makes no noise")
        self._loop = asyncio.get_running_loop()
        opened: Future[None] = Future()
        # A daemon, so that a commit that hangs does not keep the process: ending then is as safe as a crash.
        self._thread = threading.Thread(target=self._run, args=(opened,), name=f"learner of {self.name}", daemon=True)
        self._thread.start()
        await asyncio.wrap_future(opened)

    async def stop(self) -> None:
        """Learn and commit what was accepted, then close the store."""
        self._stopping.set()
        if self._reading is not None:
            self._end_reading()
            await asyncio.wait([self._reading])
        if self._source is not None:
            self._source.close()
        await asyncio.to_thread(self._thread.join, STOP_S)

    @property
    def desk(self) -> ReportDesk | None:
        """See `Job.desk`."""
        desk, estimator = self._desk, self.model.estimator
        if desk is not None and isinstance(estimator, LDPLearner) and desk.version != self.snapshot.seq:
            desk.show(self.snapshot.seq, estimator)
        return desk

    def notes(self) -> list[str]:
        """See `Job.notes`."""
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

    def await_labels(self, call: Cut) -> None:
        """See `Job.await_labels`."""
        self._labels.add(call)

    def digest(self, kind: bytes, text: bytes) -> bytes:
        """See `Answers.digest`. Raises `ProblemError` 503 before the store was opened."""
        if self._answers is None:
            raise busy(self._refusal or _NOT_OPEN)
        return self._answers.digest(kind, text)

    async def submit(self, call: Call) -> dict[str, Any]:
        """Learn a call, and return its outcome after the commit.

        Parameters
        ----------
        call
            Records or reports, at least one.

        Raises `ProblemError`: 422 for a key that was used with another body, 429 for a full queue, and 503 if the
        commit failed.
        """
        if self._source is None or self._refusal is not None:
            raise busy(self._refusal or _NOT_OPEN)
        try:
            answered = await asyncio.wrap_future(self._source.submit(call))
        except QueueFullError as error:
            raise ProblemError(429, "queue-full", str(error), headers={"Retry-After": "1"}) from None
        except ReusedKeyError as error:
            raise ProblemError(422, "key-reused", str(error)) from None
        except SourceUnavailableError as error:
            raise busy(str(error)) from None
        outcome: dict[str, Any] = answered.answer
        self.note_reasons(dead["reason"] for dead in outcome["dead"])
        return outcome

    async def learn(self, content: Cut, body: bytes, key: str | None) -> dict[str, Any]:
        """Learn the records of a call, and return their outcome after the commit.

        Parameters
        ----------
        content
            At least one record.
        body
            The call.
        key
            Its `Idempotency-Key`; None without one.

        Raises the errors of `submit`.
        """
        joined, dead, used = self._labels.join(content)
        rows = np.flatnonzero(content.ids[:, 1])
        names, texts = content.texts(content.ids[rows]), content.texts(content.spans[rows])
        ids = {
            i: (self.digest(b"id", name), self.digest(b"body", text))
            for i, name, text in zip(rows.tolist(), names, texts, strict=True)
        }
        call = Call(len(content), joined, self.key(b"learn", key), self.digest(b"body", body), ids, None, dead)
        outcome = await self.submit(call)
        self._labels.forget(used)
        return outcome

    def reports(
        self,
        body: bytes,
        key: str | None,
        size: int,
        received: Mapping[int, tuple[Any, Any]],
        ids: Mapping[int, tuple[str, bytes]],
        dead: Mapping[int, str],
    ) -> Call:
        """The call of reports of devices, for `submit`.

        Parameters
        ----------
        body
            The body of the call.
        key
            The `Idempotency-Key`; None without one.
        size
            How many reports the call has, at least 1.
        received
            By index: each report that passed its checks, as the estimator absorbs it, and its subject or None.
        ids
            By index: the id of each report that has one, and the report's text.
        dead
            By index: the reason why each other report is dead.
        """
        return Call(
            size,
            None,
            self.key(b"reports", key),
            self.digest(b"body", body),
            {i: (self.digest(b"report", name.encode()), self.digest(b"body", text)) for i, (name, text) in ids.items()},
            dict(received),
            dict(dead),
        )

    def key(self, kind: bytes, key: str | None) -> bytes | None:
        """The digest of an `Idempotency-Key`.

        Parameters
        ----------
        kind
            The kind of call, at most 8 bytes: a key means another call there.
        key
            The key; None without one.
        """
        return None if key is None else self.digest(kind, key.encode("utf-8", "surrogateescape"))

    # -- in the learner's thread --------------------------------------------------------------------------------

    def _run(self, opened: Future[None]) -> None:
        while not self._stopping.is_set():
            try:
                with self._store() as (store, answers):
                    self._answers = answers
                    self._source = HTTPSource(_encoder(self.config), answers, self._settings.queue_records)
                    if self._stopping.is_set():
                        self._source.close()
                    self._tell(None)
                    self._read_reports(store, self._source)
                    if not opened.done():
                        opened.set_result(None)
                    self._learn(store, answers, self._source)
                return
            except Exception as error:  # noqa: BLE001 - the callers are told, and the next attempt begins at the last commit
                if self._source is not None:
                    self._source.fail()
                if isinstance(error, StoreBusyError) and self.config.store_on_server:
                    self._stand_by()
                    if not opened.done():
                        opened.set_result(None)
                    continue
                if not opened.done():
                    opened.set_exception(error)
                    return
                _log.error("job %r: %s; going back to the last commit", self.name, type(error).__name__)
                self._tell(f"the store or the learner failed: {type(error).__name__}")
                self._stopping.wait(RETRY_S)
        if self._source is not None:
            self._source.fail()

    def _read_reports(self, store: Store, source: HTTPSource) -> None:
        """Read the topic of reports from the last commit on, if the job has one."""
        settings = self._settings
        if not isinstance(settings, ReportsSourceConfig):
            return
        snapshot = store.load()
        place: Position = {} if snapshot is None else snapshot.position.get("place", {})

        def call_of(items: list[Any], position: Position) -> Call:
            desk = self.desk
            assert desk is not None, "a job without a desk does not start"
            call = self.reports(b"", None, len(items), *desk.receive_all(items))
            call.place = position
            return call

        def submit(call: Call) -> None:
            source.submit(call).add_done_callback(note)

        def note(done: Future[Answered]) -> None:
            if done.exception() is None:
                reasons = [dead["reason"] for dead in done.result().answer["dead"]]
                self._in_loop(lambda: self.note_reasons(reasons))

        def tell(trouble: str | None) -> None:
            self.trouble = trouble

        def begin() -> None:
            self._end_reading()
            self._reading = asyncio.create_task(read_reports(settings.build_topic, place, call_of, submit, tell))

        self._in_loop(begin)

    def _end_reading(self) -> None:
        if self._reading is not None:
            self._reading.cancel()

    def _stand_by(self) -> None:
        """Show what the service that holds the store has committed, and wait until the next attempt to take it."""
        found = self._follower.look(self.snapshot)

        def note() -> None:
            self._refusal = _STANDS_BY
            self._end_reading()
            self.show(found)

        self._in_loop(note)
        self._stopping.wait(FOLLOW_S)

    @contextlib.contextmanager
    def _store(self) -> Iterator[tuple[Store, Answers]]:
        config = self.config
        with config.open_store(self._accepted) as store:
            yield store, store.answers(self._settings.remember_hours)

    def _learn(self, store: Store, answers: Answers, source: HTTPSource) -> None:
        dead_letters = self._settings.build_dead_letters()
        try:
            estimator: Any = self.config.build_estimator(store.ledger)
            Runner(
                source,
                estimator,
                _RememberingStore(store, answers, source),
                commit_records=self.config.commit.records,
                commit_seconds=self.config.commit.seconds,
                commit_when_idle=True,
                dead_letters=dead_letters,
                publish=[self._publisher],
            ).run()
        finally:
            if dead_letters is not None:
                dead_letters.close()

    def _committed(self, snapshot: Snapshot, measures: dict[str, Any] | None) -> None:
        """Show a commit, then answer its calls: who has the answer sees at least this version."""
        self._in_loop(lambda: self.take(snapshot, measures))
        if self._source is not None:
            self._source.acknowledge(snapshot.seq)

    def _tell(self, trouble: str | None) -> None:
        def note() -> None:
            self.trouble = self._refusal = trouble

        self._in_loop(note)

    def _in_loop(self, action: Any) -> None:
        with contextlib.suppress(RuntimeError):  # the loop is closed after a forced exit
            self._loop.call_soon_threadsafe(action)


class _RememberingStore:
    """A store whose commits remember what they answer; `runtime.protocols.Committing`."""

    def __init__(self, store: Store, answers: Answers, source: HTTPSource) -> None:
        self._store, self._answers, self._source = store, answers, source
        self.ledger, self.load, self.rollback = store.ledger, store.load, store.rollback
        self.abandon, self.note_waiting = store.abandon, store.note_waiting

    def commit(self, state: Mapping[str, Any], position: Position, counts: Counts, *, letters: Any = None) -> None:
        def within(connection: Any, version: int) -> None:
            self._answers.write(connection, self._source.answers(version))

        self._store.commit(state, position, counts, within, letters)


def _encoder(config: JobConfig) -> Schema:
    """The schema of flat records: see `connectors.jsoncalls`."""
    declared = config.schema_
    subject = declared.subject
    if isinstance(subject, SubjectConfig):
        subject = subject.model_copy(update={"column": SUBJECT})
    elif subject is not None:
        subject = SUBJECT
    target = declared.target.model_copy(update={"column": TARGET})
    return declared.model_copy(update={"target": target, "subject": subject, "budget": BUDGET}).build()
