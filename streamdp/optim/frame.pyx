"""What an LDP learner holds, and the units of its columns.

Gradients are taken at theta for (x - centre)/scale and (y - centre)/scale. Averages are kept in original units, so that
no average changes its meaning when a scale does. Centres and scales follow from noisy bits (`questions`): those of the
target when enough is known, those of the columns after 32 records, and then every time the number of records has grown
by a fifth (`_rescale`).
"""

from libc.math cimport ceil, exp, fabs, log, sqrt

cimport numpy as cnp

from streamdp.optim cimport location_scale as ls
from streamdp.optim cimport pair_bits, path, tails
from streamdp.optim.loops cimport AVERAGED, HUBER, INTERCEPT, LOSS, SPEC
from streamdp.privacy.arrays cimport matrix, vector
from streamdp.privacy.samplers cimport HUGE

cnp.import_array()

DONE = HUGE  # clock[TARGET] from when on the target has its scale

cdef double _TARGET_LEAST = 60.0, _TARGET_MOST = 240.0, _TARGET_VARIANCE = 0.05
cdef double _FIRST = 32.0, _GROWTH = 1.2
cdef double _WRONG = 0.2, _SURE = 2.0
cdef double _LEAST_SCALE = 1.0 / 128.0


cdef int model_of(arrays, Model* out) except -1:
    """Describe `Arrays` by pointers. Raises `TypeError` if their sizes do not fit each other."""
    cdef cnp.ndarray spec, box, state, segments, clock, frame, posterior, told, summary, pairs
    spec, box, state, segments, clock, frame, posterior, told, summary, pairs = arrays
    out.spec, out.box, out.clock, out.theta = vector(spec), matrix(box), vector(clock), matrix(state)
    out.segments, out.frame, out.summary, out.pairs = matrix(segments), matrix(frame), matrix(summary), matrix(pairs)
    out.tails = matrix(told)
    out.posterior = <float*> cnp.PyArray_DATA(posterior)
    out.d, out.p, out.c, out.many = state.shape[1], frame.shape[0] - 1, summary.shape[0], segments.shape[0]
    out.average, out.n_pairs = out.theta + out.d, pairs.shape[0] - 1
    if (
        spec.shape[0] != SPEC
        or state.shape[0] != 2
        or box.shape[0] != 2
        or box.shape[1] != out.d
        or segments.shape[1] != path.width(out)
        or clock.shape[0] != CLOCK
        or frame.shape[1] != FRAME
        or summary.shape[1] != SUMMARY
        or pairs.shape[1] != pair_bits.PAIR
        or out.n_pairs < 0
        or cnp.PyArray_SIZE(posterior) != out.c * ls.CELLS
        or told.shape[0] != out.c
        or told.shape[1] != tails.TAILS
        or not cnp.PyArray_IS_C_CONTIGUOUS(posterior)
        or cnp.PyArray_TYPE(posterior) != cnp.NPY_FLOAT32
        or out.d < out.p + <Py_ssize_t> out.spec[INTERCEPT] + (out.spec[LOSS] == HUBER)
    ):
        raise TypeError("expected the arrays of one learner")
    return 0


cdef void _fit(Model* m) noexcept nogil:
    """Compute SLOPE and SHIFT of all columns from their centres, scales and units."""
    cdef Py_ssize_t j
    cdef double* column
    for j in range(m.p):
        column = m.frame + j * FRAME
        column[SLOPE] = 1.0 / (column[SCALE] * column[UNIT])
        column[SHIFT] = (column[CENTRE] + column[ORIGIN] / column[UNIT]) / column[SCALE]


cdef void to_original(const Model* m, const double* theta, double* out) noexcept nogil:
    """As `outward`."""
    cdef Py_ssize_t p = m.p, intercept = <Py_ssize_t> m.spec[INTERCEPT], q = p + intercept, j, k
    cdef const double* target = m.frame + p * FRAME
    cdef const double* column
    cdef double scale = target[SCALE], shift
    for k in range(m.d // q):
        shift = 0.0
        for j in range(p):
            column = m.frame + j * FRAME
            shift += theta[k * q + j] * column[SHIFT]
            out[k * q + j] = theta[k * q + j] * column[SLOPE] * scale
        if intercept:
            out[k * q + p] = target[CENTRE] + (theta[k * q + p] - shift) * scale
    if m.spec[LOSS] == HUBER:
        out[m.d - 1] = theta[m.d - 1] * scale


cdef void settle(Model* m) noexcept nogil:
    """Write theta in original units where the average would be, for a learner without one: the answer is there."""
    if not m.spec[AVERAGED]:
        to_original(m, m.theta, m.average)


cdef void _to_units(const Model* m, const double* original, double* out) noexcept nogil:
    """As `inward`."""
    cdef Py_ssize_t p = m.p, intercept = <Py_ssize_t> m.spec[INTERCEPT], q = p + intercept, j, k
    cdef const double* target = m.frame + p * FRAME
    cdef const double* column
    cdef double scale = target[SCALE], shift
    for k in range(m.d // q):
        shift = 0.0
        for j in range(p):
            column = m.frame + j * FRAME
            out[k * q + j] = original[k * q + j] / (column[SLOPE] * scale)
            shift += out[k * q + j] * column[SHIFT]
        if intercept:
            out[k * q + p] = (original[k * q + p] - target[CENTRE]) / scale + shift
    if m.spec[LOSS] == HUBER:
        out[m.d - 1] = original[m.d - 1] / scale


cdef void _refresh(Model* m, Py_ssize_t slot) noexcept nogil:
    """Compute a row of `summary` anew from its posterior."""
    cdef float w[ls.CELLS]
    cdef double* row = m.summary + slot * SUMMARY
    cdef bint column = row[COLUMN] < m.p
    ls.weigh(m.posterior + slot * ls.CELLS, column, w)
    ls.summarise_into(w, column, row)
    row[ERROR] = row[ls.LOG_VARIANCE] + (row[ls.REACH] - row[ls.LOG]) * (row[ls.REACH] - row[ls.LOG])
    if column:
        row[ERROR] += tails.widen(m.tails + slot * tails.TAILS, row[ERROR], row)


cdef void _rescale(Model* m) noexcept nogil:
    """Centre and scale the columns anew where their posteriors are sure, and carry theta along.

    A scale becomes r (`tails`) if its logarithm is off by more than .2, and by more than sqrt(2) deviations of ln r. A
    centre moves along, or if it is off by half a scale and by three deviations of m.

    The clock of a column shows T - SINCE. It began at minus the SINCE of the last row, and the rest is what gradients
    told. If the spread is s < scale, gradients tell about the coefficient s^2/scale^2 times their information. If s >
    scale, records far away had small weights, or there were none, and noise moved the coefficient s/scale times as far.
    So a new scale changes the clock by the factor new^2/scale^2 or its inverse, the smaller: the steps of a column
    whose scale was ten times too large or too small begin almost anew, and those of one that was nearly right go on.

    The average begins anew if a scale is less than a third, or more than twice, of what it was when the average last
    did so. It is more sensitive to scales that rise: with few different values a coefficient is only noise, in original
    units noise over the scale, and the average would keep it.
    """
    cdef double* row
    cdef double* column
    cdef double mean, scale, new, off, told, first = m.frame[m.p * FRAME + SINCE]
    cdef Py_ssize_t p = m.p, q = p + <Py_ssize_t> m.spec[INTERCEPT], slot, j, k
    cdef bint changed = False, restart = False
    for slot in range(m.c):
        row = m.summary + slot * SUMMARY
        j = <Py_ssize_t> row[COLUMN]
        if j == p:
            continue
        column = m.frame + j * FRAME
        mean, scale = row[ls.MEAN], column[SCALE]
        new, off = scale, fabs(row[ls.REACH] - log(scale))
        if off > _WRONG and off * off > _SURE * row[ls.REACH_VARIANCE]:
            new = min(max(exp(row[ls.REACH]), _LEAST_SCALE), 1.0)
        if new == scale and fabs(mean - column[CENTRE]) <= max(scale / 2, 3 * sqrt(row[ls.VARIANCE])):
            continue
        if not changed:
            path.end_segment(m)
        for k in range(m.d // q):
            m.theta[k * q + p] += m.theta[k * q + j] * (mean - column[CENTRE]) / scale
            m.theta[k * q + j] *= new / scale
        changed = True
        column[CENTRE], column[SCALE] = mean, new
        told = m.clock[TOTAL] + first - column[SINCE]
        column[SINCE] = m.clock[TOTAL] + first - told * min(new / scale, scale / new) ** 2
        restart |= not column[RESTARTED] / 3 <= new <= column[RESTARTED] * 2
    if changed:
        m.clock[CHANGES] += 1
        _fit(m)
    if restart:
        m.clock[WEIGHT] = 0.0
        for j in range(p):
            m.frame[j * FRAME + RESTARTED] = m.frame[j * FRAME + SCALE]


cdef bint count_one(Model* m, double keep) noexcept nogil:
    """Count a record after the bits about the target, and scale the columns anew when it is time: True then.

    `keep` is the probability of a true answer that its budget would have allowed.
    """
    cdef double* clock = m.clock
    clock[REACHED] += (2 * keep - 1) * (2 * keep - 1)
    clock[COUNT] += 1
    if clock[COUNT] < clock[NEXT]:
        return False
    _rescale(m)
    clock[NEXT] = ceil(max(_FIRST, clock[COUNT] * _GROWTH))
    return True


cdef void _scale_target(Model* m, const double* row) noexcept nogil:
    """Centre and scale the target by its posterior. Theta stays, and the average starts anew from it."""
    cdef double* target = m.frame + m.p * FRAME
    target[CENTRE] = target[ORIGIN] + target[UNIT] * row[ls.MEAN]
    target[SCALE] = target[UNIT] * min(1.0, sqrt(row[ls.VARIANCE] + exp(2.0 * row[ls.LOG])))
    m.clock[CHANGES] += 1
    path.forget(m)
    to_original(m, m.theta, m.average)


cdef void take_answer(Model* m, Py_ssize_t column, double low, double high, bint answer, double keep) noexcept nogil:
    """As `take_bit`."""
    cdef double* clock = m.clock
    cdef Py_ssize_t slot = <Py_ssize_t> m.frame[column * FRAME + SLOT]
    cdef double information = (2 * keep - 1) * (2 * keep - 1)
    clock[BITS] += 1
    if column < m.p and tails.about_tail(low, high, m.summary + slot * SUMMARY):
        tails.take_in(m.tails + slot * tails.TAILS, low, high, answer, keep)
    else:
        ls.take_in(m.posterior + slot * ls.CELLS, low, high, answer, keep)
    _refresh(m, slot)
    if column < m.p:
        clock[ASKED] += information
        count_one(m, keep)
    elif clock[TARGET] < HUGE:
        clock[TARGET] += information
        if clock[TARGET] >= _TARGET_MOST or (
            clock[TARGET] >= _TARGET_LEAST and m.summary[slot * SUMMARY + ls.LOG_VARIANCE] < _TARGET_VARIANCE
        ):
            clock[TARGET] = HUGE
            _scale_target(m, m.summary + slot * SUMMARY)


def rescale(arrays):
    """Centre and scale the columns of `Arrays` anew where their posteriors are sure, and carry theta along."""
    cdef Model m
    model_of(arrays, &m)
    _rescale(&m)
    settle(&m)


def outward(arrays, theta, out):
    """Write theta (d,) in original units into `out` (d,); see `Arrays` for the arrays."""
    cdef Model m
    model_of(arrays, &m)
    _same_size(&m, theta, out)
    to_original(&m, vector(theta), vector(out))


def inward(arrays, original, out):
    """Write theta that is given in original units, `original` (d,), into `out` (d,): the inverse of `outward`."""
    cdef Model m
    model_of(arrays, &m)
    _same_size(&m, original, out)
    _to_units(&m, vector(original), vector(out))


cdef int _same_size(const Model* m, theta, out) except -1:
    if not len(theta) == len(out) == m.d:
        raise TypeError("expected vectors with as many parameters as the model has")
    return 0


def refresh(arrays):
    """Compute what follows from the posteriors of `Arrays` anew, as after a state was loaded."""
    cdef Model m
    cdef Py_ssize_t slot
    model_of(arrays, &m)
    _fit(&m)
    pair_bits.choose(m.pairs, m.n_pairs)
    for slot in range(m.c):
        _refresh(&m, slot)
    settle(&m)


def take_bit(arrays, Py_ssize_t column, double low, double high, answer, double keep):
    """Take in one noisy bit, which is true with the probability `keep`: is the value of a column in [low, high)?

    The column is p for the target; the question is in units of the declared bounds, [-1, 1]. Raises `TypeError` for a
    column that is not scaled.
    """
    cdef Model m
    model_of(arrays, &m)
    if not 0 <= column <= m.p or m.frame[column * FRAME + SLOT] < 0:
        raise TypeError("expected a column that is scaled")
    take_answer(&m, column, low, high, bool(answer), keep)
    settle(&m)
