"""What a learner of local reports holds, for compiled modules."""

from streamdp.scaling.unit_table cimport Units


cdef struct Model:
    # `arrays.Arrays` as pointers: d parameters, room for `many` segments.
    const double* spec
    const double* box
    double* theta
    double* answer
    double* average
    double* segments
    double* blocks
    Units units
    Py_ssize_t d
    Py_ssize_t many


cdef int model_of(arrays, Model* out) except -1
cdef void to_original(const Model* m, const double* theta, double* out) noexcept nogil
cdef void settle(Model* m) noexcept nogil


cdef inline Py_ssize_t width(const Model* m) noexcept nogil:
    """The numbers of a segment: d sums, the length, and the columns' relaxations and noises."""
    return m.d + 1 + 2 * (m.units.p + 1)
