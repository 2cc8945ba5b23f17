"""The tail of a column for other compiled modules."""

# What is kept of a column: the logarithms of the likelihoods of `LIKELIHOODS` tails, and the information of the bits.
cpdef enum:
    LEVELS = 4
    MASSES = 4
    LIKELIHOODS = LEVELS * MASSES
    TAILS = LIKELIHOODS + 1


cdef bint about_tail(double low, double high, const double* row) noexcept nogil
cdef void take_in(double* evidence, double low, double high, bint answer, double keep) noexcept nogil
cdef double widen(const double* evidence, double error, double* row) noexcept nogil
