"""The admission of spends against caps, for other compiled modules."""

from libc.stdint cimport int64_t, uint8_t


cdef struct Cap:
    # As `CapNumbers`.
    int kind
    double most
    double most_delta


cdef void admit_rows(
    const int64_t* slots,
    Py_ssize_t n,
    const double* term,
    Py_ssize_t step,
    double* rows,
    uint8_t* pending,
    const Cap* caps,
    int filters,
    uint8_t* admitted,
) noexcept nogil
