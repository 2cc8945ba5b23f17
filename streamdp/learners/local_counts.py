"""Local reports about cells: each record says, with noise, which of a few declared cells it is in.

With k cells a report is the cell itself, replaced by a uniform one with a probability (generalised randomised
response), or a bit for each cell (optimised unary encoding), whichever has less variance at that k and epsilon. Source:
Wang, Blocki, Li, Jha 2017, sections 4 and 5. A number is first rounded at random to one of a few levels, without bias.

Proof: docs/proofs/statistics.md.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Protocol, Self

import numpy as np

from streamdp.aggregation.block_loops import Places, Reporter
from streamdp.data.floats import whole_array
from streamdp.errors import ConfigError
from streamdp.learners.cells import Cells, Index, Values
from streamdp.privacy.entropy import uniform
from streamdp.reading.estimates import Frequencies

_LEVELS = (2, 3, 5, 9, 17)
_CAREFUL = 1 - 2.0**-30  # more than the errors of the arithmetic
_SIXTEEN = 2.0**16
_TAIL = 60.0  # an honest report passes with a probability of at least 1 - 2 e^-60


class Oracle:
    """Reports of one of `cells` cells, at least 2, each with epsilon, and the frequencies that follow.

    `unary`: whether a report has a bit for each cell; None: whichever has less variance.
    """

    def __init__(self, cells: int, epsilon: float, unary: bool | None = None) -> None:
        self.cells = cells
        self.unary = cells > 3 * math.exp(min(epsilon, 50)) + 2 if unary is None else unary
        self.other = 0
        if self.unary:  # bits of 16 random bits are exact: (1 - q) / q is at most e^epsilon
            self.other = math.ceil(_SIXTEEN / (math.exp(epsilon) + 1) * (2 - _CAREFUL))
            if self.other >= _SIXTEEN / 2:
                raise ConfigError(f"{cells} cells at epsilon {epsilon:g}: expected a larger budget or fewer cells")
            self.words = (cells + 3) // 4
            self.keep, self._base = 0.5 - self.other / _SIXTEEN, self.other / _SIXTEEN
        else:
            self.keep = math.expm1(epsilon) / (math.expm1(epsilon) + cells) * _CAREFUL
            self.words, self._base = 2, (1 - self.keep) / cells

    def reporter(
        self,
        places: Places,
        counts: np.ndarray,
        column: int = -1,
        levels: int = 0,
        threshold: np.ndarray | None = None,
        full: int = 0,
    ) -> Reporter:
        """What adds reports of rows to `counts` (cells + 1,); all else is as for `Reporter`."""
        return Reporter(places, column, levels, threshold, counts, full, self.unary, self.other, self._kept)

    def possible(self, answer: Sequence[int]) -> bool:
        """Whether an honest report has these cells: one, or with unary encoding those with a 1, as many as is likely.

        Proof: docs/proofs/devices.md.
        """
        if not all(0 <= cell < self.cells for cell in answer) or sorted({*answer}) != list(answer):
            return False
        if not self.unary:
            return len(answer) == 1
        expected = (self.cells - 1) * self.other / _SIXTEEN + 0.5
        return abs(len(answer) - expected) <= math.sqrt(_TAIL * self.cells / 2)

    @property
    def _kept(self) -> int:
        """How often a cell is kept, of 2^64."""
        return int(min(self.keep * 2.0**64, 2.0**64 - 2.0**12))

    def randomised(self, at: np.ndarray, words: np.ndarray) -> np.ndarray:
        """The cells (n,) that records in the cells `at` (n,) report, by words (n, 2), without unary encoding."""
        keep = words[:, 0] < np.uint64(self._kept)
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


class ReportPart(Protocol):
    """What records report about one statistic, each with epsilon, and what their reports add up to."""

    words: int
    """How many random words a report takes."""
    groups: Index
    """What sorts the records: into its cells, or into groups of a number or a text."""
    levels: np.ndarray = np.zeros(0)
    """Those that a number is rounded to."""
    q: float | None = None
    """The level of a quantile."""
    thresholds: np.ndarray = np.zeros(0)
    """What records are asked about, if that follows from the reports before: of a quantile, by group."""

    @property
    def asked(self) -> int:
        """How often this has changed."""
        return 0

    @property
    def n(self) -> int:
        """How many reports."""

    def reporter(self, counts: np.ndarray | None = None) -> Reporter | None:
        """What adds reports of rows to `counts` (cells + 1,), None: to its own; None if there is no faster way."""
        return None

    def learn(self, X: np.ndarray, words: np.ndarray) -> None:
        """Take the reports of rows X (n, p), made with random words (n, words)."""

    def answer(self, X: np.ndarray, words: np.ndarray) -> list[int]:
        """The report of one row X (1, p), made with random words (1, words)."""

    def possible(self, answer: Sequence[int]) -> bool:
        """Whether an honest report may say this."""

    def absorb(self, answer: Sequence[int], block: int) -> None:
        """Take a report that is `possible`, of somebody who was asked when `asked` was this `block`."""

    def close(self) -> None:
        """Ask what comes next, if devices have sent enough reports about what was asked."""
        return

    def learned(self) -> dict[str, object]:
        """The state, as new arrays."""

    def read(self, state: Mapping[str, object]) -> None:
        """Take over a state that `learned` returned. Raises `ConfigError` for numbers out of range."""

    def merge(self, parts: Sequence[Self]) -> None:
        """Start from what others have learned."""


class OfCells(ReportPart):
    """What answers with cells of an oracle."""

    _oracle: Oracle

    def reporter(self, counts: np.ndarray | None = None) -> Reporter:
        raise NotImplementedError

    def answer(self, X: np.ndarray, words: np.ndarray) -> list[int]:
        """See `ReportPart.answer`: the cells that it counts for."""
        counts = np.zeros(self._oracle.cells + 1, dtype=np.int64)
        self.reporter(counts).add(X, words)
        return np.flatnonzero(counts[:-1]).tolist()

    def possible(self, answer: Sequence[int]) -> bool:
        """See `Oracle.possible`."""
        return self._oracle.possible(answer)


class CellReports(OfCells):
    """Reports about the cells of one block, each with epsilon.

    Of `Values`, a cell is the group with a level that the value is rounded to. `levels`: how many there are; None: as
    many as have the least variance.
    """

    def __init__(self, block: Cells | Values, epsilon: float, levels: int | None = None) -> None:
        self._column, self.groups = block.column, block.index
        if self._column >= 0:
            several = [np.linspace(-1, 1, k) for k in (_LEVELS if levels is None else (levels,))]
            self.levels = min(several, key=lambda each: _largest_variance(each, self.groups.count, epsilon))
        self._oracle = Oracle(self.groups.count * max(1, len(self.levels)), epsilon)
        self.words = 1 + self._oracle.words
        self._state = np.zeros(self._oracle.cells + 1, dtype=np.int64)  # the counts, and the number of reports

    def reporter(self, counts: np.ndarray | None = None) -> Reporter:
        """See `ReportPart.reporter`; its own counts until a state is taken over."""
        counts = self._state if counts is None else counts
        return self._oracle.reporter(self.groups.places, counts, self._column, len(self.levels))

    def absorb(self, answer: Sequence[int], block: int) -> None:
        self._state[-1] += 1
        self._state[list(answer)] += 1

    def learn(self, X: np.ndarray, words: np.ndarray) -> None:
        self.reporter().add(X, words)

    @property
    def n(self) -> int:
        return int(self._state[-1])

    def frequencies(self) -> Frequencies:
        """See `Oracle.frequencies`."""
        return self._oracle.frequencies(self._state[:-1], self.n)

    def learned(self) -> dict[str, object]:
        return {"counts": self._state.copy()}

    def read(self, state: Mapping[str, object]) -> None:
        counts = whole_array(state, "counts", self._state.shape)
        if np.any(counts[:-1] > counts[-1]):
            raise ConfigError("state: expected counts from 0 to the number of reports")
        self._state = counts

    def merge(self, parts: Sequence[Self]) -> None:
        self._state = np.sum([part._state for part in parts], axis=0)  # noqa: SLF001 - the same class
