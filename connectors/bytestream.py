"""Bytes of a file, plain or packed, of a growing file, or of standard input, in order.

An `Unpacker` takes packed bytes that come in any pieces, without waiting for the next piece. The file objects of
Python read until they have enough. On an open pipe that is a wait for a byte that may come much later, while records
that arrived are held back.
"""

import io
import os
import re
import select
import sys
import time
import zlib
from collections.abc import Callable
from hashlib import blake2b
from typing import Any

from connectors.textform import Converter, TextForm
from streamdp.errors import SourceError, file_errors, needing

_GZIP = 31  # zlib's window bits of 15, with the header and the checksum of gzip
_ZSTD_WINDOW = 1 << 31  # bytes: what `zstd --long=31` writes


class DamagedError(Exception):
    """The packed bytes cannot be unpacked."""


class Unpacker:
    """The unpacked bytes of one or more packed streams, which follow each other.

    `new` makes what unpacks one stream, which raises `errors`. A `piece`, so many packed bytes, is unpacked at once:
    what it becomes must fit into little memory. `padding` may be between two streams.
    """

    def __init__(self, new: Callable[[], Any], errors: type[Exception], piece: int, padding: bytes = b"") -> None:
        self._new, self._errors, self._piece, self._padding = new, errors, piece, padding
        self._packed = self._unpacked = b""
        self._frame: Any = None  # what unpacks the present stream; None between two streams
        self._ended = False

    def feed(self, piece: bytes) -> None:
        """Take the next packed bytes; an empty piece is their end. Raises EOFError if they end within a stream."""
        if not piece and self._frame is not None:
            raise EOFError
        self._ended = not piece
        self._packed += piece

    def take(self, size: int) -> bytes | None:
        """Unpack at most `size` bytes: b"" at the end, None if more packed bytes are needed. Raises `DamagedError`."""
        while not self._unpacked:
            if self._frame is None:
                self._packed = self._packed.lstrip(self._padding)
            if not self._packed:
                return b"" if self._ended else None
            self._frame = self._frame or self._new()
            piece, self._packed = self._packed[: self._piece], self._packed[self._piece :]
            try:
                self._unpacked = self._frame.decompress(piece)
            except self._errors:
                raise DamagedError from None
            if self._frame.eof:
                self._packed, self._frame = self._frame.unused_data + self._packed, None
        data, self._unpacked = self._unpacked[:size], self._unpacked[size:]
        return data


def gzip() -> Unpacker:
    """For the members of a gzip file. Zeros between members are padding (RFC 1952, gzip)."""
    return Unpacker(lambda: zlib.decompressobj(_GZIP), zlib.error, 1 << 10, b"\0")  # 1 MiB at most


def zstandard() -> Unpacker:
    """For the frames of a Zstandard file. Raises `SourceError` without the extra `zstd`."""
    with needing("a Zstandard file", "zstd", SourceError):
        from zstandard import ZstdDecompressor, ZstdError
    return Unpacker(ZstdDecompressor(max_window_size=_ZSTD_WINDOW).decompressobj, ZstdError, 512)  # 16 MiB at most


STANDARD_INPUT = "standard input"
"""What messages call it."""
_MAGIC = {"gzip": b"\x1f\x8b", "Zstandard": b"\x28\xb5\x2f\xfd"}
_UNPACKERS = {"gzip": gzip, "Zstandard": zstandard}
_SKIPPABLE = re.compile(rb"[\x50-\x5f]\x2a\x4d\x18")
"""The first bytes of a frame of Zstandard that holds no data (RFC 8878, 3.1.2)."""
_ZIP = b"PK\x03\x04"
_ENDING = {"gzip": ".gz", "Zstandard": ".zst"}
_UNREAD = (".bz2", ".xz")
_PIECE = 1 << 16  # packed bytes that are read at once
_FOLLOW_SLEEP_S = 0.05
_SPAN = 1 << 13
"""A followed file is compared with the first so many bytes that were read of it, and at least so many of the last."""


class ByteStream:
    """The bytes of a file, unpacked as its first bytes say, or of standard input, path `-`.

    With `follow`, the end of a plain file is not the end of the stream, and a packed file is refused. If the text has a
    `form` of its own, its records come in UTF-8. Raises `SourceError` if the file cannot be opened, read or unpacked.
    """

    def __init__(self, path: str, *, follow: bool = False, form: TextForm | None = None) -> None:
        self._path = path
        self.name = STANDARD_INPUT if path == "-" else path
        """What messages call the file."""
        self._follow = follow
        self._head: bytes | None = b""  # the first bytes, until they show what the file is
        self._first = b""  # those of a plain file, which are not given yet
        self._unpacker: Unpacker | None = None
        self._converter = None if form is None else Converter(form)
        self._spans: dict[int, blake2b] = {}  # digests of the first and the last two spans of a followed file
        self._followed_to = 0  # how many bytes of it were read
        self._file: io.BufferedReader
        if path == "-":
            stdin: Any = sys.stdin.buffer
            self._file = stdin if hasattr(stdin, "read1") else io.BufferedReader(stdin)
            return
        with file_errors(SourceError, f"cannot open {path}"):
            self._file = open(path, "rb")  # noqa: SIM115 - `close` closes it
            while self._head is not None:
                self._begin(self._file.read1(len(_MAGIC["Zstandard"])))

    def _begin(self, piece: bytes) -> None:
        """Take the next of the first bytes; b"" is the end of the file."""
        head = (self._head or b"") + piece
        kind = next((kind for kind, magic in _MAGIC.items() if head.startswith(magic)), None)
        if _SKIPPABLE.match(head):
            kind = "Zstandard"
        part = any(magic.startswith(head) for magic in _MAGIC.values()) or (len(head) < 4 and b"P" <= head[:1] <= b"_")
        if kind is None and piece and part:
            self._head = head
            return
        self._head, self._kind = None, kind
        if kind and self._follow:
            self.close()
            raise SourceError(f"cannot follow {self.name}: it is a {kind} file, and follow needs a plain one")
        for named, ending in _ENDING.items():
            if self._path.endswith(ending) and head and kind != named:
                self.close()
                raise SourceError(f"{self.name} is named {ending} but is not a {named} file")
        if kind is None:
            if head.startswith(_ZIP) or self._path.endswith(_UNREAD):
                self.close()
                if self._path.lower().endswith((".xlsx", ".ods")):
                    raise SourceError(f"{self.name} is a workbook: save its sheet as CSV")
                kind = "zip" if head.startswith(_ZIP) else self._path.rpartition(".")[2]
                raise SourceError(f"{self.name} is a {kind} file: unpack it first, or pack it by gzip or Zstandard")
            self._first = head
        else:
            self._unpacker = _UNPACKERS[kind]()
            self._unpacker.feed(head)

    def read(self, size: int, timeout_s: float) -> bytes | None:
        """Read the next bytes: b"" at the end of the stream, and None if nothing came within `timeout_s`.

        There are at most `size` of them, which bounds the memory that a packed file can take. Only a growing file or
        standard input is waited for.
        """
        data = self._read(size, timeout_s)
        while data is not None and self._converter is not None:
            if (found := self._converter.convert(data)) or not data:
                return found
            data = self._read(size, timeout_s)
        return data

    def _read(self, size: int, timeout_s: float) -> bytes | None:
        try:
            if self._follow:
                return self._read_growing(size, timeout_s)
            deadline = time.monotonic() + timeout_s
            while (data := self._take(size)) is None:
                if self._path == "-" and not self._wait(max(0.0, deadline - time.monotonic())):
                    return None
                if self._head is not None:
                    self._begin(self._file.read1(_PIECE))
                elif self._unpacker is not None:
                    self._unpacker.feed(self._file.read1(_PIECE))
                else:
                    return self._file.read1(size)
            return data
        except EOFError:
            raise SourceError(f"{self.name} ends in the middle of its {self._kind} stream: it was cut short") from None
        except DamagedError:
            raise SourceError(f"{self.name} is damaged: its {self._kind} stream cannot be unpacked") from None
        except OSError as error:
            raise SourceError(f"cannot read {self.name}: {(error.strerror or type(error).__name__).lower()}") from None

    def _take(self, size: int) -> bytes | None:
        """What is there without reading the file; None if nothing is."""
        if self._unpacker is not None:
            return self._unpacker.take(size)
        data, self._first = self._first[:size], self._first[size:]
        return data or None

    @property
    def share(self) -> float | None:
        """The share of the file that was read, from 0 to 1; None for standard input and for a file that grows."""
        if self._path == "-" or self._follow:
            return None
        if self._file.closed:
            return 1.0
        size = os.fstat(self._file.fileno()).st_size
        return self._file.tell() / size if size and self._file.seekable() else None

    def close(self) -> None:
        """Close the file; standard input stays open. Safe to call twice."""
        if self._path != "-":
            self._file.close()

    def _wait(self, timeout_s: float) -> bool:
        try:
            return bool(select.select([self._file], [], [], timeout_s)[0])
        except (OSError, ValueError, TypeError):
            return True  # it has no descriptor to wait for: read it without waiting

    def _read_growing(self, size: int, timeout_s: float) -> bytes | None:
        deadline = time.monotonic() + timeout_s
        while True:
            data = self._take(size) or self._file.read1(size)
            if not self._is_as_read():  # after the read, because the file may be overwritten at any time
                raise SourceError(
                    f"{self.name} was cut, overwritten or replaced while it was followed; what was committed is kept."
                    " Give the original file, or start a new job."
                )
            if data:
                self._note(data)
                return data
            if (left := deadline - time.monotonic()) <= 0:
                return None
            time.sleep(min(_FOLLOW_SLEEP_S, left))

    def _note(self, data: bytes) -> None:
        """Keep digests of what was read, and not the records."""
        view = memoryview(data)
        while view:
            number, used = divmod(self._followed_to, _SPAN)
            if not used:
                self._spans = {n: span for n, span in self._spans.items() if n in (0, number - 1)}
                self._spans[number] = blake2b()
            part = view[: _SPAN - used]
            self._spans[number].update(part)
            self._followed_to += len(part)
            view = view[len(part) :]

    def _is_as_read(self) -> bool:
        """Whether the path still leads to this file, and what was read is still there."""
        try:
            with open(self._path, "rb") as file:
                if not os.path.samestat(os.fstat(file.fileno()), os.fstat(self._file.fileno())):
                    return False
                for number, span in self._spans.items():
                    start = number * _SPAN
                    file.seek(start)
                    now = file.read(min(_SPAN, self._followed_to - start))
                    if blake2b(now).digest() != span.digest():
                        return False
        except FileNotFoundError:
            return False
        return True
