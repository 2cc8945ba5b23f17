"""Lines without a header as records."""

from __future__ import annotations

import codecs
import re

from connectors.recordblocks import Records, cut_lines
from streamdp.errors import SourceError

_BOM = codecs.BOM_UTF8
_ARRAY = re.compile(rb"\s*\[\s*\{")


class Lines:
    """Lines without a header, but perhaps a byte order mark; a `recordblocks.Grammar`."""

    header_rows = 0
    head = ""

    def read_header(self, data: bytes, ended: bool) -> int | None:
        """See `recordblocks.Grammar.read_header`. Raises `SourceError` for a JSON array of objects."""
        if _BOM.startswith(data) and data != _BOM and not ended:
            return None
        if _ARRAY.match(data.removeprefix(_BOM)):
            raise SourceError(
                "the file holds one JSON array: expected JSON lines, one object on each line; convert it, as"
                " `jq -c '.[]' FILE > FILE.jsonl` does"
            )
        return len(_BOM) if data.startswith(_BOM) else 0

    def split(self, data: bytes, ended: bool) -> Records:
        """See `recordblocks.Grammar.split`."""
        return cut_lines(data)
