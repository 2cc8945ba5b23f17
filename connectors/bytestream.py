"""Bytes of a file, a gzip file, a growing file or standard input, in order."""

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

_GZIP_MAGIC = b"\x1f\x8b"
_GZIP_HEADER = 10  # bytes
_FOLLOW_SLEEP_S = 0.05


class ByteStream:
    """The unpacked bytes of a file, gzip or not (its first bytes tell which).

    Parameters
    ----------
    path
        A file, or `-` for standard input.
    follow
        The end of a plain file is not the end of the stream; a gzip file is refused.

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
        head = self._file.peek(len(_GZIP_MAGIC))
        packed = head.startswith(_GZIP_MAGIC)
        if packed and self._follow:
            self.close()
            raise SourceError(f"cannot follow {self.name}: it is a gzip file, and follow needs a plain one")
        if self._path.endswith(".gz") and head and not packed:
            self.close()
            raise SourceError(f"{self.name} is named .gz but is not a gzip file")
        source: Any = _Packed(self._file)
        self._unpacked = gzip.GzipFile(fileobj=source) if packed else self._file

    def read(self, size: int, timeout_s: float) -> bytes | None:
        """Read the next bytes.

        Parameters
        ----------
        size
            At most so many bytes, 1 or more. It bounds the memory that a gzip file can take.
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
            raise SourceError(f"{self.name} ends in the middle of its gzip stream: it was cut short") from None
        except (gzip.BadGzipFile, zlib.error):
            raise SourceError(f"{self.name} is damaged: its gzip stream cannot be unpacked") from None
        except OSError as error:
            raise SourceError(f"cannot read {self.name}: {_why(error)}") from None

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


def _why(error: OSError) -> str:
    return (error.strerror or type(error).__name__).lower()
