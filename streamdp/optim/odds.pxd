"""The log odds of two classes for other compiled modules."""

from streamdp.optim.local_model cimport Model


cdef enum:
    ABOUT_CLASS = -2  # the column of a question about the class


cdef bint due(const Model* m) noexcept nogil
cdef void take_in(Model* m, bint answer, double keep) noexcept nogil
