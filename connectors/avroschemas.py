"""Avro schemas of messages: those that values were written with, and the one that a job expects. Extra `avro`.

A value of one schema is read as another one says by Avro's rules of schema resolution. fastavro applies them at every
value. Here they are applied once for each pair of schemas: `record_layout` returns a schema that describes the bytes
of the writer and gives the values of the reader, so that a value is read as if it had one schema, a pair that cannot be
resolved is known before its first value, and a length is checked also in a field that the job does not expect.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Iterable, Mapping
from decimal import Decimal
from pathlib import Path
from typing import Any, NamedTuple

from streamdp.errors import ConfigError

try:
    from fastavro.read import LOGICAL_READERS
    from fastavro.repository.base import SchemaRepositoryError
    from fastavro.schema import load_schema, parse_schema
except ImportError:
    raise ConfigError("Avro needs the package fastavro: pip install 'streamdp[avro]'") from None

Layout = tuple[Any, dict[str, Any]]
"""What fastavro reads a value by: a schema, and its named types."""

_RECORDS = ("record", "error")
_NAMED = (*_RECORDS, "enum", "fixed")
_PROMOTED = {"int": ("long", "float", "double"), "long": ("float", "double"), "float": ("double",)}
_CONVERTED = {("bytes", "string"), ("string", "bytes"), *((n, f) for n in ("int", "long") for f in ("float", "double"))}
"""What changes its form when it is read as another type."""
_MOMENTS = re.compile("date|time-.*|timestamp-.*|local-timestamp-.*")
"""Logical types of whole numbers that differ by their unit or their zone."""


class AvroSchema(NamedTuple):
    """A schema as fastavro parses it, its named types, and the layout of its values."""

    schema: Any
    names: dict[str, Any]
    layout: Layout


Writers = Mapping[int, AvroSchema] | Callable[[int], AvroSchema | None]
"""The schemas that values were written with, by their ids: all of them, or what asks for one; None if it is unknown.

A call raises `ConfigError` for what is no Avro schema, and `SourceUnavailableError` if it has to be repeated.
"""


class UnresolvedError(Exception):
    """A value of a type that the reader's schema does not have. It shows nothing of the value."""


class _ConflictError(Exception):
    """Why two schemas cannot be resolved."""


def read_schema(path: str) -> AvroSchema:
    """Return the schema of an .avsc file. Named types that it lacks are searched for beside its path.

    Raises `ConfigError` if it cannot be read or is no Avro schema.
    """
    if not path.endswith(".avsc"):
        raise ConfigError(f"{path}: expected an Avro schema in a file whose name ends in .avsc")
    try:
        with open(path, "rb"):
            pass
    except OSError as error:
        raise ConfigError(f"{path}: {(error.strerror or 'cannot be read').lower()}") from None
    return _checked(path, lambda: [load_schema(path)])


def read_schemas(schemas: str | Mapping[int, str]) -> dict[int, AvroSchema]:
    """Return the schemas of files by their ids.

    `schemas` is a path for each id, or a folder with `<id>.avsc` files; other files in it are those of named types.
    Raises `ConfigError` as `read_schema`, and for a folder without such files.
    """
    if isinstance(schemas, str):
        try:
            names = [name.removesuffix(".avsc") for name in os.listdir(schemas) if name.endswith(".avsc")]
        except OSError as error:
            raise ConfigError(f"{schemas}: {(error.strerror or 'cannot be read').lower()}") from None
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


def _checked(where: str, parse: Callable[[], list[Any]]) -> AvroSchema:
    names: dict[str, Any] = {}
    plain: dict[str, Any] = {}
    try:
        schemas = parse()
        layouts = [_prepared(schema, names, plain) for schema in schemas]
    except SchemaRepositoryError:
        raise ConfigError(f"{where}: expected an Avro schema, and JSON") from None
    except Exception as error:  # noqa: BLE001 - fastavro names no type; odd schemas end in KeyError and TypeError
        raise ConfigError(f"{where}: not an Avro schema ({type(error).__name__}: {error})") from None
    return AvroSchema(schemas[-1], names, (layouts[-1], {"writer": plain, "reader": {}}))


def record_layout(written: AvroSchema, expected: AvroSchema | None = None) -> Layout:
    """Return the layout of values of a record: as they were written, or resolved to the expected schema.

    Two rules are stricter than Avro's, which would change values in silence: moments of different units, such as
    timestamp-millis and timestamp-micros, cannot be resolved, and the scale of a decimal is that of its writer.

    Raises `ConfigError` if the schema is not that of a record, or cannot be resolved.
    """
    if not isinstance(written.schema, dict) or written.schema["type"] not in _RECORDS:
        raise ConfigError("expected the schema of a record")
    if expected is None:
        return written.layout
    resolution = _Resolution(written, expected)
    try:
        return resolution.resolved(written.schema, expected.schema), {"writer": resolution.named, "reader": {}}
    except _ConflictError as error:
        raise ConfigError(str(error)) from None
    except (AttributeError, KeyError, RecursionError, TypeError, ValueError) as error:  # odd defaults, many levels
        raise ConfigError(f"cannot be resolved ({type(error).__name__})") from None


class _Resolution:
    """Resolves the types of one schema to those of another one. `named` has the named types of the layouts."""

    def __init__(self, written: AvroSchema, expected: AvroSchema) -> None:
        self._written, self._expected = written.names, expected.names
        self.named: dict[str, Any] = dict(written.layout[1]["writer"])

    def resolved(self, written: Any, expected: Any) -> Any:
        """The layout of a type. Raises `_ConflictError` if it cannot be resolved."""
        w, e = _definition(written, self._written), _definition(expected, self._expected)
        if isinstance(w, list):
            return self._branches(w, e)
        if isinstance(e, list):
            return self._first(w, e)
        kind, aim = w["type"], e["type"]
        moments = [t["logicalType"] for t in (w, e) if _MOMENTS.fullmatch(str(t.get("logicalType")))]
        if not _alike(w, e) or len(set(moments)) > 1:
            raise _ConflictError(f"{_called(w)} was written for {_called(e)}")
        match kind:
            case "record" | "error":
                return self._record(w, e)
            case "enum":
                return _enum(w, e)
            case "array":
                return {"type": "array", "items": self.resolved(w["items"], e["items"])}
            case "map":
                return {"type": "map", "values": self.resolved(w["values"], e["values"])}
        if kind != aim and (kind, aim) in _CONVERTED:
            return {"type": kind, "logicalType": _PROMOTION, "to": aim}
        return _prepared(e if kind == aim and w.get("logicalType") != "decimal" else w, {}, {})

    def _branches(self, written: list[Any], expected: Any) -> list[Any]:
        """A union that was written: a value of a branch that cannot be resolved raises `UnresolvedError`."""
        found: list[Any] = []
        conflicts = []
        for branch in written:
            try:
                found.append(self.resolved(branch, expected))
            except _ConflictError as conflict:
                found.append({"type": "null", "logicalType": _UNRESOLVED})
                conflicts.append(conflict)
        if len(conflicts) == len(written):
            raise _ConflictError(f"none of a union can be read: {conflicts[-1] if conflicts else 'it is empty'}")
        return found

    def _first(self, written: Any, expected: list[Any]) -> Any:
        """A type that was written where a union is expected: the same type if there is one, or the first that fits."""
        same = [_definition(branch, self._expected)["type"] == written["type"] for branch in expected]
        for _, branch in sorted(zip(same, expected, strict=True), key=lambda pair: not pair[0]):
            try:
                return self.resolved(written, branch)
            except _ConflictError:
                continue
        raise _ConflictError(f"{_called(written)} was written for a union without it")

    def _record(self, written: dict[str, Any], expected: dict[str, Any]) -> str:
        name = f"{written['name']} as {expected['name']}"
        if name not in self.named:
            self.named[name] = {"type": "null", "logicalType": _UNRESOLVED}  # what it is if there is a conflict
            fields = self.named[name] = {"type": "record", "name": name, "fields": []}
            try:
                fields["fields"] = self._fields(written, expected)
            except _ConflictError:
                self.named[name] = {"type": "null", "logicalType": _UNRESOLVED}
                raise
        elif self.named[name]["type"] == "null":
            raise _ConflictError(f"{_called(written)} cannot be read")
        return name

    def _fields(self, written: dict[str, Any], expected: dict[str, Any]) -> list[dict[str, Any]]:
        """The fields in the order of the bytes, then those that have defaults in place of bytes."""
        there = {field["name"] for field in written["fields"]}
        lacking = {field["name"]: field for field in expected["fields"]}
        aliases = {alias: name for name, f in lacking.items() if name not in there for alias in f.get("aliases", ())}
        fields = []
        for field in written["fields"]:
            aim = lacking.pop(aliases.get(field["name"], field["name"]), None)
            if aim is None:
                fields.append({"name": _SKIPPED, "type": _prepared(field["type"], {}, {})})
                continue
            try:
                fields.append({"name": aim["name"], "type": self.resolved(field["type"], aim["type"])})
            except _ConflictError as conflict:
                raise _ConflictError(f"field {aim['name']!r}: {conflict}") from None
        for name, field in lacking.items():
            if "default" not in field:
                raise _ConflictError(f"field {name!r} was not written and has no default")
            value = self._default(field["default"], field["type"])
            fields.append({"name": name, "type": {"type": "null", "logicalType": _DEFAULT, "value": value}})
        return fields

    def _default(self, value: Any, expected: Any) -> Any:
        """A default of a schema, in JSON, as a value that was read."""
        e = _definition(expected, self._expected)
        if isinstance(e, list):
            branches = [_definition(branch, self._expected) for branch in e]
            if value is None or not (others := [branch for branch in branches if branch["type"] != "null"]):
                return None
            return self._default(value, others[0])
        match e["type"]:
            case "record" | "error":
                return {
                    f["name"]: self._default(value.get(f["name"], f.get("default")), f["type"]) for f in e["fields"]
                }
            case "array":
                return [self._default(item, e["items"]) for item in value]
            case "map":
                return {key: self._default(item, e["values"]) for key, item in value.items()}
            case "bytes" | "fixed" if e.get("logicalType") == "decimal":
                return _decimal(value.encode("latin-1"), _prepared(e, {}, {}), None)
        return value


def _definition(schema: Any, names: Mapping[str, Any]) -> Any:
    """A type as a list or a mapping, also if it is a name."""
    return names.get(schema, {"type": schema}) if isinstance(schema, str) else schema


def _called(schema: dict[str, Any]) -> str:
    return str(schema.get("name") or schema.get("logicalType") or schema["type"])


def _alike(w: dict[str, Any], e: dict[str, Any]) -> bool:
    """Whether a type can be read as another one, apart from what is inside of them."""
    kind, aim = w["type"], e["type"]
    if kind in _NAMED:
        short = w["name"].rpartition(".")[2]
        names = {e["name"].rpartition(".")[2], *e.get("aliases", ())}
        same = kind == aim or (kind in _RECORDS and aim in _RECORDS)
        return same and bool(names & {short, w["name"]}) and w.get("size") == e.get("size")
    if (kind, aim) in (("string", "bytes"), ("bytes", "string")):
        return "decimal" not in (w.get("logicalType"), e.get("logicalType"))
    return bool(kind == aim or aim in _PROMOTED.get(kind, ()))


def _enum(w: dict[str, Any], e: dict[str, Any]) -> dict[str, Any]:
    """An enum whose symbols are those of the reader, its default for others, or None if it has none."""
    symbols = [symbol if symbol in e["symbols"] else e.get("default") for symbol in w["symbols"]]
    if symbols and not any(symbols):
        raise _ConflictError(f"no symbol of {_called(w)} is one of {_called(e)}")
    return {"type": "enum", "name": w["name"], "symbols": symbols, "logicalType": _UNRESOLVED}


def _prepared(schema: Any, names: dict[str, Any], plain: dict[str, Any]) -> Any:
    """A parsed schema with the logical types `_TEXT` and `_DECIMAL` only.

    Its named types go to `names` as they are, and to `plain` with these logical types.
    """
    if isinstance(schema, list):
        return [_prepared(branch, names, plain) for branch in schema]
    if isinstance(schema, str):
        return _prepared({"type": schema}, names, plain) if schema == "bytes" else schema
    kind = schema["type"]
    ours = {key: value for key, value in schema.items() if key != "logicalType"}
    if kind in _NAMED:
        names[schema["name"]], plain[schema["name"]] = schema, ours
    match kind:
        case "record" | "error":
            listed = [field["name"] for field in schema["fields"]]
            if len(set(listed)) < len(listed):
                raise ValueError(f"two fields have the name {max(listed, key=listed.count)!r}")
            ours["fields"] = [field | {"type": _prepared(field["type"], names, plain)} for field in schema["fields"]]
        case "array":
            ours["items"] = _prepared(schema["items"], names, plain)
        case "map":
            ours["values"] = _prepared(schema["values"], names, plain)
        case "bytes" | "fixed":
            ours |= _carried(schema)
    return ours


def _carried(schema: dict[str, Any]) -> dict[str, Any]:
    if schema["type"] == "fixed" and not (isinstance(schema["size"], int) and schema["size"] >= 0):
        raise ValueError("expected a size of fixed of 0 or more")
    if schema.get("logicalType") != "decimal":
        return {"logicalType": _TEXT}
    return {"logicalType": _DECIMAL, "scale": schema.get("scale", 0), "limit": 10 ** schema["precision"]}


def _decimal(data: bytes, schema: Any, _reader_schema: Any) -> str:
    unscaled = int.from_bytes(data, "big", signed=True)
    if abs(unscaled) >= schema["limit"]:  # before the conversion below, whose time grows with the square of the size
        raise ValueError
    digits = Decimal(abs(unscaled)).as_tuple().digits
    return f"{Decimal((unscaled < 0, digits, -schema['scale'])):f}"


def _promoted(data: Any, schema: Any, _reader_schema: Any) -> str | float:
    if schema["to"] == "string":
        return str(data, "utf-8")
    return str(data.encode(), "latin-1") if schema["to"] == "bytes" else float(data)


def _given(_data: Any, schema: Any, _reader_schema: Any) -> Any:
    return schema["value"]


def _resolvable(data: str | None, _schema: Any, _reader_schema: Any) -> str:
    if data is None:
        raise UnresolvedError
    return data


_SKIPPED = None
"""The key of the values of fields that the reader's schema does not have: no column has it."""

_TEXT, _DECIMAL, _PROMOTION = "streamdp-text", "streamdp-decimal", "streamdp-promotion"
_DEFAULT, _UNRESOLVED = "streamdp-default", "streamdp-unresolved"
"""Our logical types. fastavro's registry is global; these names leave its own types as they are."""

LOGICAL_READERS |= {f"{kind}-{_TEXT}": lambda data, *_: data.decode("latin-1") for kind in ("bytes", "fixed")}
LOGICAL_READERS |= {f"{kind}-{_DECIMAL}": _decimal for kind in ("bytes", "fixed")}
LOGICAL_READERS |= {f"{kind}-{_PROMOTION}": _promoted for kind in ("bytes", "string", "int", "long")}
LOGICAL_READERS |= {f"null-{_DEFAULT}": _given}
LOGICAL_READERS |= {f"{kind}-{_UNRESOLVED}": _resolvable for kind in ("null", "enum")}
