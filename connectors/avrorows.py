"""Avro values, one a record, to a batch. Used for messages of a broker. Needs the extra `avro`.

fastavro reads the schema and the values, except for the primitives whose values direct the reader: `_Primitives`
checks them, because fastavro trusts its input. It takes a negative index of a union or enum from the end of the list,
a negative length as "all that is left", and does not return from an array that claims to hold 2^60 nulls.

The reader is fastavro's Python one (its module _read_py), not its compiled one. The compiled reader takes no other
primitives, and a value that nests a million levels deep overflows its stack, which ends the process. The Python reader
raises `RecursionError`, which makes that value a dead letter.
"""

import io
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from connectors.avroschemas import Layout, Writers, read_schema, record_layout
from connectors.jsonrows import FRAME_BYTES, encode_objects
from connectors.kafkakeys import NoSubject
from connectors.recordblocks import MAX_RECORD_BYTES
from streamdp.data.records import FLOAT_TEXT, Batch, DeadLetter, Encoder, Position, Subject
from streamdp.errors import ConfigError, needing

with needing("Avro", "avro"):
    from fastavro._read_common import SchemaResolutionError
    from fastavro._read_py import read_data
    from fastavro.io.binary_decoder import BinaryDecoder

_UNKNOWN = "unknown_schema"
_UNRESOLVED = (SchemaResolutionError, AttributeError, KeyError, TypeError)
"""Raised by fastavro for a value that it cannot read by the job's schema; the last three for odd pairs of schemas."""
_MALFORMED = (EOFError, IndexError, ValueError, RecursionError)
"""Raised for bytes that are no value of the schema."""


class AvroDecoder:
    """Turns Avro values into a batch; called like `jsonrows.encode_json`, and so a `decode` of `kafka.KafkaSource`.

    The .avsc file at `path` has the schema that the job expects: a record. Named types that it lacks are searched for
    beside it, in `<full name>.avsc`. None: each value is read by the schema that it was written with. `writers` gives
    the schemas that framed values were written with. A frame is a zero byte and the 4 bytes of a schema's id, as
    Confluent's serializers write it. A schema is resolved to that of `path`: see `avroschemas.record_layout`. Without
    writers, values have no frame, and all were written with the schema of `path`.

    Dead letters in addition to the encoder's: `tombstone` for None in place of a value, `too_long` for one over
    `MAX_RECORD_BYTES`, `empty` for no bytes, `not_framed` for a value without its frame, `nested` for a record, map or
    array where a plain value belongs, and `not_avro` for bytes that are not exactly one value of the schema: too few or
    too many, an index, a length or a boolean out of range, text that is not UTF-8, or nesting over Python's recursion
    limit (100 levels of a recursive schema are within it). `unknown_schema` is for an id that `writers` does not know.
    It is asked for again with the next batch, and not named: of a message without a frame, it is a part of its values.
    `unresolved_schema` is for a schema that is not that of a record or cannot be resolved, and for a value of a type
    that the job's schema does not have. It names the id in the place of the column.

    Fields mean what they mean in a JSON object: those that the encoder does not know are ignored, null is missing, a
    number may come as text, and a boolean counts as the text `true` or `false`. A float counts as the double it equals,
    and NaN and the infinities are `not_finite` where a number belongs. An enum is the text of its symbol. A decimal is
    the text of the number with all its places, such as `2.50`. Other bytes and fixed are text of one character a byte,
    as in Avro's own JSON. Dates, times, timestamps and other logical types are the plain numbers or texts that carry
    them: a date counts days since 1970, a timestamp-millis milliseconds.

    Raises `ConfigError` for a file that cannot be read, is no Avro schema, or not that of a record, and if all schemas
    are given and none of them can be read. Calls raise the errors of `writers`; after `SourceUnavailableError` they may
    be repeated.
    """

    def __init__(self, path: str | os.PathLike[str] | None = None, *, writers: Writers | None = None) -> None:
        self._expected = None if path is None else read_schema(os.fspath(path))
        self._bare: Layout | None = None
        self._writers = writers.get if isinstance(writers, Mapping) else writers
        self._layouts: dict[bytes, Layout | str] = {}
        self._keys: dict[bytes, Layout | NoSubject] = {}
        if self._expected is not None:
            try:
                self._bare = record_layout(self._expected)
            except ConfigError as error:
                raise ConfigError(f"{path}: {error}") from None
        elif writers is None:
            raise ConfigError("expected the schema of the values, or those that they were written with")
        if isinstance(writers, Mapping):
            self._look_up([b"\0" + number.to_bytes(FRAME_BYTES - 1, "big") for number in writers])
            conflicts = [found for found in self._layouts.values() if isinstance(found, str)]
            if len(conflicts) == len(writers):  # one may be that of a key
                raise ConfigError(
                    f"no schema of the messages can be read: {', '.join(sorted(conflicts)) or 'none given'}"
                )

    def __call__(
        self, raw: Sequence[bytes | None], positions: np.ndarray, position: Position, encoder: Encoder
    ) -> Batch:
        """As `jsonrows.encode_json`, for n Avro values."""
        self._look_up(raw)
        for head, key in list(self._keys.items()):
            if isinstance(key, NoSubject) and key.reason == _UNKNOWN:
                del self._keys[head]
        objects: list[dict[str, object]] = []
        kept: list[int] = []
        dead: list[DeadLetter] = []
        for i, value in enumerate(raw):
            found = self.fields(value)
            if isinstance(found, dict):
                objects.append(found)
                kept.append(i)
            else:
                dead.append(DeadLetter(int(positions[i]), *found))
        return encode_objects(objects, positions[kept], position, encoder, dead)

    def subject(self, key: bytes) -> Subject | NoSubject | None:
        """Return the subject of a framed key: a text or a whole number, alone or as the one field of a record.

        Returns None for a key that holds something else, and the reason for one whose schema is unknown or not an Avro
        schema: those of values. An unknown one is asked for again with the next batch.
        """
        head = key[1:FRAME_BYTES]
        if head not in self._keys:
            self._keys[head] = self._key_layout(head)
        layout = self._keys[head]
        if isinstance(layout, NoSubject):
            return layout
        found = _read(key[FRAME_BYTES:], layout)
        if isinstance(found, dict) and len(found) == 1:
            (found,) = found.values()
        is_subject = type(found) is int or (isinstance(found, str) and found and not re.fullmatch(FLOAT_TEXT, found))
        return found if is_subject else None

    def _key_layout(self, head: bytes) -> Layout | NoSubject:
        try:
            written = None if self._writers is None else self._writers(int.from_bytes(head, "big"))
        except ConfigError as error:
            return NoSubject("unresolved_schema", f"key, {_named(head)}: {error}")
        return NoSubject(_UNKNOWN, "key") if written is None else written.as_written()

    def _look_up(self, raw: Sequence[bytes | None]) -> None:
        """Find the layouts of the ids of values that are new; those of unknown ids are not kept."""
        if self._writers is None:
            return
        heads = {value[1:FRAME_BYTES] for value in raw if value and value[0] == 0 and len(value) >= FRAME_BYTES}
        for head in heads - self._layouts.keys():
            number = int.from_bytes(head, "big")
            try:
                if (written := self._writers(number)) is not None:
                    self._layouts[head] = record_layout(written, self._expected)
            except ConfigError as error:
                self._layouts[head] = f"{_named(head)}: {error}"

    def fields(self, value: bytes | None) -> dict[str, object] | tuple[str] | tuple[str, str]:
        """The fields of a value, or the reason why it has none, with the id of its schema if that is the reason."""
        if value is None:
            return ("tombstone",)
        if not value:
            return ("empty",)
        if len(value) > MAX_RECORD_BYTES:
            return ("too_long",)
        layout: Layout | str | None = self._bare
        head = b""
        if self._writers is not None:
            if value[0] != 0 or len(value) < FRAME_BYTES:
                return ("not_framed",)
            head, value = value[1:FRAME_BYTES], value[FRAME_BYTES:]
            layout = self._layouts.get(head)
        if layout is None:
            return (_UNKNOWN,)
        if isinstance(layout, str):
            return ("unresolved_schema", layout)
        try:
            item = _read(value, layout)
        except _UNRESOLVED:
            return ("unresolved_schema", _named(head))
        return ("not_avro",) if item is None else item


def _named(head: bytes) -> str:
    return f"schema id {int.from_bytes(head, 'big')}"


def _read(data: bytes, layout: Layout) -> Any:
    """The value that bytes are; None if they are not exactly one value, and for null.

    Raises one of `_UNRESOLVED` for a value that the reader's schema does not have.
    """
    primitives = _Primitives(data)
    try:
        item = read_data(primitives, *layout)  # type: ignore[no-untyped-call]
    except _MALFORMED:
        return None
    if primitives.fo.read(1):
        return None
    return {name: _text(value) for name, value in item.items()} if isinstance(item, dict) else _text(item)


def _text(value: object) -> object:
    return value.decode("latin-1") if isinstance(value, bytes) else value


class _Primitives(BinaryDecoder):
    """Reads the primitives of one value; fastavro calls the methods by these names.

    Each method raises one of `_MALFORMED` if the bytes end too early or hold no value of its type.
    """

    def __init__(self, data: bytes) -> None:
        self.fo: io.BytesIO = io.BytesIO(data)

    def read_boolean(self) -> bool:
        return (False, True)[self.fo.read(1)[0]]

    def read_long(self) -> int:
        read = self.fo.read
        byte = read(1)[0]
        value, shift = byte & 127, 7
        while byte > 127:
            byte = read(1)[0]
            value |= (byte & 127) << shift
            shift += 7
            if shift > 70 or value >> 64:
                raise ValueError
        return (value >> 1) ^ -(value & 1)

    def read_int(self) -> int:
        value = self.read_long()
        if not -(1 << 31) <= value < 1 << 31:
            raise ValueError
        return value

    def read_index(self) -> int:
        value = self.read_long()
        if value < 0:
            raise IndexError
        return value

    read_enum = read_index

    def read_bytes(self) -> bytes:
        size = self.read_index()
        data = self.fo.read(size)
        if len(data) < size:
            raise EOFError
        return data

    def read_array_start(self) -> None:
        """Nothing: `iter_array` reads the counts of all blocks."""

    read_map_start = read_array_start

    def iter_array(self) -> Iterator[None]:
        """Once for each item of an array or map, but once for a whole block of items that take no bytes."""
        while count := self.read_long():
            end = self.read_index() + self.fo.tell() if count < 0 else None
            for _ in range(abs(count)):
                start = self.fo.tell()
                yield
                if self.fo.tell() == start:
                    break
            if end not in (None, self.fo.tell()):
                raise ValueError

    iter_map = iter_array
