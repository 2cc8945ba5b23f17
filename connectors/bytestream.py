"""Bytes of a file, plain or packed by gzip or Zstandard, of a growing file, or of standard input, in order."""

from __future__ import annotations

import gzip
import io
import os
import select
import sys
import time
import zlib
from typing import Any

from streamdp.errors import SourceError

_GZIP_MAGIC, _ZSTD_MAGIC = b"\x1f\x8b", b"\x28\xb5\x2f\xfd"
_ZSTD_PIECE = 512  # packed bytes that are unpacked at once; they become 16 MiB at most
_GZIP_HEADER = 10  # bytes
_FOLLOW_SLEEP_S = 0.05


class ByteStream:
    """The unpacked bytes of a file: plain, gzip or Zstandard (its first bytes tell which).

    Parameters
    ----------
    path
        A file, or `-` for standard input.
    follow
        The end of a plain file is not the end of the stream; a packed file is refused.

    Raises `SourceError` if the file cannot be opened, read or unpacked.
    """

    def __init__(self, path: str, *, follow: bool = False) -> None:
        self._path = path
        self.name = "standard input" if path == "-" else path
        """What messages call the file."""
        self._follow = follow
        self._unpacked: Any = None  # None until the first bytes are there
        self._file: io.BufferedReader
        if path == "-":
            stdin: Any = sys.stdin.buffer
            self._file = stdin if hasattr(stdin, "peek") else io.BufferedReader(stdin)
            return
        try:
            self._file = open(path, "rb")  # noqa: SIM115 - `close` closes it
            self._begin()
        except OSError as error:
            raise SourceError(f"cannot open {path}: {_why(error)}") from None

    def _begin(self) -> None:
        head = self._file.peek(len(_ZSTD_MAGIC))
        kinds = {"gzip": (_GZIP_MAGIC, ".gz"), "Zstandard": (_ZSTD_MAGIC, ".zst")}
        packed = next((kind for kind, (magic, _) in kinds.items() if head.startswith(magic)), None)
        if packed and self._follow:
            self.close()
            raise SourceError(f"cannot follow {self.name}: it is a {packed} file, and follow needs a plain one")
        for kind, (_, ending) in kinds.items():
            if self._path.endswith(ending) and head and packed != kind:
                self.close()
                raise SourceError(f"{self.name} is named {ending} but is not a {kind} file")
        self._packed = packed
        if packed == "gzip":
            source: Any = _Packed(self._file)
            self._unpacked = gzip.GzipFile(fileobj=source)
        else:
            self._unpacked = _Zstandard(self._file) if packed else self._file

    def read(self, size: int, timeout_s: float) -> bytes | None:
        """Read the next bytes.

        Parameters
        ----------
        size
            At most so many bytes, 1 or more. It bounds the memory that a packed file can take.
        timeout_s
            Wait at most so many seconds for a growing file or for standard input.

        Returns b"" at the end of the stream, and None if nothing came in time.
        """
        try:
            if self._follow:
                return self._read_growing(size, timeout_s)
            if self._path == "-" and not self._wait(timeout_s):
                return None
            if self._unpacked is None:
                self._begin()
            data: bytes = self._unpacked.read1(size)
            return data
        except EOFError:
            raise SourceError(
                f"{self.name} ends in the middle of its {self._packed} stream: it was cut short"
            ) from None
        except (gzip.BadGzipFile, zlib.error, _DamagedError):
            raise SourceError(f"{self.name} is damaged: its {self._packed} stream cannot be unpacked") from None
        except OSError as error:
            raise SourceError(f"cannot read {self.name}: {_why(error)}") from None

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
        while not (data := self._file.read1(size)):
            if os.fstat(self._file.fileno()).st_size < self._file.tell() or not self._same_file():
                raise SourceError(f"{self.name} was cut or replaced while it was followed")
            if (left := deadline - time.monotonic()) <= 0:
                return None
            time.sleep(min(_FOLLOW_SLEEP_S, left))
        return data

    def _same_file(self) -> bool:
        try:
            return os.path.samestat(os.stat(self._path), os.fstat(self._file.fileno()))
        except FileNotFoundError:
            return False


class _Packed:
    """What `gzip` reads: parts of headers whole, other bytes as they come, without waiting to fill a buffer."""

    def __init__(self, file: io.BufferedReader) -> None:
        self._file = file

    def read(self, size: int) -> bytes:
        return self._file.read(size) if size <= _GZIP_HEADER else self._file.read1(size)


class _DamagedError(Exception):
    """A stream of Zstandard that cannot be unpacked."""


class _Zstandard:
    """The unpacked bytes of a file of one or more Zstandard frames.

    Parameters
    ----------
    file
        The packed file.
    """

    def __init__(self, file: io.BufferedReader) -> None:
        from zstandard import ZstdDecompressor

        self._file = file
        self._new = ZstdDecompressor().decompressobj
        self._frame: Any = None  # None between two frames
        self._packed = b""
        self._unpacked = b""

    def read1(self, size: int) -> bytes:
        """At most `size` bytes; b"" at the end. Raises EOFError if the file ends within a frame."""
        from zstandard import ZstdError

        while not self._unpacked:
            piece = self._packed or self._file.read1(_ZSTD_PIECE)
            if not piece:
                if self._frame is not None:
                    raise EOFError
                return b""
            self._frame = self._frame or self._new()
            try:
                self._unpacked = self._frame.decompress(piece)
            except ZstdError:
                raise _DamagedError from None
            self._packed = self._frame.unused_data if self._frame.eof else b""
            if self._frame.eof:
                self._frame = None
        data, self._unpacked = self._unpacked[:size], self._unpacked[size:]
        return data


def _why(error: OSError) -> str:
    return (error.strerror or type(error).__name__).lower()
