"""Compiled loops of LDP-SGD and LDP-ASGD: question or gradient (`schedule`), noise, step (`steps`).

A loop draws no randomness by itself: words come from `entropy` as an array (see `samplers`). A loop that runs out of
words rolls back to the start of its record and returns, and is called again with more words. The loops themselves move
the position in the words (`words[0]`) and count the records seen (`seen[0]`). So no exception and no other thread can
interrupt between a record and its count, or between the use of a word and its overwriting.
"""

from libc.math cimport exp, log, sqrt
from libc.stdint cimport int64_t, uint64_t

cimport numpy as cnp

from streamdp.optim cimport odds
from streamdp.optim.follow cimport (
    FOLLOWED,
    NUMBERS,
    carry_blocks,
    changed,
    forget_blocks,
    note_units,
    row_of,
    take_gradient,
)
from streamdp.optim.local_model cimport Model, model_of, settle, to_original
from streamdp.optim.loops cimport (
    AVERAGED,
    BALL,
    BY_RECORDS,
    CURVATURE,
    DECAY,
    DOMAIN,
    FACTOR,
    HUBER,
    INTERCEPT,
    LOSS,
    OFFSET,
    RADIUS,
    Point,
    gradient_of,
)
from streamdp.optim.odds cimport ABOUT_CLASS
from streamdp.optim.path cimport end_segment, forget, width
from streamdp.optim.record_kernel cimport RecordKernel
from streamdp.privacy.arrays cimport (
    Rows,
    entry,
    matrix,
    random_words,
    rows_of,
    scratch,
    vector,
    whole_numbers,
    wipe,
)
from streamdp.privacy.samplers cimport INFORMATION, KEEP, answer, columns, noise, use_words
from streamdp.scaling cimport location_scale as ls
from streamdp.scaling.pair_bits cimport FIRST, PAIR, SECOND, take_in
from streamdp.scaling.schedule cimport Questions, question, questions_of
from streamdp.scaling.unit_table cimport (
    CENTRE,
    GRADIENT,
    ORIGIN,
    SCALE,
    SEGMENT,
    SINCE,
    SLOT,
    SUMMARY,
    TABLE,
    TOTAL,
    UNIT,
    WEIGHT,
    WIDTH,
    count_record,
    moves,
    scale_columns,
    take_answer,
)

cnp.import_array()

cdef enum:
    FEW = 16  # so few records are learned without releasing the interpreter's lock, which takes longer


cdef void _step(Model* m, const double* g, double information, int64_t seen, double* out) noexcept nogil:
    """One step with a noisy gradient (see `steps`), its average, and the sums of `path`. `out` is scratch.

    `seen` are the records learned with this one.
    """
    cdef const double* spec = m.spec
    cdef double* theta = m.theta
    cdef double* progress = m.units.progress
    cdef double* segment
    cdef Py_ssize_t d = m.d, p = m.units.p, q = p + <Py_ssize_t> spec[INTERCEPT], free, j, k
    cdef double tau = 1.0 if spec[BY_RECORDS] else information
    cdef double total = progress[TOTAL] + tau, decay = spec[DECAY], offset = spec[OFFSET], factor = -spec[FACTOR] * tau
    cdef double since = m.units.table[p * TABLE + SINCE], size = factor * exp(-decay * log(total - since + offset))
    cdef double other, square, shrink, weight, share
    cdef bint full = spec[CURVATURE] > 0.0 and take_gradient(m, g, tau)
    progress[TOTAL] = total
    for j in range(d):
        out[j] = size
    for j in range(p):
        if m.units.table[j * TABLE + SINCE] != since:
            other = factor * exp(-decay * log(total - m.units.table[j * TABLE + SINCE] + offset))
            for k in range(d // q):
                out[k * q + j] = other
    for j in range(d):
        theta[j] = min(max(theta[j] + out[j] * g[j], m.box[j]), m.box[d + j])
    if spec[DOMAIN] == BALL:
        free = d - 1 if spec[LOSS] == HUBER else d  # the scale is not a coefficient
        square = 0.0
        for j in range(free):
            square += theta[j] * theta[j]
        if square > spec[RADIUS] * spec[RADIUS]:
            shrink = spec[RADIUS] / sqrt(square)
            for j in range(free):
                theta[j] *= shrink
    if spec[AVERAGED]:
        to_original(m, theta, out)
        weight = tau if spec[BY_RECORDS] else tau * sqrt(row_of(m, NUMBERS)[FOLLOWED] if spec[CURVATURE] > 0.0 else total)
        progress[WEIGHT] += weight
        share = weight / progress[WEIGHT]
        segment = m.segments + <Py_ssize_t> progress[SEGMENT] * width(m)
        for j in range(d):
            m.average[j] += share * (out[j] - m.average[j])
            segment[j] += tau * out[j]
        segment[d] += tau
        if progress[WIDTH] == 0.0:
            progress[WIDTH] = tau
        if segment[d] >= progress[WIDTH]:
            end_segment(m)
    if full:
        changed(m, seen)


cdef void _rescale(Model* m) noexcept nogil:
    """Scale the columns anew: steps change, so a segment ends. The average may begin anew."""
    if not moves(&m.units):
        return
    end_segment(m)
    note_units(m)
    if scale_columns(&m.units, m.theta, m.d // (m.units.p + 1)):
        m.units.progress[WEIGHT] = 0.0
    carry_blocks(m)


cdef bint _count(Model* m, double keep) noexcept nogil:
    """As `unit_table.count_record`, and scale the columns anew when it is time."""
    cdef bint time = count_record(&m.units, keep)
    if time:
        _rescale(m)
    return time


cdef void _take_answer(Model* m, Py_ssize_t column, double low, double high, bint yes, double keep) noexcept nogil:
    """As `unit_table.take_answer`. When the target gets its scale, theta stays, and the average begins anew from it."""
    if take_answer(&m.units, column, low, high, yes, keep):
        forget(m)
        forget_blocks(m)
        to_original(m, m.theta, m.average)
    if column < m.units.p:
        _count(m, keep)


cdef Questions _due(const Model* m) noexcept nogil:
    """What decides about questions until the next answer, and until columns are scaled anew."""
    cdef Questions out = questions_of(&m.units)
    if odds.due(m):
        out.above, out.column = -1.0, ABOUT_CLASS
    return out


cdef inline bint _above(const Model* m, const Rows* X, Py_ssize_t row, Py_ssize_t column) noexcept nogil:
    """Whether a value is above its centre; the constant 1 is."""
    return column == m.units.p or entry(X, row, column) > m.units.table[column * TABLE + CENTRE]


cdef Py_ssize_t _learn(
    Model* m,
    int mechanism,
    int64_t* seen,
    const Rows* X,
    const Rows* y,
    const double* calibration,
    Py_ssize_t each,
    uint64_t* words,
    Py_ssize_t end,
    double* room,
) noexcept nogil:
    """As `learn`; `room` has 2 d + p + 1 numbers, and `each` is the distance between two rows of the calibration."""
    cdef Py_ssize_t d = m.d, p = m.units.p, at = words[0], done, start, column, slot, j
    cdef double* g = room
    cdef double* side = room + d + 1
    cdef double* row = side + d
    cdef const double* target = m.units.table + p * TABLE
    cdef const double* numbers
    cdef double lowest = target[ORIGIN] - target[UNIT], highest = target[ORIGIN] + target[UNIT], value, low, high
    cdef Point point = Point(m.spec, m.theta, d, p)
    cdef const double* pair
    cdef Questions due = _due(m)
    cdef int bit
    for done in range(X.n):
        start, numbers = at, calibration + done * each
        value = min(max(entry(y, done, 0), lowest), highest)
        column = question(&due, m.units.progress, p)
        if column > p:
            pair = m.units.pairs + (column - p - 1) * PAIR
            bit = answer(
                _above(m, X, done, <Py_ssize_t> pair[FIRST]) == _above(m, X, done, <Py_ssize_t> pair[SECOND]),
                numbers[KEEP],
                words,
                end,
            )
            if bit < 0:
                return done
            at = words[0]
            seen[0] += 1
            take_in(m.units.pairs, m.units.n_pairs, column - p - 1, bit == 1, numbers[KEEP])
            _count(m, numbers[KEEP])
            due = _due(m)
            continue
        if column == ABOUT_CLASS:
            bit = answer(value > 0.5, numbers[KEEP], words, end)
            if bit < 0:
                return done
            at = words[0]
            seen[0] += 1
            odds.take_in(m, bit == 1, numbers[KEEP])
            due = _due(m)
            continue
        if column != GRADIENT:
            value = entry(X, done, column) if column < p else (value - target[ORIGIN]) / target[UNIT]
            slot = <Py_ssize_t> m.units.table[column * TABLE + SLOT]
            low, high = m.units.summary[slot * SUMMARY + ls.LOW], m.units.summary[slot * SUMMARY + ls.HIGH]
            bit = answer(low <= value < high, numbers[KEEP], words, end)
            if bit < 0:
                return done
            at = words[0]
            seen[0] += 1
            _take_answer(m, column, low, high, bit == 1, numbers[KEEP])
            due = _due(m)
            continue
        for j in range(p):
            row[j] = (entry(X, done, j) - m.units.table[j * TABLE + CENTRE]) / m.units.table[j * TABLE + SCALE]
        gradient_of(&point, row, (value - target[CENTRE]) / target[SCALE], g)
        at = noise(mechanism, numbers, g, d, side, words, at, end)
        if at > end or not use_words(words, end, start, at):
            return done
        seen[0] += 1
        _step(m, g, numbers[INFORMATION], seen[0], side)
        if (m.units.c > 0 or due.pair != GRADIENT) and _count(m, numbers[KEEP]):
            due = _due(m)
    return X.n


def learn(
    arrays,
    int mechanism,
    cnp.ndarray seen not None,
    cnp.ndarray X not None,
    cnp.ndarray y not None,
    cnp.ndarray calibration not None,
    cnp.ndarray words not None,
):
    """Learn the rows of X in order. Returns the number of rows learned before the words ran out.

    `arrays`: the model; see `Arrays`. `mechanism`: the code of the mechanism (see `samplers`). `seen`: (1,) int64, the
    number of records learned; incremented for each. `X`, `y`: (n, p) features and (n,) targets. `calibration`: (n, c),
    one row for each record, or (1, c) (see `samplers`). `words`: random words; the first entry is the position.

    Raises `TypeError` for arrays of another type or shape.
    """
    cdef Model m
    cdef Rows rows, targets
    model_of(arrays, &m)
    rows_of(X, &rows)
    rows_of(y, &targets)
    cdef int64_t* count = whole_numbers(seen)
    cdef double* numbers = matrix(calibration)
    cdef uint64_t* source = random_words(words)
    cdef Py_ssize_t n = calibration.shape[0], each = calibration.shape[1] if n > 1 else 0, end = len(words), room = 2 * m.d + m.units.p + 1
    if calibration.shape[1] < columns(mechanism) or n < (rows.n if n > 1 else 1) or rows.width != m.units.p or targets.n < rows.n:
        raise TypeError("the model, the records and the calibrations differ in size")
    cdef double* memory = scratch(room)
    if rows.n <= FEW:
        n = _learn(&m, mechanism, count, &rows, &targets, numbers, each, source, end, memory)
    else:
        with nogil:
            n = _learn(&m, mechanism, count, &rows, &targets, numbers, each, source, end, memory)
    settle(&m)
    wipe(memory, room)
    return n


cdef class LocalStep(RecordKernel):
    """`learn` for one record; the calibration is (1, c). Raises `TypeError` for arrays of another type or shape."""

    cdef Model _model
    cdef int _mechanism
    cdef int64_t* _seen
    cdef double* _calibration

    def __init__(self, arrays, int mechanism, cnp.ndarray seen not None, cnp.ndarray calibration not None):
        model_of(arrays, &self._model)
        self._kept = tuple(arrays), seen, calibration
        self._mechanism, self._seen, self._calibration = mechanism, whole_numbers(seen), matrix(calibration)
        if calibration.shape[1] < columns(mechanism):
            raise TypeError("expected one calibration")
        self.width, self.room, self.draws = self._model.units.p, 2 * self._model.d + self._model.units.p + 1, True

    cdef bint learn(self, const Rows* X, const Rows* y, double* room, uint64_t* words, Py_ssize_t end) noexcept:
        cdef Model* m = &self._model
        cdef bint done = _learn(m, self._mechanism, self._seen, X, y, self._calibration, 0, words, end, room) == 1
        settle(m)
        return done


def absorb(arrays, cnp.ndarray seen not None, g, double information, double keep):
    """One step with a noisy gradient g (d,) that was randomised elsewhere.

    `arrays` and `seen` are those of `learn`, `information` and `keep` those of its calibration (see `samplers`). Raises
    `TypeError` for arrays of another type or shape.
    """
    cdef Model m
    model_of(arrays, &m)
    cdef double* noisy = vector(g)
    cdef int64_t* count = whole_numbers(seen)
    if len(g) != m.d:
        raise TypeError("expected a gradient with as many entries as theta")
    cdef double* out = scratch(m.d)
    count[0] += 1
    _step(&m, noisy, information, count[0], out)
    if m.units.c > 0:
        _count(&m, keep)
    settle(&m)
    wipe(out, m.d)


def absorb_bit(arrays, cnp.ndarray seen not None, Py_ssize_t column, double low, double high, yes, double keep):
    """Take in a noisy bit that was randomised elsewhere, true with the probability `keep`: see `unit_table.take_bit`.

    `arrays` and `seen` are those of `learn`.
    """
    cdef Model m
    model_of(arrays, &m)
    cdef int64_t* count = whole_numbers(seen)
    if not 0 <= column <= m.units.p or m.units.table[column * TABLE + SLOT] < 0:
        raise TypeError("expected a column that is scaled")
    count[0] += 1
    _take_answer(&m, column, low, high, bool(yes), keep)
    settle(&m)
