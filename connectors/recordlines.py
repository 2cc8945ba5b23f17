"""Lines without a header as records."""

from __future__ import annotations

import codecs

from connectors.recordblocks import Records, cut_lines

_BOM = codecs.BOM_UTF8


class Lines:
    """Lines without a header, but perhaps a byte order mark; a `recordblocks.Grammar`."""

    header_rows = 0
    head = ""

    def read_header(self, data: bytes, ended: bool) -> int | None:
        """See `recordblocks.Grammar.read_header`."""
        if _BOM.startswith(data) and data != _BOM and not ended:
            return None
        return len(_BOM) if data.startswith(_BOM) else 0

    def split(self, data: bytes, ended: bool) -> Records:
        """See `recordblocks.Grammar.split`."""
        return cut_lines(data)
