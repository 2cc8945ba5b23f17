"""Raw records of users who have not reported yet: held in memory until a public rule says that a user is complete.

The rule: so many records of one subject, the end of a window of so many records of the stream, so many seconds, or a
marker. A record without a subject is a user of its own, complete at once. Nothing of it depends on values. Records are
in memory and nowhere else: a copy or pickle of the collection is empty.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from streamdp.data.records import Subject

Users = list[list[int]]
"""Complete users, in the order in which they became so; each is the places of its records in the collection."""


class OpenUsers:
    """The collection.

    Parameters
    ----------
    items
        A user is complete with so many records.
    window
        After so many records, learned or refused, all users are complete.
    seconds
        After so long `late` turns True; None: never.
    """

    def __init__(
        self, items: int, window: int, seconds: float | None = None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.items, self.window = int(items), int(window)
        self.at = 0
        """Records of the window so far."""
        self.held = 0
        """Raw records of open users."""
        self._seconds = seconds
        self._clock = clock
        self._since = 0.0
        self._open: dict[Subject, list[int]] = {}
        self._rows = np.zeros((0, 0))
        self._filled = 0

    def __reduce__(self) -> tuple[Any, ...]:
        return OpenUsers, (self.items, self.window, self._seconds), {"at": self.at}

    @property
    def room(self) -> int:
        """Records until the window ends."""
        return self.window - self.at

    @property
    def late(self) -> bool:
        """Whether the oldest open user has waited too long."""
        return self._seconds is not None and bool(self._open) and self._clock() - self._since >= self._seconds

    def begun(self, subjects: Sequence[Subject | None]) -> tuple[list[Subject], np.ndarray]:
        """Whose reports would begin with these records, and for each record (n,) which of them it belongs to, -1 for
        one that is open already and for nobody's. Nothing changes.
        """
        sizes = {subject: len(places) for subject, places in self._open.items()}
        at = self.at
        begun: list[Subject] = []
        last: dict[Subject, int] = {}
        report = np.full(len(subjects), -1)
        for i, subject in enumerate(subjects):
            if subject is not None:
                size = sizes.get(subject, 0)
                if size == 0:
                    last[subject] = len(begun)
                    begun.append(subject)
                report[i] = last.get(subject, -1)
                sizes[subject] = (size + 1) % self.items
            at += 1
            if at == self.window:
                sizes.clear()
                at = 0
        return begun, report

    def take(
        self, X: np.ndarray, y: np.ndarray, subjects: Sequence[Subject | None], admitted: np.ndarray | None
    ) -> Users:
        """Take up to `room` records, but those that were not admitted (n,); returns the users that are complete now.

        Their records can be had by `records` until the next call.
        """
        if not self._open:
            self._since, self._filled = self._clock(), 0
        first, end = self._filled, self._filled + len(X)
        if end > len(self._rows):
            more = np.zeros((max(end, 2 * len(self._rows)), X.shape[1] + 1))
            more[:first] = self._rows[:first] if first else 0.0
            self._rows = more
        self._rows[first:end, :-1], self._rows[first:end, -1] = X, y
        # First: wherever this is interrupted, no record gets to the place of another user's.
        self._filled = end
        self.at += len(X)
        places: Sequence[int] = range(first, end)
        if admitted is not None:
            self._rows[first:end][~admitted] = 0.0
            places = (np.flatnonzero(admitted) + first).tolist()
            subjects = [subject for subject, learned in zip(subjects, admitted, strict=True) if learned]
        self.held += len(places)
        complete: Users = []
        for place, subject in zip(places, subjects, strict=True):
            if subject is None or self.items == 1:
                complete.append([place])
                continue
            records = self._open.setdefault(subject, [])
            records.append(place)
            if len(records) == self.items:
                complete.append(self._open.pop(subject))
        self.held -= sum(map(len, complete))
        return complete + self.close() if self.at == self.window else complete

    def close(self) -> Users:
        """All open users are complete, and the window ends."""
        users = list(self._open.values())
        self._open = {}
        self.at = self.held = 0
        return users

    def close_user(self, subject: Subject) -> Users:
        """This user is complete, if it is open."""
        users = [self._open.pop(subject)] if subject in self._open else []
        self.held -= sum(map(len, users))
        return users

    def records(self, users: Users) -> tuple[np.ndarray, np.ndarray, list[int]]:
        """X, y of these users, one user after another, and how many records each has; they are wiped here."""
        places = [place for user in users for place in user]
        rows = self._rows[places]
        self._rows[places] = 0.0
        return np.ascontiguousarray(rows[:, :-1]), rows[:, -1].copy(), [len(user) for user in users]
