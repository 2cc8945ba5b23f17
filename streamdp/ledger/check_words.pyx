"""Check words: 64 bits that reveal a damaged row or page, so that damage cannot restore a spent budget unnoticed.

A check word protects against decay and faults, not against an attacker, who could delete the file as well. The mixing
step multiplies and shifts as in splitmix64: a change of one bit changes the result.
"""

cimport numpy as cnp

from streamdp.privacy.arrays cimport random_words as vector_words
from streamdp.privacy.arrays cimport word_matrix

cnp.import_array()


def check_words(cnp.ndarray keys not None, cnp.ndarray words not None):
    """Return the check words (n,) uint64 of keys (n, 2) uint64 and their rows as uint64 `words`, (n, ROW)."""
    cdef const uint64_t* key = word_matrix(keys)
    cdef const uint64_t* row = word_matrix(words)
    cdef cnp.npy_intp n = cnp.PyArray_DIM(words, 0), i
    cdef cnp.ndarray out = cnp.PyArray_SimpleNew(1, &n, cnp.NPY_UINT64)
    cdef uint64_t* check = vector_words(out)
    with nogil:
        for i in range(n):
            check[i] = check_word(key + 2 * i, row + ROW * i)
    return out
