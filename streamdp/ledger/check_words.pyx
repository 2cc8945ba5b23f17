"""Check words: 64 bits that reveal a damaged row or page, so that damage cannot restore a spent budget unnoticed.

A check word protects against decay and faults, not against an attacker, who could delete the file as well. The mixing
step multiplies and shifts as in splitmix64: a change of one bit changes the result.
"""

from libc.stdint cimport int64_t

cimport numpy as cnp

from streamdp.privacy.arrays cimport random_words as vector_words
from streamdp.privacy.arrays cimport whole_numbers, word_matrix

cnp.import_array()


def check_words(cnp.ndarray keys not None, cnp.ndarray words not None):
    """Return the check words (n,) uint64 of rows.

    Parameters
    ----------
    keys
        (n, 2) uint64, the keyed hashes of the subjects.
    words
        (n, ROW) uint64, a view of their rows.
    """
    cdef const uint64_t* key = word_matrix(keys)
    cdef const uint64_t* row = word_matrix(words)
    cdef cnp.npy_intp n = cnp.PyArray_DIM(words, 0), i
    cdef cnp.ndarray out = cnp.PyArray_SimpleNew(1, &n, cnp.NPY_UINT64)
    cdef uint64_t* check = vector_words(out)
    with nogil:
        for i in range(n):
            check[i] = check_word(key + 2 * i, row + ROW * i)
    return out


def update_checks(
    cnp.ndarray places not None, cnp.ndarray keys not None, cnp.ndarray words not None, cnp.ndarray checks not None
):
    """Compute the check words of some rows in place, without a copy of millions of rows.

    Parameters
    ----------
    places
        (m,) int64, the rows to check.
    keys, words
        (n, 2) and (n, ROW) uint64, as in `check_words`.
    checks
        (n,) uint64. Changed at `places`.
    """
    cdef const int64_t* place = whole_numbers(places)
    cdef const uint64_t* key = word_matrix(keys)
    cdef const uint64_t* row = word_matrix(words)
    cdef uint64_t* check = vector_words(checks)
    cdef Py_ssize_t m = cnp.PyArray_DIM(places, 0), i
    with nogil:
        for i in range(m):
            check[place[i]] = check_word(key + 2 * place[i], row + ROW * place[i])
