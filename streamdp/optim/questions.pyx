"""Which question the next record answers.

A record answers one question with its whole budget: either with a noisy gradient, or with one noisy bit about columns.
By the bits, columns and target are centred and scaled (`location_scale` has the model of a column), and confidence
intervals know which columns are correlated (`pair_bits`). Which question it is depends on the number of the record, on
public budgets and on earlier answers only.

Schedule. The information of a bit is (2 p - 1)^2, p being the probability of a true answer. With u the information that
all records so far would have given as bits, b that of the bits asked, and p columns to scale, the next record answers
with a bit

* about the target, until the bits about it have an information of 60, and then up to 240 while ln s is known to less
  than .22 (`frame`);
* else about the columns in turn, if b < A(5 p);
* else about the column with the largest expected gain, if b < A(60 p) and this gain is above .03 min(1, 60 p/u);
* else about a pair of columns, if the bits about pairs have less than .04 u and the clock of gradients is at least at
  `SHORTEST`,

A(k) = min(.15 u, k (1 + ln max(1, .15 u/k))); otherwise with a gradient.
"""

from libc.math cimport INFINITY, exp, floor

from streamdp.optim cimport pair_bits
from streamdp.optim.frame cimport (
    ASKED,
    COLUMN,
    COUNT,
    FRAME,
    GAIN,
    GRADIENT,
    REACHED,
    SHORTEST,
    SLOT,
    SUMMARY,
    TARGET,
    TOTAL,
    TURN,
    Model,
    model_of,
)
from streamdp.privacy.samplers cimport HUGE

cdef double _FEW = 5.0, _MANY = 60.0
cdef double _SHARE = 0.15, _PAIR_SHARE = 0.04


cdef double _needed(double asked, double k) noexcept nogil:
    """The u above which `asked` < A(k)."""
    return (asked if asked < k else k * exp(asked / k - 1.0)) / _SHARE


cdef Questions questions_of(const Model* m) noexcept nogil:
    """What decides about questions until the next answer, and until columns are scaled anew."""
    cdef const double* clock = m.clock
    cdef const double* frame = m.frame
    cdef const double* summary = m.summary
    cdef const double* asked = m.pairs + m.n_pairs * pair_bits.PAIR
    cdef Questions out = Questions(INFINITY, GRADIENT, INFINITY, GRADIENT, INFINITY, GRADIENT)
    cdef Py_ssize_t best = 0, p = m.p, c = m.c, k
    cdef double most
    if asked[pair_bits.FIRST] >= 0.0:
        out.pair_above, out.pair = asked[pair_bits.WEIGHED] / _PAIR_SHARE, <Py_ssize_t> asked[pair_bits.FIRST]
    if c > 0 and frame[p * FRAME + SLOT] >= 0.0:
        c -= 1
        if clock[TARGET] < HUGE:
            out.turn_above, out.in_turn = -1.0, p
            return out
    if c > 0:
        for k in range(1, c):
            if summary[k * SUMMARY + GAIN] > summary[best * SUMMARY + GAIN]:
                best = k
        most = summary[best * SUMMARY + GAIN]
        out.in_turn = <Py_ssize_t> summary[(<Py_ssize_t> clock[TURN] % c) * SUMMARY + COLUMN]
        out.turn_above = _needed(clock[ASKED], _FEW * c)
        out.best = <Py_ssize_t> summary[best * SUMMARY + COLUMN]
        out.best_above = max(_needed(clock[ASKED], _MANY * c), 0.0 if most > 0.03 else 0.03 * _MANY * c / most)
    return out


def next_question(arrays):
    """The column that the next record is asked about: p for the target, or `GRADIENT`.

    It is `GRADIENT` too if a record in the same process would be asked about a pair: the reports of devices have no such
    question.

    Parameters
    ----------
    arrays
        See `Arrays`.
    """
    cdef Model m
    model_of(arrays, &m)
    cdef Questions due = questions_of(&m)
    cdef Py_ssize_t asked = question(&due, m.clock, m.p)
    return asked if asked <= m.p else GRADIENT


def ahead(arrays, double information):
    """How many gradients come before the next bit about a column, and that column; all records have one information.

    The answer depends on the number of records only, so it is the same however they are divided into calls.

    Parameters
    ----------
    arrays
        See `Arrays`; of a model whose target is not asked about.
    information
        That of a bit of each record.
    """
    cdef Model m
    model_of(arrays, &m)
    cdef Questions due = questions_of(&m)
    cdef double count = max(m.clock[COUNT], floor(min(due.turn_above, due.best_above) / information) + 1)
    return min(count - m.clock[COUNT], HUGE), due.in_turn if count * information > due.turn_above else due.best
