"""The squared loss."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from streamdp.errors import ConfigError, is_number
from streamdp.optim.losses.base import Loss

_ROUNDING = 2.0**-41  # relative rounding error that a projection may leave: half of what the mechanisms allow


@dataclass(frozen=True, kw_only=True)
class Squared(Loss):
    """l(u) = (u - y)^2 / 2, clipped, or with bounded targets and a bounded theta.

    Mallows weights alone do not bound this gradient, because the residual is unbounded. So either clip it (the default,
    C = 1), or give `clip=None`, `target_bound` B and `radius` R.

    Bound. |u - y| ||x|| w <= (R ||x|| + B) ||x|| w = R ||x||^2 w + B ||x|| w <= 2 R + sqrt(2) B = C0.

    Sensitivity. S = 2 C0 by the triangle inequality. It is safe, but not reached: a gradient of norm C0 needs x
    parallel to theta and y = B or -B of the sign opposite to u, and is then the same for x and -x.

    Smoothness. The second derivative in u is 1, and ||x||^2 w <= 2.

    Parameters
    ----------
    clip, weighting
        As for `Loss`; `clip` is None if `target_bound` and `radius` are given, and the weight is then Mallows'.
    target_bound
        B > 0: targets are cut to [-B, B].
    radius
        R > 0: theta stays in the ball of this radius, by projection.

    Raises `ConfigError` if not exactly one of the two ways is chosen, or if a number is out of range.
    """

    clip: float | None = 1.0
    target_bound: float | None = None
    radius: float | None = None

    name = "squared"
    code = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        if (self.clip is None) == (self.target_bound is None or self.radius is None):
            raise ConfigError("Squared: give clip, or clip=None with target_bound and radius")
        if self.by_norm:
            raise ConfigError("Squared: expected weighting mallows, because its bound needs a bounded ||x||^2 w")
        for name, value in (("target_bound", self.target_bound), ("radius", self.radius)):
            if value is not None and not (is_number(value) and 0 < value < math.inf):
                raise ConfigError(f"Squared: {name} must be positive and finite, got {value}")

    def check_theta(self, theta: np.ndarray, columns: int) -> None:
        super().check_theta(theta, columns)
        with np.errstate(over="ignore"):
            outside = self.radius is not None and np.linalg.norm(theta / self.radius) > 1 + _ROUNDING
        if outside:
            raise ConfigError(f"theta: expected a norm of at most {self.radius:g}, which the bound assumes")

    def _bound(self) -> float:
        return 2 * (self.radius or 0.0) + math.sqrt(2) * (self.target_bound or 0.0)

    def _smoothness(self) -> float:
        return 2.0

    def spec(self) -> np.ndarray:
        from streamdp.optim import loops as k

        spec = super().spec()
        if self.target_bound is not None:
            spec[k.TARGET_BOUND] = self.target_bound
        return spec

    def _cut(self, y: float) -> float:
        return y if self.target_bound is None else min(max(y, -self.target_bound), self.target_bound)

    def _loss(self, u: float, y: float) -> float:
        return 0.5 * (u - self._cut(y)) ** 2
