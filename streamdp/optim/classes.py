"""The softmax loss of records of which the second moments are known: what Newton's steps of several classes follow.

The Hessian of the softmax loss has K^2 blocks. Only M, the mean of w x x', is released. For normal columns with these
moments the mean gradient is known at every theta, so the answer is found in one step, however far it is. The gradients
that are released say what is different for the records as they are. Everything here is computed from noisy sums and
public numbers, so it is post-processing and spends nothing. The rules: docs/proofs/curvature.md, the steps.
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import NamedTuple

import numpy as np
import scipy

from streamdp.optim.losses.logistic import without_shift
from streamdp.optim.shrinkage import inverse_totals
from streamdp.reading import change

_ROWS = 256  # of normal numbers, and as many of the other sign, stand for the columns
_LEAST = 1e-3  # of the variances of columns, over the largest
_STEP = 2.0  # the deviation of an intercept's prior
_NEAR = 0.03  # of its deviation: the gradient of a least loss


class ClassAnswer(NamedTuple):
    """Theta (K, q), and the ridge (K, q) that it was found with."""

    theta: np.ndarray
    ridge: np.ndarray


@lru_cache(maxsize=8)
def _normal(columns: int) -> np.ndarray:
    """Rows (n, columns) with means 0 and the covariance 1: the same ones each time."""
    half = np.random.default_rng(0).standard_normal((_ROWS + columns, columns))
    rows = np.concatenate([half, -half])
    values, axes = np.linalg.eigh(rows.T @ rows / len(rows))
    found: np.ndarray = rows @ (axes / np.sqrt(values)) @ axes.T
    return found


class ClassProblem:
    """The model of K `outputs`, for M (q, q) with noise of this variance on each entry; the last column is 1."""

    def __init__(self, moments: np.ndarray, variance: float, outputs: int) -> None:
        self.outputs, noise = outputs, float(np.sqrt(variance))
        self.weight = max(float(moments[-1, -1]), noise, 1e-9)
        centre = moments[:-1, -1] / self.weight
        spread = moments[:-1, :-1] / self.weight - np.outer(centre, centre)
        values, self.axes = np.linalg.eigh(spread)
        self.variances = np.maximum(values, max(noise / self.weight, _LEAST * float(np.max(values, initial=1.0))))
        rows = centre + (_normal(len(centre)) * np.sqrt(self.variances)) @ self.axes.T
        self.rows = np.column_stack([rows, np.ones(len(rows))])

    def _chances(self, theta: np.ndarray) -> tuple[float, np.ndarray]:
        """The mean loss without the targets, and the chances (n, K) of the rows."""
        predictors = self.rows @ theta.reshape(self.outputs, -1).T
        top = predictors.max(axis=1, keepdims=True)
        chances = np.exp(predictors - top)
        sums = chances.sum(axis=1, keepdims=True)
        chances /= sums
        return float(np.mean(top + np.log(sums))), chances

    def gradient(self, theta: np.ndarray) -> np.ndarray:
        """The part (d,) of the mean gradient at theta (d,) without the targets."""
        return self._mean(self._chances(theta)[1])

    def placed(self, blocks: np.ndarray) -> np.ndarray:
        """Blocks of `change` (n, width) with the gradients at their query points in place of these, as new ones."""
        blocks, d = blocks.copy(), self.outputs * self.rows.shape[1]
        for i in np.flatnonzero(blocks[:, change.WEIGHT] > 0):
            weight = blocks[i, change.WEIGHT]
            blocks[i, :d] = weight * self.gradient(blocks[i, :d] / weight)
        return blocks

    def _mean(self, chances: np.ndarray) -> np.ndarray:
        found: np.ndarray = np.ravel(chances.T @ self.rows) * (self.weight / len(self.rows))
        return found

    def spreads(self, theta: np.ndarray) -> np.ndarray:
        """The variances (d,) of the gradients of records at theta (d,), over the mean weight, in these units."""
        chances = self._chances(theta)[1]
        return np.ravel((chances * (1 - chances)).T @ self.rows**2) / len(self.rows)

    def answer(
        self, wanted: np.ndarray, noise: float, records: float, last: np.ndarray, before: ClassAnswer | None
    ) -> ClassAnswer:
        """Return the theta with the gradient that is `wanted` (d,), as far as noise and prior allow.

        That has noise of the variance `noise` on each coordinate, and records add their own, with `records` times the
        curvature. `last` (d,) is the answer without these numbers. The prior depends on the answer `before`, with about
        the same numbers, which it comes nearer to; None: there is none.
        """
        last = last.reshape(self.outputs, -1)
        theta, ridge = (last, np.zeros_like(last)) if before is None else before
        chances = self._chances(theta)[1]
        usual = self.weight * np.mean(chances * (1 - chances), axis=0)[:, None]
        curved = np.maximum(usual * np.append(self.variances, 1.0), 1e-12)
        errors = noise / curved**2 + records / curved
        slopes = errors[:, :-1]
        along = theta[:, :-1] @ self.axes * (1 + ridge[:, :-1] / curved[:, :-1])
        kept = 1 - slopes * inverse_totals(np.ravel(along), np.ravel(slopes))[1].reshape(slopes.shape)
        ridge = curved * np.column_stack([1 / np.maximum(kept, 1e-9) - 1, errors[:, -1] / _STEP**2])
        near = _NEAR * math.sqrt(float(np.min(errors * curved**2 / (curved + ridge))))
        theta = self._least(wanted, ridge, np.sqrt(curved + ridge), theta, last[:, -1], near)
        return ClassAnswer(without_shift(np.ravel(theta), self.outputs).reshape(theta.shape), ridge)

    def _least(
        self,
        wanted: np.ndarray,
        ridge: np.ndarray,
        scales: np.ndarray,
        start: np.ndarray,
        centre: np.ndarray,
        near: float,
    ) -> np.ndarray:
        """The theta (K, q) of least loss, with this ridge (K, q) along the axes and around the intercepts' `centre`.

        A gradient that is `near` 0, over the `scales` (K, q), is enough.
        """

        def loss(numbers: np.ndarray) -> tuple[float, np.ndarray]:
            along = numbers.reshape(scales.shape) / scales
            theta = np.column_stack([along[:, :-1] @ self.axes.T, along[:, -1] + centre])
            value, chances = self._chances(theta)
            gradient = (self._mean(chances) - wanted).reshape(theta.shape)
            gradient = np.column_stack([gradient[:, :-1] @ self.axes, gradient[:, -1]]) + ridge * along
            value = self.weight * value - float(np.ravel(theta) @ wanted) + float(np.sum(ridge * along**2)) / 2
            return value, np.ravel(gradient / scales)

        first = np.column_stack([start[:, :-1] @ self.axes, start[:, -1] - centre]) * scales
        options = {"maxiter": 100, "gtol": near, "ftol": 0.0}
        found = scipy.optimize.minimize(loss, np.ravel(first), jac=True, method="L-BFGS-B", options=options)
        along = found.x.reshape(scales.shape) / scales
        return np.column_stack([along[:, :-1] @ self.axes.T, along[:, -1] + centre])
