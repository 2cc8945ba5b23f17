"""Constants and functions of `samplers` for other compiled modules."""

from libc.stdint cimport uint64_t

# Codes of the mechanisms.
cpdef enum:
    NO_NOISE = 0
    LAPLACE = 1
    GAUSSIAN = 2
    PRIVUNIT = 3

# Columns of a calibration row. KEEP is the probability of a true answer about one bit at this budget, and INFORMATION that
# of a noisy gradient: C0^2 over its second moment, 1 without noise. The first ADDITIVE columns are those of additive
# noise; PrivUnit has all CALIBRATION.
cpdef enum:
    SCALE = 0
    GRID = 1
    KEEP = 2
    INFORMATION = 3
    ADDITIVE = 4
    CAP_PROBABILITY = 4
    CAP_COSINE = 5
    CAP_RADIAL = 6
    CAP_ANGLE = 7
    NORM_BOUND = 8
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


cdef inline Py_ssize_t columns(int mechanism) except -1:
    """The least columns of its calibration. Raises `TypeError` for a mechanism that the samplers do not know."""
    if mechanism == PRIVUNIT:
        return CALIBRATION
    if mechanism == NO_NOISE or mechanism == LAPLACE or mechanism == GAUSSIAN:
        return ADDITIVE
    raise TypeError("the compiled samplers have no mechanism with this code")


cdef inline Py_ssize_t draw_below(uint64_t choices, uint64_t* words, Py_ssize_t* at, Py_ssize_t end) noexcept nogil:
    """One of 0, ..., choices - 1 (at most 2^32 of them), all equally likely; -1 if the words ran out.

    It is the upper half of a word times the number of choices, over 2^32; draws that would make it uneven are rejected
    (Lemire 2019). `at` moves past the words that were drawn; the caller overwrites them.
    """
    cdef uint64_t product, low, mask = 4294967295U
    while at[0] < end:
        product = (words[at[0]] >> 32) * choices
        at[0] += 1
        low = product & mask
        if low >= choices or low >= ((mask - choices) + 1) % choices:
            return product >> 32
    return -1
