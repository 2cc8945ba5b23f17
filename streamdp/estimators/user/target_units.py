"""Targets in units of their declared bounds: for learners that begin at 0 with steps for a target of spread 1.

With the bounds (low, high), theta is learned for (y - centre) / scale, centre = (low + high) / 2 and scale = (high -
low) / 2, and y is clipped to the bounds. Both are public, so nothing is spent on them, and no argument about gradients
changes, because their bounds hold for every y. What is shown is in original units.

Targets stay as they are if a parameter is in the units of theta: a domain, a smoothness or a strong convexity. A state
that was written before targets had units goes on without them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Self

import numpy as np

from streamdp.errors import ConfigError
from streamdp.estimators.bounded import BoundedModel
from streamdp.optim.states import finite_array

Bounds = tuple[float, float]

TARGET = """
    The public bounds (low, high) of the target. With an intercept, and without a domain, `smoothness`,
    `strong_convexity` and scaling="none", the target is clipped to them, and theta is learned in units of half their
    width, in which the numbers of the loss are, too. Otherwise, and with None, theta is learned for the target as it
    comes, which should have a spread of about 1."""
"""The text of the parameter `target`."""

_OF_THETA = {"domain": None, "smoothness": None, "strong_convexity": 0.0}  # with their defaults


def place_targets(y: np.ndarray, bounds: Bounds | None) -> None:
    """Clip targets to their bounds and write them in units of these, in place.

    Parameters
    ----------
    y
        (n,) targets.
    bounds
        (low, high); None: nothing is done.
    """
    if bounds is not None:
        centre, scale = _centre_and_scale(bounds)
        np.clip(y, *bounds, out=y)
        y -= centre
        y /= scale


def _centre_and_scale(bounds: Bounds) -> Bounds:
    low, high = bounds
    return low / 2 + high / 2, high / 2 - low / 2


class TargetUnits(BoundedModel):
    """The bounds in whose units the targets are learned; they are in the state."""

    _bounds: Bounds | None = None
    """None: targets are learned as they are."""

    def _usual_bounds(self) -> Bounds | None:
        """Those of a new model."""
        given = any(getattr(self, name) != usual for name, usual in _OF_THETA.items())
        return None if given or not self.intercept else self._target_bounds()

    def _begin_in(self, bounds: Bounds | None) -> None:
        """Learn in units of these bounds, in an estimator that has learned nothing."""
        self._bounds = bounds

    def _outward(self, theta: np.ndarray) -> np.ndarray:
        """Theta (d,) in original units."""
        if self._bounds is not None:
            centre, scale = _centre_and_scale(self._bounds)
            theta = theta * scale
            theta[len(self._names)] += centre
        return theta

    def _inward(self, original: np.ndarray) -> np.ndarray:
        """Theta (d,) as it is learned, as a new array: the inverse of `_outward`."""
        theta = original.copy()
        if self._bounds is not None:
            centre, scale = _centre_and_scale(self._bounds)
            theta[len(self._names)] -= centre
            theta /= scale
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
        self._begin_in(parts[0]._bounds)  # noqa: SLF001 - the same class
        super()._start_from_average(parts)
