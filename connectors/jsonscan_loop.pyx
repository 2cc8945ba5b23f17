"""The compiled pass of `jsonrows` over the bytes of a block."""

from libc.stdint cimport int64_t, uint8_t
from libc.string cimport memcmp, memcpy

import numpy as np

# The unit separator and the line feed divide the table into cells and rows. No JSON string has a control character that
# is not escaped.
cpdef enum:
    CELL = 31
    ROW = 10


cdef struct Keys:
    # Key k is chars[bounds[k]:bounds[k + 1]]: first the keys of numeric columns, then the other declared keys, then
    # undeclared keys in the order in which they were met. There is space for `most` keys and `size` characters.
    uint8_t* chars
    int64_t* bounds
    Py_ssize_t known
    Py_ssize_t most
    Py_ssize_t size


cdef struct Number:
    # Where a number ends, -1 if it is not certain; and whether `repr` of its value is the same text.
    Py_ssize_t end
    bint as_written


cdef inline Py_ssize_t _skip(const uint8_t* text, Py_ssize_t i, Py_ssize_t end) noexcept nogil:
    """Where the white space at i ends."""
    while text[i] <= c" " and i < end and (text[i] == c" " or text[i] == 9 or text[i] == 10 or text[i] == 13):
        i += 1
    return i


cdef inline Py_ssize_t _string_end(const uint8_t* text, Py_ssize_t i) noexcept nogil:
    """The place of the quote that ends the string, or of an escape or a control character, which is not certain."""
    while text[i] != c'"' and text[i] != c"\\" and text[i] >= c" ":
        i += 1
    return i


cdef inline bint _is_key(const uint8_t* text, Py_ssize_t start, const Keys* keys, Py_ssize_t k) noexcept nogil:
    """Whether the string at `start` is key k, which has no quote and no line end."""
    cdef const uint8_t* key = keys.chars + keys.bounds[k]
    cdef Py_ssize_t length = keys.bounds[k + 1] - keys.bounds[k], i
    for i in range(length):
        if text[start + i] != key[i]:
            return False
    return text[start + length] == c'"'


cdef inline bint _begins(const uint8_t* text, const char* word) noexcept nogil:
    while word[0] != 0:
        if text[0] != word[0]:
            return False
        text += 1
        word += 1
    return True


cdef inline Py_ssize_t _word_end(const uint8_t* text, Py_ssize_t i) noexcept nogil:
    """Where true, false or null at i ends; -1 if it is none of them."""
    if _begins(text + i, b"true") or _begins(text + i, b"null"):
        return i + 4
    return i + 5 if _begins(text + i, b"false") else -1


cdef inline bint _is_digit(uint8_t c) noexcept nogil:
    return c"0" <= c <= c"9"


cdef inline Py_ssize_t _digits_end(const uint8_t* text, Py_ssize_t i) noexcept nogil:
    while _is_digit(text[i]):
        i += 1
    return i


cdef inline Number _number(const uint8_t* text, Py_ssize_t i) noexcept nogil:
    """The number at i.

    Certain numbers obey JSON's grammar, and are far from the limits at which readers of JSON differ. Not certain are:
    an integer of more than 18 digits; more than 15 digits before a point; an exponent of more than 2 digits; and -0,
    which orjson reads as an integer without a sign.
    """
    cdef bint negative = text[i] == c"-", zero, as_written = True
    cdef Py_ssize_t first = i + negative, whole, point, places
    i = _digits_end(text, first)
    whole = i - first
    zero = text[first] == c"0"
    if whole == 0 or whole > 18 or (zero and (whole > 1 or (negative and text[i] != c"."))):
        return Number(-1, False)
    if text[i] == c".":
        point = i
        i = _digits_end(text, point + 1)
        places = i - point - 1
        if places == 0 or whole > 15:
            return Number(-1, False)
        as_written = whole + places <= 15 and (places == 1 or text[i - 1] != c"0")
        if zero and places > 4:  # `repr` writes values below 0.0001 with an exponent
            as_written &= text[point + 1] + text[point + 2] + text[point + 3] + text[point + 4] > 4 * c"0"
    if text[i] == c"e" or text[i] == c"E":
        as_written = False
        first = i + 1 + (text[i + 1] == c"-" or text[i + 1] == c"+")
        i = _digits_end(text, first)
        if not 1 <= i - first <= 2:
            return Number(-1, False)
    return Number(i, as_written)


cdef Py_ssize_t _key(const uint8_t* text, Py_ssize_t start, Py_ssize_t length, Keys* keys) noexcept nogil:
    """Which key a string is; an unknown one is remembered. -1 if there is no space for it."""
    cdef Py_ssize_t k
    for k in range(keys.known):
        if length == keys.bounds[k + 1] - keys.bounds[k] and memcmp(text + start, keys.chars + keys.bounds[k], length) == 0:
            return k
    k = keys.known
    if k == keys.most or keys.bounds[k] + length > keys.size:
        return -1
    memcpy(keys.chars + keys.bounds[k], text + start, length)
    keys.bounds[k + 1] = keys.bounds[k] + length
    keys.known += 1
    return k


cdef Py_ssize_t _write(
    const uint8_t* text, const int64_t* cells, Py_ssize_t count, uint8_t* table, Py_ssize_t size
) noexcept nogil:
    """Append a row to the table, which has `size` bytes, and return its new size.

    The first cell of each row is a full stop. So polars finds no empty line, which it would pass over, and no byte
    order mark at the start of the table, which it would drop.
    """
    cdef Py_ssize_t k
    cdef int64_t i
    table[size] = c"."
    size += 1
    for k in range(count):
        table[size] = CELL
        size += 1
        for i in range(cells[2 * k], cells[2 * k + 1]):
            table[size] = text[i]
            size += 1
    table[size] = ROW
    return size + 1


cdef bint _read(
    const uint8_t* text,
    Py_ssize_t row,
    Py_ssize_t i,
    Py_ssize_t end,
    Keys* keys,
    Py_ssize_t numeric,
    Py_ssize_t declared,
    int64_t* cells,
    int64_t* last_seen,
    int64_t* follower,
) noexcept nogil:
    """Find the cells of a record; False if it is not certain. Each `return False` is one way in which it is not.

    `last_seen` is the row in which each key came last, and `follower` is which key followed each key (last: came first)
    in the record before.
    """
    cdef Py_ssize_t missing = numeric  # numeric columns without a number so far
    cdef Py_ssize_t previous = keys.most + 1, start, stop, key
    cdef Number number
    i = _skip(text, i, end)
    if text[i] != c"{":
        return False
    for key in range(2 * declared):
        cells[key] = 0
    while True:
        i = _skip(text, i + 1, end)
        if text[i] != c'"':
            return False
        start = i + 1
        key = follower[previous]
        if key >= 0 and _is_key(text, start, keys, key):
            i = start + keys.bounds[key + 1] - keys.bounds[key]
        else:
            i = _string_end(text, start)
            if text[i] != c'"':
                return False
            key = _key(text, start, i - start, keys)
            if key < 0:
                return False
            follower[previous] = key
        if last_seen[key] == row:
            return False
        last_seen[key] = row
        previous = key

        i = _skip(text, i + 1, end)
        if text[i] != c":":
            return False
        start = i = _skip(text, i + 1, end)
        if text[i] == c"-" or _is_digit(text[i]):
            number = _number(text, i)
            if number.end < 0 or (numeric <= key < declared and not number.as_written):
                return False
            stop = i = number.end
            missing -= key < numeric
        elif text[i] == c'"':
            start += 1
            stop = _string_end(text, start)
            if text[stop] != c'"':
                return False
            i = stop + 1
        else:
            i = _word_end(text, i)
            if i < 0:
                return False
            stop = start if text[start] == c"n" else i  # null means the same as an empty text
        if key < declared:
            cells[2 * key] = start
            cells[2 * key + 1] = stop

        i = _skip(text, i, end)
        if text[i] != c",":
            return text[i] == c"}" and _skip(text, i + 1, end) == end and missing == 0


def scan(
    bytes text not None,
    const int64_t[::1] starts,
    const int64_t[::1] ends,
    uint8_t[::1] keys,
    int64_t[::1] bounds,
    Py_ssize_t numeric,
    Py_ssize_t declared,
    uint8_t[::1] certain,
    uint8_t[::1] table,
):
    """Write the declared fields of the certain records to `table`; return the number of its bytes.

    A line end is part of no token, so the scan of a token does not run into the next record. Record r is
    `text[starts[r]:ends[r]]`, followed by a line end; the text is UTF-8. `keys` are the declared keys one after the
    other, and `bounds` (m + 1,) the places where they begin; the space that is left is used for undeclared keys. The
    first `numeric` keys belong to numeric columns, and the first `declared` keys are declared. `certain` (n,), zeros,
    is set for the certain records. `table` has space for the bytes of all records, and for `declared` + 2 more for each.
    """
    cdef const uint8_t* source = text
    cdef Py_ssize_t n = starts.shape[0], most = bounds.shape[0] - 1, size = 0, row
    cdef Keys names = Keys(&keys[0], &bounds[0], declared, most, keys.shape[0])
    cdef int64_t[::1] cells = np.empty(2 * declared + 1, dtype=np.int64)
    cdef int64_t[::1] last_seen = np.full(most + 1, -1, dtype=np.int64)
    cdef int64_t[::1] follower = np.full(most + 2, -1, dtype=np.int64)
    with nogil:
        for row in range(n):
            if _read(
                source, row, starts[row], ends[row], &names, numeric, declared, &cells[0], &last_seen[0], &follower[0],
            ):
                certain[row] = True
                size = _write(source, &cells[0], declared, &table[0], size)
    return size
