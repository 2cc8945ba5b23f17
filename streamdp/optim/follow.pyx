"""Whether the stream has changed: a test on the noisy gradients of LDP-SGD and LDP-ASGD, in blocks, compiled.

A block has sums of noisy gradients S and of iterates Q. For each way to divide the blocks, the gradients of the last
ones are carried to the average of the first ones with a lower bound of the curvature, which is learned from the blocks
before. If the sum is too large for its noise, the stream has changed: progress goes back to the information of the last
ones, and the average begins anew. If it is large, but not too large, recent iterates are mixed into the answer. On a
stream that has often come back after that, both wait until the change has lasted. A large change is followed in several
steps, and counted once: what the gradients of the first blocks show already is none.

Claim: it spends nothing. Proof, derivation and constants: docs/proofs/change.md.
"""

from libc.math cimport log, sqrt

import numpy as np

from streamdp.optim.local_model cimport Model, model_of, to_original
from streamdp.optim.loops cimport AVERAGED, CURVATURE, HUBER, LOSS, OFFSET
from streamdp.optim.path cimport forget
from streamdp.privacy.arrays cimport matrix, vector
from streamdp.scaling.unit_table cimport CENTRE, SCALE, SINCE, TABLE, TOTAL, WEIGHT

cdef double _DELTA = 1e-4, _SHARE = 0.6, _DEVIATIONS = 0.5, _PRIOR_A = 4.0, _PRIOR_B = 8.0, _LEAST_SCALE = 0.05
cdef double _LEAST_VARIANCE = 0.05, _DOUBTED = 1.5, _SLOPE = 4.0, _LATEST = 0.25, _EVERY = 1.0 / 256.0
cdef double _BRIEF = 16.0, _LASTING = 64.0, _SHOWN = 0.5
cdef int _EACH = 4, _KNOWN_FROM = 30, _FEWEST = 4


cdef Py_ssize_t _used(const Model* m) noexcept nogil:
    """How many blocks are in use; they come first, the newest last."""
    cdef Py_ssize_t i
    for i in range(BLOCKS):
        if row_of(m, i)[5 * m.d + 1] == 0.0:
            return i
    return BLOCKS


cdef void _clear(double* row, Py_ssize_t n) noexcept nogil:
    cdef Py_ssize_t j
    for j in range(n):
        row[j] = 0.0


cdef void forget_blocks(Model* m) noexcept nogil:
    """Empty the blocks, and the open one."""
    _clear(m.blocks, (OPEN + 1) * block_width(m.d))


cdef Py_ssize_t _add(Model* m, const double* block, Py_ssize_t end) noexcept nogil:
    """Add a block of the first level to `end` blocks, and join the two oldest ones of a level that has more than four.

    Returns how many blocks there are then.
    """
    cdef Py_ssize_t n = block_width(m.d), at = 5 * m.d + 1, first, count, i, j
    cdef double* row = row_of(m, end)
    cdef int level
    for j in range(n):
        row[j] = block[j]
    row[at] = 1.0
    end += 1
    for level in range(1, LEVELS + 1):
        count, first = 0, 0
        for i in range(end):
            if row_of(m, i)[at] == level:
                first = i if count == 0 else first
                count += 1
        if count <= _EACH:
            break
        row = row_of(m, first)
        for j in range(n - 1):
            row[j] += row[n + j]
        row[at] = min(level + 1, LEVELS)
        for j in range((first + 1) * n, (end - 1) * n):
            m.blocks[j] = m.blocks[n + j]
        end -= 1
        _clear(row_of(m, end), n)
    return end


cdef void _learn_curvature(Model* m, double* block, const double* total, double h) noexcept nogil:
    """Write A and B of a block that has ended, and add its squares to those of all."""
    cdef Py_ssize_t d = m.d, j
    cdef double w = block[5 * d], before = total[5 * d], far
    cdef double* known = row_of(m, KNOWN)
    known[5 * d] += 1.0
    for j in range(d):
        block[4 * d + j] += w
        known[j] += block[j] * block[j] * d / block[4 * d + j]
        far = h * (total[d + j] / before - block[2 * d + j]) * w if before > 0.0 else 0.0
        block[2 * d + j] = -d * block[j] * far / w
        block[3 * d + j] = d * far * far / w


cdef struct Squares:
    # The sum and the largest of squares z^2.
    double total
    double largest


cdef inline void _take_square(Squares* squares, double value, double precision) noexcept nogil:
    cdef double square = value * value * precision
    squares.total += square
    squares.largest = max(squares.largest, square)


cdef struct Bounds:
    # What the sum and the largest of squares z^2 are at most, but for a probability.
    double total
    double largest


cdef inline Bounds _bounds(Py_ssize_t m, double logarithm, double doubt) noexcept nogil:
    """Those of m squares, of which the logarithm is given, for a probability of about exp(-doubt)."""
    return Bounds(m + 2.0 * sqrt(m * doubt) + 2.0 * doubt, 2.0 * (doubt + logarithm))


cdef inline double _ratio(const Squares* squares, const Bounds* bounds) noexcept nogil:
    """The larger ratio of squares to what they are at most."""
    return max(squares.total / bounds.total, squares.largest / bounds.largest)


cdef void _average_recent(Model* m, Py_ssize_t first, Py_ssize_t used, Py_ssize_t tested, double least) noexcept nogil:
    """Write the mean of the latest quarter of the iterates since the block `first`, in original units.

    It has at least the information `least`, if there is so much.
    """
    cdef Py_ssize_t d = m.d, i, j
    cdef double* recent = row_of(m, RECENT)
    cdef double* sums = row_of(m, SAVED)
    cdef double w = 0.0, weight = 0.0
    for i in range(first, used):
        w += row_of(m, i)[5 * d]
    _clear(sums, d)
    for i in range(used - 1, first - 1, -1):
        weight += row_of(m, i)[5 * d]
        for j in range(d):
            sums[j] += row_of(m, i)[d + j]
        if weight >= max(_LATEST * w, least):
            break
    for j in range(d):
        sums[j] /= weight
    to_original(m, sums, recent)
    for j in range(tested, d):
        recent[j] = m.average[j]


cdef bint changed(Model* m, double seen) noexcept nogil:
    """End the open block, and look for a change after `seen` records: True if there is one, and all has begun anew."""
    cdef Py_ssize_t d = m.d, n = block_width(d), tested = d - (<int> m.spec[LOSS] == HUBER), used, i, j, best = -1, doubtful = -1
    cdef double* block = row_of(m, OPEN)
    cdef double* numbers = row_of(m, NUMBERS)
    cdef double* total = row_of(m, SAVED)
    cdef double* last = total + n
    cdef const double* known = row_of(m, KNOWN)
    cdef double h = m.spec[CURVATURE], w, before, share, a, b, far, slope, error, precision, ratio, most = 1.0, doubted = 1.0
    cdef double carried, shown
    cdef bint further = False
    cdef double logarithm = log(tested), alarms = log(_DELTA), mixed, least = _LASTING * d if numbers[BRIEF] >= _BRIEF else 0.0
    cdef Squares by_sum, sure, likely
    cdef Bounds bounds
    if tested < d:
        h /= max(m.average[d - 1] / m.units.table[m.units.p * TABLE + SCALE] if m.spec[AVERAGED] else m.theta[d - 1], _LEAST_SCALE)
    used = _used(m)
    _clear(total, 2 * n)
    for i in range(used):
        for j in range(d, 2 * d):
            total[j] += m.blocks[i * n + j]
        total[5 * d] += m.blocks[i * n + 5 * d]
    if used < _FEWEST or numbers[FOLLOWED] <= 4.0 * m.spec[OFFSET]:
        total[5 * d] = 0.0  # the curvature is not learned yet
    _learn_curvature(m, block, total, h)
    used = _add(m, block, used)
    _clear(block, n)
    if total[5 * d] == 0.0 or numbers[EVER] - numbers[LOOKED] < _EVERY * numbers[FOLLOWED]:
        return False
    numbers[LOOKED] = numbers[EVER]
    _clear(total, n)
    for i in range(used):
        for j in range(n):
            total[j] += m.blocks[i * n + j]
    for i in range(used - 1, 0, -1):
        for j in range(n):
            last[j] += m.blocks[i * n + j]
        w, before = last[5 * d], total[5 * d] - last[5 * d]
        if before < w:
            break
        share = w / before
        by_sum = sure = likely = Squares(0.0, 0.0)
        shown = 0.0
        for j in range(tested):
            a = total[2 * d + j] - last[2 * d + j] + known[2 * d + j] + _PRIOR_A
            b = total[3 * d + j] - last[3 * d + j] + known[3 * d + j] + _PRIOR_B
            error = 1.0 / sqrt(b)
            slope = a * error * error
            error *= _DEVIATIONS
            precision = d / last[4 * d + j]
            if known[5 * d] >= _KNOWN_FROM:
                precision /= max(known[j] / known[5 * d], _LEAST_VARIANCE)
            far = h * (share * (total[d + j] - last[d + j]) - last[d + j])
            _take_square(&by_sum, last[j], precision)
            precision *= 1.0 / (1.0 + share)
            carried = last[j] + far * min(max(_SHARE * slope - error, 0.0), 1.0)
            _take_square(&sure, carried, precision)
            shown += share * (total[j] - last[j]) * carried * precision
            _take_square(&likely, last[j] + far * min(max(slope - error, 0.0), 1.0), precision)
        bounds = _bounds(tested, logarithm, 2.0 * log(numbers[EVER] / w) - alarms)
        ratio = max(_ratio(&by_sum, &bounds), _ratio(&sure, &bounds))
        if w >= least and ratio > most:
            most, best, further = ratio, i, shown < _SHOWN * sure.total
        bounds = _bounds(tested, logarithm, log(_DOUBTED * ((w + before) / w) ** 2))
        ratio = max(_ratio(&by_sum, &bounds), _ratio(&likely, &bounds))
        if w >= max(4.0 * d, least) and ratio > doubted:
            doubted, doubtful = ratio, i
    if best >= 0:
        _begin_anew(m, best, used)
        if further:
            row_of(m, KNOWN)[5 * d + 1] += 1.0
            numbers[NOTICED] = seen
        return True
    mixed = min(_SLOPE * (doubted - 1.0), 1.0)
    numbers[BRIEF] += max(numbers[MIXED] - mixed, 0.0)
    numbers[MIXED] = mixed
    if doubted > 1.0 and m.spec[AVERAGED]:
        _average_recent(m, doubtful, used, tested, least)
    return False


cdef void _begin_anew(Model* m, Py_ssize_t first, Py_ssize_t used) noexcept nogil:
    """Set the progress back to the information of the blocks from `first` on, and empty average, path and blocks."""
    cdef Py_ssize_t d = m.d, n = block_width(d), i, j
    cdef double* known = row_of(m, KNOWN)
    cdef double* numbers = row_of(m, NUMBERS)
    cdef double* column
    cdef double w = 0.0, total = m.units.progress[TOTAL], start = min(m.units.table[m.units.p * TABLE + SINCE], 0.0)
    for i in range(used):
        if i >= first:
            w += row_of(m, i)[5 * d]
        else:
            for j in range(2 * d, 4 * d):
                known[j] += m.blocks[i * n + j]
    for j in range(2 * d, 4 * d):
        known[j] /= 2.0
    w = min(w, total)
    for j in range(m.units.p + 1):
        column = m.units.table + j * TABLE
        column[SINCE] = w + start - min(total + start - column[SINCE], w)
    m.units.progress[TOTAL] = w
    m.units.progress[WEIGHT] = numbers[FOLLOWED] = numbers[MIXED] = 0.0
    numbers[RENEWALS] += 1.0
    if m.spec[AVERAGED]:
        to_original(m, m.theta, m.average)
        forget(m)
    forget_blocks(m)


cdef void note_units(Model* m) noexcept nogil:
    """Keep the centres and scales of the columns for `carry_blocks`."""
    cdef double* kept = row_of(m, SAVED)
    cdef Py_ssize_t j
    for j in range(m.units.p):
        kept[2 * j], kept[2 * j + 1] = m.units.table[j * TABLE + CENTRE], m.units.table[j * TABLE + SCALE]


cdef void carry_blocks(Model* m) noexcept nogil:
    """Carry the blocks along when columns got other units after `note_units`."""
    cdef Py_ssize_t d = m.d, q = m.units.p + 1, i, j, k, at, other
    cdef const double* kept = row_of(m, SAVED)
    cdef const double* column
    cdef double* row
    cdef double ratio, moved, less, open, square
    for j in range(m.units.p):
        column = m.units.table + j * TABLE
        moved, ratio = column[CENTRE] - kept[2 * j], kept[2 * j + 1] / column[SCALE]
        if moved == 0.0 and ratio == 1.0:
            continue
        less = min(ratio, 1.0 / ratio) ** 2
        for k in range(d // q):
            at, other = k * q + j, k * q + m.units.p
            for i in range(OPEN + 1):
                row = row_of(m, i)
                if row[5 * d] == 0.0:
                    continue
                row[at] = ratio * row[at] - moved / column[SCALE] * row[other]
                open = row[5 * d] if i == OPEN else 0.0  # its information is added when it ends
                square = (moved / column[SCALE]) ** 2 * (row[4 * d + other] + open)
                row[4 * d + at] = ratio**2 * (row[4 * d + at] + open) + square - open
                _move(row + d, at, other, moved / kept[2 * j + 1], ratio)
                if i == OPEN:
                    _move(row + 2 * d, at, other, moved / kept[2 * j + 1], ratio)
                else:
                    row[2 * d + at] *= less
                    row[3 * d + at] *= less


cdef inline void _move(double* theta, Py_ssize_t at, Py_ssize_t other, double moved, double ratio) noexcept nogil:
    """Carry a sum of theta along, as `unit_table.scale_columns` does with theta."""
    theta[other] += theta[at] * moved
    theta[at] /= ratio


def notice(arrays, g, double information):
    """Take in the noisy mean g (d,) of reports at theta, before its step; return whether the stream has changed.

    `arrays` are `Arrays` of a learner without an average, and `information` that of all these reports. The records are
    not known.
    """
    cdef Model m
    model_of(arrays, &m)
    if len(g) != m.d:
        raise TypeError("expected a gradient with as many entries as theta")
    return bool(take_gradient(&m, vector(g), information) and changed(&m, 0.0))


def keep_latest(arrays, double share):
    """Begin anew with the latest blocks that have this share of the information of all gradients, as after a change.

    Returns the mean (d,) of their iterates, in learned units; None: no block is older, and nothing was done.
    """
    cdef Model m
    model_of(arrays, &m)
    cdef Py_ssize_t used = _used(&m), first = used, j
    cdef double w = 0.0
    mean = np.zeros(m.d)
    while first > 0 and w < share * row_of(&m, NUMBERS)[EVER]:
        first -= 1
        w += row_of(&m, first)[5 * m.d]
        for j in range(m.d):
            mean[j] += row_of(&m, first)[m.d + j]
    if first == 0:
        return None
    _begin_anew(&m, first, used)
    return mean / w


def carry(arrays, before):
    """Carry the blocks of `arrays` along, whose columns have other centres and scales than in the table `before`."""
    cdef Model m
    cdef const double* old = matrix(before)
    cdef Py_ssize_t j
    model_of(arrays, &m)
    if before.shape != arrays.units.table.shape:
        raise TypeError("expected a table of the same columns")
    for j in range(m.units.p):
        row_of(&m, SAVED)[2 * j], row_of(&m, SAVED)[2 * j + 1] = old[j * TABLE + CENTRE], old[j * TABLE + SCALE]
    carry_blocks(&m)
