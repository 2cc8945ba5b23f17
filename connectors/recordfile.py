"""Files of records as sources: blocks become batches that are slices of them, with positions and dead letters.

While the records of a block are used, a second thread reads and decodes the next block, unless the file may still
grow. A later run can continue after any record, whatever the sizes of blocks and batches were. Positions are public.
They count records and hold no byte offset: an offset would reveal how long the records are, and so what they say.
Several files in order are one source, too (`FileList`).
"""

import os
import time
from abc import abstractmethod
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, replace
from hashlib import blake2b

import numpy as np
import polars as pl

from connectors.recordblocks import Blocks, Grammar, RecordBlocks, Records
from connectors.textform import TextForm
from streamdp.data.records import Batch, Encoder, Position, Source, check_poll
from streamdp.errors import ConfigError, SourceError, TooManyBadRecordsError, check_path, is_number

FIRST = 64
"""How many records of a file are in its digest."""
LEAST_BAD = 100
"""So many bad records stop a run in the middle of a file, if they are too large a share."""


@dataclass(frozen=True, slots=True)
class _Block:
    """Decoded records, good or dead, up to a row."""

    batch: Batch
    dead_rows: np.ndarray
    last_row: int


class RecordFile(Source):
    """A file of records, one after another. Subclasses know the format.

    A position is {"row": records so far (a header is one), "bad": dead letters so far by reason, "head": fingerprint of
    the header, "first": keyed digest of the first records, if `recognise` was called}. For `path`, `follow`,
    `max_bad_share`, `keep_payload` and `form` see `files.CSVSource`.
    """

    _grammar: Grammar
    """The format of a file of text; a subclass sets it before it calls `__init__`."""

    def __init__(
        self,
        path: str | os.PathLike[str],
        encoder: Encoder,
        *,
        follow: bool = False,
        max_bad_share: float | None = 0.05,
        keep_payload: bool = False,
        form: TextForm | None = None,
    ) -> None:
        if max_bad_share is not None and not (is_number(max_bad_share) and 0 <= max_bad_share <= 1):
            raise ConfigError(f"expected max_bad_share in [0, 1] or None, got {max_bad_share}")
        self.path = check_path("path", path)
        if follow and self.path == "-":
            raise ConfigError("standard input cannot be followed: it ends when its writer closes it")
        self._encoder = encoder
        self._follow = follow
        self._max_bad_share = max_bad_share
        self._keep_payload = keep_payload
        self._form = form
        self._nothing = encoder.encode(
            pl.DataFrame(schema=dict.fromkeys(encoder.columns, pl.String)), np.zeros(0, np.int64), {}
        )
        self._closed = False
        self._key: bytes | None = None
        self._thread = ThreadPoolExecutor(1, "streamdp-decode")  # it starts with the first task
        self._open()

    def recognise(self, key: bytes) -> None:
        """Distinguish this file from others with the same header: positions get a digest of its first `FIRST` records.

        Call it before the first poll or seek, with the same key in every run: 32 to 64 secret bytes, without which
        the digest cannot be compared with a guess of the records.
        """
        self._key = key

    def _open(self) -> None:
        self._blocks = self._read_blocks()
        self._block: _Block | None = None
        self._ahead: Future[_Block | None] | None = None  # the block after it; nothing else reads the file meanwhile
        self._polled = 0  # 0 until a record was polled; more than `_blocks.row` while records are passed over
        self._passed: Counter[str] = Counter()  # flaws of the records passed over
        self._bad: Counter[str] = Counter()
        self._bad_column: str | None = None  # of the last dead letter
        self._digests = [b""]  # of the first records, none to all

    def _read_blocks(self) -> Blocks:
        return RecordBlocks(self.path, self._grammar, follow=self._follow, form=self._form)

    @property
    def share(self) -> float | None:
        """The share of the file that was polled, from 0 to 1; None if that is unknown."""
        share, rows = self._blocks.share, self._blocks.row
        return share if share is None or not rows else share * min(1.0, self._row / rows)

    @property
    def _row(self) -> int:
        return self._polled or (self._blocks.header_rows if self._blocks.has_header else 0)

    @property
    def position(self) -> Position:
        position = {"row": self._row, "bad": dict(self._bad), "head": self._blocks.head}
        if self._key is not None:
            position["first"] = self._digests[max(0, min(self._records, len(self._digests) - 1))].hex()
        return position

    @property
    def unended(self) -> list[str]:
        """The name of the file if all complete records were polled, and a last line without its end is left."""
        self._take_ahead()
        left = self._block is None and self._ahead is None and self._blocks.unended
        return [self._blocks.name] if left else []

    @property
    def finished(self) -> bool:
        """True once everything was polled; not before too many bad records at the end were reported."""
        self._take_ahead()
        return self._closed or (self._read_out and not self._too_many_bad())

    def poll(self, max_records: int, timeout_s: float) -> Batch:
        """See `records.Source.poll`.

        Raises `TooManyBadRecordsError` in the poll after the one that exceeded the limit, so that the good records
        before it can be committed; `SourceError` if the file cannot be read.
        """
        check_poll(max_records, timeout_s)
        self._take_ahead()
        if self._too_many_bad():
            reason, count = self._bad.most_common(1)[0]
            last = "" if self._bad_column is None else f", the last in column {self._bad_column!r}"
            raise TooManyBadRecordsError(
                f"{self._blocks.name}: {self._bad.total()} of {self._records} records do not fit the schema, most "
                f"often for {reason!r} ({count}){last}; the limit is a share of {self._max_bad_share:g}. See "
                "`streamdp check` or the dead letters, fix the file or the schema, or raise source.max_bad_share."
            )
        if self._block is None and self._ahead is not None:
            failed, self._ahead = self._ahead, None
            failed.result()
        deadline = time.monotonic() + timeout_s
        while self._block is None and not self._closed:
            records = self._blocks.next(max(0.0, deadline - time.monotonic()))
            if records is None:
                break
            self._block = self._decoded(records)
        growing = self._follow or self.path == "-"  # more bytes may come later than the call that asks for them
        if self._block is not None and self._ahead is None and not (growing or self._blocks.finished):
            self._ahead = self._thread.submit(self._read_on)
        return self._slice(max_records)

    def _read_on(self) -> _Block | None:
        records = self._blocks.next(0.0)
        return None if records is None else self._decoded(records)

    def _take_ahead(self) -> None:
        """Wait for the block that is decoded ahead, if it is the next one. An error of it stays for `poll`."""
        ahead = self._ahead
        if self._block is None and ahead is not None and ahead.exception() is None:
            block = ahead.result()
            if block is not None and block.last_row > self._row:  # else an interrupted call has taken it
                self._block = block
            self._ahead = None

    def _lost(self) -> bool:
        """Whether a call that was interrupted has read records that nothing holds."""
        self._take_ahead()
        held = self._row if self._block is None else self._block.last_row
        return self._ahead is None and self._blocks.row > held

    def _stop_reading(self) -> None:
        if self._ahead is not None:
            wait([self._ahead])
        self._blocks.close()

    def seek(self, position: Position) -> None:
        """See `records.Source.seek`. Raises `SourceError` if this file cannot be the one of the position."""
        row, bad = (position.get("row"), position.get("bad")) if isinstance(position, dict) else (None, None)
        if not (isinstance(row, int) and isinstance(bad, dict) and row >= 0):
            raise SourceError(f"{self._blocks.name}: expected the position of a file, got another one")
        if position == self.position and not self._lost():
            return
        if self.path == "-":
            raise SourceError("standard input cannot be read again from an earlier position; give a file instead")
        self._stop_reading()
        self._open()
        if row <= self._blocks.header_rows:  # no record was read
            return
        if self._blocks.has_header:
            if position.get("head") != self._blocks.head:
                what = "has another header than the file this job has read so far, or other lines are passed over"
                raise self._another(f"{what}: it was replaced, or source.skip_lines or source.comment was changed")
            self._polled, self._bad = row, Counter(bad)
            if self._pass_over():
                if self._key is not None and position.get("first", now := self.position["first"]) != now:
                    what = "begins with other records than the file this job has read so far: it was replaced"
                    raise self._another(what)
                return
        records = row - self._blocks.header_rows
        what = f"does not hold the {records} records this job has read so far: it was cut short or replaced"
        raise self._another(what)

    def _another(self, what: str) -> SourceError:
        return SourceError(f"{self.path} {what}. Give the original file, or start a new job.")

    def _pass_over(self) -> bool:
        """Read on to the row without decoding; False if there are not the records that were polled before."""
        while self._blocks.row < self._row:
            records = self._blocks.next(0.0)
            if records is None:
                return False
            self._block = self._decoded(records)
        return all(self._passed[reason] == self._bad[reason] for reason in ("malformed_quotes", "too_long"))

    def close(self) -> None:
        """Stop, also while following. Safe to call twice."""
        self._closed = True
        self._stop_reading()
        self._thread.shutdown(wait=False)

    @property
    def _records(self) -> int:
        return self._row - self._blocks.header_rows

    @property
    def _read_out(self) -> bool:
        return self._blocks.finished and self._block is None and self._ahead is None

    def _too_many_bad(self) -> bool:
        bad = self._bad.total()
        if self._max_bad_share is None or bad <= self._max_bad_share * self._records:
            return False
        all_bad_at_end = self._read_out and bad == self._records
        return bad >= LEAST_BAD or all_bad_at_end

    def _decoded(self, records: Records) -> _Block | None:
        """The block that was read last, without the records to pass over; None if there is no other."""
        last = self._blocks.row
        self._digest(records)
        behind = min(max(self._row - (last - len(records.ends)), 0), len(records.ends))
        if behind:
            self._passed.update(reason for i, reason in records.flaws.items() if i < behind)
            records = records.after(behind)
        first = last - len(records.ends)
        if first == last:
            return None
        batch = self._decode(records, np.arange(first + 1, last + 1))
        if self._keep_payload and batch.dead:
            payloads = records.raw(letter.position - first - 1 for letter in batch.dead)
            dead = [
                # No bytes are left of a record that was longer than a block.
                replace(d, payload=None if d.reason == "too_long" and not payload else payload)
                for d, payload in zip(batch.dead, payloads, strict=True)
            ]
            batch = replace(batch, dead=dead)
        return _Block(batch, np.array([letter.position for letter in batch.dead], dtype=np.int64), last)

    def _digest(self, records: Records) -> None:
        """Continue the digests of the first records of the file."""
        if self._key is None or (rest := FIRST + 1 - len(self._digests)) <= 0:
            return
        for i, raw in enumerate(records.raw(range(min(rest, len(records.ends))))):
            known = b"" if i in records.flaws else raw  # of these, the bytes may depend on the size of a block
            state = blake2b(self._digests[-1], digest_size=16, key=self._key, person=b"streamdp-file")
            state.update(known)
            self._digests.append(state.digest())

    def _slice(self, max_records: int) -> Batch:
        block = self._block
        if block is None:
            return replace(self._nothing, position=self.position)
        stop = min(self._row + max_records, block.last_row)
        edges = (self._row + 1, stop + 1)
        good = slice(*np.searchsorted(block.batch.positions, edges).tolist())
        dead = block.batch.dead[slice(*np.searchsorted(block.dead_rows, edges).tolist())]
        self._polled = stop
        self._bad.update(letter.reason for letter in dead)
        if dead:
            self._bad_column = dead[-1].column
        if stop == block.last_row:
            self._block = None
        return replace(block.batch.take(good), position=self.position, dead=dead)

    @abstractmethod
    def _decode(self, records: Records, rows: np.ndarray) -> Batch:
        """Encode complete records; `rows` are their numbers, (n,) int64."""


class FileList(Source):
    """Files that are read one after another, each opened by `build`.

    A position is {"file": how many files were read to their end, "rows": their rows, "names": a digest of their names
    and that of the present one, "inside": the position in the present one}. New files may be added after the present
    one. The row of a record is counted over all files. There is at least one of `paths`. Raises the errors of `build`
    for the first file; those of another file are raised when it is reached.
    """

    def __init__(self, paths: Sequence[str], build: Callable[[str], RecordFile]) -> None:
        self._paths = list(paths)
        self._build = build
        self._key: bytes | None = None
        self._done, self._rows = 0, 0
        self._unended: list[str] = []
        self._file = build(self._paths[0])

    def recognise(self, key: bytes) -> None:
        """See `RecordFile.recognise`: for each file."""
        self._key = key
        self._file.recognise(key)

    @property
    def position(self) -> Position:
        names = self._names(self._done)
        return {"file": self._done, "rows": self._rows, "names": names, "inside": self._file.position}

    @property
    def share(self) -> float | None:
        """The share of the files that was read, as if all were of one size; None if that is unknown."""
        inside = self._file.share
        return None if inside is None else (self._done + inside) / len(self._paths)

    @property
    def unended(self) -> list[str]:
        """The files that were polled up to a last line without its end; that line of all but the last is passed."""
        return self._unended + self._file.unended

    @property
    def finished(self) -> bool:
        """Whether the last file was read to its end."""
        return self._file.finished and self._done == len(self._paths) - 1

    def poll(self, max_records: int, timeout_s: float) -> Batch:
        """As `Source.poll`; a batch has records of one file."""
        check_poll(max_records, timeout_s)
        while self._file.finished and not self.finished:
            following = self._open(self._done + 1)
            self._unended += self._file.unended
            self._file.close()
            self._rows += int(self._file.position["row"])
            self._done, self._file = self._done + 1, following
        batch = self._file.poll(max_records, timeout_s)
        dead = [replace(letter, position=letter.position + self._rows) for letter in batch.dead]
        return replace(batch, positions=batch.positions + self._rows, position=self.position, dead=dead)

    def seek(self, position: Position) -> None:
        """See `records.Source.seek`. Raises `SourceError` if the files so far are not those of the position."""
        done, rows, inside = position.get("file"), position.get("rows"), position.get("inside")
        if not (isinstance(done, int) and isinstance(rows, int) and isinstance(inside, dict)):
            raise SourceError(
                "expected the position of several files, got that of one file; give that file, or start a new job"
            )
        if done >= len(self._paths) or position.get("names") != self._names(done):
            raise SourceError(
                f"the first {done + 1} files have other names than those this job has read so far; new files must come"
                " after them in the order of names. Give the original files, or start a new job."
            )
        self._file.close()
        self._file = self._open(done)
        self._done, self._rows = done, rows
        self._unended = [name for name in self._unended if name in self._paths[:done]]
        self._file.seek(inside)

    def close(self) -> None:
        """Stop. Safe to call twice."""
        self._file.close()

    def _open(self, which: int) -> RecordFile:
        file = self._build(self._paths[which])
        if self._key is not None:
            file.recognise(self._key)
        return file

    def _names(self, done: int) -> str:
        paths = [os.path.abspath(path) for path in self._paths[: done + 1]]
        names = [os.path.basename(path) for path in paths]
        if len(set(names)) < len(names):  # files of one name are told by their folders
            names = [os.path.relpath(path, os.path.commonpath(paths)) for path in paths]
        return blake2b("\0".join(names).encode(errors="surrogateescape"), digest_size=8).hexdigest()
