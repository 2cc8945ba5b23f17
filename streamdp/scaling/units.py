"""The units in which columns and target are learned: one affine map.

Columns are learned as (x - centre) slope, and the target as (y - centre) / scale. Centres, slopes and scale are public,
or were released before; so no argument about gradients changes, because their bounds hold for every x and y. What is
shown is in original units.
"""

import math
from collections.abc import Mapping
from typing import Literal, NamedTuple

import numpy as np

from streamdp.errors import ConfigError

Bounds = tuple[float, float]
Link = tuple[float, float]
FAR = 4.0
"""How many released deviations from its released centre a column is cut, alike in learning and in predictions."""
ROOM = 2.4
"""Of the squared derivative of a loss: what the search for columns adds to the square of the bound."""
FAR_OF_NUMBERS = 12.0
"""The same in batches of numbers, whose losses are robust, unless the slope is `MOST`, or a logarithm is linear."""
MOST = 40.0
"""The slope of a column that has one value almost always, so that no spread is seen."""
Scaling = Literal["private", "declared", "none"]
"""How columns and targets are centred and scaled."""
_BOUNDS = "declared bounds, in `features` or `target`"


class Units(NamedTuple):
    """Centres and slopes of columns, centre and scale of the target, and what targets are clipped to.

    Theta has p coefficients, and an intercept or not, for each output; Huber's scale may follow. With a `level` above 0
    theta for values as they are is that of a logarithm, and in these units that of the predictor of `losses.poisson`.
    """

    columns: np.ndarray  # (2, p) centres and slopes
    centre: float = 0.0
    scale: float = 1.0
    bounds: Bounds | None = None
    intercept: bool = True
    outputs: int = 1
    level: float = 0.0

    @property
    def link(self) -> Link:
        """LINK and ORIGIN of the compiled loops, for a target in these units."""
        return self.level / self.scale, self.centre / self.scale if self.level else 0.0

    def _blocks(self, theta: np.ndarray) -> np.ndarray:
        """The part of theta (d,) that predicts: a view (outputs, p), or (outputs, p + 1) with an intercept."""
        q = self.columns.shape[1] + self.intercept
        return theta[: q * self.outputs].reshape(-1, q)

    def inward(self, theta: np.ndarray) -> np.ndarray:
        """Return theta (d,), that for values as they are, in these units, as a new array; slopes of 0 give 0."""
        (centre, slope), p = self.columns, self.columns.shape[1]
        theta = theta.copy()
        blocks = self._blocks(theta)
        if self.level:
            blocks[:, p] -= math.log(self.level) - 1
            blocks *= self.level
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
        if self.level:
            blocks /= self.level
            blocks[:, p] += math.log(self.level) - 1
        return theta

    def place_columns(self, X: np.ndarray) -> None:
        """Write columns X (n, p) in their units, in place."""
        with np.errstate(over="ignore"):  # gradients at values that overflow are 0
            X -= self.columns[0]
            X *= self.columns[1]

    def place_targets(self, y: np.ndarray) -> None:
        """Clip targets y (n,) to their bounds, and write them in their units, in place; without bounds they stay."""
        if self.bounds is not None:
            np.clip(y, *self.bounds, out=y)
            y -= self.centre
            y /= self.scale


def ranges_of(units: np.ndarray, deviations: float | np.ndarray) -> np.ndarray:
    """The lowest and the largest values (2, p) of columns with centres and slopes `units` (2, p), as they are cut.

    A unit is so many `deviations` of a column, one number or (p,). With the slope 1, or 0, a column has no units of its
    own: it is not cut.
    """
    centre, slope = units
    far = np.divide(FAR / deviations, slope, out=np.full_like(slope, np.inf), where=(slope != 1) & (slope > 0))
    return np.stack([centre - far, centre + far])


def level_of(centre: float, spread: float) -> float:
    """The level of a target with this `centre` and `spread`: about its mean, and above 0 if most targets are 0."""
    return max(centre, spread / 2)


def declared(p: int, bounds: Bounds | None, outputs: int = 1, intercept: bool = True) -> Units:
    """Return units of p columns as they are, and of a target in half the width of its `bounds`, around their middle.

    `outputs` and `intercept` are those of `Units`.
    """
    columns = np.repeat([[0.0], [1.0]], p, axis=1)
    if bounds is None:
        return Units(columns, intercept=intercept, outputs=outputs)
    low, high = bounds
    return Units(columns, low / 2 + high / 2, high / 2 - low / 2, bounds, intercept, outputs)


def rebase(theta: np.ndarray, old: Units, new: Units) -> np.ndarray:
    """Return theta (d,), given in old units, in new ones, as a new array."""
    return new.inward(old.outward(theta))


def free_units(
    intercept: bool, given_domain: bool, smoothness: float | None = None, convexity: float = 0.0
) -> dict[str, bool]:
    """What must hold so that theta may be learned in other units, by its name, and whether it does.

    A given_domain, the smoothness and the strong convexity are in units of theta; an intercept takes in centres.
    """
    return {
        "intercept=True": intercept,
        "no domain, because the units of theta change": not given_domain,
        "no smoothness and no strong_convexity, which are in units of theta": smoothness is None and not convexity,
    }


def scaling_of(asked: str | None, usual: str, bounds: bool, needs: Mapping[str, Mapping[str, bool]]) -> str:
    """Return which `Scaling` is meant: the one that was asked for, or the usual one where that is possible.

    `bounds` says whether there are declared ones. `needs` has what must hold for a scaling, by its name. Raises
    `ConfigError` if what was asked for is not possible.
    """
    scaling = asked or usual
    if scaling == "none":
        return scaling
    missing = [name for name, held in {_BOUNDS: bounds, **needs.get(scaling, {})}.items() if not held]
    if missing and asked is not None:
        raise ConfigError(f"scaling: {scaling} scaling needs {missing[0]}")
    return "none" if missing else scaling
