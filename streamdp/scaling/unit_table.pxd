"""Constants and functions of `unit_table` for other compiled modules."""

# `progress`: the information of gradients; the weights of the average; the open segment, and the length that ends it; the
# information of all records, of the bits about columns, and of those about the target (`HUGE` when it has its scale);
# the records after the target's bits; when columns are scaled next; the sum of the bits about the class (see `odds`); how
# often something was scaled; all bits.
cpdef enum:
    TOTAL = 0
    WEIGHT = 1
    SEGMENT = 2
    WIDTH = 3
    REACHED = 4
    ASKED = 5
    TARGET = 6
    COUNT = 7
    NEXT = 8
    CLASS = 9
    CHANGES = 10
    BITS = 11
    PROGRESS = 12

# `table`: x is (raw - ORIGIN)/UNIT, and what is learned from is (x - CENTRE)/SCALE. For the target, x is raw, and its
# bounds are ORIGIN - UNIT and ORIGIN + UNIT. SINCE is T when the progress of the column is 0; in the last row, when
# that of all parameters without a column does. RESTARTED is SCALE at the last restart of the average, and SLOT is the
# index of the posterior, or -1. SLOPE and SHIFT follow from the others. The first LEARNED are learned.
cpdef enum:
    CENTRE = 0
    SCALE = 1
    SINCE = 2
    RESTARTED = 3
    ORIGIN = 4
    UNIT = 5
    SLOT = 6
    SLOPE = 7
    SHIFT = 8
    LEARNED = 4
    TABLE = 9

# `summary`, after the numbers of `location_scale`: the error of the scale of the column, and its index in `table`.
cpdef enum:
    ERROR = 9
    COLUMN = 10
    SUMMARY = 11

# The answer of `schedule.next_question` for a gradient, and `progress[TOTAL]` from when on there are intervals.
cpdef enum:
    GRADIENT = -1
    SHORTEST = 200


cdef struct Units:
    # `arrays.UnitArrays` as pointers: p features, c columns that are scaled.
    double* progress
    double* table
    float* posterior
    double* tail_evidence
    double* summary
    double* pairs
    Py_ssize_t p
    Py_ssize_t c
    Py_ssize_t n_pairs


cdef int units_of(arrays, Units* out) except -1
cdef void outward(
    const Units* u, const double* theta, Py_ssize_t d, bint intercept, bint huber, double* out
) noexcept nogil
cdef bint moves(const Units* u) noexcept nogil
cdef bint scale_columns(Units* u, double* theta, Py_ssize_t blocks) noexcept nogil
cdef bint count_record(Units* u, double keep) noexcept nogil
cdef bint take_answer(Units* u, Py_ssize_t column, double low, double high, bint answer, double keep) noexcept nogil
