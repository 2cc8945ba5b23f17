"""Probabilities that allow for the noise of theta.

With noise of the covariance V in theta, the linear predictor z of x has the variance v = x'Vx, and the probability is
the mean of sigmoid(z + noise), which is nearly sigmoid(z/sqrt(1 + pi v/8)). The more probable class stays the same.

V. In the units that are learned, with the steps F (T + T_0)^-alpha of `steps` in the clock of information, each of the
d coordinates is taken for

    dtheta = -F (T + T_0)^-alpha (h (theta - theta*) dT + C0/sqrt(d) dW),

and the average weighs theta by sqrt(T) dT. Steps and noise are public: a report has the second moment C0^2/tau, the
same in all directions. The curvature is not: h = .15 C0/sqrt(d) is that of columns of spread 1 that are not correlated,
with the weight C0/|x| = sqrt(2/d), where sigmoid(z) (1 - sigmoid(z)) is .15 in the mean. So V is the identity times a
number that depends on F C0/sqrt(d), alpha, T_0 and T. Left out: columns that were scaled late have longer steps.

Source: MacKay, "The evidence framework applied to classification networks", Neural Computation 1992, section 4.

Privacy. V follows from public numbers and the scales, so the probabilities are post-processing of what is
released: docs/proofs/local_reports.md.
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import NamedTuple

import numpy as np

_CURVATURE = 0.15
_PARTS = 400
_COARSE = math.log(1.02)


class Noise(NamedTuple):
    """The variance by noise of a coordinate of theta, or of its average, while the clock T is in [low, high)."""

    low: float
    high: float
    variance: float


UNKNOWN = Noise(math.inf, -math.inf, 0.0)
"""Holds for no clock."""


def noise_at(steps: tuple[float, float, float], total: float, averaged: bool) -> Noise:
    """Return the noise for one linear predictor: that of the last clock on a grid in steps of 2 %.

    `steps` are (F C0/sqrt(d), alpha, T_0), with the clock of information; `total` is the clock T, in units of 1/C0^2;
    the predictor may be averaged.
    """
    if total <= 0:
        return Noise(-math.inf, 0.0, 0.0)
    place = math.floor(math.log(total) / _COARSE)
    low, high = math.exp(_COARSE * place), math.exp(_COARSE * (place + 1))
    return Noise(low, high, _variance(steps, low, averaged))


@lru_cache(maxsize=256)
def _variance(steps: tuple[float, float, float], total: float, averaged: bool) -> float:
    factor, alpha, offset = steps
    edges = np.concatenate([[0.0], np.geomspace(total / 1e4, total, _PARTS)])
    lengths, sizes = np.diff(edges), factor * ((edges[1:] + edges[:-1]) / 2 + offset) ** -alpha
    keeps, shares = np.exp(-_CURVATURE * sizes * lengths), 1 - (edges[:-1] / edges[1:]) ** 1.5
    noises = sizes / (2 * _CURVATURE) * (1 - keeps**2)
    own = both = average = 0.0  # the variance of theta, its covariance with the average, the variance of the average
    for keep, noise, share in zip(keeps.tolist(), noises.tolist(), shares.tolist(), strict=True):
        own = keep**2 * own + noise
        average = (1 - share) ** 2 * average + 2 * (1 - share) * share * keep * both + share**2 * own
        both = (1 - share) * keep * both + share * own
    return average if averaged else own
