"""How far out Newton's steps cut residuals under the squared loss, from released numbers.

A batch asks at a scale sigma; a = clip(r, -c, c), r = (y - u) / sigma, and the gradient in sigma tells the mean of a^2.
So the spread of residuals is known, and with the noise the scale at which the bias of the cut is as small as the noise.
Everything here is post-processing, and about accuracy only. The rules: docs/proofs/curvature.md, the steps.
"""

import math
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from streamdp.optim.curvature import Curvature
from streamdp.reading import change

_BALANCE = 8.0  # the mean of a^2 over c sqrt(d) times the noise of a mean gradient
_MOST = 0.71  # of that mean: as of Huber's loss for normal residuals
ROOM = 6.0
"""The first scale over the spread that the search found; what noise hides, over the first scale."""
UNEVEN = 4.0
"""How much more than all together the residuals of some part of the records may vary."""


class _Known(NamedTuple):
    """Of blocks: the scale, the mean of a^2, and the deviation of its noise."""

    scales: np.ndarray
    squares: np.ndarray
    errors: np.ndarray


@dataclass(frozen=True)
class Cuts:
    """The rules for vectors of a loss that grows; `blocks` are those of `change`, of one batch or more."""

    curvature: Curvature

    @property
    def _weight(self) -> float:
        """About the mean weight w of records, whose columns have a spread of 1."""
        return min(1.0, math.sqrt(2 / self.curvature.columns))

    def _known(self, blocks: np.ndarray) -> _Known:
        d, counts = self.curvature.parameters, np.maximum(blocks[:, change.WEIGHT], 1e-300)
        squares = self.curvature.loss.kappa - 2 * blocks[:, 2 * d - 1] / counts / self._weight
        return _Known(blocks[:, d - 1] / counts, squares, 2 * np.sqrt(blocks[:, change.NOISE]) / counts / self._weight)

    def _best(self, blocks: np.ndarray) -> tuple[float, float, float]:
        """What the newest of the large blocks tells."""
        records = blocks[:, change.RECORDS]
        large = np.flatnonzero(2 * records >= records.max())[-1]
        scale, square, error = (float(found[large]) for found in self._known(blocks))
        return scale, square, error

    def spread(self, blocks: np.ndarray) -> float:
        """The spread of residuals."""
        scale, square, error = self._best(blocks)
        return scale * math.sqrt(max(square, error / 4, 1e-12))  # without noise nothing may be left of residuals

    def scale(self, blocks: np.ndarray, present: float, deviation: float) -> float:
        """The next scale, after the `present` one: where bias and noise are balanced, as far as that is known.

        `deviation` is that of the noise of a sum.
        """
        wanted = self._wanted(deviation / max(float(blocks[:, change.RECORDS].sum()), 1.0))
        scale, square, error = self._best(blocks)
        low = scale * math.sqrt(max(square - 2 * error, 0.0) / wanted)
        high = scale * math.sqrt((max(square, 0.0) + 2 * error) / wanted)
        return min(max(present, low), high)

    def placed(self, blocks: np.ndarray, newest: float) -> tuple[np.ndarray, np.ndarray]:
        """Blocks as if they were asked at the `newest` scale, and the most by which that is wrong, squared, in sums.

        Where nothing is cut, a is proportional to 1 / sigma. At most a share E a^2 / c^2 of the records is cut.
        """
        d, q, (scales, squares, _) = self.curvature.parameters, self.curvature.columns, self._known(blocks)
        out, ratios = blocks.copy(), scales / newest
        wrong = np.abs(1 - ratios) * np.maximum(1, ratios**2) * np.maximum(squares, 0.0) / self.curvature.loss.cut
        out[:, d : d + q] *= ratios[:, None]
        out[:, d - 1] = newest * blocks[:, change.WEIGHT]
        out[:, change.NOISE] *= ratios**2
        return out, (wrong * blocks[:, change.WEIGHT]) ** 2

    def rounds(self, points: np.ndarray, means: np.ndarray) -> np.ndarray:
        """Change the points (k, d) and mean vectors (k, size) of rounds to those at the last scale.

        Returns the factors (k,) of their gradients and noise.
        """
        d, q, level = self.curvature.parameters, self.curvature.columns, self.curvature.loss.kappa * self._weight / 2
        ratios: np.ndarray = points[:, -1] / points[-1, -1]
        means[:, :q] *= ratios[:, None]
        means[:, d - 1] = level + (means[:, d - 1] - level) * ratios**2
        points[:, -1] = points[-1, -1]
        return ratios

    def _wanted(self, noise: float) -> float:
        """The mean of a^2 at which bias and noise are balanced; `noise` is the deviation of that of a mean gradient."""
        balanced = _BALANCE * self.curvature.loss.cut * math.sqrt(self.curvature.parameters) * noise / self._weight
        return min(max(balanced, self.curvature.loss.kappa), _MOST)

    def usual(self, spread: float, noise: float) -> float:
        """The scale at which bias and noise are balanced for targets of this `spread`; `noise` is that of `_wanted`."""
        return spread / math.sqrt(self._wanted(noise))

    def first(self, spread: float, half: float, error: float) -> float:
        """The scale after a search of targets within plus and minus `half` that found the `spread` of most of them.

        `error` is the deviation of its means of a^2: the noise hides a spread of half sqrt(2 error), of rare targets.
        """
        return min(half, max(ROOM * spread, half * math.sqrt(2 * error) / ROOM))
