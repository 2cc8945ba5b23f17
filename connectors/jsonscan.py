"""Flat JSON objects to columns, compiled, without a Python object for a field and without the interpreter's lock.

It reads a record only where it is sure of its meaning: a flat object without escapes, with numbers where numbers
belong; `jsonrows` has the other records. It exists because a worker must decode while its client polls: a library that
makes Python objects holds the lock that polling needs, and one that does not stops at the first odd record.
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
"""How many keys beside the declared ones are known at a time, and their bytes in all; more go the exact way."""
_TRIAL = 256
"""How often to see whether the fast way still reads one record in eight; if not, it does not try the others."""
_WORTH = 100
"""If some records go the exact way, so many others cost about as much as the second batch that they would make."""
_SPLIT = 4000
"""From so many texts on, polars makes its column of them faster than Python does."""

_SPACE, _QUOTE, _COMMA, _MINUS, _POINT, _ZERO, _COLON, _OPEN, _CLOSE = b' ",-.0:{}'
_PLAIN = np.array([c >= 32 and c not in b'"\\' for c in range(256)])
_ASCII = _PLAIN & (np.arange(256) < 128)
_POWERS = np.array([float(10**k) for k in range(23)])
"""The powers of ten that a double can hold."""


def read(
    records: Records, encoder: Encoder, given: Mapping[str, Sequence[str | None]]
) -> tuple[pl.DataFrame | None, np.ndarray]:
    """The columns of those records that `_scan` is sure of, and which they are: (n,) bool.

    None where there are too few of them to be worth a batch of their own.
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
    numbers, spans = np.empty((len(numeric), n)), np.empty((len(other), n, 2), dtype=np.int64)
    sure = np.zeros(n, dtype=bool)
    text = np.frombuffer(data, np.uint8)
    plain = _PLAIN if data.isascii() or _is_utf8(data) else _ASCII
    found = _scan(text, starts, records.ends - 1, plain, keys, bounds, len(names), numbers, spans, sure)
    if found < min(n, _WORTH):
        return None, np.zeros(n, dtype=bool)
    columns = {name: pl.Series(name, column[:found]) for name, column in zip(numeric, numbers, strict=True)}
    texts = _texts(text, spans[:, :found].reshape(-1, 2))
    columns |= {name: texts[k * found : (k + 1) * found].alias(name) for k, name in enumerate(other)}
    rows = range(n) if found == n else np.flatnonzero(sure).tolist()
    columns |= {name: pl.Series(name, [values[i] for i in rows], dtype=pl.String) for name, values in given.items()}
    return pl.DataFrame([columns[name] for name in encoder.columns]), sure


def _is_utf8(data: bytes) -> bool:
    try:
        data.decode()
    except UnicodeDecodeError:
        return False
    return True


def _texts(text: np.ndarray, spans: np.ndarray) -> pl.Series:
    """The pieces of a text, of which none holds a line end, as a column."""
    if len(spans) == 0:
        return pl.Series(dtype=pl.String)
    joined = _join(text, spans).tobytes()
    if len(spans) < _SPLIT:
        return pl.Series(joined.decode().split("\n"), dtype=pl.String)
    return pl.Series([joined], dtype=pl.Binary).cast(pl.String).str.split("\n").explode()


@_compiled
def _join(text: np.ndarray, spans: np.ndarray) -> np.ndarray:
    """Pieces of a text, a line end between them."""
    size = len(spans) - 1
    for k in range(len(spans)):
        size += spans[k, 1] - spans[k, 0]
    out = np.empty(size, dtype=np.uint8)
    at = 0
    for k in range(len(spans)):
        if k:
            out[at] = 10
            at += 1
        for i in range(spans[k, 0], spans[k, 1]):
            out[at] = text[i]
            at += 1
    return out


@_compiled
def _scan(
    text: np.ndarray,
    starts: np.ndarray,
    ends: np.ndarray,
    plain: np.ndarray,
    keys: np.ndarray,
    bounds: np.ndarray,
    declared: int,
    numbers: np.ndarray,
    spans: np.ndarray,
    sure: np.ndarray,
) -> int:
    """Read the declared columns of the records whose meaning is certain, and count these records.

    Record r is `text[starts[r]:ends[r]]` with a line end behind it, which stands for no token: so no look ahead leaves
    the record. Key k is `keys[bounds[k]:bounds[k + 1]]`: first the declared numeric columns, then the other declared
    ones, then whatever other keys come. The j-th certain record has its numbers in `numbers[:, j]`, and where its
    texts are in `spans[:, j]`.
    """
    numeric, known, found = len(numbers), declared, 0
    last_seen = np.full(len(bounds), -1)
    follower = np.full(len(bounds) + 1, -1)  # the key that came after a key the last time, or came first
    for row in range(len(starts)):
        if row % _TRIAL == 0 and found < row // 8:
            break
        end = ends[row]
        i = _skip(text, starts[row], end)
        if text[i] != _OPEN:
            continue
        spans[:, found] = i
        missing = numeric  # a text, true, false or null in a numeric column leaves it missing
        previous = len(bounds)
        while True:
            i = _skip(text, i + 1, end)
            if text[i] != _QUOTE:
                break
            start = i + 1
            key = follower[previous]
            if key >= 0 and _is_key(text, start, keys[bounds[key] : bounds[key + 1]]):
                i = start + bounds[key + 1] - bounds[key]
            else:
                i = _string_end(text, start, plain)
                if text[i] != _QUOTE:
                    break
                key, size = 0, i - start
                while key < known and not (
                    size == bounds[key + 1] - bounds[key] and _is_key(text, start, keys[bounds[key] : bounds[key + 1]])
                ):
                    key += 1
                if key == known:
                    if known == len(bounds) - 1 or bounds[known] + size > len(keys):
                        break
                    known += 1
                    bounds[known] = bounds[key] + size
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
                i, value, as_written = _number(text, i)
                if i < 0 or (numeric <= key < declared and not as_written):
                    break
                stop = i
                if key < numeric:
                    numbers[key, found] = value
                    missing -= 1
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
                stop = start if text[start] == ord("n") else i  # null is as good as an empty text
            if numeric <= key < declared:
                spans[key - numeric, found, 0] = start
                spans[key - numeric, found, 1] = stop

            i = _skip(text, i, end)
            if text[i] == _COMMA:
                continue
            if text[i] == _CLOSE and _skip(text, i + 1, end) == end and missing == 0:
                sure[row] = True
                found += 1
            break
    return found


@_compiled
def _skip(text: np.ndarray, i: int, end: int) -> int:
    """Where the white space at i ends."""
    while i < end and (text[i] == _SPACE or text[i] == 9 or text[i] == 10 or text[i] == 13):
        i += 1
    return i


@_compiled
def _string_end(text: np.ndarray, i: int, plain: np.ndarray) -> int:
    """The place of the quote that ends the string at i, or of a byte that needs a closer look."""
    while plain[text[i]]:
        i += 1
    return i


@_compiled
def _is_key(text: np.ndarray, start: int, key: np.ndarray) -> bool:
    """Whether the string at `start` is this key, which holds no quote and no line end."""
    for k in range(len(key)):
        if text[start + k] != key[k]:
            return False
    return text[start + len(key)] == _QUOTE


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
def _number(text: np.ndarray, i: int) -> tuple[int, float, bool]:
    """Where the number at i ends (-1 if it is none, or not certain), its value, and whether `repr` writes it like this.

    The value is digits times or over a power of ten. As long as both are doubles, that is one rounding, as it should
    be. Up to 18 digits over a power of ten are divided with a remainder.
    """
    uncertain = (-1, 0.0, False)
    negative = text[i] == _MINUS
    if negative:
        i += 1
    first, point, digits = i, -1, 0
    while True:
        if _is_digit(text[i]):
            digits = 10 * digits + (int(text[i]) - _ZERO)
        elif text[i] == _POINT and point < 0:
            point = i
        else:
            break
        i += 1
    whole = (i if point < 0 else point) - first
    places = 0 if point < 0 else i - point - 1
    if whole == 0 or (whole > 1 and text[first] == _ZERO) or (point >= 0 and places == 0):
        return uncertain
    if whole + places > 18:
        zeros = 0
        while text[first + zeros] == _ZERO or first + zeros == point:
            zeros += 1
        if whole + places - (zeros - 1 if zeros else 0) > 18:
            return uncertain
    as_written = digits < 10**15 and (places <= 1 or text[i - 1] != _ZERO)
    exponent = 0
    if text[i] == ord("e") or text[i] == ord("E"):
        as_written = False
        i += 1
        sinks = text[i] == _MINUS
        if sinks or text[i] == ord("+"):
            i += 1
        if not _is_digit(text[i]):
            return uncertain
        while _is_digit(text[i]):
            exponent = min(10 * exponent + (int(text[i]) - _ZERO), 1000)
            i += 1
        if sinks:
            exponent = -exponent
    exponent -= places
    if abs(exponent) > 22 or (negative and digits == 0 and point < 0):  # orjson reads -0 as 0
        return uncertain
    if digits <= 1 << 53:
        value = digits / _POWERS[-exponent] if exponent < 0 else digits * _POWERS[exponent]
    elif exponent > 0:
        return uncertain
    else:
        value, certain = _quotient(digits, _POWERS[-exponent])
        if not certain:
            return uncertain
    return i, -value if negative else value, as_written and (digits == 0 or value >= 1e-4)


@_compiled
def _quotient(a: int, b: float) -> tuple[float, bool]:
    """The double next to a / b for an a over 2^53, b >= 1, and whether that is certain."""
    high = float(a)
    low = float(a - np.int64(high))
    q = high / b
    # q * b is exactly product + error (Dekker), so the remainder is exact but for a few roundings of its own size.
    product = q * b
    q_high, b_high = _upper_half(q), _upper_half(b)
    q_low, b_low = q - q_high, b - b_high
    error = ((q_high * b_high - product) + q_high * b_low + q_low * b_high) + q_low * b_low
    correction = (((high - product) - error) + low) / b
    margin = abs(correction) * 1e-9
    value = q + correction
    return value, q + (correction - margin) == value and q + (correction + margin) == value


@_compiled
def _upper_half(x: float) -> float:
    """The upper 26 bits of a double (Veltkamp)."""
    scaled = 134217729.0 * x
    return scaled - (scaled - x)
