"""Which question the next record answers.

A record answers one question with its whole budget: either with a noisy gradient, or with one noisy bit about columns.
By the bits, columns and target are centred and scaled (`location_scale` has the model of a column), and confidence
intervals know which columns are correlated (`pair_bits`). Which question it is depends on the number of the record, on
public budgets and on earlier answers only.

Schedule. The information of a bit is (2 p - 1)^2, p being the probability of a true answer. With u the information that
all records so far would have given as bits, b that of the bits about columns, c columns to scale, and e the largest
error of a scale, the next record answers with a bit

* about the target, until the bits about it have an information of 60, and then up to 240 while ln s is known to less
  than .22 (`frame`);
* else about the class, if there are two, before the first gradient (`odds`);
* else about the column with this error, if b < .15 min(1, e/.08) (u - 30 c);
* else about a pair of columns, if the bits about pairs have less than .04 u and the clock of gradients is at least at
  `SHORTEST`; otherwise with a gradient.

The error is Var ln s + (E ln r - E ln s)^2: the expected square of ln(scale/s) for the scale that `frame` would choose,
r^2 = s^2 + (m - E m)^2; and what `tails` adds. Few records learn better in units that are not known: a bit about each
column would take more than it gives (`benchmarks/learning.md`, the price).
"""

from libc.math cimport INFINITY, floor

from streamdp.optim cimport odds, pair_bits
from streamdp.optim.frame cimport (
    ASKED,
    COLUMN,
    COUNT,
    ERROR,
    FRAME,
    GRADIENT,
    SLOT,
    SUMMARY,
    TARGET,
    Model,
    model_of,
)
from streamdp.privacy.samplers cimport HUGE

cdef double _SHARE = 0.15, _EXACT = 0.08, _LATER = 30.0
cdef double _PAIR_SHARE = 0.04


cdef Questions questions_of(const Model* m) noexcept nogil:
    """What decides about questions until the next answer, and until columns are scaled anew."""
    cdef const double* asked = m.pairs + m.n_pairs * pair_bits.PAIR
    cdef const double* worst = m.summary
    cdef Questions out = Questions(INFINITY, GRADIENT, INFINITY, GRADIENT)
    cdef Py_ssize_t c = m.c, k
    if asked[pair_bits.FIRST] >= 0.0:
        out.pair_above, out.pair = asked[pair_bits.WEIGHED] / _PAIR_SHARE, <Py_ssize_t> asked[pair_bits.FIRST]
    if odds.due(m):
        out.above, out.column = -1.0, ABOUT_CLASS
        return out
    if c > 0 and m.frame[m.p * FRAME + SLOT] >= 0.0:
        c -= 1
        if m.clock[TARGET] < HUGE:
            out.above, out.column = -1.0, m.p
            return out
    if c > 0:
        for k in range(1, c):
            if m.summary[k * SUMMARY + ERROR] > worst[ERROR]:
                worst = m.summary + k * SUMMARY
        out.column = <Py_ssize_t> worst[COLUMN]
        out.above = _LATER * c + m.clock[ASKED] / (_SHARE * min(1.0, max(worst[ERROR], 1e-9) / _EXACT))
    return out


def next_question(arrays):
    """The column of `Arrays` that the next record is asked about: p for the target, or `GRADIENT`.

    It is `GRADIENT` too if a record in the same process would be asked about a pair or its class: the reports of
    devices have no such questions.
    """
    cdef Model m
    model_of(arrays, &m)
    cdef Questions due = questions_of(&m)
    cdef Py_ssize_t asked = question(&due, m.clock, m.p)
    return asked if 0 <= asked <= m.p else GRADIENT


def ahead(arrays, double information):
    """How many gradients come before the next bit about a column of `Arrays`, and that column.

    `information` is that of a bit of each record; no bits are about the target. The answer depends on the number of
    records only, so it is the same however they are divided into calls.
    """
    cdef Model m
    model_of(arrays, &m)
    cdef Questions due = questions_of(&m)
    cdef double count = max(m.clock[COUNT], floor(due.above / information) + 1)
    return min(count - m.clock[COUNT], HUGE), due.column
