"""Raw records of a window of users: held in memory until the window ends, and nowhere else.

A window begins with the first record that is taken: before it there is nothing that a state would have to hold. A user
is a subject with at least one record in the window; a record without a subject is a user of its own. A user gives up to
`items` records, and further ones are refused. None of this depends on values. A copy or pickle of the collection is
empty.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import repeat
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from streamdp.data.records import Subject

_NEW, _REFUSED = -1, -2


class Gathering:
    """The records of the open window: at most so many `items` of a user; after `window` records it may end."""

    def __init__(self, items: int, window: int) -> None:
        self.items, self.window = int(items), int(window)
        self.rows = np.zeros((0, 1))  # features and target
        self._places = np.zeros(0, dtype=np.int64)
        self._filled = 0
        self.discard()

    _out: tuple[np.ndarray, np.ndarray, np.ndarray] | None = None

    def taken_out(self) -> tuple[np.ndarray, np.ndarray, np.ndarray] | None:
        """Return the records of people who were held out of the last window, as `close` does; None: there are none."""
        found, self._out = self._out, None
        return found

    def discard(self) -> None:
        """Discard the window and the list of refused subjects; overwrite the records."""
        for array in self.taken_out() or ():
            array[:] = 0
        self.rows[: self._filled] = 0.0  # first, for an exception between these lines
        self._filled = 0
        self.at = 0
        """Records of the present window, including refused ones."""
        self._index: dict[Subject, int] = {}
        self._counts = np.zeros(1024, dtype=np.int64)
        self._next = 0  # the number of the next user

    def __reduce__(self) -> tuple[Any, ...]:
        return Gathering, (self.items, self.window)

    @property
    def held(self) -> int:
        """Records in memory."""
        return self._filled

    @property
    def room(self) -> int:
        """Records until the window may end, which is possible after every `window` records."""
        return self.window - self.at % self.window

    @property
    def users(self) -> int:
        """The number of users with records in memory."""
        return len(self._sizes())

    def _sizes(self) -> np.ndarray:
        """How many records each user has, in the order of their numbers."""
        sizes = np.bincount(self._places[: self._filled])
        return sizes[sizes > 0]

    def begun(self, subjects: Sequence[Subject | None]) -> list[Subject]:
        """Return the subjects that would enter the window with these records, each once. Nothing changes."""
        known = self._index
        return list(dict.fromkeys(s for s in subjects if s is not None and s not in known))

    def refuse(self, subjects: Sequence[Subject]) -> None:
        """Take no record of these subjects, who have none in the window, until it ends."""
        self._index.update(zip(subjects, repeat(_REFUSED)))

    def choose(self, subjects: Sequence[Subject | None]) -> tuple[np.ndarray, np.ndarray]:
        """Return the users (n,) of up to `room` records, and the mask (n,) of those to take. The others are refused."""
        known: dict[Any, int] = self._index
        users = np.fromiter(map(known.get, subjects, repeat(_NEW)), dtype=np.int64, count=len(subjects))
        for i in np.flatnonzero(users == _NEW).tolist():
            subject = subjects[i]
            user = _NEW if subject is None else known.get(subject, _NEW)
            if user == _NEW:
                user = self._next
                self._next += 1  # before the number is given, so that nobody else gets it
                if subject is not None:
                    known[subject] = user
            users[i] = user
        if self._next > len(self._counts):
            self._counts = np.append(self._counts, np.zeros(self._next, dtype=np.int64))
        taken = users >= 0
        taken[taken] = (_ranks(users) + self._counts[users])[taken] < self.items
        return users, taken

    def take(self, X: np.ndarray, y: np.ndarray, users: np.ndarray, taken: np.ndarray) -> None:
        """Take records X (n, p), y (n,), for which `choose` returned users and taken."""
        np.add.at(self._counts, users[taken], 1)  # first, so that no user gives too many records
        self._store(X, y, users, taken)
        if self.at:
            self.at += len(X)
        elif self._filled:
            self.at = len(X) - int(np.argmax(taken))
        else:
            self.discard()

    def _store(self, X: np.ndarray, y: np.ndarray, users: np.ndarray, taken: np.ndarray) -> None:
        begin, end = self._filled, self._filled + int(np.count_nonzero(taken))
        if begin == end:
            return
        if end > len(self.rows):
            size = max(end, 2 * len(self.rows))
            rows, places = np.zeros((size, X.shape[1] + 1)), np.zeros(size, dtype=np.int64)
            rows[:begin], places[:begin] = self.rows[:begin] if begin else 0.0, self._places[:begin]
            old, self.rows, self._places = self.rows, rows, places
            old[...] = 0.0
        self._places[begin:end] = users[taken]
        self._filled = end  # in this order no record gets the place of another user's, and all that are held are wiped
        self.rows[begin:end, :-1], self.rows[begin:end, -1] = X[taken], y[taken]

    def close(self, held: np.ndarray | None = None) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """End the window; return X (N, p), y (N,), one user after another, and the numbers of records of users (n,).

        `held`: the mask (n,) of users who are held out, for `taken_out`; None: nobody.
        """
        order = np.argsort(self._places[: self._filled], kind="stable")
        X, y, sizes = self.rows[:, :-1].take(order, axis=0), self.rows[:, -1].take(order), self._sizes()
        self.discard()
        if held is None or not held.any():
            return X, y, sizes
        rows = np.repeat(held, sizes)
        self._out = X[rows], y[rows], sizes[held]
        left = X[~rows], y[~rows], sizes[~held]
        X[:] = y[:] = 0
        return left


def _ranks(users: np.ndarray) -> np.ndarray:
    """For each record (n,), how many records before it are of the same user."""
    n = len(users)
    if n == 1:
        return np.zeros(1, dtype=np.int64)
    order = np.argsort(users, kind="stable")
    first = np.flatnonzero(np.diff(users[order], prepend=_REFUSED - 1))  # where the records of each user begin
    ranks = np.empty(n, dtype=np.int64)
    ranks[order] = np.arange(n) - np.repeat(first, np.diff(first, append=n))
    return ranks
