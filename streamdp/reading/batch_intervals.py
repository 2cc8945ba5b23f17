"""Confidence intervals of averaged Newton steps, from the noisy sums that batches released.

A block of `change` has the mean query point p_j and the mean gradient g_j of some batches. With the Hessian A the
answer is t = pbar - A^-1 gbar, and a block deviates from it by r_j = g_j - A (p_j - t). Then cov t = phi s A^-1 + n
A^-2: s is the sum of omega^2 / b / W^2, from the spread of gradients, and n that of (omega z / b)^2 / W^2, from the
noise. phi is found from all r_j by the method of moments, with a usual value as a prior, and the limits are those of
Student's law. Batches take the least A that its noise allows. It spends nothing; it is an approximation, whose coverage
is measured: docs/proofs/intervals.md.
"""

import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import scipy

from streamdp.reading import change

BATCHES, WINDOWS = 4, 1
"""The fewest blocks of batches, of which the first are far from the answer, and of windows, which have rounds."""
_CLEAR, _CLEAR_IN_BATCHES = 3.0, 5.0  # the least eigenvalue of A over the largest of its noise
_BENT = 0.3  # by which share A may be wrong beside the Hessian
_PRIOR, _LEAST_PHI = 0.5, 0.25  # of the expected phi: its deviation before any block, and the least


class Spread(NamedTuple):
    """Released means over people of g g' (q, q), g being the gradient of one, and of the Hessian (q, q); None: A is it.

    `of_gradients` and `of_hessian` are the variances by noise of an entry.
    """

    gradients: np.ndarray
    of_gradients: float
    hessian: np.ndarray | None = None
    of_hessian: float = 0.0


class StepEstimates(NamedTuple):
    """An answer (q,) with its covariance (q, q), and the degrees of freedom (q,) of the latter."""

    answer: np.ndarray
    covariance: np.ndarray
    freedom: np.ndarray

    def through(self, affine: Callable[[np.ndarray], np.ndarray]) -> "StepEstimates":
        """The same after an `affine` map of the answer, of which Huber's scale, if it is not known, is no part."""
        known = np.isfinite(self.answer)
        zero = affine(np.zeros(len(known)))
        axes = np.array([affine(unit) - zero for unit in np.eye(len(known))])[np.ix_(known, known)].T
        answer, covariance = np.full_like(self.answer, np.nan), np.full_like(self.covariance, np.nan)
        answer[known] = zero[known] + axes @ self.answer[known]
        covariance[np.ix_(known, known)] = axes @ self.covariance[np.ix_(known, known)] @ axes.T
        return StepEstimates(answer, covariance, self.freedom)

    def limits(self, level: float) -> np.ndarray:
        """The (q, 2) limits at a confidence `level`, NaN if they are not known."""
        half = scipy.special.stdtrit(self.freedom, (1 + level) / 2) * np.sqrt(np.diagonal(self.covariance))
        return np.column_stack([self.answer - half, self.answer + half])


def steps_of(
    blocks: np.ndarray,
    hessian: np.ndarray,
    floor: float,
    expected: float,
    least: int = BATCHES,
    uneven: float = 1.0,
    released: Spread | None = None,
) -> StepEstimates | None:
    """Return the answer with its covariance; None if intervals would not hold.

    `blocks` are those of `change`, of q parameters. `hessian` (q, q) is A, `floor` the size of the eigenvalues of its
    noise, `expected` a usual phi, and `least` the fewest blocks. In no direction is the spread of gradients more than
    `uneven` times that of all together, whatever the spread of residuals depends on. If the spread was `released`
    and stands out of its noise, nothing is expected.
    """
    q, end, in_batches = len(hessian), change.used(blocks), least > WINDOWS
    values = np.linalg.eigvalsh(hessian)
    if released is not None:
        together, size = _together(hessian, floor, released)
        clear = np.linalg.eigvalsh(together)
        if clear[0] < _CLEAR * size:
            released = None  # its noise is too large for an inverse: the bound holds as without it
        else:
            hessian, floor, values = together, size, clear
    if end < least or values[0] < (_CLEAR_IN_BATCHES if in_batches else _CLEAR) * floor or values[0] <= 0:
        return None
    used, total = blocks[:end], blocks.sum(axis=0)
    (points, gradients), (middle, mean) = change.means(used, q, False), change.means(total, q, False)
    inverse = np.linalg.inv(hessian)
    answer = middle - inverse @ mean
    rest = gradients - (points - answer) @ hessian
    weights = used[:, change.WEIGHT]
    spread, noise = used[:, change.SQUARES] / weights**2, used[:, change.NOISE] / weights**2
    whole = float(weights.sum())
    s, n = float(total[change.SQUARES]) / whole**2, float(total[change.NOISE]) / whole**2
    left, trace = 1 - 2 * weights / whole, float(np.trace(inverse)) / q
    phi, error = expected, (_PRIOR * expected) ** 2
    if end > 1:
        # Of a block's variance v_j there remains v_j (1 - 2 W_j / W) + v, with v that of the total.
        by_spread, by_noise = spread * left + s, (noise * left + n) * trace
        found = np.einsum("ij,jk,ik->i", rest, inverse, rest) / q
        # Blocks of query points far from the answer deviate by more than their noise, and have a small weight.
        near = weights / used[:, change.INFORMATION]
        trust = near * by_spread / (expected * by_spread + by_noise) ** 2
        alone, prior = float(trust @ (found - by_noise)) / float(trust @ by_spread), error
        # Its variance: the square of a normal number has a variance of twice its squared mean.
        error = 2 / q * float(np.sum((trust * (expected * by_spread + by_noise)) ** 2)) / float(trust @ by_spread) ** 2
        phi = max((prior * alone + error * expected) / (prior + error), _LEAST_PHI * expected)
        error *= prior / (prior + error)
    n += floor**2 / (2 * q) * float(np.sum((middle - answer) ** 2))  # what the noise of A adds
    if in_batches:
        inverse = np.linalg.inv(hessian - floor * np.eye(q))  # the least A that its noise allows
    if released is not None:
        return _sandwich(answer, inverse, s, n, released)
    covariance = uneven * phi * s * inverse + n * inverse @ inverse
    freedom = 2 * ((phi * s + n * trace) / s) ** 2 / error
    return StepEstimates(answer, covariance, np.full(q, freedom))


def _together(hessian: np.ndarray, floor: float, released: Spread) -> tuple[np.ndarray, float]:
    """The Hessian (q, q) by A and by what was released, and the size of the eigenvalues of its noise.

    A has little noise, but its eigenvalues may be wrong by the share `_BENT`, if the spread of residuals depends on x.
    """
    if released.hessian is None:
        return hessian, floor
    q = len(hessian)
    wrong = (_BENT * float(np.trace(hessian)) / q) ** 2 / (2 * q)
    part = wrong / max(wrong + released.of_hessian, 1e-300)
    size = math.hypot((1 - part) * floor, part * math.sqrt(2 * q * released.of_hessian))
    return part * released.hessian + (1 - part) * hessian, size


def _sandwich(answer: np.ndarray, inverse: np.ndarray, s: float, n: float, released: Spread) -> StepEstimates:
    """The answer with the covariance that follows from a spread which was released, and from the noise.

    `inverse` (q, q) is that of the Hessian, s and n are those of the module.
    """
    values, vectors = np.linalg.eigh(released.gradients)
    middle = (vectors * np.maximum(values, 0.0)) @ vectors.T  # below 0 is noise
    lengths = np.sum(inverse**2, axis=0)
    covariance = s * inverse @ middle @ inverse + n * inverse @ inverse
    doubt = s * math.sqrt(released.of_gradients) * lengths  # the deviation of a variance
    return StepEstimates(answer, covariance, 2 * (np.diagonal(covariance) / np.maximum(doubt, 1e-300)) ** 2)
