"""Text files that are not plain UTF-8 with a header first: their encoding, leading lines and comments."""

import codecs
from dataclasses import dataclass

from streamdp.errors import ConfigError


@dataclass(frozen=True, slots=True)
class TextForm:
    """How the text of a file differs from records in UTF-8. Raises `ConfigError` for an encoding that is not known."""

    encoding: str | None = None  # a name of Python's codecs; None: UTF-8
    skip_lines: int = 0  # leading lines that are passed over
    comment: str | None = None  # lines that begin with it are passed over

    @property
    def passed_over(self) -> str:
        """Which lines are no records, for a fingerprint; empty if all are, or may be."""
        return "" if (self.skip_lines, self.comment) == (0, None) else f" {self.skip_lines} {self.comment}"

    def __post_init__(self) -> None:
        try:
            text = codecs.lookup(self.encoding or "utf-8")._is_text_encoding  # noqa: SLF001 - as `open` checks it
        except (LookupError, ValueError):
            text = False
        if not text:
            raise ConfigError(
                f"encoding: expected a text encoding, such as latin-1, cp1252 or utf-16, got {self.encoding!r}"
            )


class Converter:
    """Converts the bytes of a file of this `form` to records in UTF-8, as they come."""

    def __init__(self, form: TextForm) -> None:
        # A byte that the encoding does not have becomes U+FFFD, and its record a dead letter at most.
        self._decoder = codecs.getincrementaldecoder(form.encoding or "utf-8")("replace") if form.encoding else None
        self._left = form.skip_lines
        self._comment = None if form.comment is None else form.comment.encode()
        self._rest = b""  # of a line, whose end is still to come
        self._first = True

    def convert(self, data: bytes) -> bytes:
        """Return what `data` adds; b"" as data is the end of the file."""
        ended = not data
        if self._decoder is not None:
            data = self._decoder.decode(data, ended).encode()
        if self._first and data:
            data, self._first = data.removeprefix(codecs.BOM_UTF8), False
        data, self._rest = self._rest + data, b""
        if not self._left and self._comment is None:
            return data
        end = len(data) if ended else data.rfind(b"\n") + 1
        data, self._rest = data[:end], data[end:]
        while self._left and data:
            data, self._left = data.partition(b"\n")[2], self._left - 1
        if self._comment is not None and self._comment in data:
            lines = [line for line in data.split(b"\n") if not line.startswith(self._comment)]
            data = b"\n".join(lines)
        return data
