"""JSON to batches: the fast way must not show. Whatever the bytes, it says what the exact way says, to the last bit."""

import json
import random
import struct
from decimal import Decimal, localcontext

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from connectors import encode_json, jsonrows
from connectors.recordblocks import MAX_RECORD_BYTES, cut_lines
from streamdp.config.kafka import KafkaSourceConfig
from streamdp.data.schema import Schema
from streamdp.errors import SchemaError
from tests.support.batches import contents
from tests.support.sizes import some

SCHEMA = Schema({"a": (-10, 10), "c": ["x", "y", "1", "true", "é"]}, "t", subject="id", budget="eps")
NUMBERS = Schema({"a": (0, 1)}, "t")  # its y is the number as it was read
GOOD = b'{"a": 1.5, "c": "x", "t": 2, "id": "s", "eps": 0.5}'


def encode(raw, schema=SCHEMA):
    return encode_json(raw, np.arange(len(raw)) * 3 + 7, {"next": 1}, schema)


def encode_all_exactly(raw, schema=SCHEMA):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(jsonrows, "read", lambda records, *_: (None, np.zeros(len(records.ends), dtype=bool)))
        return encode(raw, schema)


def read_fast(raw, schema=SCHEMA):
    """Which of the records do not go the exact way."""
    exact = []
    encode_exactly = jsonrows._encode_exactly
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(jsonrows, "_encode_exactly", lambda raw, *more: exact.extend(raw) or encode_exactly(raw, *more))
        encode(raw, schema)
    return [text for text in raw if text not in exact]


def with_value(column, value):
    item = {"a": "1.5", "c": '"x"', "t": "2", "id": '"s"', "eps": "0.5", "z": "0"} | {column: value}
    return "{" + ", ".join(f'"{k}": {v}' for k, v in item.items()) + "}"


VALUES = [
    "01", "-01", "+1", "1.", ".5", "-", "-.5", "1e", "1e+", "1e5", "1E-2", "1.5e+3", "NaN", "Infinity", "-Infinity",
    "0", "-0", "-0.0", "-0e0", "0e99999999999", "1e400", "-1e400", "1e-400", "1e22", "1e23", "1_0", "0x1", "1.2.3",
    "1-2", "1 2", "--1", "9007199254740993", "9007199254740992", "-9007199254740993", "12345678901234567890",
    "999999999999999999", "9999999999999999999", "18446744073709551617", "123456789012345678e-1", "1" * 400,
    "0." + "0" * 400 + "1", "2.2250738585072011e-308", "4.9e-324", "0.1", "0.10", "1.0", "1.00", "100.0", "1e0",
    "0.0001", "0.00001", "0.00012", "123456789012345.5", "99999999999999.9", "1000000000000000", "10000000000000000",
    "0.30000000000000001", "9007199254740993.0", "0.30000000000000004", "0.1000000000000000055511151231257827",
    "true", "false", "null", "True", "tru", "truex", "nul", "none", "nan", "f", "t", "n", "", "'x'", "x",
    '"x"', '"y"', '"z"', '""', '"1"', '"1.5"', '" 1.5 "', '"-0"', '"nan"', '"inf"', '"true"', '"é"', '"\\u00e9"',
    '"\\"', '"\\""', '"a\\\\"', '"\\ud800"', '"\\ud83d\\ude00"', '"a\nb"', '"a\tb"', '"a\0b"', '"\x7f"', '"a',
    '"a:b"', '"{"', '", \\"a\\": 3"', "[]", "{}", "[1]", '{"a": 1}', '{"a": 1, "a": 2}', "[" * 1200 + "]" * 1200,
    '1, "a": 2', '1, "a": 1', '1, "q": 1, "q": 2', '1, "\\u0061": 3', '1, "A": 3', '1, "": 3', '1, "": 3, "": 4',
    "1,", "1}", "1} {", "1} x", "1}\n", "1}\r", "\n1\n", "\t1\r", "\f1", "\xa01", "\ufeff1", "1 // c", "1 /* c */",
]  # fmt: skip
ROWS = [
    GOOD, b"", b" ", b"\r", b"\n", b"null", b"[]", b"1", b'"x"', b"{}", b"{ }", b"{", b"}", b"{,}", b"{1: 2}", b"\xff",
    b"\xef\xbb\xbf" + GOOD, GOOD + b" ", GOOD + b"x", GOOD + GOOD, b"[" + GOOD + b"]", GOOD[:-1], GOOD[1:], GOOD + b",",
    GOOD.replace(b'"', b"'"), GOOD.replace(b":", b"="), GOOD.replace(b",", b",,"), GOOD.replace(b",", b",\n"),
    GOOD.replace(b" ", b""), GOOD.replace(b"}", b",}"), GOOD.replace(b", ", b" "), GOOD.replace(b"s", b"\xff"),
    GOOD.replace(b"s", b"\xed\xa0\x80"), GOOD.replace(b"s", "é\u2028\uffff😀".encode()), GOOD.replace(b"s", b"\xc3"),
    GOOD.replace(b'"s"', b'"\xc3'), b'\xa9"' + GOOD, GOOD.replace(b'"a"', b'"\xff"'), GOOD.replace(b'"a"', b'"a'),
    GOOD.replace(b'"a"', b'a'), GOOD.replace(b'"a"', b'"b"'), GOOD.replace(b'"c"', b'"b"'), None,
    GOOD.replace(b'"eps": 0.5', b'"eps": null'), GOOD.replace(b', "eps": 0.5', b""), GOOD.replace(b"0.5", b"-1"),
    GOOD.replace(b'"id"', b'"a"'), GOOD.replace(b'"s"', b'null'), b'{"eps": 1, "id": 3, "t": -2.5, "c": "y", "a": 9}',
    b"{" + b'"k": 1, ' * 3 + GOOD[1:], b"{" + b", ".join(b'"k%d": 1' % i for i in range(200)) + b", " + GOOD[1:],
    b'{"' + b"k" * 5000 + b'": 1, ' + GOOD[1:], b"x" * (MAX_RECORD_BYTES + 1), b" " * (MAX_RECORD_BYTES + 1) + GOOD,
    *(with_value(column, value).encode() for column in ("a", "c", "t", "id", "eps", "z") for value in VALUES),
]  # fmt: skip


@pytest.mark.parametrize("apart", some([False, True], 0))
@pytest.mark.slow
def test_every_trap_means_what_it_meant(apart):
    """One batch of all, and each by itself between good records; the latter says which one is wrong."""
    for raw in [[GOOD, row, GOOD] for row in ROWS] if apart else [ROWS]:
        assert contents(encode(raw)) == contents(encode_all_exactly(raw)), raw[1]


@given(
    st.lists(
        st.sampled_from(ROWS[:-1])
        | st.sampled_from([GOOD])
        | st.binary(max_size=8).map(lambda b: GOOD[:20] + b + GOOD[20:]),
        max_size=30,
    ),
    st.integers(0, 2**32),
)
@settings(suppress_health_check=list(HealthCheck))
@pytest.mark.slow
def test_any_mixture_of_records_means_what_it_meant(raw, seed):
    """Also with bytes of some records changed, moved or lost, each outcome in its place."""
    choose = random.Random(seed)
    for i, row in enumerate(raw):
        if row and len(row) < 5000 and choose.random() < 0.3:
            at, size = choose.randrange(len(row)), choose.choice((0, 0, 1, 1, 5))
            byte = choose.choice(
                (b"", b'"', b"\\", b",", b":", b"}", b"0", b"-", b"e", b".", b"\n", b" ", b"\xc3", b"\xa9")
            )
            raw[i] = row[:at] + byte + row[at + size :]
    assert contents(encode(raw)) == contents(encode_all_exactly(raw))
    lines = b"".join((row or b"").replace(b"\n", b" ") + b"\n" for row in raw)
    records, rows = cut_lines(lines), np.arange(len(raw))
    batch = jsonrows.encode_json_lines(records, rows, SCHEMA)
    cut = [None if row is None else row.replace(b"\n", b" ") for row in raw]
    expected = encode_json([c or b"" for c in cut], rows, {}, SCHEMA)
    assert [(d.position, d.column) for d in batch.dead] == [(d.position, d.column) for d in expected.dead]
    assert contents(batch)[:-1] == contents(expected)[:-1]


def spellings(x):
    for places in (0, 1, 5, 15, 16, 17, 18, 19, 25):
        yield f"{x:.{places}e}"
        if 1e-20 < abs(x) < 1e20:
            yield f"{x:.{places}f}"
    yield repr(x)


@given(st.integers(0, 2**64 - 1), st.integers(-30, 30), st.data())
@pytest.mark.slow
def test_numbers_are_the_doubles_that_python_reads(bits, exponent, data):
    """Any double and any decimal, and those next to half way between two doubles, in many spellings."""
    (any_double,) = struct.unpack("<d", struct.pack("<Q", bits))
    half_way = 2 * ((bits & (2**52 - 1)) | 2**52) + 1 + data.draw(st.sampled_from((-1, 0, 1)))
    digits = str(bits)[: data.draw(st.integers(1, 20))]
    at = data.draw(st.integers(0, len(digits) - 1))
    texts = [f"{bits}e{exponent}", f"{int(digits)}e{exponent}", f"{half_way}", f"{half_way}.0", f"{half_way / 8:.3f}"]
    texts += [f"0.{digits}", f"{int(digits[:at] or '0')}.{digits[at:]}", f"0.000{digits}", f"-{int(digits)}"]
    texts += [t for t in spellings(any_double) if np.isfinite(float(t))]
    texts += spellings(float(digits) * 10.0**exponent)
    batch = encode([b'{"a": 1, "t": %s}' % t.encode() for t in texts], NUMBERS)
    assert batch.dead == []
    assert batch.y.tobytes() == np.array([0.0 if t == "-0" else float(t) for t in texts]).tobytes()


def test_good_records_go_the_fast_way():
    """Else the tests above would compare the exact way with itself."""
    r = random.Random(3)
    fast = [
        GOOD, GOOD.replace(b" ", b""), GOOD.replace(b"s", "é".encode()), GOOD.replace(b"0.5", b"null"),
        b'{"eps": 1, "id": 3, "z": "a:b{", "t": -2.5, "c": "y", "a": 9}', GOOD.replace(b', "eps": 0.5', b""),
        GOOD.replace(b"1.5", b"0.30000000000000004"), GOOD.replace(b"1.5", b"-1.0e-7"), GOOD.replace(b'"x"', b"true"),
        *(json.dumps({"a": r.gauss(0, 1), "c": "x", "t": r.random(), "id": "s"}).encode() for _ in range(1000)),
    ]  # fmt: skip
    assert read_fast(fast) == fast
    tie = GOOD.replace(b"1.5", b"9007199254740993.0")  # more than 15 digits before the point
    slow = [tie, GOOD.replace(b"s", b"\\u00e9"), GOOD.replace(b"0.5", b"0.50"), GOOD.replace(b"2", b'"2"')]
    assert read_fast([*slow, *fast]) == fast
    assert encode([*slow, *fast]).dead == []


def test_hard_numbers_go_the_fast_way_and_are_rounded_as_python_rounds():
    """More digits than a double has, half way between two doubles and next to it, below the least normal number."""
    r = random.Random(5)
    texts = ["1e99", "-1e-99", "123456789012345678e99", "0.1000000000000000055511151231257827", "9007199254740993"]
    for _ in range(500):
        with localcontext(prec=200):
            exactly = f"{Decimal(2 * (r.getrandbits(52) | 2**52) + 1) / 2 ** r.randrange(8, 60):f}"
        texts += [exactly, exactly + "0000000001", exactly[:-1] + "49", "-" + exactly]
        texts += [f"0.{'0' * r.randrange(300, 330)}{r.getrandbits(90)}", f"{r.getrandbits(49)}.{r.getrandbits(200)}e-7"]
    raw = [b'{"a": 1, "t": %s}' % text.encode() for text in texts]
    assert read_fast(raw, NUMBERS) == raw
    assert encode(raw, NUMBERS).y.tobytes() == np.array([float(text) for text in texts]).tobytes()


def test_the_table_between_scanner_and_polars_does_not_show():
    """A byte order mark, empty texts and separators stay what they are, also where a table has a single column."""
    bare = Schema({"c": ["\ufeff", "\ufeffx", "x", ",", ";", "\x7f", "#", " x", "x ", "NaN", "null", "\u2028"]})
    raw = [b'{"c": "%s"}' % text.encode() for text in ("", *bare.features["c"], "\t", '\\"')]
    for rows in (raw, raw[1:], raw[::-1], raw[:1] * 2):
        assert contents(encode(rows, bare)) == contents(encode_all_exactly(rows, bare))
    assert len(encode(raw, bare)) == len(bare.features["c"])


def test_long_batches_with_and_without_good_records():
    """Also many texts, bytes that are not UTF-8, and more keys than can be known at a time."""
    good = [GOOD.replace(b"s", b"s%d" % i).replace(b"1.5", b"%d.25" % (i % 10)) for i in range(6000)]
    for raw in (
        good,
        [text if i % 7 else text.replace(b"s", b"\\u0073") for i, text in enumerate(good)],
        [text.replace(b"s", b"\\u0073") for text in good[:600]] + good[:300],
        [text[:-1] + b', "k%d": 1}' % i for i, text in enumerate(good[:1000])],
        [
            text.replace(b"s", b"\xff") if i % 5 == 0 else text.replace(b"s", "é".encode())
            for i, text in enumerate(good)
        ],
    ):
        assert contents(encode(raw)) == contents(encode_all_exactly(raw))


def test_reasons_of_a_broker():
    batch = encode([None, b"", b"x" * MAX_RECORD_BYTES, b"x" * (MAX_RECORD_BYTES + 1), GOOD, None])
    assert [(d.position, d.reason) for d in batch.dead] == [
        (7, "tombstone"), (10, "empty_line"), (13, "not_json"), (16, "too_long"), (22, "tombstone"),
    ]  # fmt: skip
    assert (batch.positions.tolist(), batch.position) == ([19], {"next": 1})
    huge = GOOD[:-1] + b" " * (MAX_RECORD_BYTES - len(GOOD)) + b"}"
    assert len(encode([huge])) == 1
    assert [d.reason for d in encode([huge + b" "]).dead] == ["too_long"]
    assert [d.reason for d in encode([None]).dead] == ["tombstone"]
    assert contents(encode([])) == contents(encode_all_exactly([]))


def test_the_frame_of_confluents_serializers():
    frame, bare = b"\0\0\1\2\3", b'{"a": 1, "c": "x", "t": 2, "id": "k"}'
    raw = [frame + bare, bare, None, b"", frame, b"\1" + frame[1:] + bare, frame + b"[]", b"\0\0", frame + bare]
    places = np.arange(len(raw)) * 3 + 7
    batch = jsonrows.encode_framed_json(raw, places, {"next": 1}, SCHEMA)
    assert (batch.positions.tolist(), batch.subjects, batch.position) == ([7, 31], ["k", "k"], {"next": 1})
    assert [(d.position, d.reason) for d in batch.dead] == [
        (10, "not_framed"), (13, "tombstone"), (16, "empty_line"), (19, "empty_line"), (22, "not_framed"),
        (25, "not_an_object"), (28, "not_framed"),
    ]  # fmt: skip
    assert len(jsonrows.encode_framed_json([], places[:0], {}, SCHEMA)) == 0
    kafka = {"type": "kafka", "topic": "t", "brokers": "b:1", "json_framing": "confluent"}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("connectors.kafka.KafkaSource", lambda *_, **options: options)
        options = KafkaSourceConfig.model_validate(kafka).build_source("j", SCHEMA, True)
    assert options["decode"] is jsonrows.encode_framed_json


@pytest.mark.parametrize("name", ['a"b', "a\\b", "a\nb", "é", "a b", "k" * 9000])
def test_columns_of_any_name(name):
    try:
        schema = Schema({name: (0, 10)}, "t")
    except SchemaError:
        pytest.skip("no such column")
    raw = [json.dumps({name: i, "t": 1}, ensure_ascii=bool(i % 2)).encode() for i in range(4)]
    raw += [b'{"' + name.encode() + b'": 1, "t": 1}', b'{"a', b'b": 1, "t": 1}', b'{"a"b": 1, "t": 1}', b'{"t": 1}']
    assert contents(encode(raw, schema)) == contents(encode_all_exactly(raw, schema))


def test_half_of_a_surrogate_pair_is_a_dead_letter_also_beside_a_constant_of_python() -> None:
    """orjson refuses both, and Python's reader would let both pass: a text with the half can be written nowhere."""
    schema = Schema({"a": (0, 1)}, "y", subject="id")
    raw = [b'{"a": %s, "y": 0, "id": "%s"}' % pair for pair in ((b"0", b"\\ud800"), (b"NaN", b"\\ud800"), (b"0", b"x"))]
    batch = encode_json([*raw, b'{"a": 0, "y": 0, "id": "x", "\\udfff": Infinity}'], np.arange(4), {}, schema)
    assert [(letter.position, letter.reason) for letter in batch.dead] == [(i, "not_json") for i in (0, 1, 3)]
    assert batch.subjects == ["x"]
