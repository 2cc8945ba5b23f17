"""Units of columns that follow from the curvature which was released: (x - centre) * slope.

Columns with declared bounds lie in [-1, 1]. If the bounds are far wider than the values, a column is almost constant:
its coefficient hardly moves the gradients, and the noise hides its curvature. Columns with a spread of about 1 are
learned best. The averages that `newton` keeps have the entries A_jj, A_j0 and A_00 of the curvature, 0 being the
intercept. With delta = sqrt(v) / A_00, about the deviation of the noise of such a ratio,

    m = A_j0 / A_00,   s = sqrt(max(0, A_jj / A_00 - m^2) + 2 delta)

are about the centre and the spread of column j in its present units, over the records that count. 2 delta keeps a
column from being scaled by noise. A column begins with centre 0 and scale 3^(-1/2), the spread of evenly spread values
in [-1, 1]. If s < FULL for some column, all columns with s < ALSO get the centre and the scale that were found, and the
averages begin anew at the last answer; FULL < ALSO, so that few changes are enough. Scales only fall. The numbers were
found on real and simulated data (`python -m benchmarks.raw_targets`); they matter for accuracy only.

Claim: learning in these units has the guarantee of learning without them, and costs no budget. Proof:
docs/proofs/curvature.md.
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
