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

import numpy as np

from libc.math cimport INFINITY, exp, exp2, log, sqrt, tanh

cimport numpy as cnp

from streamdp.privacy.arrays cimport matrix, vector

cnp.import_array()


cdef inline double _share(double z) noexcept nogil:
    return 0.5 + 0.5 * tanh(0.85 * z)


cdef inline double _centre(int i) noexcept nogil:
    return -1.0 + 2.0 * i / (CENTRES - 1)


cdef inline double _spread(int k) noexcept nogil:
    return exp2(-6.0 + 0.5 * k)


cdef void take_in(double* cells, double low, double high, bint answer, double keep) noexcept nogil:
    """As `update`, for the `CELLS` logarithms of one column."""
    cdef double spreads[SPREADS]
    cdef double top = -INFINITY, s, above, below, f, yes
    cdef int i, k
    keep = min(keep, 1.0 - exp2(-40.0))
    for k in range(SPREADS):
        spreads[k] = _spread(k)
    for i in range(CENTRES):
        for k in range(SPREADS):
            s = spreads[k]
            above = 1.0 if high == INFINITY else _share((high - _centre(i)) / s)
            below = 0.0 if low == -INFINITY else _share((low - _centre(i)) / s)
            f = 0.025 + 0.95 * (above - below)
            yes = keep * f + (1.0 - keep) * (1.0 - f)
            cells[i * SPREADS + k] += log(yes if answer else 1.0 - yes)
            top = max(top, cells[i * SPREADS + k])
    for i in range(CELLS):
        cells[i] -= top


cdef void weigh(const double* cells, double* w) noexcept nogil:
    """As `weights`, for one column."""
    cdef double total = 0.0
    cdef int i
    for i in range(CELLS):
        w[i] = exp(cells[i])
        total += w[i]
    for i in range(CELLS):
        w[i] /= total


cdef void summarise_into(const double* w, double* out) noexcept nogil:
    """As `summarise`."""
    cdef double mean = 0.0, square = 0.0, logs = 0.0, log_square = 0.0, below = 0.0, median = 1.0
    cdef double ln[SPREADS]
    cdef double m, row, variance, log_variance, typical, reach
    cdef bint found = False
    cdef int i, k
    for k in range(SPREADS):
        ln[k] = log(_spread(k))
    for i in range(CENTRES):
        m, row = _centre(i), 0.0
        for k in range(SPREADS):
            row += w[i * SPREADS + k]
            logs += w[i * SPREADS + k] * ln[k]
            log_square += w[i * SPREADS + k] * ln[k] * ln[k]
        mean += row * m
        square += row * m * m
        if not found and below + row >= 0.5:
            found, median = True, m
        below += row
    variance, log_variance = max(square - mean * mean, 0.0), max(log_square - logs * logs, 0.0)
    out[MEAN], out[VARIANCE], out[MEDIAN], out[LOG], out[LOG_VARIANCE] = mean, variance, median, logs, log_variance
    typical = exp(2.0 * logs)
    if variance / typical >= log_variance:
        out[LOW], out[HIGH] = -INFINITY, median
    else:
        reach = 1.15 * sqrt(typical + variance)
        out[LOW], out[HIGH] = median - reach, median + reach


cdef double gain_of(const double* w, double mean, double scale) noexcept nogil:
    """As `gain`."""
    cdef double out = 0.0, limit = (scale / 1.5) * (scale / 1.5), away, square
    cdef double squares[SPREADS]
    cdef int i, k
    for k in range(SPREADS):
        squares[k] = _spread(k) * _spread(k)
    for i in range(CENTRES):
        away = (_centre(i) - mean) * (_centre(i) - mean)
        for k in range(SPREADS):
            square = squares[k] + away
            if square < limit:
                out += w[i * SPREADS + k] * 0.5 * log(limit / square)
    return out


cdef double chance_beyond(const double* w, double mean, double limit) noexcept nogil:
    """As `exceeding`."""
    cdef double squares[SPREADS]
    cdef double above = 0.0, away
    cdef int i, k
    for k in range(SPREADS):
        squares[k] = _spread(k) * _spread(k)
    for i in range(CENTRES):
        away = (_centre(i) - mean) * (_centre(i) - mean)
        for k in range(SPREADS):
            if squares[k] + away > limit * limit:
                above += w[i * SPREADS + k]
    return above


cdef double* _cells(cnp.ndarray posterior, Py_ssize_t column) except NULL:
    if (
        cnp.PyArray_TYPE(posterior) != cnp.NPY_FLOAT64
        or not cnp.PyArray_IS_C_CONTIGUOUS(posterior)
        or cnp.PyArray_SIZE(posterior) != len(posterior) * CELLS
        or not 0 <= column < len(posterior)
    ):
        raise TypeError("expected posteriors of columns, and one of the columns")
    return <double*> cnp.PyArray_DATA(posterior) + column * CELLS


def flat(columns):
    """The prior (columns, `CENTRES`, `SPREADS`).

    Parameters
    ----------
    columns
        The number of columns.
    """
    return np.zeros((columns, CENTRES, SPREADS))


def update(cnp.ndarray posterior not None, Py_ssize_t column, double low, double high, answer, double keep):
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
    take_in(_cells(posterior, column), low, high, bool(answer), keep)


def weights(cnp.ndarray posterior not None, Py_ssize_t column):
    """The posterior as weights (`CENTRES`, `SPREADS`) that add up to 1.

    Parameters
    ----------
    posterior, column
        As for `update`.
    """
    out = np.empty((CENTRES, SPREADS))
    weigh(_cells(posterior, column), matrix(out))
    return out


def summarise(cnp.ndarray w not None, cnp.ndarray out not None):
    """Write the moments of a posterior and the next question into a row.

    Parameters
    ----------
    w
        What `weights` returns.
    out
        (`SUMMARY`,): E m, Var m, the median of m, E ln s, Var ln s, and the next question [low, high).
    """
    summarise_into(matrix(w), vector(out))


def gain(cnp.ndarray w not None, double mean, double scale):
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
    return gain_of(matrix(w), mean, scale)


def exceeding(cnp.ndarray w not None, double mean, double limit):
    """P(r > limit) of the same r.

    Parameters
    ----------
    w, mean
        As for `gain`.
    limit
        Positive.
    """
    return chance_beyond(matrix(w), mean, limit)
