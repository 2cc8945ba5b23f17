"""Bits about the class: where the intercept of a model of two classes begins.

One class is often rare. An intercept that begins at 0 takes thousands of records to reach its log odds b, and until
then probabilities are far worse than those of a constant. So the first records answer "is it the class 1?" if columns
are scaled privately.

With p the probability of a true answer, u = 2 p - 1, and t = 1 for a noisy "yes" and -1 for "no", t/u has the mean
tanh(b/2). With S and I the sums of u t and of u^2, the likelihood is taken for exp(S tanh(b/2) - I tanh(b/2)^2/2), as
if noise were normal. The prior has the density 1/(1 + 4 b^2) on a grid in [-6, 6]: most classes are about as frequent
as each other, and then 0 is a good start. The intercept is the log odds of the expected probability, which is the
choice with the least expected log loss. Bits end when I >= 8 + 24 |intercept| (`benchmarks/learning.md`).

This is for accuracy only: whether a bit is asked follows from released bits (`questions`).
"""

from libc.math cimport atanh, exp, fabs, tanh

from streamdp.optim.frame cimport BITS, CLASS, TARGET, TOTAL, Model, model_of, to_original
from streamdp.optim.loops cimport INTERCEPT, LOGISTIC, LOSS

cdef double _FIRST = 8.0, _EACH = 24.0, _STEP = 0.125
cdef int _STEPS = 48


cdef bint _before(const Model* m) noexcept nogil:
    """Whether it is a model whose records answer about their class before the first gradient, and there was none."""
    return m.c > 0 and <int> m.spec[LOSS] == LOGISTIC and m.spec[INTERCEPT] > 0.0 and m.clock[TOTAL] == 0.0


cdef bint due(const Model* m) noexcept nogil:
    """Whether the next record answers about its class."""
    return _before(m) and m.clock[TARGET] < _FIRST + _EACH * fabs(m.theta[m.p])


cdef double _expected(double total, double information) noexcept nogil:
    """The log odds of the expected probability by the sums S and I."""
    cdef double top = total * total / (2.0 * information), b, t, weight, weights = 0.0, mean = 0.0
    cdef int i
    for i in range(-_STEPS, _STEPS + 1):
        b = i * _STEP
        t = tanh(b / 2)
        weight = exp(total * t - information * t * t / 2 - top) / (1.0 + 4.0 * b * b)
        weights += weight
        mean += weight * t
    return 2.0 * atanh(mean / weights) if weights > 0.0 else 0.0


cdef void _place(Model* m) noexcept nogil:
    """Put the intercept where the bits say."""
    m.theta[m.p] = _expected(m.clock[CLASS], m.clock[TARGET])
    to_original(m, m.theta, m.average)


cdef void take_in(Model* m, bint answer, double keep) noexcept nogil:
    """Take in a noisy bit "it is the class 1", that is true with the probability `keep`."""
    cdef double* clock = m.clock
    cdef double surplus = 2 * keep - 1
    if clock[TARGET] == 0.0:
        clock[CLASS] = 0.0  # states from before there were these bits have another number there
    clock[BITS] += 1
    clock[TARGET] += surplus * surplus
    clock[CLASS] += surplus if answer else -surplus
    _place(m)


def begin(arrays):
    """Put the intercept where the bits of all parts say, after a merge of parts without a gradient.

    Parameters
    ----------
    arrays
        See `Arrays`.
    """
    cdef Model m
    model_of(arrays, &m)
    if _before(&m):
        _place(&m)
