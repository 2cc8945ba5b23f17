"""Constants and gradients of `loops` for other compiled modules; the derivatives of the losses."""

from libc.math cimport NAN, exp

from streamdp.privacy.arrays cimport Rows

# Indices of `spec`. ENVELOPE is 1 / beta of the Moreau envelope of a non-smooth loss; 0 to use a subgradient. BY_NORM
# is the weight (see `losses.base`); FACTOR, DECAY, OFFSET and BY_RECORDS are the steps (see `steps`).
# BOUND is C0, and CURVATURE the expected h of `follow`, 0 to follow nothing. LINK and ORIGIN are those of `residual_of`.
cpdef enum:
    LOSS = 0
    INTERCEPT = 1
    SHAPE = 2
    KAPPA = 3
    CLIP = 4
    DOMAIN = 5
    RADIUS = 6
    ENVELOPE = 7
    BY_NORM = 8
    FACTOR = 9
    DECAY = 10
    OFFSET = 11
    BY_RECORDS = 12
    AVERAGED = 13
    BOUND = 14
    CURVATURE = 15
    LINK = 16
    ORIGIN = 17
    SPEC = 18

# Of an exponential: the largest slope that a curvature shows, and the inverse of the least one; and the slope above which
# residuals count less.
cpdef enum:
    STEEPEST = 2
    HEAVY = 3

# The losses.
cpdef enum:
    HUBER = 1
    LOGISTIC = 2
    SOFTMAX = 3
    QUANTILE = 4
    HINGE = 5

# The domains.
cpdef enum:
    EVERYWHERE = 0
    BALL = 1
    BOX = 2


cdef struct Point:
    # The model, theta (d,), and the number of features.
    const double* spec
    const double* theta
    Py_ssize_t d
    Py_ssize_t p


cdef struct Records:
    # A model at a point, and records.
    Point at
    Rows X
    Rows y


cdef void gradient_of(const Point* at, const double* x, double y, double* g) noexcept nogil
cdef int point_of(spec, theta, Py_ssize_t p, Point* out) except -1
cdef int records_of(spec, theta, X, y, Records* out) except -1


cdef inline int check_loss(const double* spec) except -1:
    """Raise `TypeError` for a loss or a domain that the loops do not know."""
    cdef double loss = spec[LOSS], domain = spec[DOMAIN]
    if not (loss == HUBER or loss == LOGISTIC or loss == SOFTMAX or loss == QUANTILE or loss == HINGE):
        raise TypeError("the compiled loops have no loss with this code")
    if not (domain == EVERYWHERE or domain == BALL or domain == BOX):
        raise TypeError("the compiled loops have no domain with this code")
    return 0


cdef inline double clamped(double x, double low, double high) noexcept nogil:
    return min(max(x, low), high)


cdef inline double slope_of(const double* spec, double u) noexcept nogil:
    """m'(u) with a LINK: see `losses.poisson`. u and what it predicts are counted from the ORIGIN, which is 0 of the target."""
    return exp(min((u + spec[ORIGIN]) / spec[LINK] - 1.0, 300.0))


cdef inline double residual_of(const double* spec, double u, double y) noexcept nogil:
    """y minus what the linear predictor u predicts: u itself, or with a LINK the exponential of `losses.poisson`."""
    if spec[LINK] == 0.0:
        return y - u
    cdef double slope = slope_of(spec, u)
    return (y + spec[ORIGIN] - spec[LINK] * slope) * min(1.0, HEAVY / slope)


cdef inline double coefficient(const double* spec, double u, double y, double sigma, double t) noexcept nogil:
    """The derivative a of the loss in the linear predictor u, without the weight; NaN for a loss that is unknown.

    For a non-smooth loss and t > 0 it is the derivative at v = u - t a, which minimises l(v) + (v - u)^2 / (2 t).
    """
    cdef int loss = <int> spec[LOSS]
    cdef double a, sign
    if loss == LOGISTIC:
        return 1.0 / (1.0 + exp(-clamped(u, -700.0, 700.0))) - y
    if loss == HUBER:
        return -clamped(residual_of(spec, u, y) / sigma, -spec[SHAPE], spec[SHAPE])
    if loss == QUANTILE:
        a = 1.0 if y < u else 0.0
        if t > 0.0:
            a = clamped((u - y) / t + spec[SHAPE], 0.0, 1.0)
        return a - spec[SHAPE]
    if loss != HINGE:
        return NAN
    sign = 2.0 * y - 1.0
    a = 1.0 if sign * u < 1.0 else 0.0
    if t > 0.0:
        a = clamped((1.0 - sign * u) / t, 0.0, 1.0)
    return -sign * a
