"""Compiled loops of the shuffle protocol: noisy counts, their bits, and a permutation.

Words come from `entropy` as an array whose first entry is the position. A loop that runs out of words stops before the
cell that it cannot finish, returns the number of finished cells, and is called again with more words.
"""

from libc.math cimport floor
from libc.stdint cimport int64_t, uint8_t, uint64_t

cimport numpy as cnp

from streamdp.optim.curvature_loops cimport check_room, vector_of
from streamdp.optim.loops cimport Point, Records, point_of, records_of
from streamdp.optim.record_kernel cimport RecordKernel
from streamdp.privacy.arrays cimport (
    Rows,
    byte_matrix,
    byte_vector,
    random_words,
    scratch,
    vector,
    whole_numbers,
    wipe,
)
from streamdp.privacy.samplers cimport draw_below, use_words

cnp.import_array()

cdef extern from *:
    """
    #include <stdint.h>
    /* The processor's own instruction where it has one. */
    #if defined(__x86_64__) && defined(__gnu_linux__)
    __attribute__((target_clones("popcnt", "default")))
    #endif
    static int64_t sdp_ones(const uint64_t *words, int64_t n) {
        int64_t total = 0;
        for (int64_t k = 0; k < n; k++) total += __builtin_popcountll(words[k]);
        return total;
    }
    """
    int64_t sdp_ones(const uint64_t* words, int64_t n) noexcept nogil


cdef int64_t _noisy_count(double place, int64_t noise, const uint64_t* words) noexcept nogil:
    """A place rounded at random, plus the ones among `noise` fair bits, from the first words."""
    cdef int64_t whole = noise // 64, rest = noise % 64
    cdef double low = floor(place)
    cdef int64_t total = <int64_t> low + (words[0] < <uint64_t> ((place - low) * 18446744073709551616.0))
    cdef uint64_t last
    total += sdp_ones(words + 1, whole)
    if rest:
        last = words[1 + whole] & (((<uint64_t> 1) << rest) - 1)
        total += sdp_ones(&last, 1)
    return total


def noisy_counts(cnp.ndarray places not None, int64_t noise, cnp.ndarray out not None, cnp.ndarray words not None):
    """Write each place, rounded at random, plus the ones among fair bits. Returns the number of finished cells.

    A place is rounded up if the next word is below its fraction of 2^64. That is exact for fractions that are multiples
    of 2^-64; other fractions are rounded down to one.

    Parameters
    ----------
    places
        (m,), at least 0.
    noise
        The number of fair bits for each place.
    out
        (m,) int64, the result.
    words
        Random words.

    Raises `TypeError` for arrays of another type or shape.
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
            total = _noisy_count(at_places[i], noise, source + at)
            if not use_words(source, end, at, at + need):
                break
            at += need
            counts[i] = total
        else:
            i = m
    return i


cdef enum:
    ADDED, EMPTY, TOO_LONG


cdef int _add_counts(
    double* g, Py_ssize_t d, double bound, int64_t places, int64_t noise, int64_t* ones, uint64_t* words, Py_ssize_t end
) noexcept nogil:
    """Add to ones (d + 1,) the counts of one gradient g (d,), on 0 to `places`, and one person to the last entry.

    Adds nothing, and says `EMPTY`, if `words` run out; `TOO_LONG` if g is longer than the bound, because it would not
    be protected.
    """
    cdef Py_ssize_t each = 1 + (noise + 63) // 64, start = words[0], j
    cdef double square = 0.0, place
    if start + d * each > end:
        return EMPTY
    for j in range(d):
        g[j] /= bound
        square += g[j] * g[j]
    if not square <= 1 + 2e-9:
        return TOO_LONG
    for j in range(d):
        place = min(max((g[j] + 1.0) * (places / 2.0), 0.0), <double> places)
        g[j] = <double> _noisy_count(place, noise, words + start + j * each)  # exact: far below 2^53
    if not use_words(words, end, start, start + d * each):
        return EMPTY
    for j in range(d):
        ones[j] += <int64_t> g[j]
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
    """Add the `noisy_counts` of the gradients of all records. Returns the number of finished rows.

    Parameters
    ----------
    spec, theta
        The model (see `loops`), and the point of the gradients.
    X, y
        (n, p) and (n,).
    bound
        The largest l2 norm of a vector.
    places, noise
        g and b of `shuffled_sum.VectorSum`.
    ones
        (size + 1,) int64, to which the counts are added; the last entry counts the rows.
    words
        Random words.
    factor
        lambda of gradients with their curvature (see `curvature`); 0 for gradients alone.

    Raises `ArithmeticError` if a vector is longer than the bound, and `TypeError` for arrays of another type or shape.
    """
    cdef Records records
    records_of(spec, theta, X, y, &records)
    cdef int64_t* sums = whole_numbers(ones)
    cdef uint64_t* source = random_words(words)
    cdef Py_ssize_t p = records.at.p, size = len(ones) - 1, end = len(words), i = 0
    cdef int said = ADDED
    check_room(&records.at, factor, size)
    cdef double* row = scratch(p + size + 1)
    cdef double* room = row + p
    with nogil:
        while i < records.X.n:
            vector_of(&records, i, factor, row, room, size)
            said = _add_counts(room, size, bound, places, noise, sums, source, end)
            if said != ADDED:
                break
            i += 1
    wipe(row, p + size + 1)
    if said == TOO_LONG:
        raise ArithmeticError("a gradient is longer than the loss's bound")
    return i


cdef class CountTotal(RecordKernel):
    """`count_ones` for one record.

    Parameters
    ----------
    spec, theta, p, bound, places, noise, ones, factor
        As for `count_ones`, and the number of features.

    Raises `TypeError` for arrays of another type or shape.
    """

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
        self.width, self.room, self.draws = p, p + self._size + 1, True

    cdef bint learn(self, const Rows* X, const Rows* y, double* room, uint64_t* words, Py_ssize_t end) noexcept:
        cdef Records records = Records(self._at, X[0], y[0])
        cdef double* vector = room + self.width
        vector_of(&records, 0, self._factor, room, vector, self._size)
        return (
            _add_counts(vector, self._size, self._bound, self._places, self._noise, self._ones, words, end) == ADDED
        )


def write_ones(cnp.ndarray counts not None, cnp.ndarray out not None):
    """Write packed bits of which the first counts[i] are ones.

    Parameters
    ----------
    counts
        (m,) numbers of ones.
    out
        (m, w) uint8, zeros before; the result.

    Raises `TypeError` for arrays of another type or shape.
    """
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


def permute(cnp.ndarray items not None, Py_ssize_t last, cnp.ndarray words not None):
    """Fisher-Yates: swap each of items[last], ..., items[1] with one of the items up to it, all equally likely.

    The draw is the upper half of a word times the number of choices (at most 2^32), over 2^32; draws that would make it
    uneven are rejected (Lemire 2019). Returns the position at which `words` ran out; 0 at the end.

    Parameters
    ----------
    items
        (n,) uint8, permuted in place.
    last
        The position at which to start, n - 1 at first.
    words
        Random words.

    Raises `TypeError` for arrays of another type or shape.
    """
    cdef uint8_t* at_items = byte_vector(items)
    cdef uint64_t* source = random_words(words)
    cdef Py_ssize_t at = source[0], end = len(words), i = last, start, j
    cdef uint8_t kept
    if not last < len(items):
        raise TypeError("expected a position within the items")
    with nogil:
        while i > 0:
            start = at
            j = draw_below(<uint64_t> i + 1, source, &at, end)
            if j < 0 or not use_words(source, end, start, at):
                break
            kept = at_items[i]
            at_items[i] = at_items[j]
            at_items[j] = kept
            i -= 1
    return max(i, 0)
