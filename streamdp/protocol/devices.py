"""The people's side: one person's device, and a crowd of them played from a file. See the package's text."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from streamdp.data.records import Source
from streamdp.database.durable import write_durably
from streamdp.errors import BudgetError, ConfigError, NotAvailableError, SchemaError, SourceError
from streamdp.estimators import ShuffleRandomizer
from streamdp.protocol.agreement import Agreement
from streamdp.protocol.logs import Log, Outlet, Tell, silent
from streamdp.protocol.shuffle_wire import NONCE_BYTES, Place, message_key, place_text

_POLL_S = 0.2
_ROWS = 1000
_BYTES = 16 << 20


class Device:
    """One person's device, with one record. `answered` must survive it: keep it where the record is.

    >>> from streamdp import ShuffleClassifier
    >>> from streamdp.protocol.shuffle_wire import write_announcement
    >>> model = ShuffleClassifier(features=["a", "b"], horizon=3000)
    >>> announced = write_announcement(Agreement(model).announcement(model.batch, model.randomizer.point))
    >>> device = Device(Agreement(model))
    >>> key, value = device.answer(announced, {"a": 0.5, "b": -1.0}, 1.0)
    >>> device.answered
    True
    """

    def __init__(self, agreement: Agreement, *, answered: bool = False, note: Callable[[], None] | None = None) -> None:
        self._agreement = agreement
        self._note = note
        self.answered = answered

    def answer(self, announcement: bytes, x: Mapping[Any, Any], y: float) -> tuple[bytes, bytes]:
        """Key and value to send to the shuffler, once: `note` is called before anything is made.

        Raises `NotAvailableError` where the record has answered, and as `Agreement.accept` and
        `ShuffleRandomizer.messages`.
        """
        if self.answered:
            raise NotAvailableError("this record has answered; a second answer would spend its budget twice")
        half = self._agreement.accept(announcement)
        bits = half.messages(x, y)
        if self._note is not None:
            self._note()
        self.answered = True
        return message_key(self._agreement.digest, half.batch), os.urandom(NONCE_BYTES) + bits.tobytes()


class Notes:
    """What a crowd must remember: a file with which records have answered. Raises `SourceError`."""

    def __init__(self, path: str, agreement: Agreement) -> None:
        self._path = Path(path)
        self._agreement = agreement.digest
        self.position: dict[str, Any] | None = None
        self.batch: Place | None = None
        self.sent = self.answered = self.declined = self.dead = 0
        try:
            text = self._path.read_text(encoding="utf-8")
        except FileNotFoundError:
            return
        except OSError as error:
            raise SourceError(f"{path}: {(error.strerror or 'cannot be read').lower()}") from None
        try:
            said = json.loads(text)
            theirs, self.position = said["agreement"], said["position"]
            self.batch = None if said["batch"] is None else tuple(said["batch"])
            self.sent, self.answered, self.declined, self.dead = said["counts"]
        except (ValueError, KeyError, TypeError):
            raise SourceError(f"{path}: expected the notes of who has answered, got something else") from None
        if theirs != self._agreement:
            raise SourceError(
                f"{path}: these records have answered under another agreement; if they shall answer again, and spend"
                " again, name another file with --notes"
            )

    def write(self) -> None:
        """On disk when this returns."""
        counts = [self.sent, self.answered, self.declined, self.dead]
        said = {"agreement": self._agreement, "position": self.position, "batch": self.batch, "counts": counts}
        try:
            write_durably(str(self._path), json.dumps(said))
        except OSError as error:
            raise SourceError(f"{self._path}: {(error.strerror or 'cannot be written').lower()}") from None


class DeviceSimulator:
    """Plays the devices of the people in a source: each record waits for the batch it goes into and answers once.

    Parameters
    ----------
    per_batch
        How many of these people answer in one batch; as many as it takes when None.
    budget
        The amount that a record must allow, where the source has budgets of records; those that allow less decline.
    """

    def __init__(
        self,
        agreement: Agreement,
        source: Source,
        points: Log,
        messages: Outlet,
        notes: Notes,
        *,
        per_batch: int | None = None,
        budget: float = 0.0,
        tell: Tell = silent,
    ) -> None:
        self._agreement = agreement
        self._source = source
        self._points = points
        self._messages = messages
        self._notes = notes
        self._per_batch = per_batch
        self._budget = budget
        self._tell = tell
        self._half: ShuffleRandomizer | None = None
        self._shown_at = 0
        if notes.position is not None and notes.position != source.position:
            source.seek(notes.position)
        points.seek(max(0, points.end() - 1))

    def run(self, stopping: Callable[[], bool] = lambda: False) -> None:
        """Until every record had its turn, or until told to stop."""
        while not stopping() and not self._source.finished:
            self.step(_POLL_S)

    def step(self, timeout_s: float) -> bool:
        """Look for a new point, and let the next people answer; False where they have to wait."""
        wanted = self._wanted()
        self._look(0.0 if wanted else timeout_s)
        if not (wanted := self._wanted()):
            return False
        half, notes = self._half, self._notes
        assert half is not None
        batch = self._source.poll(min(wanted, _ROWS, max(1, _BYTES // half.params.message_bytes)), timeout_s)
        if not (len(batch) or batch.dead):
            return False
        willing = np.ones(len(batch), dtype=bool)
        if batch.budgets is not None:
            willing = np.isnan(batch.budgets) | (batch.budgets >= self._budget)
        people = int(np.count_nonzero(willing))
        notes.position = dict(self._source.position)
        notes.answered += people
        notes.declined += len(batch) - people
        notes.dead += len(batch.dead)
        notes.write()  # before anything leaves a device
        if people:
            key = message_key(self._agreement.digest, half.batch)
            for bits in half.messages_of(batch.X[willing], batch.y[willing]):
                value = os.urandom(NONCE_BYTES) + bits.tobytes()
                self._messages.send(key, value, timestamp_ms=self._shown_at)
            self._messages.flush()
        notes.sent += people  # until this is written, others answer in place of those who may not have come through
        notes.write()
        self._tell("answered", batch=place_text(half.batch), records=people, declined=notes.declined, dead=notes.dead)
        return True

    def _wanted(self) -> int:
        """How many more of these people the batch takes."""
        if self._half is None:
            return 0
        most = self._half.params.users
        return max(0, (most if self._per_batch is None else min(most, self._per_batch)) - self._notes.sent)

    def _look(self, timeout_s: float) -> None:
        """Take up the newest point. One that is not what was agreed on is refused, and another one waited for."""
        entries = self._points.poll(timeout_s)
        if not entries:
            return
        newest = entries[-1]
        try:
            half = self._agreement.accept(newest.value or b"")
        except (SchemaError, ConfigError, BudgetError) as error:
            self._half = None
            self._tell("refused", reason=str(error))
            return
        self._half, self._shown_at = half, newest.timestamp
        if half.batch != self._notes.batch:
            self._notes.batch, self._notes.sent = half.batch, 0
            with contextlib.suppress(BudgetError):
                weakest = str(self._agreement.weakest(half.batch))
                self._tell("batch", batch=place_text(half.batch), people=half.params.users, weakest=weakest)
