"""Compiled loops of gradients with their curvature: what a record contributes to a batch of `newton`.

The vector of a record is described, and its bounds are proved, in `curvature`. Like `loops.gradient`, a record whose
arithmetic overflows counts as zeros, and scratch space is overwritten.
"""

from libc.math cimport exp, fabs, rint, sqrt
from libc.stdint cimport int64_t

cimport numpy as cnp

from streamdp.optim.loops cimport HUBER, INTERCEPT, KAPPA, LOSS, SHAPE, point_of
from streamdp.privacy.arrays cimport Rows, copy_row, entry, matrix, rows_of, scratch, whole_numbers, wipe
from streamdp.privacy.samplers cimport HUGE

cnp.import_array()


cdef void joint_of(const Point* at, const double* x, double y, double factor, double* out, Py_ssize_t size) noexcept nogil:
    """Write the gradient and `factor` times the curvature of a record into out (size,).

    The gradient (d,) comes first, then the upper triangle of M row by row with off-diagonal entries times sqrt(2), and
    for Huber s. The loss is Huber or logistic.
    """
    cdef const double* spec = at.spec
    cdef const double* theta = at.theta
    cdef Py_ssize_t p = at.p, intercept = <Py_ssize_t> spec[INTERCEPT], q = p + intercept, place = q, j, k
    cdef double square = intercept, u = theta[q - 1] if intercept else 0.0, c = spec[SHAPE], weight = 1.0
    cdef double a, h, r, left, chance, root = sqrt(2.0)
    cdef bint huber = spec[LOSS] == HUBER
    for j in range(p):
        square += x[j] * x[j]
        u += theta[j] * x[j]
    if huber:
        r = (y - u) / theta[q]
        a = -min(max(r, -c), c)
        h = 1.0 if fabs(r) <= c else c / fabs(r)
    else:
        r = u
        chance = 1.0 / (1.0 + exp(-min(max(u, -700.0), 700.0)))
        a = chance - y
        h = 4.0 * chance * (1.0 - chance)
    if square > 1.0:
        weight = min(1.0, root / sqrt(square), sqrt(2.0 * q) / square)
    if not (square < HUGE and fabs(r) < HUGE):
        weight = a = h = r = 0.0
    if huber:
        out[q] = 0.5 * (spec[KAPPA] - a * a) * weight
        out[size - 1] = r * r * weight * factor if fabs(r) < c else 0.0
        place = q + 1
    a *= weight
    h *= weight * factor
    for j in range(q):
        left = x[j] if j < p else 1.0
        out[j] = a * left
        left *= h
        out[place] = left * (x[j] if j < p else 1.0)
        place += 1
        left *= root
        for k in range(j + 1, q):
            out[place] = left * (x[k] if k < p else 1.0)
            place += 1


cdef Py_ssize_t _room_for(const Point* at) noexcept:
    """The size of a record's vector."""
    cdef Py_ssize_t q = at.p + <Py_ssize_t> at.spec[INTERCEPT]
    return q + q * (q + 1) // 2 + (2 if at.spec[LOSS] == HUBER else 0)


cdef int check_room(const Point* at, Py_ssize_t size) except -1:
    if size != _room_for(at) or at.d < at.p + <Py_ssize_t> at.spec[INTERCEPT] + (at.spec[LOSS] == HUBER):
        raise TypeError("the model and the room for its vectors differ in size")
    return 0


def joint_of_rows(
    spec, theta, cnp.ndarray X not None, cnp.ndarray y not None, double factor, cnp.ndarray G not None
):
    """Write the vectors of all rows at one theta into G.

    Parameters
    ----------
    spec
        The loss (see `loops`): Huber or logistic.
    theta
        (d,), or longer.
    X, y
        (n, p) features without a column for the intercept, and (n,) targets.
    factor
        lambda, by which the curvature is multiplied.
    G
        (n, size), overwritten.

    Raises `TypeError` for arrays of another type or shape.
    """
    cdef Rows rows, targets
    cdef Point at
    rows_of(X, &rows)
    rows_of(y, &targets)
    point_of(spec, theta, &rows, &at)
    cdef double* out = matrix(G)
    cdef Py_ssize_t size = G.shape[1], i
    check_room(&at, size)
    cdef double* room = scratch(rows.width)
    with nogil:
        for i in range(rows.n):
            copy_row(&rows, i, room)
            joint_of(&at, room, entry(&targets, i, 0), factor, out + i * size, size)
    wipe(room, rows.width)


def accumulate_averages(
    double factor,
    spec,
    theta,
    cnp.ndarray X not None,
    cnp.ndarray y not None,
    cnp.ndarray starts not None,
    double cells,
    cnp.ndarray total not None,
):
    """Add the average vector of each user to a sum.

    Parameters
    ----------
    factor, spec, theta, X, y, cells, total
        As for `accumulate_joint`, with the records of all users.
    starts
        (users + 1,) int64: user u has the rows starts[u] to starts[u + 1] - 1, at least one.

    Raises `TypeError` for arrays of another type or shape.
    """
    cdef Rows rows, targets
    cdef Point at
    rows_of(X, &rows)
    rows_of(y, &targets)
    point_of(spec, theta, &rows, &at)
    cdef int64_t* out = whole_numbers(total)
    cdef int64_t* first = whole_numbers(starts)
    cdef Py_ssize_t size = len(total), users = len(starts) - 1, p = rows.width, u, i, j
    check_room(&at, size)
    cdef double* row = scratch(p + 2 * size)
    cdef double* room = row + p
    cdef double* mean = room + size
    cdef double share
    with nogil:
        for u in range(users):
            for j in range(size):
                mean[j] = 0.0
            for i in range(first[u], first[u + 1]):
                copy_row(&rows, i, row)
                joint_of(&at, row, entry(&targets, i, 0), factor, room, size)
                for j in range(size):
                    mean[j] += room[j]
            share = cells / (first[u + 1] - first[u])
            for j in range(size):
                out[j] += <int64_t> rint(mean[j] * share)
    wipe(row, p + 2 * size)


def accumulate_joint(
    double factor,
    spec,
    theta,
    cnp.ndarray X not None,
    cnp.ndarray y not None,
    double cells,
    cnp.ndarray total not None,
):
    """As `loops.accumulate`, for vectors of gradient and curvature.

    Parameters
    ----------
    factor, spec, theta, X, y
        As for `joint_of_rows`.
    cells
        Grid cells for each unit of a vector.
    total
        (size,) int64, in cells.

    Raises `TypeError` for arrays of another type or shape.
    """
    cdef Rows rows, targets
    cdef Point at
    rows_of(X, &rows)
    rows_of(y, &targets)
    point_of(spec, theta, &rows, &at)
    cdef int64_t* out = whole_numbers(total)
    cdef Py_ssize_t size = len(total), p = rows.width, i, j
    check_room(&at, size)
    cdef double* row = scratch(p + size)
    cdef double* room = row + p
    with nogil:
        for i in range(rows.n):
            copy_row(&rows, i, row)
            joint_of(&at, row, entry(&targets, i, 0), factor, room, size)
            for j in range(size):
                out[j] += <int64_t> rint(room[j] * cells)
    wipe(row, p + size)
