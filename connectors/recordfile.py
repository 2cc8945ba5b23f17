"""What every file of records has in common: blocks, batches that are slices of them, positions, bad records.

A file is read in blocks of a few megabytes. A block is cut at record ends, decoded at once, and handed out in slices,
so a later run can go on after any record, whatever the sizes of blocks and batches were. Positions are published, so
they count records and hold no byte offset: that would tell how long the records are, and so what they say.
"""

from __future__ import annotations

import os
import time
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import polars as pl

from connectors.bytestream import ByteStream
from streamdp.data.records import Batch, DeadLetter, Encoder, Position
from streamdp.errors import ConfigError, SourceError, TooManyBadRecordsError

BLOCK_BYTES = 1 << 22
MAX_RECORD_BYTES = 1 << 20
"""A longer record is a dead letter: `too_long`. It bounds memory, and what one stray quote can swallow."""


@dataclass(frozen=True, slots=True)
class Records:
    """Complete records: `data` ends with the last of them, `ends` is (n,) int64, `flaws` are reasons by index."""

    data: bytes
    ends: np.ndarray
    flaws: dict[int, str]
    in_order: bool = True
    """For CSV: every quote in `data` is where a quote belongs."""

    @property
    def starts(self) -> np.ndarray:
        return np.concatenate(([0], self.ends[:-1]))

    def raw(self, rows: Iterable[int]) -> list[bytes]:
        """The bytes of some records, without their line ends."""
        starts, data = self.starts, self.data
        cut = [data[starts[i] : self.ends[i] - 1] for i in rows]
        return [r[:-1] if r.endswith(b"\r") else r for r in cut]


@dataclass(frozen=True, slots=True)
class _Block:
    """Decoded records, good or dead, up to a row."""

    batch: Batch
    dead_rows: np.ndarray
    last_row: int


class RecordFile(ABC):
    """A file of records, one after another; a `records.Source`. Subclasses know the format.

    A position is {"row": records so far (a header is one), "bad": dead letters so far by reason, "head": fingerprint
    of the header}.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        encoder: Encoder,
        *,
        follow: bool = False,
        max_bad_share: float | None = 0.1,
        min_bad: int = 100,
        keep_payload: bool = False,
    ) -> None:
        if max_bad_share is not None and not 0 <= max_bad_share <= 1:
            raise ConfigError(f"expected max_bad_share in [0, 1] or None, got {max_bad_share}")
        self.path = os.fspath(path)
        if follow and self.path == "-":
            raise ConfigError("standard input cannot be followed: it ends where it ends")
        self._encoder = encoder
        self._follow = follow
        self._max_bad_share = max_bad_share
        self._min_bad = min_bad
        self._keep_payload = keep_payload
        self._nothing = encoder.encode(
            pl.DataFrame(schema=dict.fromkeys(encoder.columns, pl.String)), np.zeros(0, np.int64), {}
        )
        self._closed = False
        self._open()

    def _open(self) -> None:
        self._stream = ByteStream(self.path, follow=self._follow)
        self._ended = False  # the stream gave its last byte
        self._tail = b""  # read, but not yet decoded
        self._tail_row = 0  # records before the tail
        self._rest = b""  # read, and comes after the tail
        self._in_overlong = False  # the tail is the rest of a record that is already too long
        self._has_header = False
        self._head = ""
        self._block: _Block | None = None
        self._row = 0  # polled; more than `_tail_row` while records are passed over
        self._passed: Counter[str] = Counter()  # flaws of the records passed over
        self._bad: Counter[str] = Counter()
        if self.path != "-":  # a wrong header shows at once; on standard input, only when it comes
            self._fill(0.0)

    @property
    def position(self) -> Position:
        """The position after the last polled record."""
        return {"row": self._row, "bad": dict(self._bad), "head": self._head}

    @property
    def finished(self) -> bool:
        """True once everything was polled; not before too many bad records at the end were reported."""
        return self._closed or (self._read_out and not self._too_many_bad())

    def poll(self, max_records: int, timeout_s: float) -> Batch:
        """At most `max_records` records, dead letters included; empty if there is none within `timeout_s` seconds.

        Raises `TooManyBadRecordsError` in the poll after the one that went over the limit, so what was good before
        can be committed; `SourceError` if the file cannot be read.
        """
        if self._too_many_bad():
            reason, count = self._bad.most_common(1)[0]
            raise TooManyBadRecordsError(
                f"{self.path}: {self._bad.total()} of {self._records} records cannot be decoded, most often for "
                f"{reason!r} ({count}); the limit is a share of {self._max_bad_share:g}. See the dead letters, mend "
                "the file or the schema, or raise max_bad_share."
            )
        deadline = time.monotonic() + timeout_s
        while self._block is None and not self._closed:
            progress = self._fill(max(0.0, deadline - time.monotonic()))
            self._block = self._next_block()
            if not progress and self._block is None:
                break
        return self._slice(max_records)

    def seek(self, position: Position) -> None:
        """Continue at `position`. Raises `SourceError` if this file cannot be the one the position came from."""
        row, bad = position.get("row"), position.get("bad")
        if not (isinstance(row, int) and isinstance(bad, dict) and row >= 0):
            raise SourceError(f"{self.path}: expected the position of a file, got another one")
        if position == self.position:
            return
        if self.path == "-":
            raise SourceError("standard input cannot be read again from an earlier position; give a file instead")
        self._stream.close()
        self._open()
        if row == 0:
            return
        if self._has_header:
            if position.get("head") != self._head:
                raise SourceError(
                    f"{self.path} has another header than the file this job has read so far: it was replaced. Give "
                    "the original file, or start a new job."
                )
            self._row, self._bad = row, Counter(bad)
            if self._pass_over():
                return
        raise SourceError(
            f"{self.path} does not hold the {row - self._header_rows} records this job has read so far: it was cut "
            "short or replaced. Give the original file, or start a new job."
        )

    def _pass_over(self) -> bool:
        """Read on to row `_row` without decoding; False if there are not the records that were polled before."""
        while self._tail_row < self._row:
            progress = self._fill(0.0)
            size = len(self._tail)
            self._block = self._next_block()
            if not progress and len(self._tail) == size and self._tail_row < self._row:
                # The last record had no line end when it was polled, and its rest may still come.
                unended = self._follow and bool(self._tail or self._in_overlong)
                return unended and self._row == self._tail_row + 1
        return all(self._passed[reason] == self._bad[reason] for reason in ("malformed_quotes", "too_long"))

    def commit(self, position: Position) -> None:  # noqa: B027
        """Nothing: a file has no broker to tell."""

    def close(self) -> None:
        """Stop, also while following. Safe to call twice."""
        self._closed = True
        self._stream.close()

    @property
    def _records(self) -> int:
        return self._row - self._header_rows

    @property
    def _read_out(self) -> bool:
        return self._ended and not self._tail and not self._in_overlong and self._block is None

    def _too_many_bad(self) -> bool:
        bad = self._bad.total()
        if self._max_bad_share is None or bad <= self._max_bad_share * self._records:
            return False
        all_bad_at_end = self._read_out and bad == self._records
        return bad >= self._min_bad or all_bad_at_end

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
        if cut:  # mostly a record end: then the block is the tail itself, and is not copied again
            pieces[-1], self._rest = memoryview(pieces[-1])[:cut], pieces[-1][cut:]
        else:
            self._rest = b""
        self._tail = b"".join(pieces)
        if not self._has_header:
            self._drop_header()
        return progress

    def _drop_header(self) -> None:
        length = self._read_header(self._tail, self._ended)
        if length is not None:
            self._has_header = True
            self._tail = self._tail[length:]
            self._tail_row = self._row = self._header_rows

    def _next_block(self) -> _Block | None:
        """Decode the complete records of the tail but those to be passed over; None if there is none."""
        if not self._has_header:
            return None
        if self._in_overlong:
            return self._end_overlong()
        if not self._tail:
            return None
        unended = self._ended and not self._tail.endswith(b"\n")
        records = self._split(self._tail + b"\n" if unended else self._tail, self._ended)
        if len(records.ends) == 0:
            if len(self._tail) > MAX_RECORD_BYTES:
                self._in_overlong = True
                self._tail = b""
            return None
        behind = min(self._row - self._tail_row, len(records.ends))
        if behind:
            self._passed.update(reason for i, reason in records.flaws.items() if i < behind)
            self._tail = self._tail[records.ends[behind - 1] :]
            self._tail_row += behind
            return self._next_block()
        rows = np.arange(self._tail_row + 1, self._tail_row + 1 + len(records.ends))
        batch = self._decode(records, rows)
        if self._keep_payload and batch.dead:
            payloads = records.raw(letter.position - self._tail_row - 1 for letter in batch.dead)
            dead = [replace(d, payload=payload) for d, payload in zip(batch.dead, payloads, strict=True)]
            batch = replace(batch, dead=dead)
        self._tail = self._tail[records.ends[-1] :]
        return self._advance(batch, len(rows))

    def _end_overlong(self) -> _Block | None:
        newline = self._tail.find(b"\n")
        if newline < 0 and not self._ended:
            self._tail = b""
            return None
        self._in_overlong = False
        self._tail = self._tail[newline + 1 or len(self._tail) :]
        if self._row > self._tail_row:
            self._passed["too_long"] += 1
            self._tail_row += 1
            return self._next_block()
        return self._advance(replace(self._nothing, dead=[DeadLetter(self._tail_row + 1, "too_long")]), 1)

    def _advance(self, batch: Batch, rows: int) -> _Block:
        self._tail_row += rows
        dead_rows = np.array([letter.position for letter in batch.dead], dtype=np.int64)
        return _Block(batch, dead_rows, self._tail_row)

    def _slice(self, max_records: int) -> Batch:
        block = self._block
        if block is None:
            return replace(self._nothing, position=self.position)
        stop = min(self._row + max_records, block.last_row)
        edges = (self._row + 1, stop + 1)
        good = slice(*np.searchsorted(block.batch.positions, edges).tolist())
        dead = block.batch.dead[slice(*np.searchsorted(block.dead_rows, edges).tolist())]
        self._row = stop
        self._bad.update(letter.reason for letter in dead)
        if stop == block.last_row:
            self._block = None
        whole = block.batch
        return Batch(
            features=whole.features,
            X=whole.X[good],
            y=whole.y[good],
            positions=whole.positions[good],
            position=self.position,
            subjects=None if whole.subjects is None else whole.subjects[good],
            budgets=None if whole.budgets is None else whole.budgets[good],
            dead=dead,
        )

    _header_rows: int

    @abstractmethod
    def _read_header(self, data: bytes, ended: bool) -> int | None:
        """Read the header, if the format has one; its length in bytes, or None if more bytes are needed."""

    @abstractmethod
    def _split(self, data: bytes, ended: bool) -> Records:
        """Cut `data` (line-ended if `ended`) at record ends; the result may depend on nothing but where it starts."""

    @abstractmethod
    def _decode(self, records: Records, rows: np.ndarray) -> Batch:
        """Encode complete records; `rows` are their numbers, (n,) int64."""


def find_byte(data: bytes, byte: bytes) -> np.ndarray:
    """The places of a byte, (k,) int64."""
    found = [np.flatnonzero(hits) + start for start, hits in _hits(data, byte)]
    return np.concatenate(found) if found else np.zeros(0, dtype=np.int64)


def count_byte(data: bytes, byte: bytes) -> int:
    """How often a byte occurs; faster than `bytes.count` where it is frequent."""
    return sum(int(np.count_nonzero(hits)) for _, hits in _hits(data, byte))


def _hits(data: bytes, byte: bytes) -> Iterator[tuple[int, np.ndarray]]:
    """Masks of pieces of the data with their starts: one mask of it all would leave the cache."""
    text, value, size = np.frombuffer(data, np.uint8), ord(byte), 1 << 17
    for start in range(0, len(text), size):
        yield start, text[start : start + size] == value


def cut_lines(data: bytes) -> Records:
    """Records that are lines."""
    ends = find_byte(data, b"\n") + 1
    if len(ends) == 0:
        return Records(b"", ends, {})
    too_long = np.flatnonzero(np.diff(ends, prepend=0) > MAX_RECORD_BYTES).tolist()
    return Records(data[: ends[-1]], ends, dict.fromkeys(too_long, "too_long"))
