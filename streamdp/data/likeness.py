"""Whether the records that are left out are like the others, column by column: only means, read before learning."""

from __future__ import annotations

import math

import numpy as np

LARGE = 0.25
"""The difference of two means, in standard deviations, that is worth a warning."""
_SURE = 4.0


class Likeness:
    """The means of one column in two groups of records: those that fit, and those that are left out.

    Each category in `levels` is a column of zeros and ones. Without levels, the column is a number.
    """

    def __init__(self, levels: tuple[str, ...] = ()) -> None:
        self._levels = levels
        self._sums = np.zeros((2, 3, max(1, len(levels))))

    def add(self, values: np.ndarray, kept: np.ndarray) -> None:
        """Add records: numbers, or codes of categories, and whether each is `kept`, (n,) both.

        For NaN or values below 0, the column has no declared value.
        """
        known = values >= 0 if self._levels else np.isfinite(values)
        for group, rows in enumerate((values[known & kept], values[known & ~kept])):
            if self._levels:
                counts = np.bincount(rows.astype(np.int64), minlength=len(self._levels))
                self._sums[group] += np.stack([np.full(len(counts), len(rows)), counts, counts])
            else:
                self._sums[group] += np.array([len(rows), rows.sum(), np.square(rows).sum()])[:, None]

    def difference(self) -> str:
        """How the records that are left out differ, as words; empty if they do not, or if too few are known."""
        n, total, square = self._sums.swapaxes(0, 1)
        if n.min() < 2:
            return ""
        mean = total / n
        spread = np.sqrt(np.maximum((square / n - mean**2).mean(axis=0), 1e-300))
        apart = (mean[1] - mean[0]) / spread
        level = int(np.argmax(np.abs(apart)))
        sure = abs(apart[level]) / math.sqrt(float((1 / n[:, level]).sum())) > _SURE
        if abs(apart[level]) < LARGE or not sure:
            return ""
        if self._levels:
            return f"{'more' if apart[level] > 0 else 'less'} often {self._levels[level]!r}"
        return f"{'larger' if apart[level] > 0 else 'smaller'} on average"
