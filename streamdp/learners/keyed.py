"""Sums by texts that nobody has declared: those of a window's texts that enough records have.

A window's sums of each text get Laplace noise, and only texts whose noisy number of records is above a threshold are
released (Korolova, Kenthapadi, Mishra, Ntoulas 2009). Delta is the probability that the threshold lets a text of one
record pass. Proof: docs/proofs/statistics.md.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import scipy

from streamdp.data.records import NO_BYTE
from streamdp.learners.cells import All, Thirds, sums_of
from streamdp.privacy.entropy import FreshRng
from streamdp.privacy.mechanisms.additive import grid_laplace
from streamdp.privacy.mechanisms.base import ARITHMETIC

Texts = dict[bytes, np.ndarray]
"""By the bytes of a text its sums, and in how many windows it was released, (parts + 1,)."""


@dataclass(frozen=True)
class Keyed:
    """By text, how many records have it, or of a number in [-1, 1] the sums of `Thirds`, which add up to that.

    `places`: the columns of the text's bytes b, which are 2 b / 255 - 1. `column`: that of the number; None: none.
    """

    places: tuple[int, ...]
    column: int | None = None
    size = 0
    """How many numbers are always released."""

    @property
    def parts(self) -> int:
        """How many sums a text has. A record adds numbers that are at least 0 and add up to 1."""
        return 1 if self.column is None else 3

    def rows(self, X: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The bytes (n, length) of the texts of rows X (n, p), and what each row adds (n, parts)."""
        texts = np.rint((X[:, self.places] + 1) * 127.5).astype(np.uint8)
        adds = (
            np.ones((len(X), 1))
            if self.column is None
            else sums_of([(Thirds(All(), self.column), 1.0)], 1.0).vectors(X)
        )
        return texts, adds


class KeyedSum:
    """The sums of a window by the texts of a `block`, which spend an `epsilon` and a `delta`."""

    _texts: np.ndarray
    _adds: np.ndarray
    """What each row adds, in cells. Both arrays are longer than there are rows."""
    _n: int

    def __init__(self, block: Keyed, epsilon: float, delta: float) -> None:
        self.block = block
        self._one = 2.0 ** (20 + math.ceil(math.log2(epsilon)))  # how many cells of the grid are 1
        moved = 2 * self._one * ARITHMETIC + 6  # by another record: at most 2, and a cell for each rounded number
        self._scale = moved / epsilon
        self.variance = 2 * (self._scale / self._one) ** 2
        # A record has at most one cell more for each number, and discrete noise passes a bound of the continuous one,
        # which is a cell higher, at most as often.
        delta = min(delta, -math.expm1(-epsilon / 2))  # so that 1 / (1 - delta) is at most e^(epsilon / 2)
        self._least = self._one + 2 * block.parts + _exceeded(block.parts, delta) * self._scale
        vars(self).update(self._nothing())

    def add(self, X: np.ndarray) -> None:
        """Take rows X (n, p)."""
        rows = self._n + len(X)
        if rows > len(self._texts):
            before = self._texts, self._adds
            self._texts, self._adds = (np.zeros((2 * rows, array.shape[1]), array.dtype) for array in before)
            for array, longer in zip(before, (self._texts, self._adds), strict=True):
                longer[: self._n] = array[: self._n]
                array[:] = 0
        texts, adds = self.block.rows(X)
        self._texts[self._n : rows], self._adds[self._n : rows] = texts, np.rint(adds * self._one)
        self._n = rows

    def close(self, rng: FreshRng) -> Texts:
        """What is released of the rows, by words of `rng`. The order of texts is that of their bytes."""
        known, which = np.unique(self._texts[: self._n], axis=0, return_inverse=True)
        sums = np.zeros((len(known), self.block.parts), dtype=np.int64)
        np.add.at(sums, which.ravel(), self._adds[: self._n])
        noise = grid_laplace(rng, self._scale, sums.size).reshape(sums.shape)
        sums += noise
        passed = np.flatnonzero(sums.sum(axis=1) > self._least)
        found = {known[i].tobytes(): np.append(sums[i] / self._one, 1.0) for i in passed}
        for array in (known, which, sums, noise):
            array[:] = 0
        return found

    def wipe(self) -> None:
        """Forget the rows."""
        self._texts[:], self._adds[:], self._n = 0, 0, 0

    def _nothing(self) -> dict[str, object]:
        texts, adds = ((0, n) for n in (len(self.block.places), self.block.parts))
        return {"_texts": np.zeros(texts, np.uint8), "_adds": np.zeros(adds, np.int64), "_n": 0}

    def __getstate__(self) -> dict[str, object]:
        return self.__dict__ | self._nothing()


def _exceeded(m: int, delta: float) -> float:
    """A number that the sum of `m` Laplace numbers of scale 1 exceeds with a probability of at most `delta`.

    One does with exp(-t) / 2, and the sum with at most exp(-a t) / (1 - a^2)^m for each a in (0, 1) (Chernoff).
    """
    if m == 1:
        return max(0.0, -math.log(2 * delta))

    def bound(a: float) -> float:
        return (-math.log(delta) - m * math.log1p(-(a**2))) / a

    return bound(float(scipy.optimize.minimize_scalar(bound, bounds=(1e-3, 1 - 1e-9), method="bounded").x)) * (1 + 1e-9)


def added(parts: list[Texts]) -> Texts:
    """The sums of several windows by text."""
    found: Texts = {}
    for part in parts:
        for text, sums in part.items():
            found[text] = found[text] + sums if text in found else sums
    return dict(sorted(found.items()))


def shown(text: bytes) -> str:
    """A text of its bytes."""
    return text.rstrip(bytes([NO_BYTE])).decode(errors="ignore")
