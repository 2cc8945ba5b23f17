"""Noisy bits about pairs of columns: do two lie on the same side of their centres?

If columns are correlated, theta is slow in a direction that no path of one parameter shows, and confidence intervals
need to know it (`intervals`). The next bit is about the pair with the least information. Of pairs whose mean answer is
above .2 in absolute value, as at a correlation of .31, a fifth counts: their correlations are needed more exactly. A
pair whose information counts as 40 is not asked about any more.
"""

from libc.math cimport fabs

cdef double _ENOUGH = 40.0, _FAR = 0.2, _FIFTH = 0.2


cdef void choose(double* pairs, Py_ssize_t n) noexcept nogil:
    """Write the last of n + 1 rows."""
    cdef const double* row
    cdef double* last = pairs + n * PAIR
    cdef double least = _ENOUGH, counts
    cdef Py_ssize_t i
    last[FIRST], last[INFORMATION], last[ANSWERS] = -1.0, 0.0, 0.0
    for i in range(n):
        row = pairs + i * PAIR
        last[INFORMATION] += row[INFORMATION]
        last[ANSWERS] += row[ANSWERS]
        counts = row[INFORMATION] * (_FIFTH if fabs(row[SUM]) > _FAR * row[INFORMATION] else 1.0)
        if counts < least:
            least, last[FIRST] = counts, i


cdef void take_in(double* pairs, Py_ssize_t n, Py_ssize_t which, bint same, double keep) noexcept nogil:
    """Take in a noisy bit about a pair. `keep` is the probability that it is the true one."""
    cdef double* row = pairs + which * PAIR
    cdef double weight = 2 * keep - 1
    row[SUM] += weight if same else -weight
    row[INFORMATION] += weight * weight
    row[ANSWERS] += 1
    choose(pairs, n)
