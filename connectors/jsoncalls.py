"""The bodies of calls, `{"records": [...]}`, cut into flat JSON records that `jsonrows` decodes.

The scanner is compiled and makes no Python object for a record. It checks the JSON around the records and around their
outermost members, and copies values as they are: `jsonrows` checks those.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numba import njit

from connectors.recordblocks import Records
from streamdp.errors import SchemaError

TARGET, SUBJECT, BUDGET = "$y", "$subject", "$budget"
"""The columns of `y`, `subject` and `budget` in the flat records. Their names differ from those of features."""

LABEL = 1
"""The code of a record without `x`: a label of an earlier prediction."""
_UNKNOWN, _DUPLICATE, _NO_OBJECT, _BAD_ID = 2, 3, 4, 5
REASONS = {
    _UNKNOWN: "unknown_field",
    _DUPLICATE: "duplicate_key",
    _NO_OBJECT: "not_an_object",
    _BAD_ID: "bad_id",
}
"""The reasons of records that are dead already, by code."""
MOST_ID_BYTES = 256

# It keeps the interpreter's lock: a small call would wait longer for the lock than the scan takes, and a scan of 8 MiB
# takes some milliseconds.
_compiled = njit(cache=True, error_model="numpy")
_QUOTE, _COMMA, _COLON, _ESCAPE, _OPEN, _CLOSE, _BEGIN, _END = b'",:\\{}[]'
_X, _Y, _SUBJECT, _BUDGET, _ID, _OTHER = range(6)


@dataclass(frozen=True, slots=True)
class Cut:
    """The n records of a call.

    Parameters
    ----------
    body
        The call.
    flat
        The flat records.
    codes
        (n,) uint8: 0, `LABEL`, or a key of `REASONS`.
    spans
        (n, 2) int64: where each record is in the body.
    ids
        (n, 2) int64: where the id of each record is in the body; both are 0 for none.
    """

    body: bytes
    flat: Records
    codes: np.ndarray
    spans: np.ndarray
    ids: np.ndarray

    def __len__(self) -> int:
        return len(self.codes)

    def texts(self, places: np.ndarray) -> list[bytes]:
        """The texts at some places of the body.

        Parameters
        ----------
        places
            (m, 2) int64, rows of `spans` or `ids`.
        """
        return [self.body[start:stop] for start, stop in places.tolist()]


def cut(body: bytes, learn: bool, most: int) -> Cut:
    """Cut a call into records. If there are more than `most`, returns the first most + 1.

    Parameters
    ----------
    body
        JSON text.
    learn
        Whether records are `{"x": {...}, "y": ...}` with `subject`, `budget` and `id` beside them. Otherwise they are
        flat, and only `id` is taken out of them.
    most
        The most records.

    Raises `SchemaError` if it is no call.
    """
    text = np.frombuffer(body, np.uint8)
    room = min(most + 1, len(body) // 2 + 1)
    out = np.empty(2 * len(body) + 64, dtype=np.uint8)
    ends, codes = np.empty(room, dtype=np.int64), np.empty(room, dtype=np.uint8)
    spans, ids = np.empty((room, 2), dtype=np.int64), np.empty((room, 2), dtype=np.int64)
    n, size = _cut(text, learn, most, out, ends, codes, spans, ids)
    if n < 0:
        raise SchemaError('expected a JSON object {"records": [{...}, ...]} and nothing else')
    flaws = {i: REASONS[code] for i, code in _flawed(codes[:n])}
    flat = Records(out[:size].tobytes(), ends[:n].copy(), flaws)
    return Cut(body, flat, codes[:n].copy(), spans[:n].copy(), ids[:n].copy())


def _flawed(codes: np.ndarray) -> list[tuple[int, int]]:
    rows = np.flatnonzero(codes > LABEL)
    return list(zip(rows.tolist(), codes[rows].tolist(), strict=True))


@_compiled
def _cut(  # noqa: C901 - one pass over the bytes; each early return is one way in which this is no call
    text: np.ndarray,
    learn: bool,
    most: int,
    out: np.ndarray,
    ends: np.ndarray,
    codes: np.ndarray,
    spans: np.ndarray,
    ids: np.ndarray,
) -> tuple[int, int]:
    """Write the flat records to `out`; return their number, or -1, and their bytes."""
    n, size = 0, 0
    i = _skip(text, 0)
    if _at(text, i) != _OPEN:
        return -1, 0
    i = _skip(text, i + 1)
    stop = _string_end(text, i)
    if stop < 0 or not _is(text, i + 1, stop, b"records"):
        return -1, 0
    i = _skip(text, stop + 1)
    if _at(text, i) != _COLON:
        return -1, 0
    i = _skip(text, i + 1)
    if _at(text, i) != _BEGIN:
        return -1, 0
    i = _skip(text, i + 1)
    if _at(text, i) == _END:
        i += 1
    else:
        while True:
            spans[n, 0] = i
            ids[n] = 0
            code, seen, empty = 0, 0, True
            if _at(text, i) != _OPEN:
                i = _value_end(text, i)
                if i < 0:
                    return -1, 0
                code = _NO_OBJECT
            else:
                out[size] = _OPEN
                size += 1
                i = _skip(text, i + 1)
                more = _at(text, i) != _CLOSE
                while more:
                    key = i + 1
                    stop = _string_end(text, i)
                    if stop < 0:
                        return -1, 0
                    i = _skip(text, stop + 1)
                    if _at(text, i) != _COLON:
                        return -1, 0
                    first = _skip(text, i + 1)
                    last = _value_end(text, first)
                    if last < 0:
                        return -1, 0
                    which = _field(text, key, stop, learn)
                    if which < _OTHER and seen & (1 << which):
                        code = _DUPLICATE
                    elif which < _OTHER:
                        seen |= 1 << which
                    if which == _X:
                        if text[first] != _OPEN:
                            code = _NO_OBJECT
                        elif _skip(text, first + 1) < last - 1:
                            size = _comma(out, size, empty)
                            size = _copy(text, first + 1, last - 1, out, size)
                            empty = False
                    elif which == _ID:
                        if not _is(text, first, last, b"null"):
                            inside = text[first] == _QUOTE
                            ids[n, 0], ids[n, 1] = first + inside, last - inside
                            length = ids[n, 1] - ids[n, 0]
                            if not 0 < length <= MOST_ID_BYTES or not (inside or _is_digits(text, first, last)):
                                code = _BAD_ID
                    elif learn and which == _OTHER:
                        code = _UNKNOWN
                    else:
                        size = _comma(out, size, empty)
                        out[size] = _QUOTE
                        size += 1
                        if learn:
                            out[size] = ord("$")
                            size += 1
                        size = _copy(text, key, stop + 1, out, size)
                        out[size] = _COLON
                        size += 1
                        size = _copy(text, first, last, out, size)
                        empty = False
                    i = _skip(text, last)
                    more = _at(text, i) == _COMMA
                    if more:
                        i = _skip(text, i + 1)
                if _at(text, i) != _CLOSE:
                    return -1, 0
                i += 1
                out[size] = _CLOSE
                size += 1
                if learn and code == 0 and not seen & (1 << _X):
                    code = LABEL
            out[size] = 10
            size += 1
            spans[n, 1], ends[n], codes[n] = i, size, code
            n += 1
            i = _skip(text, i)
            if _at(text, i) == _END:
                i += 1
                break
            if _at(text, i) != _COMMA:
                return -1, 0
            if n > most:
                return n, size
            i = _skip(text, i + 1)
    i = _skip(text, i)
    if _at(text, i) != _CLOSE or _skip(text, i + 1) < len(text):
        return -1, 0
    return n, size


@_compiled
def _field(text: np.ndarray, key: int, stop: int, learn: bool) -> int:
    """Which outermost member a key names."""
    if _is(text, key, stop, b"id"):
        return _ID
    if learn:
        if _is(text, key, stop, b"x"):
            return _X
        if _is(text, key, stop, b"y"):
            return _Y
        if _is(text, key, stop, b"subject"):
            return _SUBJECT
        if _is(text, key, stop, b"budget"):
            return _BUDGET
    return _OTHER


@_compiled
def _at(text: np.ndarray, i: int) -> int:
    """The byte at i; 0 after the end."""
    return int(text[i]) if i < len(text) else 0


@_compiled
def _skip(text: np.ndarray, i: int) -> int:
    """Where the white space at i ends."""
    while i < len(text) and (text[i] == 32 or text[i] == 9 or text[i] == 10 or text[i] == 13):
        i += 1
    return i


@_compiled
def _is(text: np.ndarray, start: int, stop: int, word: bytes) -> bool:
    if stop - start != len(word):
        return False
    for k in range(len(word)):  # noqa: SIM110 - compiled code has no all() of a generator
        if text[start + k] != word[k]:
            return False
    return True


@_compiled
def _is_digits(text: np.ndarray, start: int, stop: int) -> bool:
    for i in range(start, stop):  # noqa: SIM110 - as above
        if not ord("0") <= text[i] <= ord("9"):
            return False
    return True


@_compiled
def _string_end(text: np.ndarray, i: int) -> int:
    """The place of the quote that ends the string at i; -1 if there is no string or no end."""
    if _at(text, i) != _QUOTE:
        return -1
    i += 1
    while i < len(text) and text[i] != _QUOTE:
        i += 2 if text[i] == _ESCAPE else 1
    return i if i < len(text) else -1


@_compiled
def _value_end(text: np.ndarray, i: int) -> int:
    """Where the value at i ends; -1 if there is none or it has no end. Only its brackets and strings are followed."""
    c = _at(text, i)
    if c == _QUOTE:
        stop = _string_end(text, i)
        return stop + 1 if stop >= 0 else -1
    if c in (_OPEN, _BEGIN):
        depth = 0
        while i < len(text):
            c = text[i]
            if c == _QUOTE:
                i = _string_end(text, i)
                if i < 0:
                    return -1
            elif c in (_OPEN, _BEGIN):
                depth += 1
            elif c in (_CLOSE, _END):
                depth -= 1
                if depth == 0:
                    return i + 1
            i += 1
        return -1
    start = i
    while i < len(text) and not (
        text[i] <= 32 or text[i] == _COMMA or text[i] == _CLOSE or text[i] == _END or text[i] == _COLON
    ):
        i += 1
    return i if i > start else -1


@_compiled
def _comma(out: np.ndarray, size: int, empty: bool) -> int:
    if not empty:
        out[size] = _COMMA
        size += 1
    return size


@_compiled
def _copy(text: np.ndarray, start: int, stop: int, out: np.ndarray, size: int) -> int:
    for k in range(start, stop):
        out[size] = text[k]
        size += 1
    return size
