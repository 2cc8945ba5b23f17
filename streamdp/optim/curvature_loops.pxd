"""The vector of a record for other compiled modules."""

from streamdp.optim.loops cimport Point


cdef void joint_of(const Point* at, const double* x, double y, double factor, double* out, Py_ssize_t size) noexcept nogil
cdef int check_room(const Point* at, Py_ssize_t size) except -1
