"""Bits about the class: the start of the intercept of a model of two classes, and the speed of its progress.

One class is often rare. An intercept that begins at 0 takes thousands of records to reach its log odds b, so the first
records answer "is it the class 1?" if columns are scaled privately. Progress begins below 0, as far as the class is
rare: the first steps are short. The model, the rule by which bits end, and the clock: docs/proofs/local_reports.md.

This is for accuracy only: whether a bit is asked follows from released bits (`local_learning`).
"""

from libc.math cimport acosh, atanh, copysign, cosh, exp, fmax, fmin, log1p, pow, sqrt, tanh

from streamdp.optim.local_model cimport Model, model_of, settle, to_original
from streamdp.optim.loops cimport INTERCEPT, LOGISTIC, LOSS, OFFSET
from streamdp.scaling.unit_table cimport BITS, CLASS, SINCE, TABLE, TARGET, TOTAL

cdef double _FIRST = 8.0, _EACH = 100.0, _STEP = 0.125, _POWER = 3.0, _ALMOST = 1.0 - 1e-9
cdef int _STEPS = 48


cdef bint _before(const Model* m) noexcept nogil:
    """Whether it is a model whose records answer about their class before the first gradient, and there was none."""
    cdef bint logistic = <int> m.spec[LOSS] == LOGISTIC and m.spec[INTERCEPT] > 0.0
    return logistic and m.units.c > 0 and m.units.progress[TOTAL] == 0.0


cdef bint due(const Model* m) noexcept nogil:
    """Whether the next record answers about its class."""
    cdef double t, known
    if not _before(m):
        return False
    t, known = tanh(m.theta[m.units.p] / 2), m.units.progress[TARGET]
    if known == 0.0:
        return True
    known /= 1.0 - fmin(known * t * t / max(m.units.progress[BITS], known), _ALMOST)
    return known < _FIRST + _EACH * (cosh(m.theta[m.units.p]) - 1.0)


cdef inline double _likelihood(double share, double at, double bits) noexcept nogil:
    """The logarithm, up to a constant, for a share (1 + share)/2 of "yes" among bits with the probability (1 + at)/2."""
    return bits / 2 * ((1.0 + share) * log1p(at) + (1.0 - share) * log1p(-at))


cdef double _expected(double total, double information, double bits) noexcept nogil:
    """The log odds of the expected probability by S, I and n."""
    cdef double v = min(sqrt(information / bits), _ALMOST), share = min(max(total / (v * bits), -_ALMOST), _ALMOST)
    cdef double top = _likelihood(share, share, bits), b, t, weight, weights = 0.0, mean = 0.0
    cdef int i
    for i in range(-_STEPS, _STEPS + 1):
        b = i * _STEP
        t = tanh(b / 2)
        weight = exp(_likelihood(share, v * t, bits) - top) / (1.0 + 4.0 * b * b)
        weights += weight
        mean += weight * t
    return 2.0 * atanh(mean / weights) if weights > 0.0 else 0.0


cdef void _place(Model* m) noexcept nogil:
    """Set the intercept and the progress from the bits."""
    cdef const double* progress = m.units.progress
    cdef double since
    cdef Py_ssize_t p = m.units.p, j
    if progress[TARGET] <= 0.0:
        return
    m.theta[p] = _expected(progress[CLASS], progress[TARGET], max(progress[BITS], progress[TARGET]))
    since = (1.0 - pow(cosh(m.theta[p] / 2), _POWER)) * m.spec[OFFSET]
    for j in range(p + 1):
        m.units.table[j * TABLE + SINCE] = since
    to_original(m, m.theta, m.average)


cdef void take_in(Model* m, bint answer, double keep) noexcept nogil:
    """Take in a noisy bit "it is the class 1", that is true with the probability `keep`."""
    cdef double* progress = m.units.progress
    cdef double surplus = 2 * keep - 1
    progress[BITS] += 1
    progress[TARGET] += surplus * surplus
    progress[CLASS] += surplus if answer else -surplus
    _place(m)


def told(arrays):
    """The log odds of the second class that the bits told to `Arrays`, by where its clock began; 0: none were asked."""
    cdef Model m
    cdef double rare
    model_of(arrays, &m)
    rare = 2 * acosh(pow(fmax(1.0 - m.units.table[m.units.p * TABLE + SINCE] / m.spec[OFFSET], 1.0), 1 / _POWER))
    return copysign(rare, m.units.progress[CLASS]) if rare > 0.0 else 0.0


def begin(arrays):
    """Put the intercept of `Arrays` where the bits of all parts say, after a merge of parts without a gradient."""
    cdef Model m
    model_of(arrays, &m)
    if _before(&m):
        _place(&m)
        settle(&m)
