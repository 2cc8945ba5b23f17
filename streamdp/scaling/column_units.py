"""Units of columns that follow from the curvature which was released: (x - centre) * slope.

If the declared bounds are far wider than the values, noise hides the curvature of a column, so it gets the centre and
the scale that the averages of `newton` show. The rule is for accuracy only. Claim: learning in these units has the
guarantee of learning without them, and costs no budget. Rule and proof: docs/proofs/curvature.md.
"""

from __future__ import annotations

import math

import numpy as np

FULL, ALSO, FAR, CLEAR = 0.5, 0.85, 0.5, 4.0
START, LEAST = 1.0, 2.0**-7
"""The first scale of a column with declared bounds, and the least one."""


def narrowed(
    units: np.ndarray, scaled: np.ndarray, hessian: np.ndarray, variance: float, records: float
) -> np.ndarray | None:
    """Return new units (3, p), or None if they stay: centres, slopes, and 1 for columns whose units are final.

    They are as soon as they follow from a spread that is clear of noise. Rows far out have a small weight. So of a
    rare flag, of which these are most of the spread, an ever smaller one would be found.

    `scaled` (p,) says which columns may change. `hessian` (p + 1, p + 1) is A in the present units, the intercept
    last, `variance` v, that of the noise of an entry of A, and `records` how many it is from.
    """
    base, noise = float(hessian[-1, -1]), math.sqrt(variance)
    if not scaled.any() or base <= 4 * noise:
        return None
    mean = hessian[:-1, -1] / base
    square = np.diag(hessian)[:-1] / base - mean**2
    largest = math.sqrt(2 * len(hessian))  # of what a record adds to an entry of the diagonal
    errors = np.sqrt((noise / base * (1 + mean**2)) ** 2 + largest * np.maximum(square, 0) / max(records, 1))
    spread = np.sqrt(np.maximum(0, square) + 2 * errors)
    fine = scaled & (units[2] == 0)
    if not np.any(fine & ((spread < FULL) | (np.abs(mean) > FAR))):
        return None
    new, change = units.copy(), fine & (spread < ALSO)
    new[0, fine] = np.clip(units[0] + mean / units[1], -1, 1)[fine]
    new[1, change] = np.minimum(units[1] / spread, 1 / LEAST)[change]
    new[2] = (new[2] > 0) | (scaled & (square >= CLEAR * errors)) | (new[1] == 1 / LEAST)
    return new
