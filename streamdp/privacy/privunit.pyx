"""Compiled PrivUnit: a unit vector is replaced by an unbiased direction of fixed length (see `mechanisms.PrivUnit`)."""

from libc.math cimport M_PI, cos, exp, fabs, log, sqrt

from streamdp.privacy.samplers cimport (
    CAP_ANGLE,
    CAP_COSINE,
    CAP_PROBABILITY,
    CAP_RADIAL,
    GRID,
    HUGE,
    NORM_BOUND,
    SCALE,
    TINY,
)
from streamdp.privacy.ziggurat cimport Draw, Ziggurat, common_run, normal_rare, normal_table, unit

cdef extern from *:
    """
    #include <math.h>

    /* The variates of common words in place of the widths of their layers. */
    SDP_CLONES static void sdp_variates(double *widths, const uint64_t *words, Py_ssize_t d) {
        for (Py_ssize_t j = 0; j < d; j++) widths[j] = sdp_common(words[j], widths[j]);
    }

    SDP_CLONES static double sdp_dot(const double *a, const double *b, Py_ssize_t d) {
        double sum = 0.0;
        for (Py_ssize_t j = 0; j < d; j++) sum += a[j] * b[j];
        return sum;
    }

    /* Adds a multiple of g to side, and returns the squared norm. */
    SDP_CLONES static double sdp_add_multiple(double *side, const double *g, double factor, Py_ssize_t d) {
        double square = 0.0;
        for (Py_ssize_t j = 0; j < d; j++) {
            side[j] += factor * g[j];
            square += side[j] * side[j];
        }
        return square;
    }

    SDP_CLONES static void sdp_answer(double *g, const double *side, double along, double across, double scale, Py_ssize_t d) {
        for (Py_ssize_t j = 0; j < d; j++) g[j] = rint(along * g[j] + across * side[j]) * scale;
    }
    """
    void sdp_variates(double* widths, const uint64_t* words, Py_ssize_t d) noexcept nogil
    double sdp_dot(const double* a, const double* b, Py_ssize_t d) noexcept nogil
    double sdp_add_multiple(double* side, const double* g, double factor, Py_ssize_t d) noexcept nogil
    void sdp_answer(double* g, const double* side, double along, double across, double scale, Py_ssize_t d) noexcept nogil


cdef Draw _cosine(Py_ssize_t d, bint in_cap, const double* row, uint64_t* words, Py_ssize_t at, Py_ssize_t end) noexcept nogil:
    """The cosine between a uniform direction and a fixed one, given that it is (or is not) in the cap.

    For d >= 3 the first two coordinates of a uniform point of the sphere have radius sqrt(1 - U^(2/(d-2))) and a
    uniform angle. In the cap the radius is at least the cosine gamma, so U < radial = (1 - gamma^2)^((d-2)/2), and the
    angle is at most widest = arccos(gamma). Points in this range that are outside the cap are rejected. For d = 2 the
    radius is 1, for d = 1 the cosine is a sign.

    The power is exp(-s), s = -2/(d-2) log U, with an error below 2^-52: the exponent, the logarithm and their product
    move s by at most 3.1 s 2^-53, s e^-s is at most 0.37, and exp adds 0.52 x 2^-53.
    """
    cdef double widest = row[CAP_ANGLE], power, reach, part, cosine, v
    if d == 1:
        return Draw(1.0 if in_cap else -1.0, at)
    if d == 2:
        if at >= end:
            return Draw(0.0, at + 1)
        v = unit(words[at])
        return Draw(cos(v * widest if in_cap else widest + v * (M_PI - widest)), at + 1)
    power = 2.0 / (d - 2)
    reach = widest if in_cap else M_PI
    part = row[CAP_RADIAL] if in_cap else 1.0
    while at + 1 < end:
        cosine = sqrt(1.0 - exp(power * log(part * unit(words[at])))) * cos(reach * unit(words[at + 1]))
        at += 2
        if (cosine >= row[CAP_COSINE]) == in_cap:
            return Draw(cosine, at)
    return Draw(0.0, end + 1)


cdef double _rescaled(double* g, Py_ssize_t d, double bound, double* square) noexcept nogil:
    """Divide g by its largest modulus, unless g is 0. Returns the old norm over `bound`, sets the new squared norm."""
    cdef double top = 0.0
    cdef Py_ssize_t j
    square[0] = 0.0
    for j in range(d):
        top = max(top, fabs(g[j]))
    if top == 0.0:
        return 0.0
    for j in range(d):
        g[j] /= top
        square[0] += g[j] * g[j]
    return top / bound * sqrt(square[0])


cdef Py_ssize_t privunit(
    const double* row, double* g, Py_ssize_t d, double* side, uint64_t* words, Py_ssize_t at, Py_ssize_t end
) noexcept nogil:
    """Replace g (d,). `side` (d,) is scratch space. Returns the next position, past the end if the words ran out."""
    cdef const Ziggurat* table = normal_table()
    cdef double square = sdp_dot(g, g, d), share, norm, sign, cosine, rest, across, cells
    cdef Draw draw
    cdef Py_ssize_t run, j = 0
    cdef bint in_cap
    if at + 1 >= end:
        return end + 1
    share = sqrt(square) / row[NORM_BOUND]
    if not TINY < square < HUGE:  # the direction would be off the unit sphere
        share = _rescaled(g, d, row[NORM_BOUND], &square)
    norm = sqrt(square)
    sign = 1.0 - 2.0 * <double> (2 * unit(words[at]) >= 1.0 + share)  # a branch would be predicted wrongly half of the time
    in_cap = unit(words[at + 1]) < row[CAP_PROBABILITY]
    draw = _cosine(d, in_cap, row, words, at + 2, end)
    cosine, at = draw.value, draw.at
    if at > end:
        return at
    if norm == 0.0:  # any direction is right, because the sign is fair
        g[0] = norm = square = 1.0
    while j < d:
        run = common_run(table, words + at, side + j, min(d - j, end - at))
        sdp_variates(side + j, words + at, run)
        at += run
        j += run
        if j < d:
            draw = normal_rare(table, words, at, end)
            side[j], at = draw.value, draw.at
            if at > end:
                return at
            j += 1
    sign /= norm
    rest = sdp_add_multiple(side, g, -sdp_dot(side, g, d) / square, d)
    across = sqrt(max(0.0, 1.0 - cosine * cosine) / rest) if rest > 0 and d > 1 else 0.0
    cells = 1.0 / row[GRID]
    sdp_answer(g, side, cosine * sign * cells, across * cells, row[SCALE] * row[GRID], d)
    return at
