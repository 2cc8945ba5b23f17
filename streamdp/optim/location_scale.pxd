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


cdef void take_in(double* cells, double low, double high, bint answer, double keep) noexcept nogil
cdef void weigh(const double* cells, double* w) noexcept nogil
cdef void summarise_into(const double* w, double* out) noexcept nogil
cdef double gain_of(const double* w, double mean, double scale) noexcept nogil
cdef double chance_beyond(const double* w, double mean, double limit) noexcept nogil
