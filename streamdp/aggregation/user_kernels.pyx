"""Compiled loops of local and central means: intervals that reports name, distances, the Hadamard transform.

Words come from `entropy` as an array whose first entry is the position. A loop that runs out of words stops before the
row that it cannot finish, returns the number of finished rows, and is called again with more words.

The functions for Python raise `TypeError` for arrays of another type or shape.
"""

from libc.math cimport INFINITY, sqrt
from libc.stdint cimport int64_t, uint8_t, uint64_t

cimport numpy as cnp

from streamdp.privacy.arrays cimport byte_matrix, matrix, random_words, scratch, vector, whole_numbers, wipe
from streamdp.privacy.samplers cimport draw_below, use_words

cnp.import_array()


def name_intervals(
    cnp.ndarray truth not None, Py_ssize_t picks, uint64_t keep, cnp.ndarray out not None, cnp.ndarray words not None
):
    """Write ones into the rows of `out` (n, t) uint8, zeros before, for the intervals that reports name.

    A report has `picks` intervals. The true one, truth[i] from 0 to t - 1, is among them if the next of the random
    words is below `keep`, 2^64 times its probability. The rest is a uniform choice of the other t - 1 (Floyd 1987).
    Returns the number of finished rows.
    """
    cdef int64_t* true = whole_numbers(truth)
    cdef uint8_t* named = byte_matrix(out)
    cdef uint64_t* source = random_words(words)
    cdef Py_ssize_t n = len(truth), t = out.shape[1], at = source[0], end = len(words), i, start, last, j, place, more
    cdef uint8_t* row
    cdef bint kept, done
    if out.shape[0] != n or not 0 <= picks <= t or (n and not 0 <= truth.min() <= truth.max() < t):
        raise TypeError("expected true intervals and a row for each")
    with nogil:
        for i in range(n):
            start, row = at, named + i * t
            if at >= end:
                break
            kept = source[at] < keep
            at += 1
            more = picks - 1 if kept else picks
            done = True
            for last in range(t - 1 - more, t - 1):
                j = draw_below(<uint64_t> last + 1, source, &at, end)
                if j < 0:
                    done = False
                    break
                place = j if j < true[i] else j + 1  # the others, with the true one left out
                if row[place] == 1:
                    place = last if last < true[i] else last + 1
                row[place] = 1
            if kept:
                row[true[i]] = 1
            if not done or not use_words(source, end, start, at):
                for j in range(t):
                    row[j] = 0
                break
        else:
            i = n
    return i


def transform(cnp.ndarray V not None):
    """Multiply the rows of V (n, D) by the orthonormal Hadamard matrix, in place; D is a power of two."""
    cdef double* rows = matrix(V)
    cdef Py_ssize_t n = V.shape[0], D = V.shape[1], i, j, half, begin
    cdef double* row
    cdef double a, b, scale
    if D & (D - 1):
        raise TypeError("expected rows whose length is a power of two")
    scale = 1.0 / sqrt(<double> D)
    with nogil:
        for i in range(n):
            row = rows + i * D
            half = 1
            while half < D:
                begin = 0
                while begin < D:
                    for j in range(begin, begin + half):
                        a, b = row[j], row[j + half]
                        row[j], row[j + half] = a + b, a - b
                    begin += 2 * half
                half *= 2
            for j in range(D):
                row[j] *= scale


cdef Py_ssize_t _first(const double* sorted_radii, Py_ssize_t n, double limit) noexcept nogil:
    """The number of sorted radii below the limit; 0 if the limit is NaN."""
    cdef Py_ssize_t low = 0, high = n, middle
    while low < high:
        middle = (low + high) // 2
        if sorted_radii[middle] < limit:
            low = middle + 1
        else:
            high = middle
    return low


cdef enum:
    BLOCK = 32  # vectors of a block; its copy fits the first-level cache for d up to a hundred. Also in `range` below
    CHECK = 16  # coordinates after which the loop tests whether the whole block is far already; in `range` below, too


def count_near(
    cnp.ndarray points not None,
    cnp.ndarray order not None,
    cnp.ndarray sorted_radii not None,
    double distance,
    double well,
    cnp.ndarray counts not None,
):
    """Add to each of the counts (n,) the number of other points (n, d) within a distance (see `pairwise`).

    `order` (n,) int64 sorts the points by their radii, `sorted_radii` are these, and `well` is the relative difference
    of radii that rounding cannot change.
    """
    cdef double* rows = matrix(points)
    cdef int64_t* place = whole_numbers(order)
    cdef double* radius = vector(sorted_radii)
    cdef int64_t* out = whole_numbers(counts)
    cdef Py_ssize_t n = points.shape[0], d = points.shape[1], begin, size, near_end, far_end, i, j, k, first, start, row
    if not len(order) == len(sorted_radii) == len(counts) == n:
        raise TypeError("expected a place, a radius and a count for each point")
    cdef double limit = distance * distance, surely = distance * (1 - well), hardly = distance * (1 + well)
    cdef double squares[BLOCK]
    cdef int64_t found[BLOCK]
    cdef int64_t near, one
    cdef double x, difference, least
    cdef double* tile = scratch(d * BLOCK + n + 1)
    cdef double* sure = tile + d * BLOCK  # sure[i] is added to what the points before i find; exact below 2^53
    cdef double before = 0.0
    with nogil:
        for begin in range(0, n, 32):
            size = min(<Py_ssize_t> BLOCK, n - begin)
            near_end = _first(radius, begin, surely - radius[begin + size - 1])
            far_end = _first(radius, begin, radius[begin] * (1 - 2 * well) - hardly)
            for j in range(BLOCK):
                found[j] = near_end
            sure[near_end] += size
            for k in range(d):
                for j in range(size):
                    tile[k * BLOCK + j] = rows[place[begin + j] * d + k]
                for j in range(size, BLOCK):
                    tile[k * BLOCK + j] = INFINITY
            for i in range(max(near_end, far_end), begin + size - 1):
                first = max(<Py_ssize_t> 0, i + 1 - begin)  # each pair once
                row = place[i]
                for j in range(BLOCK):
                    squares[j] = 0.0
                for start in range(0, d, 16):
                    for k in range(start, min(start + <Py_ssize_t> CHECK, d)):
                        x = rows[row * d + k]
                        for j in range(BLOCK):
                            difference = tile[k * BLOCK + j] - x
                            squares[j] += difference * difference
                    least = squares[first]
                    for j in range(first, size):
                        least = min(least, squares[j])
                    if least > limit:
                        break
                near = 0
                for j in range(first, BLOCK):
                    one = squares[j] <= limit
                    near += one
                    found[j] += one
                out[row] += near
            for j in range(size):
                out[place[begin + j]] += found[j]
        for i in range(n - 1, -1, -1):
            before += sure[i + 1]
            out[place[i]] += <int64_t> before
    wipe(tile, d * BLOCK + n + 1)
