"""Compiled gradients of the losses, for one record and for arrays of records.

A model is described by `spec`, (`SPEC`,) numbers: the loss, and the settings of the loops that learn with it
(`local_learning`).

The functions for Python raise `TypeError` for arrays of another type or shape.
"""

from libc.math cimport INFINITY, exp, fabs, sqrt

cimport numpy as cnp

from streamdp.privacy.arrays cimport copy_row, entry, matrix, rows_of, scratch, vector, wipe
from streamdp.privacy.samplers cimport HUGE, TINY

cnp.import_array()

cdef extern from *:
    """
    #define SDP_TINY_ROOT 1e-140
    """
    const double TINY_ROOT "SDP_TINY_ROOT"


cdef inline double _weight(const double* spec, double square) noexcept nogil:
    """The weight of a record whose x has this squared norm: see `losses.base`."""
    if square <= 2.0 or spec[CLIP] != INFINITY:
        return 1.0
    return sqrt(2.0 / square) if spec[BY_NORM] else 2.0 / square


cdef void _of_one(const Point* at, const double* x, double y, double* g) noexcept nogil:
    """The gradient (q,) for losses of one linear predictor, and in g[q] that in Huber's scale."""
    cdef const double* spec = at.spec
    cdef const double* theta = at.theta
    cdef Py_ssize_t p = at.p, intercept = <Py_ssize_t> spec[INTERCEPT], q = p + intercept, j
    cdef double square = intercept, u = theta[q - 1] if intercept else 0.0, clip = spec[CLIP], weight, a, scale, size
    for j in range(p):
        square += x[j] * x[j]
        u += theta[j] * x[j]
    weight = _weight(spec, square)
    a = coefficient(spec, u, y, theta[at.d - 1], spec[ENVELOPE] * weight * square)
    scale = 0.5 * (spec[KAPPA] - a * a) * weight if spec[LOSS] == HUBER else 0.0
    a = a * weight if square > TINY and fabs(a) > TINY_ROOT else 0.0
    size = a * a * square + scale * scale
    if not (square < HUGE and size < HUGE):
        for j in range(q + 1):
            g[j] = 0.0  # not a * x[j]: x[j] may be infinite in the learner's units
        return
    if size > clip * clip:
        a *= clip / sqrt(size)
        scale *= clip / sqrt(size)
    g[q] = scale
    if intercept:
        g[p] = a
    for j in range(p):
        g[j] = a * x[j]


cdef void _of_classes(const Point* at, const double* x, double y, double* g) noexcept nogil:
    """The gradient (d,) of the multinomial loss, with one block for each class."""
    cdef const double* spec = at.spec
    cdef const double* theta = at.theta
    cdef Py_ssize_t p = at.p, intercept = <Py_ssize_t> spec[INTERCEPT], q = p + intercept, j, k, classes = at.d // q
    cdef double square = intercept, clip = spec[CLIP], weight, top = -INFINITY, total = 0.0, size = 0.0, root, u, a
    cdef double shrink = 1.0
    for j in range(p):
        square += x[j] * x[j]
    weight = _weight(spec, square)
    for k in range(classes):
        u = theta[k * q + p] if intercept else 0.0
        for j in range(p):
            u += theta[k * q + j] * x[j]
        g[k * q] = u
        top = max(top, u)
    for k in range(classes):
        g[k * q] = exp(g[k * q] - top)
        total += g[k * q]
    root = sqrt(square)
    for k in range(classes):
        a = (g[k * q] / total - (1.0 if k == <Py_ssize_t> y else 0.0)) * weight
        size += (a * root) * (a * root)
        if intercept:
            g[k * q + p] = a
        for j in range(p):
            g[k * q + j] = a * x[j]
    if not (TINY < square < HUGE and size < HUGE):
        shrink = 0.0
    elif size > clip * clip:
        shrink = clip / sqrt(size)
    if shrink != 1.0:
        for j in range(at.d):
            g[j] = g[j] * shrink if shrink else 0.0


cdef void gradient_of(const Point* at, const double* x, double y, double* g) noexcept nogil:
    """Write the bounded gradient of a record into g, which has room for d + 1 numbers.

    For all x (p,) and y, ||g|| is at most the bound of the loss: by its weight, or by clipping to spec[CLIP]. If the
    arithmetic of a record overflows, g is 0. An x or a residual whose square underflows counts as 0.
    """
    if at.spec[LOSS] == SOFTMAX:
        _of_classes(at, x, y, g)
    else:
        _of_one(at, x, y, g)


cdef int point_of(spec, theta, Py_ssize_t p, Point* out) except -1:
    """Describe a model of p features and its parameters. Raises `TypeError` if their sizes do not fit each other."""
    out.spec, out.theta = vector(spec), vector(theta)
    out.d, out.p = len(theta), p
    cdef Py_ssize_t q = p + <Py_ssize_t> out.spec[INTERCEPT]
    if len(spec) != SPEC or q < 1 or out.d < q:
        raise TypeError("the model and the records differ in size")
    return check_loss(out.spec)


cdef int records_of(spec, theta, X, y, Records* out) except -1:
    """Describe a model, its parameters and records. Raises `TypeError` if their sizes do not fit each other."""
    rows_of(X, &out.X)
    rows_of(y, &out.y)
    point_of(spec, theta, out.X.width, &out.at)
    if out.y.n < out.X.n:
        raise TypeError("the model and the records differ in size")
    return 0


def gradient(spec, theta, X, y, Py_ssize_t i, cnp.ndarray g not None):
    """Write the bounded gradient at theta (d,) of record i of X (n, p) and y (n,) into g, as `gradient_of` does.

    `spec` (`SPEC`,) is the loss; X has no column for the intercept; g is (d,) or (q + 1,), q = p plus the intercept.
    """
    cdef Records records
    records_of(spec, theta, X, y, &records)
    cdef double* out = vector(g)
    cdef Py_ssize_t p = records.at.p, d = records.at.d, j
    cdef double* room = scratch(p + d + 1)
    copy_row(&records.X, i, room)
    gradient_of(&records.at, room, entry(&records.y, i, 0), room + p)
    for j in range(min(<Py_ssize_t> len(g), d + 1)):
        out[j] = room[p + j]
    wipe(room, p + d + 1)


def gradients(spec, theta, X, y, cnp.ndarray G not None):
    """Write the gradients of all rows at one theta into G (n, d); spec, theta, X and y are those of `gradient`."""
    cdef Records records
    records_of(spec, theta, X, y, &records)
    cdef double* out = matrix(G)
    cdef Py_ssize_t p = records.at.p, d = records.at.d, i, j
    cdef double* room = scratch(p + d + 1)
    with nogil:
        for i in range(records.X.n):
            copy_row(&records.X, i, room)
            gradient_of(&records.at, room, entry(&records.y, i, 0), room + p)
            for j in range(d):
                out[i * d + j] = room[p + j]
    wipe(room, p + d + 1)
