"""Local reports about texts of an open domain: the most frequent ones, and how many records have them.

A text is a row of bytes. A public hash sorts texts into buckets, and another one into many cells. Half of the records
report the cell, the others the bucket with the byte at one position, drawn at random: Bitstogram (Bassily, Nissim,
Stemmer, Thakurta 2017), with bytes for bits. A report is one randomised bit: the sign of the Hadamard matrix in a row,
drawn at random, at the cell (Acharya, Sun, Zhang 2019). The most frequent bytes of a bucket at each position are a
candidate, which is kept if its bucket is right and its count is certain. Then it is taken off, and the next is found.

Proof: docs/proofs/statistics.md.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from streamdp.data.floats import finite_array
from streamdp.errors import ConfigError
from streamdp.learners.local_counts import Oracle
from streamdp.privacy.entropy import uniform
from streamdp.reading.estimates import Frequencies

_BUCKETS, _BYTES = 64, 256
_CELLS = _BUCKETS * _BYTES
_SURE = 4.5
"""A text is shown if its share is more than this many deviations above 0: by chance with a probability of 3e-6."""


def _hash(texts: np.ndarray) -> np.ndarray:
    """A public hash (n,) of texts (n, length): FNV-1a with the last step of splitmix64."""
    found = np.full(len(texts), 0xCBF29CE484222325, dtype=np.uint64)
    for column in texts.T.astype(np.uint64):
        found = (found ^ column) * np.uint64(0x100000001B3)
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB), (31, 1)):
        found = (found ^ (found >> np.uint64(shift))) * np.uint64(factor)
    return found


def _parity(numbers: np.ndarray) -> np.ndarray:
    """Whether an odd number of the 14 lowest bits are 1: the sign of the Hadamard matrix."""
    for shift in (8, 4, 2, 1):
        numbers = numbers ^ (numbers >> shift)
    return numbers & 1


def _transformed(sums: np.ndarray) -> np.ndarray:
    """The sums (k, n) times the Hadamard matrix (n, n)."""
    out, half = sums.astype(float), 1
    while half < out.shape[1]:
        pairs = out.reshape(len(out), -1, 2, half)
        out = np.stack([pairs[:, :, 0] + pairs[:, :, 1], pairs[:, :, 0] - pairs[:, :, 1]], axis=2).reshape(out.shape)
        half *= 2
    return out


class Hitters:
    """The most frequent texts.

    `columns`: the columns of the bytes of a text; a byte b is 2 b / 255 - 1. `epsilon`: what a report spends.
    """

    words = 4

    def __init__(self, columns: Sequence[int], epsilon: float) -> None:
        self._columns = list(columns)
        self._oracle = Oracle(2, epsilon, unary=False)
        self._sums = np.zeros((len(columns) + 1, _CELLS), dtype=np.int64)  # by position, then of the counts
        self._reports = np.zeros(len(columns) + 1, dtype=np.int64)

    @property
    def n(self) -> int:
        """How many reports."""
        return int(self._reports.sum())

    def learn(self, X: np.ndarray, words: np.ndarray) -> None:
        """Take the reports of rows X (n, p), made with random words (n, words)."""
        texts = np.rint((X[:, self._columns] + 1) * 127.5).astype(np.int64)
        length, hashed, rows = len(self._columns), _hash(texts), np.arange(len(X))
        drawn = (uniform(words[:, 0]) * 2 * length).astype(np.int64)
        at = np.minimum(drawn, length)  # half of them are beyond all positions
        symbols = texts[rows, np.minimum(at, length - 1)]
        cells = np.where(at < length, self._bucket(hashed) * _BYTES + symbols, self._cell(hashed))
        lines = (words[:, 1] >> np.uint64(50)).astype(np.int64)
        reported = self._oracle.randomised(_parity(lines & cells), np.ascontiguousarray(words[:, 2:4]))
        # The number comes first: an interruption may lose reports, and a sum never has more than are counted.
        self._reports = self._reports + np.bincount(at, minlength=length + 1)
        np.add.at(self._sums, (at, lines), 1 - 2 * reported)  # in place: a copy of a megabyte costs more than a report

    @staticmethod
    def _bucket(hashed: np.ndarray) -> np.ndarray:
        return (hashed % np.uint64(_BUCKETS)).astype(np.int64)

    @staticmethod
    def _cell(hashed: np.ndarray) -> np.ndarray:
        return (hashed >> np.uint64(50)).astype(np.int64)

    def found(self) -> tuple[list[str], Frequencies]:
        """The texts, the most frequent first, and their frequencies."""
        length = len(self._columns)
        shares = _transformed(self._sums) / (np.maximum(self._reports, 1)[:, None] * self._oracle.keep)
        tables = shares[:length].reshape(length, _BUCKETS, _BYTES)
        several = max(int(self._reports[-1]), 1)
        least = _SURE / (self._oracle.keep * np.sqrt(several))
        found: dict[bytes, float] = {}
        for bucket in range(_BUCKETS):
            while True:
                text = tables[:, bucket].argmax(axis=1)
                hashed = _hash(text[None])
                share = float(shares[-1, self._cell(hashed)[0]])
                if self._bucket(hashed)[0] != bucket or share < least or bytes(text.tolist()) in found:
                    break
                found[bytes(text.tolist())] = share
                tables[np.arange(length), bucket, text] -= share
        found = dict(sorted(found.items(), key=lambda item: -item[1]))
        f = np.array(list(found.values()))
        texts = [text.rstrip(b"\0").decode(errors="ignore") for text in found]
        return texts, Frequencies(f, np.full(len(f), self._oracle.keep**-2), f, several)

    def learned(self) -> dict[str, Any]:
        """The state, as new arrays."""
        return {"sums": self._sums.copy(), "reports": self._reports.copy()}

    def read(self, state: Mapping[str, Any]) -> None:
        """Take over a state that `learned` returned. Raises `ConfigError` for numbers out of range."""
        sums = finite_array(state, "sums", self._sums.shape)
        reports = finite_array(state, "reports", self._reports.shape)
        if np.any(np.abs(sums).sum(axis=1) > reports):
            raise ConfigError("state: expected sums of at most the number of reports")
        self._sums, self._reports = sums.astype(np.int64), reports.astype(np.int64)

    def merge(self, parts: Sequence[Hitters]) -> None:
        """Start from what others have learned."""
        self._sums = np.sum([part._sums for part in parts], axis=0)  # noqa: SLF001 - the same class
        self._reports = np.sum([part._reports for part in parts], axis=0)  # noqa: SLF001
