"""The hash table of `row_cache`, for other compiled modules."""

from libc.stdint cimport int32_t, int64_t, uint8_t, uint64_t


cdef int64_t add_keys(
    const uint64_t* wanted,
    const uint8_t* present,
    Py_ssize_t m,
    uint64_t* keys,
    int32_t* index,
    uint64_t mask,
    int64_t n,
    int64_t* slots,
) noexcept nogil
