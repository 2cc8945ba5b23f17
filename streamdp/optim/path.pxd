"""Functions of `path` for other compiled modules."""

from streamdp.optim.local_model cimport Model, width


cdef void end_segment(Model* m) noexcept nogil
cdef void forget(Model* m) noexcept nogil
