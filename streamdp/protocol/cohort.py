"""The devices of a cohort: the same people answer once in each of the agreed rounds.

See docs/shuffle_protocol.md for what a device must do.
"""

import os
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from streamdp.data.records import RawRecord, Source
from streamdp.errors import ConfigError, NotAvailableError, SourceError
from streamdp.protocol.agreement import Agreement
from streamdp.protocol.devices import SimulatedPeople, write_file
from streamdp.protocol.shuffle_wire import NONCE_BYTES, message_key, place_text, read_key
from streamdp.system import check_own

_POLL_S = 0.2
_ROWS = 4096

Message = tuple[bytes, bytes]
"""The key and the value of a message to the shuffler."""


class CohortDevice:
    """One person's device in a cohort, with one record.

    Threads may share it. `last` is the message that the record sent last, as `note` got it; None if it has not
    answered. `note` stores the message durably, with the record. `answer` calls it before it returns the message. If it
    raises, the next call for this round gives it the same message again.

    Raises `ConfigError` if the job has no cohort: there a record answers once, see `ShuffleDevice`.

    >>> from streamdp import ShuffleClassifier
    >>> from streamdp.protocol.shuffle_wire import write_announcement
    >>> model = ShuffleClassifier(features=["a", "b"], cohort={"people": 100, "rounds": 5})
    >>> announced = write_announcement(Agreement(model).announcement(model.batch, model.randomizer.point))
    >>> stored = []
    >>> device = CohortDevice(Agreement(model), note=stored.append)
    >>> message = device.answer(announced, {"a": 0.5, "b": -1.0}, 1.0)
    >>> device.answer(announced, {"a": 0.5, "b": -1.0}, 1.0) == message == stored[0]
    True
    """

    def __init__(self, agreement: Agreement, *, last: Message | None = None, note: Callable[[Message], None]) -> None:
        if agreement.rounds is None:
            raise ConfigError("this job has no cohort: each record answers once, by ShuffleDevice")
        self._agreement = agreement
        self._note = note
        self._lock, self._made = threading.Lock(), (os.getpid(), id(self))
        self._last, self._noted = last, True
        self._place = None if last is None else read_key(last[0], agreement.digest)

    def answer(self, announcement: bytes, x: RawRecord, y: object) -> Message:
        """The message that answers an announcement of a round: its key and its value.

        The last round again has the same bytes. The record has features x by name and a target y, a number or a label.
        Raises `NotAvailableError` for a round before the last one that the record answered, `StoreBusyError` in a fork
        of the process, and the errors of `Agreement.accept` and `ShuffleRandomizer.messages`.
        """
        check_own(self._made, self, "this device")
        with self._lock:
            randomizer = self._agreement.accept(announcement)
            place = randomizer.batch
            if self._place is not None and place < self._place:
                raise NotAvailableError("this record has answered a later round; a round passes once")
            if self._last is None or place != self._place:
                bits = randomizer.messages(x, y)
                message = message_key(self._agreement.digest, place), os.urandom(NONCE_BYTES) + bits.tobytes()
                self._noted = False
                self._place, self._last = place, message  # before the note: it may have stored what it raises for
            if not self._noted:
                self._note(self._last)
                self._noted = True
            return self._last


@dataclass(eq=False, repr=False)
class CohortSimulator(SimulatedPeople):
    """Acts as the devices of all people in a source: each answers once in every round.

    It holds all records in memory. The source has one record for each person. `notes` say which rounds these people
    have answered. The messages of the last round are in a file beside it, `<notes>.messages`, until all are sent, so
    that after a crash the same bytes are sent again. If the source has budgets of records, a record declines all rounds
    that allows less than it spends if no more people answer than the agreement demands. Raises `ConfigError` if there
    are more people than the cohort has, and `SourceError` if there are others than in the rounds before.
    """

    def __post_init__(self) -> None:
        self._outbox = Path(f"{self.notes.path}.messages")
        self._read(self.source)
        super().__post_init__()

    def _read(self, source: Source) -> None:
        """Read all records."""
        notes, parts, declined, dead = self.notes, [], 0, 0
        while not source.finished:
            batch = source.poll(_ROWS, _POLL_S)
            willing = self.agreement.willing(self.agreement.first, batch)
            parts.append((batch.X[willing], batch.y[willing]))
            declined += int(np.count_nonzero(~willing))
            dead += len(batch.dead)
        cohort, people = self.agreement.params(self.agreement.first).users, sum(len(y) for _, y in parts)
        if not 0 < people <= cohort:
            raise ConfigError(f"the cohort has {cohort:,} people, and these records are of {people:,}")
        self._X = np.concatenate([X for X, _ in parts])
        self._y = np.concatenate([y for _, y in parts])
        if notes.batch is not None and notes.answered != len(self._y):
            raise SourceError(f"{notes.answered:,} people have answered before, and these records are of others")
        notes.answered, notes.declined, notes.dead = len(self._y), declined, dead
        self.tell("people", here=len(self._y), cohort=cohort, declined=declined, dead_letters=dead)

    @property
    def finished(self) -> bool:
        """Whether these people have answered in the last round."""
        notes = self.notes
        last = notes.batch is not None and notes.batch[2] + 1 == self.agreement.rounds
        return last and notes.sent == notes.answered

    def run(self, stopping: Callable[[], bool] = lambda: False) -> None:
        """Run until the last round is answered, or until `stopping` returns True."""
        while not stopping() and not self.finished:
            self.step(_POLL_S)

    def step(self, timeout_s: float) -> bool:
        """Answer the newest announcement; returns False if there is none that these people have not answered.

        Waits for an announcement for at most `timeout_s` seconds. Raises `SourceError` if the messages of a round that
        was interrupted are gone, or no file can be written.
        """
        self._look(timeout_s)
        randomizer, notes = self._randomizer, self.notes
        if randomizer is None:
            return False
        place = randomizer.batch
        key = message_key(self.agreement.digest, place)
        if notes.batch is None or place > notes.batch:
            made = (os.urandom(NONCE_BYTES) + bits.tobytes() for bits in randomizer.messages_of(self._X, self._y))
            write_file(self._outbox, b"".join([key, b"\n", *made]))
            notes.sent, notes.batch = 0, place
        elif place < notes.batch or notes.sent == notes.answered:
            return False
        notes.write()  # before anything leaves a device
        values, size = self._noted(key), NONCE_BYTES + randomizer.params.message_bytes
        for begin in range(0, len(values), size):
            self.messages.send(key, values[begin : begin + size], timestamp_ms=self._announced_at)
        self.messages.flush()
        notes.sent = notes.answered
        notes.write()
        self._outbox.unlink(missing_ok=True)
        self.tell(
            "answered", batch=place_text(place), records=notes.sent, declined=notes.declined, dead_letters=notes.dead
        )
        return True

    def _noted(self, key: bytes) -> bytes:
        """The messages of the round that the notes name."""
        try:
            theirs, _, values = self._outbox.read_bytes().partition(b"\n")
        except OSError:
            theirs = values = b""
        if theirs != key:
            raise SourceError(f"{self._outbox}: expected the messages of this round, some of which may have been sent")
        return values
