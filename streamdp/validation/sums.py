"""Sums of private answers, by stretches of the stream: totals, the later half, and intervals."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

# Columns of a row of sums, in the unit of the error: errors (number, sum, sum of squares, and of squared largest
# distances from the mean), differences to the constant (number, sum, sum of squares), and answers of all kinds.
ERRORS, ERROR, ERROR_SQUARE, ERROR_RANGE, DIFFERENCES, DIFFERENCE, DIFFERENCE_SQUARE, ANSWERS = range(8)
COLUMNS = 8
ROWS = 32
_Z = 1.959963984540054  # of 95 %
_FEWEST = 30


class Rows:
    """The sums of up to 32 stretches of equal length, the oldest first, and those of an open one.

    Parameters
    ----------
    first
        The answers in a stretch at first. If there is no room, stretches are joined in pairs, and twice as long.
    longest
        The largest length; with it, the oldest stretch is dropped if there is no room.
    """

    def __init__(self, first: int, longest: float = math.inf) -> None:
        self._first, self._longest = first, longest
        self.clear()

    def clear(self) -> None:
        """Forget all sums."""
        self.numbers = np.zeros((ROWS + 2, COLUMNS))
        """The stretches, the open one, and a row with the number of stretches and their length."""
        self.numbers[-1, :2] = 0, self._first

    @property
    def used(self) -> int:
        """How many stretches are complete."""
        return int(self.numbers[-1, 0])

    @property
    def length(self) -> float:
        """The answers after which a stretch is complete."""
        return float(self.numbers[-1, 1])

    def add(self, sums: np.ndarray) -> bool:
        """Add to the open stretch; return whether that completes it.

        Parameters
        ----------
        sums
            (`COLUMNS`,).
        """
        new = self.numbers.copy()
        new[ROWS] += sums
        complete = bool(new[ROWS, ANSWERS] >= self.length)
        if complete:
            used, length = self.used, self.length
            if used == ROWS and 2 * length <= self._longest:
                new[: ROWS // 2] = new[:ROWS:2] + new[1:ROWS:2]
                new[ROWS // 2 : ROWS] = 0
                used, length = ROWS // 2, 2 * length
            elif used == ROWS:
                new[: ROWS - 1] = self.numbers[1:ROWS]
                used -= 1
            new[used], new[ROWS] = new[ROWS], 0
            new[-1, :2] = used + 1, length
        self.numbers = new  # at once: an exception leaves the old sums or the new ones
        return complete

    def split(self, newest: int) -> tuple[np.ndarray, np.ndarray]:
        """Return the sums of the complete stretches before the newest ones, and those of the newest.

        Parameters
        ----------
        newest
            How many.
        """
        at = self.used - newest
        return self.numbers[:at].sum(axis=0), self.numbers[at : self.used].sum(axis=0)

    def later_half(self) -> np.ndarray:
        """Return the sums of the newest stretches that have at least half of the answers, with the open one."""
        newest = np.cumsum(self.numbers[ROWS::-1], axis=0)  # the open one, with it the last one, and so on
        found: np.ndarray = newest[int(np.argmax(2 * newest[:, ANSWERS] >= newest[-1, ANSWERS]))]
        return found


@dataclass(frozen=True)
class Estimate:
    """A mean with its 95 % confidence interval.

    Parameters
    ----------
    value
        The estimate. None without answers.
    low, high
        The limits. None below 30 answers.
    """

    value: float | None
    low: float | None
    high: float | None


def mean(sums: np.ndarray, first: int) -> tuple[float, float]:
    """Return the mean of the answers of one kind and the square of its standard error; NaN without answers.

    Claim. Given the past, an answer has the mean of the error then, so the sums of answers minus errors are a
    martingale with bounded differences, and the mean is asymptotically normal around the average error. The empirical
    variance covers the noise of privacy and the spread of the errors; if the average changes, it is a little too large.

    Parameters
    ----------
    sums
        (`COLUMNS`,).
    first
        The column with the number: `ERRORS` or `DIFFERENCES`. The sums and the sums of squares follow it.
    """
    n, total, square = sums[first : first + 3]
    if n < 1:
        return math.nan, math.nan
    found = total / n
    return float(found), float(max(square / n - found**2, 0.0) / n) if n >= _FEWEST else math.nan


def interval(value: float, variance: float, low: float = -math.inf, high: float = math.inf) -> Estimate:
    """Return the estimate with its 95 % interval.

    Parameters
    ----------
    value, variance
        The mean and the square of its standard error; NaN if unknown.
    low, high
        What the limits are clipped to.
    """
    if math.isnan(value):
        return Estimate(None, None, None)
    if math.isnan(variance):
        return Estimate(value, None, None)
    half = _Z * math.sqrt(variance)
    return Estimate(value, min(max(value - half, low), high), min(max(value + half, low), high))
