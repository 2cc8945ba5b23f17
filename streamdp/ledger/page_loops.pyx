"""The compiled loops of `page_codec`, which describes pages. Rows are words here: their uint64 view."""

from libc.stdint cimport int64_t, uint8_t, uint64_t
from libc.string cimport memcpy

cimport numpy as cnp

from streamdp.ledger.check_words import FACTOR, START

from streamdp.ledger.rows cimport ROW
from streamdp.privacy.arrays cimport flags, whole_numbers, word_matrix
from streamdp.privacy.arrays cimport random_words as vector_words

cnp.import_array()

cdef uint64_t _START = START, _FACTOR = FACTOR


cdef struct Pages:
    # The words of many pages; those of page i are from bounds[i] to bounds[i + 1].
    const int64_t* bounds
    const uint64_t* words


cdef struct Groups:
    # As `page_codec.Group`.
    const int64_t* pages
    const int64_t* starts
    const int64_t* order


cdef struct Subjects:
    # The keys, 2 words each, and rows, ROW words each.
    uint64_t* keys
    uint64_t* rows


cdef int _pages_of(content, Pages* out) except -1:
    bounds, words = content
    out.bounds, out.words = whole_numbers(bounds), vector_words(words)
    return 0


cdef int _groups_of(group, Groups* out) except -1:
    pages, starts, order = group
    out.pages, out.starts, out.order = whole_numbers(pages), whole_numbers(starts), whole_numbers(order)
    return 0


cdef inline bint _has(uint64_t mask, int column) noexcept nogil:
    return mask >> column & 1


cdef inline bint _same(const uint64_t* key, const uint64_t* other) noexcept nogil:
    return key[0] == other[0] and key[1] == other[1]


cdef inline uint64_t _mixed(uint64_t mixed, uint64_t word) noexcept nogil:
    mixed = (mixed ^ word) * _FACTOR
    return mixed ^ (mixed >> 31)


cdef uint64_t _check(uint64_t page, const uint64_t* words, int64_t length) noexcept nogil:
    """The check word of a page of this length, whose first word is the place of the check word."""
    cdef uint64_t mixed = _mixed(_START, page)
    cdef int64_t i
    for i in range(1, length):
        mixed = _mixed(mixed, words[i])
    return mixed


cdef int64_t _size(uint64_t page, const uint64_t* words, int64_t length) noexcept nogil:
    """The number of rows of a page; -1 if it is damaged."""
    cdef int width = 2, column
    if length == 0:
        return 0
    if length < 2 or words[1] >> ROW != 0:
        return -1
    for column in range(ROW):
        width += _has(words[1], column)
    if (length - 2) % width != 0 or words[0] != _check(page, words, length):
        return -1
    return (length - 2) // width


cdef void _unpack(const uint64_t* words, int64_t n, Subjects out) noexcept nogil:
    """Copy the n rows of a page."""
    cdef const uint64_t* cells = words + 2 + 2 * n
    cdef int64_t i
    cdef int column
    if n == 0:
        return
    memcpy(out.keys, words + 2, 2 * n * sizeof(uint64_t))
    for column in range(ROW):
        if _has(words[1], column):
            for i in range(n):
                out.rows[ROW * i + column] = cells[i]
            cells += n
        else:
            for i in range(n):
                out.rows[ROW * i + column] = 0


cdef int64_t _pack(uint64_t page, Subjects source, int64_t n, uint64_t* out) noexcept nogil:
    """Write a page of n rows; returns its length."""
    cdef uint64_t mask = 0, some
    cdef int64_t length = 2 + 2 * n, i
    cdef int column
    memcpy(out + 2, source.keys, 2 * n * sizeof(uint64_t))
    for column in range(ROW):
        some = 0
        for i in range(n):
            some |= source.rows[ROW * i + column]
        if some != 0:
            mask |= <uint64_t> 1 << column
            for i in range(n):
                out[length + i] = source.rows[ROW * i + column]
            length += n
    out[1] = mask
    out[0] = _check(page, out, length)
    return length


cdef inline int64_t _find(const uint64_t* key, const uint64_t* keys, int64_t n) noexcept nogil:
    """The place of a key among n keys; n if it is not among them."""
    cdef int64_t j = 0
    while j < n and not _same(keys + 2 * j, key):
        j += 1
    return j


def count_rows(cnp.ndarray pages not None, content, cnp.ndarray sizes not None):
    """Fill `sizes` (p,) int64 with the number of rows of each page; False if a page is damaged.

    `pages` (p,) int64 are the numbers of the pages, and `content` has their words.
    """
    cdef Pages source
    cdef const int64_t* page = whole_numbers(pages)
    cdef int64_t* size = whole_numbers(sizes)
    cdef Py_ssize_t n = cnp.PyArray_DIM(sizes, 0), p
    cdef bint whole = True
    _pages_of(content, &source)
    with nogil:
        for p in range(n):
            size[p] = _size(
                <uint64_t> page[p], source.words + source.bounds[p], source.bounds[p + 1] - source.bounds[p]
            )
            whole &= size[p] >= 0
    return whole


def unpack_rows(content, cnp.ndarray sizes not None, cnp.ndarray keys not None, cnp.ndarray rows not None):
    """Copy all rows of the pages in `content` to `keys` (n, 2) and `rows` (n, ROW) uint64; n is the sum of `sizes`."""
    cdef Pages source
    cdef const int64_t* size = whole_numbers(sizes)
    cdef Subjects out = Subjects(word_matrix(keys), word_matrix(rows))
    cdef Py_ssize_t n = cnp.PyArray_DIM(sizes, 0), p
    _pages_of(content, &source)
    with nogil:
        for p in range(n):
            _unpack(source.words + source.bounds[p], size[p], out)
            out.keys += 2 * size[p]
            out.rows += ROW * size[p]


def pack_page(uint64_t page, cnp.ndarray keys not None, cnp.ndarray rows not None, cnp.ndarray out not None):
    """Write the page of a number to `out`, of at least 2 + (2 + ROW) * n words; returns the number of its words.

    `keys` (n, 2) and `rows` (n, ROW) are uint64.
    """
    cdef Subjects source = Subjects(word_matrix(keys), word_matrix(rows))
    cdef uint64_t* target = vector_words(out)
    cdef int64_t n = cnp.PyArray_DIM(keys, 0), length
    with nogil:
        length = _pack(page, source, n, target)
    return length


cdef void _pick(
    Groups group, Pages source, const int64_t* sizes, Py_ssize_t count, Subjects wanted, uint8_t* found
) noexcept nogil:
    """As `pick_rows`."""
    cdef const uint64_t* words
    cdef Py_ssize_t p
    cdef int64_t place, i, j, n
    cdef int column
    for p in range(count):
        n = sizes[p]
        for place in range(group.starts[p], group.starts[p + 1]):
            words = source.words + source.bounds[p]
            i = group.order[place]
            j = _find(wanted.keys + 2 * i, words + 2, n)
            if j == n:
                continue
            found[i] = True
            j += 2 + 2 * n
            for column in range(ROW):
                if _has(words[1], column):
                    wanted.rows[ROW * i + column] = words[j]
                    j += n


def pick_rows(
    group,
    content,
    cnp.ndarray sizes not None,
    cnp.ndarray keys not None,
    cnp.ndarray rows not None,
    cnp.ndarray found not None,
):
    """Read the rows of some subjects from their pages: see `page_codec.pick` for `group`, `content` and the others.

    `sizes` (p,) int64 are those of `count_rows`; the rows are viewed as uint64.
    """
    cdef Pages source
    cdef Groups groups
    cdef const int64_t* size = whole_numbers(sizes)
    cdef Subjects wanted = Subjects(word_matrix(keys), word_matrix(rows))
    cdef uint8_t* there = flags(found)
    cdef Py_ssize_t count = cnp.PyArray_DIM(sizes, 0)
    _groups_of(group, &groups)
    _pages_of(content, &source)
    with nogil:
        _pick(groups, source, size, count, wanted, there)


cdef void _merge(
    Groups group,
    Pages source,
    int64_t* sizes,
    Py_ssize_t count,
    Subjects new,
    Subjects page,
    uint64_t* out,
    int64_t* ends,
) noexcept nogil:
    """As `merge_rows`; `page` has space for the rows of any page."""
    cdef int64_t end = 0, place, i, j, before, n
    cdef Py_ssize_t p
    for p in range(count):
        before = n = sizes[p]
        _unpack(source.words + source.bounds[p], n, page)
        for place in range(group.starts[p], group.starts[p + 1]):
            i = group.order[place]
            j = _find(new.keys + 2 * i, page.keys, before)
            if j == before:
                j = n
                n += 1
                memcpy(page.keys + 2 * j, new.keys + 2 * i, 2 * sizeof(uint64_t))
            memcpy(page.rows + ROW * j, new.rows + ROW * i, ROW * sizeof(uint64_t))
        sizes[p] = n
        end += _pack(<uint64_t> group.pages[p], page, n, out + end)
        ends[p] = end


def merge_rows(
    group,
    content,
    cnp.ndarray sizes not None,
    cnp.ndarray keys not None,
    cnp.ndarray rows not None,
    cnp.ndarray scratch not None,
    cnp.ndarray out not None,
    cnp.ndarray ends not None,
):
    """Write pages with some rows replaced or added. See `page_codec.merge`.

    `sizes` (p,) int64, from `count_rows`, are changed to the new numbers of rows. `keys` and `rows` are the new ones.
    `scratch` (m, 2 + ROW) is for the m rows of the fullest new page. `out` gets the words of the new pages, and `ends`
    (p,) int64 where each ends in it. All but `sizes` and `ends` are uint64.
    """
    cdef Pages source
    cdef Groups groups
    cdef int64_t* size = whole_numbers(sizes)
    cdef Subjects new = Subjects(word_matrix(keys), word_matrix(rows))
    cdef uint64_t* room = word_matrix(scratch)
    cdef Subjects page = Subjects(room, room + 2 * cnp.PyArray_DIM(scratch, 0))
    cdef uint64_t* target = vector_words(out)
    cdef int64_t* end = whole_numbers(ends)
    cdef Py_ssize_t count = cnp.PyArray_DIM(sizes, 0)
    _groups_of(group, &groups)
    _pages_of(content, &source)
    with nogil:
        _merge(groups, source, size, count, new, page, target, end)
