"""One person has one key, whatever source and spelling it comes by; floats are refused, and never counted apart."""

import json
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

from connectors.avrorows import AvroDecoder
from connectors.avroschemas import parsed
from connectors.files import CSVSource, JSONLSource
from connectors.jsonrows import encode_json
from connectors.kafkakeys import subjects_of
from connectors.tables import TableSource
from streamdp import LDPSGDRegressor, Ledger, PureDP
from streamdp.data.schema import Schema
from streamdp.data.subjects import FLOATS
from streamdp.errors import SchemaError
from streamdp.service.calls import read_call
from streamdp.service.schemas import LearnCall
from tests.support.batches import varint

SCHEMA = Schema({"a": (0, 1)}, "y", subject="id")
NUMBERS = (0, 7, -12, 2**53 + 1, 2**63, 2**64 - 1, 2**64, 10**20 + 1, 10**20 + 2, 10**37 + 3)
TEXTS = ("ann", "Jos\u00e9", 'say "hi"', "back\\slash", "a.b@example.org", "1.2.3", "\u5f20")
MANY = 300
"""More rows than are decoded one by one."""


def subjects(source: Any) -> list[Any]:
    found: list[Any] = []
    try:
        while not source.finished:
            batch = source.poll(10_000, 1.0)
            assert not batch.dead
            found += batch.subjects
    finally:
        source.close()
    return found


def json_values(ids: list[str]) -> list[Any]:
    texts = [f'{{"a": 0.5, "y": 1.5, "id": {text}}}'.encode() for text in ids]
    batch = encode_json(texts, np.arange(len(texts)), {}, SCHEMA)
    assert not batch.dead
    return list(batch.subjects or ())


def table(tmp_path: Path, kind: str, ids: pl.Series) -> list[Any]:
    path = tmp_path / f"rows.{kind}"
    frame = pl.DataFrame({"a": [0.5] * len(ids), "y": [1.5] * len(ids), "id": ids})
    frame.write_parquet(path) if kind == "parquet" else frame.write_ipc(path)
    return subjects(TableSource(path, SCHEMA, kind=kind))


def csv(tmp_path: Path) -> list[Any]:
    path = tmp_path / "rows.csv"
    cells = ['"' + str(one).replace('"', '""') + '"' for one in (*TEXTS, *NUMBERS)]
    path.write_text("a,y,id\n" + "".join(f"0.5,1.5,{cell}\n" for cell in cells), encoding="utf-8")
    return subjects(CSVSource(path, SCHEMA))


def jsonl(tmp_path: Path) -> list[Any]:
    path = tmp_path / "rows.jsonl"
    lines = [json.dumps({"a": 0.5, "y": 1.5, "id": one}) for one in (*TEXTS, *NUMBERS)]
    path.write_text("\n".join(lines * 40) + "\n", encoding="utf-8")
    found = subjects(JSONLSource(path, SCHEMA))
    assert len(found) == 40 * len(lines) > MANY
    return found[-len(lines) :]


def avro(tmp_path: Path) -> list[Any]:
    fastavro = pytest.importorskip("fastavro")
    path, out = tmp_path / "row.avsc", []
    kinds = ["string", "long"]
    fields = [{"name": "a", "type": "double"}, {"name": "y", "type": "double"}, {"name": "id", "type": kinds}]
    path.write_text(json.dumps({"type": "record", "name": "row", "fields": fields}))
    schema = fastavro.parse_schema(json.loads(path.read_text()))
    for one in (*TEXTS, *(n if -(2**63) <= n < 2**63 else str(n) for n in NUMBERS)):
        import io

        buffer = io.BytesIO()
        fastavro.schemaless_writer(buffer, schema, {"a": 0.5, "y": 1.5, "id": one})
        out.append(buffer.getvalue())
    batch = AvroDecoder(path)(out, np.arange(len(out)), {}, SCHEMA)
    assert not batch.dead
    return list(batch.subjects or ())


def framed(number: int, payload: bytes) -> bytes:
    return b"\0" + number.to_bytes(4, "big") + payload


def avro_text(text: str) -> bytes:
    return varint(len(text.encode())) + text.encode()


_two = [{"name": "a", "type": "long"}, {"name": "b", "type": "string"}]
_one = [{"name": "a", "type": "string"}]
of_avro = AvroDecoder(
    writers={
        0: parsed("values", ['{"type": "record", "name": "R", "fields": []}']),
        2: parsed("key", [json.dumps({"type": "record", "name": "Two", "fields": _two})]),
        3: parsed("key", ['"long"']),
        4: parsed("key", [json.dumps({"type": "record", "name": "One", "fields": _one})]),
        5: parsed("key", ['["null", "long"]']),
        9: parsed("key", ['"string"']),
    }
).subject

EVERYONE = (*TEXTS, *NUMBERS)
IN_LONG = [n for n in NUMBERS if -(2**63) <= n < 2**63]
SOURCES: dict[str, Callable[[Path], list[Any]]] = {
    "csv": csv,
    "json lines": jsonl,
    "json values": lambda _: json_values([json.dumps(one) for one in EVERYONE]),
    "json values with escapes": lambda _: json_values(["".join(['"', *(f"\\u{ord(c):04x}" for c in str(one)),
        '"']) for one in EVERYONE]),
    "json values, many": lambda _: json_values([json.dumps(one,
        ensure_ascii=False) for one in EVERYONE] * 40)[-len(EVERYONE) :],
    "avro values": avro,
    "parquet, text": lambda path: table(path, "parquet", pl.Series("id", list(map(str, EVERYONE)))),
    "arrow, text": lambda path: table(path, "arrow", pl.Series("id", list(map(str, EVERYONE)))),
    "arrow, categories": lambda path: table(path, "arrow", pl.Series("id", list(map(str, EVERYONE)), pl.Categorical)),
    "plain keys": lambda _: subjects_of([str(one).encode() for one in EVERYONE]),
    "json keys": lambda _: subjects_of([json.dumps(one).encode() for one in EVERYONE]),
    **{f"json keys in frames {n}": lambda _,
        n=n: subjects_of([framed(n, json.dumps(one).encode()) for one in EVERYONE]) for n in (5, 6, 0x22220A0A)},
    "avro texts in frames": lambda _: subjects_of([framed(9, avro_text(str(one))) for one in EVERYONE], of_avro),
    "http": lambda _: [record["subject"] for record in read_call(LearnCall,
        json.dumps({"records": [{"x": {}, "y": 1, "subject": one} for one in EVERYONE]}).encode()).records],
    "program": lambda _: list(EVERYONE),
    "bytes and decomposed text": lambda _: [*(str(one).encode() for one in EVERYONE[:1]), "Jose\u0301", *EVERYONE[2:]],
}  # fmt: skip


def test_every_source_names_the_same_people(tmp_path: Path) -> None:
    with Ledger("eps=1000") as ledger:
        for name, read in SOURCES.items():
            found = read(tmp_path)
            assert len(found) == len(EVERYONE), name
            assert ledger.admit_many(found, PureDP(1)).all()
            assert ledger.n_subjects == len(EVERYONE), name
        assert {ledger.spent(one).epsilon for one in EVERYONE} == {len(SOURCES)}


def test_whole_numbers_of_typed_columns_are_the_same_people(tmp_path: Path) -> None:
    whole = pl.Series("id", IN_LONG, pl.Int64)
    exact = pl.Series("id", [Decimal(n) for n in NUMBERS], pl.Decimal(38, 0))
    gaps = pl.Series("id", np.array(IN_LONG))
    with Ledger("eps=1000") as ledger:
        for kind in ("parquet", "arrow"):
            for ids in (whole, gaps):
                assert ledger.admit_many(table(tmp_path, kind, ids), PureDP(1)).all()
            assert ledger.admit_many(table(tmp_path, kind, exact), PureDP(1)).all()
        assert ledger.admit_many(np.array(IN_LONG), PureDP(1)).all()
        assert ledger.admit_many(subjects_of([framed(3, varint(n)) for n in IN_LONG], of_avro), PureDP(1)).all()
        assert ledger.n_subjects == len(NUMBERS)
        assert {ledger.spent(n).epsilon for n in IN_LONG} == {8}


@pytest.mark.parametrize("kind", ["parquet", "arrow"])
@pytest.mark.parametrize(
    "ids", [pl.Series("id", [1.0, None]), pl.Series("id", ["1.0"]).cast(pl.Decimal(10, 2))], ids=repr
)
def test_a_column_of_floats_is_refused_at_once(tmp_path: Path, kind: str, ids: pl.Series) -> None:
    with pytest.raises(SchemaError) as caught:
        table(tmp_path, kind, ids)
    assert FLOATS in str(caught.value)


@pytest.mark.parametrize("text", ["1.0", "1e+20", "9007199254740993.0", "1.0e22", "-3.5", "+7.", "1E+3"])
def test_the_text_of_a_float_is_nobody(text: str) -> None:
    for n in (1, MANY):
        for value in (text if text[0] != "+" and text[-1] != "." else f'"{text}"', f'"{text}"'):
            texts = [f'{{"a": 0.5, "y": 1.5, "id": {value}}}'.encode()] * n
            batch = encode_json(texts, np.arange(n), {}, SCHEMA)
            assert [(letter.reason, letter.column) for letter in batch.dead] == [("float", "id")] * n
    keys = [text.encode(), json.dumps(text).encode(), framed(1, json.dumps(text).encode()), framed(1, text.encode())]
    assert subjects_of(keys) == [None] * 4
    with Ledger("eps=3") as ledger:
        one = LDPSGDRegressor(features=["a"], ledger=ledger)
        for wrong in (text, text.encode(), float(text), np.float64(float(text))):
            with pytest.raises(SchemaError) as caught:
                one.learn_one({"a": 0.5}, 0.5, subject=wrong)  # type: ignore[arg-type]
            assert FLOATS in str(caught.value)
            with pytest.raises(SchemaError):
                one.learn_encoded(np.zeros((2, 1)), np.zeros(2), None, ["ann", wrong])  # type: ignore[list-item]
        assert ledger.n_subjects == one.n_seen == 0


def test_texts_that_only_look_like_numbers_are_people() -> None:
    texts = ["1e5", "12e45", "1.2.3", "1-2", "v1.0", "1.0x", "1,5", "+1", "007", "1e-7"]
    with Ledger("eps=3") as ledger:
        assert ledger.admit_many(texts, PureDP(1)).all()
        assert ledger.n_subjects == len(texts)
    assert json_values([json.dumps(text) for text in texts]) == texts
    assert subjects_of([text.encode() for text in texts]) == [text.encode() for text in texts]


@pytest.mark.parametrize(
    ("key", "avro"),
    [
        (b"", False),
        (framed(1, b""), False),
        (framed(1, b'{"id": 7}'), False),
        (framed(1, b"ann"), False),
        (framed(1, b'""'), False),
        pytest.param(framed(1, b"[" * 100_000), False, id="deep"),  # it ended every worker that read it
        (framed(9, b"\0"), True),
        (framed(9, avro_text("1.0")), True),
        (framed(9, b"\x08ann"), True),
        (framed(3, b"\xff" * 11), True),
        (framed(3, varint(7) + b"\0"), True),
        (framed(2, avro_text("ann") + avro_text("bob")), True),
        (framed(2, varint(4) + avro_text("abc")), True),  # read without its schema, it is a text of four bytes
        (framed(9, avro_text("")), True),
        (b'"ann', False),
        (b'"a" "b"', False),
    ],
    ids=repr,
)
def test_a_key_that_names_no_subject_is_nobody(key: bytes, avro: bool) -> None:
    assert not subjects_of([key, b"ann"], *([of_avro] if avro else []))[0]


def test_a_key_of_an_unknown_schema_is_asked_for_once_in_a_batch() -> None:
    """Before, such a key was `missing`, and each message asked the registry."""
    asked: list[int] = []
    decoder = AvroDecoder(writers=lambda number: asked.append(number))
    keys: list[bytes | None] = [framed(6, avro_text("ann")), framed(6, avro_text("bob")), None, b""]
    for times in (1, 2):
        decoder([], np.zeros(0, np.int64), {}, SCHEMA)
        assert subjects_of(keys, decoder.subject) == [("unknown_schema", "key")] * 2 + [None] * 2
        assert asked == [6] * times


def test_keys_of_avro_are_read_by_their_schemas() -> None:
    keys = [
        framed(9, avro_text("ann")),
        framed(3, varint(-7)),
        framed(4, avro_text("ann")),
        framed(5, b"\2" + varint(7)),
    ]
    assert subjects_of([*keys, b"ann"], of_avro) == ["ann", -7, "ann", 7, b"ann"]


def test_the_bulk_way_and_the_single_way_agree_on_keys() -> None:
    keys = [b"ann", b"\0", b"\0abc", b'n\n"x"', b"7", "Jos\u00e9".encode(), b"a@b.c"]
    assert subjects_of(keys) == [one for key in keys for one in subjects_of([key])]


def test_plain_keys_take_no_call_for_each(monkeypatch: pytest.MonkeyPatch) -> None:
    from connectors import kafkakeys

    monkeypatch.setattr(kafkakeys, "_subject", None)
    assert subjects_of([b"ann", b"7", b"a@b.c"]) == [b"ann", b"7", b"a@b.c"]
