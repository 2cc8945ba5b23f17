"""Closed convex sets that theta is projected to (the coefficients; Huber's scale keeps its own lower bound)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from streamdp.errors import ConfigError


@dataclass(frozen=True)
class RealSpace:
    """All of R^d: no projection."""

    def project(self, theta: np.ndarray) -> np.ndarray:
        return np.asarray(theta, dtype=float).copy()


@dataclass(frozen=True)
class L2Ball:
    """{theta : ||theta||_2 <= radius}, radius > 0.

    >>> L2Ball(1.0).project([3.0, 4.0])
    array([0.6, 0.8])
    """

    radius: float = 1.0

    def __post_init__(self) -> None:
        if not 0 < self.radius < np.inf:
            raise ConfigError(f"L2Ball: radius must be positive and finite, got {self.radius}")

    def project(self, theta: np.ndarray) -> np.ndarray:
        theta = np.asarray(theta, dtype=float)
        return theta * min(1.0, self.radius / max(float(np.linalg.norm(theta)), 1e-300))


@dataclass(frozen=True)
class Box:
    """{theta : low <= theta_j <= high}, low < high, the same for every coefficient.

    >>> Box(-1.0, 1.0).project([3.0, 0.5])
    array([1. , 0.5])
    """

    low: float = -1.0
    high: float = 1.0

    def __post_init__(self) -> None:
        if not self.low < self.high:
            raise ConfigError(f"Box: low must be below high, got [{self.low}, {self.high}]")

    def project(self, theta: np.ndarray) -> np.ndarray:
        return np.clip(np.asarray(theta, dtype=float), self.low, self.high)


Domain = RealSpace | L2Ball | Box
