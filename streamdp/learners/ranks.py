"""Quantiles of the numbers of a window, and limits of each, by the exponential mechanism.

A quantile is the middle of one of many bins, drawn with a weight that falls with its distance from the wanted rank,
counted in records. Weights are whole numbers, so the draw is exact. Limits at 95 % are drawn likewise, at ranks that
are as far from that of the quantile as its rank deviates by sampling and by their own draw.

Proof: docs/proofs/statistics.md.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise

import numpy as np

from streamdp.learners.cells import Block, Index, cells_around
from streamdp.privacy.entropy import FreshRng
from streamdp.privacy.mechanisms.additive import grid_laplace
from streamdp.reading.estimates import KNOWN

BINS = 1 << 16
COUNTED, VALUE = 1 / 8, 1 / 2
"""The share of epsilon that the sizes of groups spend, and of a quantile's part that of its value; the rest: limits."""
REACH = 1.959963984540054
_FIRST, _MOST, _FACTOR = 1 << 44, 1 << 20, 53  # the largest weight, the most of them, digits of their factor
_RANK, _CELLS = 1 << 30, 1 << 20  # units of a rank, and of the noise of a size


@lru_cache(maxsize=16)
def weights(steepness: float) -> np.ndarray:
    """Whole numbers w (k,) that fall, w_0 = 2^44 and w_i <= e^steepness w_(i+1); beyond them the last one counts."""
    factor = math.ceil(math.exp(-steepness) * 2.0**_FACTOR) + 4  # more than the error of exp
    found = [_FIRST]
    while len(found) < _MOST and (lower := -(-found[-1] * factor >> _FACTOR)) < found[-1]:
        found.append(lower)
    return np.array(found, dtype=np.int64)


def distances(counts: np.ndarray, q: float, shift: float, unit: float) -> np.ndarray:
    """How far each bin is from the rank q n + shift of n records, in whole units (bins,), rounded down.

    `counts`: (bins,). `shift`: at most 2^30 in size. `unit`: by how much one record changes a distance, in (0, 1]. Of
    q, shift and unit 30 binary digits count.
    """
    up_to = np.cumsum(counts) * _RANK
    rank = round(q * _RANK) * int(counts.sum()) + round(shift * _RANK)
    away = np.maximum(up_to - counts * _RANK - rank, rank - up_to)
    return np.maximum(away, 0) // math.ceil(unit * _RANK)


def drawn(counts: np.ndarray, q: float, shift: float, unit: float, steepness: float, rng: FreshRng) -> int:
    """A bin, by words of `rng`: its weight falls by the factor e^steepness with each unit of its distance.

    The counts, q, shift and unit are those of `distances`.
    """
    table = weights(steepness)
    cumulative = np.cumsum(table[np.minimum(distances(counts, q, shift, unit), len(table) - 1)])
    total = int(cumulative[-1])
    while True:
        words = rng.draw(1)
        at = int(words[0]) >> (64 - total.bit_length())
        words[:] = 0
        if at < total:
            return int(np.searchsorted(cumulative, at, side="right"))


@dataclass(frozen=True)
class Ranks(Block):
    """Quantiles of a column by group.

    A window releases four numbers for each group and level: how many records the group has, times the quantile, and
    times the squared deviations below and above it. All but the first are weighted by records, so windows add up.
    """

    groups: Index
    column: int
    levels: Sequence[float]
    zero: float = 0.0
    """The value of the column at which the number is 0."""
    row = np.dtype(np.int64)

    @property
    def size(self) -> int:
        return 4 * self.groups.count * len(self.levels)

    def kept(self, X: np.ndarray, epsilon: float) -> np.ndarray:
        """See `Block.kept`: the bin of each row, group by group."""
        bins = np.searchsorted(self.edges[1:-1], X[:, self.column], side="right")
        return self.groups.of(X) * BINS + bins

    @property
    def edges(self) -> np.ndarray:
        """Those of the bins (BINS + 1,)."""
        return cells_around(self.zero, BINS)

    def released(self, rows: np.ndarray, epsilon: float, delta: float, rng: FreshRng) -> tuple[np.ndarray, None]:
        several = self.groups.count > 1
        each = epsilon * (1 - COUNTED * several) / len(self.levels)
        found = np.zeros((self.groups.count, len(self.levels), 4))
        rows.sort()
        ends = np.searchsorted(rows, np.arange(self.groups.count + 1) * BINS)
        for group, (begin, end) in enumerate(pairwise(ends.tolist())):
            counts, n = np.bincount(rows[begin:end] % BINS, minlength=BINS), float(end - begin)
            if several:
                scale = 2 / (epsilon * COUNTED)
                n += float(grid_laplace(rng, scale * _CELLS, 1)[0]) / _CELLS
                if n < KNOWN * math.sqrt(2) * scale:
                    counts[:] = 0
                    continue
            for level, q in enumerate(self.levels):
                found[group, level] = self._quantile(counts, n, q, each, rng)
            counts[:] = 0
        return found.ravel(), None

    def _quantile(self, counts: np.ndarray, n: float, q: float, epsilon: float, rng: FreshRng) -> np.ndarray:
        several, middles = self.groups.count > 1, (self.edges[1:] + self.edges[:-1]) / 2
        unit = max(q, 1 - q) if several else 1.0

        def at(share: float, side: int) -> float:
            steepness = epsilon * share / (4 if several else 2)
            reach = REACH * math.sqrt(n * q * (1 - q) + 2 * (unit / steepness) ** 2)
            chosen = drawn(counts, q, side * min(reach, 2.0**30), unit, steepness, rng)
            return float(middles[chosen])

        value, low, high = at(VALUE, 0), at((1 - VALUE) / 2, -1), at((1 - VALUE) / 2, 1)
        deviations = max(value - low, 0.0) / REACH, max(high - value, 0.0) / REACH
        return n * np.array([1.0, value, n * deviations[0] ** 2, n * deviations[1] ** 2])

    def quantiles(
        self, sums: np.ndarray, noise: float, levels: Sequence[float], place: tuple[float, float], z: float
    ) -> np.ndarray:
        """See `Cells.quantiles`; the noise is in the limits that were drawn."""
        n, value, below, above = sums.reshape(-1, 4).T
        with np.errstate(divide="ignore", invalid="ignore"):
            n = np.where(n > 0, n, np.nan)
            value = value / n
            bins = np.clip(np.searchsorted(self.edges, value, side="right"), 1, BINS)
            half = (self.edges[bins] - self.edges[bins - 1]) / 2  # where in its bin a number is, is not known
            low, high = (side * (z * np.sqrt(part) / n + half) for side, part in ((-1, below), (1, above)))
            found = np.stack([value, np.maximum(value + low, -1), np.minimum(value + high, 1)], axis=1)
        found = (place[0] + place[1] * found).reshape(self.groups.count, -1, 3)
        return np.sort(found, axis=1).reshape(-1, 3)  # so quantiles do not cross
