"""Bytes of a file, a gzip file, a growing file or standard input, in order."""

from __future__ import annotations

import os
import select
import sys
import time
import zlib
from typing import Any

from streamdp.errors import SourceError

_GZIP_MAGIC = b"\x1f\x8b"
_GZIP_READ = 1 << 16  # packed bytes at a time; a hostile file unpacks to at most 1032 times as many
_FOLLOW_SLEEP_S = 0.05


class ByteStream:
    """The unpacked bytes of `path` (`-` is standard input), gzip or not (told by its first bytes).

    With `follow`, the end of a plain file is not the end of the stream. Raises `SourceError` for whatever cannot
    be opened, read or unpacked.
    """

    def __init__(self, path: str, *, follow: bool = False) -> None:
        self._path = path
        self._follow = follow
        self._gunzip: _Gunzip | None = None
        self._unread = b""  # unpacked bytes that come before whatever is read next
        self._raw: Any
        if path == "-":
            # Below the buffer: a buffered read of a pipe would wait until the buffer is full.
            self._raw = getattr(sys.stdin.buffer, "raw", sys.stdin.buffer)
            self._begun = False
            return
        try:
            self._raw = open(path, "rb", buffering=0)  # noqa: SIM115
            head = self._raw.read(len(_GZIP_MAGIC))
        except OSError as error:
            raise SourceError(f"cannot open {path}: {error.strerror or type(error).__name__}") from None
        self._begin(head)
        if path.endswith(".gz") and head and self._gunzip is None:
            self.close()
            raise SourceError(f"{path} is named .gz but is not a gzip file")

    def _begin(self, head: bytes) -> None:
        """Tell gzip from plain by the first bytes, and keep what they unpack to."""
        self._begun = True
        if head.startswith(_GZIP_MAGIC):
            if self._follow:
                self.close()
                raise SourceError(f"cannot follow {self._path}: it is a gzip file, and follow needs a plain one")
            self._gunzip = _Gunzip()
            head = self._unpack(head)
        self._unread = head

    def read(self, size: int, timeout_s: float) -> bytes | None:
        """At most `size` bytes; b"" at the end of the stream; None if nothing came within `timeout_s` seconds."""
        if self._unread:
            return self._take(size)
        try:
            if self._follow:
                return self._read_growing(size, timeout_s)
            if self._path == "-" and not self._wait(timeout_s):
                return None
            if self._gunzip is not None:
                self._unread = self._read_gzip()
                return self._take(size)
            data = self._raw.read(size) or b""
        except OSError as error:
            raise SourceError(f"cannot read {self._path}: {error.strerror or type(error).__name__}") from None
        if not self._begun:  # standard input: what it holds shows with its first bytes
            self._begin(data)
            return self.read(size, timeout_s) if self._unread else (None if data else b"")
        return data

    def close(self) -> None:
        """Close the file; standard input stays open. Safe to call twice."""
        if self._path != "-":
            self._raw.close()

    def _take(self, size: int) -> bytes:
        data, self._unread = self._unread[:size], self._unread[size:]
        return data

    def _wait(self, timeout_s: float) -> bool:
        try:
            return bool(select.select([self._raw], [], [], timeout_s)[0])
        except (OSError, ValueError, TypeError):
            return True  # not something that can be waited for: read as it comes

    def _read_growing(self, size: int, timeout_s: float) -> bytes | None:
        deadline = time.monotonic() + timeout_s
        while not (data := self._raw.read(size)):
            if os.fstat(self._raw.fileno()).st_size < self._raw.tell() or not self._same_file():
                raise SourceError(f"{self._path} was cut or replaced while it was followed")
            if (left := deadline - time.monotonic()) <= 0:
                return None
            time.sleep(min(_FOLLOW_SLEEP_S, left))
        return bytes(data)

    def _same_file(self) -> bool:
        try:
            return os.path.samestat(os.stat(self._path), os.fstat(self._raw.fileno()))
        except FileNotFoundError:
            return False

    def _read_gzip(self) -> bytes:
        """Read until some bytes come out."""
        assert self._gunzip is not None
        while packed := self._raw.read(_GZIP_READ):
            if data := self._unpack(packed):
                return data
        if not self._gunzip.complete:
            raise SourceError(f"{self._path} ends in the middle of its gzip stream: it was cut short")
        return b""

    def _unpack(self, packed: bytes) -> bytes:
        assert self._gunzip is not None
        try:
            return self._gunzip.feed(packed)
        except zlib.error:
            raise SourceError(f"{self._path} is damaged: its gzip stream cannot be unpacked") from None


class _Gunzip:
    """Unpacks gzip members one after another, zero padding between them allowed (RFC 1952, section 2.2)."""

    def __init__(self) -> None:
        self._member = zlib.decompressobj(wbits=31)

    @property
    def complete(self) -> bool:
        return self._member.eof

    def feed(self, packed: bytes) -> bytes:
        out = []
        while packed:
            if self._member.eof:
                packed = packed.lstrip(b"\0")
                if not packed:
                    break
                self._member = zlib.decompressobj(wbits=31)
            out.append(self._member.decompress(packed))
            packed = self._member.unused_data
        return b"".join(out)
