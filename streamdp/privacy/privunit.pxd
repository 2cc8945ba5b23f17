"""PrivUnit for `samplers`."""

from libc.stdint cimport uint64_t


cdef Py_ssize_t privunit(
    const double* row, double* g, Py_ssize_t d, double* side, uint64_t* words, Py_ssize_t at, Py_ssize_t end
) noexcept nogil
