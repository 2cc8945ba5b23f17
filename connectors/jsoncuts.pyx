"""The compiled pass of `jsonpieces` over the bytes of a JSON object, without the interpreter's lock."""

from libc.stdint cimport int64_t, uint8_t

import numpy as np

cdef enum:
    DEPTH = 64


def find_cuts(const uint8_t[::1] text not None, const uint8_t[::1] key not None, Py_ssize_t apart, Py_ssize_t most):
    """Find the array of `key`, with its quotes, in the object that is the whole `text`, and where it may be cut.

    Returns None if brackets do not match or are nested more than 64 deep; else the most values of one element, or
    outside of the array, at most about `most`; and the places (n,) int64: of the opening bracket, of commas between
    elements that are at least `apart` bytes from each other, and of the closing bracket. Without the array there are
    no places.
    """
    places = np.empty(text.shape[0] // apart + 3, np.int64)
    cdef int64_t[::1] cuts = places
    cdef Py_ssize_t n = text.shape[0], i = 0, depth = 0, found = 0, start, j, outside = 0, inside = 0, largest = 0
    cdef uint8_t c
    cdef uint8_t[DEPTH] closing
    cdef bint matches = True, is_key = False, within = False
    with nogil:
        while i < n:
            c = text[i]
            if c == c'"':
                start = i
                i += 1
                while i < n and text[i] != c'"':
                    i += 2 if text[i] == c"\\" else 1
                if depth == 1:
                    is_key = i + 1 - start == key.shape[0] and i < n
                    for j in range(key.shape[0]):
                        is_key = is_key and text[start + j] == key[j]
            elif c == c"{" or c == c"[":
                if depth == DEPTH:
                    matches = False
                    break
                closing[depth] = c"}" if c == c"{" else c"]"
                depth += 1
                if depth == 2 and c == c"[" and is_key and not found:
                    within = True
                    cuts[0] = i
                    found = 1
                    inside = 0
            elif c == c"}" or c == c"]":
                depth -= 1
                if depth < 0 or closing[depth] != c:
                    matches = False
                    break
                if within and depth == 1:
                    within = False
                    cuts[found] = i
                    found += 1
            elif c == c",":
                if not within:
                    outside += 1
                    if depth == 1:
                        is_key = False
                elif depth == 2:
                    inside = 0
                    if i - cuts[found - 1] >= apart:
                        cuts[found] = i
                        found += 1
                else:
                    inside += 1
                    if inside > largest:
                        largest = inside
                if largest > most or outside > most:
                    break
            i += 1
    if not matches or (i >= n and depth):
        return None
    return max(largest, outside) + 1, places[:found]
