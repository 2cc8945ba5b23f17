"""Probabilities that allow for the noise of theta.

If theta has noise of the covariance V, the linear predictor z of x has the variance v = x'Vx, and the probability is
the mean of sigmoid(z + noise), which is nearly sigmoid(z/sqrt(1 + pi v/8)). Where the share of the classes is known,
from bits about it, that is done to z - b, b being its log odds: a model that is only noise predicts that share. V
follows from public numbers, the scales and the bits, so this is post-processing: docs/proofs/local_reports.md has its
model.
"""

import math
from functools import lru_cache
from typing import NamedTuple

import numpy as np

_CURVATURE = 0.1
_PARTS = 400
_COARSE = math.log(1.02)


class Noise(NamedTuple):
    """The variance by noise of a coordinate of theta, or of its average, while the clock T is in [low, high).

    `odds` is b, the log odds of the second class as far as bits tell; 0: no bits were asked. `since`: where the clock
    must have begun for it; NaN: anywhere.
    """

    low: float
    high: float
    variance: float
    odds: float = 0.0
    since: float = math.nan


UNKNOWN = Noise(math.inf, -math.inf, 0.0)  # holds for no clock
NO_NOISE = Noise(-math.inf, math.inf, 0.0)  # for every clock


def noise_at(
    steps: tuple[float, float, float], total: float, averaged: bool, odds: float = 0.0, since: float = math.nan
) -> Noise:
    """Return the noise for one linear predictor: that of the last clock on a grid in steps of 2 %.

    `steps` are (F C0/sqrt(d), alpha, T_0), with the clock of information; `total` is the clock T, in units of 1/C0^2;
    the predictor may be averaged, and `odds` and `since` are those of `Noise`.
    """
    if total <= 0:
        return Noise(-math.inf, 0.0, 0.0, odds, since)
    place = math.floor(math.log(total) / _COARSE)
    low, high = math.exp(_COARSE * place), math.exp(_COARSE * (place + 1))
    return Noise(low, high, _variance(steps, low, averaged, _CURVATURE / math.cosh(odds / 2) ** 2), odds, since)


@lru_cache(maxsize=256)
def _variance(steps: tuple[float, float, float], total: float, averaged: bool, curvature: float) -> float:
    factor, alpha, offset = steps
    edges = np.concatenate([[0.0], np.geomspace(total / 1e4, total, _PARTS)])
    lengths, sizes = np.diff(edges), factor * ((edges[1:] + edges[:-1]) / 2 + offset) ** -alpha
    keeps, shares = np.exp(-curvature * sizes * lengths), 1 - (edges[:-1] / edges[1:]) ** 1.5
    noises = sizes / (2 * curvature) * (1 - keeps**2)
    own = both = average = 0.0  # the variance of theta, its covariance with the average, the variance of the average
    for keep, noise, share in zip(keeps.tolist(), noises.tolist(), shares.tolist(), strict=True):
        own = keep**2 * own + noise
        average = (1 - share) ** 2 * average + 2 * (1 - share) * share * keep * both + share**2 * own
        both = (1 - share) * keep * both + share * own
    return average if averaged else own
