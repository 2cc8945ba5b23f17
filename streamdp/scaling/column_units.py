"""Where the values of columns are within their declared bounds, from noisy sums of batches that see no model.

Claim: the search spends nothing beyond its batches. Rule and proof: docs/proofs/curvature.md.
"""

import numpy as np

from streamdp.scaling.pooling import alike, likely
from streamdp.scaling.units import FAR as FARTHEST
from streamdp.scaling.units import MOST

LEAST = 2.0**-5
"""The least half of a range, over half the width of declared bounds."""
ERROR = 0.08
"""The deviation of the two means of a column that a batch of the search should have."""
SPREAD = 1 / 3
"""About the variance of a place, and of a distance, in the range that is searched: that of a uniform law."""
USUAL, WIDE, FAR, NEAR = 0.7, 0.875, 2.5, 0.25
"""In units, the root mean square of columns: the usual, the most where a loss keeps tails, and of others; the least."""
_CLEAR, _LIKELY = 3.0, 2.0  # a spread is seen, and a unit is wrong, if it is so many errors
_UNITS = MOST * LEAST  # half of a range, in units


def searched(
    units: np.ndarray, means: np.ndarray, distances: np.ndarray, error: float, levels: np.ndarray
) -> np.ndarray:
    """Return the units (2, p) after a batch of the search; the slopes of columns that it found are above 0.

    The batch found the `means` (p,) of the places of values in the ranges of `units`, cut to -1 and 1, and those of
    their `distances` (p,) from the centres, with this `error`; columns that are alike tell of each other. `levels`
    (p,) are columns that are 0 or 1: both show a share, and its root is their spread.
    """
    units, new = units.copy(), (units[1] < 0) & levels
    shares, _ = likely((means[new] + distances[new]) / 2, np.full(np.count_nonzero(new), error**2 / 2))
    units[1, new] = np.clip(shares, FARTHEST**-2, 1.0) ** -0.5
    wanted, means, distances = units[1] < 0, means.copy(), distances.copy()
    means[wanted], of_means = alike(means[wanted], error**2)
    distances[wanted], of_distances = alike(distances[wanted], error**2)
    error = max(of_means, of_distances) ** 0.5
    centre, half = units[0], 1 / np.abs(units[1])
    after = np.clip(half * np.clip(2 * np.maximum(distances, error), 0.0, 2.0), LEAST, 1.0)
    found = (distances - np.abs(means) > _CLEAR * error) | ((half <= LEAST) & (np.abs(means) <= _CLEAR * error))
    placed = np.array([np.clip(centre + half * np.clip(means, -1, 1), -1, 1), np.where(found, _UNITS, -1.0) / after])
    return np.where(wanted, placed, units)


def ended(units: np.ndarray) -> np.ndarray:
    """Return the units (2, p) where the search ends: columns that it did not find have their last range."""
    return np.where(units[1] > 0, units, [units[0], -_UNITS * units[1]])


def moved(units: np.ndarray, moments: np.ndarray, error: float, least: float, most: float) -> np.ndarray:
    """Return the units (2, p) after batches that saw a model: others around the columns that need them.

    Those have a root mean square below `least` or above `most` in theirs, by twice the error, and the `USUAL` one in
    the new units.
    `moments` (p + 1, p + 1) are noisy, weighted means of the products of the columns in their `units`, and 1, times
    any factor, each with this `error`. Columns that are alike tell of each other.
    """
    weight, wanted = float(moments[-1, -1]), units[1] > 1
    if weight <= _CLEAR * error:
        return units
    squares, left = alike(np.diag(moments)[:-1][wanted] / weight, (error / weight) ** 2)
    doubt = _LIKELY * left**0.5
    other = (squares - doubt > most**2) | (squares + doubt < least**2)
    wanted[wanted] = other
    wider, slopes = np.sqrt(np.maximum(squares[other], left**0.5)) / USUAL, units[1, wanted]
    shifts = np.clip(moments[:-1, -1][wanted] / weight, -wider, wider) / slopes
    units = units.copy()
    units[:, wanted] = np.clip(units[0, wanted] + shifts, -1, 1), np.clip(slopes / wider, 1.0, MOST)
    return units
