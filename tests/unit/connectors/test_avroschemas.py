"""Framed Avro values are read by the schema that their id names, and resolved to that of the job."""

import io
import json
import socket
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import fastavro
import numpy as np
import pytest

from connectors.avrorows import AvroDecoder
from connectors.avroschemas import AvroSchema, parsed, read_schemas, record_layout
from connectors.schemaregistry import SchemaRegistry
from streamdp.data.records import Batch
from streamdp.data.schema import Schema
from streamdp.errors import ConfigError, SourceError, SourceUnavailableError
from tests.support.batches import varint
from tests.support.registry import PASSWORD, USER, Registry, registry

SCHEMA = Schema({"a": (-10, 10)}, "t")
LETTERS = Schema({"a": ["x", "y"]}, "t")


def record(**fields: Any) -> dict[str, Any]:
    """A record; a field is a type, or a mapping with `type` and more of the field's keys."""
    listed = [
        {"name": name} | (kind if isinstance(kind, dict) and "field" in kind else {"type": kind})
        for name, kind in fields.items()
    ]
    return {"type": "record", "name": "R", "namespace": "some.space", "fields": listed}


def field(kind: Any, **more: Any) -> dict[str, Any]:
    return {"field": True, "type": kind, **more}


def enum(name: str, *symbols: str) -> dict[str, Any]:
    return {"type": "enum", "name": name, "symbols": list(symbols)}


def schema(document: Any) -> AvroSchema:
    return parsed("schema", [json.dumps(document)])


def framed(number: int, document: Any, item: Any) -> bytes:
    out = io.BytesIO()
    fastavro.schemaless_writer(out, fastavro.parse_schema(document), item)
    return b"\0" + number.to_bytes(4, "big") + out.getvalue()


def decode(decoder: AvroDecoder, *raw: bytes, schema: Schema = SCHEMA) -> Batch:
    return decoder(raw, np.arange(len(raw)), {}, schema)


def letters(batch: Batch) -> list[tuple[int, str, str | None]]:
    return [(d.position, d.reason, d.column) for d in batch.dead]


@pytest.fixture
def expects(tmp_path: Path) -> Any:
    """A decoder of a job that expects a schema, where messages have others by their ids."""

    def make(expected: Any, writers: dict[int, Any]) -> AvroDecoder:
        (tmp_path / "expected.avsc").write_text(json.dumps(expected))
        return AvroDecoder(tmp_path / "expected.avsc", writers={n: schema(w) for n, w in writers.items()})

    return make


FIRST, SWAPPED = record(a="int", t="int"), record(t="int", a="int")
LONGER = record(a="int", note=field(["null", "string"], default=None), t="int")


@pytest.mark.parametrize("expected", [None, FIRST, SWAPPED, LONGER])
def test_swapped_and_added_fields_are_read_by_their_names(expects: Any, expected: Any) -> None:
    writers = {7: FIRST, 8: SWAPPED, 9: LONGER}
    decoder = (
        expects(expected, writers) if expected else AvroDecoder(writers={n: schema(w) for n, w in writers.items()})
    )
    raw = [framed(n, w, {"a": 5, "t": 2, "note": note}) for n, w in writers.items() for note in (None, "x")]
    batch = decode(decoder, *raw)
    assert letters(batch) == []
    assert (batch.X.ravel().tolist(), batch.y.tolist()) == ([0.5] * 6, [2.0] * 6)


def test_a_schema_that_cannot_be_resolved_is_a_dead_letter_with_the_reason(expects: Any) -> None:
    other = record(a="string", t="int")
    batch = decode(
        expects(FIRST, {7: FIRST, 8: other, 9: "string"}),
        framed(8, other, {"a": "5", "t": 2}),
        framed(9, "string", "x"),
    )
    assert letters(batch) == [
        (0, "unresolved_schema", "schema id 8: field 'a': string was written for int"),
        (1, "unresolved_schema", "schema id 9: expected the schema of a record"),
    ]
    with pytest.raises(ConfigError, match="no schema of the messages can be read: schema id 8: field 'a'"):
        expects(FIRST, {8: other, 9: "string"})


def test_a_value_that_the_job_has_no_type_for_is_a_dead_letter_without_the_value(expects: Any) -> None:
    letter = {"type": "enum", "name": "Letter", "symbols": ["x", "secret"]}
    written, fewer = record(a=["null", "int"], t="int", c=letter), letter | {"symbols": ["x"]}
    decoder = expects(record(a="int", t="int", c=fewer), {3: written})
    items = [{"a": 1, "t": 1, "c": "x"}, {"a": None, "t": 1, "c": "x"}, {"a": 1, "t": 1, "c": "secret"}]
    batch = decode(decoder, *(framed(3, written, item) for item in items))
    assert letters(batch) == [(1, "unresolved_schema", "schema id 3"), (2, "unresolved_schema", "schema id 3")]


@pytest.mark.parametrize(
    ("kind", "data"),
    [
        ("string", varint(-1) + b"abc"),
        ("string", varint(1 << 62) + b"abc"),
        ("bytes", varint(-(1 << 62))),
        ("bytes", varint(9) + b"abc"),
        ({"type": "fixed", "name": "F", "size": 1 << 40}, b"abc"),
        ({"type": "array", "items": "null"}, varint(1 << 62)),
        ({"type": "array", "items": "long"}, varint(-1) + varint(-9) + varint(5) + b"\0"),
        ({"type": "map", "values": "null"}, varint(1 << 62) + varint(1) + b"k"),
        (["null", "long"], varint(-1) + b"\2"),
        ({"type": "enum", "name": "E", "symbols": ["x"]}, varint(-1)),
        ("long", b"\xff" * 1000),
        (
            {"type": "record", "name": "Node", "fields": [{"name": "next", "type": ["null", "Node"]}]},
            varint(1) * 900_000,
        ),
    ],
    ids=lambda value: str(value)[:40] if not isinstance(value, bytes) else "",
)
def test_a_hostile_length_in_a_field_that_the_job_does_not_expect(expects: Any, kind: Any, data: bytes) -> None:
    decoder = expects(FIRST, {7: record(other=kind, a="int", t="int")})
    assert letters(decode(decoder, b"\0\0\0\0\7" + data + b"\2\2")) == [(0, "not_avro", None)]


NODE = {
    "type": "record",
    "name": "Node",
    "fields": [{"name": "v", "type": "int"}, {"name": "next", "type": ["null", "Node"]}],
}
MONEY = {"type": "bytes", "logicalType": "decimal", "precision": 6, "scale": 2}
RESOLVED: dict[str, tuple[Any, Any, Any, Any]] = {  # what was written, what is expected, a value, and what it becomes
    "int to double": ("int", "double", 7, 7.0),
    "text to bytes": ("string", "bytes", "é", "Ã©"),
    "bytes to text": ("bytes", "string", "é".encode(), "é"),
    "to a union": ("int", ["null", "string", "double"], 7, 7.0),
    "from a union": (["null", "int"], "long", 7, 7),
    "an enum's default": (enum("E", "a", "b"), enum("E", "z", "a") | {"default": "z"}, "b", "z"),
    "an alias of a record": (NODE, NODE | {"name": "New", "aliases": ["some.space.Node"], "fields": NODE["fields"][:1]},
                             {"v": 1, "next": {"v": 2, "next": None}}, {"v": 1}),
    "an alias of a field": (NODE, NODE | {"fields": [{"name": "new", "type": "int", "aliases": ["v"]}]},
                            {"v": 3, "next": None}, {"new": 3}),
    "a type that contains itself": (
        NODE, {**NODE, "fields": [{"name": "v", "type": "double"}, {"name": "next", "type": ["null", "Node"]}]},
        {"v": 1, "next": {"v": 2, "next": None}}, {"v": 1.0, "next": {"v": 2.0, "next": None}},
    ),
    "a decimal keeps the scale of its writer": (MONEY, MONEY | {"scale": 4}, Decimal("2.50"), "2.50"),
    "a decimal of a union": (["null", MONEY], ["null", MONEY], Decimal("2.50"), "2.50"),
}  # fmt: skip


@pytest.mark.parametrize("case", RESOLVED)
def test_resolution(expects: Any, case: str) -> None:
    written, expected, value, found = RESOLVED[case]
    w = record(f=written)
    decoder = expects(record(f=expected), {1: w})
    assert decoder.fields(framed(1, w, {"f": value})) == {"f": found}


@pytest.mark.parametrize(
    ("kind", "default", "value"),
    [("int", 3, 3), (["null", "int"], None, None), ("bytes", "\x00\xfa", "\x00\xfa"), (MONEY, "\x00\xfa", "2.50"),
        ([MONEY, "null"], "\x00\xfa", "2.50"), (enum("E", "a"), "a", "a")],
    ids=str,
)  # fmt: skip
def test_a_field_that_was_not_written_has_its_default(expects: Any, kind: Any, default: Any, value: Any) -> None:
    written = record(a="int")
    decoder = expects(record(f=field(kind, default=default), a="int"), {1: written})
    assert decoder.fields(framed(1, written, {"a": 1})) == {"f": value, "a": 1}


MOMENT = {"type": "long", "logicalType": "timestamp-millis"}
MICROS = MOMENT | {"logicalType": "timestamp-micros"}


@pytest.mark.parametrize(
    ("written", "expected", "match"),
    [
        ("long", "int", "long was written for int"),
        ("string", ["null", "int"], "string was written for a union of null, int"),
        (MOMENT, MICROS, "timestamp-millis was written for timestamp-micros"),
        (["null", MOMENT], ["null", MICROS], "union of null, timestamp-millis was written for"),
        ("bytes", MONEY, "bytes was written for decimal"),
        ({"type": "fixed", "name": "F", "size": 2}, {"type": "fixed", "name": "F", "size": 3}, "some.space.F"),
        (enum("E", "a"), enum("F", "a"), "space.E was written for some.space.F"),
        ({"type": "array", "items": "string"}, {"type": "array", "items": "int"}, "array was written for array"),
    ],
    ids=str,
)
def test_types_that_cannot_be_resolved(written: Any, expected: Any, match: str) -> None:
    with pytest.raises(ConfigError, match=match):
        record_layout(schema(record(f=written)), schema(record(f=expected)))


def test_a_field_that_was_not_written_or_twice_is_no_record_of_the_job() -> None:
    asked = record(x=field("int", aliases=["y"]))
    for written, match in (
        (record(z="int"), "not written and has no default"),
        (record(y="int", x="int"), "two names"),
    ):
        with pytest.raises(ConfigError, match=f"field 'x' .*{match}"):
            record_layout(schema(written), schema(asked))


@pytest.mark.parametrize(
    ("written", "expected", "value"),
    [
        (["null", "string"], "int", "secret"),
        (enum("E", "secret"), enum("E", "b"), "secret"),
        (NODE, NODE | {"fields": [{"name": "x", "type": "int"}]}, {"v": 3, "next": None}),
    ],
    ids=str,
)
def test_a_value_that_cannot_be_resolved_names_its_schema(
    expects: Any, written: Any, expected: Any, value: Any
) -> None:
    w = record(f=written)
    decoder = expects(record(f=expected), {1: w})
    assert decoder.fields(framed(1, w, {"f": value})) == ("unresolved_schema", "schema id 1")


def test_schemas_of_a_folder(tmp_path: Path) -> None:
    (tmp_path / "7.avsc").write_text(json.dumps(record(a="T", t="int")))
    (tmp_path / "some.space.T.avsc").write_text('{"type": "enum", "name": "some.space.T", "symbols": ["x", "y"]}')
    (tmp_path / "007.avsc").write_text("none")
    (tmp_path / "README").write_text("none")
    found = read_schemas(str(tmp_path))
    assert found.keys() == {7}
    batch = decode(AvroDecoder(writers=found), b"\0\0\0\0\7\2\4", schema=LETTERS)
    assert (batch.X.tolist(), batch.y.tolist()) == ([[1.0]], [2.0])
    with pytest.raises(ConfigError, match=r"8\.avsc: no such file"):
        read_schemas({8: str(tmp_path / "8.avsc")})
    with pytest.raises(ConfigError, match="no such file"):
        read_schemas(str(tmp_path / "other"))
    (tmp_path / "empty").mkdir()
    with pytest.raises(ConfigError, match=r"expected files with the names <id>\.avsc"):
        read_schemas(str(tmp_path / "empty"))


@pytest.fixture
def server() -> Iterator[Registry]:
    with registry() as found:
        yield found


def test_a_registry_is_asked_once_for_each_schema(server: Registry) -> None:
    server.put(7, FIRST)
    server.put(8, SWAPPED, schemaType="AVRO")
    decoder = AvroDecoder(writers=SchemaRegistry(server.url))
    raw = [framed(n, w, {"a": 5, "t": 2}) for n, w in ((7, FIRST), (8, SWAPPED), (9, FIRST))] * 2
    for _ in range(2):
        batch = decode(decoder, *raw)
        assert (batch.X.ravel().tolist(), batch.y.tolist()) == ([0.5] * 4, [2.0] * 4)
        assert letters(batch) == [(i, "unknown_schema", None) for i in (2, 5)]
    assert sorted(path[-1] for path in server.asked) == ["7", "8", "9", "9"]  # an unknown one once for each batch
    server.put(9, FIRST)
    assert decode(decoder, *raw).dead == []


def test_a_registry_has_schemas_that_refer_to_others(server: Registry) -> None:
    server.put(1, {"type": "enum", "name": "some.Letter", "symbols": ["x", "y"]})
    server.put(2, {"type": "record", "name": "some.Place", "fields": [{"name": "c", "type": "some.Letter"}]})
    letter, place = ({"subject": f"{name}/x", "version": 4, "name": name} for name in ("some.Letter", "some.Place"))
    server.documents["/subjects/some.Letter%2Fx/versions/4"] = server.documents["/schemas/ids/1"]
    server.documents["/subjects/some.Place%2Fx/versions/4"] = server.documents["/schemas/ids/2"] | {
        "references": [letter]
    }
    server.put(3, record(a="some.Letter", p="some.Place", t="int"), references=[letter, place])
    batch = decode(AvroDecoder(writers=SchemaRegistry(server.url)), b"\0\0\0\0\3\2\0\4", schema=LETTERS)
    assert (batch.X.tolist(), batch.y.tolist()) == ([[1.0]], [2.0])
    server.put(4, record(p="some.Place"), references=[place | {"version": 5}])
    server.put(5, record(p="some.Place"), references=[])
    server.put(6, {}, schemaType="PROTOBUF")
    found = letters(
        decode(AvroDecoder(writers=SchemaRegistry(server.url)), *(b"\0\0\0\0" + bytes([n]) for n in (4, 5, 6)))
    )
    assert [(reason, (column or "")[:50]) for _, reason, column in found] == [
        ("unresolved_schema", "schema id 4: it refers to a schema that the regist"),
        ("unresolved_schema", "schema id 5: it is: not an Avro schema (UnknownTyp"),
        ("unresolved_schema", "schema id 6: it is of the type 'PROTOBUF', not an "),
    ]


def test_a_registry_that_does_not_answer_is_waited_for() -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    decoder = AvroDecoder(writers=SchemaRegistry(f"http://127.0.0.1:{port}/apis/ccompat/v7"))
    value = framed(7, FIRST, {"a": 5, "t": 2})
    for ask in (decode, lambda decoder, value: decoder.subject(value)):
        with pytest.raises(SourceUnavailableError, match=f"127.0.0.1:{port}/apis/ccompat/v7 does not answer"):
            ask(decoder, value)
    with registry(port) as server:
        server.put(7, FIRST)
        server.failures = 1
        with pytest.raises(SourceUnavailableError, match="status 503"):
            decode(decoder, value)
        assert decode(decoder, value).y.tolist() == [2.0]


def test_a_registry_with_a_password_and_what_is_none(server: Registry) -> None:
    server.secured = True
    server.put(7, FIRST)
    value = framed(7, FIRST, {"a": 5, "t": 2})
    assert decode(AvroDecoder(writers=SchemaRegistry(server.url + "/", USER, PASSWORD)), value).dead == []
    with pytest.raises(SourceError, match="check user and password") as caught:
        decode(AvroDecoder(writers=SchemaRegistry(server.url, USER, "wrong")), value)
    assert "wrong" not in str(caught.value)
    server.secured = False
    with pytest.raises(SourceError, match=r"status 404.*check source\.schema_registry"):
        decode(AvroDecoder(writers=SchemaRegistry(server.url.removesuffix("/v7") + "x")), value)
    for other in (b"<html>", [], {"schema": 3}, {"id": 7}):
        server.documents["/schemas/ids/7"] = other
        with pytest.raises(SourceError, match="status 200"):
            decode(AvroDecoder(writers=SchemaRegistry(server.url)), value)
