"""Files as blocks of complete records, whatever the format.

A file is read in blocks of a few megabytes, and a block is cut at record ends, so that it can be decoded at once.
"""

import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np

from connectors.bytestream import STANDARD_INPUT, ByteStream
from connectors.textform import TextForm
from streamdp.errors import SchemaError, SourceError

_TABLES = {"parquet": b"PAR1\x15", "arrow": b"ARROW1\0\0"}
"""The first bytes of files that are no text, by the `type` of a source that reads them."""
BLOCK_BYTES = 1 << 22
MAX_RECORD_BYTES = 1 << 20
"""A longer record is a dead letter: `too_long`. This bounds the memory, and what one unmatched quote can include."""


@dataclass(frozen=True, slots=True)
class Records:
    """n complete records."""

    data: bytes  # the records with their line ends; it ends with the last of them
    ends: np.ndarray  # (n,) int64, the places in `data` that follow the records
    flaws: dict[int, str]  # the reasons why some records cannot be decoded, by index
    in_order: bool = True  # for CSV: every quote in `data` is at a place that the grammar allows

    @property
    def starts(self) -> np.ndarray:
        """(n,) int64, the places in `data` where the records begin."""
        return np.concatenate(([0], self.ends[:-1]))

    def raw(self, rows: Iterable[int]) -> list[bytes]:
        """Some records without their line ends; `rows` are their indices."""
        some = np.fromiter(rows, np.int64)
        edges = zip(self.starts[some].tolist(), (self.ends[some] - 1).tolist(), strict=True)
        return [self.data[start:end].removesuffix(b"\r") for start, end in edges]

    def lines(self) -> list[bytes]:
        """All records without their line ends."""
        if b'"' in self.data or b"\r" in self.data:
            return self.raw(range(len(self.ends)))
        return self.data.split(b"\n")[:-1]

    def after(self, count: int) -> "Records":
        """The records that follow the first `count`, which is in [1, n]."""
        begin = self.ends[count - 1]
        flaws = {i - count: reason for i, reason in self.flaws.items() if i >= count}
        return replace(self, data=self.data[begin:], ends=self.ends[count:] - begin, flaws=flaws)


class Grammar(Protocol):
    """How a format begins and where its records end."""

    header_rows: int
    """How many records the header counts for in positions."""
    head: str
    """The fingerprint of the header that was read last."""

    def read_header(self, data: bytes, ended: bool) -> int | None:
        """Read the header in the first bytes of a file. Returns its length in bytes, or None if it needs more bytes.

        If `ended`, no bytes follow `data`, and a header without its line end is checked, but not read. Raises
        `SourceError` or `SchemaError` if there is no usable header.
        """

    def split(self, data: bytes, ended: bool) -> Records:
        """Find the complete records of `data`, which begins with a record. If `ended`, no bytes follow.

        The result depends on nothing but the arguments.
        """


class Blocks(Protocol):
    """A file as blocks of complete records."""

    header_rows: int
    head: str
    has_header: bool
    row: int
    """How many records were returned, and those of the header."""
    name: str
    """The name of the file in messages."""

    @property
    def share(self) -> float | None:
        """The share of the file that was read, from 0 to 1; None if that is unknown."""

    @property
    def unended(self) -> bool:
        """True if all complete records were returned, and a part of one is left in the file."""

    @property
    def finished(self) -> bool:
        """True if the stream has ended and all complete records were returned."""

    def next(self, timeout_s: float) -> Records | None:
        """The next complete records, one or more; None if none came within `timeout_s`, or the stream has ended."""

    def close(self) -> None:
        """Close the file. Safe to call twice."""


class RecordBlocks(Blocks):
    """A file as blocks of complete records. `path`, `follow` and `form` are as for `files.CSVSource`.

    If the file is known to be `whole`, a last line without its end is a record. Raises `SourceError` if the file cannot
    be opened, and what `Grammar.read_header` raises. The header of standard input is read when it arrives.
    """

    def __init__(
        self, path: str, grammar: Grammar, *, follow: bool = False, whole: bool = False, form: TextForm | None = None
    ) -> None:
        self._grammar = grammar
        self._whole = whole
        self._stream = ByteStream(path, follow=follow, form=form)
        self._passed_over = "" if form is None else form.passed_over
        self._ended = False  # the stream gave its last byte
        self._tail = b""  # read, but not returned
        self._rest = b""  # read, and follows the tail
        self._in_overlong = False  # the tail is the rest of a record that is already too long
        self._waiting = False  # the tail holds no complete record, and nothing follows it at present
        self.header_rows, self.head = grammar.header_rows, ""
        self.has_header = False
        self.row = 0
        self.name = self._stream.name
        if path != "-":
            self._fill(0.0)

    @property
    def share(self) -> float | None:
        return self._stream.share

    @property
    def unended(self) -> bool:
        return self._waiting and bool(self._tail or self._in_overlong)

    @property
    def finished(self) -> bool:
        return self._ended and (self._waiting or not (self._tail or self._in_overlong))

    def next(self, timeout_s: float) -> Records | None:
        deadline = time.monotonic() + timeout_s
        while True:
            progress = self._fill(max(0.0, deadline - time.monotonic()))
            size = len(self._tail)
            records = self._cut() if self.has_header else None
            self._waiting = records is None and not progress and len(self._tail) == size
            if records is not None:
                self.row += len(records.ends)
                return records
            if self._waiting:
                return None

    def close(self) -> None:
        self._stream.close()

    def _fill(self, timeout_s: float) -> bool:
        """Read until the tail is a block long or nothing more is there. True if bytes or the end came."""
        pieces: list[Any] = [self._tail, self._rest]
        size, progress = len(self._tail) + len(self._rest), False
        while size < BLOCK_BYTES and not self._ended:
            data = self._stream.read(BLOCK_BYTES - size, 0.0 if progress else timeout_s)
            if data is None:
                break
            progress = True
            self._ended = not data
            pieces.append(data)
            size += len(data)
        cut = pieces[-1].rfind(b"\n") + 1 if size >= BLOCK_BYTES else 0
        if cut:  # usually a record end: then the block is the tail itself, and is not copied again
            pieces[-1], self._rest = memoryview(pieces[-1])[:cut], pieces[-1][cut:]
        else:
            self._rest = b""
        self._tail = b"".join(pieces)
        if self._ended and self._whole and (self._tail or self._in_overlong) and not self._tail.endswith(b"\n"):
            self._tail += b"\n"
        if not self.has_header:
            self._cut_header()
        return progress

    def _cut_header(self) -> None:
        try:
            for kind, magic in _TABLES.items():
                if self._tail.startswith(magic):
                    fix = "write its rows as CSV" if self.name == STANDARD_INPUT else f"set source.type: {kind}"
                    raise SourceError(f"this is a {kind.capitalize()} file and no text: {fix}")
            length = self._grammar.read_header(self._tail, self._ended)
        except (SchemaError, SourceError) as error:
            self.close()
            raise type(error)(f"{self.name}: {error}") from None
        if length is not None:
            self.has_header, self.head = True, self._grammar.head + self._passed_over
            self._tail = self._tail[length:]
            self.row = self.header_rows

    def _cut(self) -> Records | None:
        """Cut the complete records off the tail; None if there is none."""
        if self._in_overlong:
            newline = self._tail.find(b"\n")
            self._in_overlong = newline < 0
            self._tail = self._tail[newline + 1 or len(self._tail) :]
            return None if self._in_overlong else Records(b"\n", np.array([1]), {0: "too_long"})
        if not self._tail:
            return None
        records = self._grammar.split(self._tail, self._ended)
        if len(records.ends):
            self._tail = self._tail[records.ends[-1] :]
            return records
        if len(self._tail) > MAX_RECORD_BYTES:
            self._in_overlong = True
            self._tail = b""
        return None


def find_byte(data: bytes, byte: bytes) -> np.ndarray:
    """The places of a byte in `data`, (k,) int64."""
    found = [np.flatnonzero(hits) + start for start, hits in _hits(data, byte)]
    return np.concatenate(found) if found else np.zeros(0, dtype=np.int64)


def count_byte(data: bytes, byte: bytes) -> int:
    """How often a byte occurs in `data`; faster than `bytes.count` if it is frequent."""
    return sum(int(np.count_nonzero(hits)) for _, hits in _hits(data, byte))


def _hits(data: bytes, byte: bytes) -> Iterator[tuple[int, np.ndarray]]:
    """Masks of pieces of the data with their starts; one mask of all data would not fit into the cache."""
    text, value, size = np.frombuffer(data, np.uint8), ord(byte), 1 << 17
    for start in range(0, len(text), size):
        yield start, text[start : start + size] == value


def cut_lines(data: bytes) -> Records:
    """Records that are lines. What follows the last line end in `data` is left out."""
    ends = find_byte(data, b"\n") + 1
    if len(ends) == 0:
        return Records(b"", ends, {})
    too_long = np.flatnonzero(np.diff(ends, prepend=0) > MAX_RECORD_BYTES).tolist()
    return Records(data[: ends[-1]], ends, dict.fromkeys(too_long, "too_long"))
