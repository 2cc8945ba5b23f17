"""Statistics and their limits, read from released sums or reports: post-processing, which spends nothing.

Means, shares and quantiles describe the distribution that records come from: their limits cover the noise and the
sampling of records. Counts and sums describe the records themselves: their limits cover the noise. All limits are those
of a normal law; docs/proofs/statistics.md has the variances.
"""

import math
from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

KNOWN = 4.5
"""A group is known if its share is more than this many deviations above 0: of empty ones 3 in a million are."""

Ends = tuple[float, float] | tuple[np.ndarray, np.ndarray] | np.ndarray
"""Two numbers, or two arrays of them."""


def in_order(found: np.ndarray) -> np.ndarray:
    """Quantiles and their limits (groups, levels, 3), each sorted by level in place, so that they do not cross.

    A level that is not known, NaN, stays that.
    """
    for group, j in np.ndindex(len(found), 3):
        known = ~np.isnan(found[group, :, j])
        found[group, known, j] = np.sort(found[group, known, j])
    return found


def limits_of(
    limits: np.ndarray, answer: np.ndarray, shown: np.ndarray, between: Ends = (-math.inf, math.inf)
) -> np.ndarray:
    """The limits (k, 2) of values (k,) that are `shown` in place of an `answer` (k,), from the limits around this.

    Values are known to lie `between` two numbers, or two arrays (k,) of them. An answer beyond is wrong at least by the
    distance: its limits move with it to the range, and end there. What is shown may differ from the answer, as if it is
    shrunk, and no limits exclude it.
    """
    low, high = np.clip(limits.T + np.clip(answer, *between) - answer, *between)
    return np.column_stack([np.minimum(low, shown), np.maximum(high, shown)])


class Estimates(NamedTuple):
    """Values (k,) and their deviations (k,); NaN where too little is known."""

    values: np.ndarray
    deviations: np.ndarray

    def with_limits(self, z: float) -> np.ndarray:
        """The values, and their limits at z deviations (k, 3)."""
        reach = z * self.deviations
        return np.stack([self.values, self.values - reach, self.values + reach], axis=1)


class Frequencies(NamedTuple):
    """Estimated frequencies f (k,), of which the covariance is (diag(d) - u u^T) / n for n records or reports."""

    f: np.ndarray
    d: np.ndarray
    u: np.ndarray
    n: float

    def variance(self, contrast: np.ndarray) -> float:
        """The variance of the sum of f by a `contrast` (k,)."""
        return max(0.0, float(contrast**2 @ self.d - (contrast @ self.u) ** 2)) / max(self.n, 1)

    def counts(self, records: int, weights: np.ndarray | None = None) -> Estimates:
        """How many of the `records` are in each cell; or by `weights` (m,) the sum in each group of m cells.

        The deviation is that for these records alone, of which n, drawn at random, were asked.
        """
        f, d, u = (values.reshape(-1, 1 if weights is None else len(weights)) for values in (self.f, self.d, self.u))
        w = np.ones(1) if weights is None else weights
        total, sampled = f @ w, np.maximum(f, 0) @ w**2 - (f @ w) ** 2
        noise = (d @ w**2 - (u @ w) ** 2) / max(self.n, 1) - sampled / max(records, 1)
        return Estimates(records * total, records * np.sqrt(np.maximum(noise, 0.0)))

    def shares(self, m: int, known: float = KNOWN) -> Estimates:
        """The share of each cell in its group of m cells; NaN where the group is not `known`, by so many deviations."""
        f, d, u = (values.reshape(-1, m) for values in (self.f, self.d, self.u))
        whole = self._groups(m, known)
        v = f / whole
        spread = (
            d * (1 - v) ** 2 + v**2 * (d.sum(axis=1, keepdims=True) - d) - (u - v * u.sum(axis=1, keepdims=True)) ** 2
        )
        return Estimates(v.ravel(), (np.sqrt(np.maximum(spread, 0.0) / max(self.n, 1)) / whole).ravel())

    def means(self, values: np.ndarray) -> Estimates:
        """The means of the `values` (m,) of cells in each group of m cells; NaN where the group is not known."""
        f, d, u = (numbers.reshape(-1, len(values)) for numbers in (self.f, self.d, self.u))
        whole = self._groups(len(values), KNOWN)
        v = f @ values[:, None] / whole
        around = values - v
        spread = np.sum(around**2 * d, axis=1) - np.sum(around * u, axis=1) ** 2
        return Estimates(v.ravel(), np.sqrt(np.maximum(spread, 0.0) / max(self.n, 1)) / whole.ravel())

    def _groups(self, m: int, least: float) -> np.ndarray:
        """The shares (k / m, 1) of groups of m cells; NaN where one is not known."""
        f, d, u = (values.reshape(-1, m).sum(axis=1, keepdims=True) for values in (self.f, self.d, self.u))
        known = f > least * np.sqrt(np.maximum(d - u**2, 0.0) / max(self.n, 1))
        return np.where(known & (self.n > 0), f, np.nan)


def frequencies(counts: np.ndarray, noise: float, n: int) -> Frequencies:
    """Frequencies from noisy counts (k,) of n records, with the variance `noise` of each count."""
    f = counts / max(n, 1)
    return Frequencies(f, np.maximum(f, 0) + noise / max(n, 1), f, n)


def means(rows: np.ndarray, noises: tuple[float, float], least: float = KNOWN) -> Estimates:
    """The means of values by group; rows (3, groups) are its records, and the sums of their values and squares.

    `noises`: the variances of the first two by noise, which are not correlated; 0: the number is known. A group is
    known by the `least` number of deviations.
    """
    count, total, square = rows
    of_count, of_total = noises
    known = count > least * math.sqrt(of_count)
    with np.errstate(divide="ignore", invalid="ignore"):
        mean = np.where(known, total / count, np.nan)
        around = np.maximum(square - 2 * mean * total + mean**2 * count, 0.0)
        deviation = np.sqrt(around + of_total + mean**2 * of_count) / count
    return Estimates(mean, deviation)


class Ordered:
    """The distribution of a number in one group, from the sums R h (k,) of `Cells` with `ordered`, with noise.

    `noise` is the variance of each sum, `root` R (k, k), and `edges` (k + 1,) those of the bins.
    """

    def __init__(self, sums: np.ndarray, root: np.ndarray, noise: float, edges: np.ndarray) -> None:
        self._running, self._root, self._noise, self._edges = root @ sums, root, noise, edges
        self.count = float(self._running[-1])

    def quantile(self, q: float, z: float) -> tuple[float, float, float]:
        """The q-quantile and its limits at z deviations; NaN where too few records are known.

        Where in a bin its records are is not known: limits are edges of bins, and the value is interpolated.
        """
        if self.count < KNOWN * math.sqrt(self._noise) * float(np.linalg.norm(self._root[-1])) or self.count <= 0:
            return math.nan, math.nan, math.nan
        from scipy.optimize import isotonic_regression  # here, because it takes a fifth of the time of `status`

        above = isotonic_regression(self._running - q * self.count).x
        spread = self._noise * np.sum((self._root - q * self._root[-1]) ** 2, axis=1)
        reach = z * np.sqrt(spread + self.count * q * (1 - q))
        first = -q * self.count
        low, high = (min(self._bin(line), len(above) - 1) for line in (above + reach, above - reach))
        return self._crossing(above, first), float(self._edges[low]), float(self._edges[high + 1])

    def _bin(self, above: np.ndarray) -> int:
        """The bin in which running totals, at upper edges, minus their aim become positive."""
        return int(np.searchsorted(np.maximum.accumulate(above), 0.0))

    def _crossing(self, above: np.ndarray, first: float) -> float:
        """As `_bin`, the place: linear within a bin."""
        at = self._bin(above)
        if at >= len(above):
            return float(self._edges[-1])
        before = float(above[at - 1]) if at else min(first, 0.0)
        share = 1.0 if above[at] <= before else -before / (above[at] - before)
        return float(self._edges[at] + min(max(share, 0.0), 1.0) * (self._edges[at + 1] - self._edges[at]))


def name_of(row: Mapping[str, object]) -> str:
    """Return the name of a row of statistics as people read it: its window, statistic, group and item, if it has any.

    >>> name_of({"statistic": "table", "group": None, "item": ["yes", [18.0, 30.0]], "value": 3.0})
    'table yes 18 to 30'
    """
    return " ".join(_words(row[key]) for key in ("window", "statistic", "group", "item") if row.get(key) is not None)


def as_lists(part: object) -> object:
    """Return a group or an item with lists in place of tuples, as JSON has it.

    >>> as_lists(("yes", (18.0, 30.0)))
    ['yes', [18.0, 30.0]]
    """
    return [*map(as_lists, part)] if isinstance(part, tuple) else part


def _words(part: object) -> str:
    if not isinstance(part, list):
        return f"{part:.12g}" if isinstance(part, float) else str(part)
    return (" to " if isinstance(part[0], float) else " ").join(map(_words, part))
