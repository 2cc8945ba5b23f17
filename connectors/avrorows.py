"""Avro values, one a record, to a batch. Used for messages of a broker. Needs the extra `avro`.

fastavro reads the schema. The values are read here, because fastavro's reader is made for files that one trusts: it
takes a negative index of a union or enum for one from the end, ends the process on a value that nests deep enough, and
does not return from an array that says it has 2^60 nulls.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Callable, Sequence
from decimal import Decimal
from typing import Any

import numpy as np

from connectors.jsonrows import Given, encode_objects
from connectors.recordfile import MAX_RECORD_BYTES
from streamdp.data.records import Batch, DeadLetter, Encoder, Position
from streamdp.errors import ConfigError

FRAMINGS = ("none", "confluent")
_HEADER_BYTES = 5

_Reader = Callable[[bytes, int], tuple[Any, int]]
"""The value that begins at a place, and the place that follows it."""

_MALFORMED = (IndexError, ValueError, struct.error, RecursionError)
"""What readers raise for bytes that are no value of theirs."""


class AvroDecoder:
    """Turns Avro values into a batch; called like `jsonrows.encode_json`, and so a `decode` of `kafka.KafkaSource`.

    Parameters
    ----------
    path
        The .avsc file with the schema that the values were written with: a record. Named types that it lacks are
        looked for beside it, in `<full name>.avsc`.
    framing
        What a value begins with: `none` for bare Avro binary, `confluent` for a zero byte and the 4 bytes of a schema's
        number. The number is not looked at: all values must have the one schema.

    Dead letters beside the encoder's: `tombstone` for None in place of a value, `too_long` for one over
    `MAX_RECORD_BYTES`, `empty` for no bytes, `nested` for a record, map or array where a plain value belongs, and
    `not_avro` for bytes that are not exactly one value of the schema: too few or too many, another first byte than the
    header's, an index, a length or a boolean out of range, text that is not UTF-8, or too deep a nesting.

    Fields mean what they mean in a JSON object: those that the encoder does not know are ignored, null is missing, a
    number may come as text, and a boolean counts as the text `true` or `false`. A float counts as the double it
    equals, and NaN and the infinities are `not_finite` where a number belongs. An enum is the text of its symbol. A
    decimal is the text of the number with all its places, such as `2.50`. Other bytes and fixed are text of one
    character a byte, as in Avro's own JSON. Dates, times, timestamps and other logical types are the plain numbers or
    texts that carry them: a date counts days since 1970, a timestamp-millis milliseconds.

    Raises `ConfigError` for a file that cannot be read, is no Avro schema, or not that of a record.
    """

    def __init__(self, path: str | os.PathLike[str], *, framing: str = "none") -> None:
        if framing not in FRAMINGS:
            raise ConfigError(f"expected one of {', '.join(FRAMINGS)} as framing, got {framing!r}")
        self._read = _read_schema(os.fspath(path))
        self._header_bytes = _HEADER_BYTES if framing == "confluent" else 0

    def __call__(
        self,
        raw: Sequence[bytes | None],
        positions: np.ndarray,
        position: Position,
        encoder: Encoder,
        given: Given | None = None,
    ) -> Batch:
        """Decode and encode n values; `positions` is (n,) int64, ascending, `position` what follows the last of them.

        `given` holds columns of the encoder whose n values come from elsewhere; fields of their names are then ignored.
        """
        objects: list[dict[str, Any]] = []
        kept: list[int] = []
        dead: list[DeadLetter] = []
        for i, value in enumerate(raw):
            found = self._object(value)
            if isinstance(found, str):
                dead.append(DeadLetter(int(positions[i]), found))
            else:
                objects.append(found)
                kept.append(i)
        part = {name: [values[i] for i in kept] for name, values in (given or {}).items()}
        return encode_objects(objects, positions[kept], position, encoder, part, dead)

    def _object(self, value: bytes | None) -> dict[str, Any] | str:
        """The fields of a value, or why there are none."""
        if value is None:
            return "tombstone"
        if not value:
            return "empty"
        if len(value) > MAX_RECORD_BYTES:
            return "too_long"
        if self._header_bytes and (value[0] != 0 or len(value) < self._header_bytes):
            return "not_avro"
        try:
            item, end = self._read(value, self._header_bytes)
        except _MALFORMED:
            return "not_avro"
        return item if end == len(value) else "not_avro"


# From a schema to a reader.


def _read_schema(path: str) -> _Reader:
    """A reader for the record schema of a file. Raises `ConfigError`."""
    try:
        from fastavro.repository.base import SchemaRepositoryError
        from fastavro.schema import load_schema
    except ImportError:
        raise ConfigError("Avro needs the package fastavro: pip install 'streamdp[avro]'") from None
    if not path.endswith(".avsc"):
        raise ConfigError(f"{path}: expected an Avro schema in a file whose name ends in .avsc")
    try:
        with open(path, "rb"):
            pass
        schema = load_schema(path)
    except OSError as error:
        raise ConfigError(f"{path}: {(error.strerror or 'cannot be read').lower()}") from None
    except SchemaRepositoryError:
        raise ConfigError(f"{path}: expected an Avro schema, and JSON") from None
    except Exception as error:  # fastavro does not say which ones; odd schemas end in KeyError and TypeError
        raise ConfigError(f"{path}: not an Avro schema ({type(error).__name__}: {error})") from None
    if not isinstance(schema, dict) or schema.get("type") not in ("record", "error"):
        raise ConfigError(f"{path}: expected the schema of a record")
    try:
        return _reader(schema, {})
    except (KeyError, TypeError, ValueError, RecursionError) as error:
        raise ConfigError(f"{path}: not an Avro schema ({type(error).__name__}: {error})") from None


def _reader(schema: Any, named: dict[str, _Reader]) -> _Reader:
    """A reader for a parsed schema; `named` are the readers of the types that were named so far."""
    if isinstance(schema, list):
        return _union([_reader(branch, named) for branch in schema])
    if isinstance(schema, str):
        return _PRIMITIVES[schema] if schema in _PRIMITIVES else named[schema]
    kind = schema["type"]
    match kind:
        case "record" | "error":
            fields: dict[str, _Reader] = {}
            # Known before its fields are: they may hold it.
            reader = named[schema["name"]] = _record(fields)
            for field in schema["fields"]:
                if field["name"] in fields:
                    raise ValueError(f"two fields have the name {field['name']!r}")
                fields[field["name"]] = _reader(field["type"], named)
            return reader
        case "enum":
            reader = named[schema["name"]] = _enum(list(schema["symbols"]))
            return reader
        case "fixed":
            if not isinstance(schema["size"], int) or schema["size"] < 0:
                raise ValueError("expected a size of fixed of 0 or more")
            reader = named[schema["name"]] = _logical(_fixed(schema["size"]), schema)
            return reader
        case "array":
            return _blocks(_reader(schema["items"], named), [])
        case "map":
            return _blocks(_entry(_reader(schema["values"], named)), {})
        case "bytes":
            return _logical(_bytes, schema)
        case _:
            return _reader(kind, named)


def _record(fields: dict[str, _Reader]) -> _Reader:
    def read(data: bytes, at: int) -> tuple[Any, int]:
        item: dict[str, Any] = {}
        for name, field in fields.items():
            item[name], at = field(data, at)
        return item, at

    return read


def _union(branches: list[_Reader]) -> _Reader:
    def read(data: bytes, at: int) -> tuple[Any, int]:
        index, at = _long(data, at)
        if index < 0:
            raise IndexError
        return branches[index](data, at)

    return read


def _enum(symbols: list[str]) -> _Reader:
    def read(data: bytes, at: int) -> tuple[Any, int]:
        index, at = _long(data, at)
        if index < 0:
            raise IndexError
        return symbols[index], at

    return read


def _blocks(item: _Reader, nothing: Any) -> _Reader:
    """A reader of arrays and maps, which keeps nothing of them: it matters only that there is one."""

    def read(data: bytes, at: int) -> tuple[Any, int]:
        while True:
            count, at = _long(data, at)
            if count == 0:
                return nothing, at
            end = -1
            if count < 0:
                size, at = _long(data, at)
                end = at + size
            for _ in range(abs(count)):
                start = at
                _, at = item(data, at)
                if at == start:  # it takes no bytes, nor do the others
                    break
            if count < 0 and at != end:
                raise ValueError

    return read


def _entry(value: _Reader) -> _Reader:
    def read(data: bytes, at: int) -> tuple[Any, int]:
        return value(data, _string(data, at)[1])

    return read


def _fixed(size: int) -> _Reader:
    def read(data: bytes, at: int) -> tuple[Any, int]:
        return _piece(data, at, size).decode("latin-1"), at + size

    return read


def _logical(read: _Reader, schema: dict[str, Any]) -> _Reader:
    """The reader of a decimal, if the schema of bytes or fixed says that it is one."""
    if schema.get("logicalType") != "decimal":
        return read
    precision, scale = schema["precision"], schema.get("scale", 0)
    limit = 10**precision

    def read_decimal(data: bytes, at: int) -> tuple[Any, int]:
        text, at = read(data, at)
        unscaled = int.from_bytes(text.encode("latin-1"), "big", signed=True)
        if abs(unscaled) >= limit:
            raise ValueError
        digits = Decimal(abs(unscaled)).as_tuple().digits
        return f"{Decimal((unscaled < 0, digits, -scale)):f}", at

    return read_decimal


# The readers of plain values.


def _piece(data: bytes, at: int, size: int) -> bytes:
    if size < 0 or at + size > len(data):
        raise IndexError
    return data[at : at + size]


def _null(data: bytes, at: int) -> tuple[Any, int]:
    return None, at


def _boolean(data: bytes, at: int) -> tuple[Any, int]:
    if data[at] > 1:
        raise ValueError
    return data[at] == 1, at + 1


def _long(data: bytes, at: int) -> tuple[Any, int]:
    byte = data[at]
    at += 1
    value, shift = byte & 127, 7
    while byte > 127:
        if shift > 63:
            raise ValueError
        byte = data[at]
        at += 1
        value |= (byte & 127) << shift
        shift += 7
    if value >> 64:
        raise ValueError
    return (value >> 1) ^ -(value & 1), at


def _int(data: bytes, at: int) -> tuple[Any, int]:
    value, at = _long(data, at)
    if not -(1 << 31) <= value < 1 << 31:
        raise ValueError
    return value, at


def _float(data: bytes, at: int) -> tuple[Any, int]:
    return _FLOAT.unpack_from(data, at)[0], at + 4


def _double(data: bytes, at: int) -> tuple[Any, int]:
    return _DOUBLE.unpack_from(data, at)[0], at + 8


def _bytes(data: bytes, at: int) -> tuple[Any, int]:
    size, at = _long(data, at)
    return _piece(data, at, size).decode("latin-1"), at + size


def _string(data: bytes, at: int) -> tuple[Any, int]:
    size, at = _long(data, at)
    return _piece(data, at, size).decode(), at + size


_FLOAT, _DOUBLE = struct.Struct("<f"), struct.Struct("<d")
_PRIMITIVES: dict[str, _Reader] = {
    "null": _null,
    "boolean": _boolean,
    "int": _int,
    "long": _long,
    "float": _float,
    "double": _double,
    "bytes": _bytes,
    "string": _string,
}
