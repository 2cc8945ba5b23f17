"""The compiled pass of `jsoncalls` over the bytes of a call.

It keeps the interpreter's lock: a small call would wait longer for the lock than the scan takes, and a scan of 8 MiB
takes some milliseconds.
"""

from libc.stdint cimport int64_t, uint8_t
from libc.string cimport memcmp, memcpy, strlen

# The codes of records: LABEL, and those of `jsoncalls.REASONS`.
cpdef enum:
    LABEL = 1
    UNKNOWN = 2
    DUPLICATE = 3
    NO_OBJECT = 4
    BAD_ID = 5

cdef enum:
    MOST_ID_BYTES = 256

# Which outermost member of a record a key names.
cdef enum:
    X
    Y
    SUBJECT
    BUDGET
    ID
    OTHER


cdef struct Text:
    const uint8_t* at
    Py_ssize_t size


cdef struct Output:
    # Bytes that are written, and their number.
    uint8_t* at
    Py_ssize_t size
    bint empty  # whether the object that is open has no members yet


cdef struct Record:
    # Its code, and where its id is; both are 0 for none.
    int code
    Py_ssize_t id_start
    Py_ssize_t id_stop


cdef inline int _at(Text text, Py_ssize_t i) noexcept nogil:
    """The byte at i; 0 after the end."""
    return text.at[i] if i < text.size else 0


cdef inline Py_ssize_t _skip(Text text, Py_ssize_t i) noexcept nogil:
    """Where the white space at i ends."""
    while i < text.size and (text.at[i] == c" " or text.at[i] == 9 or text.at[i] == 10 or text.at[i] == 13):
        i += 1
    return i


cdef inline bint _is(Text text, Py_ssize_t start, Py_ssize_t stop, const char* word) noexcept nogil:
    cdef Py_ssize_t length = strlen(word)
    return stop - start == length and memcmp(text.at + start, word, length) == 0


cdef inline bint _is_digits(Text text, Py_ssize_t start, Py_ssize_t stop) noexcept nogil:
    cdef Py_ssize_t i
    for i in range(start, stop):
        if not c"0" <= text.at[i] <= c"9":
            return False
    return True


cdef Py_ssize_t _string_end(Text text, Py_ssize_t i) noexcept nogil:
    """The place of the quote that ends the string at i; -1 if there is no string or no end."""
    if _at(text, i) != c'"':
        return -1
    i += 1
    while i < text.size and text.at[i] != c'"':
        i += 2 if text.at[i] == c"\\" else 1
    return i if i < text.size else -1


cdef Py_ssize_t _value_end(Text text, Py_ssize_t i) noexcept nogil:
    """Where the value at i ends; -1 if there is none or it has no end. Only its brackets and strings are followed."""
    cdef int c = _at(text, i), depth = 0
    cdef Py_ssize_t start = i
    if c == c'"':
        i = _string_end(text, i)
        return i + 1 if i >= 0 else -1
    if c == c"{" or c == c"[":
        while i < text.size:
            c = text.at[i]
            if c == c'"':
                i = _string_end(text, i)
                if i < 0:
                    return -1
            elif c == c"{" or c == c"[":
                depth += 1
            elif c == c"}" or c == c"]":
                depth -= 1
                if depth == 0:
                    return i + 1
            i += 1
        return -1
    while i < text.size:
        c = text.at[i]
        if c <= c" " or c == c"," or c == c"}" or c == c"]" or c == c":":
            break
        i += 1
    return i if i > start else -1


cdef int _field(Text text, Py_ssize_t key, Py_ssize_t stop, bint learn) noexcept nogil:
    """Which outermost member a key names."""
    if _is(text, key, stop, b"id"):
        return ID
    if learn:
        if _is(text, key, stop, b"x"):
            return X
        if _is(text, key, stop, b"y"):
            return Y
        if _is(text, key, stop, b"subject"):
            return SUBJECT
        if _is(text, key, stop, b"budget"):
            return BUDGET
    return OTHER


cdef inline void _put(Output* out, uint8_t c) noexcept nogil:
    out.at[out.size] = c
    out.size += 1


cdef inline void _copy(Output* out, Text text, Py_ssize_t start, Py_ssize_t stop) noexcept nogil:
    memcpy(out.at + out.size, text.at + start, stop - start)
    out.size += stop - start


cdef inline void _next_member(Output* out) noexcept nogil:
    if not out.empty:
        _put(out, c",")
    out.empty = False


cdef int _id(Text text, Py_ssize_t first, Py_ssize_t last, Record* record) noexcept nogil:
    """Note an id, which is a string or a whole number; False if it is neither."""
    cdef bint inside = text.at[first] == c'"'
    record.id_start, record.id_stop = first + inside, last - inside
    return 0 < record.id_stop - record.id_start <= MOST_ID_BYTES and (inside or _is_digits(text, first, last))


cdef Py_ssize_t _member(Text text, Py_ssize_t i, bint learn, int* seen, Record* record, Output* out) noexcept nogil:
    """Write the member of a record whose key is at i to the flat record; returns where it ends, -1 if it is none."""
    cdef Py_ssize_t key = i + 1, stop = _string_end(text, i), first, last
    cdef int which
    if stop < 0:
        return -1
    i = _skip(text, stop + 1)
    if _at(text, i) != c":":
        return -1
    first = _skip(text, i + 1)
    last = _value_end(text, first)
    if last < 0:
        return -1
    which = _field(text, key, stop, learn)
    if which < OTHER and seen[0] & (1 << which):
        record.code = DUPLICATE
    elif which < OTHER:
        seen[0] |= 1 << which
    if which == X:
        if text.at[first] != c"{":
            record.code = NO_OBJECT
        elif _skip(text, first + 1) < last - 1:
            _next_member(out)
            _copy(out, text, first + 1, last - 1)
    elif which == ID:
        if not _is(text, first, last, b"null") and not _id(text, first, last, record):
            record.code = BAD_ID
    elif learn and which == OTHER:
        record.code = UNKNOWN
    else:
        _next_member(out)
        _put(out, c'"')
        if learn:
            _put(out, c"$")
        _copy(out, text, key, stop + 1)
        _put(out, c":")
        _copy(out, text, first, last)
    return last


cdef Py_ssize_t _record(Text text, Py_ssize_t i, bint learn, Record* record, Output* out) noexcept nogil:
    """Write the flat record of the value at i; returns where the value ends, -1 if this is no call."""
    cdef int seen = 0
    cdef bint more
    record.code = record.id_start = record.id_stop = 0
    if _at(text, i) != c"{":
        record.code = NO_OBJECT
        return _value_end(text, i)
    _put(out, c"{")
    out.empty = True
    i = _skip(text, i + 1)
    more = _at(text, i) != c"}"
    while more:
        i = _member(text, i, learn, &seen, record, out)
        if i < 0:
            return -1
        i = _skip(text, i)
        more = _at(text, i) == c","
        if more:
            i = _skip(text, i + 1)
    if _at(text, i) != c"}":
        return -1
    _put(out, c"}")
    if learn and record.code == 0 and not seen & (1 << X):
        record.code = LABEL
    return i + 1


cdef Py_ssize_t _first(Text text) noexcept nogil:
    """Where the first record begins, or the bracket that ends an empty list; -1 if this is no call."""
    cdef Py_ssize_t i = _skip(text, 0), stop
    if _at(text, i) != c"{":
        return -1
    i = _skip(text, i + 1)
    stop = _string_end(text, i)
    if stop < 0 or not _is(text, i + 1, stop, b"records"):
        return -1
    i = _skip(text, stop + 1)
    if _at(text, i) != c":":
        return -1
    i = _skip(text, i + 1)
    return _skip(text, i + 1) if _at(text, i) == c"[" else -1


def cut_into(
    bytes text not None,
    bint learn,
    Py_ssize_t most,
    uint8_t[::1] out,
    int64_t[:, ::1] places,
    list labels not None,
    list named not None,
    list flawed not None,
):
    """Write the flat records of a call to `out`; return their number and their bytes. (-1, 0) if it is no call.

    Parameters
    ----------
    text
        JSON text.
    learn, most
        As for `jsoncalls.cut`.
    out
        At least twice as many bytes as `text` has, and 64 more.
    places
        Filled with where each flat record ends in `out`, where the record begins and ends, and where its id does; both
        are 0 for none. (m, 5), for the m records that `text` can have, or for most + 1.
    labels, named
        The indices of labels, and of records with an id, are added to them.
    flawed
        The index and the code of each other record that is not 0 are added.
    """
    cdef Text source = Text(text, len(text))
    cdef Output flat = Output(&out[0], 0, True)
    cdef Record record
    cdef Py_ssize_t n = 0, i = _first(source)
    if i < 0:
        return -1, 0
    if _at(source, i) != c"]":
        while True:
            places[n, 1] = i
            i = _record(source, i, learn, &record, &flat)
            if i < 0:
                return -1, 0
            _put(&flat, 10)
            places[n, 2], places[n, 0] = i, flat.size
            places[n, 3], places[n, 4] = record.id_start, record.id_stop
            if record.code == LABEL:
                labels.append(n)
            elif record.code != 0:
                flawed.append((n, record.code))
            if record.id_stop != 0:
                named.append(n)
            n += 1
            i = _skip(source, i)
            if _at(source, i) == c"]":
                break
            if _at(source, i) != c",":
                return -1, 0
            if n > most:
                return n, flat.size
            i = _skip(source, i + 1)
    i = _skip(source, i + 1)
    if _at(source, i) != c"}" or _skip(source, i + 1) < source.size:
        return -1, 0
    return n, flat.size
