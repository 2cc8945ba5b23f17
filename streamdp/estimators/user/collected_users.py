"""The records of users without a device, held in memory until the user reports: see `estimators`, "Collecting"."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from streamdp.data.subjects import subject_bytes, subjects_bytes
from streamdp.errors import ConfigError, is_number
from streamdp.estimators.user.open_users import OpenUsers, Users
from streamdp.estimators.user.records import UserRecords

if TYPE_CHECKING:
    from streamdp.data.records import Subject


class CollectedUsers(UserRecords):
    """The raw records of open users are in `_people`. A subclass defines `_report`."""

    window_seconds: float | None

    def _set_up(self) -> None:
        if self.window_seconds is not None and not (is_number(self.window_seconds) and self.window_seconds > 0):
            raise ConfigError(f"window_seconds: expected a positive number, or None, got {self.window_seconds!r}")
        super()._set_up()
        self._people = OpenUsers(self.items_per_user, self.window, self.window_seconds)

    def _report(self, users: Users) -> None:
        """Let complete users answer, one after another."""
        raise NotImplementedError

    @property
    def _pending(self) -> int:
        return self._people.held

    @property
    def to_boundary(self) -> int:
        """How many records to learn until the window ends and no user is open, at most; 0 if no user is open."""
        return 0 if self.at_boundary else self._people.room

    def _boundary_within(self, records: int) -> int:
        """Only ends of windows are planned boundaries."""
        left, window = self._people.room, self._people.window
        return records if left > records else left + (records - left) // window * window

    def _gather(self, X: np.ndarray, y: np.ndarray, people: Sequence[Subject | None]) -> np.ndarray | None:
        if not self._people.room:  # an exception, such as Ctrl-C, interrupted the end of a window
            self._finish()
        people = subjects_bytes(people)  # b"ann" and "ann" are one person
        admitted = self._admit(people)
        if admitted is not None:
            self.n_refused += int(np.count_nonzero(~admitted))
        if len(X) and (admitted is None or admitted.any()):
            self._count(self._budget)
        begin = 0
        while begin < len(X):
            part = slice(begin, begin + self._people.room)
            mask = None if admitted is None else admitted[part]
            self.n_seen += len(X[part]) if mask is None else int(np.count_nonzero(mask))
            self._report(self._people.take(X[part], y[part], people[part], mask))
            begin = part.stop
        if self._people.late:
            self._finish()
        return admitted

    def _admit(self, subjects: Sequence[Subject | None]) -> np.ndarray | None:
        """Ask the ledger for every report that begins here; return the mask (n,) of admitted records, or None for all.

        Nothing has changed before, so the call may be repeated if the ledger raises.
        """
        if self.ledger is None:
            return None
        timely = self.ledger.timely(subjects)
        begun, report = self._people.begun(subjects, timely)
        mask: np.ndarray = np.append(self.ledger.admit_many(begun, self._budget), True)[report] & timely
        return None if mask.all() else mask

    def _finish(self) -> None:
        """Close all users, and the window."""
        self._report(self._people.close())

    def close_user(self, subject: Subject) -> None:
        """End the collection of a user's records: the user reports on those that it has. Without any, do nothing.

        Parameters
        ----------
        subject
            The user, as given to `learn_one`.
        """
        with self._rng.lock:
            self._report(self._people.close_user(subject_bytes(subject)))

    def _empty(self) -> dict[str, Any]:
        return {}  # a copy of `_people` is empty

    def _discard(self) -> None:
        self._people.close()
        self._people.wipe()
