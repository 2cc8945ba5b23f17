"""What Newton's steps have in memory: a value with named fields, which each step replaces by a new one.

So an exception never leaves half of a step. All of it follows from released sums and public numbers.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from typing import Any, Self

import numpy as np
import scipy

from streamdp.errors import ConfigError
from streamdp.optim.curvature import Curvature
from streamdp.reading import change

_FURTHEST = 1e75  # further than steps come: bounds are up to 1e60 apart
_OTHER = 4.0  # how far another sigma is trusted


def upper(matrix: np.ndarray) -> np.ndarray:
    """svec of a symmetric matrix (q, q): its upper triangle, row by row, with off-diagonal entries times sqrt2."""
    wide = matrix * math.sqrt(2)
    np.fill_diagonal(wide, np.diag(matrix))
    return wide[np.triu_indices(len(matrix))]


def slope_of(c: Any) -> Any:
    """The mean slope of Huber's loss times sigma, for normal residuals."""
    return scipy.special.erf(c / math.sqrt(2))


def bend_of(c: Any) -> Any:
    """The mean of min(1, c / |r|), which stands for it in vectors."""
    return slope_of(c) + c * scipy.special.exp1(c**2 / 2) / math.sqrt(2 * math.pi)


def full(numbers: np.ndarray, q: int) -> np.ndarray:
    """The matrix (q, q) whose svec comes first in these numbers. The inverse of `upper`."""
    found = np.zeros((q, q))
    found[np.triu_indices(q)] = numbers[: q * (q + 1) // 2]
    found = (found + found.T) / math.sqrt(2)
    found[np.diag_indices(q)] /= math.sqrt(2)
    return found


@dataclass(frozen=True)
class State:
    """The answer, the averages, and what is known of changes of the stream, of units and of the target.

    - `point` (d,): the answer, in original units.
    - `curved` (size - d,): the weighted mean of what follows the gradient in vectors; its `weight`, and `noise`, v
      times the square of that.
    - `noticed` and `replanned`: the records when the last change was noticed, and when sizes of batches began anew;
      `renewals`; `since`: the records of blocks since the last change; `changes`, and how many of them came `soon`
      after the one before; `merged`, 1 if blocks are of several learners.
    - `blocks` (BLOCKS, width): of `change`, with the weight tau, in the present units.
    - `units` (2, p): centres and slopes of the columns, slopes below 0 in a search; p = 0: they stay as they are.
    - `search`: the numbers of a search for the target, zeros after it.
    - `level`: L of a log link (see `losses.poisson`), in units of the target; none without such a link.
    """

    point: np.ndarray
    curved: np.ndarray
    blocks: np.ndarray
    units: np.ndarray
    search: np.ndarray
    level: np.ndarray
    weight: float = 0.0
    noise: float = 0.0
    noticed: float = 0.0
    replanned: float = 0.0
    renewals: float = 0.0
    since: float = 0.0
    changes: float = 0.0
    soon: float = 0.0
    merged: float = 0.0

    @classmethod
    def first(cls, curvature: Curvature, point: np.ndarray, units: np.ndarray, search: np.ndarray) -> Self:
        """The state before any batch, at a `point` (d,), in `units` (2, p), with the numbers of a `search`."""
        d = curvature.parameters
        blocks = np.zeros((change.BLOCKS, change.width(d)))
        level = np.zeros(int(curvature.loss.log_link))
        return cls(point.copy(), np.zeros(curvature.size - d), blocks, units.copy(), search.copy(), level)

    def numbers(self) -> np.ndarray:
        """All numbers, as a new array."""
        return np.concatenate([np.ravel(value) for value in vars(self).values()])

    def of(self, numbers: np.ndarray) -> Self:
        """The state with these numbers and the shapes of this one. The inverse of `numbers`."""
        found: dict[str, Any] = {}
        for field in fields(self):
            old = getattr(self, field.name)
            part, numbers = numbers[: np.size(old)], numbers[np.size(old) :]
            found[field.name] = part.reshape(old.shape).copy() if isinstance(old, np.ndarray) else float(part[0])
        return type(self)(**found)

    @property
    def variance(self) -> float:
        """v, of the noise on an entry of A."""
        return self.noise / self.weight**2 if self.weight else 0.0

    @property
    def records(self) -> float:
        """Those that the blocks are from."""
        return float(self.blocks[:, change.RECORDS].sum())

    @property
    def sigma(self) -> float:
        """Huber's at the newest query point, of which A is; that of the answer if there is none."""
        newest = self.blocks[change.used(self.blocks) - 1]
        if not newest[change.SCALE_WEIGHT]:
            return float(self.point[-1])
        return float(newest[len(self.point) - 1] / newest[change.SCALE_WEIGHT])

    def hessian(self, q: int) -> np.ndarray:
        """A (q, q)."""
        return full(self.curved, q)

    def in_units(self, units: np.ndarray, heavy: float, curvature: Curvature) -> Self:
        """The state in other units of columns (2, p), in which the mean weight w is at most `heavy`.

        A row (x, 1) becomes `carry` times it, and has another weight w. The noise is no longer the same on all
        coordinates: that of the loudest counts for all.
        """
        q, d = curvature.columns, curvature.columns * curvature.outputs
        if np.array_equal(units, self.units) or not self.weight:
            return replace(self, units=units)
        hessian, carry = self.hessian(q), np.eye(q)
        carry[:-1, :-1] *= units[1] / self.units[1]
        carry[:-1, -1] = (self.units[0] - units[0]) * units[1]
        lighter = min(1.0, heavy / max(float(hessian[-1, -1]), math.sqrt(self.variance)))
        louder = float(np.max(np.sum(carry**2, axis=1)))
        less, blocks, all_ = 1 / (lighter**2 * louder), self.blocks.copy(), curvature.parameters
        for at, other in ((0, np.linalg.inv(carry)), (all_, lighter * carry.T)):
            part = blocks[:, at : at + d]
            part[:] = (part.reshape(len(blocks), -1, q) @ other).reshape(part.shape)
        blocks[:, all_ + d : 2 * all_] *= lighter
        blocks[:, : change.RECORDS] *= less
        blocks[:, change.SQUARES] *= less
        curved, of_entries = lighter * self.curved, 1 / (lighter * louder) ** 2
        curved[: q * (q + 1) // 2] = lighter * upper(carry @ hessian @ carry.T)
        weight, noise = of_entries * self.weight, of_entries * self.noise
        return replace(self, units=units, blocks=blocks, curved=curved, weight=weight, noise=noise)

    def at_level(self, level: np.ndarray, curvature: Curvature) -> Self:
        """The state with predictors of another `level` of a log link, which follow from those of its own.

        With L' = f L, the predictor for the same logarithm is f u - L' ln f: see `losses.poisson`.
        """
        if not self.weight or np.array_equal(level, self.level):
            return replace(self, level=level)
        q, d, factor = curvature.columns, curvature.parameters, float(level[0] / self.level[0])
        blocks, curved = self.blocks.copy(), self.curved.copy()
        blocks[:, :q] *= factor
        blocks[:, q - 1] -= level * math.log(factor) * blocks[:, change.WEIGHT]
        blocks[:, d : d + q] /= factor
        blocks[:, change.NOISE] /= factor**2
        curved[: q * (q + 1) // 2] /= factor**2
        return replace(self, level=level, blocks=blocks, curved=curved, noise=self.noise / factor**4)

    def at_sigma(self, sigma: float, curvature: Curvature) -> Self:
        """The state with all gradients as if Huber's `sigma` had been this one at their query points.

        The mean slope of the loss, and what stands for it in vectors, are those of residuals that are normal with this
        sigma, or the part of it of the squared loss. The gradient of the scale is carried along its curvature.
        """
        q, c, blocks = curvature.columns, curvature.loss.cut, self.blocks.copy()
        if curvature.loss.grows:  # its residuals have this spread in units of sigma
            c /= math.sqrt(curvature.loss.kappa)
        used = blocks[: change.used(blocks)]
        if not self.weight:
            return self
        counts = used[:, change.SCALE_WEIGHT]
        at = np.divide(used[:, q], counts, out=np.full(len(used), sigma), where=counts > 0)
        ratios = np.clip(at / sigma, 1 / _OTHER, _OTHER)
        slopes, bends = (both(c * ratios) / both(c) / ratios for both in (slope_of, bend_of))
        curved = self.curved / bends[-1]
        used[:, q] = counts * sigma
        used[:, 2 * q + 1] += counts * curved[-1] * (sigma - at)
        used[:, q + 1 : 2 * q + 1] /= slopes[:, None]
        used[:, : change.RECORDS] *= slopes[:, None] ** 2
        share = bends[-1] ** 2
        return replace(self, blocks=blocks, curved=curved, weight=share * self.weight, noise=share * self.noise)

    def check(self, curvature: Curvature, check: Callable[[np.ndarray], None]) -> None:
        """Raise `ConfigError` for finite numbers that no walk has.

        So does the `check` that is passed, for a vector (d,) that is no parameter.
        """
        sums = [value for value in vars(self).values() if isinstance(value, float)]
        total = self.blocks.sum(axis=0)
        if min(sums) < 0 or np.abs(self.point).max() > _FURTHEST or (total[change.WEIGHT] > 0) != (self.weight > 0):
            raise ConfigError("state: its sums are out of range")
        if self.weight:
            self.check_level()
        change.check(self.blocks)
        check(self.point)
        if self.weight > 0:
            check(change.means(total, curvature.parameters, curvature.loss.has_scale)[0])

    def check_level(self) -> None:
        """Raise `ConfigError` for a level that no target has; before anything is learned there may be none."""
        if not np.all((self.level >= 1 / _FURTHEST) & (self.level <= _FURTHEST)):
            raise ConfigError("state: its level is out of range")
