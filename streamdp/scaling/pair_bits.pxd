"""Constants and functions of `pair_bits` for other compiled modules."""

# A row: two columns, the number of columns being the constant 1; the sum of the answers, each 1 or -1 times 2 p - 1, p
# being the probability of a true one; their information; and their number. The last row has the pair to ask about next,
# or -1, and the information and the number of all.
cpdef enum:
    FIRST = 0
    SECOND = 1
    SUM = 2
    INFORMATION = 3
    ANSWERS = 4
    PAIR = 5


cdef void choose(double* pairs, Py_ssize_t n) noexcept nogil
cdef void take_in(double* pairs, Py_ssize_t n, Py_ssize_t which, bint same, double keep) noexcept nogil
