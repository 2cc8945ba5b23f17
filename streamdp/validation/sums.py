"""Sums of private answers, by stretches of the stream: totals, the later half, and intervals."""

import math
from dataclasses import dataclass

import numpy as np

from streamdp.reading.estimates import limits_of

# Columns of a row of sums, in the unit of the error: answers about the error (number, sum, sum of squares, sum of the
# squares of half the range of an answer), those about what stands beside it (number, sum, sum of squares), the number
# of all answers, the number of those about cells and the variance of a cell's sum; then the sums of the cells. The
# variance of the noise of a sum that is released once is added to the sum of squares.
ERRORS, ERROR, ERROR_SQUARE, ERROR_RANGE, OTHERS, OTHER, OTHER_SQUARE, ANSWERS, CELLS, CELL_NOISE = range(10)
COLUMNS = 10
COUNTS, SQUARES = [ERRORS, OTHERS, ANSWERS, CELLS], [ERROR_SQUARE, ERROR_RANGE, OTHER_SQUARE, CELL_NOISE]
_Z = 1.959963984540054  # of 95 %
FEWEST = 30
"""The answers from which on a mean has an interval."""


class Rows:
    """The sums of stretches of equal length, the oldest first, and those of an open one.

    There are at most `rows` stretches, an even number, with `first` answers each, and `columns` sums of each. If there
    is no room, stretches are joined in pairs, and twice as long; at the `longest`, the oldest is dropped instead.
    """

    def __init__(self, rows: int, first: int, longest: float = math.inf, columns: int = COLUMNS) -> None:
        self._rows, self._first, self._longest, self._columns = rows, first, longest, columns
        self.clear()

    def clear(self) -> None:
        """Set all sums to zero."""
        self.start(np.zeros((0, self._columns)), self._first)

    def start(self, stretches: np.ndarray, length: float) -> None:
        """Begin with the sums (n, columns) of some stretches, each of `length` answers."""
        numbers = np.zeros((self._rows + 2, self._columns))
        numbers[: len(stretches)] = stretches
        numbers[-1, :2] = len(stretches), length
        self.numbers = numbers
        """The stretches, the open one, and a row with the number of stretches and their length."""

    @property
    def used(self) -> int:
        """How many stretches are complete."""
        return int(self.numbers[-1, 0])

    @property
    def length(self) -> float:
        """The answers after which a stretch is complete."""
        return float(self.numbers[-1, 1])

    def add(self, sums: np.ndarray) -> bool:
        """Add sums (columns,) to the open stretch; return whether that completes it."""
        new, most = self.numbers.copy(), self._rows
        new[most] += sums
        complete = bool(new[most, ANSWERS] >= self.length)
        if complete:
            used, length = self.used, self.length
            if used == most and 2 * length <= self._longest:
                new[: most // 2] = new[:most:2] + new[1:most:2]
                new[most // 2 : most] = 0
                used, length = most // 2, 2 * length
            elif used == most:
                new[: most - 1] = self.numbers[1:most]
                used -= 1
            new[used], new[most] = new[most], 0
            new[-1, :2] = used + 1, length
        self.numbers = new  # at once: an exception leaves the old sums or the new ones
        return complete

    def later_half(self) -> np.ndarray:
        """Return the sums of the newest stretches that have at least half of the answers, with the open one."""
        newest = np.cumsum(self.numbers[self._rows :: -1], axis=0)  # the open one, with it the last one, and so on
        return newest[int(np.argmax(2 * newest[:, ANSWERS] >= newest[-1, ANSWERS]))]


@dataclass(frozen=True)
class Estimate:
    """A mean, None without answers, with its 95 % confidence interval, None below 30 answers."""

    value: float | None
    low: float | None
    high: float | None


def mean(sums: np.ndarray, first: int) -> tuple[float, float]:
    """Return the mean of the answers of one kind and the square of its standard error; NaN without answers.

    Claim. Given the past, an answer has the mean of the error then, so the sums of answers minus errors are a
    martingale with bounded differences, and the mean is asymptotically normal around the average error. The empirical
    variance covers the noise of privacy and the spread of the errors; if the average changes, it is a little too large.

    In `sums` (`COLUMNS`,) the column `first`, `ERRORS` or `OTHERS`, has the number; sums and sums of squares follow it.
    """
    n, total, square = sums[first : first + 3]
    if n < 1:
        return math.nan, math.nan
    found = total / n
    return float(found), float(max(square / n - found**2, 0.0) / n) if n >= FEWEST else math.nan


def interval(value: float, variance: float, low: float = -math.inf, high: float = math.inf) -> Estimate:
    """Return a value with its 95 % interval, both clipped to `low` and `high`; the variance is NaN if it is unknown."""
    answer, half = np.array([float(value)]), _Z * math.sqrt(variance)
    shown = np.clip(answer, low, high)
    if math.isnan(value) or math.isnan(variance):
        return Estimate(None if math.isnan(value) else float(shown[0]), None, None)
    (limits,) = limits_of(np.column_stack([answer - half, answer + half]), answer, shown, (low, high)).tolist()
    return Estimate(float(shown[0]), *limits)
