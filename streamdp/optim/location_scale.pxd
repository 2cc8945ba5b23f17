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
    SUMMARY = 7

cdef enum:
    CELLS = CENTRES * SPREADS


cdef void take_in(float* cells, double low, double high, bint answer, double keep) noexcept nogil
cdef void weigh(const float* cells, float* w) noexcept nogil
cdef void summarise_into(const float* w, double* out) noexcept nogil
cdef double gain_of(const float* w, double mean, double scale) noexcept nogil
cdef double chance_beyond(const float* w, double mean, double limit) noexcept nogil
