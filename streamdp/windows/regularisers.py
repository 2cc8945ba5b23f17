"""Regularisers: a convex function h of theta that a user adds to the loss, for `windows.smoothed`.

h = g + s: g is smooth and has a gradient, s has a proximal map. Either may be 0. h depends on theta only, and not on
records, so it is public: it changes no gradient that a user is asked for, no sensitivity and no noise.
"""

import math
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from streamdp.errors import ConfigError, check_whole, is_number


class Regulariser(Protocol):
    """h = g + s, a hashable object (a frozen dataclass) that is identified by its `repr`.

    It must not be computed from records. Then privacy does not depend on it. If a declared constant is wrong, the bound
    on the excess loss does not hold.
    """

    @property
    def convexity(self) -> float:
        """The modulus of strong convexity of g, at least 0 and finite; 0 if g is convex only."""

    @property
    def smoothness(self) -> float:
        """A Lipschitz constant of the gradient of g, at least `convexity` and finite."""

    def gradient(self, theta: np.ndarray) -> np.ndarray:
        """The gradient of g at theta, (d,)."""

    def prox(self, theta: np.ndarray, size: float) -> np.ndarray:
        """The minimiser of size s(v) + ||v - theta||^2 / 2 over v in R^d, a new array (d,), for a size > 0.

        Its projection onto the domain has to be the minimiser within the domain. It is if s is a sum of functions of
        one entry each and the domain is a `Box`, and if s is a seminorm and the domain is an `L2Ball`.
        """


@dataclass(frozen=True)
class ElasticNet(Regulariser):
    """l1 ||theta||_1 + (l2 / 2) ||theta||^2 without the last entries of theta.

    Theta is in the units in which the window is learned. A release averages the steps of a run, so small weights are
    near 0 but not exactly 0.

    - `l1`, `l2`: at least 0 and finite.
    - `free`: how many of the last entries are left out: 1 for an intercept, 2 for an intercept and the scale of Huber's
      loss. Then h is not strongly convex.

    Raises `ConfigError` for parameters out of range.

    Source: Zou, Hastie, "Regularization and variable selection via the elastic net", 2005.

    >>> ElasticNet(l1=0.5, free=1).prox(np.array([3.0, -1.5, 2.0]), 1.0)
    array([ 2.5, -1. ,  2. ])
    """

    l1: float = 0.0
    l2: float = 0.0
    free: int = 0

    def __post_init__(self) -> None:
        for name in ("l1", "l2"):
            value = getattr(self, name)
            if not (is_number(value) and 0 <= value < math.inf):
                raise ConfigError(f"{name}: expected a finite number of at least 0, got {value!r}")
        check_whole("free", self.free, 0, 1 << 31)

    @property
    def convexity(self) -> float:
        return 0.0 if self.free else float(self.l2)

    @property
    def smoothness(self) -> float:
        return float(self.l2)

    def gradient(self, theta: np.ndarray) -> np.ndarray:
        return self.l2 * self._without_free(theta)

    def prox(self, theta: np.ndarray, size: float) -> np.ndarray:
        return theta - np.clip(self._without_free(theta), -size * self.l1, size * self.l1)

    def _without_free(self, theta: np.ndarray) -> np.ndarray:
        """A copy of theta (..., d), 0 in its free entries."""
        out = np.array(theta, dtype=float)
        out[..., max(out.shape[-1] - self.free, 0) :] = 0
        return out
