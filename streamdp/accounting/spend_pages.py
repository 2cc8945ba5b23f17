"""Spends in an SQLite file: pages of subjects, and a log in front of them.

A table with a row for each subject costs a search and Python objects for each, and a commit of 10,000 subjects among
millions dirties nearly as many pages of the file. Here a row of the table is a page of some 30 subjects whose hashes
begin with the same bits, read and written by compiled code; and who is alone with the file appends what a commit
changed to the log, and writes the pages once in a while, many subjects to each.

A page (and an entry of the log) is little-endian words of 64 bits: a check over all that follows and the page's number;
a mask; the hashes, two words each; and for each bit of the mask the numbers of that column of `admission`'s rows. A
column that is zero for all is left out. Page numbers at depth d go from 2^d to 2^(d+1) - 1, the d first bits of the
hash behind a one, and all pages have one depth. It grows when a page has more than `PAGE_ROWS`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
from numba import njit
from sqlalchemy import Connection

from streamdp.accounting.admission import ROW, check_words, mix
from streamdp.accounting.row_memory import RowMemory
from streamdp.accounting.spend_table import conflict, damaged, fetch, transaction

PAGE_ROWS = 48
_CHUNK = 1024
_FINE, _DAMAGED, _CONFLICT = range(3)


class SpendPages:
    """See the head of this file. The verbs of `spend_table.Spends` and `spend_table.Log`."""

    @property
    def log(self) -> SpendPages:
        return self

    def count(self, connection: Connection) -> int:
        with transaction(connection):
            ((n,),) = fetch(connection, "SELECT COALESCE(SUM(subjects), 0) FROM spend_pages")
        return int(n)

    def read(self, connection: Connection, keys: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        rows, found = np.zeros((len(keys), ROW)), np.zeros(len(keys), dtype=np.bool_)
        with transaction(connection):
            depth = _depth(connection) or 0
            for pages, starts, order in _by_page(keys, np.arange(len(keys)), depth):
                if not _pick(pages, *_words_of(connection, pages), starts, order, keys, rows, found):
                    raise damaged()
        return rows, found

    def write(
        self,
        connection: Connection,
        which: np.ndarray,
        keys: np.ndarray,
        rows: np.ndarray,
        checks: np.ndarray | None = None,
        fresh: np.ndarray | None = None,
    ) -> None:
        """See `Spends.write`; without `checks` and `fresh`, whatever there is is replaced."""
        if len(which) == 0:
            return
        depth = _depth(connection)
        if depth is None:
            depth = (2 * len(which) // PAGE_ROWS).bit_length()
        most = self._write_at(depth, connection, which, keys, rows, checks, fresh)
        while most > PAGE_ROWS:
            deeper = depth + (most // PAGE_ROWS).bit_length()
            most = self._deepen(connection, depth, deeper)
            depth = deeper

    def _write_at(
        self,
        depth: int,
        connection: Connection,
        which: np.ndarray,
        keys: np.ndarray,
        rows: np.ndarray,
        checks: np.ndarray | None = None,
        fresh: np.ndarray | None = None,
    ) -> int:
        """Write at this depth; returns the most subjects of a page."""
        most, compare = 0, checks is not None
        if checks is None or fresh is None:
            checks, fresh = np.zeros(0, dtype=np.uint64), np.zeros(0, dtype=np.bool_)
        for pages, starts, order in _by_page(keys, which, depth):
            old = _words_of(connection, pages)
            out, ends, counts, state = _merge(pages, *old, starts, order, keys, rows, checks, fresh, compare)
            if state == _DAMAGED:
                raise damaged()
            if state == _CONFLICT:
                raise conflict()
            packed = out.astype("<u8", copy=False).tobytes()
            cut = [0, *(8 * ends).tolist()]
            pieces = [packed[a:b] for a, b in pairwise(cut)]
            connection.exec_driver_sql(
                "REPLACE INTO spend_pages (page, subjects, spends) VALUES (?, ?, ?)",
                list(zip(pages.tolist(), counts.tolist(), pieces, strict=True)),
            )
            most = max(most, int(counts.max()))
        return most

    def _deepen(self, connection: Connection, depth: int, deeper: int) -> int:
        """Move all pages to another depth, inside the caller's transaction; returns the most subjects of a page."""
        most, last = 0, 2 << depth
        while pages := fetch(
            connection, f"SELECT page, spends FROM spend_pages WHERE page < {last} ORDER BY page LIMIT {_CHUNK}"
        ):
            keys, rows = _all_rows(pages)
            connection.exec_driver_sql("DELETE FROM spend_pages WHERE page <= ?", (pages[-1][0],))
            most = max(most, self._write_at(deeper, connection, np.arange(len(keys)), keys, rows))
        return most

    def append(self, connection: Connection, keys: np.ndarray, rows: np.ndarray) -> None:
        """Append rows to the log, inside the transaction of who is alone with the file."""
        if len(keys):
            packed = _pack(np.uint64(0), keys, rows).astype("<u8", copy=False).tobytes()
            connection.exec_driver_sql("INSERT INTO spend_log (spends) VALUES (?)", (packed,))

    def clear(self, connection: Connection) -> None:
        """The pages have all that it says, or will with the caller's transaction."""
        connection.exec_driver_sql("DELETE FROM spend_log")

    def settle(self, connection: Connection) -> None:
        """Write the log's rows to the pages, in a transaction of its own unless the caller's is open."""
        with transaction(connection):
            if not fetch(connection, "SELECT entry FROM spend_log LIMIT 1"):
                return
        with transaction(connection):
            # Ours from here on: several who share the file may be here, and all but one find the log empty.
            connection.exec_driver_sql("DELETE FROM spend_log WHERE entry < 0")
            newest = RowMemory()
            for (entry,) in fetch(connection, "SELECT entry FROM spend_log ORDER BY entry"):
                ((blob,),) = fetch(connection, "SELECT spends FROM spend_log WHERE entry = ?", (entry,))
                keys, rows = _all_rows([(0, blob)])
                slots = newest.find(keys, np.ones(len(keys), dtype=np.bool_))
                newest.rows[slots] = rows
            self.write(connection, np.arange(newest.n), newest.keys, newest.rows)
            self.clear(connection)


def take_rows(connection: Connection) -> None:
    """A migration: until now, `spends` had a row for each subject; see `spend_table`."""
    from streamdp.accounting.spend_table import unpack

    pages, last = SpendPages(), b""
    while old := fetch(
        connection, "SELECT subject, spend FROM spends WHERE subject > ? ORDER BY subject LIMIT 65536", (last,)
    ):
        keys, rows = unpack(old)
        pages.write(connection, np.arange(len(keys)), keys, rows)
        last = old[-1][0]
    connection.exec_driver_sql("DROP TABLE spends")


def _depth(connection: Connection) -> int | None:
    """The depth of the pages; None where there are none."""
    ((last,),) = fetch(connection, "SELECT MAX(page) FROM spend_pages")
    return None if last is None else int(last).bit_length() - 1


def _by_page(keys: np.ndarray, which: np.ndarray, depth: int) -> Iterator[tuple[np.ndarray, np.ndarray, np.ndarray]]:
    """The pages of those keys, some at a time and in order; where each begins in the third, which are places in `keys`.

    The second is one longer than the first.
    """
    number = keys[which, 0]
    number.byteswap(inplace=True)  # the first byte's bits first, so that pages are in the order of hashes
    number >>= np.uint64(1)  # in two steps and in place: a shift by 64 is none, and there may be millions
    number >>= np.uint64(63 - depth)
    number |= np.uint64(1 << depth)
    number = number.view(np.int64)
    by_number = np.argsort(number)
    number, order = number[by_number], which[by_number]
    del by_number
    starts = np.flatnonzero(np.diff(number, prepend=0, append=0))
    pages = number[starts[:-1]]
    for i in range(0, len(pages), _CHUNK):
        first = starts[i : i + _CHUNK + 1]
        yield pages[i : i + _CHUNK], first - first[0], order[first[0] : first[-1]]


def _words_of(connection: Connection, pages: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """`_joined` of these pages, which come in order; nothing where there is no such page."""
    first, last = int(pages[0]), int(pages[-1])
    if last - first < 2 * len(pages):
        found = fetch(connection, "SELECT page, spends FROM spend_pages WHERE page BETWEEN ? AND ?", (first, last))
    else:
        asked = pages.tolist()
        # Lengths of 1, 2, 4, ... 1024 only, filled with a repetition: eleven statements, always prepared.
        asked += asked[-1:] * ((1 << (len(asked) - 1).bit_length()) - len(asked))
        marks = ",".join("?" * len(asked))
        found = fetch(connection, f"SELECT page, spends FROM spend_pages WHERE page IN ({marks})", tuple(asked))
    content = dict(found)
    return _joined([content.get(page, b"") for page in pages.tolist()])


def _joined(blobs: Sequence[bytes]) -> tuple[np.ndarray, np.ndarray]:
    """Where each blob begins and the last ends, and all of them, in words."""
    lengths = np.fromiter(map(len, blobs), dtype=np.int64, count=len(blobs))
    if np.any(lengths % 8):
        raise damaged()
    bounds = np.zeros(len(blobs) + 1, dtype=np.int64)
    np.cumsum(lengths // 8, out=bounds[1:])
    return bounds, np.frombuffer(b"".join(blobs), dtype="<u8").astype(np.uint64, copy=False)


def _all_rows(pages: Sequence[tuple[Any, ...]]) -> tuple[np.ndarray, np.ndarray]:
    """All keys and rows of these (number, blob)."""
    bounds, words = _joined([blob for _, blob in pages])
    keys, rows, state = _unpack_all(np.array([page for page, _ in pages], dtype=np.int64), bounds, words)
    if state == _DAMAGED:
        raise damaged()
    return keys, rows


@njit(cache=True, nogil=True)
def _width(mask: np.uint64) -> int:
    width = 2
    for column in range(ROW):
        if mask >> np.uint64(column) & np.uint64(1):
            width += 1
    return width


@njit(cache=True, nogil=True)
def _size(page: np.uint64, words: np.ndarray) -> int:
    """How many rows the words of a page hold; -1 where they are damaged."""
    if len(words) == 0:
        return 0
    if len(words) < 2 or words[1] >> np.uint64(ROW) != 0 or (len(words) - 2) % _width(words[1]) != 0:
        return -1
    return (len(words) - 2) // _width(words[1]) if words[0] == _check(page, words) else -1


@njit(cache=True, nogil=True)
def _check(page: np.uint64, words: np.ndarray) -> np.uint64:
    mixed = mix(np.uint64(0x9E3779B97F4A7C15), page)
    for i in range(1, len(words)):
        mixed = mix(mixed, words[i])
    return mixed


@njit(cache=True, nogil=True)
def _unpack(words: np.ndarray, n: int, keys: np.ndarray, rows: np.ndarray) -> None:
    """The first n keys and rows (as words) are those of a page."""
    if n == 0:
        return
    for i in range(n):
        keys[i, 0], keys[i, 1] = words[2 + 2 * i], words[3 + 2 * i]
    at = 2 + 2 * n
    for column in range(ROW):
        if words[1] >> np.uint64(column) & np.uint64(1):
            rows[:n, column] = words[at : at + n]
            at += n
        else:
            rows[:n, column] = 0


@njit(cache=True, nogil=True)
def _pack_into(page: np.uint64, keys: np.ndarray, rows: np.ndarray, out: np.ndarray) -> int:
    """Write a page of these keys and rows (as words) to the head of `out`; returns how many words it has."""
    n, mask, at = len(keys), np.uint64(0), 2 + 2 * len(keys)
    for i in range(n):
        out[2 + 2 * i], out[3 + 2 * i] = keys[i, 0], keys[i, 1]
    for column in range(ROW):
        if np.any(rows[:, column] != 0):
            mask |= np.uint64(1) << np.uint64(column)
            out[at : at + n] = rows[:, column]
            at += n
    out[1] = mask
    out[0] = _check(page, out[:at])
    return at


@njit(cache=True, nogil=True)
def _pack_words(page: np.uint64, keys: np.ndarray, rows: np.ndarray) -> np.ndarray:
    out = np.empty(2 + (2 + ROW) * len(keys), dtype=np.uint64)
    return out[: _pack_into(page, keys, rows, out)]


def _pack(page: np.uint64, keys: np.ndarray, rows: np.ndarray) -> np.ndarray:
    return _pack_words(page, keys, rows.view(np.uint64))


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
    """Find keys in their pages; False where a page is damaged."""
    out = rows.view(np.uint64)
    for p in range(len(pages)):
        here = words[bounds[p] : bounds[p + 1]]
        n = _size(np.uint64(pages[p]), here)
        if n < 0:
            return False
        for i in order[starts[p] : starts[p + 1]]:
            for j in range(n):
                if here[2 + 2 * j] == keys[i, 0] and here[3 + 2 * j] == keys[i, 1]:
                    found[i] = True
                    at = 2 + 2 * n + j
                    for column in range(ROW):
                        if here[1] >> np.uint64(column) & np.uint64(1):
                            out[i, column] = here[at]
                            at += n
                    break
    return True


@njit(cache=True, nogil=True)
def _unpack_all(pages: np.ndarray, bounds: np.ndarray, words: np.ndarray) -> tuple[np.ndarray, np.ndarray, int]:
    sizes = np.empty(len(pages), dtype=np.int64)
    for p in range(len(pages)):
        sizes[p] = _size(np.uint64(pages[p]), words[bounds[p] : bounds[p + 1]])
        if sizes[p] < 0:
            return np.empty((0, 2), dtype=np.uint64), np.empty((0, ROW)), _DAMAGED
    keys, rows = np.empty((sizes.sum(), 2), dtype=np.uint64), np.empty((sizes.sum(), ROW))
    as_words, at = rows.view(np.uint64), 0
    for p in range(len(pages)):
        _unpack(words[bounds[p] : bounds[p + 1]], sizes[p], keys[at:], as_words[at:])
        at += sizes[p]
    return keys, rows, _FINE


@njit(cache=True, nogil=True)
def _merge(
    pages: np.ndarray,
    bounds: np.ndarray,
    words: np.ndarray,
    starts: np.ndarray,
    order: np.ndarray,
    keys: np.ndarray,
    rows: np.ndarray,
    checks: np.ndarray,
    fresh: np.ndarray,
    compare: bool,
) -> tuple[np.ndarray, np.ndarray, np.ndarray, int]:
    """The pages with these changes: words, the end of each page, its number of subjects, and how it went."""
    counts, ends = np.zeros(len(pages), dtype=np.int64), np.zeros(len(pages), dtype=np.int64)
    room, most = 0, 0
    for p in range(len(pages)):
        n = _size(np.uint64(pages[p]), words[bounds[p] : bounds[p + 1]])
        if n < 0:
            return words, ends, counts, _DAMAGED
        counts[p] = n
        n += starts[p + 1] - starts[p]
        room, most = room + 2 + (2 + ROW) * n, max(most, n)
    out = np.empty(room, dtype=np.uint64)
    page_keys, page_rows = np.empty((most, 2), dtype=np.uint64), np.empty((most, ROW), dtype=np.uint64)
    new, end = rows.view(np.uint64), 0
    for p in range(len(pages)):
        before = n = counts[p]
        _unpack(words[bounds[p] : bounds[p + 1]], n, page_keys, page_rows)
        for i in order[starts[p] : starts[p + 1]]:
            j = 0
            while j < before and not (page_keys[j, 0] == keys[i, 0] and page_keys[j, 1] == keys[i, 1]):
                j += 1
            known = j < before
            if compare:
                if known == fresh[i]:
                    return out, ends, counts, _CONFLICT
                if known and check_words(page_keys[j : j + 1], page_rows[j : j + 1])[0] != checks[i]:
                    return out, ends, counts, _CONFLICT
            if not known:
                j = n
                n += 1
                page_keys[j] = keys[i]
            page_rows[j] = new[i]
        counts[p] = n
        end += _pack_into(np.uint64(pages[p]), page_keys[:n], page_rows[:n], out[end:])
        ends[p] = end
    return out[:end], ends, counts, _FINE
