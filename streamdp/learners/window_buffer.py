"""Raw records of a window of users: held in memory until the window ends, and nowhere else.

A window begins with the first record that is taken: before it there is nothing that a state would have to hold. A user
is a subject with at least one record in the window; a record without a subject is a user of its own. Who is in it, the
`release` decides, and not by values. A copy or pickle of the collection is empty.
"""

from collections.abc import Sequence
from itertools import repeat

import numpy as np

from streamdp.optim.record_kernel import RowStore
from streamdp.privacy.release import Release

_AT_ONCE = 1 << 20  # rows for which memory is reserved at once; it is used row by row

Records = tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]
"""X (N, p), y (N,), one user after another, the numbers of records of users (n,), and the places of records (N,).

A place is from 0, for the first record of the window, to 1.
"""


class Gathering:
    """The records of the open window, which join its `release`; after `window` records it may end."""

    def __init__(self, release: Release, window: int) -> None:
        self.release, self.window = release, int(window)
        self.rows = np.zeros((0, 1))  # features and target
        self._places = np.zeros(0, dtype=np.int64)
        self._counts = np.zeros(2, dtype=np.int64)  # rows that are filled, and the number of the next user
        self.read = np.zeros(1, dtype=np.int64)
        """(1,): records of the present window, including refused ones. Compiled code counts here."""
        self.discard()

    def discard(self) -> None:
        """Discard the window; overwrite the records."""
        self.rows[: self.held] = 0.0  # in this order, for an exception between these lines
        self._index: dict[bytes | None, int] = {}  # before its numbers are given again
        self._counts[:] = self.read[:] = 0
        self.release.close()

    def __reduce__(self) -> tuple[object, ...]:
        return Gathering, (self.release, self.window)

    @property
    def at(self) -> int:
        """See `read`."""
        return int(self.read[0])

    @property
    def held(self) -> int:
        """Records in memory."""
        return int(self._counts[0])

    def store(self) -> RowStore:
        """What takes a record without a subject, until the rows are full."""
        return RowStore(self.rows, self._places, self._counts)

    @property
    def room(self) -> int:
        """Records until the window may end, which is possible after every `window` records."""
        return self.window - self.at % self.window

    @property
    def ended(self) -> bool:
        """Whether the window has records and may end now."""
        return self.held > 0 and self.at % self.window == 0

    @property
    def users(self) -> int:
        """The number of users with records in memory."""
        return len(self._sizes())

    def _sizes(self) -> np.ndarray:
        """How many records each user has, in the order of their numbers."""
        sizes = np.bincount(self._places[: self.held])
        return sizes[sizes > 0]

    def take(self, X: np.ndarray, y: np.ndarray, people: Sequence[bytes | None], taken: np.ndarray) -> None:
        """Take those of the records X (n, p), y (n,) of `people` that are in the release, `taken` (n,)."""
        rows = np.flatnonzero(taken)
        if len(rows) == len(X):
            self._store(X, y, self._users(people))
        else:
            X_taken, y_taken = X[rows], y[rows]
            self._store(X_taken, y_taken, self._users(list(map(people.__getitem__, rows.tolist()))))
            X_taken[:] = y_taken[:] = 0
        if self.read[0]:
            self.read += len(X)
        elif self._counts[0]:
            self.read += len(X) - int(rows[0])
        else:
            self.discard()

    def _users(self, people: Sequence[bytes | None]) -> np.ndarray:
        """The numbers (n,) of the users of records."""
        if people.count(None) == len(people):
            first = int(self._counts[1])
            self._counts[1] += len(people)
            return np.arange(first, first + len(people))
        known = self._index
        users = np.fromiter(map(known.get, people, repeat(-1)), dtype=np.int64, count=len(people))
        for i in np.flatnonzero(users < 0).tolist():
            person = people[i]
            user = -1 if person is None else known.get(person, -1)
            if user < 0:
                user = int(self._counts[1])
                self._counts[1] += 1  # before the number is given, so that nobody else gets it
                if person is not None:
                    known[person] = user
            users[i] = user
        return users

    def _store(self, X: np.ndarray, y: np.ndarray, users: np.ndarray) -> None:
        begin = int(self._counts[0])
        end = begin + len(users)
        if begin == end:
            return
        if end > len(self.rows):
            size = max(end, 2 * len(self.rows), min(self.window, _AT_ONCE))
            rows, places = np.zeros((size, X.shape[1] + 1)), np.zeros(size, dtype=np.int64)
            rows[:begin], places[:begin] = self.rows[:begin] if begin else 0.0, self._places[:begin]
            old, self.rows, self._places = self.rows, rows, places
            old[...] = 0.0
        self._places[begin:end] = users
        self._counts[0] = (
            end  # in this order no record gets the place of another user's, and all that are held are wiped
        )
        self.rows[begin:end, :-1], self.rows[begin:end, -1] = X, y

    def close(self, held: np.ndarray | None = None) -> tuple[Records, Records]:
        """End the window; return the records of its users, and those of the users who are `held` out, a mask (n,).

        None: nobody is held out.
        """
        users, rows, sizes = self._places[: self.held], self.rows[: self.held], self._sizes()
        if np.all(users[1:] >= users[:-1]):  # the records leave with their memory
            places = np.arange(len(rows)) / len(rows)
            self.rows, self._places, self._counts[0] = np.zeros((0, 1)), self._places[:0], 0
        else:
            order = np.argsort(users, kind="stable")
            places = order / len(order)
            rows = rows.take(order, axis=0)
        self.discard()
        X, y = rows[:, :-1], rows[:, -1]
        if held is None or not held.any():
            return (X, y, sizes, places), (X[:0], y[:0], sizes[:0], places[:0])
        out = np.repeat(held, sizes)
        found = (X[~out], y[~out], sizes[~held], places[~out]), (X[out], y[out], sizes[held], places[out])
        X[:] = y[:] = 0
        return found
