"""Exact convolution smoothing of the non-smooth losses of linear models.

A loss with one kink and the slopes `low` and `high` is convolved with the uniform ball of radius r in R^d. The slope of
the smoothed loss at u = x'theta is the average

    low + (high - low) F((u - kink) / (||x|| r)),

F being the distribution function of a coordinate of a uniform point of the unit ball: no random point is drawn. The
gradient has a norm of at most C0. The smoothed loss is above the loss by at most C0 r E|B|, and its gradient is
(2 f(0) C0 / r)-Lipschitz, f the density of that coordinate B.

Kinks and slopes of each loss, and the proof: docs/proofs/accelerated.md.
"""

import math

import numpy as np
import scipy

from streamdp.errors import ConfigError
from streamdp.optim.losses import Hinge, Loss, Quantile

_TINY, _HUGE = 1e-280, 1e300  # as in `samplers`: a smaller squared norm counts as 0, a larger one as overflow


def smoothed_gradients(
    loss: Loss, intercept: bool, theta: np.ndarray, X: np.ndarray, y: np.ndarray, radius: float
) -> np.ndarray:
    """Gradients (n, d) of the loss convolved with a uniform ball, each of norm at most `loss.bound`.

    The loss is `Quantile` or `Hinge`, theta (d,), and the radius positive and finite, in the unit of theta. X (n, p)
    has no column for the intercept, y is (n,), and d = p + 1 with an intercept, else p. If the arithmetic of a record
    overflows, its gradient is 0. Raises `ConfigError` if the loss is smooth, theta has another length, or the radius is
    out of range.
    """
    if not isinstance(loss, Quantile | Hinge):
        raise ConfigError(f"expected the quantile or the hinge loss: {loss.name} is smooth")
    if not 0 < radius < math.inf:
        raise ConfigError(f"radius must be positive and finite, got {radius}")
    d = X.shape[1] + intercept
    if theta.shape != (d,):
        raise ConfigError(f"theta: expected shape ({d},), got {theta.shape}")
    with np.errstate(all="ignore"):  # gradients that overflow are set to 0 below
        rows = np.column_stack([X, np.ones(len(X))]) if intercept else np.array(X, dtype=float)
        square = np.einsum("ij,ij->i", rows, rows)
        norm = np.sqrt(square)
        if isinstance(loss, Quantile):
            kink, low, high = np.asarray(y, dtype=float), np.full(len(X), -loss.tau), np.full(len(X), 1 - loss.tau)
        else:
            kink = 2.0 * np.asarray(y) - 1
            low, high = np.where(y > 0, -1.0, 0.0), np.where(y > 0, 0.0, 1.0)
        if loss.clip is None:
            weight = np.minimum(1.0, 2 / square)
            low, high = low * weight, high * weight
        else:
            low, high = np.maximum(low, -loss.clip / norm), np.minimum(high, loss.clip / norm)
        slope = low + (high - low) * ball_cdf((rows @ theta - kink) / (radius * norm), d)
        usable = (square > _TINY) & (square < _HUGE) & np.isfinite(slope)
    rows[~usable] = 0
    rows *= np.where(usable, slope, 0.0)[:, None]
    return rows


def constants(d: int) -> tuple[float, float]:
    """(E|B|, 2 f(0)) of the uniform ball of dimension d >= 1.

    Smoothing by a radius r raises a loss by at most C0 r E|B|, and makes its gradient (2 f(0) C0 / r)-Lipschitz.

    >>> [round(c, 3) for c in constants(1)]
    [0.5, 1.0]
    """
    density = math.exp(math.lgamma(d / 2 + 1) - math.lgamma((d + 1) / 2)) / math.sqrt(math.pi)
    return 2 * density / (d + 1), 2 * density


def ball_cdf(b: np.ndarray, d: int) -> np.ndarray:
    """P(B <= b), in any shape, for the first coordinate B of a uniform point of the unit ball of R^d, d >= 1.

    >>> ball_cdf(np.array([-1.0, 0.0, 0.5, 2.0]), 1)
    array([0.  , 0.5 , 0.75, 1.  ])
    """
    half: np.ndarray = 0.5 * scipy.special.betainc(0.5, (d + 1) / 2, np.minimum(b * b, 1.0))
    return np.where(b < 0, 0.5 - half, 0.5 + half)
