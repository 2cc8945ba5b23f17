"""Functions of `path` for other compiled modules."""

from streamdp.optim.frame cimport Model


cdef inline Py_ssize_t width(const Model* m) noexcept nogil:
    """The numbers of a segment: d sums, the length, and the columns' relaxations and noises."""
    return m.d + 1 + 2 * (m.p + 1)


cdef void end_segment(Model* m) noexcept nogil
cdef void forget(Model* m) noexcept nogil
