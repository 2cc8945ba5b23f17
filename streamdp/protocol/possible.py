"""What a mechanism can produce: a gradient that passes could have been drawn by an honest device.

A malicious sender can send any report that passes. Each of them may be an honest one, so it moves the model no further
than one honest report may.

An honest report passes with a probability of at least 1 - 1e-26. The limits and their proof: docs/proofs/devices.md.
"""

import math
from functools import lru_cache

import numpy as np

from streamdp.privacy import samplers
from streamdp.privacy.mechanisms import Gaussian, Mechanism, PrivUnit, record_rows

_TAIL = 60.0
_ROUNDING = 0.01  # of a cell: what the arithmetic of another language may change


def _snapped(mechanism: Mechanism, row: np.ndarray, g: np.ndarray) -> np.ndarray | None:
    d, scale, grid = len(g), float(row[samplers.SCALE]), float(row[samplers.GRID])
    bound = mechanism.bound * (1 + 1e-6)
    if isinstance(mechanism, PrivUnit):
        cells = np.rint(g / (scale * grid))
        off = np.abs(g / (scale * grid) - cells).max()
        if not (off < _ROUNDING and abs(np.linalg.norm(cells) * grid - 1.0) <= grid * (math.sqrt(d) / 2 + _ROUNDING)):
            return None
        return np.asarray(cells * (scale * grid))
    if isinstance(mechanism, Gaussian):
        norm, most = np.linalg.norm(g), bound + scale * (math.sqrt(d) + math.sqrt(2 * _TAIL))
    else:
        norm, most = np.abs(g).sum(), math.sqrt(d) * bound + scale * (d + math.sqrt(2 * d * _TAIL) + _TAIL)
    on_grid = norm <= most + d * grid and np.array_equal(np.rint(g / grid), g / grid)
    return g if on_grid else None


def possible(mechanism: Mechanism, agreed: bool, g: np.ndarray) -> np.ndarray | None:
    """Return the gradient with the rounding errors of other languages removed; None if it cannot have been drawn.

    g (d,) is finite, with moduli of at most 1e100. `agreed` says that the budget is the agreement's; others are rounded
    down (see `Mechanism.rows`).
    """
    row = _agreed_row(mechanism, len(g)) if agreed else record_rows(mechanism, len(g))[0]
    return _snapped(mechanism, row, g)


@lru_cache(maxsize=256)
def _agreed_row(mechanism: Mechanism, d: int) -> np.ndarray:
    return mechanism.rows(d)[0]
