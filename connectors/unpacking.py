"""Packed bytes that come in any pieces, unpacked without waiting for the next piece.

The file objects of Python read until they have enough. On an open pipe that is a wait for a byte
that may come much later, while records that arrived are held back.
"""

import zlib
from collections.abc import Callable
from typing import Any

from streamdp.errors import SourceError, needs

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
    try:
        from zstandard import ZstdDecompressor, ZstdError
    except ImportError:
        raise SourceError(needs("a Zstandard file", "zstd")) from None
    return Unpacker(ZstdDecompressor(max_window_size=_ZSTD_WINDOW).decompressobj, ZstdError, 512)  # 16 MiB at most
