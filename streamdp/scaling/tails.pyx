"""Noisy bits about the tail of a column: values far from most others, such as the ones of a rare event.

A column is scaled by its root mean square, tail included. A share q of its values may lie at the distance t = sqrt2 R
from the median; r^2 = exp(2 E ln r0) + sum w q t^2, w being the posterior of the tails and r0 the r of the normal part.
The model, its prior and which question is asked: docs/proofs/local_reports.md. It is for accuracy only.
"""

from libc.math cimport exp, fabs, isfinite, log, sqrt

from streamdp.scaling cimport location_scale as ls

cdef double[MASSES] _MASS = [0.01, 0.03, 0.1, 0.3]
cdef double _REST = 0.003, _CLEAR = 4.0, _NEAR = 1.5, _ENOUGH = 30.0
cdef double _AT_BOUND = log(0.9 / 0.1), _WITHIN = log(0.0003)  # logarithms of the odds of a tail


cdef inline double _distance(int level) noexcept nogil:
    return 1.0 / (1 << level)


cdef inline double _bulk(const double* row) noexcept nogil:
    """The spread of the bulk and of its centre, from a row of the summary of `location_scale`."""
    return sqrt(exp(2.0 * row[ls.LOG]) + row[ls.VARIANCE])


cdef bint about_tail(double low, double high, const double* row) noexcept nogil:
    """Whether a question is about the tail, and not about the bulk: questions about a spread are narrower."""
    return isfinite(low) and isfinite(high) and high - low > _CLEAR * _bulk(row)


cdef inline double _likelihood(double outside, bint answer, double keep) noexcept nogil:
    """The logarithm of the probability of a noisy answer, of values that are outside with this probability."""
    return log(1.0 - keep + (2.0 * keep - 1.0) * (1.0 - outside if answer else outside))


cdef void take_in(double* evidence, double low, double high, bint answer, double keep) noexcept nogil:
    """Take in a noisy bit "x is in [low, high)". `keep` is the probability that it is the true one."""
    cdef double none = _likelihood(_REST, answer, keep)
    cdef int level, i
    evidence[LIKELIHOODS] += (2.0 * keep - 1.0) * (2.0 * keep - 1.0)
    for level in range(LEVELS):
        if _distance(level) >= 0.499 * (high - low):
            for i in range(MASSES):
                evidence[level * MASSES + i] += _likelihood(_REST + _MASS[i], answer, keep) - none


cdef double widen(const double* evidence, double error, double* row) noexcept nogil:
    """Add the tail to REACH and REACH_VARIANCE of a row of the summary, and maybe ask about it.

    `error` is that of the scale without a tail; returns what the tail adds.
    """
    cdef double w[LIKELIHOODS]
    cdef double logs[LIKELIHOODS]
    cdef double bulk = _bulk(row), base = exp(2.0 * row[ls.REACH]), far = 1.0 + fabs(row[ls.MEAN])
    cdef double prior = _AT_BOUND if 2.0 - far < _NEAR * bulk else _WITHIN
    cdef double top = 0.0, none, total, t, square = 0.0, mean, variance, covariance = 0.0, best = 0.0
    cdef int n = 0, chosen = 0, i
    while n < LEVELS and _distance(n) >= _CLEAR * bulk:
        n += 1
    if n == 0:
        return 0.0
    n *= MASSES
    prior -= log(n)
    for i in range(n):
        top = max(top, evidence[i] + prior)
    none = total = exp(-top)
    mean = none * row[ls.REACH]
    for i in range(n):
        t = min(sqrt(2.0) * _distance(i // MASSES), far)
        w[i] = exp(evidence[i] + prior - top)
        logs[i] = 0.5 * log(base + _MASS[i % MASSES] * t * t)
        total += w[i]
        mean += w[i] * logs[i]
        square += w[i] * _MASS[i % MASSES] * t * t
    mean /= total
    variance = none * (row[ls.REACH] - mean) * (row[ls.REACH] - mean)
    for i in range(n):
        variance += w[i] * (logs[i] - mean) * (logs[i] - mean)
        covariance += w[i] * (logs[i] - mean) * _MASS[i % MASSES]
        if i % MASSES == MASSES - 1 and fabs(covariance) > best:
            best, chosen = fabs(covariance), i // MASSES
    variance /= total
    row[ls.REACH] = 0.5 * log(base + square / total)
    row[ls.REACH_VARIANCE] += variance
    variance /= 1.0 + evidence[LIKELIHOODS] / _ENOUGH
    if variance > error:
        row[ls.LOW], row[ls.HIGH] = row[ls.MEDIAN] - _distance(chosen), row[ls.MEDIAN] + _distance(chosen)
    return variance
