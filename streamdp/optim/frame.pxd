"""Constants and functions of `frame` for other compiled modules."""

# `clock`: the information of gradients; the weights of the average; the open segment, and the length that ends it; the
# information of all records, of the bits about columns, and of those about the target (`HUGE` when it has its scale);
# the records after the target's bits; when columns are scaled next; what bits told about the class (see `odds`); how
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
    CLOCK = 12

# `frame`: x is (raw - ORIGIN)/UNIT, and what is learned from is (x - CENTRE)/SCALE. For the target, x is raw, and its
# bounds are ORIGIN - UNIT and ORIGIN + UNIT. SINCE is T when the clock of the column shows 0; in the last row, when
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
    FRAME = 9

# `summary`, after the numbers of `location_scale`: the error of the scale of the column, and its index in `frame`.
cpdef enum:
    ERROR = 9
    COLUMN = 10
    SUMMARY = 11

# The answer of `questions.next_question` for a gradient, and `clock[TOTAL]` from when on there are intervals.
cpdef enum:
    GRADIENT = -1
    SHORTEST = 200


cdef struct Model:
    # `arrays.Arrays` as pointers: d parameters, p features, c columns that are scaled, room for `many` segments.
    const double* spec
    const double* box
    double* theta
    double* average
    double* segments
    double* clock
    double* frame
    float* posterior
    double* tails
    double* summary
    double* pairs
    Py_ssize_t d
    Py_ssize_t p
    Py_ssize_t c
    Py_ssize_t many
    Py_ssize_t n_pairs


cdef int model_of(arrays, Model* out) except -1
cdef void to_original(const Model* m, const double* theta, double* out) noexcept nogil
cdef void settle(Model* m) noexcept nogil
cdef bint count_one(Model* m, double keep) noexcept nogil
cdef void take_answer(Model* m, Py_ssize_t column, double low, double high, bint answer, double keep) noexcept nogil
