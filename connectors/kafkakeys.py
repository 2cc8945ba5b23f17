"""The subjects that the keys of messages name: without the frame and the quotes of serializers.

One person has one key, whatever wrote it:

- A frame of Confluent's serializers, a zero byte and the 4 bytes of a schema's number, is left out. The number changes
  with each version of a schema.
- What a frame holds, or a key that begins with a quote, is JSON: a text in quotes is that text, with its escapes
  decoded, and a whole number is its digits.
- If the values are Avro, what a frame holds is Avro: a text, or a whole number. These differ: a text is as long as its
  first bytes say, and a number ends with them.

Other bytes in a frame, such as an object, a record of several fields or Protobuf, are no subject. A plain key is text
as it is. `streamdp.data.subjects` has the rule for the subject itself.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence

from connectors.jsonrows import FRAME_BYTES
from streamdp.data.records import FLOAT_TEXT, Subject

_FLOAT = FLOAT_TEXT.encode()
_float_line = re.compile(_FLOAT.replace(b"^", b"\n", 1).replace(b"$", b"\n")).search  # with a first byte to search for
_is_float = re.compile(_FLOAT).match
_WHOLE = re.compile(rb"-?(0|[1-9][0-9]{0,299})")


def subjects_of(keys: Sequence[bytes | None], avro: bool) -> list[Subject | None]:
    """Return the subject of each key; None for a key without one. Plain keys take no call for each.

    Parameters
    ----------
    keys
        Keys of messages.
    avro
        Whether frames hold Avro; otherwise they hold JSON.
    """
    if None not in keys:
        lines = b"\n".join([b"", *keys, b""])  # type: ignore[list-item]
        if not (b"\n\0" in lines or b'\n"' in lines or ((b"." in lines or b"+" in lines) and _float_line(lines))):
            return list(keys)
    return [_subject(key, avro) for key in keys]


def _subject(key: bytes | None, avro: bool) -> Subject | None:
    if not key or _is_float(key):
        return None
    if key[0] == 0 and len(key) >= FRAME_BYTES:
        return (_of_avro if avro else _of_json)(key[FRAME_BYTES:])
    return _of_json(key) if key[:1] == b'"' else key


def _of_json(text: bytes) -> Subject | None:
    if _WHOLE.fullmatch(text):
        return int(text)
    try:
        found = json.loads(text, parse_float=lambda _: None)
    except ValueError:
        return None
    return found if isinstance(found, str) and found and not _is_float(found.encode("utf-8", "surrogatepass")) else None


def _of_avro(data: bytes) -> Subject | None:
    """A text, or a whole number of at most 64 bits."""
    size, value = 0, 0
    while size < min(len(data), 10):
        byte = data[size]
        value |= (byte & 127) << (7 * size)
        size += 1
        if byte < 128:
            number = (value >> 1) ^ -(value & 1)
            if size == len(data):
                return number if data != b"\0" else None  # that is also the empty text
            return data[size:] if number == len(data) - size else None
    return None
