"""The compiled hash table of `row_cache`: an open index over the keys of rows, with linear probing.

The keys are hashes that are random under a secret key, so their low bits are the first place to look. An entry of the
index is a row number plus 1, or 0. The length of the index is a power of two, above the number of rows.
"""

from libc.stdint cimport int32_t, int64_t, uint8_t, uint64_t

cimport numpy as cnp

from streamdp.ledger.rows cimport NOBODY
from streamdp.privacy.arrays cimport flags, short_numbers, whole_numbers, word_matrix

cnp.import_array()


cdef int64_t add_keys(
    const uint64_t* wanted,
    const uint8_t* present,
    Py_ssize_t m,
    uint64_t* keys,
    int32_t* index,
    uint64_t mask,
    int64_t n,
    int64_t* slots,
) noexcept nogil:
    """As `find_or_add` over the first n rows; returns the new n."""
    cdef uint64_t place
    cdef int64_t row
    cdef Py_ssize_t i
    for i in range(m):
        if not present[i]:
            slots[i] = NOBODY
            continue
        place = wanted[2 * i + 1] & mask
        while True:
            row = index[place] - 1
            if row < 0:
                row = n
                keys[2 * n] = wanted[2 * i]
                keys[2 * n + 1] = wanted[2 * i + 1]
                n += 1
                index[place] = <int32_t> n
                break
            if keys[2 * row] == wanted[2 * i] and keys[2 * row + 1] == wanted[2 * i + 1]:
                break
            place = (place + 1) & mask
        slots[i] = row
    return n


def find_or_add(
    cnp.ndarray wanted not None,
    cnp.ndarray present not None,
    cnp.ndarray keys not None,
    cnp.ndarray index not None,
    cnp.ndarray asked not None,
):
    """Return the row number (m,) int64 of each key in `wanted`, (m, 2) uint64; an unknown key gets the next row.

    Without a subject, where `present` (m,) bool is False, it is `rows.NOBODY`. `keys` (n, 2) uint64 are those of the
    rows, with space for m more, `index` is int32, and `asked` (1,) int64 is the number of rows. These three are
    changed.
    """
    cdef const uint64_t* want = word_matrix(wanted)
    cdef const uint8_t* there = flags(present)
    cdef uint64_t* key = word_matrix(keys)
    cdef int32_t* entry = short_numbers(index)
    cdef int64_t* rows = whole_numbers(asked)
    cdef cnp.npy_intp m = cnp.PyArray_DIM(wanted, 0)
    cdef uint64_t mask = cnp.PyArray_DIM(index, 0) - 1
    cdef cnp.ndarray slots = cnp.PyArray_SimpleNew(1, &m, cnp.NPY_INT64)
    cdef int64_t* slot = whole_numbers(slots)
    with nogil:
        rows[0] = add_keys(want, there, m, key, entry, mask, rows[0], slot)
    return slots
