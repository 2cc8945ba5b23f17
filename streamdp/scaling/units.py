"""The units in which columns and target are learned: one affine map.

Columns are learned as (x - centre) slope, and the target as (y - centre) / scale. Centres, slopes and scale are public,
or were released before; so no argument about gradients changes, because their bounds hold for every x and y. What is
shown is in original units.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np


class Units(NamedTuple):
    """Centres and slopes of columns, centre and scale of the target, and what targets are clipped to.

    Parameters
    ----------
    columns
        (2, p) centres and slopes.
    centre, scale
        Those of the target.
    bounds
        The bounds (low, high) of the target; None: there are none.
    intercept, outputs
        Whether theta has an intercept after the p coefficients of each output, and how many outputs. Huber's scale may
        follow.
    """

    columns: np.ndarray
    centre: float = 0.0
    scale: float = 1.0
    bounds: tuple[float, float] | None = None
    intercept: bool = True
    outputs: int = 1

    def _blocks(self, theta: np.ndarray) -> np.ndarray:
        """The part of theta (d,) that predicts: a view (outputs, p), or (outputs, p + 1) with an intercept."""
        q = self.columns.shape[1] + self.intercept
        return theta[: q * self.outputs].reshape(-1, q)

    def inward(self, theta: np.ndarray) -> np.ndarray:
        """Return theta (d,), that for values as they are, in these units, as a new array; slopes of 0 give 0."""
        (centre, slope), p = self.columns, self.columns.shape[1]
        theta = theta.copy()
        blocks = self._blocks(theta)
        if self.intercept:
            blocks[:, p] -= self.centre
        theta /= self.scale
        if self.intercept:
            blocks[:, p] += blocks[:, :p] @ centre
        blocks[:, :p] = np.divide(blocks[:, :p], slope, out=np.zeros_like(blocks[:, :p]), where=slope > 0)
        return theta

    def outward(self, theta: np.ndarray) -> np.ndarray:
        """Return theta (d,), given in these units, for values as they are, as a new array: the inverse of `inward`."""
        (centre, slope), p = self.columns, self.columns.shape[1]
        theta = theta.copy()
        blocks = self._blocks(theta)
        blocks[:, :p] *= slope
        if self.intercept:
            blocks[:, p] -= blocks[:, :p] @ centre
        theta *= self.scale
        if self.intercept:
            blocks[:, p] += self.centre
        return theta
