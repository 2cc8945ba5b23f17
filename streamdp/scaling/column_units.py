"""Units of columns that follow from the curvature which was released: (x - centre) * slope.

If the declared bounds are far wider than the values, noise hides the curvature of a column, so it gets the centre and
the scale that the averages of `newton` show. The rule is for accuracy only. Claim: learning in these units has the
guarantee of learning without them, and costs no budget. Rule and proof: docs/proofs/curvature.md.
"""

from __future__ import annotations

import math

import numpy as np

FULL, ALSO = 0.5, 0.85
START, LEAST = 3**-0.5, 2.0**-7
"""The first scale of a column with declared bounds, and the least one."""


def narrowed(units: np.ndarray, scaled: np.ndarray, hessian: np.ndarray, variance: float) -> np.ndarray | None:
    """Return new units (2, p), or None if they stay.

    `scaled` (p,) says which columns may change. `hessian` (p + 1, p + 1) is A in the present units, the intercept
    last, and `variance` v, that of the noise of an entry of A.
    """
    base, noise = float(hessian[-1, -1]), math.sqrt(variance)
    if not scaled.any() or base <= 4 * noise:
        return None
    mean = hessian[:-1, -1] / base
    spread = np.sqrt(np.maximum(0, np.diag(hessian)[:-1] / base - mean**2) + 2 * noise / base)
    fine = scaled & (units[1] < 1 / LEAST)
    if not np.any(fine & (spread < FULL)):
        return None
    new, change = units.copy(), fine & (spread < ALSO)
    new[0, change] = np.clip(units[0] + mean / units[1], -1, 1)[change]
    new[1, change] = np.minimum(units[1] / spread, 1 / LEAST)[change]
    return new
