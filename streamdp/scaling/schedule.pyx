"""Which question the next record answers: with a noisy gradient, or with one noisy bit about columns.

It depends on the number of the record, on public budgets and on earlier answers only. About the class, if there are
two, the learner asks first (`odds`). The rule, with the constants below: docs/proofs/local_reports.md.
"""

from libc.math cimport INFINITY, floor

from streamdp.privacy.samplers cimport HUGE
from streamdp.scaling cimport pair_bits
from streamdp.scaling.unit_table cimport (
    ASKED,
    COLUMN,
    COUNT,
    ERROR,
    GRADIENT,
    SLOT,
    SUMMARY,
    TABLE,
    TARGET,
    Units,
    units_of,
)

cdef double _SHARE = 0.15, _EXACT = 0.08, _LATER = 30.0
cdef double _PAIR_SHARE = 0.04


cdef Questions questions_of(const Units* u) noexcept nogil:
    """What decides about questions until the next answer, and until columns are scaled anew."""
    cdef const double* asked = u.pairs + u.n_pairs * pair_bits.PAIR
    cdef const double* worst = u.summary
    cdef Questions out = Questions(INFINITY, GRADIENT, INFINITY, GRADIENT)
    cdef Py_ssize_t c = u.c, k
    if asked[pair_bits.FIRST] >= 0.0:
        out.pair_above, out.pair = asked[pair_bits.INFORMATION] / _PAIR_SHARE, <Py_ssize_t> asked[pair_bits.FIRST]
    if c > 0 and u.table[u.p * TABLE + SLOT] >= 0.0:
        c -= 1
        if u.progress[TARGET] < HUGE:
            out.above, out.column = -1.0, u.p
            return out
    if c > 0:
        for k in range(1, c):
            if u.summary[k * SUMMARY + ERROR] > worst[ERROR]:
                worst = u.summary + k * SUMMARY
        out.column = <Py_ssize_t> worst[COLUMN]
        out.above = _LATER * c + u.progress[ASKED] / (_SHARE * min(1.0, max(worst[ERROR], 1e-9) / _EXACT))
    return out


def next_question(arrays):
    """The column of `UnitArrays` that the next record is asked about: p for the target, or `GRADIENT`.

    It is `GRADIENT` too if a record in the same process would be asked about a pair: the reports of devices have no
    such questions.
    """
    cdef Units u
    units_of(arrays, &u)
    cdef Questions due = questions_of(&u)
    cdef Py_ssize_t asked = question(&due, u.progress, u.p)
    return asked if asked <= u.p else GRADIENT


def ahead(arrays, double information):
    """How many gradients come before the next bit about a column of `UnitArrays`, and that column.

    `information` is that of a bit of each record; no bits are about the target. The answer depends on the number of
    records only, so it is the same however they are divided into calls.
    """
    cdef Units u
    units_of(arrays, &u)
    cdef Questions due = questions_of(&u)
    cdef double count = max(u.progress[COUNT], floor(due.above / information) + 1)
    return min(count - u.progress[COUNT], HUGE), due.column
