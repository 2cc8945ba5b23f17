"""What noisy bits tell about the centre and the spread of a column: a posterior on a grid, compiled.

Model. A column has values in [-1, 1], with an unknown centre m and spread s. For a question "is x in [a, b)?" the
probability of yes is

    f = .025 + .95 (F((b - m)/s) - F((a - m)/s)),   F(z) = (1 + tanh(.85 z))/2,

F being near the normal distribution function, with .025 for values that fit no bell. The bit is answered by randomised
response, which tells the truth with probability keep: so a bit "yes" has the probability keep f + (1 - keep)(1 - f).
The prior is uniform on 193 centres in [-1, 1] and on 13 spreads 2^-6, 2^-5.5, ..., 1. A posterior is kept as logarithms
of weights, so the posteriors of disjoint records add up.

Question. With V = Var m, v = exp(2 E ln s) and med the posterior median of m: if V/v >= Var ln s, "x < med", which
tells about the centre; otherwise "|x - med| < 1.15 sqrt(v + V)", which tells about the spread.

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
    top, spreads = -math.inf, np.empty(SPREADS)
    for k in range(SPREADS):
        spreads[k] = _spread(k)
    for i in range(CENTRES):
        for k in range(SPREADS):
            s = spreads[k]
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
def weights(posterior, column):
    """The posterior as weights (`CENTRES`, `SPREADS`) that add up to 1.

    Parameters
    ----------
    posterior, column
        As for `update`.
    """
    out = np.empty((CENTRES, SPREADS))
    total = 0.0
    for i in range(CENTRES):
        for k in range(SPREADS):
            out[i, k] = math.exp(posterior[column, i, k])
            total += out[i, k]
    for i in range(CENTRES):
        for k in range(SPREADS):
            out[i, k] /= total
    return out


@compiled
def summarise(w, out):
    """Write the moments of a posterior and the next question into a row.

    Parameters
    ----------
    w
        What `weights` returns.
    out
        (`SUMMARY`,): E m, Var m, the median of m, E ln s, Var ln s, E s^2, and the next question [low, high).
    """
    mean = square = log = log_square = spread = below = 0.0
    median, found = 1.0, False
    logs, squares = np.empty(SPREADS), np.empty(SPREADS)
    for k in range(SPREADS):
        logs[k], squares[k] = math.log(_spread(k)), _spread(k) ** 2
    for i in range(CENTRES):
        m, row = _centre(i), 0.0
        for k in range(SPREADS):
            row += w[i, k]
            log += w[i, k] * logs[k]
            log_square += w[i, k] * logs[k] ** 2
            spread += w[i, k] * squares[k]
        mean += row * m
        square += row * m * m
        if not found and below + row >= 0.5:
            found, median = True, m
        below += row
    variance, log_variance = max(square - mean * mean, 0.0), max(log_square - log * log, 0.0)
    out[MEAN], out[VARIANCE], out[MEDIAN], out[LOG], out[LOG_VARIANCE] = mean, variance, median, log, log_variance
    out[SQUARE] = spread
    typical = math.exp(2.0 * log)
    if variance / typical >= log_variance:
        out[LOW], out[HIGH] = -math.inf, median
    else:
        reach = 1.15 * math.sqrt(typical + variance)
        out[LOW], out[HIGH] = median - reach, median + reach


@compiled
def gain(w, mean, scale):
    """E max(0, ln(scale/(1.5 r))), r^2 = s^2 + (m - mean)^2: how much too wide a scale is expected to be.

    Parameters
    ----------
    w
        What `weights` returns.
    mean
        E m.
    scale
        The present scale of the column.
    """
    out, limit = 0.0, (scale / 1.5) ** 2
    squares = np.empty(SPREADS)
    for k in range(SPREADS):
        squares[k] = _spread(k) ** 2
    for i in range(CENTRES):
        away = (_centre(i) - mean) ** 2
        for k in range(SPREADS):
            square = squares[k] + away
            if square < limit:
                out += w[i, k] * 0.5 * math.log(limit / square)
    return out


@compiled
def exceeding(w, mean, limit):
    """P(r > limit) of the same r.

    Parameters
    ----------
    w, mean
        As for `gain`.
    limit
        Positive.
    """
    above, squares = 0.0, np.empty(SPREADS)
    for k in range(SPREADS):
        squares[k] = _spread(k) ** 2
    for i in range(CENTRES):
        away = (_centre(i) - mean) ** 2
        for k in range(SPREADS):
            if squares[k] + away > limit * limit:
                above += w[i, k]
    return above


def flat(columns: int) -> np.ndarray:
    """The prior (columns, `CENTRES`, `SPREADS`).

    Parameters
    ----------
    columns
        The number of columns.
    """
    return np.zeros((columns, CENTRES, SPREADS))
