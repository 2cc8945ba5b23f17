"""Pages of spends as bytes: compiled code that packs and unpacks rows of subjects, finds them and replaces them.

A page, and an entry of the log, is a sequence of little-endian words of 64 bits:

1. a check word over the page's number and all words that follow;
2. a mask with one bit for each column of a row (see `rows`);
3. two words for each subject: its keyed hash;
4. for each bit of the mask that is set, that column: one word for each subject. The other columns are zero for all.

A page without any words has no subjects. Inside compiled code, rows are words too: their uint64 view. The code uses
plain loops because slices take several times as long to compile.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from numba import njit

from streamdp.ledger.check_words import START, check_word, mix
from streamdp.ledger.rows import ROW, Expected
from streamdp.ledger.sql import conflict, damaged


class Group(NamedTuple):
    """Some pages in ascending order, and which rows belong to each.

    Parameters
    ----------
    pages
        (p,) int64, the numbers of the pages.
    starts
        (p + 1,) int64: the rows of page i are at the places `order[starts[i] : starts[i + 1]]`.
    order
        (m,) int64, places in arrays of keys and rows.
    """

    pages: np.ndarray
    starts: np.ndarray
    order: np.ndarray


class _Content(NamedTuple):
    """The words of many pages; those of page i are `words[bounds[i] : bounds[i + 1]]`."""

    bounds: np.ndarray
    words: np.ndarray


class _Rows(NamedTuple):
    """Keys (n, 2) and rows (n, ROW), both uint64."""

    keys: np.ndarray
    words: np.ndarray


_ANYTHING = Expected(np.empty(0, dtype=np.uint64), np.empty(0, dtype=np.bool_))


def pack(page: int, keys: np.ndarray, rows: np.ndarray) -> bytes:
    """Return one page.

    Parameters
    ----------
    page
        The number of the page; 0 for an entry of the log.
    keys
        (n, 2) uint64.
    rows
        (n, ROW) float64.
    """
    out = np.empty(2 + (2 + ROW) * len(keys), dtype=np.uint64)
    end = _pack_into(np.uint64(page), len(keys), _Rows(keys, rows.view(np.uint64)), out, 0)
    return out[:end].astype("<u8", copy=False).tobytes()


def unpack(pages: Sequence[int], blobs: Sequence[bytes]) -> tuple[np.ndarray, np.ndarray]:
    """Return all keys (n, 2) uint64 and rows (n, ROW) float64 of some pages.

    Parameters
    ----------
    pages, blobs
        The numbers of the pages, and the pages.

    Raises `StoreDamagedError` if a page fails its check.
    """
    content = _content(blobs)
    sizes = _sizes(np.array(pages, dtype=np.int64), content)
    n = int(sizes.sum())
    keys, rows = np.empty((n, 2), dtype=np.uint64), np.empty((n, ROW))
    _unpack_all(content, sizes, _Rows(keys, rows.view(np.uint64)))
    return keys, rows


def pick(group: Group, blobs: Sequence[bytes], keys: np.ndarray, rows: np.ndarray, found: np.ndarray) -> None:
    """Read the rows of some subjects from their pages.

    Parameters
    ----------
    group
        The pages, and the places of the subjects in `keys`.
    blobs
        The pages of the group.
    keys
        (n, 2) uint64.
    rows, found
        (n, ROW) float64 and (n,) bool. Filled at the places of the subjects that are in their pages.

    Raises `StoreDamagedError` if a page fails its check.
    """
    content = _content(blobs)
    _pick(group, content, _sizes(group.pages, content), _Rows(keys, rows.view(np.uint64)), found)


def merge(
    group: Group, blobs: Sequence[bytes], keys: np.ndarray, rows: np.ndarray, expected: Expected | None
) -> tuple[list[bytes], np.ndarray]:
    """Return the pages with some rows replaced or added, and the number of subjects (p,) int64 of each.

    Parameters
    ----------
    group
        The pages, and the places of their new rows in `keys` and `rows`.
    blobs
        The pages of the group.
    keys, rows
        (n, 2) uint64 and (n, ROW) float64.
    expected
        What the pages must have at the places of the group. None replaces any row.

    Raises `LedgerConflictError` if the pages do not have what is expected, and `StoreDamagedError` if a page fails its
    check.
    """
    content = _content(blobs)
    sizes = _sizes(group.pages, content)
    most = sizes + np.diff(group.starts)
    out = np.empty(int(np.sum(2 + (2 + ROW) * most)), dtype=np.uint64)
    ends = np.empty(len(sizes), dtype=np.int64)
    new = _Rows(keys, rows.view(np.uint64))
    if not _merge(group, content, sizes, new, expected or _ANYTHING, out, ends):
        raise conflict()
    packed, cut = out[: ends[-1]].astype("<u8", copy=False).tobytes(), [0, *(8 * ends).tolist()]
    return [packed[a:b] for a, b in pairwise(cut)], sizes


def _content(blobs: Sequence[bytes]) -> _Content:
    lengths = np.fromiter(map(len, blobs), dtype=np.int64, count=len(blobs))
    if np.any(lengths % 8):
        raise damaged()
    bounds = np.zeros(len(blobs) + 1, dtype=np.int64)
    np.cumsum(lengths // 8, out=bounds[1:])
    return _Content(bounds, np.frombuffer(b"".join(blobs), dtype="<u8").astype(np.uint64, copy=False))


def _sizes(pages: np.ndarray, content: _Content) -> np.ndarray:
    """The number of rows (p,) of each page. Raises `StoreDamagedError` if a page fails its check."""
    sizes = np.empty(len(pages), dtype=np.int64)
    if not _count(pages, content, sizes):
        raise damaged()
    return sizes


@njit(cache=True, nogil=True)
def _width(mask: np.uint64) -> int:
    """The number of words that a subject takes in a page with this mask."""
    width = 2
    for column in range(ROW):
        if mask >> np.uint64(column) & np.uint64(1):
            width += 1
    return width


@njit(cache=True, nogil=True)
def _check(page: np.uint64, words: np.ndarray, start: int, end: int) -> np.uint64:
    mixed = mix(np.uint64(START), page)
    for i in range(start + 1, end):
        mixed = mix(mixed, words[i])
    return mixed


@njit(cache=True, nogil=True)
def _count(pages: np.ndarray, content: _Content, sizes: np.ndarray) -> bool:
    """Fill `sizes` with the number of rows of each page; False if a page is damaged."""
    bounds, words = content.bounds, content.words
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
def _unpack_into(words: np.ndarray, start: int, n: int, out: _Rows, first: int) -> None:
    """Copy the n rows of the page that begins at `start` to `out`, from the row `first`."""
    keys, rows = out.keys, out.words
    for i in range(n):
        keys[first + i, 0], keys[first + i, 1] = words[start + 2 + 2 * i], words[start + 3 + 2 * i]
    at = start + 2 + 2 * n
    for column in range(ROW):
        there = n > 0 and words[start + 1] >> np.uint64(column) & np.uint64(1)
        for i in range(n):
            rows[first + i, column] = words[at + i] if there else np.uint64(0)
        at += n if there else 0


@njit(cache=True, nogil=True)
def _unpack_all(content: _Content, sizes: np.ndarray, out: _Rows) -> None:
    first = 0
    for p in range(len(sizes)):
        _unpack_into(content.words, content.bounds[p], sizes[p], out, first)
        first += sizes[p]


@njit(cache=True, nogil=True)
def _pack_into(page: np.uint64, n: int, source: _Rows, out: np.ndarray, start: int) -> int:
    """Write a page of the first n rows of `source` to `out` from `start`; returns the end of the page."""
    keys, rows = source.keys, source.words
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
def _pick(group: Group, content: _Content, sizes: np.ndarray, wanted: _Rows, found: np.ndarray) -> None:
    """See `pick`."""
    words, keys, rows = content.words, wanted.keys, wanted.words
    for p in range(len(sizes)):
        start, n = content.bounds[p], sizes[p]
        for place in range(group.starts[p], group.starts[p + 1]):
            i = group.order[place]
            for j in range(n):
                if words[start + 2 + 2 * j] == keys[i, 0] and words[start + 3 + 2 * j] == keys[i, 1]:
                    found[i] = True
                    at = start + 2 + 2 * n + j
                    for column in range(ROW):
                        if words[start + 1] >> np.uint64(column) & np.uint64(1):
                            rows[i, column] = words[at]
                            at += n
                    break


@njit(cache=True, nogil=True)
def _merge(
    group: Group,
    content: _Content,
    sizes: np.ndarray,
    new: _Rows,
    expected: Expected,
    out: np.ndarray,
    ends: np.ndarray,
) -> bool:
    """See `merge`. Fills `out` with the pages and `ends` with their ends, and updates `sizes`; False for a conflict."""
    most = 0
    for p in range(len(sizes)):
        most = max(most, sizes[p] + group.starts[p + 1] - group.starts[p])
    page = _Rows(np.empty((most, 2), dtype=np.uint64), np.empty((most, ROW), dtype=np.uint64))
    keys, rows = page.keys, page.words
    compare, end = len(expected.checks) > 0, 0
    for p in range(len(sizes)):
        before = n = sizes[p]
        _unpack_into(content.words, content.bounds[p], n, page, 0)
        for place in range(group.starts[p], group.starts[p + 1]):
            i, j = group.order[place], 0
            while j < before and not (keys[j, 0] == new.keys[i, 0] and keys[j, 1] == new.keys[i, 1]):
                j += 1
            known = j < before
            if compare:
                if known == expected.absent[i]:
                    return False
                if known and check_word(keys[j], rows[j]) != expected.checks[i]:
                    return False
            if not known:
                j = n
                n += 1
                keys[j, 0], keys[j, 1] = new.keys[i, 0], new.keys[i, 1]
            for column in range(ROW):
                rows[j, column] = new.words[i, column]
        sizes[p] = n
        end = _pack_into(np.uint64(group.pages[p]), n, page, out, end)
        ends[p] = end
    return True
