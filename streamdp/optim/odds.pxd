"""The log odds of two classes for other compiled modules."""

from streamdp.optim.frame cimport Model


cdef bint due(const Model* m) noexcept nogil
cdef void take_in(Model* m, bint answer, double keep) noexcept nogil
