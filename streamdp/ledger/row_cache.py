"""Rows of subjects in memory: arrays, and a hash table that finds a subject's row in them (`row_index`).

A subject takes about 100 bytes. A dictionary with the same content takes three times as much, and most of the time of
an admission.

An interruption (Ctrl-C) between any two steps changes no row that was filled, and puts no other row into use: compiled
code is not interrupted, and attributes that belong together are assigned in one statement.
"""

from collections.abc import Callable

import numpy as np

from streamdp.ledger.row_index import find_or_add
from streamdp.ledger.rows import ROW

Read = Callable[[np.ndarray], tuple[np.ndarray, np.ndarray]]
"""Reads the rows (m, ROW) of m keys, and which of them the database has, (m,) bool; zeros for the others."""


def nothing(keys: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Read rows of zeros, for `keys` that no database has: see `Read`."""
    return np.zeros((len(keys), ROW)), np.zeros(len(keys), dtype=np.bool_)


class RowCache:
    """The rows of `n` subjects, in arrays that are longer than n.

    `keys` (n, 2) uint64 are the hashes of the subjects. `absent` says whether the table of the database has no row of a
    subject, `pending` whether the row has changed since its last commit, and `logged` whether that is in the log only
    (see `sqlite_pages`).
    """

    def __init__(self) -> None:
        self.n = 0
        self.asked = np.zeros(1, dtype=np.int64)  # n, with the subjects that are being read
        self._use(_arrays(1024))

    def _use(self, arrays: tuple[np.ndarray, ...]) -> None:
        self.keys, self.rows, self.absent, self.pending, self.logged, self.index = arrays

    def find(self, keys: np.ndarray, present: np.ndarray, read: Read) -> np.ndarray:
        """Return the row number (m,) int64 of each of `keys`; those that are not here are `read` first.

        The row number is `rows.NOBODY` for a record without a subject, for which `present` (m,) bool is False. The
        arrays of this object are replaced by longer ones if they are full. An error of `read` leaves it as it was.
        """
        need = int(self.asked[0]) + len(keys)  # as if all were unknown
        if need > len(self.rows):
            self._grow(need)
        slots = find_or_add(keys, present, self.keys, self.index, self.asked)
        if self.asked[0] > self.n:
            try:
                new = slice(self.n, int(self.asked[0]))
                rows, found = read(self.keys[new])
                self.rows[new], self.absent[new] = rows, ~found
                self.n = new.stop
            except BaseException:
                index, asked = np.zeros_like(self.index), np.array([self.n], dtype=np.int64)
                _add_all(self.keys, index, self.n)
                self.index, self.asked = index, asked
                raise
        return slots

    def settle(self, pending: np.ndarray) -> None:
        """Note that all rows are committed, but those at the places `pending`."""
        self.pending[: self.n] = False
        self.pending[pending] = True

    def _grow(self, need: int) -> None:
        n = int(self.asked[0])
        longer = _arrays(1 << (need - 1).bit_length())
        arrays = (self.keys, self.rows, self.absent, self.pending, self.logged)
        for old, new in zip(arrays, longer, strict=False):
            new[:n] = old[:n]
        _add_all(longer[0], longer[-1], n)
        self._use(longer)


def _add_all(keys: np.ndarray, index: np.ndarray, n: int) -> None:
    """Add the rows of the first n keys, which differ, to an empty index."""
    find_or_add(keys[:n], np.ones(n, dtype=np.bool_), keys, index, np.zeros(1, dtype=np.int64))


def _arrays(size: int) -> tuple[np.ndarray, ...]:
    """Keys, rows, absent, pending, logged; and the index, whose length is a power of two: row + 1, or 0."""
    flags = [np.zeros(size, dtype=np.bool_) for _ in range(3)]
    words = np.zeros((size, 2), dtype=np.uint64), np.zeros((size, ROW))
    return (*words, *flags, np.zeros(2 * size, dtype=np.int32))
