"""The posterior of a column for other compiled modules."""

cpdef enum:
    CENTRES = 193
    SPREADS = 13

# Summary of a posterior, by column.
cpdef enum:
    MEAN = 0
    VARIANCE = 1
    MEDIAN = 2
    LOG = 3
    LOG_VARIANCE = 4
    LOW = 5
    HIGH = 6
    REACH = 7
    REACH_VARIANCE = 8
    SUMMARY = 9

cpdef enum:
    CELLS = CENTRES * SPREADS


cdef void take_in(float* cells, double low, double high, bint answer, double keep) noexcept nogil
cdef void weigh(const float* cells, bint column, float* w) noexcept nogil
cdef void summarise_into(const float* w, bint column, double* out) noexcept nogil
