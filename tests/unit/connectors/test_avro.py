"""Avro values: they mean what the same JSON objects mean, and no bytes whatever do more than go to the dead letters."""

import gc
import io
import json
import random
import time
from collections.abc import Callable, Sequence
from decimal import Decimal
from functools import partial
from pathlib import Path
from typing import Any

import fastavro
import numpy as np
import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from connectors import encode_json
from connectors.avrorows import AvroDecoder
from connectors.avroschemas import read_schema
from connectors.recordblocks import MAX_RECORD_BYTES
from servers.broker import Broker
from streamdp.cli.kafka_job import run_worker
from streamdp.config.job import NOTHING, load_config, make_config
from streamdp.data.records import Batch
from streamdp.data.schema import Schema
from streamdp.errors import ConfigError
from streamdp.store.snapshot import Counts
from tests.support.batches import contents, varint
from tests.support.commands import Command
from tests.support.kafka_job import counts
from tests.support.registry import registry
from tests.support.topics import send

pytestmark = pytest.mark.slow

SCHEMA = Schema({"a": (-10, 10), "c": ["x", "y", "1", "true", "é"]}, "t", subject="id", budget="eps")
NUMBER = Schema({"a": (-10, 10)}, "t")  # its y is the number as it was read
TEXT = Schema({"a": (-10, 10)}, "t", subject="id")  # its subject is the text as it was read
ENUM = {"type": "enum", "name": "Letter", "symbols": ["x", "y", "z"]}
PLAIN = {"a": "double", "c": ENUM, "t": ["null", "long"], "id": "string", "eps": ["null", "double"], "z": "boolean"}
GOOD = {"a": 1.5, "c": "x", "t": 2, "id": "s", "eps": 0.5, "z": True}


def record(fields: dict[str, Any]) -> dict[str, Any]:
    return {
        "type": "record",
        "name": "R",
        "namespace": "some.space",
        "fields": [{"name": name, "type": kind} for name, kind in fields.items()],
    }


def avro(item: dict[str, Any], fields: dict[str, Any] = PLAIN) -> bytes:
    out = io.BytesIO()
    fastavro.schemaless_writer(out, fastavro.parse_schema(record(fields)), item)
    return out.getvalue()


@pytest.fixture(scope="module")
def decoder(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., AvroDecoder]:
    folder = tmp_path_factory.mktemp("schemas")

    def make(fields: dict[str, Any] = PLAIN, framed: Sequence[int] = ()) -> AvroDecoder:
        path = folder / "schema.avsc"
        path.write_text(json.dumps(record(fields)))
        if framed:
            return AvroDecoder(writers=dict.fromkeys(framed, read_schema(str(path))))
        return AvroDecoder(path)

    return make


def places(raw: list[Any]) -> tuple[np.ndarray, dict[str, int]]:
    return np.arange(len(raw)) * 3 + 7, {"next": 1}


def letters(batch: Batch) -> list[tuple[int, str, str | None]]:
    """Index, reason and column of the dead letters of a batch."""
    return [((d.position - 7) // 3, d.reason, d.column) for d in batch.dead]


def test_records_and_reasons_in_their_places(decoder: Callable[..., AvroDecoder]) -> None:
    good = avro(GOOD)
    raw = [
        None, b"", good, b"\0" * (MAX_RECORD_BYTES + 1), good[:-1], good + b"\0", avro(GOOD | {"t": None}),
        avro(GOOD | {"a": float("nan")}), avro(GOOD | {"a": float("-inf")}), avro(GOOD | {"c": "z"}),
        avro(GOOD | {"eps": float("nan")}), avro(GOOD | {"id": ""}), avro(GOOD | {"eps": None, "id": "é\0"}),
        avro(GOOD | {"id": "x" * (MAX_RECORD_BYTES - len(good) - 2)}), avro(GOOD | {"t": 2**53 + 1}), None,
    ]  # fmt: skip
    batch = decoder()(raw, *places(raw), SCHEMA)
    assert letters(batch) == [
        (0, "tombstone", None), (1, "empty", None), (3, "too_long", None), (4, "not_avro", None),
        (5, "not_avro", None), (6, "missing", "t"), (7, "not_finite", "a"), (8, "not_finite", "a"),
        (9, "unknown_category", "c"), (10, "bad_budget", "eps"), (11, "missing", "id"), (15, "tombstone", None),
    ]  # fmt: skip
    assert (batch.positions.tolist(), batch.position) == ([13, 43, 46, 49], {"next": 1})
    assert batch.subjects[1] == "é\0"
    assert (batch.y.tolist(), batch.X[0].tolist()) == ([2.0, 2.0, 2.0, 2.0**53], [pytest.approx(0.15), 0, 0, 0, 0])
    assert contents(decoder()([], *places([]), SCHEMA))[1:5] == ((0, 5), b"", b"", [])


def test_confluent_framing(decoder: Callable[..., AvroDecoder]) -> None:
    good = avro(GOOD)
    raw = [
        b"\0\0\0\0\7" + good, b"\0\xff\xff\xff\xff" + good, good, b"\1\0\0\0\7" + good, b"", b"\0", b"\0\0\0\0",
        b"\0\0\0\0\7", b"\0\0\0\0\7" + good[:-1], b"\0\0\0\0\7" + good + b"x", b"\0\0\0\0" + good, None,
    ]  # fmt: skip
    batch = decoder(framed=[7, 0xFFFFFFFF])(raw, *places(raw), SCHEMA)
    no_frame = [(i, "not_framed", None) for i in (3, 5, 6)]
    unknown = [
        (i, "unknown_schema", None) for i in (2, 10)
    ]  # a double may begin as a frame does: then an id is its bytes
    malformed = [(i, "not_avro", None) for i in (7, 8, 9)]
    assert letters(batch) == sorted([*no_frame, *unknown, *malformed, (4, "empty", None), (11, "tombstone", None)])
    assert batch.positions.tolist() == [7, 10]
    assert letters(decoder()(raw[:1], *places([1]), SCHEMA)) == [(0, "not_avro", None)]
    with pytest.raises(ConfigError, match="that they were written with"):
        AvroDecoder()


NODE = {"type": "record", "name": "Node", "fields": [{"name": "next", "type": ["null", "Node"]}]}
TREE = {"type": "record", "name": "Tree", "fields": [{"name": "s", "type": {"type": "array", "items": "Tree"}}]}
MAPS = {"type": "record", "name": "Maps", "fields": [{"name": "s", "type": {"type": "map", "values": "Maps"}}]}
MALFORMED: dict[str, tuple[Any, bytes]] = {  # a type, and bytes that are no value of it
    "nothing": ("long", b""),
    "half a long": ("long", b"\x80"),
    "a long of 11 bytes": ("long", b"\x80" * 10 + b"\0"),
    "an endless long": ("long", b"\xff" * 1000),
    "a long of 65 bits": ("long", b"\xff" * 9 + b"\x02"),
    "an int of 33 bits": ("int", varint(1 << 31)),
    "a low int": ("int", varint(-(1 << 31) - 1)),
    "half a double": ("double", b"\0" * 7),
    "half a float": ("float", b"\0" * 3),
    "a third truth": ("boolean", b"\2"),
    "no truth": ("boolean", b""),
    "a negative length": ("string", varint(-1) + b"abc"),
    "a short text": ("string", varint(4) + b"abc"),
    "a vast text": ("string", varint((1 << 63) - 1) + b"abc"),
    "a text without length": ("string", b"\xff"),
    "not UTF-8": ("string", varint(2) + b"\xff\xfe"),
    "a surrogate": ("string", varint(3) + b"\xed\xa0\x80"),
    "negative bytes": ("bytes", varint(-3) + b"abc"),
    "short bytes": ("bytes", varint(1 << 40)),
    "short fixed": ({"type": "fixed", "name": "F", "size": 4}, b"abc"),
    "a branch before the first": (["null", "long"], varint(-1) + b"\2"),
    "a branch after the last": (["null", "long"], varint(2)),
    "no branch": (["null", "long"], b""),
    "a symbol before the first": (ENUM, varint(-1)),
    "a symbol after the last": (ENUM, varint(3)),
    "an array without an end": ({"type": "array", "items": "long"}, varint(1) + varint(5)),
    "a short array": ({"type": "array", "items": "long"}, varint(3) + varint(5)),
    "an array of 2^62": ({"type": "array", "items": "long"}, varint(1 << 62) + b"\2" * 9),
    "2^62 nulls without an end": ({"type": "array", "items": "null"}, varint(1 << 62)),
    "a block of a wrong size": ({"type": "array", "items": "long"}, varint(-1) + varint(2) + varint(5) + b"\0"),
    "a block of a negative size": ({"type": "array", "items": "long"}, varint(-1) + varint(-9) + varint(5) + b"\0"),
    "a map of a bad key": ({"type": "map", "values": "long"}, varint(1) + varint(1) + b"\xff" + b"\2\0"),
    "a short map": ({"type": "map", "values": "long"}, varint(1) + varint(1) + b"k"),
    "too deep": (NODE, varint(1) * 1_000_000 + varint(0)),
    "too deep without an end": (NODE, varint(1) * 1_000_000),
    "too deep in arrays": (TREE, varint(1) * 1_000_000),
    "too deep in blocks with sizes": (TREE, (varint(-1) + varint(1 << 40)) * 140_000),
    "too deep in maps": (MAPS, (varint(1) + varint(1) + b"k") * 300_000),
    "a branch before the first in a node": (NODE, varint(1) + varint(-1)),
    "a branch before the first in an array": ({"type": "array", "items": ["null", "long"]}, varint(1) + b"\1\0"),
    "a symbol before the first in a map": ({"type": "map", "values": ENUM},
        varint(1) + varint(1) + b"k" + varint(-1) + b"\0"),
    "the lowest branch": (["null", "long"], varint(-(1 << 63))),
    "the lowest symbol": (ENUM, varint(-(1 << 63))),
    "a fixed without an end": ({"type": "fixed", "name": "F", "size": 1 << 40}, b"abc"),
    "a map of 2^62": ({"type": "map", "values": "null"}, varint(1 << 62) + b"\0" * 1000),
    "the lowest count of an array": ({"type": "array", "items": "long"}, varint(-(1 << 63)) + varint(9) + b"\2" * 9),
    "a decimal over its precision": ({"type": "bytes", "logicalType": "decimal", "precision": 3, "scale": 1},
        varint(2) + (1000).to_bytes(2, "big")),
    "a vast decimal": ({"type": "bytes", "logicalType": "decimal", "precision": 3},
        varint(900_000) + b"\x7f" * 900_000),
}  # fmt: skip


def at_once(work: Callable[[], Any], seconds: float) -> Any:
    """What the work returns. The shortest of three runs counts: a busy machine makes some longer."""
    for _ in range(3):
        begun = time.thread_time()
        found = work()
        if time.thread_time() - begun < seconds:
            return found
    raise AssertionError(f"it takes {seconds:g} s")


@pytest.mark.parametrize("kind", MALFORMED)
def test_malformed_values(decoder: Callable[..., AvroDecoder], kind: str) -> None:
    """Each in a field that is declared and in one that is not, between good records, at once."""
    declared, data = MALFORMED[kind]
    for name in ("a", "other"):
        fields = {"t": "long", "a": "long", name: declared}
        start = varint(1) if name == "a" else varint(1) + varint(1)
        batch = at_once(partial(decoder(fields), [start + data], *places([1]), NUMBER), 1)
        assert letters(batch) == [(0, "not_avro", None)]


def test_odd_values_that_are_avro(decoder: Callable[..., AvroDecoder]) -> None:
    fields = {"t": "long", "a": "int", "other": {"type": "array", "items": "null"}, "node": ["null", NODE]}
    raw = [
        varint(1) + varint(1) + varint(1 << 62) + b"\0" + b"\0",
        varint(1) + varint(1) + varint(-(1 << 62)) + b"\0" + b"\0" + b"\0",
        varint(-(1 << 63)) + varint(-(1 << 31)) + b"\0" + varint(1) * 50 + b"\0",
        b"\x82\x80\0" + b"\x80\0" + b"\0" + b"\0",  # longs with bytes to spare
    ]
    batch = decoder(fields)(raw, *places(raw), NUMBER)
    assert batch.dead == []
    assert batch.y.tolist() == [1.0, 1.0, -(2.0**63), 1.0]


def test_a_hundred_levels_are_read_past(decoder: Callable[..., AvroDecoder]) -> None:
    fields = {"t": "long", "a": "int", "node": NODE, "tree": TREE, "maps": MAPS}
    deep = varint(1) * 100 + b"\0" + varint(1) * 100 + b"\0" * 101 + (varint(1) + varint(1) + b"k") * 100 + b"\0" * 101
    raw = [varint(3) + varint(1) + deep]
    batch = decoder(fields)(raw, *places(raw), NUMBER)
    assert batch.dead == []
    assert batch.y.tolist() == [3.0]


def test_mutated_bytes_are_a_value_or_a_reason_at_once(decoder: Callable[..., AvroDecoder]) -> None:
    """Of every kind of type; the seed is fixed."""
    choose = random.Random(20)
    kinds = {"n": NODE, "tree": TREE, "maps": MAPS, "nulls": {"type": "array", "items": "null"}, "any": [*ANY, "Node"]}
    fields = PLAIN | kinds | {"f": {"type": "fixed", "name": "F", "size": 2}, "d": decimals({"type": "bytes"}, 4, 2)}
    deep: dict[str, Any] = {"next": None}
    for _ in range(10):
        deep = {"next": deep}
    nested = {"n": deep, "tree": {"s": [{"s": []}] * 3}, "maps": {"s": {"k": {"s": {}}}}, "nulls": [None] * 9}
    good = avro(GOOD | nested | {"any": ["x", 2.5], "f": b"ab", "d": Decimal("2.50")}, fields)
    decode = decoder(fields)
    gc.disable()  # a collection of all that the tests hold takes longer than the limit below
    try:
        for _ in range(3000):
            data = bytearray(good)
            for _ in range(choose.choice((1, 1, 3))):
                at = choose.randrange(len(data) + 1)
                new = choose.choice((choose.randbytes(1), varint(-1), b"\xff" * 9))
                data[at : at + choose.choice((0, 1, 1, 4))] = new
            found = at_once(partial(decode.fields, bytes(data)), 0.05)
            assert found == ("not_avro",) or isinstance(found, dict)
    finally:
        gc.enable()


def decimals(kind: dict[str, Any], precision: int, scale: int) -> dict[str, Any]:
    return kind | {"logicalType": "decimal", "precision": precision, "scale": scale}


@pytest.mark.parametrize(
    ("kind", "value", "text"),
    [
        ("string", " x ", " x "),
        (ENUM, "y", "y"),
        ("boolean", True, "true"),
        ("boolean", False, "false"),
        ("long", -(2**63), str(-(2**63))),
        ("int", 7, "7"),
        ("double", 1e22, "1e+22"),
        ("float", 0.1, repr(float(np.float32(0.1)))),
        ("bytes", b"a\xff\0", "a\xff\0"),
        ({"type": "fixed", "name": "F", "size": 2}, b"\x80b", "\x80b"),
        (decimals({"type": "bytes"}, 5, 2), Decimal("2.50"), "2.50"),
        (decimals({"type": "bytes"}, 5, 2), Decimal("-0.01"), "-0.01"),
        (decimals({"type": "bytes"}, 50, 40), Decimal("1" * 10 + "." + "2" * 40), "1" * 10 + "." + "2" * 40),
        (decimals({"type": "fixed", "name": "D", "size": 4}, 5, 0), Decimal(-12345), "-12345"),
        ({"type": "int", "logicalType": "date"}, 2**31 - 1, str(2**31 - 1)),
        ({"type": "long", "logicalType": "timestamp-millis"}, 2**60, str(2**60)),
        ({"type": "string", "logicalType": "uuid"}, "no uuid", "no uuid"),
        (["null", {"type": "string", "avro.java.string": "String"}, "long"], 9, "9"),
    ],
)
def test_what_a_value_is_as_text_and_as_number(
    decoder: Callable[..., AvroDecoder], kind: Any, value: Any, text: str
) -> None:
    plain = kind
    if isinstance(kind, dict) and kind.get("logicalType") not in (None, "decimal"):
        plain = kind["type"]  # fastavro would not write them
    fields = {"a": "double", "t": "double", "id": kind}
    raw = [avro({"a": 0, "t": 0, "id": value}, fields | {"id": plain})]
    subjects = [] if "." in text or "e+" in text else [text]  # no person has the number of a float or a fraction
    assert decoder(fields)(raw, *places(raw), TEXT).subjects == subjects
    raw = [avro({"a": 0, "t": value}, {"a": "double", "t": plain})]
    batch = decoder({"a": "double", "t": kind})(raw, *places(raw), NUMBER)
    as_json = encode_json([json.dumps({"a": 0.0, "t": text}).encode()], *places(raw), NUMBER)
    assert contents(batch) == contents(as_json)


def test_nested_values_of_declared_columns(decoder: Callable[..., AvroDecoder]) -> None:
    kinds = ["null", "long", {"type": "array", "items": "string"}, {"type": "map", "values": ENUM}, NODE]
    fields = {"a": kinds, "t": "double", "other": ["null", {"type": "array", "items": "Letter"}, "Node"]}
    base: dict[str, Any] = {"a": 1, "t": 1.0, "other": None}
    values = [1, ["x", "y"], [], {"k": "x"}, {"next": {"next": None}}, None]
    raw = [avro(base | {"a": value}, fields) for value in values]
    raw += [avro(base | {"other": other}, fields) for other in (["x"], {"next": None})]
    raw.append(varint(2) + varint(-2) + varint(4) + varint(1) + b"x" + varint(1) + b"y" + b"\0" * 9 + b"\0")
    batch = decoder(fields)(raw, *places(raw), NUMBER)
    nested = [(i, "nested", "a") for i in (1, 2, 3, 4)]
    assert letters(batch) == [*nested, (5, "missing", "a"), (8, "nested", "a")]
    assert len(batch) == 3


def test_a_field_that_a_record_lacks_is_missing(decoder: Callable[..., AvroDecoder]) -> None:
    lacking = decoder({"a": "double"})([avro({"a": 1}, {"a": "double"})], *places([1]), NUMBER)
    assert letters(lacking) == [(0, "missing", "t")]


COLUMNS = ("z", "id", "a", "c", "t", "eps")
ANY = [
    "null", "boolean", "long", "double", "string",
    {"type": "array", "items": ["null", "boolean", "long", "double", "string"]}, {"type": "map", "values": "long"},
]  # fmt: skip
_texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=4)
_plain = (
    st.none() | st.booleans() | st.integers(-(2**63), 2**63 - 1) | st.integers(-12, 12) | _texts
    | st.floats(allow_nan=False, allow_infinity=False) | st.sampled_from(["x", "é", "1", "true", "0.5", "nan", "-inf"])
)  # fmt: skip
_values = _plain | st.lists(_plain, max_size=3) | st.dictionaries(_texts, st.integers(-5, 5), max_size=3)
_good = st.just(GOOD) | st.fixed_dictionaries(
    {"a": st.floats(-9, 9), "c": st.sampled_from(["x", "é"]), "t": st.integers(-9, 9), "id": _texts, "eps": st.none()}
)
_objects = st.lists(
    _good | st.builds(lambda item, name, value: item | {name: value}, _good, st.sampled_from(COLUMNS),
                      _values),
    max_size=12,
)  # fmt: skip
_any_settings = settings(suppress_health_check=list(HealthCheck))


@given(_objects)
@_any_settings
def test_avro_means_what_json_means(decoder: Callable[..., AvroDecoder], objects: list[dict[str, Any]]) -> None:
    fields = dict.fromkeys(COLUMNS, ANY)
    raw = [avro(item, fields) for item in objects]
    batch = decoder(fields)(raw, *places(raw), SCHEMA)
    texts = [json.dumps(item).encode() for item in objects]
    assert contents(batch) == contents(encode_json(texts, *places(raw), SCHEMA))


@given(st.fixed_dictionaries({"a": _values, "t": st.floats(), "b": st.binary(max_size=3), "m": _values}))
@_any_settings
def test_plain_fields_are_what_fastavro_reads_and_every_byte_counts(
    decoder: Callable[..., AvroDecoder], item: dict[str, Any]
) -> None:
    fields = {"a": ANY, "m": ANY, "t": "float" if abs(item["t"]) < 1e30 else "double", "b": "bytes"}
    data, decode = avro(item, fields), decoder(fields)
    found, theirs = decode.fields(data), fastavro.schemaless_reader(io.BytesIO(data), record(fields), None)
    assert isinstance(found, dict)
    assert isinstance(theirs, dict)
    assert found["b"].encode("latin-1") == theirs["b"]
    for name in ("a", "m", "t"):
        if isinstance(theirs[name], list | dict):
            assert isinstance(found[name], type(theirs[name]))
        else:
            assert repr(found[name]) == repr(theirs[name])
    assert {decode.fields(data[:size]) for size in range(1, len(data))} <= {("not_avro",)}
    assert decode.fields(data + b"\0") == ("not_avro",)


@given(st.lists(st.sampled_from([GOOD]) | _good, max_size=10), st.integers(0, 2**32), st.booleans())
@_any_settings
def test_whatever_the_bytes_each_record_ends_in_one_place(
    decoder: Callable[..., AvroDecoder], objects: list[dict[str, Any]], seed: int, framed: bool
) -> None:
    choose = random.Random(seed)
    fields = {"z": [*ANY, NODE]} | {name: [*ANY, "Node"] for name in COLUMNS[1:]}
    raw = []
    for item in objects:
        data = bytearray(b"\0" * 5 * framed + avro(item, fields))
        for _ in range(choose.choice((0, 1, 3))):
            at = choose.randrange(len(data))
            data[at : at + choose.choice((0, 1, 1, 4))] = choose.randbytes(choose.choice((0, 1, 1, 3)))
            data = data or bytearray(b"\0")
        raw.append(bytes(data))
    batch = decoder(fields, framed=[0] if framed else [])(raw, *places(raw), SCHEMA)
    ended = sorted([*batch.positions.tolist(), *(d.position for d in batch.dead)])
    assert ended == places(raw)[0].tolist()
    assert np.isfinite(batch.X).all()
    assert np.isfinite(batch.y).all()


@pytest.mark.parametrize(
    ("text", "match"),
    [
        ("{", "expected an Avro schema, and JSON"),
        ("3", "not an Avro schema"),
        ('"long"', "schema of a record"),
        ('["null", "long"]', "schema of a record"),
        ('[{"type": "record", "name": "R", "fields": []}]', "schema of a record"),
        ('{"type": "enum", "name": "E", "symbols": ["a"]}', "schema of a record"),
        ('{"name": "R", "fields": []}', "not an Avro schema"),
        ("[" * 100_000, "expected an Avro schema|not an Avro schema"),
        ('{"type": "array", "items": ' * 5_000 + '"long"' + "}" * 5_000, "expected an Avro schema|not an Avro schema"),
        (
            json.dumps(record({"a": decimals({"type": "bytes"}, 4, 2)})).replace("precision", "other"),
            "not an Avro schema",
        ),
        (json.dumps(record({"a": "Absent"})), "not an Avro schema .*Absent"),
        (json.dumps(record({"a": {"type": "fixed", "name": "F", "size": -1}})), "size of fixed"),
        (json.dumps(record({"a": "long"})).replace("}]", '}, {"name": "a", "type": "int"}]'), "two fields .*'a'"),
    ],
)
def test_schemas_that_are_none(tmp_path: Path, text: str, match: str) -> None:
    path = tmp_path / "s.avsc"
    path.write_text(text)
    with pytest.raises(ConfigError, match=match):
        AvroDecoder(path)


def test_schema_files(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"s\.avsc: no such file"):
        AvroDecoder(tmp_path / "s.avsc")
    with pytest.raises(ConfigError, match=r"ends in \.avsc"):
        AvroDecoder(tmp_path / "s.json")
    (tmp_path / "s.avsc").write_text(json.dumps(record({"a": "double", "t": "some.space.T", "u": "T"})))
    (tmp_path / "some.space.T.avsc").write_text(json.dumps(ENUM | {"name": "T", "namespace": "some.space"}))
    raw = [np.array([1.5]).tobytes() + b"\0" + b"\2"]
    batch = AvroDecoder(tmp_path / "s.avsc")(raw, *places(raw), Schema({"a": (0, 2)}, "t", classes=["x", "z"]))
    assert (batch.dead, batch.X.tolist(), batch.y.tolist()) == ([], [[0.5]], [0.0])


JOB: dict[str, Any] = {
    "job": "flows",
    "schema": {"features": {"a": [0, 1], "b": [-1, 1]}, "target": {"column": "y", "bounds": [0, 1]}, "subject": "id"},
    "model": {"estimator": "LDPASGDRegressor", "budget": "eps=1"},
    "cap": "eps=3",
}


@pytest.mark.parametrize(
    ("given", "match"),
    [
        ({"format": "avro"}, "source.avro_schema: format avro needs schemas or schema_registry"),
        ({"avro_schema": "s.avsc"}, "source.avro_schema: needs format: avro"),
        ({"schemas": "folder"}, "source.schemas: needs format: avro"),
        ({"schema_registry": "http://h:1"}, "source.schema_registry: needs format: avro"),
        (
            {"format": "avro", "schemas": "f", "schema_registry": "http://h:1"},
            "source.schema_registry: expected schemas or",
        ),
        ({"format": "avro", "schemas": {-1: "f"}}, "source.schemas"),
        ({"format": "avro", "schemas": {}}, "source.schemas"),
        ({"format": "avro", "schema_registry": "h:1"}, "source.schema_registry.url"),
        ({"format": "avro", "schema_registry": "http://ann:key@h:1"}, "source.schema_registry.url"),
        (
            {"format": "avro", "schema_registry": {"url": "http://h", "password": "x"}},
            "source.schema_registry.password",
        ),
        ({"format": "avro", "avro_schema": "s", "json_framing": "confluent"}, "json_framing: needs format: json"),
        ({"format": "xml"}, "source.format"),
        ({"format": "avro", "avro_schema": "d.log", "dead_letters": "d.log"}, "same as source.avro_schema"),
        ({"format": "avro", "schemas": {1: "s", 2: "d.log"}, "dead_letters": "d.log"}, "same as source.schemas"),
    ],
)
def test_settings_that_do_not_fit(given: dict[str, Any], match: str) -> None:
    with pytest.raises(ConfigError, match=match):
        make_config(JOB | {"source": {"type": "kafka", "topic": "t"} | given})


@pytest.mark.parametrize("place", ["schema_registry", "schemas"])
def test_a_job_learns_what_writers_of_several_schemas_framed(
    broker: Broker, make_topic: Callable[..., str], tmp_path: Path, place: str, caplog: pytest.LogCaptureFixture
) -> None:
    """The registry fails at first, which the worker waits for; keys are framed, too."""
    topic = make_topic(1)
    old, key = {"a": "float", "b": "double", "y": "double"}, b"\0\0\0\3\1"
    new = {"y": "double", "note": ["null", "string"], "b": "double", "a": "float"}
    writers = {258: record(old), 259: record(new), 769: "string", 771: "long"}
    (tmp_path / "flow.avsc").write_text(json.dumps(record(old)))
    source = {
        "type": "kafka", "topic": topic, "brokers": broker.bootstrap, "format": "avro", "avro_schema": "flow.avsc",
        "dead_letters": "dead.jsonl",
    }  # fmt: skip
    messages: list[tuple[bytes, bytes | None]] = []
    for i in range(200):
        item = {"a": i % 7 / 7, "b": i % 3 - 1.0, "y": i % 5 / 5, "note": "x"}
        value = b"\0\0\0\1\2" + avro(item, old) if i % 2 else b"\0\0\0\1\3" + avro(item, new)
        messages.append((key + varint(4) + b"s%03d" % i, value))
    messages += [(b"plain", messages[0][1]), (b"\0\0\0\3\2" + varint(1) + b"x", messages[0][1])]
    messages.append((b"\0\0\0\3\3" + varint(0), messages[0][1]))  # the number 0 is a person
    messages += [(b"ann", b"\0\0\0\4\0" + avro({"a": 0.0, "b": 0.0, "y": 0.0}, old)), (b"ann", avro(item, old))]
    send(broker.bootstrap, topic, messages)
    with registry() as server:
        for number, schema in writers.items():
            server.put(number, schema)
            (tmp_path / f"{number}.avsc").write_text(json.dumps(schema))
        server.failures = 2
        where = server.url if place == "schema_registry" else {number: f"{number}.avsc" for number in writers}
        (tmp_path / "job.yaml").write_text(yaml.dump(JOB | {"source": source | {place: where}}))
        config = load_config(tmp_path / "job.yaml")
        run_worker(config, max_records=len(messages), idle_seconds=20, accepted=NOTHING)
    waits = [text for text in caplog.messages if text.startswith("source: the schema registry")]
    assert len(waits) == (2 if place == "schema_registry" else 0)
    assert counts(config.store_path, "flows") == Counts(202, 0, 3)
    dead = [json.loads(line) for line in (tmp_path / "dead.jsonl").read_text().splitlines()]
    assert [(letter["reason"], letter["column"]) for letter in dead] == [
        ("unknown_schema", "key"), ("unknown_schema", None), ("not_framed", None),
    ]  # fmt: skip


@pytest.mark.slow
def test_a_job_without_its_registry_ends_when_it_is_told_to(
    broker: Broker, make_topic: Callable[..., str], tmp_path: Path
) -> None:
    """Before, SIGTERM ended it after 11 seconds, with the code of a bad source."""
    topic = make_topic(1)
    send(broker.bootstrap, topic, [(b"s1", b"\0\0\0\0\7\2")])
    with registry() as server:
        gone = server.url  # nothing listens there after the block
    source = {"type": "kafka", "topic": topic, "brokers": broker.bootstrap, "format": "avro", "schema_registry": gone}
    (tmp_path / "job.yaml").write_text(yaml.dump(JOB | {"source": source}))
    with Command(tmp_path, None, "run", "job.yaml") as worker:
        worker.until(lambda: any("does not answer" in event.get("message", "") for event in worker.events))
        worker.process.terminate()
        assert worker.end(8.0) == 0
