"""Compiled loops of the shuffle protocol: noisy counts, their bits, and the ones among bits.

Words come from `entropy` as an array whose first entry is the position. A loop that runs out of words stops before the
cell that it cannot finish, returns the number of finished cells, and is called again with more words.

The functions for Python raise `TypeError` for arrays of another type or shape.
"""

from libc.stdint cimport int64_t, uint8_t, uint64_t

cimport numpy as cnp

from streamdp.optim.curvature_loops cimport check_room, vector_of
from streamdp.optim.loops cimport Point, Records, point_of, records_of
from streamdp.optim.record_kernel cimport RecordKernel
from streamdp.privacy.arrays cimport (
    Rows,
    byte_matrix,
    random_words,
    scratch,
    vector,
    whole_numbers,
    wipe,
)
from streamdp.privacy.samplers cimport use_words

cnp.import_array()

cdef extern from *:
    """
    #include <stdint.h>
    #include <string.h>
    #ifdef _MSC_VER
    #include <intrin.h>
    #define __builtin_popcountll __popcnt64
    #define __builtin_popcount __popcnt
    #endif
    /* The processor's own instruction where it has one. */
    #if defined(__x86_64__) && defined(__gnu_linux__)
    #define SDP_CLONES __attribute__((target_clones("popcnt", "default")))
    #else
    #define SDP_CLONES
    #endif

    /* Writes the ones among the first `bits` bits of every group of words, `bits / 64` rounded up and one word before. */
    SDP_CLONES static void sdp_ones_after_first(const uint64_t *words, int64_t n, int64_t bits, int64_t *out) {
        const int64_t whole = bits / 64, step = 1 + (bits + 63) / 64;
        const uint64_t mask = ((uint64_t) 1 << bits % 64) - 1;
        for (int64_t j = 0; j < n; j++, words += step) {
            int64_t total = 0;
            for (int64_t k = 1; k <= whole; k++) total += __builtin_popcountll(words[k]);
            if (mask) total += __builtin_popcountll(words[step - 1] & mask);
            out[j] = total;
        }
    }

    /* Adds the ones of `n` rows of bytes, d rows for each person, to out (d,). */
    SDP_CLONES static void sdp_add_ones(const uint8_t *bytes, int64_t n, int64_t width, int64_t d, int64_t *out) {
        for (int64_t i = 0; i < n; i++, bytes += width) {
            int64_t total = 0, k = 0;
            uint64_t word;
            for (; k + 8 <= width; k += 8) {
                memcpy(&word, bytes + k, 8);
                total += __builtin_popcountll(word);
            }
            for (; k < width; k++) total += __builtin_popcount(bytes[k]);
            out[i % d] += total;
        }
    }
    """
    void sdp_ones_after_first(const uint64_t* words, int64_t n, int64_t bits, int64_t* out) noexcept nogil
    void sdp_add_ones(const uint8_t* bytes, int64_t n, int64_t width, int64_t d, int64_t* out) noexcept nogil


cdef inline int64_t _rounded(double place, uint64_t word) noexcept nogil:
    """A place of at least 0 rounded at random: up if the upper 63 bits of a word are below its fraction of 2^63."""
    cdef int64_t whole = <int64_t> place  # conversions of signed numbers take one instruction
    return whole + (<int64_t> (word >> 1) < <int64_t> ((place - whole) * 9223372036854775808.0))


def noisy_counts(cnp.ndarray places not None, int64_t noise, cnp.ndarray out not None, cnp.ndarray words not None):
    """Write each place (m,) >= 0, rounded at random, plus the ones among `noise` fair bits, into `out` (m,) int64.

    A place is rounded up if 63 bits of the next of the random words are below its fraction of 2^63. That is exact for
    fractions that are multiples of 2^-63; other fractions are rounded down to one. Returns the number of finished
    cells.
    """
    cdef double* at_places = vector(places)
    cdef int64_t* counts = whole_numbers(out)
    cdef uint64_t* source = random_words(words)
    cdef Py_ssize_t need = 1 + (noise + 63) // 64, at = source[0], end = len(words), m = len(places), i
    cdef int64_t total
    if len(out) != m:
        raise TypeError("expected as many counts as places")
    with nogil:
        for i in range(m):
            if at + need > end:
                break
            sdp_ones_after_first(source + at, 1, noise, &total)
            total += _rounded(at_places[i], source[at])
            if not use_words(source, end, at, at + need):
                break
            at += need
            counts[i] = total
        else:
            i = m
    return i


cdef int add_counts(
    double* g,
    Py_ssize_t d,
    double bound,
    int64_t places,
    int64_t noise,
    int64_t* counts,
    int64_t* ones,
    uint64_t* words,
    Py_ssize_t end,
) noexcept nogil:
    """Add to ones (d + 1,) the counts of one gradient g (d,), on 0 to `places`, and one person to the last entry.

    Adds nothing, and says `EMPTY`, if `words` run out; `TOO_LONG` if g is longer than the bound, because it would not
    be protected. `counts` (d,) is scratch.
    """
    cdef Py_ssize_t each = 1 + (noise + 63) // 64, start = words[0], j
    cdef double half = places / 2.0
    cdef double squares[4]  # added up apart, because each sum waits for its last addition
    if start + d * each > end:
        return EMPTY
    for j in range(d):
        g[j] /= bound
    for j in range(4):
        squares[j] = 0.0
    for j in range(0, d - 3, 4):
        squares[0] += g[j] * g[j]
        squares[1] += g[j + 1] * g[j + 1]
        squares[2] += g[j + 2] * g[j + 2]
        squares[3] += g[j + 3] * g[j + 3]
    for j in range(d - d % 4, d):
        squares[0] += g[j] * g[j]
    if not squares[0] + squares[1] + squares[2] + squares[3] <= 1 + 2e-9:
        return TOO_LONG
    sdp_ones_after_first(words + start, d, noise, counts)
    for j in range(d):
        counts[j] += _rounded(min(max((g[j] + 1.0) * half, 0.0), <double> places), words[start + j * each])
    if not use_words(words, end, start, start + d * each):
        return EMPTY
    for j in range(d):
        ones[j] += counts[j]
    ones[d] += 1
    return ADDED


def count_ones(
    spec,
    theta,
    X,
    y,
    double bound,
    int64_t places,
    int64_t noise,
    cnp.ndarray ones not None,
    cnp.ndarray words not None,
    double factor=0.0,
):
    """Add the `noisy_counts` of the gradients at theta of all records. Returns the number of finished rows.

    `spec` is the model (see `loops`), X is (n, p), y (n,), `bound` the largest l2 norm of a vector, `places` and
    `noise` are g and b of `shuffled_sum.VectorSum`. `ones` (size + 1,) int64 receives the counts; its last entry counts
    the rows. `factor` is lambda of gradients with their curvature (see `curvature`); 0 for gradients alone.

    Raises `ArithmeticError` if a vector is longer than the bound, and `TypeError` for arrays of another type or shape.
    """
    cdef Records records
    records_of(spec, theta, X, y, &records)
    cdef int64_t* sums = whole_numbers(ones)
    cdef uint64_t* source = random_words(words)
    cdef Py_ssize_t p = records.at.p, size = len(ones) - 1, end = len(words), i = 0
    cdef int said = ADDED
    check_room(&records.at, factor, size)
    cdef double* row = scratch(p + 2 * size + 1)
    with nogil:
        while i < records.X.n:
            vector_of(&records, i, factor, row, row + p, size)
            said = add_counts(
                row + p, size, bound, places, noise, <int64_t*> (row + p + size + 1), sums, source, end
            )
            if said != ADDED:
                break
            i += 1
    wipe(row, p + 2 * size + 1)
    if said == TOO_LONG:
        raise ArithmeticError("a gradient is longer than the loss's bound")
    return i


cdef class CountTotal(RecordKernel):
    """`count_ones` for one record of p features, with the same spec, theta, bound, places, noise, ones and factor."""

    cdef Point _at
    cdef double _bound, _factor
    cdef int64_t _places, _noise
    cdef int64_t* _ones
    cdef Py_ssize_t _size

    def __init__(
        self,
        spec,
        theta,
        Py_ssize_t p,
        double bound,
        int64_t places,
        int64_t noise,
        cnp.ndarray ones not None,
        double factor=0.0,
    ):
        point_of(spec, theta, p, &self._at)
        self._kept, self._ones, self._size = (spec, theta, ones), whole_numbers(ones), len(ones) - 1
        self._bound, self._places, self._noise, self._factor = bound, places, noise, factor
        check_room(&self._at, factor, self._size)
        self.width, self.room, self.draws = p, p + 2 * self._size + 1, True

    cdef bint learn(self, const Rows* X, const Rows* y, double* room, uint64_t* words, Py_ssize_t end) noexcept:
        cdef Records records = Records(self._at, X[0], y[0])
        cdef double* vector = room + self.width
        cdef int64_t* counts = <int64_t*> (vector + self._size + 1)
        cdef int said
        vector_of(&records, 0, self._factor, room, vector, self._size)
        said = add_counts(
            vector, self._size, self._bound, self._places, self._noise, counts, self._ones, words, end
        )
        return said == ADDED


def write_ones(cnp.ndarray counts not None, cnp.ndarray out not None):
    """Write packed bits, the first counts[i] of them ones, into the rows of `out` (m, w) uint8, zeros before."""
    cdef int64_t* numbers = whole_numbers(counts)
    cdef uint8_t* bits = byte_matrix(out)
    cdef Py_ssize_t m = len(counts), width = out.shape[1], i, k, whole, rest
    if out.shape[0] != m or (m and not 0 <= counts.min() <= counts.max() <= 8 * width):
        raise TypeError("expected room for each count")
    with nogil:
        for i in range(m):
            whole, rest = numbers[i] // 8, numbers[i] % 8
            for k in range(whole):
                bits[i * width + k] = 255
            if rest:
                bits[i * width + whole] = 256 - (1 << (8 - rest))


def add_ones(cnp.ndarray bits not None, cnp.ndarray ones not None):
    """Add the ones in each row of packed bits, and the number of people, in one step that nothing interrupts.

    `bits` is (m d, w) uint8: d rows for each of m people. `ones` is (d + 1,) int64; its last entry counts people.
    """
    cdef uint8_t* rows = byte_matrix(bits)
    cdef int64_t* sums = whole_numbers(ones)
    cdef Py_ssize_t n = bits.shape[0], d = len(ones) - 1
    if d < 1 or n % d:
        raise TypeError("expected as many rows for each person as sums")
    sdp_add_ones(rows, n, bits.shape[1], d, sums)
    sums[d] += n // d
