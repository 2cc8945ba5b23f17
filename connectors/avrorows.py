"""Avro values, one a record, to a batch. Used for messages of a broker. Needs the extra `avro`.

fastavro reads the schema and the values, except for the primitives whose values direct the reader: `_Primitives`
checks them, because fastavro trusts its input. It takes a negative index of a union or enum from the end of the list,
a negative length as "all that is left", and does not return from an array that claims to hold 2^60 nulls.

The reader is fastavro's Python one (its module _read_py), not its compiled one. The compiled reader takes no other
primitives, and a value that nests a million levels deep overflows its stack, which ends the process. The Python reader
raises `RecursionError`, which makes that value a dead letter.
"""

from __future__ import annotations

import io
import os
from collections.abc import Iterator, Sequence
from decimal import Decimal
from typing import Any

import numpy as np

from connectors.jsonrows import FRAME_BYTES, Given, encode_objects
from connectors.recordblocks import MAX_RECORD_BYTES
from streamdp.data.records import Batch, DeadLetter, Encoder, Position
from streamdp.errors import ConfigError

try:
    from fastavro._read_py import read_data
    from fastavro.io.binary_decoder import BinaryDecoder
    from fastavro.read import LOGICAL_READERS
    from fastavro.repository.base import SchemaRepositoryError
    from fastavro.schema import load_schema
except ImportError:
    raise ConfigError("Avro needs the package fastavro: pip install 'streamdp[avro]'") from None

FRAMINGS = ("none", "confluent")

_MALFORMED = (EOFError, IndexError, ValueError, RecursionError)
"""Raised for bytes that are no value of the schema."""


class AvroDecoder:
    """Turns Avro values into a batch; called like `jsonrows.encode_json`, and so a `decode` of `kafka.KafkaSource`.

    Parameters
    ----------
    path
        The .avsc file with the schema that the values were written with: a record. Named types that it lacks are
        searched for beside it, in `<full name>.avsc`.
    framing
        What a value begins with: `none` for bare Avro binary, `confluent` for a zero byte and the 4 bytes of a schema's
        number. The number is ignored: all values must have the one schema.

    Dead letters in addition to the encoder's: `tombstone` for None in place of a value, `too_long` for one over
    `MAX_RECORD_BYTES`, `empty` for no bytes, `nested` for a record, map or array where a plain value belongs, and
    `not_avro` for bytes that are not exactly one value of the schema: too few or too many, another first byte than the
    header's, an index, a length or a boolean out of range, text that is not UTF-8, or nesting over Python's recursion
    limit (100 levels of a recursive schema are within it).

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
        self._schema, self._named = _read_schema(os.fspath(path))
        self._header_bytes = FRAME_BYTES if framing == "confluent" else 0

    def __call__(
        self,
        raw: Sequence[bytes | None],
        positions: np.ndarray,
        position: Position,
        encoder: Encoder,
        given: Given | None = None,
    ) -> Batch:
        """As `jsonrows.encode_json`, for n Avro values."""
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
        """The fields of a value, or the reason why it has none."""
        if value is None:
            return "tombstone"
        if not value:
            return "empty"
        if len(value) > MAX_RECORD_BYTES:
            return "too_long"
        if self._header_bytes and (value[0] != 0 or len(value) < self._header_bytes):
            return "not_avro"
        primitives = _Primitives(value[self._header_bytes :])
        try:
            item: dict[str, Any] = read_data(primitives, self._schema, self._named)  # type: ignore[no-untyped-call]
        except _MALFORMED:
            return "not_avro"
        return "not_avro" if primitives.fo.read(1) else item


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


def _read_schema(path: str) -> tuple[Any, dict[str, Any]]:
    """The record schema of a file, and its named types as fastavro expects them. Raises `ConfigError`."""
    if not path.endswith(".avsc"):
        raise ConfigError(f"{path}: expected an Avro schema in a file whose name ends in .avsc")
    named: dict[str, Any] = {}
    try:
        with open(path, "rb"):
            pass
        schema = _prepared(load_schema(path), named)
    except OSError as error:
        raise ConfigError(f"{path}: {(error.strerror or 'cannot be read').lower()}") from None
    except SchemaRepositoryError:
        raise ConfigError(f"{path}: expected an Avro schema, and JSON") from None
    except Exception as error:  # noqa: BLE001 - fastavro names no type; odd schemas end in KeyError and TypeError
        raise ConfigError(f"{path}: not an Avro schema ({type(error).__name__}: {error})") from None
    if not isinstance(schema, dict) or schema["type"] not in ("record", "error"):
        raise ConfigError(f"{path}: expected the schema of a record")
    return schema, {"writer": named, "reader": {}}


def _prepared(schema: Any, named: dict[str, Any]) -> Any:
    """A parsed schema with the logical types `_TEXT` and `_DECIMAL` only; its named types go to `named`."""
    if isinstance(schema, list):
        return [_prepared(branch, named) for branch in schema]
    if isinstance(schema, str):
        return _prepared({"type": schema}, named) if schema == "bytes" else schema
    kind = schema["type"]
    if not isinstance(kind, str):
        return _prepared(kind, named)
    ours = {key: value for key, value in schema.items() if key != "logicalType"}
    if kind in ("record", "error", "enum", "fixed"):
        named[schema["name"]] = ours
    match kind:
        case "record" | "error":
            names = [field["name"] for field in schema["fields"]]
            if len(set(names)) < len(names):
                raise ValueError(f"two fields have the name {max(names, key=names.count)!r}")
            ours["fields"] = [field | {"type": _prepared(field["type"], named)} for field in schema["fields"]]
        case "array":
            ours["items"] = _prepared(schema["items"], named)
        case "map":
            ours["values"] = _prepared(schema["values"], named)
        case "bytes" | "fixed":
            ours |= _carried(schema)
    return ours


def _carried(schema: dict[str, Any]) -> dict[str, Any]:
    """What replaces the logical type of bytes or fixed."""
    if schema["type"] == "fixed" and not (isinstance(schema["size"], int) and schema["size"] >= 0):
        raise ValueError("expected a size of fixed of 0 or more")
    if schema.get("logicalType") != "decimal":
        return {"logicalType": _TEXT}
    return {"logicalType": _DECIMAL, "scale": schema.get("scale", 0), "limit": 10 ** schema["precision"]}


def _text(data: bytes, _schema: Any, _reader_schema: Any) -> str:
    return data.decode("latin-1")


def _decimal(data: bytes, schema: Any, _reader_schema: Any) -> str:
    unscaled = int.from_bytes(data, "big", signed=True)
    if abs(unscaled) >= schema["limit"]:  # before the conversion below, whose time grows with the square of the size
        raise ValueError
    digits = Decimal(abs(unscaled)).as_tuple().digits
    return f"{Decimal((unscaled < 0, digits, -schema['scale'])):f}"


_TEXT, _DECIMAL = "streamdp-text", "streamdp-decimal"
"""Our logical types. fastavro's registry is global; these names leave its own types as they are."""

LOGICAL_READERS |= {f"{kind}-{_TEXT}": _text for kind in ("bytes", "fixed")}
LOGICAL_READERS |= {f"{kind}-{_DECIMAL}": _decimal for kind in ("bytes", "fixed")}
