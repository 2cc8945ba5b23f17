"""A sum of vectors in whole cells of a grid, to which Gaussian noise is added: see docs/proofs/pan_private.md."""

from __future__ import annotations

from typing import Any

import numpy as np

from streamdp.privacy.entropy import FreshWords, SeededEntropy
from streamdp.privacy.guarantees import Budget
from streamdp.privacy.mechanisms.additive import Gaussian, grid_noise


class GridSum:
    """The open sum. A copy or pickle of it is empty.

    - `budget`: what a vector spends.
    - `bound`, `sensitivity`: the largest norm of a vector, and the largest distance of two.
    - `size`: the length of the vectors.
    - `noisy`: False: without noise, for comparisons.

    The attribute `total` (size,) is the sum, in cells; there are `cells` of the grid in 1, a power of 2. `scale` is the
    deviation of one noise, in cells.
    """

    def __init__(self, budget: Budget, bound: float, sensitivity: float, size: int, noisy: bool = True) -> None:
        from streamdp.privacy.samplers import GRID, SCALE

        row = Gaussian(budget, bound, sensitivity).rows(size)[0]
        self.cells = float(1 / row[GRID])
        self.scale = float(row[SCALE]) * self.cells if noisy else 0.0
        self.total = np.zeros(size, dtype=np.int64)

    @property
    def variance(self) -> float:
        """The variance of one noise of a coordinate."""
        return (self.scale / self.cells) ** 2

    def add_noise(self, rng: FreshWords | SeededEntropy) -> None:
        """Add fresh noise by `rng`, then overwrite it: if left in freed memory, it could be subtracted."""
        noise = self.noise(rng)
        self.total += noise
        noise[:] = 0

    def noise(self, rng: FreshWords | SeededEntropy) -> np.ndarray:
        """Return fresh noise (size,) by `rng`, in cells."""
        return grid_noise(rng, self.scale, len(self.total))

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"total": np.zeros_like(self.total)}
