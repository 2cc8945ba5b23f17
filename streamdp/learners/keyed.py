"""Sums by texts that nobody has declared: those of a window's texts that enough records have.

A window's sums of each text get Laplace noise, and only texts whose noisy number of records is above a threshold are
released (Korolova, Kenthapadi, Mishra, Ntoulas 2009). Delta is the probability that the threshold lets a text of one
record pass. Proof: docs/proofs/statistics.md.
"""

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import scipy

from streamdp.data.records import NO_BYTE
from streamdp.learners.cells import Block, Index, Texts, Thirds, levels, sums_of
from streamdp.privacy.entropy import FreshRng
from streamdp.privacy.mechanisms.additive import grid_laplace
from streamdp.privacy.mechanisms.base import ARITHMETIC


@dataclass(frozen=True)
class Keyed(Block):
    """By text, how many records have it, or of a number in [-1, 1] the sums of `Thirds`, which add up to that.

    `places`: the columns of the text's bytes b, which are 2 b / 255 - 1. `column`: that of the number; None: none.
    A record adds numbers that are at least 0 and add up to 1.
    """

    places: tuple[int, ...]
    column: int | None = None
    size = 0

    @property
    def parts(self) -> int:
        """How many sums a text has."""
        return 1 if self.column is None else 3

    @property
    def no_texts(self) -> Texts:
        return np.zeros((0, len(self.places)), np.uint8), np.zeros((0, self.parts + 1))

    @property
    def row(self) -> np.dtype[Any]:
        """See `Block.row`: the bytes of the text, and what the row adds, in cells."""
        return np.dtype([("text", np.uint8, (len(self.places),)), ("adds", np.int64, (self.parts,))])

    def kept(self, X: np.ndarray, epsilon: float) -> np.ndarray:
        rows = np.zeros(len(X), self.row)
        rows["text"] = np.rint((X[:, self.places] + 1) * 127.5)
        adds = 1.0 if self.column is None else sums_of([(Thirds(Index(), self.column), 1.0)], 1.0).vectors(X)
        rows["adds"] = np.rint(adds * self.noise(epsilon)[0])
        return rows

    def noise(self, epsilon: float) -> tuple[float, float]:
        """How many cells of the grid are 1, and the scale of the noise in cells."""
        one = 2.0 ** (20 + math.ceil(math.log2(epsilon)))
        return one, (
            2 * one * ARITHMETIC + 6
        ) / epsilon  # another record: at most 2, and a cell for each rounded number

    def least(self, epsilon: float, delta: float) -> float:
        """The noisy number of records, in cells, above which a text is released.

        A record has at most one cell more for each number, and discrete noise passes a bound of the continuous one,
        which is a cell higher, at most as often.
        """
        one, scale = self.noise(epsilon)
        delta = min(delta, -math.expm1(-epsilon / 2))  # so that 1 / (1 - delta) is at most e^(epsilon / 2)
        return one + 2 * self.parts + _exceeded(self.parts, delta) * scale

    def variance(self, epsilon: float) -> float:
        one, scale = self.noise(epsilon)
        return 2 * (scale / one) ** 2

    def released(self, rows: np.ndarray, epsilon: float, delta: float, rng: FreshRng) -> tuple[np.ndarray, Texts]:
        """See `Block.released`. The order of texts is that of their bytes."""
        one, scale = self.noise(epsilon)
        texts = np.ascontiguousarray(rows["text"])
        known, which = np.unique(texts, axis=0, return_inverse=True)
        sums = np.zeros((len(known), self.parts), dtype=np.int64)
        np.add.at(sums, which.ravel(), rows["adds"])
        noise = grid_laplace(rng, scale, sums.size).reshape(sums.shape)
        sums += noise
        passed = sums.sum(axis=1) > self.least(epsilon, delta)
        found = known[passed], np.column_stack([sums[passed] / one, np.ones(np.count_nonzero(passed))])
        for array in (texts, known, which, sums, noise):
            array[:] = 0
        return np.zeros(0), found

    def moments(self, sums: np.ndarray, noise: float, n: int) -> tuple[np.ndarray, tuple[float, float]]:
        """See `Values.moments`: by texts (k,), of `sums` (k, 4) as `Sums.released` has them."""
        each = Thirds(levels(0, len(sums)), self.column or 0)
        return each.moments(sums[:, :-1].T.ravel(), noise * max(sums[:, -1], default=1.0), n)


@lru_cache
def _exceeded(m: int, delta: float) -> float:
    """A number that the sum of `m` Laplace numbers of scale 1 exceeds with a probability of at most `delta`.

    One does with exp(-t) / 2, and the sum with at most exp(-a t) / (1 - a^2)^m for each a in (0, 1) (Chernoff).
    """
    if m == 1:
        return max(0.0, -math.log(2 * delta))

    def bound(a: float) -> float:
        return (-math.log(delta) - m * math.log1p(-(a**2))) / a

    return bound(float(scipy.optimize.minimize_scalar(bound, bounds=(1e-3, 1 - 1e-9), method="bounded").x)) * (1 + 1e-9)


def shown(text: np.ndarray) -> str:
    """A text of its bytes (length,)."""
    return text.tobytes().rstrip(bytes([NO_BYTE])).decode(errors="ignore")
