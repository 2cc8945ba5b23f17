"""Convolution smoothing of the non-smooth losses of linear models, exactly.

A loss with one kink, convolved with the uniform ball of radius r in R^d, is the average of l(x'(theta + y)) w(x) over y
in that ball. It depends on y through x'y only, and x'y = ||x|| r B, B the first coordinate of a uniform point of the
unit ball: its density is proportional to (1 - b^2)^((d-1)/2), so B^2 ~ Beta(1/2, (d+1)/2) and its distribution function

    F(b) = 1/2 + sign(b) I(b^2; 1/2, (d+1)/2) / 2,   I the regularised incomplete beta function.

Where l has the slope `low` before its kink and `high` after it, the smoothed slope at u = x'theta is the average

    low + (high - low) F((u - kink) / (||x|| r)):

no random point is drawn. The quantile loss has the kink y and the slopes -tau and 1 - tau; the hinge the kink 1 and
the slopes -1 and 0 for y = 1, the kink -1 and the slopes 0 and 1 for y = 0. Both slopes are first weighted, or clipped
to C / ||x||, as `losses` says: an average of vectors of norm at most C0 is one. It is the gradient of the convolved
loss, of which (Yousefian, Nedic, Shanbhag 2012; Duchi, Bartlett, Wainwright 2012)

* it lies above the loss, by at most C0 r E|B|, E|B| = 2 f(0) / (d+1);
* the gradient is (2 f(0) C0 / r)-Lipschitz: its derivative along x is (high - low) w ||x|| f(.) / r with high - low at
  most 2 C0 / (w ||x||) and the density f at most f(0) = Gamma(d/2 + 1) / (sqrt(pi) Gamma((d+1)/2)) <= sqrt(d) / 2.

So both are never above the C0 r and C0 sqrt(d) / r of any loss that is C0-Lipschitz, and their product, which decides
how many accelerated steps it takes, is below C0^2 where those have C0^2 sqrt(d): the ball is thin along x.
"""

from __future__ import annotations

import math

import numpy as np
from scipy.special import betainc

from streamdp.errors import ConfigError
from streamdp.optim.losses import Hinge, Loss, Quantile

_TINY, _HUGE = 1e-280, 1e300  # as in `kernels`: outside, squared norms count as 0 and as overflow


def smoothed_gradients(
    loss: Loss, intercept: bool, theta: np.ndarray, X: np.ndarray, y: np.ndarray, radius: float
) -> np.ndarray:
    """Gradients (n, d) at theta (d,) of the loss convolved with the uniform ball of this radius, for records X (n, p)
    and y (n,).

    d = p + 1 with an intercept, the last entry; else p. Every row has a norm of at most `loss.bound`; a record so large
    that arithmetic overflows gives 0. Raises `ConfigError` for a loss that is smooth already, a theta of another length
    and a radius that is not positive.
    """
    if not isinstance(loss, Quantile | Hinge):
        raise ConfigError(f"{loss.name} is smooth: only the quantile and hinge losses are smoothed")
    if not 0 < radius < math.inf:
        raise ConfigError(f"radius must be positive and finite, got {radius}")
    d = X.shape[1] + intercept
    if theta.shape != (d,):
        raise ConfigError(f"theta: expected shape ({d},), got {theta.shape}")
    with np.errstate(all="ignore"):  # what overflows is 0 below
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
    """(E|B|, 2 f(0)): smoothing by a radius r raises a loss by at most C0 r times the first, and makes its gradient
    Lipschitz with C0 / r times the second.

    >>> [round(c, 3) for c in constants(1)]
    [0.5, 1.0]
    """
    density = math.exp(math.lgamma(d / 2 + 1) - math.lgamma((d + 1) / 2)) / math.sqrt(math.pi)
    return 2 * density / (d + 1), 2 * density


def ball_cdf(b: np.ndarray, d: int) -> np.ndarray:
    """P(B <= b) for the first coordinate B of a uniform point of the unit ball of R^d.

    >>> ball_cdf(np.array([-1.0, 0.0, 0.5, 2.0]), 1)
    array([0.  , 0.5 , 0.75, 1.  ])
    """
    half: np.ndarray = 0.5 * betainc(0.5, (d + 1) / 2, np.minimum(b * b, 1.0))
    return np.where(b < 0, 0.5 - half, 0.5 + half)
