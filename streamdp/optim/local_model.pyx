"""What a learner of local reports holds: theta for columns in learned units, and its average in original units.

No average changes its meaning when a scale does.
"""

cimport numpy as cnp

from streamdp.optim cimport follow
from streamdp.optim.loops cimport AVERAGED, HUBER, INTERCEPT, LOSS, SPEC, check_loss
from streamdp.privacy.arrays cimport matrix, vector
from streamdp.scaling.unit_table cimport outward, units_of

cnp.import_array()


cdef int model_of(arrays, Model* out) except -1:
    """Describe `Arrays` by pointers. Raises `TypeError` if their sizes do not fit each other."""
    cdef cnp.ndarray spec, box, state, segments, blocks
    spec, box, state, segments, blocks, units = arrays
    units_of(units, &out.units)
    out.spec, out.box, out.theta, out.segments = vector(spec), matrix(box), matrix(state), matrix(segments)
    out.d, out.many = state.shape[1], segments.shape[0]
    out.answer, out.average, out.blocks = out.theta + out.d, out.theta + 2 * out.d, matrix(blocks)
    if (
        spec.shape[0] != SPEC
        or state.shape[0] != 3
        or box.shape[0] != 2
        or box.shape[1] != out.d
        or segments.shape[1] != width(out)
        or blocks.shape[0] != follow.ROWS
        or blocks.shape[1] != follow.block_width(out.d)
        or out.d < out.units.p + <Py_ssize_t> out.spec[INTERCEPT] + (out.spec[LOSS] == HUBER)
    ):
        raise TypeError("expected the arrays of one learner")
    return check_loss(out.spec)


cdef void to_original(const Model* m, const double* theta, double* out) noexcept nogil:
    """Write theta (d,) in original units into `out`."""
    outward(&m.units, theta, m.d, m.spec[INTERCEPT] > 0.0, m.spec[LOSS] == HUBER, out)


cdef void settle(Model* m) noexcept nogil:
    """Write the answer: theta in original units for a learner without an average, or the average (see `follow`)."""
    cdef double share = follow.row_of(m, follow.NUMBERS)[follow.MIXED]
    cdef const double* recent = follow.row_of(m, follow.RECENT)
    cdef Py_ssize_t j
    if not m.spec[AVERAGED]:
        to_original(m, m.theta, m.answer)
        return
    for j in range(m.d):
        m.answer[j] = m.average[j] + share * (recent[j] - m.average[j]) if share > 0.0 else m.average[j]
