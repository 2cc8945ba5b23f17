"""The non-smooth losses: each has one kink between two slopes."""

import math
from dataclasses import dataclass

import numpy as np

from streamdp.errors import ConfigError, is_number
from streamdp.optim.losses.base import Loss, check_classes


@dataclass(frozen=True, kw_only=True)
class Quantile(Loss):
    """The pinball loss l(u) = (tau - 1{y < u}) (y - u); tau = 1/2 is half the absolute loss.

    Bound. The subderivative in u is 1{u > y} - tau, of modulus at most M = max(tau, 1 - tau). So C0 = sqrt(2) M (see
    `Loss`).

    Sensitivity. S = 2 C0 = 2 sqrt(2) M, reached by opposite x of norm sqrt(2) with residuals of the same sign.

    Parameters
    ----------
    clip, weighting
        As for `Loss`.
    tau
        The quantile, in (0, 1).

    Raises `ConfigError` if a number is out of range.
    """

    tau: float = 0.5

    name = "quantile"
    expected_curvature = 0.5
    code = 4

    def __post_init__(self) -> None:
        super().__post_init__()
        if not (is_number(self.tau) and 0 < self.tau < 1):
            raise ConfigError(f"Quantile: tau must be in (0, 1), got {self.tau}")

    @property
    def level(self) -> float:
        return self.tau

    def _bound(self) -> float:
        return math.sqrt(2) * max(self.tau, 1 - self.tau)

    def spec(self) -> np.ndarray:
        from streamdp.optim import loops as k

        spec = super().spec()
        spec[k.SHAPE] = self.tau
        return spec

    def _loss(self, u: float, y: float) -> float:
        return (self.tau - (y < u)) * (y - u)


@dataclass(frozen=True, kw_only=True)
class Hinge(Loss):
    """l(u) = max(0, 1 - s u) with s = 2 y - 1, y in {0, 1}: a linear support vector classifier, without probabilities.

    Bound. The subderivative in u is 0 or -s, so M = 1 and C0 = sqrt(2) (see `Loss`).

    Sensitivity. S = 2 C0 = 2 sqrt(2), reached by the same x of norm sqrt(2) with both classes, at |u| < 1.

    Parameters
    ----------
    clip, weighting
        As for `Loss`.
    """

    name = "hinge"
    of_classes = True
    expected_curvature = 0.25
    code = 5

    def check_targets(self, y: np.ndarray, classes: int = 2) -> None:
        check_classes(y, 2)

    def _bound(self) -> float:
        return math.sqrt(2)

    def _loss(self, u: float, y: float) -> float:
        return max(0.0, 1 - (2 * y - 1) * u)
