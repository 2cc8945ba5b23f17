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

from libc.math cimport INFINITY, exp, exp2, log, sqrt

cimport numpy as cnp

from streamdp.privacy.arrays cimport matrix, vector

cnp.import_array()


cdef double _grid[CELLS]  # exp(1.7 m/s) of all cells
cdef double _rates[SPREADS]  # 1.7/s
cdef double _logs[SPREADS]  # ln s
cdef double _squares[SPREADS]  # s^2

cdef extern from *:
    """
    #include <stdint.h>
    #include <string.h>
    #define SDP_NOTHING -40.0  /* a weight below exp(-40) of the largest one counts as 0 in a summary */
    #define SDP_CENTRES 193
    #define SDP_SPREADS 13
    #define SDP_CELLS (SDP_CENTRES * SDP_SPREADS)
    /* Four cells at once where the processor can. */
    #if defined(__x86_64__) && defined(__gnu_linux__)
    #define SDP_CLONES __attribute__((target_clones("avx2", "default")))
    #else
    #define SDP_CLONES
    #endif

    /* ln x for 2^-1000 < x < 2^1000, to some units in the last place. The library's log is not vectorised. With
       x = 2^e m and m from sqrt(1/2) to sqrt(2), ln m = 2 (s + s^3/3 + ... + s^19/19), s = (m - 1)/(m + 1). */
    static inline double sdp_log(double x) {
        const uint64_t bias = (uint64_t) 1024 << 52, whole = (uint64_t) 0x433 << 52;
        uint64_t bits, e, number;
        double m, s, z, exponent, series;
        memcpy(&bits, &x, sizeof x);
        e = (bits + bias - 0x3FE6A09E667F3BCDu) >> 52;
        number = e | whole;
        memcpy(&exponent, &number, sizeof x);
        number = bits + bias - (e << 52);
        memcpy(&m, &number, sizeof x);
        s = (m - 1.0) / (m + 1.0);
        z = s * s;
        series = z * (1 / 13.0 + z * (1 / 15.0 + z * (1 / 17.0 + z * (1 / 19.0))));
        series = z * (1 / 3.0 + z * (1 / 5.0 + z * (1 / 7.0 + z * (1 / 9.0 + z * (1 / 11.0 + series)))));
        return (exponent - (4503599627370496.0 + 1024.0)) * 0.69314718055994530942 + 2.0 * (s + s * series);
    }

    /* exp(x) for -700 < x <= 0, to 1e-14 of it for x > -50. The library's exp is not vectorised. With n the whole number
       nearest to x/ln 2 and r = x - n ln 2, exp x = 2^n (1 + r + r^2/2 + ... + r^12/12!). Adding 1.5 2^52 rounds x/ln 2
       and leaves n in the low bits; n is read from there, because the compiler may reorder sums. */
    static inline double sdp_exp(double x) {
        const uint64_t whole = (uint64_t) 0x433 << 52;
        double sum = x * 1.44269504088896340736 + 6755399441055744.0, n, r, power, series;
        uint64_t bits, number;
        memcpy(&bits, &sum, sizeof x);
        bits = (bits + 1023) & 2047;
        number = bits | whole;
        memcpy(&n, &number, sizeof x);
        bits <<= 52;
        memcpy(&power, &bits, sizeof x);
        r = x - (n - (4503599627370496.0 + 1023.0)) * 0.69314718055994530942;
        series = 1 / 40320.0 + r * (1 / 362880.0 + r * (1 / 3628800.0 + r * (1 / 39916800.0 + r / 479001600.0)));
        series = 1 / 24.0 + r * (1 / 120.0 + r * (1 / 720.0 + r * (1 / 5040.0 + r * series)));
        return power * (1.0 + r * (1.0 + r * (0.5 + r * (1 / 6.0 + r * series))));
    }

    /* The largest logarithm, by spread first: then several are compared at once. */
    static inline double sdp_top(const double *cells) {
        double tops[SDP_SPREADS], top;
        memcpy(tops, cells, sizeof tops);
        for (int i = SDP_SPREADS; i < SDP_CELLS; i += SDP_SPREADS)
            for (int k = 0; k < SDP_SPREADS; k++) tops[k] = cells[i + k] > tops[k] ? cells[i + k] : tops[k];
        top = tops[0];
        for (int k = 1; k < SDP_SPREADS; k++) top = tops[k] > top ? tops[k] : top;
        return top;
    }

    /* As `weights`, for one column. */
    SDP_CLONES static void sdp_weigh(const double *cells, double *w) {
        double top = sdp_top(cells), total = 0.0;
        for (int i = 0; i < SDP_CELLS; i++) {
            double x = cells[i] - top, weight = sdp_exp(x > SDP_NOTHING ? x : SDP_NOTHING);
            w[i] = x > SDP_NOTHING ? weight : 0.0;
            total += w[i];
        }
        total = 1.0 / total;
        for (int i = 0; i < SDP_CELLS; i++) w[i] *= total;
    }

    /* As `gain`. A spread that is too wide has the logarithm of 1. */
    SDP_CLONES static double sdp_gain(const double *w, const double *squares, double mean, double limit) {
        double out = 0.0;
        for (int i = 0; i < SDP_CENTRES; i++) {
            double m = -1.0 + 2.0 * i / (SDP_CENTRES - 1), away = (m - mean) * (m - mean);
            if (squares[0] + away >= limit) continue;
            for (int k = 0; k < SDP_SPREADS; k++) {
                double ratio = limit / (squares[k] + away);
                out += w[i * SDP_SPREADS + k] * sdp_log(ratio > 1.0 ? ratio : 1.0);
            }
        }
        return 0.5 * out;
    }

    /* Adds ln(start + slope (1/(1 + above grid) - 1/(1 + below grid))) to all cells; without `below`, it is infinite. */
    SDP_CLONES static void sdp_take_in(
        double *cells, const double *grid, const double *above, const double *below, double start, double slope
    ) {
        double top;
        for (int i = 0; i < SDP_CELLS; i += SDP_SPREADS) {
            double chance[SDP_SPREADS];
            for (int k = 0; k < SDP_SPREADS; k++) chance[k] = 1.0 / (1.0 + above[k] * grid[i + k]);
            if (below) for (int k = 0; k < SDP_SPREADS; k++) chance[k] -= 1.0 / (1.0 + below[k] * grid[i + k]);
            for (int k = 0; k < SDP_SPREADS; k++) cells[i + k] += sdp_log(start + slope * chance[k]);
        }
        top = sdp_top(cells);
        for (int i = 0; i < SDP_CELLS; i++) cells[i] -= top;
    }
    """
    void sdp_weigh(const double* cells, double* w) noexcept nogil
    double sdp_gain(const double* w, const double* squares, double mean, double limit) noexcept nogil
    void sdp_take_in(
        double* cells, const double* grid, const double* above, const double* below, double start, double slope
    ) noexcept nogil

cdef inline double _centre(int i) noexcept nogil:
    return -1.0 + 2.0 * i / (CENTRES - 1)


cdef inline double _spread(int k) noexcept nogil:
    return exp2(-6.0 + 0.5 * k)


cdef void _fill() noexcept nogil:
    cdef int i, k
    for k in range(SPREADS):
        _rates[k], _logs[k], _squares[k] = 1.7 / _spread(k), log(_spread(k)), _spread(k) * _spread(k)
    for i in range(CENTRES):
        for k in range(SPREADS):
            _grid[i * SPREADS + k] = exp(_rates[k] * _centre(i))


_fill()


cdef void take_in(double* cells, double low, double high, bint answer, double keep) noexcept nogil:
    """As `update`, for the `CELLS` logarithms of one column.

    F((x - m)/s) = 1/(1 + exp(-1.7 x/s) exp(1.7 m/s)), so a bit takes two exponentials a spread and not two a cell.
    """
    cdef double above[SPREADS]
    cdef double below[SPREADS]
    cdef double slope = 0.95 * (2.0 * keep - 1.0), start = 0.025 * (2.0 * keep - 1.0) + 1.0 - keep
    cdef int k
    if not answer:
        slope, start = -slope, 1.0 - start
    for k in range(SPREADS):
        above[k], below[k] = exp(-_rates[k] * high), exp(-_rates[k] * low)
    sdp_take_in(cells, _grid, above, NULL if low == -INFINITY else below, start, slope)


cdef void weigh(const double* cells, double* w) noexcept nogil:
    """As `weights`, for one column."""
    sdp_weigh(cells, w)


cdef void summarise_into(const double* w, double* out) noexcept nogil:
    """As `summarise`."""
    cdef double mean = 0.0, square = 0.0, logs = 0.0, log_square = 0.0, below = 0.0, median = 1.0
    cdef double spreads[SPREADS]
    cdef double m, row, variance, log_variance, typical, reach
    cdef bint found = False
    cdef int i, k
    for k in range(SPREADS):
        spreads[k] = 0.0
    for i in range(CENTRES):
        m, row = _centre(i), 0.0
        for k in range(SPREADS):
            row += w[i * SPREADS + k]
            spreads[k] += w[i * SPREADS + k]
        mean += row * m
        square += row * m * m
        if not found and below + row >= 0.5:
            found, median = True, m
        below += row
    for k in range(SPREADS):
        logs += spreads[k] * _logs[k]
        log_square += spreads[k] * _logs[k] * _logs[k]
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
    return sdp_gain(w, _squares, mean, (scale / 1.5) * (scale / 1.5))


cdef double chance_beyond(const double* w, double mean, double limit) noexcept nogil:
    """As `exceeding`."""
    cdef double above = 0.0, away
    cdef int i, k
    for i in range(CENTRES):
        away = (_centre(i) - mean) * (_centre(i) - mean)
        for k in range(SPREADS):
            if _squares[k] + away > limit * limit:
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
