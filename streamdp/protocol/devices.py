"""One person's device, and a simulator of many devices whose records are in a file.

See docs/shuffle_protocol.md for what a device must do.
"""

import contextlib
import json
import os
import threading
from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass
from pathlib import Path

import numpy as np

from streamdp.data.records import Position, RawRecord, Source
from streamdp.database.durable import write_durably
from streamdp.database.file_lock import FileLock
from streamdp.errors import BudgetError, ConfigError, NotAvailableError, SchemaError, SourceError, file_errors
from streamdp.estimators.shuffle.randomizer import ShuffleRandomizer
from streamdp.protocol.agreement import Agreement
from streamdp.protocol.shuffle_wire import (
    NONCE_BYTES,
    LogReader,
    LogWriter,
    Place,
    Tell,
    message_key,
    place_text,
    silent,
)
from streamdp.system import check_own

_POLL_S = 0.2
_ROWS = 1000
_BYTES = 16 << 20


class ShuffleDevice:
    """One person's device, with one record of the job of an `agreement`. Threads may share it.

    `answered` says whether the record has answered before. `note` stores durably, with the record, that it has;
    `answer` calls it before it makes the message.

    >>> from streamdp import ShuffleClassifier
    >>> from streamdp.protocol.shuffle_wire import write_announcement
    >>> model = ShuffleClassifier(features=["a", "b"])
    >>> announced = write_announcement(Agreement(model).announcement(model.batch, model.randomizer.point))
    >>> device = ShuffleDevice(Agreement(model))
    >>> key, value = device.answer(announced, {"a": 0.5, "b": -1.0}, True)
    >>> device.answered
    True
    """

    def __init__(self, agreement: Agreement, *, answered: bool = False, note: Callable[[], None] | None = None) -> None:
        self._agreement = agreement
        self._note = note
        self._lock, self._made = threading.Lock(), (os.getpid(), id(self))
        self.answered = answered

    def answer(self, announcement: bytes, x: RawRecord, y: object) -> tuple[bytes, bytes]:
        """The message to send to the shuffler: its key and its value. A record answers once.

        It answers the learner's `announcement` of a batch for the features `x` by name and the target `y`, a number or
        a label, as for `learn_one`.

        Raises `NotAvailableError` if the record has answered before, `StoreBusyError` in a fork of the process, and
        the errors of `Agreement.accept` and `ShuffleRandomizer.messages`.
        """
        check_own(self._made, self, "this device")
        with self._lock:
            if self.answered:
                raise NotAvailableError("this record has answered; a second answer would spend its budget twice")
            randomizer = self._agreement.accept(announcement)
            record = randomizer.record(x, y)
            if self._note is not None:
                self._note()
            self.answered = True  # before the message is made, for an exception between these lines
        bits = randomizer.messages_of(*record)[0]
        return message_key(self._agreement.digest, randomizer.batch), os.urandom(NONCE_BYTES) + bits.tobytes()


class Notes:
    """A file that says which records of a source have answered, locked for as long as this object exists.

    The file at `path` need not exist. Raises `StoreBusyError` if another process or object has the file, because every
    record would answer twice; `StoreError` if the lock cannot be made; `SourceError` if the file cannot be read or was
    written under another agreement.
    """

    def __init__(self, path: str, agreement: Agreement) -> None:
        self.path = Path(os.path.realpath(path))  # one file has one lock, by whatever name
        self._agreement = agreement.digest
        self.position: Position | None = None
        self.batch: Place | None = None
        self.sent = self.answered = self.declined = self.dead = 0
        self._lock, self._made = FileLock(str(self.path)), (os.getpid(), id(self))
        try:
            self._read(path)
        except BaseException:
            self._lock.release()
            raise

    def _read(self, path: str) -> None:
        with file_errors(SourceError, path):
            try:
                text = self.path.read_text(encoding="utf-8")
            except FileNotFoundError:
                return
        try:
            notes = json.loads(text)
            theirs, self.position = notes["agreement"], notes["position"]
            self.batch = None if notes["batch"] is None else tuple(notes["batch"])
            self.sent, self.answered, self.declined, self.dead = notes["counts"]
        except (ValueError, KeyError, TypeError):
            raise SourceError(f"{path}: expected notes of which records have answered, got something else") from None
        if theirs != self._agreement:
            raise SourceError(
                f"{path}: these records have answered under another agreement; to let them answer, and spend, again,"
                " name another file with --notes"
            )

    def write(self) -> None:
        """Write the file durably. Raises `SourceError` if that fails, and `StoreBusyError` in a fork or a copy."""
        check_own(self._made, self, str(self.path))
        counts = [self.sent, self.answered, self.declined, self.dead]
        notes = {"agreement": self._agreement, "position": self.position, "batch": self.batch, "counts": counts}
        write_file(self.path, json.dumps(notes))


def write_file(path: Path, content: str | bytes) -> None:
    """Write the `content` of the file at `path` durably. Raises `SourceError` if that fails."""
    with file_errors(SourceError, path):
        write_durably(str(path), content)


@dataclass(eq=False, repr=False)
class SimulatedPeople:
    """What acts as the devices of all people in a source: what it reads and writes. `notes` say what was answered.

    It tells "refused" and "batch" of announcements.
    """

    agreement: Agreement
    source: Source
    points: LogReader
    messages: LogWriter
    notes: Notes
    _: KW_ONLY
    tell: Tell = silent

    def __post_init__(self) -> None:
        self._batch: Place | None = None
        # what an answer needs; None if there is no announcement, or one that is refused
        self._randomizer: ShuffleRandomizer | None = None
        self._announced_at = 0  # in milliseconds since 1970 (UTC)
        self.points.seek(max(0, self.points.end() - 1))

    def _look(self, timeout_s: float) -> None:
        """Take up the newest announcement within `timeout_s` seconds. Refuse it if it does not obey the agreement."""
        entries = self.points.poll(timeout_s)
        if not entries:
            return
        newest = entries[-1]
        try:
            randomizer = self.agreement.accept(newest.value or b"")
        except (SchemaError, ConfigError, BudgetError) as error:
            self._randomizer = None
            self.tell("refused", reason=str(error))
            return
        self._randomizer, self._announced_at = randomizer, newest.timestamp
        if randomizer.batch != self._batch:
            self._batch = randomizer.batch
            with contextlib.suppress(BudgetError):
                weakest = str(self.agreement.weakest(self._batch))
                self.tell("batch", batch=place_text(self._batch), people=randomizer.params.users, weakest=weakest)


@dataclass(eq=False, repr=False)
class DeviceSimulator(SimulatedPeople):
    """Acts as the devices of all people in a source: each record waits for a batch and answers once.

    `per_batch` of these people answer in one batch; None: as many as the batch takes. If the source has budgets of
    records, a record declines that allows less than it spends if no more people answer than the agreement demands.
    """

    _: KW_ONLY
    per_batch: int | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.notes.position is not None and self.notes.position != self.source.position:
            self.source.seek(self.notes.position)

    def run(self, stopping: Callable[[], bool] = lambda: False) -> None:
        """Run until every record has had its turn, or until `stopping` returns True."""
        while not stopping() and not self.source.finished:
            self.step(_POLL_S)

    def step(self, timeout_s: float) -> bool:
        """Let the next people answer the newest announcement within `timeout_s` seconds; False if none could."""
        self._look(0.0 if self._wanted() else timeout_s)
        wanted, randomizer, notes = self._wanted(), self._randomizer, self.notes
        if not wanted or randomizer is None:
            return False
        batch = self.source.poll(min(wanted, _ROWS, max(1, _BYTES // randomizer.params.message_bytes)), timeout_s)
        if not (len(batch) or batch.dead):
            return False
        willing = self.agreement.willing(randomizer.batch, batch)
        people = int(np.count_nonzero(willing))
        notes.position = dict(self.source.position)
        notes.answered += people
        notes.declined += len(batch) - people
        notes.dead += len(batch.dead)
        notes.write()  # before anything leaves a device
        if people:
            key = message_key(self.agreement.digest, randomizer.batch)
            for bits in randomizer.messages_of(batch.X[willing], batch.y[willing]):
                value = os.urandom(NONCE_BYTES) + bits.tobytes()
                self.messages.send(key, value, timestamp_ms=self._announced_at)
            self.messages.flush()
        notes.sent += people  # after a crash before this is written, others answer in place of these people
        notes.write()
        batch_text = place_text(randomizer.batch)
        self.tell("answered", batch=batch_text, records=people, declined=notes.declined, dead_letters=notes.dead)
        return True

    def _wanted(self) -> int:
        """The number of people who may still answer in the batch."""
        randomizer, notes = self._randomizer, self.notes
        if randomizer is None:
            return 0
        if randomizer.batch != notes.batch:
            notes.batch, notes.sent = randomizer.batch, 0
        most = randomizer.params.users
        return max(0, (most if self.per_batch is None else min(most, self.per_batch)) - notes.sent)
