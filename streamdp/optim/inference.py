"""Confidence intervals from one pass: batch means of the iterates.

Segments. The iterates are summed in at most `SEGMENTS` segments of about equal length. When there is no room for
another, segments are joined in pairs. The state has O(d) numbers, and there are at least half as many segments at any
time, once there were as many iterates. If iterate i has the weight tau_i (see `steps`), the length of a segment is the
sum of its tau_i: the noise of step i has a variance proportional to tau_i.

Interval. The first quarter of the segments is left out, because theta moved from its start then. Let a_k be the
averages of the K others, with lengths L_k, of mean length L, a their average weighed by length, and s^2 the sum of
(L_k/L)(a_k - a)^2 over K - 1. If the segments were independent, a +- t s / sqrt(K) would be the interval, t being the
quantile of Student's law with K - 1 degrees of freedom. But theta forgets slowly, so segments that follow each other
are correlated. The coefficient rho of an autoregression of first order is estimated for each parameter, without its
bias of -(1 + 4 rho)/K, and moved halfway to the average of all parameters, downwards by a standard error at most. One
below the average is replaced by the average, so that a parameter with an interval by chance does not have too short a
one. K segments then say as much about a as K/f independent ones, f = (1 + rho)/(1 - rho): s^2 is divided by its bias 1
- (f - 1)/(K - 1) and multiplied by f, and t has K/f - 1 degrees of freedom.

Not settled. Where theta needs many records to move, or still moves from its start in one direction, its path is too
short to say how far it is from theta*, and no correction helps. Where rho is above `MOST_CORRELATION`, the limits are
NaN. So an interval is given from about a dozen relaxation times on.

Source: Zhu, Chen, Wu, "Online covariance matrix estimation in stochastic gradient descent", JASA 2023, for batch means
of SGD; Steiger et al., "ASAP3: a batch means procedure for steady-state simulation analysis", ACM TOMACS 2005, for the
first batches, the test and the correction by an autoregression; Marriott and Pope, Biometrika 1954, for the bias of
rho. The share halfway and `MOST_CORRELATION` were chosen on simulated autoregressions (`tests/unit/optim`);
`benchmarks/learning.md` has the coverage of learners.

Assumption. The steps are eta T^-alpha with 1/2 < alpha < 1 (Shi et al. 2025, Corollary 1).

Privacy. The iterates are private, so the interval is post-processing and spends nothing.
"""

from __future__ import annotations

import numpy as np

from streamdp.errors import ConfigError

SEGMENTS = 32
MOST_CORRELATION = 0.7
_FEWEST = 12


def batch_means_interval(segments: np.ndarray, level: float) -> np.ndarray:
    """The lower and upper ends (d, 2) of the confidence intervals of the coordinates of theta*; NaN if not settled.

    Parameters
    ----------
    segments
        (`SEGMENTS`, d + 1) the sums of the iterates with their weights, and in the last column the sums of the weights.
    level
        The confidence, above 0 and below 1.

    Raises `ConfigError` for another level.
    """
    from scipy.special import stdtrit

    if not 0 < level < 1:
        raise ConfigError(f"level: expected a number above 0 and below 1, such as 0.95, got {level}")
    used = segments[segments[:, -1] > 0]
    used = used[len(used) // 4 :]
    lengths, count = used[:, -1:], len(used)
    if count < _FEWEST:
        return np.full((segments.shape[1] - 1, 2), np.nan)
    means = used[:, :-1] / lengths
    centre = used[:, :-1].sum(axis=0) / lengths.sum()
    apart = (means - centre) * np.sqrt(lengths / lengths.mean())
    squares = np.sum(apart**2, axis=0)
    with np.errstate(invalid="ignore", divide="ignore"):
        own = (count * np.sum(apart[1:] * apart[:-1], axis=0) / squares + 1) / (count - 4)
        moving = squares > 0
        shared = own[moving].sum() / np.count_nonzero(moving)
        error = np.sqrt(np.maximum(1 - own**2, 0) / count)
        correlation = np.maximum(shared, np.maximum((own + shared) / 2, own - error))
        settled = correlation <= MOST_CORRELATION
        held = np.clip(correlation, 0, MOST_CORRELATION)
        f = (1 + held) / (1 - held)
        variance = squares / (count - f)  # (count - 1) times the bias of s^2
        half = stdtrit(count / f - 1, (1 + level) / 2) * np.sqrt(variance * f / count)
    half[~settled] = np.nan
    return np.column_stack([centre - half, centre + half])
