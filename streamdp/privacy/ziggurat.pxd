"""Normal and Laplace variates from random words, for other compiled modules."""

from libc.stdint cimport int64_t, uint64_t


cdef extern from *:
    """
    #include <stdint.h>
    #include <string.h>
    /* A function that takes four coordinates at once where the processor can. */
    #if defined(__x86_64__) && defined(__gnu_linux__)
    #define SDP_CLONES __attribute__((target_clones("avx2", "default")))
    #else
    #define SDP_CLONES
    #endif

    /* The variate of a common word whose layer has this width. The abscissa is read as the low bits of a double from 2^52
       to 2^53, and the bit beside it becomes the sign: exactly. */
    static inline double sdp_common(uint64_t word, double width) {
        uint64_t bits = ((word << 3) >> 12) | (uint64_t) 0x433 << 52;
        double z;
        memcpy(&z, &bits, sizeof z);
        z = (z - 4503599627370496.0) * width;
        memcpy(&bits, &z, sizeof z);
        bits ^= (word >> 8) << 63;
        memcpy(&z, &bits, sizeof z);
        return z;
    }
    """
    double sdp_common(uint64_t word, double width) noexcept nogil


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
    return sdp_common(word, table.width[word & 0xFF])


cdef inline Py_ssize_t common_run(const Ziggurat* table, const uint64_t* words, double* widths, Py_ssize_t most) noexcept nogil:
    """How many of the first words are common, before another one or the end; `widths` gets those of their layers."""
    cdef Py_ssize_t j
    for j in range(most):
        if not is_common(table, words[j]):
            return j
        widths[j] = table.width[words[j] & 0xFF]
    return most
