"""Rows of subjects in memory: arrays, and a compiled hash table that finds a subject's row in them.

About 110 bytes a subject; a dictionary of the same takes three times as much and most of the time of an admission.
An interruption (Ctrl-C) between any two steps leaves every row that was filled as it was, and no other in use: compiled
code is not interrupted, and all that belongs together is assigned at once.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from streamdp.ledger.admission import ROW, check_words

NOBODY = -1
"""The row of a record without a subject, which the admitting loop lets through."""


class RowMemory:
    """The rows of `n` subjects: `keys` (n, 2) are their hashes, `rows` (n, ROW) their spends and caps.

    `checks` are the check words of what the database has of them, `fresh` says that it has nothing, `touched` that the
    row was changed since the last commit, `logged` that its last commit stands in the log only (see `spend_pages`).
    All are longer than n. Behind the n rows may be some that were asked for and not read yet (`unread`).
    """

    def __init__(self) -> None:
        self.n = 0
        self._asked = np.zeros(1, dtype=np.int64)  # rows with those that were not read yet
        self._use(_arrays(1024))

    def _use(self, arrays: tuple[np.ndarray, ...]) -> None:
        self.keys, self.rows, self.checks, self.fresh, self.touched, self.logged, self._index = arrays

    def find(self, keys: np.ndarray, there: np.ndarray) -> np.ndarray:
        """The row of each key, `NOBODY` where nobody is there; unknown ones become `unread`.

        Takes new arrays where these are full, so look at them afterwards.
        """
        need = int(self._asked[0]) + len(keys)  # as if all were unknown
        if need > len(self.rows):
            self._grow(need)
        slots = np.empty(len(keys), dtype=np.int64)
        _find_or_add(keys, there, self.keys, self._index, self._asked, slots)
        return slots

    @property
    def unread(self) -> np.ndarray:
        """The hashes (m, 2) of those that `fill` is still to be called for."""
        return self.keys[self.n : self._asked[0]]

    def fill(self, rows: np.ndarray, found: np.ndarray) -> None:
        """Give the m unread ones their rows (m, ROW), and say which the database has (m,)."""
        new = slice(self.n, self.n + len(rows))
        self.rows[new], self.fresh[new] = rows, ~found
        self.checks[new] = check_words(self.keys[new], rows.view(np.uint64))
        self.n = new.stop

    def drop_unread(self) -> None:
        """Forget those that could not be read."""
        index, asked = np.zeros_like(self._index), np.array([self.n])
        _index_all(self.keys, index, self.n)
        self._index, self._asked = index, asked

    def _grow(self, need: int) -> None:
        n = int(self._asked[0])
        now = _arrays(1 << (need - 1).bit_length())
        for old, new in zip(
            (self.keys, self.rows, self.checks, self.fresh, self.touched, self.logged), now, strict=False
        ):
            new[:n] = old[:n]
        _index_all(now[0], now[-1], n)
        self._use(now)


def _arrays(size: int) -> tuple[np.ndarray, ...]:
    """Keys, rows, checks, fresh, touched, logged; and the index: row + 1, or 0, a power of two long."""
    flags = [np.zeros(size, dtype=np.bool_) for _ in range(3)]
    words = np.zeros((size, 2), dtype=np.uint64), np.zeros((size, ROW)), np.zeros(size, dtype=np.uint64)
    return (*words, *flags, np.zeros(2 * size, dtype=np.int32))


@njit(cache=True, nogil=True)
def _find_or_add(
    wanted: np.ndarray, there: np.ndarray, keys: np.ndarray, index: np.ndarray, asked: np.ndarray, slots: np.ndarray
) -> None:
    """Linear probing; the hashes are random under a secret key, so their own bits are the place to begin."""
    mask, n = np.uint64(len(index) - 1), asked[0]
    for i in range(len(wanted)):
        if not there[i]:
            slots[i] = NOBODY
            continue
        place = wanted[i, 1] & mask
        while True:
            row = index[place] - 1
            if row < 0:
                row = n
                keys[n, 0], keys[n, 1] = wanted[i, 0], wanted[i, 1]
                n += 1
                index[place] = n
                break
            if keys[row, 0] == wanted[i, 0] and keys[row, 1] == wanted[i, 1]:
                break
            place = (place + np.uint64(1)) & mask
        slots[i] = row
    asked[0] = n


@njit(cache=True, nogil=True)
def _index_all(keys: np.ndarray, index: np.ndarray, n: int) -> None:
    """Fill an empty index with the first n keys, which differ."""
    mask = np.uint64(len(index) - 1)
    for i in range(n):
        place = keys[i, 1] & mask
        while index[place] != 0:
            place = (place + np.uint64(1)) & mask
        index[place] = i + 1
