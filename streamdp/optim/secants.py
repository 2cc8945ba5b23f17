"""A Hessian from its own noisy sum and from gradients at several points, of the same records.

Gradients of the same records at points p_t differ by A (p_s - p_t) and their noise, where the Hessian A hardly depends
on the point. Let H be A with noise of variance v on each entry, and g_t the gradients with noise of variance 1 / w_t.
With dp_t and dg_t the deviations from their means, weighted by w_t, and P = (I / v + sum of w_t dp_t dp_t')^-1, the
posterior mean of the rows of A is

    (H / v + sum of w_t dg_t dp_t') P,

and P is the covariance of a row. A direction in which the points moved far is known much better than by H: the noise of
a gradient is that of d numbers, and that of H of d^2 / 2.

A depends on the point a little, and on Huber's scale. So a gradient that is dg from the mean also has an error of
.3 |dg|, spread over its coordinates: without it, gradients with little noise would overrule H, which is nearly exact
then.

Everything here is computed from noisy sums, so it is post-processing and spends nothing. It is about accuracy only.
"""

from __future__ import annotations

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
