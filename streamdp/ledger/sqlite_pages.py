"""Spends in an SQLite file: pages of subjects, and a write-ahead log of rows.

A table with one row for each subject misses the goal of `benchmarks/ledger.md` by far: each subject costs a search in
the tree and Python objects, and a commit of 10,000 subjects among millions changes nearly as many pages of the file.
Here, a row of the table is a page of about 30 subjects whose hashes begin with the same bits, read and written by
compiled code (`page_codec`). A process that has the file for itself appends what a commit changed to the log, and
writes the pages from time to time, many subjects at once.

The pages of depth d have the numbers 2^d to 2^(d+1) - 1: a one, followed by the first d bits of the hash. All pages
have the same depth. It grows when a page has more than `PAGE_ROWS` subjects. An entry of the log is packed as a page
with the number 0.
"""

from collections.abc import Iterator
from itertools import chain
from typing import Any

import numpy as np

from streamdp.database.interface import Connection
from streamdp.ledger import page_codec
from streamdp.ledger.ledger_rows import lock, read_version
from streamdp.ledger.page_codec import Group
from streamdp.ledger.row_cache import RowCache, nothing
from streamdp.ledger.rows import ROW
from streamdp.ledger.sql import transaction
from streamdp.ledger.subject_key import period_of

PAGE_ROWS = 48
"""The most subjects of a page."""

_CHUNK = 1024
"""How many pages are read or written at once."""

_REPLACE = "REPLACE INTO spend_pages (page, subjects, spends) VALUES (?, ?, ?)"


class SpendPages:
    """The rows of all subjects in a file (see `rows`), by the keyed hashes of the subjects.

    The head of this module describes the tables. `postgres_rows.SpendRows` does the same on a server.
    """

    excludes = True
    """Whether one transaction that writes rows excludes all others. Otherwise a row is written only if it is still the
    one that the writer knows, and two writers wait for each other only where they write the same rows."""

    def version(self, connection: Connection) -> int:
        """Return the version of the ledger. It grows with each transaction that excludes others and changes rows.

        It is read outside of transactions: one would wait for other writers.
        """
        return read_version(connection)

    def count(self, connection: Connection) -> int:
        """Return the number of subjects."""
        with transaction(connection):
            ((n,),) = connection.fetch("SELECT COALESCE(SUM(subjects), 0) FROM spend_pages")
        return int(n)

    def every(self, connection: Connection) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """Yield the keys and rows of all subjects in groups: (n, 2) uint64 and (n, ROW).

        Raises `StoreDamagedError` if a row fails its check. A row of the log replaces the row of a page.
        """
        newest = _newest(connection)
        logged = {key.tobytes() for key in newest.keys[: newest.n]}
        for pages in _chunks(connection):
            keys, rows = page_codec.unpack(*zip(*pages, strict=True))
            kept = np.array([key.tobytes() not in logged for key in keys], dtype=np.bool_)
            yield keys[kept], rows[kept]
        yield newest.keys[: newest.n], newest.rows[: newest.n]

    def read(self, connection: Connection, keys: np.ndarray, *, hold: bool = False) -> tuple[np.ndarray, np.ndarray]:
        """Return the rows (n, ROW) of some subjects, and whether each is in the database (n,) bool.

        `keys` (n, 2) uint64 are the little-endian words of the hashes. To `hold` the rows keeps other writers from them
        until the end of the caller's transaction. Raises `StoreDamagedError` if a row fails its check.
        """
        rows, found = np.zeros((len(keys), ROW)), np.zeros(len(keys), dtype=np.bool_)
        with transaction(connection):
            depth = _depth(connection) or 0
            for group in _by_page(keys, np.arange(len(keys)), depth):
                page_codec.pick(group, _blobs(connection, group.pages), keys, rows, found)
        return rows, found

    def enter(self, connection: Connection) -> int:
        """Begin to write rows, inside the caller's transaction; return the version that the ledger had before."""
        return lock(connection) - 1

    def write(
        self, connection: Connection, keys: np.ndarray, rows: np.ndarray, before: np.ndarray, there: np.ndarray
    ) -> bool:
        """Write rows (m, ROW) of the subjects `keys` (m, 2), inside the caller's transaction, after `enter`.

        `before` (m, ROW) are those that the database has, as far as is known, and `there` (m,) says of which subjects
        it has any. If another writer has changed one of them, nothing is written and False is returned. A row has
        changed if its number of records or its own cap has: each charge adds a record.
        """
        self._replace(connection, keys, rows)
        return True

    def _replace(self, connection: Connection, keys: np.ndarray, rows: np.ndarray) -> None:
        """Write rows, whatever was there before."""
        places = np.arange(len(keys))
        depth = _depth(connection)
        if depth is None:
            depth = (2 * len(places) // PAGE_ROWS).bit_length()
        most = self._write_at(depth, connection, places, keys, rows)
        while most > PAGE_ROWS:
            deeper = depth + (most // PAGE_ROWS).bit_length()
            most = self._deepen(connection, depth, deeper)
            depth = deeper

    def _write_at(
        self, depth: int, connection: Connection, places: np.ndarray, keys: np.ndarray, rows: np.ndarray
    ) -> int:
        """Write rows to pages of this depth; returns the number of subjects of the fullest page written."""
        most = 0
        for group in _by_page(keys, places, depth):
            blobs, sizes = page_codec.merge(group, _blobs(connection, group.pages), keys, rows)
            pages = list(zip(group.pages.tolist(), sizes.tolist(), blobs, strict=True))
            connection.change_each(_REPLACE, pages)
            most = max(most, int(sizes.max()))
        return most

    def _deepen(self, connection: Connection, depth: int, deeper: int) -> int:
        """Move all pages to a greater depth, inside the caller's transaction; returns the size of the fullest page."""
        most = 0
        for pages in _chunks(connection, 2 << depth):
            keys, rows = page_codec.unpack(*zip(*pages, strict=True))
            connection.change("DELETE FROM spend_pages WHERE page <= ?", (pages[-1][0],))
            most = max(most, self._write_at(deeper, connection, np.arange(len(keys)), keys, rows))
        return most

    def delete_before(self, connection: Connection, period: int) -> None:
        """Delete the rows of periods before `period` (see `subject_key.period_of`), inside the caller's transaction."""
        self.checkpoint(connection)
        for page, blob in chain.from_iterable(_chunks(connection)):
            keys, rows = page_codec.unpack([page], [blob])
            periods = period_of(keys)
            kept = (periods == 0) | (periods >= period)
            if not kept.all():
                values = (page, int(np.count_nonzero(kept)), page_codec.pack(page, keys[kept], rows[kept]))
                connection.change(_REPLACE, values)

    def append(self, connection: Connection, keys: np.ndarray, rows: np.ndarray) -> None:
        """Add keys (n, 2) uint64 and rows (n, ROW) to the log, in the caller's transaction. The newest row counts."""
        connection.change("INSERT INTO spend_log (spends) VALUES (?)", (page_codec.pack(0, keys, rows),))

    def clear(self, connection: Connection) -> None:
        """Remove the log, inside the caller's transaction, which also writes its rows to the table."""
        connection.change("DELETE FROM spend_log")

    def checkpoint(self, connection: Connection) -> None:
        """Write the log's rows to the table and clear the log, in one transaction: the caller's if one is open.

        If there were any, this changes the version of the ledger (see `ledger_rows.lock`).
        """
        with transaction(connection):
            if not connection.fetch("SELECT entry FROM spend_log LIMIT 1"):
                return
            lock(connection)
            newest = _newest(connection)
            self._replace(connection, newest.keys[: newest.n], newest.rows[: newest.n])
            self.clear(connection)


def _chunks(connection: Connection, end: int = 1 << 62) -> Iterator[list[tuple[Any, ...]]]:
    """The numbers and the content of all pages before a number, in ascending order, some at a time.

    The caller may replace and delete pages that it has got.
    """
    last = 0
    while pages := connection.fetch(
        "SELECT page, spends FROM spend_pages WHERE page > ? AND page < ? ORDER BY page LIMIT ?", (last, end, _CHUNK)
    ):
        yield pages
        last = pages[-1][0]


def _newest(connection: Connection) -> RowCache:
    """The newest row of each subject in the log."""
    newest = RowCache()
    for (entry,) in connection.fetch("SELECT entry FROM spend_log ORDER BY entry"):
        ((blob,),) = connection.fetch("SELECT spends FROM spend_log WHERE entry = ?", (entry,))
        keys, rows = page_codec.unpack([0], [blob])
        slots = newest.find(keys, np.ones(len(keys), dtype=np.bool_), nothing)
        newest.rows[slots] = rows
    return newest


def _depth(connection: Connection) -> int | None:
    """The depth of the pages; None if there are no pages."""
    ((last,),) = connection.fetch("SELECT MAX(page) FROM spend_pages")
    return None if last is None else int(last).bit_length() - 1


def _by_page(keys: np.ndarray, places: np.ndarray, depth: int) -> Iterator[Group]:
    """Group the keys at these places by page, in groups of at most `_CHUNK` pages."""
    number = keys[places, 0]
    number.byteswap(inplace=True)  # the bits of the first byte become the highest: pages are in the order of hashes
    number >>= np.uint64(1)  # two shifts, because a shift by 64 has no effect; in place, because there may be millions
    number >>= np.uint64(63 - depth)
    number |= np.uint64(1 << depth)
    number = number.view(np.int64)
    by_number = np.argsort(number)
    number, order = number[by_number], places[by_number]
    del by_number
    starts = np.flatnonzero(np.diff(number, prepend=0, append=0))
    pages = number[starts[:-1]]
    for i in range(0, len(pages), _CHUNK):
        chunk = starts[i : i + _CHUNK + 1]
        yield Group(pages[i : i + _CHUNK], chunk - chunk[0], order[chunk[0] : chunk[-1]])


def _blobs(connection: Connection, pages: np.ndarray) -> list[bytes]:
    """The content of these pages, which are in ascending order; empty for a page that does not exist."""
    first, last = int(pages[0]), int(pages[-1])
    if last - first < 2 * len(pages):
        found = connection.fetch("SELECT page, spends FROM spend_pages WHERE page BETWEEN ? AND ?", (first, last))
    else:
        asked = pages.tolist()
        # The last page is repeated until the length is a power of two, so that eleven prepared statements are enough.
        asked += asked[-1:] * ((1 << (len(asked) - 1).bit_length()) - len(asked))
        marks = ",".join("?" * len(asked))
        found = connection.fetch(f"SELECT page, spends FROM spend_pages WHERE page IN ({marks})", tuple(asked))
    content = dict(found)
    return [content.get(page, b"") for page in pages.tolist()]
