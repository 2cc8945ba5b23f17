"""The check word of one row, for other compiled modules."""

from libc.stdint cimport uint64_t

from streamdp.ledger.rows cimport CAP, ROW


cdef extern from *:
    """
    #define SDP_CHECK_START 0x9E3779B97F4A7C15ULL  /* the value from which a check word is mixed */
    #define SDP_CHECK_FACTOR 0xBF58476D1CE4E5B9ULL
    """
    const uint64_t START "SDP_CHECK_START"
    const uint64_t FACTOR "SDP_CHECK_FACTOR"


cdef inline uint64_t mix(uint64_t mixed, uint64_t word) noexcept nogil:
    """Mix one more word into a check word."""
    mixed = (mixed ^ word) * FACTOR
    return mixed ^ (mixed >> 31)


cdef inline uint64_t check_word(const uint64_t* key, const uint64_t* words) noexcept nogil:
    """The check word of one row (ROW,) and its subject (2,). The cap is included only if the subject has its own."""
    cdef uint64_t mixed = mix(mix(START, key[0]), key[1])
    cdef int j
    for j in range(ROW if words[CAP] != 0 else CAP):
        mixed = mix(mixed, words[j])
    return mixed
