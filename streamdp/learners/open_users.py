"""Raw records of users who have not reported yet: held in memory until a public rule says that a user is complete.

A user is complete after a number of records of one subject, at the end of a window of records of the stream, after a
time, or when it is closed explicitly. A record without a subject is a user of its own, complete at once. Under a cap
that renews, records of different periods are of different users, so that a report spends in one period. The rule does
not depend on values. Records are in memory and nowhere else: a copy or pickle of the collection is empty.
"""

import time
from collections.abc import Sequence

import numpy as np

User = tuple[bytes, int]
"""A subject and a period of its records; 0 if no cap renews."""
Users = list[list[int]]
"""Complete users, in the order of completion; each is the list of the places of its records in the collection."""


class OpenUsers:
    """The records of open users.

    So many `items` complete a user, and a `window` of the stream, with refused records, all users. `seconds`: the time
    after which `late` turns True.
    """

    def __init__(self, items: int, window: int, seconds: float | None = None) -> None:
        self.items, self.window = int(items), int(window)
        self.at = 0
        """Records of the present window."""
        self.held = 0
        """Raw records of open users."""
        self._seconds = seconds
        self.clock = time.monotonic
        self._since = 0.0
        self._open: dict[User, list[int]] = {}
        self.rows = np.zeros((0, 0))
        self._filled = 0

    def __reduce__(self) -> tuple[object, ...]:
        return OpenUsers, (self.items, self.window, self._seconds), {"at": self.at}

    @property
    def room(self) -> int:
        """Records until the window ends."""
        return self.window - self.at

    @property
    def late(self) -> bool:
        """Whether the oldest open user has waited too long."""
        return self._seconds is not None and bool(self._open) and self.clock() - self._since >= self._seconds

    def begun(self, users: Sequence[User | None], timely: np.ndarray) -> tuple[list[int], np.ndarray]:
        """Return which of the next records begin a report, by their places. Nothing changes.

        The second value (n,) is the index of the report of each record; -1 if its report has begun before or it has no
        subject. Of the records of `users` only those are taken that a cap allows by their time, `timely` (n,).
        """
        sizes = {user: len(places) for user, places in self._open.items()}
        at = self.at
        begun: list[int] = []
        last: dict[User, int] = {}
        report = np.full(len(users), -1)
        for i, user in enumerate(users):
            if user is not None and timely[i]:
                size = sizes.get(user, 0)
                if size == 0:
                    last[user] = len(begun)
                    begun.append(i)
                report[i] = last.get(user, -1)
                sizes[user] = (size + 1) % self.items
            at += 1
            if at == self.window:
                sizes.clear()
                at = 0
        return begun, report

    def take(self, X: np.ndarray, y: np.ndarray, users: Sequence[User | None], admitted: np.ndarray | None) -> Users:
        """Take records X (n, p), y (n,) of `users`, at most `room`; return the users that are complete now.

        Until the next call, `records` returns their records. `admitted` (n,) are those to take; None: all.
        """
        if not self._open:
            self.wipe()
            self._since = self.clock()
        first, end = self._filled, self._filled + len(X)
        if end > len(self.rows):
            more = np.zeros((max(end, 2 * len(self.rows)), X.shape[1] + 1))
            more[:first] = self.rows[:first] if first else 0.0
            old, self.rows = self.rows, more
            old[...] = 0.0
        places: Sequence[int] = range(first, end)
        if admitted is not None:
            places = (np.flatnonzero(admitted) + first).tolist()
            users = [user for user, learned in zip(users, admitted, strict=True) if learned]
        # This comes first: after an interruption at any point no record gets the place of another user's, and a record
        # that is in memory is counted.
        self._filled = end
        self.at += len(X)
        self.held += len(places)
        self.rows[first:end, :-1], self.rows[first:end, -1] = X, y
        if admitted is not None:
            self.rows[first:end][~admitted] = 0.0
        complete: Users = []
        for place, user in zip(places, users, strict=True):
            if user is None or self.items == 1:
                complete.append([place])
                continue
            records = self._open.setdefault(user, [])
            records.append(place)
            if len(records) == self.items:
                complete.append(self._open.pop(user))
        self.held -= sum(map(len, complete))
        return complete + self.close() if self.at == self.window else complete

    def close(self) -> Users:
        """End the window; return all users that were open."""
        users = [places for places in self._open.values() if places]  # none, if its first record was interrupted
        self._open = {}
        self.at = self.held = 0
        return users

    def close_user(self, subject: bytes | None) -> Users:
        """Complete the users of a subject that are open; return them."""
        periods = {period for _, period in self._open}
        users = [self._open.pop((subject, p), []) for p in sorted(periods)] if subject is not None else []
        users = [places for places in users if places]
        self.held -= sum(map(len, users))
        return users

    def wipe(self) -> None:
        """Overwrite what is left of complete users, and of interrupted calls. While a user is open, do nothing."""
        if not self._open:
            self.rows[: self._filled] = 0.0
            self._filled = self.held = 0

    def records(self, users: Users) -> tuple[np.ndarray, np.ndarray, list[int]]:
        """Return X, y of the last complete users, in order, and their numbers of records; overwrite them here."""
        places = [place for user in users for place in user]
        rows = self.rows[places]
        self.rows[places] = 0.0
        return np.ascontiguousarray(rows[:, :-1]), rows[:, -1].copy(), [len(user) for user in users]
