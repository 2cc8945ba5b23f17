"""Local reports about cells: each record says, with noise, which of a few declared cells it is in.

With k cells a report is the cell itself, replaced by a uniform one with a probability (generalised randomised
response), or a bit for each cell (optimised unary encoding), whichever has less variance at that k and epsilon. Source:
Wang, Blocki, Li, Jha 2017, sections 4 and 5. A number is first rounded at random to one of a few levels, without bias.

Proof: docs/proofs/statistics.md.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from streamdp.data.floats import finite_array
from streamdp.errors import ConfigError
from streamdp.learners.cells import Cells, Values
from streamdp.privacy.entropy import uniform
from streamdp.privacy.guarantees import Budget, amount
from streamdp.privacy.mechanisms.response import truth
from streamdp.reading.estimates import Frequencies

_LEVELS = (2, 3, 5, 9, 17)
_CAREFUL = 1 - 2.0**-30  # more than the errors of the arithmetic
_SIXTEEN = 2.0**16


def epsilon_of(budget: Budget) -> float:
    """The largest epsilon whose reports keep a budget: of a mu, log(p / (1 - p)) with p = Phi(mu / 2).

    The trade-off function of an epsilon-DP report lies above that of randomised response with the same epsilon, which
    is mu-GDP (see `mechanisms.response`). A delta is not used.
    """
    p = float(truth(budget, np.array([amount(budget)]))[0])
    return math.log(p / (1 - p))


class Oracle:
    """Reports of one of `cells` cells, at least 2, each with epsilon, and the frequencies that follow.

    `unary`: whether a report has a bit for each cell; None: whichever has less variance.
    """

    def __init__(self, cells: int, epsilon: float, unary: bool | None = None) -> None:
        self.cells = cells
        self.unary = cells > 3 * math.exp(min(epsilon, 50)) + 2 if unary is None else unary
        if self.unary:  # bits of 16 random bits are exact: (1 - q) / q is at most e^epsilon
            self.other = math.ceil(_SIXTEEN / (math.exp(epsilon) + 1) * (2 - _CAREFUL))
            if self.other >= _SIXTEEN / 2:
                raise ConfigError(f"{cells} cells at epsilon {epsilon:g}: expected a larger budget or fewer cells")
            self.words = (cells + 3) // 4
            self.keep, self._base = 0.5 - self.other / _SIXTEEN, self.other / _SIXTEEN
        else:
            self.keep = math.expm1(epsilon) / (math.expm1(epsilon) + cells) * _CAREFUL
            self.words, self._base = 2, (1 - self.keep) / cells

    def reports(self, at: np.ndarray, words: np.ndarray) -> np.ndarray:
        """The sums of the reports of records in the cells `at` (n,), as counts (cells,), by random words (n, words)."""
        if self.unary:
            bits = words.view(np.uint16)[:, : self.cells]
            ones = bits < self.other
            rows = np.arange(len(at))
            ones[rows, at] = bits[rows, at] < _SIXTEEN / 2
            counted: np.ndarray = np.count_nonzero(ones, axis=0)
            return counted
        return np.bincount(self.randomised(at, words), minlength=self.cells)

    def randomised(self, at: np.ndarray, words: np.ndarray) -> np.ndarray:
        """The cells (n,) that records report, without unary encoding; `at` and the words are as for `reports`."""
        keep = words[:, 0] < np.uint64(min(self.keep * 2.0**64, 2.0**64 - 2.0**12))
        other = (uniform(words[:, 1]) * self.cells).astype(np.int64)
        return np.where(keep, at, other)

    def frequencies(self, counts: np.ndarray, n: int) -> Frequencies:
        """The unbiased frequencies, from the counts (cells,) of n reports; the covariance is that at possible ones."""
        f = (counts / max(n, 1) - self._base) / self.keep
        possible = np.maximum(f, 0.0)  # few reports that agree have no spread, but those of any people have
        possible /= max(float(possible.sum()), 1.0)
        shares = self._base + self.keep * possible
        if self.unary:
            return Frequencies(f, shares * (1 - shares) / self.keep**2 + possible**2, possible, n)
        return Frequencies(f, shares / self.keep**2, shares / self.keep, n)

    def expected(self, f: np.ndarray) -> Frequencies:
        """What `frequencies` returns for one report of a record with the frequencies f (cells,), in expectation."""
        return self.frequencies(self.keep * f + self._base, 1)


def _largest_variance(levels: np.ndarray, groups: int, epsilon: float) -> float:
    """The largest variance, over values, of the average of rounded values, for records of one of the groups."""
    oracle, worst = Oracle(len(levels) * groups, epsilon), 0.0
    contrast = np.append(levels, np.zeros(oracle.cells - len(levels)))
    for value in (0.0, 0.25, 0.5, 1.0):
        f = np.zeros(oracle.cells)
        f[: len(levels)] = [max(0.0, 1 - abs(value - level) / (levels[1] - levels[0])) for level in levels]
        worst = max(worst, oracle.expected(f).variance(contrast))
    return worst


class CellReports:
    """Reports about the cells of one block, each with epsilon.

    Of `Values`, a cell is the group with a level that the value is rounded to.
    """

    def __init__(self, block: Cells | Values, epsilon: float) -> None:
        self.levels = np.zeros(1)
        groups, self._cell_of = block.groups.count, self._cells
        if isinstance(block, Values):
            several = [np.linspace(-1, 1, k) for k in _LEVELS]
            self.levels = min(several, key=lambda levels: _largest_variance(levels, groups, epsilon))
            self._cell_of = self._rounded
        self._block: Any = block
        self._oracle = Oracle(block.size if isinstance(block, Cells) else groups * len(self.levels), epsilon)
        self.words = 1 + self._oracle.words
        self._state = np.zeros(self._oracle.cells + 1, dtype=np.int64)  # the counts, and the number of reports

    def _cells(self, X: np.ndarray, word: np.ndarray) -> np.ndarray:
        cells: np.ndarray = self._block.cells.of(X)
        return cells

    def _rounded(self, X: np.ndarray, word: np.ndarray) -> np.ndarray:
        place = (np.clip(X[:, self._block.column], -1, 1) + 1) / 2 * (len(self.levels) - 1)
        low = np.minimum(place.astype(np.int64), len(self.levels) - 2)
        up = uniform(word) < place - low
        cells: np.ndarray = self._block.groups.of(X) * len(self.levels) + low + up
        return cells

    def learn(self, X: np.ndarray, words: np.ndarray) -> None:
        """Take the reports of rows X (n, p), made with random words (n, words)."""
        counts = self._oracle.reports(self._cell_of(X, words[:, 0]), np.ascontiguousarray(words[:, 1 : self.words]))
        self._state = self._state + np.append(counts, len(X))

    @property
    def n(self) -> int:
        """How many reports."""
        return int(self._state[-1])

    def frequencies(self) -> Frequencies:
        """See `Oracle.frequencies`."""
        return self._oracle.frequencies(self._state[:-1], self.n)

    def learned(self) -> dict[str, Any]:
        """The state, as new arrays."""
        return {"counts": self._state.copy()}

    def read(self, state: Mapping[str, object]) -> None:
        """Take over a state that `learned` returned. Raises `ConfigError` for numbers out of range."""
        counts = finite_array(state, "counts", self._state.shape)
        if not (np.all(counts >= 0) and np.all(counts[:-1] <= counts[-1])):
            raise ConfigError("state: expected counts from 0 to the number of reports")
        self._state = counts.astype(np.int64)

    def merge(self, parts: Sequence[CellReports]) -> None:
        """Start from what others have learned."""
        self._state = np.sum([part._state for part in parts], axis=0)  # noqa: SLF001 - the same class
