"""Local reports about a quantile: the group of a record, and the side of a threshold on which its value is.

All records of a block have the same thresholds, one for each group; a block has at least a sixteenth of the records
before it. From a block's reports follows z = p (F(t) - q) for each group, unbiased: F is the distribution of the group
and p its share. Thresholds first halve an interval, until the side is not certain, or the interval is so narrow that
many records must have one value in it; then they alternate about the root of the line through the latest blocks, at
twice its deviation, where the line is F up to its curvature. The variance of the root is about that of the best fixed
threshold, the quantile itself. An interval is that of a root of a regression (Fieller 1954).

Thresholds follow from reports that were made before, so they spend nothing.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Self

import numpy as np

from streamdp.aggregation.block_loops import Reporter
from streamdp.data.floats import finite_array, whole_array
from streamdp.data.records import MOST_RECORDS
from streamdp.errors import ConfigError
from streamdp.learners.cells import Index
from streamdp.learners.local_counts import OfCells, Oracle
from streamdp.reading.estimates import KNOWN, limits_of

_FIRST, _PART = 32, 16
_SURE = 3.5  # so many deviations decide on a side: wrong once in 4,000
_APART = 2.0  # deviations of the root between it and thresholds
_NARROWEST = 2.0**-13  # an interval of a search
_FLATTEST = 1e-60  # a slope whose square is above 0
_SEARCHES, _LOW, _HIGH, _SLOPE, _SUM, _RECORDS = range(6)


class Roots(OfCells):
    """The q-quantile of a column of values in [-1, 1], for each group; a report spends epsilon."""

    q: float

    def __init__(self, groups: Index, column: int, q: float, epsilon: float) -> None:
        self.groups, self.column, self.q = groups, column, q
        k = groups.count
        self._oracle = Oracle(2 * k, epsilon)
        self.words = self._oracle.words
        self._contrast = np.array([1 - q, -q])
        self._blocks = np.zeros((0, 1 + 2 * k))  # of each ended block: records, thresholds, z
        self._open = np.zeros(2 * k + 1, dtype=np.int64)  # counts and reports of the open block
        self._search = np.zeros((k, 6))
        self._search[:, : _SLOPE + 1] = 1.0, -1.0, 1.0, 1.0
        self._totals = np.zeros(2 * k + 1)  # counts and reports of all ended blocks
        self.thresholds = np.zeros(k)
        """Those of the open block (k,), in units of the column; a device may have them from anyone."""

    @property
    def n(self) -> int:
        return int(self._totals[-1] + self._open[-1])

    @property
    def _full(self) -> int:
        return max(_FIRST, int(self._totals[-1]) // _PART)

    def reporter(self, counts: np.ndarray | None = None) -> Reporter:
        """See `ReportPart.reporter`; its own counts are the open block, without its last report, until a block ends."""
        places, t, counts = self.groups.places, self.thresholds, self._open if counts is None else counts
        return self._oracle.reporter(places, counts, self.column, threshold=t, full=self._full)

    @property
    def asked(self) -> int:
        """See `ReportPart.asked`: the number of the open block."""
        return len(self._blocks)

    def absorb(self, answer: Sequence[int], block: int) -> None:
        """See `ReportPart.absorb`. A report of a block that has ended is added there.

        One of a block that never began is counted, and tells nothing.
        """
        counts = np.zeros_like(self._open)
        counts[[*answer, -1]] = 1
        if block == self.asked:
            self._open += counts
        elif block < self.asked:
            blocks, f = self._blocks.copy(), self._oracle.frequencies(counts[:-1], 1).f.reshape(-1, 2)
            row, z = blocks[block], 1 + len(self.thresholds)
            row[z:] += (f @ self._contrast - row[z:]) / (row[0] + 1)
            row[0] += 1
            self._totals, self._blocks = self._totals + counts, blocks

    def close(self) -> None:
        """See `ReportPart.close`: ends the open block."""
        if self._open[-1] >= self._full:
            self._end()

    def learn(self, X: np.ndarray, words: np.ndarray) -> None:
        while len(X):
            taken = min(len(X), self._full - int(self._open[-1]))
            self.reporter().add(X[:taken], words[:taken])
            X, words = X[taken:], words[taken:]
            if self._open[-1] >= self._full:
                self._end()

    def _end(self) -> None:
        n = self._open[-1]
        f = self._oracle.frequencies(self._open[:-1], int(n)).f.reshape(-1, 2)
        blocks = np.vstack([self._blocks, np.concatenate([[n], self.thresholds, f @ self._contrast])])
        totals, search = self._totals + self._open, self._search.copy()
        self._totals, self._blocks, self._open = totals, blocks, np.zeros_like(self._open)
        for g in range(len(search)):
            self._halve(g, search[g])
        self._search = search
        self.thresholds = self._thresholds()

    def _shares(self) -> np.ndarray:
        """The estimated shares (k,) of the groups."""
        if not self._totals[-1]:
            return np.full(self.groups.count, 1 / self.groups.count)
        f: np.ndarray = self._oracle.frequencies(self._totals[:-1], int(self._totals[-1])).f
        return np.asarray(np.clip(f.reshape(-1, 2).sum(axis=1), 1e-9, 1.0))

    def _variance(self, g: int) -> float:
        """The variance of z of one report, where F(t) = q."""
        contrast, f = np.zeros(self._oracle.cells), np.repeat(self._shares() / 2, 2)
        share = self._shares()[g]
        contrast[2 * g : 2 * g + 2], f[2 * g : 2 * g + 2] = self._contrast, (share * self.q, share * (1 - self.q))
        return max(self._oracle.expected(f).variance(contrast), 1e-300)

    def _halve(self, g: int, search: np.ndarray) -> None:
        """Take a step of the search for an interval that holds the quantile."""
        k = self.groups.count
        n, t, z = self._blocks[-1, 0], self._blocks[-1, 1 + g], self._blocks[-1, 1 + k + g]
        if not search[_SEARCHES]:
            return
        search[_SUM] += n * z
        search[_RECORDS] += n
        deviation = _SURE * math.sqrt(self._variance(g) / search[_RECORDS])
        if abs(search[_SUM] / search[_RECORDS]) > deviation:
            search[_HIGH if search[_SUM] > 0 else _LOW] = t
            search[[_SUM, _RECORDS]] = 0.0
        elif deviation < self._shares()[g] * min(self.q, 1 - self.q) / 2:
            search[_SEARCHES] = 0.0
        width = search[_HIGH] - search[_LOW]
        search[_SEARCHES] *= width > _NARROWEST
        search[_SLOPE] = 0.5 * self._shares()[g] / width

    def _fitted(self, g: int) -> tuple[float, float, float, float, float]:
        """The line through the latest blocks: root, slope, records, mean threshold, sum of squares of thresholds."""
        k, search = self.groups.count, self._search[g]
        n, t, z = self._blocks[:, 0], self._blocks[:, 1 + g], self._blocks[:, 1 + k + g]
        latest = np.cumsum(n[::-1])[::-1] <= (1 - 1 / _PART) * n.sum()
        latest[-1] = True
        near = latest & (t >= search[_LOW]) & (t <= search[_HIGH])
        n, t, z = (values[near if near.any() else latest] for values in (n, t, z))
        total = float(n.sum())
        centre, height = float(n @ t) / total, float(n @ z) / total
        squares, both = float(n @ (t - centre) ** 2), float(n @ ((t - centre) * (z - height)))
        prior, before = 2 * self._variance(g) / search[_SLOPE] ** 2, search[_SLOPE]
        slope = float(np.clip((both + prior * before) / (squares + prior), before / 2, before * 2))
        return centre - height / slope, slope, total, centre, squares

    def _thresholds(self) -> np.ndarray:
        """The thresholds (k,) of the next block."""
        t = np.zeros(self.groups.count)
        side = 1.0 if len(self._blocks) % 2 else -1.0
        for g, search in enumerate(self._search):
            low, high = search[[_LOW, _HIGH]]
            t[g] = (low + high) / 2
            if search[_SEARCHES]:
                continue
            root, slope, total, _, _ = self._fitted(g)
            deviation = min(math.sqrt(self._variance(g) / total) / slope, (high - low) / 4)
            root, width = min(max(root, low), high), high - low
            if root - 3 * deviation < low:
                search[_LOW] = max(-1.0, low - width / 2)
            if root + 3 * deviation > high:
                search[_HIGH] = min(1.0, high + width / 2)
            search[_SLOPE] = slope
            t[g] = min(max(root + side * _APART * deviation, -1.0), 1.0)
        return t

    def quantiles(self) -> np.ndarray:
        """The quantiles (k,) in units of the column; NaN while an interval is searched, and for unknown groups."""
        found = np.full(self.groups.count, np.nan)
        for g, search in enumerate(self._search):
            if not search[_SEARCHES] and self._known(g):
                found[g] = min(max(self._fitted(g)[0], search[_LOW]), search[_HIGH])
        return found

    def _known(self, g: int) -> bool:
        n = max(self._totals[-1], 1.0)
        whole = np.zeros(self._oracle.cells)
        whole[2 * g : 2 * g + 2] = 1.0
        f = self._oracle.frequencies(self._totals[:-1], int(n))
        return self.groups.count == 1 or float(whole @ f.f) > KNOWN * math.sqrt(f.variance(whole))

    def limits(self, z: float) -> np.ndarray:
        """The confidence limits (k, 2) at z deviations; NaN where they are not known yet."""
        found, roots = np.full((self.groups.count, 2), np.nan), np.full(self.groups.count, np.nan)
        for g, search in enumerate(self._search):
            if search[_SEARCHES] or not self._known(g):
                continue
            root, slope, total, centre, squares = self._fitted(g)
            roots[g], variance = root, self._variance(g)
            unsure = z**2 * variance / (slope**2 * squares) if squares else math.inf
            if unsure < 1:
                reach = z * math.sqrt(variance * ((1 - unsure) / total + (root - centre) ** 2 / squares)) / slope
                middle = centre + (root - centre) / (1 - unsure)
                found[g] = middle - reach / (1 - unsure), middle + reach / (1 - unsure)
        return limits_of(found, roots, self.quantiles(), (-1.0, 1.0))

    def learned(self) -> dict[str, object]:
        values = {"blocks": self._blocks, "open": self._open, "search": self._search, "totals": self._totals}
        return {name: value.copy() for name, value in (values | {"t": self.thresholds}).items()}

    def read(self, state: Mapping[str, object]) -> None:
        blocks = np.asarray(state["blocks"], dtype=float)
        self._blocks = finite_array(state, "blocks", (len(blocks), self._blocks.shape[1]))
        self._open, totals = (whole_array(state, name, self._open.shape) for name in ("open", "totals"))
        self._totals = totals.astype(float)
        self._search = finite_array(state, "search", self._search.shape)
        self.thresholds = finite_array(state, "t", self.thresholds.shape)
        if (
            np.any((self._blocks[:, 0] < 1) | (self._blocks[:, 0] > MOST_RECORDS))
            or np.any(np.abs(self.thresholds) > 1)
            or np.any((self._search[:, _SLOPE] < _FLATTEST) | (self._search[:, _RECORDS] < 0))
            or np.any(self._search[:, _LOW] >= self._search[:, _HIGH])
            or not (len(blocks) or np.all(self._search[:, _SEARCHES]))
        ):
            raise ConfigError("state: expected blocks of records, thresholds in [-1, 1], and intervals that they found")

    def merge(self, parts: Sequence[Self]) -> None:
        """See `ReportPart.merge`: all their ended blocks, and the search of the one with most records."""
        largest = max(parts, key=lambda part: part.n)
        blocks = np.vstack([part._blocks for part in parts])  # noqa: SLF001 - the same class
        self._blocks = blocks[np.argsort(blocks[:, 0], kind="stable")]
        self._totals = np.sum([part._totals for part in parts], axis=0)  # noqa: SLF001
        self._search, self.thresholds = largest._search.copy(), largest.thresholds.copy()  # noqa: SLF001
