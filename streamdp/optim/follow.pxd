"""Constants and functions of `follow` for other compiled modules."""

from streamdp.optim.local_model cimport Model
from streamdp.optim.loops cimport BOUND

# A block has sums (d,) of tau g, of tau theta before the step, of A and B of the regression for the curvature, and of the
# variance of the first, in information; then its information, and its level, 0 if it is not in use.
# Rows after the blocks: the open block, with theta at its start in place of A; what is known about the curvature (A and
# B), with the sums of squares of all blocks in place of the first sum, their number, and in place of the level how many
# changes were noticed; recent iterates in original units; and numbers. These are saved; the others are scratch.
cpdef enum:
    BLOCKS = 56
    OPEN = 56
    KNOWN = 57
    RECENT = 58
    NUMBERS = 59
    SAVED = 60
    ROWS = 62
    LEVELS = 13

# The numbers: the information of gradients in all, and since all began anew; how often it did; the share of recent
# iterates in the answer; the information of all gradients at the last look; the records learned when the last change was
# noticed, 0 if that is not known; and the shares of recent iterates that were taken back again without a change, added
# up.
cpdef enum:
    EVER = 0
    FOLLOWED = 1
    RENEWALS = 2
    MIXED = 3
    LOOKED = 4
    NOTICED = 5
    BRIEF = 6


cdef inline Py_ssize_t block_width(Py_ssize_t d) noexcept nogil:
    """The numbers of a row."""
    return 5 * d + 2


cdef inline double* row_of(const Model* m, Py_ssize_t i) noexcept nogil:
    return m.blocks + i * block_width(m.d)


cdef inline bint take_gradient(Model* m, const double* g, double tau) noexcept nogil:
    """Add a noisy gradient at theta to the open block, before its step; return whether the block is full then."""
    cdef double* block = row_of(m, OPEN)
    cdef double* numbers = row_of(m, NUMBERS)
    cdef Py_ssize_t d = m.d, j
    cdef double share = tau / m.spec[BOUND]
    numbers[EVER] += tau
    numbers[FOLLOWED] += tau
    if block[5 * d] == 0.0:
        for j in range(d):
            block[2 * d + j] = m.theta[j]
    for j in range(d):
        block[j] += share * g[j]
        block[d + j] += tau * m.theta[j]
    block[5 * d] += tau
    return block[5 * d] >= 2.0 * d


cdef bint changed(Model* m, double seen) noexcept nogil
cdef void note_units(Model* m) noexcept nogil
cdef void carry_blocks(Model* m) noexcept nogil
cdef void forget_blocks(Model* m) noexcept nogil
