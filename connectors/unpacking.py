"""Packed bytes that come in any pieces, unpacked without waiting for the next piece.

The file objects of Python read until they have enough. On an open pipe that is a wait for a byte
that may come much later, while records that arrived are held back.
"""

from __future__ import annotations

import zlib
from abc import ABC, abstractmethod
from typing import Any

from streamdp.errors import SourceError, needs

_GZIP = 31  # zlib's window bits of 15, with the header and the checksum of gzip
_ZSTD_WINDOW = 1 << 31  # bytes: what `zstd --long=31` writes
_ZSTD_PIECE = 512  # packed bytes that are unpacked at once; they become 16 MiB at most


class DamagedError(Exception):
    """The packed bytes cannot be unpacked."""


class Unpacker(ABC):
    """The unpacked bytes of one or more packed streams, which follow each other."""

    def __init__(self) -> None:
        self._packed = b""
        self._frame: Any = None  # what unpacks the present stream; None between two streams
        self._ended = False

    def feed(self, piece: bytes) -> None:
        """Take the next packed bytes; an empty piece is their end. Raises EOFError if they end within a stream."""
        if not piece and self._frame is not None:
            raise EOFError
        self._ended = not piece
        self._packed += piece

    @abstractmethod
    def take(self, size: int) -> bytes | None:
        """Unpack at most `size` bytes: b"" at the end, None if more packed bytes are needed. Raises `DamagedError`."""


class Gzip(Unpacker):
    """The unpacked bytes of the members of a gzip file. Zeros between members are padding (RFC 1952, gzip)."""

    _full = False  # zlib may hold more unpacked bytes than it was asked for

    def take(self, size: int) -> bytes | None:
        while True:
            if self._frame is None:
                self._packed = self._packed.lstrip(b"\0")
            if not (self._packed or self._full):
                return b"" if self._ended else None
            self._frame = self._frame or zlib.decompressobj(_GZIP)
            try:
                data: bytes = self._frame.decompress(self._packed, size)
            except zlib.error:
                raise DamagedError from None
            self._packed = self._frame.unconsumed_tail
            self._full = len(data) == size
            if self._frame.eof:
                self._packed, self._full, self._frame = self._frame.unused_data, False, None
            if data:
                return data


class Zstandard(Unpacker):
    """The unpacked bytes of the frames of a Zstandard file. Raises `SourceError` without the extra `zstd`."""

    def __init__(self) -> None:
        try:
            from zstandard import ZstdDecompressor
        except ImportError:
            raise SourceError(needs("a Zstandard file", "zstd")) from None

        super().__init__()
        self._new = ZstdDecompressor(max_window_size=_ZSTD_WINDOW).decompressobj
        self._unpacked = b""

    def take(self, size: int) -> bytes | None:
        from zstandard import ZstdError

        while not self._unpacked:
            if not self._packed:
                return b"" if self._ended else None
            self._frame = self._frame or self._new()
            piece, self._packed = self._packed[:_ZSTD_PIECE], self._packed[_ZSTD_PIECE:]
            try:
                self._unpacked = self._frame.decompress(piece)
            except ZstdError:
                raise DamagedError from None
            if self._frame.eof:
                self._packed, self._frame = self._frame.unused_data + self._packed, None
        data, self._unpacked = self._unpacked[:size], self._unpacked[size:]
        return data
