"""Closed convex sets to which the coefficients are projected. Huber's scale has a lower bound of its own."""

from dataclasses import dataclass

import numpy as np

from streamdp.errors import ConfigError, is_number


@dataclass(frozen=True)
class RealSpace:
    """All of R^d: no projection."""

    def project(self, theta: np.ndarray) -> np.ndarray:
        """The point of the domain that is nearest to `theta`, as a new array (d,)."""
        return np.asarray(theta, dtype=float).copy()


@dataclass(frozen=True)
class L2Ball:
    """{theta : ||theta||_2 <= radius}.

    Parameters
    ----------
    radius
        Positive and finite.

    Raises `ConfigError` if the radius is out of range.

    >>> L2Ball(1.0).project([3.0, 4.0])
    array([0.6, 0.8])
    """

    radius: float = 1.0

    def __post_init__(self) -> None:
        if not (is_number(self.radius) and 0 < self.radius < np.inf):
            raise ConfigError(f"L2Ball: radius must be positive and finite, got {self.radius}")

    def project(self, theta: np.ndarray) -> np.ndarray:
        """See `RealSpace.project`."""
        theta = np.asarray(theta, dtype=float)
        return theta * min(1.0, self.radius / max(float(np.linalg.norm(theta)), 1e-300))


@dataclass(frozen=True)
class Box:
    """{theta : low <= theta_j <= high for every j}.

    Parameters
    ----------
    low, high
        low < high; infinities are allowed.

    Raises `ConfigError` if low is not below high.

    >>> Box(-1.0, 1.0).project([3.0, 0.5])
    array([1. , 0.5])
    """

    low: float = -1.0
    high: float = 1.0

    def __post_init__(self) -> None:
        if not (is_number(self.low) and is_number(self.high) and self.low < self.high):
            raise ConfigError(f"Box: low must be below high, got [{self.low}, {self.high}]")

    def project(self, theta: np.ndarray) -> np.ndarray:
        """See `RealSpace.project`."""
        return np.asarray(np.clip(np.asarray(theta, dtype=float), self.low, self.high))


Domain = RealSpace | L2Ball | Box
