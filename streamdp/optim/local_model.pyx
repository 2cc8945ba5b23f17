"""What a learner of local reports holds: theta for columns in learned units, and its average in original units.

No average changes its meaning when a scale does.
"""

cimport numpy as cnp

from streamdp.optim.loops cimport AVERAGED, HUBER, INTERCEPT, LOSS, SPEC
from streamdp.privacy.arrays cimport matrix, vector
from streamdp.scaling.unit_table cimport outward, units_of

cnp.import_array()


cdef int model_of(arrays, Model* out) except -1:
    """Describe `Arrays` by pointers. Raises `TypeError` if their sizes do not fit each other."""
    cdef cnp.ndarray spec, box, state, segments
    spec, box, state, segments, units = arrays
    units_of(units, &out.units)
    out.spec, out.box, out.theta, out.segments = vector(spec), matrix(box), matrix(state), matrix(segments)
    out.d, out.many = state.shape[1], segments.shape[0]
    out.average = out.theta + out.d
    if (
        spec.shape[0] != SPEC
        or state.shape[0] != 2
        or box.shape[0] != 2
        or box.shape[1] != out.d
        or segments.shape[1] != width(out)
        or out.d < out.units.p + <Py_ssize_t> out.spec[INTERCEPT] + (out.spec[LOSS] == HUBER)
    ):
        raise TypeError("expected the arrays of one learner")
    return 0


cdef void to_original(const Model* m, const double* theta, double* out) noexcept nogil:
    """Write theta (d,) in original units into `out`."""
    outward(&m.units, theta, m.d, m.spec[INTERCEPT] > 0.0, m.spec[LOSS] == HUBER, out)


cdef void settle(Model* m) noexcept nogil:
    """Write theta in original units where the average would be, for a learner without one: the answer is there."""
    if not m.spec[AVERAGED]:
        to_original(m, m.theta, m.average)
