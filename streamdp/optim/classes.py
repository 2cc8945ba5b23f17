"""The softmax or logistic loss of records of which the second moments are known: what Newton's steps of classes follow.

The Hessian of the softmax loss has K^2 blocks, and that of the logistic loss of a rare class is small beside the
noise of its sum. Only M, the mean of w x x', is released. For columns with these moments,
of the law that follows from their ends, the mean gradient is known at every theta, so the answer is found in one step,
however far it is. The gradients that are released say what is different for the records as they are. Everything here is
computed from noisy sums and public numbers, so it is post-processing and spends nothing. The rules:
docs/proofs/curvature.md, the steps.
"""

import math
from functools import lru_cache
from itertools import repeat
from typing import NamedTuple

import numpy as np
import scipy

from streamdp.optim.losses.logistic import without_shift
from streamdp.optim.shrinkage import pulls
from streamdp.reading import change

_ROWS = 256  # of normal numbers, and as many of the other sign, stand for the columns
_NODES = 128  # quantiles of a column's law; those between them are near enough
_TOTALS = 0.02, 200.0  # of the sums of the two parameters of a beta law
_LEAST = 1e-3  # of the variances of columns, over the largest
_NEAR = 0.03  # of its deviation: the gradient of a least loss


class ClassAnswer(NamedTuple):
    """Theta (K, q), and the inverse variances (K, q - 1) of the prior of the slopes that it was found with.

    `signal` and `error` are those of `newton.Solved`, by what the slopes do to the linear predictors.
    """

    theta: np.ndarray
    pull: np.ndarray
    signal: float
    error: float


@lru_cache(maxsize=8)
def _places(columns: int) -> np.ndarray:
    """Normal numbers (n, columns) at evenly spread places, in each column the same ones: those of each time."""
    drawn = np.random.default_rng(0).standard_normal((2 * (_ROWS + columns), columns))
    return np.asarray(scipy.special.ndtri((np.argsort(np.argsort(drawn, axis=0), axis=0) + 0.5) / len(drawn)))


def _spread_as(centre: np.ndarray, deviations: np.ndarray, ends: np.ndarray | None) -> np.ndarray:
    """Rows (n, p) of independent columns with means 0 and the covariance 1.

    Columns between `ends` (2, p) have the beta law of their `centre` and `deviations` (p,), others a normal one.
    """
    rows = _places(len(centre))
    if ends is not None:
        width, least = ends[1] - ends[0], 2 / len(rows)
        mean = np.clip((centre - ends[0]) / width, least, 1 - least)
        total = np.clip(mean * (1 - mean) * (width / deviations) ** 2 - 1, *_TOTALS)
        at = np.linspace(np.min(rows, initial=0.0), np.max(rows, initial=0.0), _NODES)
        some = scipy.special.betaincinv(mean * total, (1 - mean) * total, scipy.special.ndtr(at)[:, None])
        rows = np.column_stack([np.interp(*column) for column in zip(rows.T, repeat(at), some.T)])
    rows = (rows - rows.mean(axis=0)) / rows.std(axis=0)
    values, axes = np.linalg.eigh(rows.T @ rows / len(rows))
    return rows @ (axes / np.sqrt(values)) @ axes.T


class ClassProblem:
    """The model of K `outputs`, for M (q, q) with noise of this variance on each entry; the last column is 1.

    The others are between `ends` (2, q - 1), if these are known. One output is the logistic loss of two classes.
    """

    def __init__(self, moments: np.ndarray, variance: float, outputs: int, ends: np.ndarray | None = None) -> None:
        self.outputs, noise = outputs, float(np.sqrt(variance))
        self.weight = max(float(moments[-1, -1]), noise, 1e-9)
        centre = moments[:-1, -1] / self.weight
        spread = moments[:-1, :-1] / self.weight - np.outer(centre, centre)
        values, self.axes = np.linalg.eigh(spread)
        self.variances = np.maximum(values, max(noise / self.weight, _LEAST * float(np.max(values, initial=1.0))))
        spread = (self.axes * self.variances) @ self.axes.T
        deviations = np.sqrt(np.diag(spread))
        values, axes = np.linalg.eigh(spread / np.outer(deviations, deviations))
        mixed = _spread_as(centre, deviations, ends) @ (axes * np.sqrt(np.maximum(values, 0.0))) @ axes.T
        rows = centre + mixed * deviations
        self.rows = np.column_stack([rows, np.ones(len(rows))])

    def _chances(self, theta: np.ndarray) -> np.ndarray:
        """The chances (n, K) of the rows."""
        u = self.rows @ theta.reshape(self.outputs, -1).T
        return np.asarray(scipy.special.expit(u) if self.outputs == 1 else scipy.special.softmax(u, axis=1))

    def gradient(self, theta: np.ndarray) -> np.ndarray:
        """The part (d,) of the mean gradient at theta (d,) without the targets."""
        return self._mean(self._chances(theta))

    def placed(self, blocks: np.ndarray) -> np.ndarray:
        """Blocks of `change` (n, width) with the gradients at their query points in place of these, as new ones."""
        blocks, d = blocks.copy(), self.outputs * self.rows.shape[1]
        for i in np.flatnonzero(blocks[:, change.WEIGHT] > 0):
            weight = blocks[i, change.WEIGHT]
            blocks[i, :d] = weight * self.gradient(blocks[i, :d] / weight)
        return blocks

    def _mean(self, chances: np.ndarray) -> np.ndarray:
        return np.ravel(chances.T @ self.rows) * (self.weight / len(self.rows))

    def spreads(self, theta: np.ndarray) -> np.ndarray:
        """The variances (d,) of the gradients of records at theta (d,), over the mean weight, in these units."""
        chances = self._chances(theta)
        return np.ravel((chances * (1 - chances)).T @ self.rows**2) / len(self.rows)

    def hessian(self, theta: np.ndarray) -> np.ndarray:
        """The Hessian (q, q) at theta (q,), of one output."""
        chances = self._chances(theta)
        return np.asarray((self.rows * (chances * (1 - chances))).T @ self.rows * (self.weight / len(self.rows)))

    def answer(
        self, wanted: np.ndarray, noise: float, records: float, last: np.ndarray, before: ClassAnswer | None
    ) -> ClassAnswer:
        """Return the theta with the gradient that is `wanted` (d,), as far as noise and prior allow.

        That has noise of the variance `noise` on each coordinate, and records add their own, with `records` times the
        curvature. `last` (d,) is the answer without these numbers: shares of classes have a prior around its own, of
        the deviation 1 / K. The prior of slopes depends on the answer `before`, with about the same numbers, which it
        comes nearer to; None: there is none.
        """
        theta, pull = (last.reshape(self.outputs, -1), 0.0) if before is None else before[:2]
        chances = self._chances(theta)
        curved = np.maximum(np.mean(chances * (1 - chances), axis=0), 1e-12)[:, None]
        errors = noise + records * self.weight * curved[:, 0]
        kept = 1 / (1 + errors * (max(self.outputs, 2) / self.weight) ** 2)
        usual = self.weight * np.mean(self._chances(last), axis=0)
        found = usual + kept * (wanted.reshape(theta.shape)[:, -1] - usual)
        shares = self._shares(found, np.sqrt(kept * errors))
        wanted = np.column_stack([wanted.reshape(theta.shape)[:, :-1], self.weight * shares])
        curved = self.weight * np.column_stack([curved * self.variances, shares * (1 - shares)])
        errors = noise + records * curved
        errors[:, -1] *= kept
        noises = errors[:, :-1] / curved[:, :-1] ** 2
        along = theta[:, :-1] @ self.axes * (1 + noises * pull)
        pull = pulls(np.ravel(along), np.ravel(noises)).reshape(noises.shape)
        first = scipy.special.logit(shares) if self.outputs == 1 else np.log(shares)
        start = np.column_stack([theta[:, :-1], first])  # far from it the gradient is flat
        theta = self._least(wanted, errors, curved, pull, start)
        theta = without_shift(np.ravel(theta), self.outputs).reshape(theta.shape)
        signal = float(np.sum((theta[:, :-1] @ self.axes) ** 2 @ self.variances))
        return ClassAnswer(theta, pull, signal, float(np.sum(noises / (1 + noises * pull) @ self.variances)))

    def _shares(self, found: np.ndarray, errors: np.ndarray) -> np.ndarray:
        """The shares (K,) of the classes, whose weights (K,) are `found` with these `errors`: all are above 0.

        Each weight is the mean of a normal law above 0.
        """
        if self.outputs == 1:
            found, errors = np.append(found, self.weight - found), np.repeat(errors, 2)
        over = np.clip(found / errors, -30.0, 1e100)
        sound = errors * (over + np.exp(-(over**2) / 2 - scipy.special.log_ndtr(over)) / math.sqrt(2 * math.pi))
        return np.clip(sound / sound.sum(), 1e-9, 1 - 1e-9)[: self.outputs]

    def _least(
        self, wanted: np.ndarray, errors: np.ndarray, curved: np.ndarray, pull: np.ndarray, start: np.ndarray
    ) -> np.ndarray:
        """The most likely theta (K, q): the gradient is `wanted` (K, q) up to `errors`, slopes are near 0 by `pull`.

        `errors`, and `curved`, about the curvature, are those along the axes (K, q).
        """
        scales = np.sqrt(curved**2 / errors + np.column_stack([pull, np.zeros(len(pull))]))

        def loss(numbers: np.ndarray) -> tuple[float, np.ndarray]:
            along = numbers.reshape(scales.shape) / scales
            chances = self._chances(np.column_stack([along[:, :-1] @ self.axes.T, along[:, -1]]))
            off = self._mean(chances).reshape(scales.shape) - wanted
            off[:, :-1] = off[:, :-1] @ self.axes
            ways = off / errors
            moves = self.rows @ np.column_stack([ways[:, :-1] @ self.axes.T, ways[:, -1]]).T
            moves = chances * (moves - np.sum(chances * moves, axis=1, keepdims=True))  # of one output, too
            gradient = self._mean(moves).reshape(scales.shape)
            gradient[:, :-1] = gradient[:, :-1] @ self.axes + pull * along[:, :-1]
            return float(np.sum(off * ways) + np.sum(pull * along[:, :-1] ** 2)) / 2, np.ravel(gradient / scales)

        first = np.column_stack([start[:, :-1] @ self.axes, start[:, -1]]) * scales
        options = {"maxiter": 500, "gtol": _NEAR, "ftol": 0.0}
        found = scipy.optimize.minimize(loss, np.ravel(first), jac=True, method="L-BFGS-B", options=options)
        along = found.x.reshape(scales.shape) / scales
        return np.column_stack([along[:, :-1] @ self.axes.T, along[:, -1]])
