"""The noisy counts of one vector, for other compiled modules."""

from libc.stdint cimport int64_t, uint64_t


cdef enum:
    # What became of a vector.
    ADDED, EMPTY, TOO_LONG


cdef int add_counts(
    double* g,
    Py_ssize_t d,
    double bound,
    int64_t places,
    int64_t noise,
    int64_t* counts,
    int64_t* ones,
    uint64_t* words,
    Py_ssize_t end,
) noexcept nogil
