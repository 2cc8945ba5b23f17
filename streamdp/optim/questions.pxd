"""Functions of `questions` for other compiled modules."""

from streamdp.optim.frame cimport GRADIENT, REACHED, SHORTEST, TOTAL, Model


cdef enum:
    ABOUT_CLASS = -2


cdef struct Questions:
    # If the information of all records, REACHED, is above `above`, the next record answers about `column`, or its class
    # (`ABOUT_CLASS`); else above `pair_above` about the pair `pair`, if TOTAL is at least SHORTEST; else with a gradient.
    double above
    Py_ssize_t column
    double pair_above
    Py_ssize_t pair


cdef inline Py_ssize_t question(const Questions* due, const double* clock, Py_ssize_t p) noexcept nogil:
    """As `next_question`, and p + 1 + i for the pair i."""
    if clock[REACHED] > due.above:
        return due.column
    return p + 1 + due.pair if clock[REACHED] > due.pair_above and clock[TOTAL] >= SHORTEST else GRADIENT


cdef Questions questions_of(const Model* m) noexcept nogil
