"""The subjects that the keys of messages name: without the frame and the quotes of serializers.

One person has one key, whatever wrote it:

- A frame of Confluent's serializers, a zero byte and the 4 bytes of a schema's id, is left out. The id changes with
  each version of a schema.
- What a frame holds, or a key that begins with a quote, is JSON: a text in quotes is that text, with its escapes
  decoded, and a whole number is its digits.
- If the values are Avro, what a frame holds is Avro, of the schema with that id: see `avrorows.AvroDecoder.subject`.

Other bytes in a frame, such as an object, a record of several fields or Protobuf, are no subject. A plain key is text
as it is. `streamdp.data.subjects` has the rule for the subject itself.
"""

import json
import re
from collections.abc import Callable, Sequence
from typing import NamedTuple

from connectors.jsonrows import FRAME_BYTES
from streamdp.data.records import FLOAT_TEXT, Subject

_FLOAT = FLOAT_TEXT.encode()
_float_line = re.compile(_FLOAT.replace(b"^", b"\n", 1).replace(b"$", b"\n")).search  # with a first byte to search for
_is_float = re.compile(_FLOAT).fullmatch
_WHOLE = re.compile(rb"-?(0|[1-9][0-9]{0,299})")


class NoSubject(NamedTuple):
    """Why a key names no subject, as a dead letter says it: the reason, and the column that it is about."""

    reason: str
    column: str


def framed_json(key: bytes) -> Subject | None:
    """Return the subject of a key that has JSON in a frame; None if it names none."""
    return _of_json(key[FRAME_BYTES:])


def subjects_of(
    keys: Sequence[bytes | None], framed: Callable[[bytes], Subject | NoSubject | None] = framed_json
) -> list[Subject | NoSubject | None]:
    """Return the subject of each of `keys`; None for a key without one, or why. Plain keys take no call for each.

    `framed` returns the subject of a key with a frame.
    """
    if None not in keys and b"" not in keys:
        lines = b"\n".join([b"", *keys, b""])  # type: ignore[list-item]
        if not (b"\n\0" in lines or b'\n"' in lines or ((b"." in lines or b"+" in lines) and _float_line(lines))):
            return list(keys)
    return [_subject(key, framed) for key in keys]


def _subject(key: bytes | None, framed: Callable[[bytes], Subject | NoSubject | None]) -> Subject | NoSubject | None:
    if not key or _is_float(key):
        return None
    if key[0] == 0 and len(key) >= FRAME_BYTES:
        return framed(key)
    return _of_json(key) if key[:1] == b'"' else key


def _of_json(text: bytes) -> Subject | None:
    if _WHOLE.fullmatch(text):
        return int(text)
    try:
        found = json.loads(text, parse_float=lambda _: None)
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, str) and found and not _is_float(found.encode("utf-8", "surrogatepass")) else None
