"""Rows of subjects in memory: arrays, and a compiled hash table that finds a subject's row in them.

About 110 bytes a subject; a dictionary of the same takes three times as much and most of the time of an admission.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from streamdp.accounting.admission import ROW

NOBODY = -1
"""The row of a record without a subject, which the admitting loop lets through."""


class RowMemory:
    """The rows of `n` subjects: `keys` (n, 2) are their hashes, `rows` (n, ROW) their spends and caps.

    `checks` are the check words of what the database has of them, `fresh` says that it has nothing, `touched` that the
    row was changed since the last commit, `logged` that its last commit stands in the log only (see `spend_pages`).
    All are longer than n; what is behind is zeros.
    """

    def __init__(self) -> None:
        self.n = 0
        self._allocate(1024)

    def _allocate(self, size: int) -> None:
        self.keys = np.zeros((size, 2), dtype=np.uint64)
        self.rows = np.zeros((size, ROW))
        self.checks = np.zeros(size, dtype=np.uint64)
        self.fresh = np.zeros(size, dtype=np.bool_)
        self.touched = np.zeros(size, dtype=np.bool_)
        self.logged = np.zeros(size, dtype=np.bool_)
        self._index = np.zeros(2 * size, dtype=np.int32)  # row + 1, or 0; a power of two long

    def find(self, keys: np.ndarray, there: np.ndarray) -> np.ndarray:
        """The row of each key, `NOBODY` where nobody is there; unknown ones are added behind the rows there are.

        Takes new arrays where these are full, so look at them afterwards.
        """
        need = self.n + len(keys)  # as if all were unknown
        if need > len(self.rows):
            self._grow(need)
        slots = np.empty(len(keys), dtype=np.int64)
        self.n = _find_or_add(keys, there, self.keys, self._index, self.n, slots)
        return slots

    def _grow(self, need: int) -> None:
        before = self.keys, self.rows, self.checks, self.fresh, self.touched, self.logged
        self._allocate(1 << (need - 1).bit_length())
        now = self.keys, self.rows, self.checks, self.fresh, self.touched, self.logged
        for old, new in zip(before, now, strict=True):
            new[: self.n] = old[: self.n]
        _index_all(self.keys, self._index, self.n)

    def truncate(self, n: int) -> None:
        """Drop the rows from n on."""
        for array in (self.keys, self.rows, self.checks, self.fresh, self.touched, self.logged):
            array[n : self.n] = 0
        self.n = n
        self._index[:] = 0
        _index_all(self.keys, self._index, n)


@njit(cache=True, nogil=True)
def _find_or_add(
    wanted: np.ndarray, there: np.ndarray, keys: np.ndarray, index: np.ndarray, n: int, slots: np.ndarray
) -> int:
    """Linear probing; the hashes are random under a secret key, so their own bits are the place to begin."""
    mask = np.uint64(len(index) - 1)
    for i in range(len(wanted)):
        if not there[i]:
            slots[i] = NOBODY
            continue
        place = wanted[i, 1] & mask
        while True:
            row = index[place] - 1
            if row < 0:
                keys[n] = wanted[i]
                n += 1
                index[place] = n
                row = n - 1
                break
            if keys[row, 0] == wanted[i, 0] and keys[row, 1] == wanted[i, 1]:
                break
            place = (place + np.uint64(1)) & mask
        slots[i] = row
    return n


@njit(cache=True, nogil=True)
def _index_all(keys: np.ndarray, index: np.ndarray, n: int) -> None:
    """Fill an empty index with the first n keys, which differ."""
    mask = np.uint64(len(index) - 1)
    for i in range(n):
        place = keys[i, 1] & mask
        while index[place] != 0:
            place = (place + np.uint64(1)) & mask
        index[place] = i + 1
