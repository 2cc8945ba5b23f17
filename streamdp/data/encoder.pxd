cimport numpy as cnp
from cpython.object cimport PyObject
from libc.stdint cimport int64_t


cdef class RowEncoder:
    cdef tuple _given, _names, _codes
    cdef dict _classes
    cdef double _low, _high
    cdef list _keys  # the names, as the same objects that records have as keys
    cdef int _adoptions
    cdef bint _plain
    cdef object _tables
    cdef const double* _column
    cdef int64_t* _start
    cdef int64_t* _length  # how many raw values a feature has: the bytes of a text, and one of all else
    cdef int64_t* _factor
    cdef Py_ssize_t _products
    cdef readonly Py_ssize_t width

    cdef void _put(self, Py_ssize_t k, double value, double* out) noexcept nogil
    cdef void _multiply(self, double* out) noexcept nogil
    cdef PyObject* _value(self, PyObject* x, Py_ssize_t k, Py_ssize_t* place) except? NULL
    cdef bint fill(self, x, double* out) except -1
    cdef bint target(self, y, double* out) except -1
