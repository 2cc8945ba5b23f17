"""Functions of `schedule` for other compiled modules."""

from streamdp.scaling.unit_table cimport GRADIENT, REACHED, SHORTEST, TOTAL, Units


cdef struct Questions:
    # If the information of all records, REACHED, is above `above`, the next record answers about `column`;
    # else above `pair_above` about the pair `pair`, if TOTAL is at least SHORTEST; else with a gradient.
    double above
    Py_ssize_t column
    double pair_above
    Py_ssize_t pair


cdef inline Py_ssize_t question(const Questions* due, const double* progress, Py_ssize_t p) noexcept nogil:
    """As `next_question`, and p + 1 + i for the pair i."""
    if progress[REACHED] > due.above:
        return due.column
    return p + 1 + due.pair if progress[REACHED] > due.pair_above and progress[TOTAL] >= SHORTEST else GRADIENT


cdef Questions questions_of(const Units* u) noexcept nogil
