"""Local reports about texts of an open domain: the most frequent ones, and how many records have them.

A text is a row of bytes, each of two digits. A fifth of the records report their whole text, the others the first i
digits of it, with i drawn at random: TreeHist (Bassily, Nissim, Stemmer, Thakurta 2017), with digits for bits. A public
hash sorts what is reported into one of 16,384 cells. A report is the cell by a random linear hash of a few bits, which
are replaced by random ones with a probability (local hashing, Wang, Blocki, Li, Jha 2017). A linear hash is that of
some rows of a Hadamard matrix, so one transform reads all cells (Acharya, Sun, Zhang 2019). The frequent texts are
found digit by digit: a prefix is kept if its share is likely, and a whole text is shown if its share is certain.

Proof: docs/proofs/statistics.md.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Self

import numpy as np

from streamdp.data.floats import whole_array
from streamdp.errors import ConfigError
from streamdp.learners.cells import Index, shown
from streamdp.learners.local_counts import Oracle, ReportPart
from streamdp.privacy.entropy import mixed, uniform
from streamdp.reading.estimates import Frequencies

_DIGITS = 16
_CELLS = 1 << 14
_WHOLE = 0.2  # of the records report whole texts
_MOST_BITS = 5
"""Of a report: more are better above epsilon=4, but a report is added to 2^bits - 1 sums."""
_LIKELY = 1.7
"""A prefix is kept if its share is more than this many deviations above 0: by chance, 0.7 of its 16 continuations."""
_MOST_PREFIXES = 1024
_SURE = 4.5
"""A text is shown if its share is more than this many deviations above 0: by chance with a probability of 3e-6."""
_START = np.uint64(0xCBF29CE484222325)


def _extended(hashed: np.ndarray, symbols: np.ndarray) -> np.ndarray:
    """The public hash FNV-1a of prefixes with one more digit."""
    return (hashed ^ symbols.astype(np.uint64)) * np.uint64(0x100000001B3)


def _cell(hashed: np.ndarray) -> np.ndarray:
    """The cells of hashed prefixes."""
    return (mixed(hashed) >> np.uint64(50)).astype(np.int64)


def _parity(numbers: np.ndarray) -> np.ndarray:
    """Whether an odd number of the 14 lowest bits are 1: the sign of the Hadamard matrix."""
    for shift in (8, 4, 2, 1):
        numbers = numbers ^ (numbers >> shift)
    return numbers & 1


def _transformed(sums: np.ndarray) -> np.ndarray:
    """The sums (k, n) times the Hadamard matrix (n, n); n is a power of 4, whose root is exact."""
    from streamdp.aggregation.user_kernels import transform

    out = sums.astype(float)
    transform(out)
    return out * math.sqrt(out.shape[1])


class Hitters(ReportPart):
    """The most frequent texts, by the `columns` of their bytes b, which are 2 b / 255 - 1; a report spends epsilon."""

    words, groups = 5, Index()

    def __init__(self, columns: Sequence[int], epsilon: float) -> None:
        self.columns = list(columns)
        self._digits = 2 * len(self.columns)
        oracles = [Oracle(1 << bits, epsilon, unary=False) for bits in range(1, _MOST_BITS + 1)]
        self._oracle = max(oracles, key=lambda oracle: (oracle.cells - 1) * oracle.keep**2)
        self._sums = np.zeros((self._digits + 1, _CELLS), dtype=np.int64)  # by the length of a prefix, then of texts
        self._reports = np.zeros(self._digits + 1, dtype=np.int64)

    @property
    def n(self) -> int:
        return int(self._reports.sum())

    def learn(self, X: np.ndarray, words: np.ndarray) -> None:
        self._add(*self._answers(X, words))

    def answer(self, X: np.ndarray, words: np.ndarray) -> list[int]:
        """See `ReportPart.answer`: the length, the hash, and its value."""
        at, rows, reported = self._answers(X, words)
        return [int(at[0]), *rows[0].tolist(), int(reported[0])]

    def possible(self, answer: Sequence[int]) -> bool:
        """See `ReportPart.possible`: whether there are such a length, hash and value."""
        limits = [self._digits + 1, *[_CELLS] * self._bits, self._oracle.cells]
        return len(answer) == len(limits) and all(0 <= n < limit for n, limit in zip(answer, limits, strict=True))

    def absorb(self, answer: Sequence[int], block: int) -> None:
        found = np.array([answer])
        self._add(found[:, 0], found[:, 1:-1].astype(np.uint16), found[:, -1])

    @property
    def _bits(self) -> int:
        """Of a report."""
        return self._oracle.cells.bit_length() - 1

    def _answers(self, X: np.ndarray, words: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """The lengths (n,), hashes (n, bits) and values (n,) that rows report."""
        n, digits = len(X), self._digits
        at = np.minimum((uniform(words[:, 0]) * (digits / (1 - _WHOLE))).astype(np.int64), digits)
        texts = np.rint((X[:, self.columns].T + 1) * 127.5).astype(np.uint8)
        symbols = np.zeros((digits + 1, n), dtype=np.uint8)  # a whole text ends with another digit
        symbols[:-1:2], symbols[1::2] = texts >> 4, texts & 15
        hashed = np.full(n, _START)
        for i, symbol in enumerate(symbols):
            hashed = np.where(i <= at, _extended(hashed, symbol), hashed)
        cells = _cell(hashed)
        rows = np.ascontiguousarray(words[:, 1:3]).view(np.uint16) >> 2  # 14 random bits each
        hash_of = _parity(rows[:, : self._bits] & cells[:, None]) @ (1 << np.arange(self._bits))
        return at, rows[:, : self._bits], self._oracle.randomised(hash_of, np.ascontiguousarray(words[:, 3:5]))

    def _add(self, at: np.ndarray, rows: np.ndarray, reported: np.ndarray) -> None:
        n, sets = len(at), np.arange(self._oracle.cells)
        lines = np.zeros((n, len(sets)), dtype=np.uint16)
        for k in range(self._bits):  # each set of bits is one row of the matrix, and one sign
            lines[:, 1 << k : 2 << k] = lines[:, : 1 << k] ^ rows[:, k : k + 1]
        odd = _parity(sets)[reported[:, None] & sets]
        # The number comes first: an interruption may lose reports, and a sum never has more than are counted.
        self._reports = self._reports + np.bincount(at, minlength=self._digits + 1)
        places = (at[:, None] * _CELLS + lines[:, 1:]).ravel()
        np.add.at(self._sums.reshape(-1), places, 1 - 2 * odd[:, 1:].ravel())  # in place: a copy costs more

    def found(self) -> tuple[list[str], Frequencies]:
        """The texts, the most frequent first, and their frequencies."""
        keep, more = self._oracle.keep, self._oracle.cells - 1
        reports = np.maximum(self._reports, 1)
        shares = _transformed(self._sums) / (reports[:, None] * (keep * more))
        deviations = 1 / (keep * np.sqrt(more * reports))
        texts, hashed, least = np.zeros((1, 0), dtype=np.uint8), np.array([_START]), np.ones(1)
        for i in range(self._digits):
            longer = _extended(hashed[:, None], np.arange(_DIGITS)).ravel()
            share = shares[i, _cell(longer)]
            # A text is at most as frequent as each of its prefixes.
            least = np.minimum(np.repeat(least, _DIGITS), share)
            kept = np.flatnonzero(share > _LIKELY * deviations[i])
            kept = kept[np.argsort(-least[kept])[:_MOST_PREFIXES]]
            texts = np.column_stack([texts[kept // _DIGITS], (kept % _DIGITS).astype(np.uint8)])
            hashed, least = longer[kept], least[kept]
        cells = _cell(_extended(hashed, np.zeros(1)))
        best = np.unique(cells, return_index=True)[1]  # of the texts in a cell, the one with the likeliest prefixes
        f = shares[-1, cells[best]]
        order = np.argsort(-f)[: np.count_nonzero(f > _SURE * deviations[-1])]
        f, texts = f[order], texts[best[order]]
        rows = texts[:, ::2] << 4 | texts[:, 1::2]
        d = (1 + keep * (more - 1) * f) / (keep**2 * more)
        return [shown(row) for row in rows], Frequencies(f, d, f, int(reports[-1]))

    def learned(self) -> dict[str, object]:
        return {"texts": self._sums.copy(), "reports": self._reports.copy()}

    def read(self, state: Mapping[str, object]) -> None:
        sums = whole_array(state, "texts", self._sums.shape, -1e15)
        reports = whole_array(state, "reports", self._reports.shape)
        if np.any(np.abs(sums).sum(axis=1) > reports * (self._oracle.cells - 1)):
            raise ConfigError("state: expected sums of at most what so many reports add")
        self._sums, self._reports = sums, reports

    def merge(self, parts: Sequence[Self]) -> None:
        self._sums = np.sum([part._sums for part in parts], axis=0)  # noqa: SLF001 - the same class
        self._reports = np.sum([part._reports for part in parts], axis=0)  # noqa: SLF001
