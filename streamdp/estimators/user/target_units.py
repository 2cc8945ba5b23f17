"""Targets in units of their declared bounds: for learners that begin at 0 with steps for a target of spread 1.

With the bounds (low, high), theta is learned for (y - centre) / scale, and y is clipped to the bounds. Centre and scale
are (low + high) / 2 and (high - low) / 2, which are public, or were learned privately before (`asked_units`). So no
argument about gradients changes, because their bounds hold for every y. What is shown is in original units.

Targets stay as they are if a parameter is in the units of theta: a domain, a smoothness or a strong convexity. A state
that was written before targets had units goes on without them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Self

import numpy as np

from streamdp.errors import ConfigError
from streamdp.estimators.bounded import BoundedModel
from streamdp.optim.states import finite_array

Bounds = tuple[float, float]

TARGET = """
    The public bounds (low, high) of the target. With an intercept, and without a domain, `smoothness`,
    `strong_convexity` and scaling="none", the target is clipped to them, and theta is learned in units {}, in which the
    numbers of the loss are, too. Otherwise, and with None, theta is learned for the target as it comes, which should
    have a spread of about 1."""
"""The text of the parameter `target`."""

_OF_THETA = {"domain": None, "smoothness": None, "strong_convexity": 0.0}  # with their defaults


class Units(NamedTuple):
    """What targets are clipped to, and in what units they are learned.

    Parameters
    ----------
    low, high
        The bounds of the target.
    centre, scale
        What is learned is (y - centre) / scale.
    """

    low: float
    high: float
    centre: float
    scale: float


def units_of(bounds: Bounds) -> Units:
    """Return the units of half the width of the bounds, around their middle."""
    low, high = bounds
    return Units(low, high, low / 2 + high / 2, high / 2 - low / 2)


def place_targets(y: np.ndarray, units: Units | None) -> None:
    """Clip targets to their bounds and write them in their units, in place.

    Parameters
    ----------
    y
        (n,) targets.
    units
        None: nothing is done.
    """
    if units is not None:
        np.clip(y, units.low, units.high, out=y)
        y -= units.centre
        y /= units.scale


def place_columns(X: np.ndarray, units: np.ndarray | None) -> None:
    """Write columns in their units, in place.

    Parameters
    ----------
    X
        (n, p) features.
    units
        (2, p) centres and slopes; None: nothing is done.
    """
    if units is not None:
        with np.errstate(over="ignore"):  # gradients at values that overflow are 0
            X -= units[0]
            X *= units[1]


class TargetUnits(BoundedModel):
    """The bounds of the targets and the units in which they are learned; they are in the state."""

    scaling: str | None = None
    _bounds: Bounds | None = None
    """None: targets are learned as they are."""

    @property
    def _units(self) -> Units | None:
        return None if self._bounds is None else units_of(self._bounds)

    def _usual_bounds(self) -> Bounds | None:
        """Those of a new model."""
        return self._target_bounds() if self._may_scale else None

    @property
    def _may_scale(self) -> bool:
        """Whether no parameter of a new model is in the units of theta."""
        given = self.scaling == "none" or any(getattr(self, name) != usual for name, usual in _OF_THETA.items())
        return bool(self.intercept) and not given

    def _begin_in(self, bounds: Bounds | None) -> None:
        """Learn in units of these bounds, in an estimator that has learned nothing."""
        self._bounds = bounds

    def _outward(self, theta: np.ndarray) -> np.ndarray:
        """Theta (d,) in original units."""
        if (units := self._units) is not None:
            theta = theta * units.scale
            theta[len(self._names)] += units.centre
        return theta

    def _inward(self, original: np.ndarray) -> np.ndarray:
        """Theta (d,) as it is learned, as a new array: the inverse of `_outward`."""
        theta = original.copy()
        if (units := self._units) is not None:
            theta[len(self._names)] -= units.centre
            theta /= units.scale
        return theta

    def _estimate(self) -> np.ndarray:
        return self._outward(self._inner())

    def _about_domain(self, theta: str = "theta") -> list[str]:
        return super()._about_domain(theta + ", in units of the target's bounds," * (self._bounds is not None))

    # -- state -------------------------------------------------------------------------------------------------------

    def _learned_bounds(self) -> dict[str, Any]:
        """For the state."""
        return {} if self._bounds is None else {"target": list(self._bounds)}

    def _read_bounds(self, state: Mapping[str, Any]) -> Bounds | None:
        """Those of a state. Raises `ConfigError` if they are not those of the parameter `target`."""
        if "target" not in state:
            return None
        bounds = self._usual_bounds()
        if bounds is None or finite_array(state, "target", (2,)).tolist() != list(bounds):
            raise ConfigError("state: expected the bounds of the target with which it was learned")
        return bounds

    def _contribution(self) -> tuple[dict[str, Any], dict[str, int], np.ndarray]:
        model, counts, numbers = super()._contribution()
        return model | {"bounds of the target": self._bounds}, counts, numbers

    def _start_from_average(self, parts: Sequence[Self]) -> None:
        parts[0]._need_features("merged")  # noqa: SLF001 - the same class
        if self._features is None:
            self._declare(parts[0]._names)  # noqa: SLF001 - the same class
        self._begin_as(parts)
        super()._start_from_average(parts)

    def _begin_as(self, parts: Sequence[Self]) -> None:
        """Take over the units of parts that are merged."""
        self._begin_in(parts[0]._bounds)  # noqa: SLF001 - the same class
