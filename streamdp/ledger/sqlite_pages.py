"""Spends in an SQLite file: pages of subjects, and a log in front of them.

Spends live in the job's database because they are committed in one transaction with the state and the position that
they paid for; a store of another kind beside it would need a commit of both. A table with a row for each subject, even
when reads and upserts are sorted and in bulk, costs a search in the tree and Python objects for each, and a commit of
10,000 subjects among millions dirties nearly as many pages of the file: that misses the goal of `benchmarks/ledger.md`
by far. Here a row of the table is a page of some 30 subjects whose hashes begin with the same bits, read and written by
compiled code (`page_words`); and who is alone with the file appends what a commit changed to the log, and writes the
pages once in a while, many subjects to each.

Page numbers at depth d go from 2^d to 2^(d+1) - 1, the d first bits of the hash behind a one, and all pages have one
depth. It grows when a page has more than `PAGE_ROWS`. An entry of the log is a page of number 0.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from sqlalchemy import Connection

from streamdp.ledger import page_codec
from streamdp.ledger.admission import ROW
from streamdp.ledger.row_cache import RowMemory
from streamdp.ledger.sql import fetch, transaction

PAGE_ROWS = 48
_CHUNK = 1024


class SpendPages:
    """See the head of this file. The verbs of `spends.Spends` and `spends.Log`."""

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
                page_codec.pick(pages, _blobs(connection, pages), starts, order, keys, rows, found)
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
        _lock(connection)
        depth = _depth(connection)
        if depth is None:
            depth = (2 * len(which) // PAGE_ROWS).bit_length()
        compare = None if checks is None or fresh is None else (checks, fresh)
        most = self._write_at(depth, connection, which, keys, rows, compare)
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
        compare: tuple[np.ndarray, np.ndarray] | None = None,
    ) -> int:
        """Write at this depth; returns the most subjects of a page."""
        most = 0
        for pages, starts, order in _by_page(keys, which, depth):
            blobs, sizes = page_codec.merge(pages, _blobs(connection, pages), starts, order, keys, rows, compare)
            connection.exec_driver_sql(
                "REPLACE INTO spend_pages (page, subjects, spends) VALUES (?, ?, ?)",
                list(zip(pages.tolist(), sizes.tolist(), blobs, strict=True)),
            )
            most = max(most, int(sizes.max()))
        return most

    def _deepen(self, connection: Connection, depth: int, deeper: int) -> int:
        """Move all pages to another depth, inside the caller's transaction; returns the most subjects of a page."""
        most, last = 0, 2 << depth
        while pages := fetch(
            connection, f"SELECT page, spends FROM spend_pages WHERE page < {last} ORDER BY page LIMIT {_CHUNK}"
        ):
            keys, rows = page_codec.unpack(*zip(*pages, strict=True))
            connection.exec_driver_sql("DELETE FROM spend_pages WHERE page <= ?", (pages[-1][0],))
            most = max(most, self._write_at(deeper, connection, np.arange(len(keys)), keys, rows))
        return most

    def append(self, connection: Connection, keys: np.ndarray, rows: np.ndarray) -> None:
        """Append rows to the log, inside the transaction of who is alone with the file."""
        if len(keys):
            entry = page_codec.pack(0, keys, rows)
            connection.exec_driver_sql("INSERT INTO spend_log (spends) VALUES (?)", (entry,))

    def clear(self, connection: Connection) -> None:
        """The pages have all that it says, or will with the caller's transaction."""
        connection.exec_driver_sql("DELETE FROM spend_log")

    def settle(self, connection: Connection) -> None:
        """Write the log's rows to the pages, in a transaction of its own unless the caller's is open."""
        with transaction(connection):
            if not fetch(connection, "SELECT entry FROM spend_log LIMIT 1"):
                return
        with transaction(connection):
            _lock(connection)  # several who share the file may be here, and all but one find the log empty
            newest = RowMemory()
            for (entry,) in fetch(connection, "SELECT entry FROM spend_log ORDER BY entry"):
                ((blob,),) = fetch(connection, "SELECT spends FROM spend_log WHERE entry = ?", (entry,))
                keys, rows = page_codec.unpack([0], [blob])
                slots = newest.find(keys, np.ones(len(keys), dtype=np.bool_))
                newest.fill(np.zeros((len(newest.unread), ROW)), np.zeros(len(newest.unread), dtype=np.bool_))
                newest.rows[slots] = rows
            self.write(connection, np.arange(newest.n), newest.keys, newest.rows)
            self.clear(connection)


def take_rows(connection: Connection) -> None:
    """A migration: until now, `spends` had a row for each subject; see `postgres_rows`."""
    from streamdp.ledger.postgres_rows import unpack

    pages, last = SpendPages(), b""
    while old := fetch(
        connection, "SELECT subject, spend FROM spends WHERE subject > ? ORDER BY subject LIMIT 65536", (last,)
    ):
        keys, rows = unpack(old)
        pages.write(connection, np.arange(len(keys)), keys, rows)
        last = old[-1][0]
    connection.exec_driver_sql("DROP TABLE spends")


def _lock(connection: Connection) -> None:
    """Write nothing, so that nobody else writes until this transaction ends: a reader that turns writer may be late."""
    connection.exec_driver_sql("DELETE FROM spend_log WHERE entry < 0")


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


def _blobs(connection: Connection, pages: np.ndarray) -> list[bytes]:
    """What there is of these pages, which come in order; nothing where there is no such page."""
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
    return [content.get(page, b"") for page in pages.tolist()]
