"""A sum of vectors in whole cells of a grid, to which Gaussian noise is added: see docs/proofs/pan_private.md."""

import math

import numpy as np

from streamdp.privacy.entropy import FreshRng
from streamdp.privacy.guarantees import Budget
from streamdp.privacy.mechanisms.additive import Gaussian, grid_noise
from streamdp.privacy.mechanisms.base import ARITHMETIC


class GridSum:
    """The open sum of vectors (size,). A copy or pickle of it is empty.

    `bound`, `sensitivity`: the largest norm of a vector, and the largest distance of two. `noisy`: False for
    comparisons. `total` is the sum, in cells of the grid, of which `cells` are in 1, a power of 2. `scale` is the
    deviation of one noise, in cells, but for the factor `louder`: above 1 if a part of the budget is spent otherwise.
    """

    def __init__(self, budget: Budget, bound: float, sensitivity: float, size: int, noisy: bool = True) -> None:
        from streamdp.privacy.samplers import GRID, SCALE

        row = Gaussian(budget, bound, sensitivity).rows(size)[0]
        self.cells = float(1 / row[GRID])
        self.scale = float(row[SCALE]) * self.cells if noisy else 0.0
        self.louder = 1.0
        self.total = np.zeros(size, dtype=np.int64)
        self._reach = self._apart(sensitivity, size)

    def _apart(self, sensitivity: float, size: int) -> float:
        """The largest distance of two vectors (size,) in cells, after rounding."""
        return sensitivity * ARITHMETIC * self.cells + math.sqrt(size)

    def scale_of_first(self, size: int, sensitivity: float, share: float) -> float:
        """The deviation in cells of noise with which the first coordinates alone spend a share of the budget's mu^2.

        They are of this size, with this largest distance of two vectors, `sensitivity`.
        """
        return self.scale * self._apart(sensitivity, size) / self._reach / math.sqrt(share)

    @property
    def variance(self) -> float:
        """The variance of one noise of a coordinate."""
        return (self.scale / self.cells) ** 2

    def add_noise(self, rng: FreshRng) -> None:
        """Add fresh noise by `rng`, then overwrite it: if left in freed memory, it could be subtracted."""
        noise = self.noise(rng)
        self.total += noise
        noise[:] = 0

    def close(self, rng: FreshRng) -> np.ndarray:
        """Add noise by `rng`; return the noisy sum (size,)."""
        self.add_noise(rng)
        return self.total / self.cells

    def noise(self, rng: FreshRng) -> np.ndarray:
        """Return fresh noise (size,) by `rng`, in cells."""
        return grid_noise(rng, self.scale * self.louder, len(self.total))

    def __getstate__(self) -> dict[str, object]:
        return self.__dict__ | {"total": np.zeros_like(self.total)}
