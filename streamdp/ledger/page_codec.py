"""Pages of spends as bytes: packs and unpacks rows of subjects, finds them and replaces them.

A page, and an entry of the log, is a sequence of little-endian words of 64 bits:

1. a check word over the page's number and all words that follow;
2. a mask with one bit for each column of a row (see `rows`);
3. two words for each subject: its keyed hash;
4. for each bit of the mask that is set, that column: one word for each subject. The other columns are zero for all.

A page without any words has no subjects. The loops over words are compiled: `page_loops`.
"""

from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from streamdp.ledger.page_loops import count_rows, merge_rows, pack_page, pick_rows, unpack_rows
from streamdp.ledger.rows import ROW
from streamdp.ledger.sql import damaged


class Group(NamedTuple):
    """Some pages in ascending order, and which rows belong to each."""

    pages: np.ndarray  # (p,) int64, the numbers of the pages
    starts: np.ndarray  # (p + 1,) int64: the rows of page i are at the places `order[starts[i] : starts[i + 1]]`
    order: np.ndarray  # (m,) int64, places in arrays of keys and rows


class Content(NamedTuple):
    """The words of p pages."""

    bounds: np.ndarray  # (p + 1,) int64: the words of page i are `words[bounds[i] : bounds[i + 1]]`
    words: np.ndarray  # uint64


def pack(page: int, keys: np.ndarray, rows: np.ndarray) -> bytes:
    """Return one page of keys (n, 2) uint64 and rows (n, ROW) float64; number 0 is an entry of the log."""
    out = np.empty(2 + (2 + ROW) * len(keys), dtype=np.uint64)
    end = pack_page(page, keys, rows.view(np.uint64), out)
    return out[:end].astype("<u8", copy=False).tobytes()


def unpack(pages: Sequence[int], blobs: Sequence[bytes]) -> tuple[np.ndarray, np.ndarray]:
    """Return all keys (n, 2) uint64 and rows (n, ROW) float64 of some pages, by their numbers and `blobs`.

    Raises `StoreDamagedError` if a page fails its check.
    """
    content = _content(blobs)
    sizes = _sizes(np.array(pages, dtype=np.int64), content)
    n = int(sizes.sum())
    keys, rows = np.empty((n, 2), dtype=np.uint64), np.empty((n, ROW))
    unpack_rows(content, sizes, keys, rows.view(np.uint64))
    return keys, rows


def pick(group: Group, blobs: Sequence[bytes], keys: np.ndarray, rows: np.ndarray, found: np.ndarray) -> None:
    """Read the rows of the subjects `keys` (n, 2) uint64 from the pages of a group, whose bytes are `blobs`.

    `rows` (n, ROW) float64 and `found` (n,) bool are filled at the places of the subjects that are in their pages.
    Raises `StoreDamagedError` if a page fails its check.
    """
    content = _content(blobs)
    pick_rows(group, content, _sizes(group.pages, content), keys, rows.view(np.uint64), found)


def merge(group: Group, blobs: Sequence[bytes], keys: np.ndarray, rows: np.ndarray) -> tuple[list[bytes], np.ndarray]:
    """Return the pages with some rows replaced or added, and the number of subjects (p,) int64 of each.

    `keys` (n, 2) uint64 and `rows` (n, ROW) float64 are the new ones, and `blobs` the pages of the group. Raises
    `StoreDamagedError` if a page fails its check.
    """
    content = _content(blobs)
    sizes = _sizes(group.pages, content)
    most = sizes + np.diff(group.starts)
    out = np.empty(int(np.sum(2 + (2 + ROW) * most)), dtype=np.uint64)
    ends = np.empty(len(sizes), dtype=np.int64)
    scratch = np.empty((int(most.max(initial=0)), 2 + ROW), dtype=np.uint64)
    merge_rows(group, content, sizes, keys, rows.view(np.uint64), scratch, out, ends)
    packed, cut = out[: ends[-1]].astype("<u8", copy=False).tobytes(), [0, *(8 * ends).tolist()]
    return [packed[a:b] for a, b in pairwise(cut)], sizes


def _content(blobs: Sequence[bytes]) -> Content:
    lengths = np.fromiter(map(len, blobs), dtype=np.int64, count=len(blobs))
    if np.any(lengths % 8):
        raise damaged()
    bounds = np.zeros(len(blobs) + 1, dtype=np.int64)
    np.cumsum(lengths // 8, out=bounds[1:])
    return Content(bounds, np.frombuffer(b"".join(blobs), dtype="<u8").astype(np.uint64, copy=False))


def _sizes(pages: np.ndarray, content: Content) -> np.ndarray:
    """The number of rows (p,) of each page. Raises `StoreDamagedError` if a page fails its check."""
    sizes = np.empty(len(pages), dtype=np.int64)
    if not count_rows(pages, content, sizes):
        raise damaged()
    return sizes
