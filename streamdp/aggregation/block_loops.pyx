"""Compiled loops of blocks: which cell a row is in, and what rows add to sums or report, in whole numbers."""

from libc.math cimport rint
from libc.stdint cimport int64_t, uint64_t
from libc.string cimport memcpy

import numpy as np

cimport numpy as cnp

from streamdp.aggregation.kernels cimport ADDED, TOO_LONG, add_counts
from streamdp.optim.record_kernel cimport RecordKernel
from streamdp.privacy.arrays cimport (
    Rows,
    entry,
    matrix,
    random_words,
    rows_of,
    scratch,
    sdp_memset,
    vector,
    whole_numbers,
    wipe,
    word_matrix,
)
from streamdp.privacy.fresh cimport fresh_words

cnp.import_array()

cdef enum:
    COUNTS, ORDERED, VALUES, THIRDS
    HALF = 32768  # of 2^16

cdef double GRID = 9007199254740992.0  # 2^53


cdef class Places:
    """Sorts rows by several columns.

    `sorters`: the column, the number of kinds, and the inner edges (kinds - 1,) of bins, or None: then the column is
    the kind. The kinds of the last sorter change first.
    """

    cdef readonly tuple sorters
    cdef cnp.ndarray _columns, _counts, _starts, _edges
    cdef int64_t* _column
    cdef int64_t* _count
    cdef int64_t* _start
    cdef double* _edge
    cdef Py_ssize_t _several
    cdef readonly Py_ssize_t count

    def __init__(self, sorters):
        self.sorters = tuple(sorters)
        edges = [np.empty(0) if inner is None else np.asarray(inner, dtype=float) for _, _, inner in self.sorters]
        if any(len(inner) not in (0, count - 1) for inner, (_, count, _) in zip(edges, self.sorters)):
            raise TypeError("expected as many inner edges as kinds but one")
        ends = np.cumsum([0, *map(len, edges)])
        starts = [-1 if inner is None else end for end, (_, _, inner) in zip(ends, self.sorters)]
        self._several, self._edges = len(self.sorters), np.concatenate([np.empty(0), *edges])
        self._columns = np.array([column for column, _, _ in self.sorters], dtype=np.int64)
        self._counts = np.array([count for _, count, _ in self.sorters], dtype=np.int64)
        self._starts = np.array(starts, dtype=np.int64)
        self._column, self._count = whole_numbers(self._columns), whole_numbers(self._counts)
        self._start, self._edge = whole_numbers(self._starts), vector(self._edges)
        self.count = int(np.prod(self._counts))

    def __reduce__(self):
        return Places, (self.sorters,)

    def width(self):
        """How many columns rows need at least."""
        return max([column + 1 for column, _, _ in self.sorters], default=0)

    def of(self, cnp.ndarray X not None):
        """The place (n,) of each row of X (n, p)."""
        cdef Rows rows
        cdef Py_ssize_t i
        rows_of(X, &rows)
        if rows.width < self.width():
            raise TypeError("the rows have too few columns")
        cdef cnp.ndarray out = np.empty(rows.n, dtype=np.int64)
        cdef int64_t* place = whole_numbers(out)
        for i in range(rows.n):
            place[i] = self._of(&rows, i)
        return out

    cdef int64_t _of(self, const Rows* X, Py_ssize_t i) noexcept:
        cdef int64_t place = 0, kind, low, high, middle
        cdef Py_ssize_t k
        cdef double value
        for k in range(self._several):
            low, high, value = 0, self._count[k] - 1, entry(X, i, self._column[k])
            if self._start[k] < 0:
                low = min(max(<int64_t> value, 0), high)
            else:
                while low < high:
                    middle = (low + high) // 2
                    if value < self._edge[self._start[k] + middle]:
                        high = middle
                    else:
                        low = middle + 1
            place = place * self._count[k] + low
        return place


cdef class Summed:
    """What rows add for one block, to its part of the sums from `at` on.

    `kind`: the number of the class of the block. `places`: the cells, or the groups of a value in the `column`. `bins`:
    the number of ordered cells of a group. `scale`: the factor of its numbers, before they are rounded. `squares`: see
    `cells.Values`. `lags`: (bins,) what a row adds to the ordered cell so many after its own, times the scale.
    """

    cdef Places _places
    cdef int _kind
    cdef Py_ssize_t _column, _groups, _bins
    cdef readonly Py_ssize_t at, size
    cdef double _scale, _squares
    cdef cnp.ndarray _lags, _reals, _filled
    cdef int64_t* _lag
    cdef double* _real
    cdef int64_t* _count

    def __init__(self, Py_ssize_t at, int kind, Places places not None, column, bins, double scale, squares, lags):
        self.at, self._kind, self._places, self._scale, self._squares = at, kind, places, scale, squares
        self._column, self._groups, self._bins = column, places.count, bins
        self._reals = np.array(lags, dtype=float)
        self._lags = np.rint(self._reals).astype(np.int64)
        self._filled = np.zeros(places.count if kind == ORDERED else 0, dtype=np.int64)
        self._lag, self._real, self._count = whole_numbers(self._lags), vector(self._reals), whole_numbers(self._filled)
        if kind == ORDERED and (len(self._lags) != bins or places.count % bins):
            raise TypeError("expected a number for each of the ordered bins")
        self.size = places.count
        if kind == VALUES:
            self.size = 2 if places.count == 1 else 3 * places.count
        elif kind == THIRDS:
            self.size = 3 * places.count

    def width(self):
        """How many columns rows need at least."""
        return max(self._places.width(), self._column + 1)

    cdef inline Py_ssize_t _numbers(self, const Rows* X, Py_ssize_t i, double* three) noexcept:
        """Write what a row adds to its place, and to the places so many groups after; return how many numbers."""
        cdef Py_ssize_t more = self._groups > 1
        cdef double v
        if self._kind == COUNTS:
            three[0] = self._scale
            return 1
        v = entry(X, i, self._column)
        if self._kind == THIRDS:
            three[0] = (1.0 - v) / 2.0 * ((1.0 - v) / 2.0) * self._scale
            three[1] = (1.0 - v * v) / 2.0 * self._scale
            three[2] = (1.0 + v) / 2.0 * ((1.0 + v) / 2.0) * self._scale
            return 3
        three[0] = self._scale
        three[more] = v * self._scale
        three[more + 1] = self._squares * (2.0 * (v * v) - 1.0) * self._scale
        return more + 2

    cdef void _write(self, const Rows* X, Py_ssize_t i, double* out) noexcept:
        """Write the vector of a row, without rounding, to zeros."""
        cdef double three[3]
        cdef int64_t place = self._places._of(X, i)
        cdef Py_ssize_t j
        out += self.at + place
        if self._kind == ORDERED:
            for j in range(self._bins - place % self._bins):
                out[j] = self._real[j]
            return
        for j in range(self._numbers(X, i, three)):
            out[j * self._groups] = three[j]
        sdp_memset(three, 0, sizeof(three))

    cdef void _add(self, const Rows* X, int64_t* total) noexcept:
        cdef Py_ssize_t i, j, left
        cdef int64_t place, times
        cdef int64_t* out
        cdef double three[3]
        total += self.at
        for i in range(X.n):
            place = self._places._of(X, i)
            if self._kind == ORDERED:
                self._count[place] += 1
                continue
            for j in range(self._numbers(X, i, three)):
                total[place + j * self._groups] += <int64_t> rint(three[j])
        sdp_memset(three, 0, sizeof(three))
        if self._kind == ORDERED:  # each filled cell once
            for i in range(X.n):
                place = self._places._of(X, i)
                times = self._count[place]
                if times:
                    self._count[place], left, out = 0, self._bins - place % self._bins, total + place
                    for j in range(left):
                        out[j] += times * self._lag[j]


cdef class BlockSums:
    """What rows add to the sums of several blocks, one after the other; see `Summed` for the numbers of each of `given`."""

    cdef readonly tuple given
    cdef list _blocks
    cdef readonly Py_ssize_t size, width

    def __init__(self, given):
        self.given, self._blocks, self.size, self.width = tuple(given), [], 0, 0
        for one in self.given:
            block = Summed(self.size, *one)
            self._blocks.append(block)
            self.size += block.size
            self.width = max(self.width, block.width())

    def __reduce__(self):
        return BlockSums, (self.given,)

    def add(self, cnp.ndarray X not None, cnp.ndarray total not None):
        """Add rows X (n, p) to the `total` (size,), int64, in place."""
        cdef Rows rows
        rows_of(X, &rows)
        if rows.width < self.width or len(total) != self.size:
            raise TypeError("the rows or the sums have too few columns")
        self._add(&rows, whole_numbers(total))

    cdef void _add(self, const Rows* X, int64_t* total) noexcept:
        for block in self._blocks:
            (<Summed> block)._add(X, total)

    cdef void _write(self, const Rows* X, Py_ssize_t i, double* out) noexcept:
        for block in self._blocks:
            (<Summed> block)._write(X, i, out)

    def vectors(self, cnp.ndarray X not None):
        """The vectors (n, size) of rows X (n, p), without rounding."""
        cdef Rows rows
        cdef Py_ssize_t i
        rows_of(X, &rows)
        if rows.width < self.width:
            raise TypeError("the rows have too few columns")
        cdef cnp.ndarray out = np.zeros((rows.n, self.size))
        for i in range(rows.n):
            self._write(&rows, i, matrix(out) + i * self.size)
        return out


cdef class RowSums(RecordKernel):
    """`BlockSums.add` for one record of p features, to the same total."""

    cdef BlockSums _blocks
    cdef int64_t* _total

    def __init__(self, BlockSums blocks not None, cnp.ndarray total not None, Py_ssize_t p):
        if p < blocks.width or len(total) != blocks.size:
            raise TypeError("the rows or the sums have too few columns")
        self._kept, self._blocks, self._total = total, blocks, whole_numbers(total)
        self.width, self.room, self.draws = p, 0, False

    cdef bint learn(self, const Rows* X, const Rows* y, double* room, uint64_t* words, Py_ssize_t end) noexcept:
        self._blocks._add(X, self._total)
        return True


cdef class MixedRows(RecordKernel):
    """Adds the noisy counts of rows of p features to the ones (size + 1,) of a shuffler: see `kernels.noisy_counts`.

    `places`, `noise`: g and b of `vector_sum.VectorSum`, whose bound is 1.
    """

    cdef BlockSums _blocks
    cdef int64_t _places, _noise
    cdef int64_t* _ones

    def __init__(self, BlockSums blocks not None, int64_t places, int64_t noise, cnp.ndarray ones not None, Py_ssize_t p):
        if p < blocks.width or len(ones) != blocks.size + 1:
            raise TypeError("the rows or the sums have too few columns")
        self._kept, self._blocks, self._places, self._noise = ones, blocks, places, noise
        self._ones = whole_numbers(ones)
        self.width, self.room, self.draws = p, 2 * blocks.size, True

    def add(self, cnp.ndarray X not None, cnp.ndarray words not None):
        """Add rows X (n, p) until the words run out; return how many were added."""
        cdef Rows rows
        cdef uint64_t* source = random_words(words)
        cdef Py_ssize_t i = 0, end = len(words)
        cdef int said = ADDED
        rows_of(X, &rows)
        if rows.width < self._blocks.width:
            raise TypeError("the rows have too few columns")
        cdef double* room = scratch(self.room)
        while i < rows.n and said == ADDED:
            said = self._count(&rows, i, room, source, end)
            i += said == ADDED
            sdp_memset(room, 0, self.room * sizeof(double))
        wipe(room, self.room)
        if said == TOO_LONG:
            raise ArithmeticError("a vector is longer than 1")
        return i

    cdef int _count(self, const Rows* X, Py_ssize_t i, double* room, uint64_t* words, Py_ssize_t end) noexcept:
        cdef Py_ssize_t size = self._blocks.size
        self._blocks._write(X, i, room)
        return add_counts(
            room, size, 1.0, self._places, self._noise, <int64_t*> (room + size), self._ones, words, end
        )

    cdef bint learn(self, const Rows* X, const Rows* y, double* room, uint64_t* words, Py_ssize_t end) noexcept:
        return self._count(X, 0, room, words, end) == ADDED


cdef class Reporter:
    """Reports of rows about the cells of one statistic: see `local_counts.Oracle`.

    `places`: the cells, or the groups of a number in the `column`; -1 for cells. `levels`: how many levels a number is
    rounded to at random; 0 if its cell is the side of the `threshold` (groups,) of its group. `counts`: (cells + 1,)
    int64, the reports by cell and their number; it changes in place. `full`: the number of reports that are not added one
    by one; 0: there is none. `unary`: whether a report has a bit for each cell; `other`, of 2^16, how often that of another
    cell is 1, and else `keep`, of 2^64, how often the cell is kept.
    """

    cdef Places _places
    cdef tuple _kept
    cdef Py_ssize_t _column, _levels, _cells, _first
    cdef readonly Py_ssize_t words
    cdef const double* _threshold
    cdef int64_t* _count
    cdef int64_t _full
    cdef uint64_t _other, _keep
    cdef bint _unary

    def __init__(
        self, Places places not None, column, levels, threshold, cnp.ndarray counts not None, full, unary, other, keep
    ):
        self._places, self._column, self._levels, self._full = places, column, levels, full
        self._unary, self._other, self._keep = unary, other, keep
        self._cells, self._count = len(counts) - 1, whole_numbers(counts)
        self._threshold = NULL if threshold is None else vector(threshold)
        self._kept = counts, threshold
        self._first = threshold is None
        self.words = self._first + ((self._cells + 3) // 4 if unary else 2)
        kinds = 1 if column < 0 else levels if threshold is None else 2
        if places.count * kinds != self._cells or (threshold is not None and len(threshold) != places.count):
            raise TypeError("expected a count for each cell, and a threshold for each group")
        if threshold is None and column >= 0 and levels < 2:
            raise TypeError("expected two levels or more")

    def width(self):
        """How many columns rows need at least."""
        return max(self._places.width(), self._column + 1)

    def add(self, cnp.ndarray X not None, cnp.ndarray words not None):
        """Add the reports of rows X (n, p), by random words (n, `words`) or more of them."""
        cdef Rows rows
        cdef cnp.ndarray flat = np.ascontiguousarray(words)
        cdef const uint64_t* word = word_matrix(flat)
        cdef Py_ssize_t each = cnp.PyArray_DIM(flat, 1), i
        rows_of(X, &rows)
        if rows.width < self.width() or cnp.PyArray_DIM(flat, 0) != rows.n or each < self.words:
            raise TypeError("the rows have too few columns or words")
        for i in range(rows.n):
            self._report(&rows, i, word + i * each)
        if flat is not words:
            flat[...] = 0

    cdef void _report(self, const Rows* X, Py_ssize_t i, const uint64_t* word) noexcept:
        cdef int64_t cell = self._places._of(X, i), low
        cdef double value, at
        cdef uint64_t bits
        cdef Py_ssize_t j
        if self._column >= 0:
            value = entry(X, i, self._column)
            if self._threshold != NULL:
                cell = 2 * cell + (value > self._threshold[cell])
            else:
                at = (min(max(value, -1.0), 1.0) + 1.0) / 2.0 * (self._levels - 1)
                low = min(<int64_t> at, self._levels - 2)
                cell = cell * self._levels + low + (<double> (word[0] >> 11) / GRID < at - low)
        word += self._first
        if self._unary:
            for j in range(self._cells):
                bits = (word[j // 4] >> 16 * (j % 4)) & 0xFFFF
                self._count[j] += bits < (HALF if j == cell else self._other)
        else:
            self._count[cell if word[0] < self._keep else <int64_t> (<double> (word[1] >> 11) / GRID * self._cells)] += 1
        self._count[self._cells] += 1


cdef class DrawnReport(RecordKernel):
    """Reports about one of several statistics, for one record of p features: what `Drawn.learn` does with one row.

    `parts`: what reports. `until`: (parts - 1,) where the share of each ends. `seen`: (1,) int64, counts the records. `rng`:
    has fresh words.
    """

    cdef tuple _parts
    cdef object _rng
    cdef const double* _until
    cdef int64_t* _seen
    cdef Py_ssize_t _words
    cdef bint _fresh

    def __init__(self, parts, cnp.ndarray until not None, cnp.ndarray seen not None, Py_ssize_t p, rng, bint fresh):
        self._parts, self._kept, self._rng = tuple(parts), (until, seen), rng
        self._until, self._seen, self._fresh = vector(until), whole_numbers(seen), fresh
        self._words = 1 + max([part.words for part in self._parts])
        if len(until) != len(self._parts) - 1 or any(part.width() > p for part in self._parts):
            raise TypeError("the rows or the shares are too few")
        self.width, self.room, self.draws = p, self._words, False

    cdef bint learn(self, const Rows* X, const Rows* y, double* room, uint64_t* words, Py_ssize_t end) noexcept:
        cdef Reporter part
        cdef uint64_t* word = <uint64_t*> room
        cdef cnp.ndarray drawn
        cdef Py_ssize_t k = 0
        for part in self._parts:
            if part._full and part._count[part._cells] + 1 >= part._full:
                return False
        if self._fresh:
            if not fresh_words(word, self._words):
                return False
        else:
            drawn = self._rng.draw(self._words)
            memcpy(word, random_words(drawn), self._words * sizeof(uint64_t))
        while k < len(self._parts) - 1 and self._until[k] <= <double> (word[0] >> 11) / GRID:
            k += 1
        self._seen[0] += 1
        (<Reporter> self._parts[k])._report(X, 0, word + 1)
        return True
