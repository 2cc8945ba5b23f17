"""A Hessian from its own noisy sum and from gradients at several points, of the same records.

Everything here is computed from noisy sums, so it is post-processing and spends nothing. It is about accuracy only. The
formulas: docs/proofs/curvature.md, the steps.
"""

import numpy as np

_ERROR = 0.3


class Secants:
    """The points (q,) and gradients (q,) of the rounds of one window."""

    def __init__(self) -> None:
        self._rounds: list[tuple[np.ndarray, np.ndarray, float]] = []

    def __bool__(self) -> bool:
        return len(self._rounds) > 1

    def add(self, point: np.ndarray, gradient: np.ndarray, weight: float) -> None:
        """Add the gradient at a point, whose noise has the variance 1 / `weight` on each coordinate."""
        self._rounds.append((point.copy(), gradient.copy(), weight))

    def improved(self, hessian: np.ndarray, variance: float) -> tuple[np.ndarray, np.ndarray]:
        """Return A (q, q) and P (q, q) for a `hessian` (q, q) with noise of this variance on each entry."""
        points, gradients, weights = (np.array(numbers) for numbers in zip(*self._rounds, strict=True))
        weights = weights[:, None]
        points -= np.average(points, axis=0, weights=weights[:, 0])
        gradients -= np.average(gradients, axis=0, weights=weights[:, 0])
        weights = 1 / (1 / weights + _ERROR**2 * np.mean(gradients**2, axis=1, keepdims=True))
        inverse = np.linalg.inv(np.eye(len(hessian)) + variance * (points * weights).T @ points)
        found = (hessian + variance * (gradients * weights).T @ points) @ inverse
        return (found + found.T) / 2, variance * inverse
