"""The units of columns and target: what is known of each, and what follows from noisy bits.

A column is learned as (x - centre)/scale, and the target as (y - centre)/scale. Centres and scales follow from noisy
bits (`schedule`): those of the target when enough is known, those of the columns after 32 records, and then every time
the number of records has grown by a fifth (`scale_columns`). The table knows neither the loss nor how theta moves.
"""

from libc.math cimport ceil, exp, fabs, log, sqrt

cimport numpy as cnp

from streamdp.privacy.arrays cimport matrix, vector
from streamdp.privacy.samplers cimport HUGE
from streamdp.scaling cimport location_scale as ls
from streamdp.scaling cimport pair_bits, tails

cnp.import_array()

DONE = HUGE  # progress[TARGET] from when on the target has its scale
FIRST = 32.0  # progress[NEXT] of a search that begins
GROWTH = 1.2

cdef double _GROWTH = GROWTH
cdef double _TARGET_LEAST = 60.0, _TARGET_MOST = 240.0, _TARGET_VARIANCE = 0.05
cdef double _WRONG = 0.2, _SURE = 2.0
cdef double _LEAST_SCALE = 1.0 / 128.0


cdef int units_of(arrays, Units* out) except -1:
    """Describe `UnitArrays` by pointers. Raises `TypeError` if their sizes do not fit each other."""
    cdef cnp.ndarray progress, table, posterior, far, summary, pairs
    progress, table, posterior, far, summary, pairs = arrays
    out.progress, out.table, out.tail_evidence = vector(progress), matrix(table), matrix(far)
    out.summary, out.pairs = matrix(summary), matrix(pairs)
    out.posterior = <float*> cnp.PyArray_DATA(posterior)
    out.p, out.c, out.n_pairs = table.shape[0] - 1, summary.shape[0], pairs.shape[0] - 1
    if (
        progress.shape[0] != PROGRESS
        or table.shape[1] != TABLE
        or summary.shape[1] != SUMMARY
        or pairs.shape[1] != pair_bits.PAIR
        or out.p < 0
        or out.n_pairs < 0
        or cnp.PyArray_SIZE(posterior) != out.c * ls.CELLS
        or far.shape[0] != out.c
        or far.shape[1] != tails.TAILS
        or not cnp.PyArray_IS_C_CONTIGUOUS(posterior)
        or cnp.PyArray_TYPE(posterior) != cnp.NPY_FLOAT32
    ):
        raise TypeError("expected the arrays of the units of one learner")
    return 0


cdef void _fit(Units* u) noexcept nogil:
    """Compute SLOPE and SHIFT of all columns from their centres, scales and units."""
    cdef Py_ssize_t j
    cdef double* column
    for j in range(u.p):
        column = u.table + j * TABLE
        column[SLOPE] = 1.0 / (column[SCALE] * column[UNIT])
        column[SHIFT] = (column[CENTRE] + column[ORIGIN] / column[UNIT]) / column[SCALE]


cdef void outward(
    const Units* u, const double* theta, Py_ssize_t d, bint intercept, bint huber, double* out
) noexcept nogil:
    """Write theta (d,) for original values into `out`, as `units.Units.outward`; `huber`: the last entry is a scale."""
    cdef Py_ssize_t p = u.p, q = p + intercept, j, k
    cdef const double* target = u.table + p * TABLE
    cdef const double* column
    cdef double scale = target[SCALE], shift
    for k in range(d // q):
        shift = 0.0
        for j in range(p):
            column = u.table + j * TABLE
            shift += theta[k * q + j] * column[SHIFT]
            out[k * q + j] = theta[k * q + j] * column[SLOPE] * scale
        if intercept:
            out[k * q + p] = target[CENTRE] + (theta[k * q + p] - shift) * scale
    if huber:
        out[d - 1] = theta[d - 1] * scale


cdef void _refresh(Units* u, Py_ssize_t slot) noexcept nogil:
    """Compute a row of `summary` anew from its posterior."""
    cdef float w[ls.CELLS]
    cdef double* row = u.summary + slot * SUMMARY
    cdef bint column = row[COLUMN] < u.p
    ls.weigh(u.posterior + slot * ls.CELLS, column, w)
    ls.summarise_into(w, column, row)
    row[ERROR] = row[ls.LOG_VARIANCE] + (row[ls.REACH] - row[ls.LOG]) * (row[ls.REACH] - row[ls.LOG])
    if column:
        row[ERROR] += tails.widen(u.tail_evidence + slot * tails.TAILS, row[ERROR], row)


cdef bint _moves(const Units* u, Py_ssize_t slot, double* new) noexcept nogil:
    """Whether a column is centred or scaled anew, and its next scale: see `scale_columns`."""
    cdef const double* row = u.summary + slot * SUMMARY
    cdef const double* column = u.table + <Py_ssize_t> row[COLUMN] * TABLE
    cdef double scale = column[SCALE], off = fabs(row[ls.REACH] - log(scale))
    new[0] = scale
    if <Py_ssize_t> row[COLUMN] == u.p:
        return False
    if off > _WRONG and off * off > _SURE * row[ls.REACH_VARIANCE]:
        new[0] = min(max(exp(row[ls.REACH]), _LEAST_SCALE), 1.0)
    return new[0] != scale or fabs(row[ls.MEAN] - column[CENTRE]) > max(scale / 2, 3 * sqrt(row[ls.VARIANCE]))


cdef bint moves(const Units* u) noexcept nogil:
    """Whether `scale_columns` would change a column."""
    cdef Py_ssize_t slot
    cdef double new
    for slot in range(u.c):
        if _moves(u, slot, &new):
            return True
    return False


cdef bint scale_columns(Units* u, double* theta, Py_ssize_t blocks) noexcept nogil:
    """Centre and scale the columns anew where their posteriors are sure; return whether averages should begin anew.

    `theta` (blocks, p + 1), the intercepts last, is carried along.

    A scale becomes r (`tails`) if its logarithm is off by more than .2, and by more than sqrt(2) deviations of ln r. A
    centre moves along, or if it is off by half a scale and by three deviations of m.

    The progress of a column is T - SINCE. It began at minus the SINCE of the last row, and the rest is the information
    of gradients. If the spread is s < scale, gradients have s^2/scale^2 times their information about the coefficient.
    If s > scale, records far away had small weights, or there were none, and noise moved the coefficient s/scale times
    as far. So a new scale changes the progress by the factor new^2/scale^2 or its inverse, the smaller: the steps of a
    column whose scale was ten times too large or too small begin almost anew, and those of one that was nearly right
    go on.

    An average begins anew if a scale is less than a third, or more than twice, of what it was when the average last
    did so. It is more sensitive to scales that rise: with few different values a coefficient is only noise, in original
    units noise over the scale, and the average would keep it.
    """
    cdef const double* row
    cdef double* column
    cdef double mean, scale, new, known, first = u.table[u.p * TABLE + SINCE]
    cdef Py_ssize_t p = u.p, q = p + 1, slot, j, k
    cdef bint changed = False, restart = False
    for slot in range(u.c):
        if not _moves(u, slot, &new):
            continue
        row = u.summary + slot * SUMMARY
        j = <Py_ssize_t> row[COLUMN]
        column = u.table + j * TABLE
        mean, scale = row[ls.MEAN], column[SCALE]
        for k in range(blocks):
            theta[k * q + p] += theta[k * q + j] * (mean - column[CENTRE]) / scale
            theta[k * q + j] *= new / scale
        changed = True
        column[CENTRE], column[SCALE] = mean, new
        known = u.progress[TOTAL] + first - column[SINCE]
        column[SINCE] = u.progress[TOTAL] + first - known * min(new / scale, scale / new) ** 2
        restart |= not column[RESTARTED] / 3 <= new <= column[RESTARTED] * 2
    if changed:
        u.progress[CHANGES] += 1
        _fit(u)
    if restart:
        for j in range(p):
            u.table[j * TABLE + RESTARTED] = u.table[j * TABLE + SCALE]
    return restart


cdef bint count_record(Units* u, double keep) noexcept nogil:
    """Count a record after the bits about the target; return whether it is time for `scale_columns`.

    `keep` is the probability of a true answer that its budget would have allowed.
    """
    cdef double* progress = u.progress
    progress[REACHED] += (2 * keep - 1) * (2 * keep - 1)
    progress[COUNT] += 1
    if progress[COUNT] < progress[NEXT]:
        return False
    progress[NEXT] = ceil(progress[COUNT] * _GROWTH)
    return True


cdef bint take_answer(Units* u, Py_ssize_t column, double low, double high, bint answer, double keep) noexcept nogil:
    """As `take_bit`."""
    cdef double* progress = u.progress
    cdef double* target = u.table + u.p * TABLE
    cdef Py_ssize_t slot = <Py_ssize_t> u.table[column * TABLE + SLOT]
    cdef double* row = u.summary + slot * SUMMARY
    cdef double information = (2 * keep - 1) * (2 * keep - 1)
    progress[BITS] += 1
    if column < u.p and tails.about_tail(low, high, row):
        tails.take_in(u.tail_evidence + slot * tails.TAILS, low, high, answer, keep)
    else:
        ls.take_in(u.posterior + slot * ls.CELLS, low, high, answer, keep)
    _refresh(u, slot)
    if column < u.p:
        progress[ASKED] += information
        return False
    if progress[TARGET] >= HUGE:
        return False
    progress[TARGET] += information
    if progress[TARGET] < _TARGET_MOST and not (
        progress[TARGET] >= _TARGET_LEAST and row[ls.LOG_VARIANCE] < _TARGET_VARIANCE
    ):
        return False
    progress[TARGET] = HUGE
    progress[CHANGES] += 1
    target[CENTRE] = target[ORIGIN] + target[UNIT] * row[ls.MEAN]
    target[SCALE] = target[UNIT] * min(1.0, sqrt(row[ls.VARIANCE] + exp(2.0 * row[ls.LOG])))
    return True


def rescale(arrays):
    """Centre and scale the columns of `UnitArrays` anew; return whether averages should begin anew."""
    cdef Units u
    units_of(arrays, &u)
    return scale_columns(&u, NULL, 0)


def refresh(arrays):
    """Compute what follows from the posteriors of `UnitArrays` anew, as after a state was loaded."""
    cdef Units u
    cdef Py_ssize_t slot
    units_of(arrays, &u)
    _fit(&u)
    pair_bits.choose(u.pairs, u.n_pairs)
    for slot in range(u.c):
        _refresh(&u, slot)


def take_bit(arrays, Py_ssize_t column, double low, double high, answer, double keep):
    """Take in a noisy bit, true with the probability `keep`: is the value of a column in [low, high)?

    The column is p for the target; the question is in units of the declared bounds, [-1, 1]. Returns whether the target
    was centred and scaled by it. Raises `TypeError` for a column that is not scaled.
    """
    cdef Units u
    units_of(arrays, &u)
    if not 0 <= column <= u.p or u.table[column * TABLE + SLOT] < 0:
        raise TypeError("expected a column that is scaled")
    return take_answer(&u, column, low, high, bool(answer), keep)
