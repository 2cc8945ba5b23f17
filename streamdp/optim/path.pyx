"""The path of theta, from which `streamdp.reading.intervals` finds confidence intervals.

A segment has the d sums of the iterates, in original units and with their weights tau, and its length, the sum of tau.
It ends when it is as long as the others, and when columns are scaled, because then steps change. When it ends, what
steps and scales were follows from the information T. Column j has the steps T_j^-alpha with T_j = T - SINCE + T_0
(`unit_table`), and in original units a step moves the coefficient by 1/scale^2 times that, and noise by 1/scale. So
over the segment

    rate_j = integral of T_j^-alpha dT / scale^2,   noise_j = integral of T_j^(-2 alpha) dT / scale^2.

The segment has rate_0 .. rate_p and noise_0 .. noise_p, p being all parameters that belong to no column. Segments that
are joined add all their numbers up.
"""

from libc.math cimport log, pow

from streamdp.optim.loops cimport DECAY, OFFSET
from streamdp.scaling.unit_table cimport SCALE, SEGMENT, SINCE, TABLE, TOTAL, WIDTH

cdef double _LEAST = 1e-9


cdef double _integral(double low, double high, double power) noexcept nogil:
    """That of x^(power - 1)."""
    low = max(low, _LEAST * high)
    return log(high / low) if power == 0.0 else (pow(high, power) - pow(low, power)) / power


cdef void _measure(Model* m, double* segment, double end) noexcept nogil:
    """Write the rates and the noises of a segment at whose end the information was `end`."""
    cdef double* rates = segment + m.d + 1
    cdef double decay = m.spec[DECAY], since, low, high, factor
    cdef const double* column
    cdef Py_ssize_t p = m.units.p, j
    for j in range(p + 1):
        column = m.units.table + j * TABLE
        since, factor = column[SINCE], 1.0 / (column[SCALE] * column[SCALE]) if j < p else 1.0
        high = end - since + m.spec[OFFSET]
        low = high - segment[m.d]
        rates[j] = factor * _integral(low, high, 1.0 - decay)
        rates[p + 1 + j] = factor * _integral(low, high, 1.0 - 2.0 * decay)


cdef void end_segment(Model* m) noexcept nogil:
    """Begin a new segment. If there is no room, segments are joined in pairs, and are twice as long from now on."""
    cdef Py_ssize_t at = <Py_ssize_t> m.units.progress[SEGMENT], half = m.many // 2, row = width(m), i, j
    if not m.many or not m.segments[at * row + m.d] > 0.0:
        return
    _measure(m, m.segments + at * row, m.units.progress[TOTAL])
    if at + 1 < m.many:
        m.units.progress[SEGMENT] += 1
        return
    for i in range(half):
        for j in range(row):
            m.segments[i * row + j] = m.segments[2 * i * row + j] + m.segments[(2 * i + 1) * row + j]
    for i in range(half * row, m.many * row):
        m.segments[i] = 0.0
    m.units.progress[SEGMENT] = half
    m.units.progress[WIDTH] *= 2.0


cdef void forget(Model* m) noexcept nogil:
    """Empty the segments."""
    cdef Py_ssize_t i
    m.units.progress[SEGMENT] = m.units.progress[WIDTH] = 0.0
    for i in range(m.many * width(m)):
        m.segments[i] = 0.0
