"""A page of spends as words: compiled code that packs and unpacks rows of subjects, finds and changes them.

A page (and an entry of the log) is little-endian words of 64 bits: a check over all that follows and the page's number;
a mask; the hashes, two words each; and for each bit of the mask the numbers of that column of `admission`'s rows. A
column that is zero for all is left out. No words at all are a page of nobody.

Pages come many at once: their numbers, all their words in one array, and `bounds`, where each begins and the last ends.
Rows are handed over as words (their uint64 view). Plain loops, as slices take several times as long to compile.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import numpy as np
from numba import njit

from streamdp.ledger.admission import ROW, check_word, mix
from streamdp.ledger.sql import conflict, damaged

_FINE, _DAMAGED, _CONFLICT = range(3)


def joined(blobs: Sequence[bytes]) -> tuple[np.ndarray, np.ndarray]:
    """Bounds and words of these pages. Raises `StoreDamagedError`."""
    lengths = np.fromiter(map(len, blobs), dtype=np.int64, count=len(blobs))
    if np.any(lengths % 8):
        raise damaged()
    bounds = np.zeros(len(blobs) + 1, dtype=np.int64)
    np.cumsum(lengths // 8, out=bounds[1:])
    return bounds, np.frombuffer(b"".join(blobs), dtype="<u8").astype(np.uint64, copy=False)


def pack(page: int, keys: np.ndarray, rows: np.ndarray) -> bytes:
    """One page of these keys (n, 2) and rows (n, ROW)."""
    out = np.empty(2 + (2 + ROW) * len(keys), dtype=np.uint64)
    used = _pack_into(np.uint64(page), len(keys), keys, rows.view(np.uint64), out, 0)
    return out[:used].astype("<u8", copy=False).tobytes()


def unpack(pages: Sequence[int], blobs: Sequence[bytes]) -> tuple[np.ndarray, np.ndarray]:
    """All keys (n, 2) and rows (n, ROW) of these pages. Raises `StoreDamagedError`."""
    numbers, (bounds, words) = np.array(pages, dtype=np.int64), joined(blobs)
    sizes = np.empty(len(numbers), dtype=np.int64)
    if not _sizes(numbers, bounds, words, sizes):
        raise damaged()
    n = int(sizes.sum())
    keys, rows = np.empty((n, 2), dtype=np.uint64), np.empty((n, ROW))
    _unpack_all(bounds, words, sizes, keys, rows.view(np.uint64))
    return keys, rows


def pick(
    pages: np.ndarray,
    blobs: Sequence[bytes],
    starts: np.ndarray,
    order: np.ndarray,
    keys: np.ndarray,
    rows: np.ndarray,
    found: np.ndarray,
) -> None:
    """Find keys in their pages: those of page p are at the places `order[starts[p] : starts[p + 1]]`.

    Fills `rows` (n, ROW) and `found` (n,) there. Raises `StoreDamagedError`.
    """
    if not _pick(pages, *joined(blobs), starts, order, keys, rows.view(np.uint64), found):
        raise damaged()


def merge(
    pages: np.ndarray,
    blobs: Sequence[bytes],
    starts: np.ndarray,
    order: np.ndarray,
    keys: np.ndarray,
    rows: np.ndarray,
    compare: tuple[np.ndarray, np.ndarray] | None,
) -> tuple[list[bytes], np.ndarray]:
    """The pages with these rows in them (places as in `pick`), and how many subjects each has.

    `compare`: the check words (n,) of what should be there, and who (n,) should not; raises `LedgerConflictError` where
    it is not so. Raises `StoreDamagedError`.
    """
    bounds, words = joined(blobs)
    sizes = np.empty(len(pages), dtype=np.int64)
    if not _sizes(pages, bounds, words, sizes):
        raise damaged()
    most = sizes + np.diff(starts)
    out = np.empty(int(np.sum(2 + (2 + ROW) * most)), dtype=np.uint64)
    ends, n = np.empty(len(pages), dtype=np.int64), int(most.max())
    page_keys, page_rows = np.empty((n, 2), dtype=np.uint64), np.empty((n, ROW), dtype=np.uint64)
    checks, fresh = compare or (np.empty(0, dtype=np.uint64), np.empty(0, dtype=np.bool_))
    old, new = (bounds, words, sizes, page_keys, page_rows), (starts, order, keys, rows.view(np.uint64))
    if not _merge(pages, *old, *new, checks, fresh, compare is not None, out, ends):
        raise conflict()
    packed, cut = out[: ends[-1]].astype("<u8", copy=False).tobytes(), [0, *(8 * ends).tolist()]
    return [packed[a:b] for a, b in pairwise(cut)], sizes


@njit(cache=True, nogil=True)
def _width(mask: np.uint64) -> int:
    """How many words of a page a subject takes."""
    width = 2
    for column in range(ROW):
        if mask >> np.uint64(column) & np.uint64(1):
            width += 1
    return width


@njit(cache=True, nogil=True)
def _check(page: np.uint64, words: np.ndarray, start: int, end: int) -> np.uint64:
    mixed = mix(np.uint64(0x9E3779B97F4A7C15), page)
    for i in range(start + 1, end):
        mixed = mix(mixed, words[i])
    return mixed


@njit(cache=True, nogil=True)
def _sizes(pages: np.ndarray, bounds: np.ndarray, words: np.ndarray, sizes: np.ndarray) -> bool:
    """How many rows each page has; False where one is damaged."""
    for p in range(len(pages)):
        start, end = bounds[p], bounds[p + 1]
        sizes[p] = 0
        if start == end:
            continue
        if end - start < 2 or words[start + 1] >> np.uint64(ROW) != 0:
            return False
        width = _width(words[start + 1])
        if (end - start - 2) % width != 0 or words[start] != _check(np.uint64(pages[p]), words, start, end):
            return False
        sizes[p] = (end - start - 2) // width
    return True


@njit(cache=True, nogil=True)
def _unpack_into(words: np.ndarray, start: int, n: int, keys: np.ndarray, rows: np.ndarray, first: int) -> None:
    """The n keys and rows from `first` on become those of the page at `start`."""
    for i in range(n):
        keys[first + i, 0], keys[first + i, 1] = words[start + 2 + 2 * i], words[start + 3 + 2 * i]
    at = start + 2 + 2 * n
    for column in range(ROW):
        there = n > 0 and words[start + 1] >> np.uint64(column) & np.uint64(1)
        for i in range(n):
            rows[first + i, column] = words[at + i] if there else np.uint64(0)
        at += n if there else 0


@njit(cache=True, nogil=True)
def _unpack_all(bounds: np.ndarray, words: np.ndarray, sizes: np.ndarray, keys: np.ndarray, rows: np.ndarray) -> None:
    first = 0
    for p in range(len(sizes)):
        _unpack_into(words, bounds[p], sizes[p], keys, rows, first)
        first += sizes[p]


@njit(cache=True, nogil=True)
def _pack_into(page: np.uint64, n: int, keys: np.ndarray, rows: np.ndarray, out: np.ndarray, start: int) -> int:
    """Write a page of the first n keys and rows to `out` from `start` on; returns its end."""
    mask, at = np.uint64(0), start + 2 + 2 * n
    for i in range(n):
        out[start + 2 + 2 * i], out[start + 3 + 2 * i] = keys[i, 0], keys[i, 1]
    for column in range(ROW):
        some = np.uint64(0)
        for i in range(n):
            some |= rows[i, column]
        if some != 0:
            mask |= np.uint64(1) << np.uint64(column)
            for i in range(n):
                out[at + i] = rows[i, column]
            at += n
    out[start + 1] = mask
    out[start] = _check(page, out, start, at)
    return at


@njit(cache=True, nogil=True)
def _pick(
    pages: np.ndarray,
    bounds: np.ndarray,
    words: np.ndarray,
    starts: np.ndarray,
    order: np.ndarray,
    keys: np.ndarray,
    rows: np.ndarray,
    found: np.ndarray,
) -> bool:
    sizes = np.empty(len(pages), dtype=np.int64)
    if not _sizes(pages, bounds, words, sizes):
        return False
    for p in range(len(pages)):
        start, n = bounds[p], sizes[p]
        for place in range(starts[p], starts[p + 1]):
            i = order[place]
            for j in range(n):
                if words[start + 2 + 2 * j] == keys[i, 0] and words[start + 3 + 2 * j] == keys[i, 1]:
                    found[i] = True
                    at = start + 2 + 2 * n + j
                    for column in range(ROW):
                        if words[start + 1] >> np.uint64(column) & np.uint64(1):
                            rows[i, column] = words[at]
                            at += n
                    break
    return True


@njit(cache=True, nogil=True)
def _merge(
    pages: np.ndarray,
    bounds: np.ndarray,
    words: np.ndarray,
    sizes: np.ndarray,
    page_keys: np.ndarray,
    page_rows: np.ndarray,
    starts: np.ndarray,
    order: np.ndarray,
    keys: np.ndarray,
    rows: np.ndarray,
    checks: np.ndarray,
    fresh: np.ndarray,
    compare: bool,
    out: np.ndarray,
    ends: np.ndarray,
) -> bool:
    """See `merge`; `sizes` become the new ones. False where there is not what should be."""
    end = 0
    for p in range(len(pages)):
        before = n = sizes[p]
        _unpack_into(words, bounds[p], n, page_keys, page_rows, 0)
        for place in range(starts[p], starts[p + 1]):
            i, j = order[place], 0
            while j < before and not (page_keys[j, 0] == keys[i, 0] and page_keys[j, 1] == keys[i, 1]):
                j += 1
            known = j < before
            if compare:
                if known == fresh[i]:
                    return False
                if known and check_word(page_keys[j], page_rows[j]) != checks[i]:
                    return False
            if not known:
                j = n
                n += 1
                page_keys[j, 0], page_keys[j, 1] = keys[i, 0], keys[i, 1]
            for column in range(ROW):
                page_rows[j, column] = rows[i, column]
        sizes[p] = n
        end = _pack_into(np.uint64(pages[p]), n, page_keys, page_rows, out, end)
        ends[p] = end
    return True
