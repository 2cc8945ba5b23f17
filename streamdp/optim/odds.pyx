"""Bits about the class: the start of the intercept of a model of two classes, and the speed of its progress.

One class is often rare. An intercept that begins at 0 takes thousands of records to reach its log odds b, and until
then probabilities are far worse than those of a constant. So the first records answer "is it the class 1?" if columns
are scaled privately.

With keep the probability of a true answer and u = 2 keep - 1, a noisy "yes" has the probability (1 + u tanh(b/2))/2.
With n bits, S and I the sums of +-u and of u^2, and t = tanh(b/2), the likelihood is

    (1 + v t)^((n + S/v)/2) (1 - v t)^((n - S/v)/2),   v^2 = I/n,

which is exact if all records have the same budget. The prior has the density 1/(1 + 4 b^2) on a grid in [-6, 6]: most
classes are about as frequent as each other, and then 0 is a good start. The intercept is the log odds of the expected
probability p, which is the choice with the least expected log loss.

Bits end when I/(1 - I t^2/n) >= 8 + 100 (cosh b - 1) at the b that is chosen. With J the left side, the information of
bits about t, the error of p makes the log loss of a constant larger by about 1/(8 J p (1 - p)): .003 of .1 if one in
fifty is of the class.

Clock. At p the curvature of the loss is p (1 - p), and 4 p (1 - p) = cosh(b/2)^-2 of the largest one; and the
information that is worth as much as knowing theta before is the inverse square of the curvature (`steps`). Gradients
with columns move a rare class's theta by noise long before they carry information. So the progress of all parameters
begins at -(cosh(b/2)^3 - 1) T_0: the first steps are as short as if that information had come. The power would be 4 for
a predictor of spread 0; 3 is better by measurement, because the curvature rises with theta (`benchmarks/learning.md`,
probabilities).

This is for accuracy only: whether a bit is asked follows from released bits (`local_learning`).
"""

from libc.math cimport atanh, cosh, exp, fmin, log1p, pow, sqrt, tanh

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


def begin(arrays):
    """Put the intercept of `Arrays` where the bits of all parts say, after a merge of parts without a gradient."""
    cdef Model m
    model_of(arrays, &m)
    if _before(&m):
        _place(&m)
        settle(&m)
