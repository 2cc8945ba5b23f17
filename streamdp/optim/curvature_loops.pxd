"""The vector of a record for other compiled modules."""

from streamdp.optim.loops cimport Point, Records


cdef void joint_of(const Point* at, const double* x, double y, double factor, double* out, Py_ssize_t size) noexcept nogil
cdef void vector_of(
    const Records* records, Py_ssize_t i, double factor, double* row, double* out, Py_ssize_t size
) noexcept nogil
cdef int check_room(const Point* at, double factor, Py_ssize_t size) except -1
