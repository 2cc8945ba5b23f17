"""Compiled loops of the average gradients of users, and of gradients with their curvature in batches of `newton`.

The vector of a record is described, and its bounds are proved, in `curvature`. Like `loops.gradient`, a record whose
arithmetic overflows counts as zeros, and scratch space is overwritten.

The functions for Python raise `TypeError` for arrays of another type or shape.
"""

from libc.math cimport INFINITY, exp, fabs, sqrt
from libc.stdint cimport int64_t, uint64_t

cimport numpy as cnp

from streamdp.optim.loops cimport (
    HUBER, INTERCEPT, KAPPA, LINK, LOGISTIC, LOSS, SHAPE, SOFTMAX, STEEPEST, clamped, gradient_of, point_of,
    records_of, residual_of, slope_of,
)
from streamdp.optim.record_kernel cimport RecordKernel
from streamdp.privacy.arrays cimport Rows, copy_row, entry, matrix, scratch, whole_numbers, wipe
from streamdp.privacy.samplers cimport HUGE
cimport streamdp.privacy.ziggurat  # SDP_CLONES

from streamdp.scaling.units import FAR as DEVIATIONS, FAR_OF_NUMBERS as DEVIATIONS_OF_NUMBERS, MOST, ROOM as ROOM_OF_COLUMNS

cnp.import_array()

cdef double FAR = DEVIATIONS, FAR_OF_NUMBERS = DEVIATIONS_OF_NUMBERS
cdef double ROOM = ROOM_OF_COLUMNS, LARGEST = MOST

cdef extern from *:
    """
    /* x + 1.5 * 2^52 has the whole number nearest to x in its last bits, ties to even as by rint, if |x| < 2^51. This
       compiles to vector instructions of every processor, and a conversion of each number does not. */
    #include <math.h>
    #include <stdint.h>
    #include <string.h>
    SDP_CLONES static void sdp_add_cells(int64_t *out, const double *x, double cells, Py_ssize_t n) {
        const double shift = 6755399441055744.0;
        int64_t zero, bits, far = 0;
        Py_ssize_t j;
        memcpy(&zero, &shift, 8);
        for (j = 0; j < n; j++) {
            double shifted = x[j] * cells + shift;
            memcpy(&bits, &shifted, 8);
            far |= bits ^ zero;
            out[j] += bits - zero;
        }
        if (far >> 52) /* another exponent: a number was too large */
            for (j = 0; j < n; j++) {
                double shifted = x[j] * cells + shift;
                memcpy(&bits, &shifted, 8);
                out[j] += (int64_t) rint(x[j] * cells) - (bits - zero);
            }
    }

    /* The upper triangle of h z z' row by row, with off-diagonal entries times `root`; z is x (p,), and a last 1 if there
       is an intercept. */
    SDP_CLONES static void sdp_triangle(double *out, const double *x, double h, double root, Py_ssize_t p, int intercept) {
        Py_ssize_t j, k;
        for (j = 0; j < p; j++) {
            double left = h * x[j];
            *out++ = left * x[j];
            left *= root;
            for (k = j + 1; k < p; k++) *out++ = left * x[k];
            if (intercept) *out++ = left;
        }
        if (intercept) *out = h;
    }
    """
    void triangle "sdp_triangle"(
        double* out, const double* x, double h, double root, Py_ssize_t p, bint intercept) noexcept nogil
    void add_cells "sdp_add_cells"(int64_t* out, const double* x, double cells, Py_ssize_t n) noexcept nogil


cdef Py_ssize_t _parameters_of(const Point* at, Py_ssize_t size) noexcept nogil:
    """d, the length of the gradient in a vector of this size with curvature."""
    cdef Py_ssize_t q = at.p + <Py_ssize_t> at.spec[INTERCEPT]
    return size - q * (q + 1) // 2 - (at.spec[LOSS] == HUBER)


cdef double _chances_of(const Point* at, const double* x, double y, double* out, Py_ssize_t d) noexcept nogil:
    """Write the derivative in the predictor of each class to the first place of its block of out (d,).

    Returns the largest size of a predictor, or infinity if one is not finite.
    """
    cdef Py_ssize_t p = at.p, q = p + <Py_ssize_t> at.spec[INTERCEPT], j, k
    cdef double top = -INFINITY, total = 0.0, largest = 0.0, u
    for k in range(d // q):
        u = at.theta[k * q + p] if q > p else 0.0
        for j in range(p):
            u += at.theta[k * q + j] * x[j]
        if not fabs(u) < HUGE:
            return INFINITY
        out[k * q] = u
        top, largest = max(top, u), max(largest, fabs(u))
    for k in range(d // q):
        out[k * q] = exp(out[k * q] - top)
        total += out[k * q]
    for k in range(d // q):
        out[k * q] = out[k * q] / total - (1.0 if k == <Py_ssize_t> y else 0.0)
    return largest


cdef void joint_of(const Point* at, const double* x, double y, double factor, double* out, Py_ssize_t size) noexcept nogil:
    """Write the gradient and `factor` times the curvature of a record into out (size,).

    The gradient (d,) comes first, then the upper triangle of M row by row with off-diagonal entries times sqrt(2), and
    for Huber s. The loss is Huber, logistic or softmax.
    """
    cdef const double* spec = at.spec
    cdef const double* theta = at.theta
    cdef Py_ssize_t p = at.p, intercept = <Py_ssize_t> spec[INTERCEPT], q = p + intercept
    cdef Py_ssize_t d = _parameters_of(at, size), i, j
    cdef double square = intercept, u = theta[q - 1] if intercept else 0.0, c = spec[SHAPE], weight = 1.0
    cdef double a = 0.0, h = 1.0, r, left, chance, root = sqrt(2.0)
    cdef bint huber = spec[LOSS] == HUBER
    for j in range(p):
        square += x[j] * x[j]
        u += theta[j] * x[j]
    if huber:
        r = residual_of(spec, u, y) / theta[q]
        a = -min(max(r, -c), c)
        h = 1.0 if fabs(r) <= c else c / fabs(r)
        if spec[LINK]:
            h *= clamped(slope_of(spec, u), 1.0 / STEEPEST, STEEPEST) / STEEPEST
    elif spec[LOSS] == LOGISTIC:
        r = u
        chance = 1.0 / (1.0 + exp(-min(max(u, -700.0), 700.0)))
        a = chance - y
        h = 1.0 if spec[SHAPE] else 4.0 * chance * (1.0 - chance)  # see `Curvature.plain`
    else:
        r = _chances_of(at, x, y, out, d)
    if square > 1.0:
        weight = min(1.0, root / sqrt(square), sqrt(2.0 * q) / square)
    if not (square < HUGE and fabs(r) < HUGE):
        weight = a = h = r = 0.0
        for i in range(size):
            out[i] = 0.0
    if huber:
        out[q] = 0.5 * (spec[KAPPA] - a * a) * weight
        out[size - 1] = r * r * weight * factor if fabs(r) < c else 0.0
    h *= weight * factor
    for i in range((d - huber) // q):  # one block for each class
        left = (out[i * q] if spec[LOSS] == SOFTMAX else a) * weight
        for j in range(p):
            out[i * q + j] = left * x[j]
        if intercept:
            out[i * q + p] = left
    triangle(out + d, x, h, root, p, intercept)


cdef int check_room(const Point* at, double factor, Py_ssize_t size) except -1:
    """Raise `TypeError` unless the loss has vectors, and those of `vector_of` have this size."""
    cdef Py_ssize_t q = at.p + <Py_ssize_t> at.spec[INTERCEPT], d = _parameters_of(at, size) if factor else size
    cdef double loss = at.spec[LOSS]
    if factor and not (loss == HUBER or loss == LOGISTIC or loss == SOFTMAX):
        raise TypeError("this loss has no curvature of bounded sensitivity")
    if factor and d != q + (loss == HUBER) and not (loss == SOFTMAX and d > q and d % q == 0):
        raise TypeError("the model and the room for its vectors differ in size")
    if at.d != d and not (factor and at.d == d + 2 * at.p):
        raise TypeError("the model and the room for its vectors differ in size")
    return 0


cdef void _place(const Point* at, double* x, Py_ssize_t d) noexcept nogil:
    """Write a row in the units of the point, if it has any: (x - centre) * slope, cut if the slope is not 1.

    They follow theta (d,): p centres and p slopes, as finite numbers.
    """
    cdef Py_ssize_t p = at.p, j
    cdef const double* centre = at.theta + d
    cdef const double* slope = centre + p
    cdef double most, far = FAR_OF_NUMBERS if at.spec[LOSS] == HUBER and not at.spec[LINK] else FAR
    if at.d > d:
        for j in range(p):
            x[j] = min(max(x[j] - centre[j], -HUGE), HUGE)  # also before it is multiplied: an infinity times 0 is NaN
            most = HUGE if slope[j] == 1.0 else far if slope[j] < LARGEST else FAR
            x[j] = min(max(x[j] * slope[j], -most), most)


cdef void _find_columns(const Point* at, const double* x, double* out, Py_ssize_t d) noexcept nogil:
    """Add where a row is in the ranges of columns that are searched for to a vector that saw none (see `Curvature.reach`).

    Their slopes are below 0.
    """
    cdef Py_ssize_t p = at.p, q = p + <Py_ssize_t> at.spec[INTERCEPT], place = d, j
    cdef const double* centre = at.theta + d
    cdef const double* slope = centre + p
    cdef double loss = at.spec[LOSS], square = 1.0, a, reach
    if loss != LOGISTIC:
        square = at.spec[SHAPE] * at.spec[SHAPE] if loss == HUBER else 2.0
    reach = sqrt(ROOM * square / (2 * p))
    for j in range(p):
        a = min(max((x[j] - centre[j]) * -slope[j], -1.0), 1.0)
        out[j] += reach * a
        out[place] += reach * fabs(a)
        place += q - j


cdef void vector_of(
    const Records* records, Py_ssize_t i, double factor, double* row, double* out, Py_ssize_t size
) noexcept nogil:
    """Write the vector of record i into out: its gradient, and with a factor above 0 its curvature (see `joint_of`).

    `row` has room for p numbers, and `out` for one more than `size`.
    """
    cdef const Point* at = &records.at
    cdef Py_ssize_t d, j
    copy_row(&records.X, i, row)
    if not factor:
        gradient_of(at, row, entry(&records.y, i, 0), out)
        return
    d = _parameters_of(at, size)
    if at.d > d and at.theta[d + at.p] < 0:
        for j in range(at.p):
            row[j] = 0.0
        joint_of(at, row, entry(&records.y, i, 0), factor, out, size)
        copy_row(&records.X, i, row)
        _find_columns(at, row, out, d)
    else:
        _place(at, row, d)
        joint_of(at, row, entry(&records.y, i, 0), factor, out, size)


def average_gradients(
    spec,
    theta,
    X,
    y,
    cnp.ndarray starts not None,
    cnp.ndarray users not None,
    cnp.ndarray out not None,
):
    """Write the average gradient at theta of each of k users into the rows of `out` (k, d).

    X (N, p) and y (N,) are the records of all users: user u has the rows starts[u] to starts[u + 1] - 1, at least one;
    `starts` is (users + 1,) int64, `users` (k,) int64 are indices. `spec` is that of `loops.gradient`. Raises
    `TypeError` for arrays of another type or shape.
    """
    cdef Records records
    records_of(spec, theta, X, y, &records)
    cdef double* means = matrix(out)
    cdef int64_t* first = whole_numbers(starts)
    cdef int64_t* chosen = whole_numbers(users)
    cdef Py_ssize_t p = records.at.p, d = records.at.d, count = len(users), k, i, j
    cdef double* mean
    cdef double* room = scratch(p + d + 1)
    with nogil:
        for k in range(count):
            mean = means + k * d
            for j in range(d):
                mean[j] = 0.0
            for i in range(first[chosen[k]], first[chosen[k] + 1]):
                copy_row(&records.X, i, room)
                gradient_of(&records.at, room, entry(&records.y, i, 0), room + p)
                for j in range(d):
                    mean[j] += room[p + j]
            for j in range(d):
                mean[j] /= first[chosen[k] + 1] - first[chosen[k]]
    wipe(room, p + d + 1)


def joint_of_rows(spec, theta, X, y, double factor, cnp.ndarray G not None):
    """Write the vectors of all rows of X (n, p) and y (n,) at one theta into G (n, size).

    `spec` is the loss (see `loops`), Huber, logistic or softmax. theta is (d,), or (d + 2 p,) with the units of the columns: p
    centres and p slopes, see `column_units`. X has no column for the intercept. The curvature is multiplied by
    `factor`, lambda.
    """
    cdef Records records
    records_of(spec, theta, X, y, &records)
    cdef double* out = matrix(G)
    cdef Py_ssize_t size = G.shape[1], i
    check_room(&records.at, factor, size)
    cdef double* row = scratch(records.at.p)
    with nogil:
        for i in range(records.X.n):
            vector_of(&records, i, factor, row, out + i * size, size)
    wipe(row, records.at.p)


def accumulate_averages(
    double factor, spec, theta, X, y, cnp.ndarray starts not None, double cells, cnp.ndarray total not None
):
    """Add the average vector of each user to a sum.

    spec, theta, X, y, cells and total are those of `accumulate`, with the records of all users; the factor is above 0.
    User u has the rows starts[u] to starts[u + 1] - 1, at least one; `starts` is (users + 1,) int64.
    """
    cdef Records records
    records_of(spec, theta, X, y, &records)
    cdef int64_t* out = whole_numbers(total)
    cdef int64_t* first = whole_numbers(starts)
    cdef Py_ssize_t size = len(total), users = len(starts) - 1, p = records.at.p, u, i, j
    check_room(&records.at, factor, size)
    cdef double* row = scratch(p + 2 * size + 2)
    cdef double* room = row + p
    cdef double* mean = room + size + 1
    with nogil:
        for u in range(users):
            vector_of(&records, first[u], factor, row, mean, size)
            for i in range(first[u] + 1, first[u + 1]):
                vector_of(&records, i, factor, row, room, size)
                for j in range(size):
                    mean[j] += room[j]
            add_cells(out, mean, cells / (first[u + 1] - first[u]), size)
    wipe(row, p + 2 * size + 2)


def accumulate_squares(
    spec, theta, X, y, cnp.ndarray starts not None, double squared, double curved, double cells, cnp.ndarray total not None
):
    """Add to a sum the square g g' of the average gradient of each user, times `squared`.

    For Huber's loss there follows the average of w x x' where the residual is not clipped, times `curved`: the Hessian
    times the scale. The other arguments are those of `accumulate_averages`, at a theta of one output. Of matrices
    (q, q) there are the upper triangles, as in `joint_of`: q is the number of columns, and the scale is left out.
    """
    cdef Records records
    records_of(spec, theta, X, y, &records)
    cdef int64_t* out = whole_numbers(total)
    cdef int64_t* first = whole_numbers(starts)
    cdef Py_ssize_t p = records.at.p, q = p + <Py_ssize_t> records.at.spec[INTERCEPT], half = q * (q + 1) // 2
    cdef bint huber = records.at.spec[LOSS] == HUBER
    cdef Py_ssize_t d = q + huber, size = d + half + huber, users = len(starts) - 1, u, i, j, k, place
    cdef Py_ssize_t length = half * (1 + huber)
    cdef double left
    if records.at.spec[LOSS] == SOFTMAX or len(total) != length:
        raise TypeError("expected one output, and room for the triangles")
    check_room(&records.at, 1.0, size)
    cdef double* row = scratch(p + size + 1 + q + length)
    cdef double* room = row + p
    cdef double* mean = room + size + 1
    cdef double* both = mean + q
    with nogil:
        for u in range(users):
            for j in range(q + length):
                mean[j] = 0.0
            for i in range(first[u], first[u + 1]):
                vector_of(&records, i, 1.0, row, room, size)
                for j in range(q):
                    mean[j] += room[j]
                if huber and room[size - 1] > 0.0:
                    for j in range(half):
                        both[half + j] += room[d + j]
            left = 1.0 / (first[u + 1] - first[u])
            for j in range(q):
                mean[j] *= left
            for j in range(half, length):
                both[j] *= left * curved
            place = 0
            for j in range(q):
                both[place] = squared * mean[j] * mean[j]
                for k in range(j + 1, q):
                    both[place + k - j] = squared * sqrt(2.0) * mean[j] * mean[k]
                place += q - j
            add_cells(out, both, cells, length)
    wipe(row, p + size + 1 + q + length)


cdef void _add_vector(
    const Records* records, Py_ssize_t i, double factor, double cells, int64_t* out, Py_ssize_t size, double* row
) noexcept nogil:
    """Add the vector of record i in cells; `row` has room for p + size + 1 numbers."""
    cdef double* room = row + records.at.p
    vector_of(records, i, factor, row, room, size)
    add_cells(out, room, cells, size)


def accumulate(spec, theta, X, y, double cells, cnp.ndarray total not None, double factor=0.0):
    """Add the vectors of all rows at theta, rounded to multiples of 1 / cells, to `total` (size,) int64, in cells.

    No vector of a single record stays in memory. spec, theta, X and y are those of `joint_of_rows`, and of any loss if
    the factor lambda of the curvature is 0, for gradients alone.
    """
    cdef Records records
    records_of(spec, theta, X, y, &records)
    cdef int64_t* out = whole_numbers(total)
    cdef Py_ssize_t size = len(total), p = records.at.p, i
    check_room(&records.at, factor, size)
    cdef double* row = scratch(p + size + 1)
    with nogil:
        for i in range(records.X.n):
            _add_vector(&records, i, factor, cells, out, size, row)
    wipe(row, p + size + 1)


cdef class VectorTotal(RecordKernel):
    """`accumulate` for one record of p features, with the same spec, theta, cells, total and factor."""

    cdef Point _at
    cdef int64_t* _total
    cdef Py_ssize_t _size
    cdef double _cells, _factor

    def __init__(self, spec, theta, Py_ssize_t p, double cells, cnp.ndarray total not None, double factor=0.0):
        point_of(spec, theta, p, &self._at)
        self._kept, self._size, self._total = (spec, theta, total), len(total), whole_numbers(total)
        self._cells, self._factor = cells, factor
        check_room(&self._at, factor, self._size)
        self.width, self.room, self.draws = p, p + self._size + 1, False

    cdef bint learn(self, const Rows* X, const Rows* y, double* room, uint64_t* words, Py_ssize_t end) noexcept:
        cdef Records records = Records(self._at, X[0], y[0])
        _add_vector(&records, 0, self._factor, self._cells, self._total, self._size, room)
        return True
