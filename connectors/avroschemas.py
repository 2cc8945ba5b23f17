"""Avro schemas of messages: those that values were written with, and the one that a job expects. Extra `avro`.

fastavro reads a value of one schema as another one says, by Avro's rules of schema resolution. `record_layout` checks
the fields of the two schemas once for each pair, so that one that cannot be resolved is known before its first value.
"""

import json
import os
import re
from collections.abc import Callable, Iterable, Mapping
from decimal import Decimal
from pathlib import Path
from typing import Any, NamedTuple

from streamdp.errors import ConfigError, file_errors, needing

with needing("Avro", "avro"):
    from fastavro._read_py import match_schemas
    from fastavro.read import LOGICAL_READERS
    from fastavro.repository.base import SchemaRepositoryError
    from fastavro.schema import load_schema, parse_schema

Layout = tuple[Any, dict[str, Any], Any]
"""What fastavro reads a value by: the schema it was written with, the named types, and the reader's schema or None."""

_RECORDS = ("record", "error")
_NAMED = (*_RECORDS, "enum", "fixed")
_MOMENTS = re.compile("date|time-.*|timestamp-.*|local-timestamp-.*")
"""Logical types of whole numbers that differ by their unit or their zone."""


class AvroSchema(NamedTuple):
    """A schema and its named types. Decimals are read as such, other logical types as the types that carry them."""

    schema: Any
    names: dict[str, object]

    def as_written(self) -> Layout:
        """The layout of values that are read by the schema that they were written with."""
        return self.schema, {"writer": self.names, "reader": {}}, None


Writers = Mapping[int, AvroSchema] | Callable[[int], AvroSchema | None]
"""The schemas that values were written with, by their ids: all of them, or what asks for one; None if it is unknown.

A call raises `ConfigError` for what is no Avro schema, and `SourceUnavailableError` if it has to be repeated.
"""


def read_schema(path: str) -> AvroSchema:
    """Return the schema of an .avsc file. Named types that it lacks are searched for beside its path.

    Raises `ConfigError` if it cannot be read or is no Avro schema.
    """
    if not path.endswith(".avsc"):
        raise ConfigError(f"{path}: expected an Avro schema in a file whose name ends in .avsc")
    with file_errors(ConfigError, path), open(path, "rb"):
        pass
    return _checked(path, lambda: [load_schema(path)])


def read_schemas(schemas: str | Mapping[int, str]) -> dict[int, AvroSchema]:
    """Return the schemas of files by their ids.

    `schemas` is a path for each id, or a folder with `<id>.avsc` files; other files in it are those of named types.
    Raises `ConfigError` as `read_schema`, and for a folder without such files.
    """
    if isinstance(schemas, str):
        with file_errors(ConfigError, schemas):
            names = [name.removesuffix(".avsc") for name in os.listdir(schemas) if name.endswith(".avsc")]
        paths = {int(name): str(Path(schemas, f"{name}.avsc")) for name in names if re.fullmatch("0|[1-9][0-9]*", name)}
        if not paths:
            raise ConfigError(f"{schemas}: expected files with the names <id>.avsc, such as 7.avsc")
        schemas = paths
    return {number: read_schema(path) for number, path in sorted(schemas.items())}


def parsed(where: str, texts: Iterable[str]) -> AvroSchema:
    """Return the schema of JSON texts: the last one. The others have named types that those after them refer to.

    Raises `ConfigError`, which says where they are from, if they are no Avro schema.
    """
    names: dict[str, Any] = {}
    return _checked(where, lambda: [parse_schema(json.loads(text), names) for text in texts])


def _checked(where: str, parse: Callable[[], list[object]]) -> AvroSchema:
    names: dict[str, object] = {}
    try:
        schemas = [_prepared(schema, names) for schema in parse()]
    except SchemaRepositoryError:
        raise ConfigError(f"{where}: expected an Avro schema, and JSON") from None
    except Exception as error:  # noqa: BLE001 - fastavro names no type; odd schemas end in KeyError and TypeError
        raise ConfigError(f"{where}: not an Avro schema ({type(error).__name__}: {error})") from None
    return AvroSchema(schemas[-1], names)


def record_layout(written: AvroSchema, expected: AvroSchema | None = None) -> Layout:
    """Return the layout of values of a record: as they were written, or resolved to the expected schema by fastavro.

    What cannot be resolved in the fields of the record is known here, before the first value; fastavro finds what is
    deeper, or a branch of a union, in each value. Two rules are stricter than Avro's, which would change values in
    silence: moments of different units, such as timestamp-millis and timestamp-micros, cannot be resolved, and a
    decimal is expected only where one was written, with the scale of its writer.

    Raises `ConfigError` if the schema is not that of a record, or cannot be resolved.
    """
    schema, names = written
    if not _is_record(schema):
        raise ConfigError("expected the schema of a record")
    if expected is None:
        return written.as_written()
    named = {"writer": names, "reader": expected.names}
    if not _is_record(expected.schema) or match_schemas(schema, expected.schema, named, False) is None:  # type: ignore[no-untyped-call]
        raise ConfigError(f"{_called(schema)} was written for {_called(expected.schema)}")
    fields = {field["name"]: field for field in schema["fields"]}
    for field in expected.schema["fields"]:
        found = [fields[name]["type"] for name in (field["name"], *field.get("aliases", ())) if name in fields]
        name, aim = field["name"], field["type"]
        if len(found) > 1:
            raise ConfigError(f"field {name!r} was written under two names")
        if not found:
            if "default" not in field:
                raise ConfigError(f"field {name!r} was not written and has no default")
            continue
        asked, given = _logical(aim, expected.names), _logical(found[0], names)
        differ = asked and asked != given and (given or "decimal" in asked)
        if differ or match_schemas(found[0], aim, named, False) is None:  # type: ignore[no-untyped-call]
            raise ConfigError(f"field {name!r}: {_called(found[0])} was written for {_called(aim)}")
    return schema, named, expected.schema


def _is_record(schema: object) -> bool:
    return isinstance(schema, dict) and schema["type"] in _RECORDS


def _called(kind: Any) -> str:
    if isinstance(kind, list):
        return f"a union of {', '.join(map(_called, kind))}"
    return kind if isinstance(kind, str) else str(kind.get("name") or kind.get(_LOGICAL) or kind["type"])


def _logical(kind: Any, names: Mapping[str, object]) -> set[str]:
    """The logical types of a type or of the branches of a union that decide what its numbers mean."""
    if isinstance(kind, list):
        return set().union(*(_logical(branch, names) for branch in kind))
    kind = names.get(kind, {}) if isinstance(kind, str) else kind
    return {kind[_LOGICAL]} if _LOGICAL in kind else set()


def _prepared(schema: Any, names: dict[str, Any]) -> Any:
    """A parsed schema with the logical type `_DECIMAL` only. Its named types go to `names`."""
    if isinstance(schema, list):
        return [_prepared(branch, names) for branch in schema]
    if isinstance(schema, str):
        return schema
    kind, logical = schema["type"], str(schema.get("logicalType"))
    ours = {key: value for key, value in schema.items() if key != "logicalType"}
    if kind in _NAMED:
        names[schema["name"]] = ours
    if kind in _RECORDS:
        listed = [field["name"] for field in schema["fields"]]
        if len(set(listed)) < len(listed):
            raise ValueError(f"two fields have the name {max(listed, key=listed.count)!r}")
        ours["fields"] = [_field(field, names) for field in schema["fields"]]
    ours |= {key: _prepared(schema[key], names) for key in ("items", "values") if key in schema}
    if kind == "fixed" and not (isinstance(schema["size"], int) and schema["size"] >= 0):
        raise ValueError("expected a size of fixed of 0 or more")
    if logical == "decimal" and kind in ("bytes", "fixed"):
        ours |= {"logicalType": _DECIMAL, "scale": schema.get("scale", 0), "limit": 10 ** schema["precision"]}
    return ours | ({_LOGICAL: logical} if logical == "decimal" or _MOMENTS.fullmatch(logical) else {})


def _field(field: dict[str, Any], names: dict[str, Any]) -> dict[str, Any]:
    kind, default = _prepared(field["type"], names), field.get("default")
    first = kind[0] if isinstance(kind, list) and kind else kind
    first = names.get(first, {}) if isinstance(first, str) else first
    if first.get("logicalType") == _DECIMAL and isinstance(default, str):
        default = _decimal(default.encode("latin-1"), first, None)
    return field | {"type": kind} | ({"default": default} if "default" in field else {})


def _decimal(data: bytes, schema: Any, _reader_schema: object) -> str:
    unscaled = int.from_bytes(data, "big", signed=True)
    if abs(unscaled) >= schema["limit"]:  # before the conversion below, whose time grows with the square of the size
        raise ValueError
    digits = Decimal(abs(unscaled)).as_tuple().digits
    return f"{Decimal((unscaled < 0, digits, -schema['scale'])):f}"


_DECIMAL = "streamdp-decimal"
"""Our logical type. fastavro's registry is global; this name leaves its own types as they are."""
_LOGICAL = "streamdp-logical"
"""The key of a type that has the logical type that its schema named."""

LOGICAL_READERS |= {f"{kind}-{_DECIMAL}": _decimal for kind in ("bytes", "fixed")}
