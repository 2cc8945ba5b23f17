"""A few random words of the operating system for compiled loops, written to memory that the caller overwrites."""

from libc.stdint cimport uint64_t


cdef extern from *:
    """
    #if defined(__linux__) || defined(__FreeBSD__)
    #include <sys/random.h>
    #define SDP_RANDOM(to, bytes) (getrandom((to), (bytes), 0) == (ssize_t)(bytes))
    #elif defined(__APPLE__)
    #include <sys/random.h>
    #define SDP_RANDOM(to, bytes) (getentropy((to), (bytes)) == 0)
    #else
    #define SDP_RANDOM(to, bytes) 0
    #endif
    /* Up to 32 words. 0 if the system has no such call, or refuses it: then `entropy.FreshWords` reads them. */
    static int sdp_fresh_words(uint64_t *to, Py_ssize_t words) {
        return SDP_RANDOM(to, 8 * (size_t)words);
    }
    """
    bint fresh_words "sdp_fresh_words"(uint64_t* to, Py_ssize_t words) noexcept nogil
