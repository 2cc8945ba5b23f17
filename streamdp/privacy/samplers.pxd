"""Constants and functions of `samplers` for other compiled modules."""

from libc.stdint cimport uint64_t

# Codes of the mechanisms.
cpdef enum:
    NO_NOISE = 0
    LAPLACE = 1
    GAUSSIAN = 2
    PRIVUNIT = 3

# Columns of a calibration row. Additive noise uses the first two. KEEP is the probability of a true answer about one bit
# at this budget, and INFORMATION that of a noisy gradient: C0^2 over its second moment, 1 without noise.
cpdef enum:
    SCALE = 0
    GRID = 1
    CAP_PROBABILITY = 2
    CAP_COSINE = 3
    CAP_RADIAL = 4
    CAP_ANGLE = 5
    NORM_BOUND = 6
    KEEP = 7
    INFORMATION = 8
    CALIBRATION = 9

cdef extern from *:
    """
    #define SDP_HUGE 1e300   /* squared norms above it count as overflow */
    #define SDP_TINY 1e-280  /* squared norms below it have lost digits */
    """
    const double HUGE "SDP_HUGE"
    const double TINY "SDP_TINY"


cdef Py_ssize_t noise(
    int mechanism, const double* row, double* g, Py_ssize_t d, double* side, uint64_t* words, Py_ssize_t at, Py_ssize_t end
) noexcept nogil
cdef bint use_words(uint64_t* words, Py_ssize_t end, Py_ssize_t start, Py_ssize_t at) noexcept nogil
cdef int answer(bint truth, double keep, uint64_t* words, Py_ssize_t end) noexcept nogil
