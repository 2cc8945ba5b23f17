"""Flat JSON objects to columns: the fast way, compiled, without a Python object for each field.

The scanner finds the bytes of the declared fields of each record and checks them against JSON's grammar. It writes
them to a table, and polars reads the table: the scanner computes no number. It takes a record only if its meaning is
certain: a flat object without escapes, with numbers in the numeric columns. `jsonrows` decodes the other records.

Reason: a worker decodes in one thread while its client polls in another. A library that makes Python objects holds
the interpreter's lock during that time. The scanner and polars release the lock.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import polars as pl
from numba import njit

from connectors.recordblocks import Records
from streamdp.data.records import Encoder

_compiled = njit(cache=True, nogil=True, error_model="numpy")

_MORE_KEYS, _KEY_BYTES = 64, 4096
"""The number of undeclared keys that a scan remembers, and their bytes in all. Records with further keys are not
certain.
"""
_TRIAL = 256
"""Every so many records, the scan stops if fewer than one record in eight was certain."""
_WORTH = 100
"""With fewer certain records than this, a second batch costs more than the exact way for all records."""

_SPACE, _QUOTE, _COMMA, _MINUS, _POINT, _ZERO, _COLON, _OPEN, _CLOSE = b' ",-.0:{}'
_CELL, _ROW = 31, 10
"""Unit separator and line feed, which divide the table. No JSON string has a control character that is not escaped."""
_PLAIN = np.array([c >= 32 and c not in b'"\\' for c in range(256)])
_ASCII = _PLAIN & (np.arange(256) < 128)


def read(
    records: Records, encoder: Encoder, given: Mapping[str, Sequence[str | None]]
) -> tuple[pl.DataFrame | None, np.ndarray]:
    """Read the records whose meaning is certain.

    Parameters
    ----------
    records
        n JSON texts, each followed by a line end. Records with a flaw are not certain.
    encoder
        Names the declared columns.
    given
        Columns that do not come from the texts: n values for each name.

    Returns the encoder's columns for the certain records, and (n,) bool, True for the certain records. If there are
    too few of them for a batch of their own, returns None and no True.
    """
    n, data = len(records.ends), records.data
    numeric = [c for c in encoder.columns if c in encoder.numeric_columns and c not in given]
    other = [c for c in encoder.columns if c not in encoder.numeric_columns and c not in given]
    names = [c.encode(errors="surrogatepass") for c in (*numeric, *other)]
    keys = np.frombuffer(bytearray(b"".join(names)) + bytes(_KEY_BYTES), np.uint8)
    bounds = np.zeros(len(names) + _MORE_KEYS + 1, dtype=np.int64)
    np.cumsum([len(name) for name in names], out=bounds[1 : len(names) + 1])
    starts = records.starts
    starts[list(records.flaws)] = records.ends[list(records.flaws)] - 1
    text = np.frombuffer(data, np.uint8)
    plain = _PLAIN if data.isascii() or _is_utf8(data) else _ASCII
    certain, table = np.zeros(n, dtype=bool), np.empty(len(data) + n * (len(names) + 2), dtype=np.uint8)
    found, size = _scan(text, starts, records.ends - 1, plain, keys, bounds, len(numeric), len(names), certain, table)
    if found < max(1, min(n, _WORTH)):
        return None, np.zeros(n, dtype=bool)
    types = [pl.String, *[pl.Float64] * len(numeric), *[pl.String] * len(other)]
    cells = pl.read_csv(
        table[:size].tobytes(),
        has_header=False,
        separator=chr(_CELL),
        quote_char=None,
        schema={str(k): kind for k, kind in enumerate(types)},
    )
    columns = dict(zip((*numeric, *other), cells.get_columns()[1:], strict=True))
    rows = range(n) if found == n else np.flatnonzero(certain).tolist()
    columns |= {name: pl.Series([values[i] for i in rows], dtype=pl.String) for name, values in given.items()}
    return pl.DataFrame({name: columns[name] for name in encoder.columns}), certain


def _is_utf8(data: bytes) -> bool:
    try:
        data.decode()
    except UnicodeDecodeError:
        return False
    return True


@_compiled
def _scan(  # noqa: C901 - one pass over the bytes; each `break` is one way in which a record is not certain
    text: np.ndarray,
    starts: np.ndarray,
    ends: np.ndarray,
    plain: np.ndarray,
    keys: np.ndarray,
    bounds: np.ndarray,
    numeric: int,
    declared: int,
    certain: np.ndarray,
    table: np.ndarray,
) -> tuple[int, int]:
    """Write the declared fields of the certain records to `table`; return the number of rows and of bytes.

    Record r is `text[starts[r]:ends[r]]`, followed by a line end. A line end is part of no token, so the scan of a
    token does not run into the next record. Key k is `keys[bounds[k]:bounds[k + 1]]`: first the `numeric` keys of
    numeric columns, then the other `declared` keys, then undeclared keys in the order in which they were met.
    """
    known, found, size = declared, 0, 0
    cells = np.zeros((declared, 2), dtype=np.int64)
    last_seen = np.full(len(bounds), -1)
    follower = np.full(len(bounds) + 1, -1)  # which key followed each key (last: came first) in the record before
    for row in range(len(starts)):
        if row % _TRIAL == 0 and found < row // 8:
            break
        end = ends[row]
        i = _skip(text, starts[row], end)
        if text[i] != _OPEN:
            continue
        cells[:] = 0
        missing = numeric  # numeric columns without a number so far
        previous = len(bounds)
        while True:
            i = _skip(text, i + 1, end)
            if text[i] != _QUOTE:
                break
            start = i + 1
            key = follower[previous]
            if key >= 0 and _is_key(text, start, keys, bounds[key], bounds[key + 1]):
                i = start + bounds[key + 1] - bounds[key]
            else:
                i = _string_end(text, start, plain)
                if text[i] != _QUOTE:
                    break
                key, length = 0, i - start
                while key < known and not (
                    length == bounds[key + 1] - bounds[key] and _is_key(text, start, keys, bounds[key], bounds[key + 1])
                ):
                    key += 1
                if key == known:
                    if known == len(bounds) - 1 or bounds[known] + length > len(keys):
                        break
                    known += 1
                    bounds[known] = bounds[key] + length
                    keys[bounds[key] : bounds[known]] = text[start:i]
                follower[previous] = key
            if last_seen[key] == row:
                break
            last_seen[key] = row
            previous = key

            i = _skip(text, i + 1, end)
            if text[i] != _COLON:
                break
            i = _skip(text, i + 1, end)
            start = i
            if text[i] == _MINUS or _is_digit(text[i]):
                i, as_written = _number_end(text, i)
                if i < 0 or (numeric <= key < declared and not as_written):
                    break
                stop = i
                missing -= key < numeric
            elif text[i] == _QUOTE:
                start += 1
                stop = _string_end(text, start, plain)
                if text[stop] != _QUOTE:
                    break
                i = stop + 1
            else:
                i = _word_end(text, i)
                if i < 0:
                    break
                stop = start if text[start] == ord("n") else i  # null means the same as an empty text
            if key < declared:
                cells[key, 0], cells[key, 1] = start, stop

            i = _skip(text, i, end)
            if text[i] == _COMMA:
                continue
            if text[i] == _CLOSE and _skip(text, i + 1, end) == end and missing == 0:
                certain[row] = True
                found += 1
                size = _write(text, cells, table, size)
            break
    return found, size


@_compiled
def _write(text: np.ndarray, cells: np.ndarray, table: np.ndarray, size: int) -> int:
    """Append a row to the table, which has `size` bytes, and return its new size.

    The first cell of each row is a full stop. So polars finds no empty line, which it would pass over, and no byte
    order mark at the start of the table, which it would drop.
    """
    table[size] = _POINT
    size += 1
    for k in range(len(cells)):
        table[size] = _CELL
        size += 1
        for i in range(cells[k, 0], cells[k, 1]):
            table[size] = text[i]
            size += 1
    table[size] = _ROW
    return size + 1


@_compiled
def _skip(text: np.ndarray, i: int, end: int) -> int:
    """Where the white space at i ends."""
    while text[i] <= _SPACE and i < end and (text[i] == _SPACE or text[i] == 9 or text[i] == 10 or text[i] == 13):
        i += 1
    return i


@_compiled
def _string_end(text: np.ndarray, i: int, plain: np.ndarray) -> int:
    """The place of the next byte that is not plain: the quote that ends the string, or an escape, or an error."""
    while plain[text[i]]:
        i += 1
    return i


@_compiled
def _is_key(text: np.ndarray, start: int, keys: np.ndarray, first: int, last: int) -> bool:
    """Whether the string at `start` is `keys[first:last]`, which has no quote and no line end."""
    for k in range(last - first):
        if text[start + k] != keys[first + k]:
            return False
    return bool(text[start + last - first] == _QUOTE)


@_compiled
def _word_end(text: np.ndarray, i: int) -> int:
    """Where true, false or null at i ends; -1 if it is none of them."""
    c = text[i]
    word = b"true" if c == ord("t") else b"false" if c == ord("f") else b"null"
    for k in range(len(word)):
        if text[i + k] != word[k]:
            return -1
    return i + len(word)


@_compiled
def _is_digit(c: int) -> bool:
    return _ZERO <= c <= _ZERO + 9


@_compiled
def _digits_end(text: np.ndarray, i: int) -> int:
    while _is_digit(text[i]):
        i += 1
    return i


@_compiled
def _number_end(text: np.ndarray, i: int) -> tuple[int, bool]:
    """Where the number at i ends, and whether `repr` of its value is the same text; -1 if it is not certain.

    Certain numbers obey JSON's grammar, and are far from the limits at which readers of JSON differ. Not certain are:
    an integer of more than 18 digits; more than 15 digits before a point; an exponent of more than 2 digits; and -0,
    which orjson reads as an integer without a sign.
    """
    negative = text[i] == _MINUS
    first = i + negative
    i = _digits_end(text, first)
    whole, zero = i - first, text[first] == _ZERO
    if whole == 0 or whole > 18 or (zero and (whole > 1 or (negative and text[i] != _POINT))):
        return -1, False
    as_written = True
    if text[i] == _POINT:
        point = i
        i = _digits_end(text, point + 1)
        places = i - point - 1
        if places == 0 or whole > 15:
            return -1, False
        as_written = whole + places <= 15 and (places == 1 or text[i - 1] != _ZERO)
        if zero and places > 4:  # `repr` writes values below 0.0001 with an exponent
            as_written &= text[point + 1] + text[point + 2] + text[point + 3] + text[point + 4] > 4 * _ZERO
    if text[i] == ord("e") or text[i] == ord("E"):
        as_written = False
        first = i + 1 + (text[i + 1] == _MINUS or text[i + 1] == ord("+"))
        i = _digits_end(text, first)
        if not 1 <= i - first <= 2:
            return -1, False
    return i, as_written
