"""Normal and Laplace variates from random words, for other compiled modules."""

from libc.stdint cimport int64_t, uint64_t


cdef struct Ziggurat:
    int64_t accept[256]
    double width[256]
    double height[256]


cdef struct Draw:
    # A variate, and the position of the next word: past the end if the words ran out.
    double value
    Py_ssize_t at


cdef const Ziggurat* normal_table() noexcept nogil
cdef const Ziggurat* laplace_table() noexcept nogil
cdef Draw normal_rare(const Ziggurat* table, uint64_t* words, Py_ssize_t at, Py_ssize_t end) noexcept nogil
cdef Draw laplace_rare(const Ziggurat* table, uint64_t* words, Py_ssize_t at, Py_ssize_t end) noexcept nogil


cdef inline double unit(uint64_t word) noexcept nogil:
    """A uniform in [0, 1) with 53 bits."""
    return <double> <int64_t> (word >> 11) * (1.0 / 9007199254740992.0)


cdef inline int64_t abscissa(uint64_t word) noexcept nogil:
    """52 bits of a word; the others are a layer (8 bits) and a sign (1 bit)."""
    return <int64_t> ((word << 3) >> 12)


cdef inline double sign_of(uint64_t word) noexcept nogil:
    """1 or -1, by the bit between the layer and the abscissa."""
    return 1.0 - 2.0 * <double> <int64_t> ((word >> 8) & 1)


cdef inline bint is_common(const Ziggurat* table, uint64_t word) noexcept nogil:
    """False for the 1.5 to 2 % of words that need `normal_rare` or `laplace_rare`."""
    return abscissa(word) < table.accept[word & 0xFF]


cdef inline double common(const Ziggurat* table, uint64_t word) noexcept nogil:
    """The variate of a common word."""
    return <double> abscissa(word) * table.width[word & 0xFF] * sign_of(word)
