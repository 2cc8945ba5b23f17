"""What noisy bits tell about the centre and the spread of a column: a posterior on a grid, compiled.

Model. A column has values in [-1, 1], with an unknown centre m and spread s. For a question "is x in [a, b)?" the
probability of yes is

    f = .025 + .95 (F((b - m)/s) - F((a - m)/s)),   F(z) = (1 + tanh(.85 z))/2,

F being near the normal distribution function, with .025 for values that fit no bell. The bit is answered by randomised
response, which tells the truth with probability keep: so a bit "yes" has the probability keep f + (1 - keep)(1 - f).
The prior is uniform on 193 centres in [-1, 1] and on 13 spreads 2^-6, 2^-5.5, ..., 1. A posterior is kept as logarithms
of weights, so the posteriors of disjoint records add up.

Question. With V = Var m, v = exp(2 E ln s) and med the posterior median of m: if V/v >= Var ln s, "x < med", which tells
about the centre; otherwise "|x - med| < 1.15 sqrt(v + V)", which tells about the spread.

Nothing here is exact for data that are no bell; it serves to scale columns, and privacy does not depend on it.
"""

from __future__ import annotations

import math

import numpy as np

from streamdp.privacy.samplers import compiled, inlined

CENTRES, SPREADS = 193, 13

# Summary of a posterior, by column.
MEAN, VARIANCE, MEDIAN, LOG, LOG_VARIANCE, SQUARE, LOW, HIGH = range(8)
SUMMARY = 8


@inlined
def _share(z):
    return 0.5 + 0.5 * math.tanh(0.85 * z)


@inlined
def _centre(k):
    return -1.0 + 2.0 * k / (CENTRES - 1)


@inlined
def _spread(k):
    return 2.0 ** (-6.0 + 0.5 * k)


@compiled
def update(posterior, column, low, high, answer, keep):
    """Take in one noisy bit.

    Parameters
    ----------
    posterior
        (columns, `CENTRES`, `SPREADS`) logarithms of weights.
    column
        The column that was asked about.
    low, high
        The question: is the value in [low, high)? Either may be infinite.
    answer
        The noisy answer.
    keep
        The probability that it is the true one.
    """
    keep = min(keep, 1.0 - 2.0**-40)
    top = -math.inf
    for i in range(CENTRES):
        for k in range(SPREADS):
            s = _spread(k)
            above = 1.0 if high == math.inf else _share((high - _centre(i)) / s)
            below = 0.0 if low == -math.inf else _share((low - _centre(i)) / s)
            f = 0.025 + 0.95 * (above - below)
            yes = keep * f + (1.0 - keep) * (1.0 - f)
            posterior[column, i, k] += math.log(yes if answer else 1.0 - yes)
            top = max(top, posterior[column, i, k])
    for i in range(CENTRES):
        for k in range(SPREADS):
            posterior[column, i, k] -= top


@compiled
def summarise(posterior, column, out):
    """Write the moments of a posterior and the next question into a row.

    Parameters
    ----------
    posterior, column
        As for `update`.
    out
        (`SUMMARY`,): E m, Var m, the median of m, E ln s, Var ln s, E s^2, and the next question [low, high).
    """
    total = mean = square = log = log_square = spread = 0.0
    for i in range(CENTRES):
        m = _centre(i)
        for k in range(SPREADS):
            w = math.exp(posterior[column, i, k])
            s = _spread(k)
            total += w
            mean += w * m
            square += w * m * m
            log += w * math.log(s)
            log_square += w * math.log(s) ** 2
            spread += w * s * s
    mean, square, log, log_square = mean / total, square / total, log / total, log_square / total
    variance, log_variance = max(square - mean * mean, 0.0), max(log_square - log * log, 0.0)
    half, median, found = 0.0, 1.0, False
    for i in range(CENTRES):
        row = 0.0
        for k in range(SPREADS):
            row += math.exp(posterior[column, i, k])
        if not found and half + row >= 0.5 * total:
            found, median = True, _centre(i)
        half += row
    out[MEAN], out[VARIANCE], out[MEDIAN], out[LOG], out[LOG_VARIANCE] = mean, variance, median, log, log_variance
    out[SQUARE] = spread / total
    typical = math.exp(2.0 * log)
    if variance / typical >= log_variance:
        out[LOW], out[HIGH] = -math.inf, median
    else:
        reach = 1.15 * math.sqrt(typical + variance)
        out[LOW], out[HIGH] = median - reach, median + reach


@compiled
def gain(posterior, column, mean, scale):
    """E max(0, ln(scale/(1.5 r))), r^2 = s^2 + (m - mean)^2: how much too wide a scale is expected to be.

    Parameters
    ----------
    posterior, column
        As for `update`.
    mean
        E m.
    scale
        The present scale of the column.
    """
    total = sum_ = 0.0
    for i in range(CENTRES):
        away = (_centre(i) - mean) ** 2
        for k in range(SPREADS):
            w = math.exp(posterior[column, i, k])
            total += w
            sum_ += w * max(0.0, math.log(scale / 1.5) - 0.5 * math.log(_spread(k) ** 2 + away))
    return sum_ / total


@compiled
def exceeding(posterior, column, mean, limit):
    """P(r > limit) of the same r.

    Parameters
    ----------
    posterior, column, mean
        As for `gain`.
    limit
        Positive.
    """
    total = above = 0.0
    for i in range(CENTRES):
        away = (_centre(i) - mean) ** 2
        for k in range(SPREADS):
            w = math.exp(posterior[column, i, k])
            total += w
            if _spread(k) ** 2 + away > limit * limit:
                above += w
    return above / total


def flat(columns: int) -> np.ndarray:
    """The prior (columns, `CENTRES`, `SPREADS`).

    Parameters
    ----------
    columns
        The number of columns.
    """
    return np.zeros((columns, CENTRES, SPREADS))
