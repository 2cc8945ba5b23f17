"""Files: whatever bytes come, each record is decoded once, in the same way, or is a dead letter without a value."""

import contextlib
import gzip
import io
import json
import os
import random
import sys
import threading
import time
import tracemalloc
from pathlib import Path

import numpy as np
import polars as pl
import pytest
import zstandard
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from connectors import CSVSource, DeadLetterFile, JSONLSource, bytestream, csvgrammar, files, recordblocks
from connectors.recordfile import FileList
from connectors.textform import TextForm
from streamdp.data.records import DeadLetter, Source
from streamdp.data.schema import Schema
from streamdp.errors import ConfigError, SchemaError, SourceError, TooManyBadRecordsError
from tests.support.sizes import some

SCHEMA = Schema({"a": (0, 10), "c": ["x", "y"]}, "t", subject="id", budget="eps")
HEADER = b"extra,id,c,a,eps,t\n"
FORMATS = {"csv": CSVSource, "jsonl": JSONLSource}


def outcome(batches):
    """Everything a consumer sees, but for how it was cut into batches."""
    good = [(r.position, tuple(r.x.items()), r.y, r.subject, r.budget) for b in batches for r in b]
    dead = [(d.position, d.reason, d.column, d.payload) for b in batches for d in b.dead]
    return good, dead


def read_all(source, size=10**6):
    batches = []
    while not source.finished:
        batches.append(source.poll(size, 0.0))
    return batches


def write(path, data):
    path.write_bytes(data)
    return str(path)


def open_lenient(kind, path, **options):
    return FORMATS[kind](path, SCHEMA, max_bad_share=None, **options)


def read_by_hand(monkeypatch, kind, path, **options):
    """The reference: character by character, one block."""
    with monkeypatch.context() as patch:
        patch.setattr(files.CSVDecoder, "_parse", lambda *_: (None, False))
        patch.setattr(csvgrammar.CSVGrammar, "_ends_in_order", lambda *_: None)
        return outcome(read_all(open_lenient(kind, path, **options)))


def rows(n, seed=0):
    rng = np.random.default_rng(seed)
    return [
        {"extra": i, "id": f"s{i % 7}", "c": "xy"[i % 2], "a": float(rng.uniform(-1, 12)), "eps": 0.5, "t": i * 0.25}
        for i in range(n)
    ]


def as_bytes(kind, items, end="\n"):
    if kind == "jsonl":
        return "".join(json.dumps(item) + end for item in items).encode()
    lines = [HEADER.decode().strip(), *(",".join(str(v) for v in item.values()) for item in items)]
    return "".join(line + end for line in lines).encode()


@pytest.mark.parametrize("end", ["\n", "\r\n"])
@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("kind", FORMATS)
def test_records_come_back_as_written(tmp_path, kind, packed, end):
    items = rows(150)
    data = as_bytes(kind, items, end)
    source = FORMATS[kind](write(tmp_path / "data", gzip.compress(data) if packed else data), SCHEMA)
    assert isinstance(source, Source)
    good, dead = outcome(read_all(source, 77))
    assert dead == []
    first = 2 if kind == "csv" else 1
    assert good == [
        (first + i, tuple(SCHEMA.encode_one(r)[0].items()), r["t"], r["id"], r["eps"]) for i, r in enumerate(items)
    ]
    assert source.position["row"] == first + len(items) - 1


TOKENS = [
    b",", b",", b",", b'"', b'""', b"\n", b"\n", b"\r\n", b"\r", b"1", b"2.5", b"x", b"y", b"s1", b" ", b"nan", b"\xff",
    "é".encode(), b"\0", b"1e400", b"#", b"\xef\xbb\xbf", b"'", b"\\", b"1_0", b"+3", b"-", b"0x1", b"NA",
]  # fmt: skip
LINES = [
    b"e,s1,x,5,,1\n", b"e,s2,y,7.5,0.5,-1\n", b'e,"s,3","x","4",,1\n', b'"e\ne",s4,y,3,,1\r\n',
    b'e,"s""5",x,1,,2\n', b"\n", b"e,s1,x,5,,\n", b"e,s1,x\n", b"e,s1,x,5,,1,9\n", b'5",s6,y,2,,1\n',
    b"e,s7,x," + b"9" * 90 + b",,1\n",
]  # fmt: skip
JSON_LINES = [
    b'{"a": 1, "c": "x", "t": 2, "id": "s", "eps": null}\n',
    b'{"a": "1.5", "c": "y", "t": -2.5, "id": 7, "eps": 2}\r\n',
    b"null\n", b"[]\n", b"\n", b" \t\n", b'{"a": 1, "a": 2, "c": "x", "t": 2, "id": "s", "eps": 1}\n', b'{"a": NaN}\n',
    b'{"a": [1], "c": "x", "t": 2, "id": "s", "eps": 1}\n', b'{"a": {}, "c": "x", "t": 2, "id": "s", "eps": 1}\n',
    b'{"a": 1, "c": "x", "t": 2, "id": "s:1", "eps": 1, "z": {"q": []}}\n', b'{"a": true, "c": "x"}\n', b'{"a": 1\n',
    b'{"a": 1, "c": 1, "t": 2, "id": "s", "eps": 1}\n', b'"\xff"\n', b"[" * 2000 + b"\n",
    b"{} {}\n", b"1" * 500 + b"\n",
]  # fmt: skip
BODY = {
    "csv": st.lists(st.sampled_from(LINES) | st.sampled_from(TOKENS), max_size=25).map(b"".join),
    "jsonl": st.lists(st.sampled_from(JSON_LINES) | st.binary(max_size=8), max_size=12).map(b"".join),
}


@pytest.mark.parametrize("kind", FORMATS)
@given(data=st.data())
@settings(suppress_health_check=list(HealthCheck))
@pytest.mark.slow
def test_any_bytes_in_any_pieces_give_the_same(tmp_path, monkeypatch, kind, data):
    """Blocks, batches, seeks and compression must not show; nor may the fast way differ from the slow one."""
    body = data.draw(BODY[kind])
    assume(not body.startswith((b"\x1f\x8b", b"\x28\xb5\x2f\xfd")))  # then it is a packed file, and a bad one
    choose = random.Random(data.draw(st.integers(0, 2**32)))
    content = (HEADER if kind == "csv" else b"") + body
    path = write(tmp_path / "data", gzip.compress(content) if choose.random() < 0.5 else content)
    longest = choose.randint(60, 200)
    with monkeypatch.context() as patch:
        for module in (recordblocks, csvgrammar, files):
            patch.setattr(module, "MAX_RECORD_BYTES", longest, raising=False)
        expected = read_by_hand(monkeypatch, kind, path)
        assert outcome(read_all(open_lenient(kind, path))) == expected
        patch.setattr(recordblocks, "BLOCK_BYTES", longest + choose.randint(1, 300))
        source = open_lenient(kind, path)
        batches = []
        for _ in range(1000):
            if source.finished:
                break
            before = source.position
            batches.append(source.poll(choose.randint(1, 5), 0.0))
            assert len(batches[-1]) + len(batches[-1].dead) <= 5
            if batches[-1].position != before and choose.random() < 0.3:
                position = json.loads(json.dumps(source.position))
                source.close()
                source = open_lenient(kind, path)
                source.seek(position)
                assert source.position == position
        assert source.finished
        assert outcome(batches) == expected
        positions = sorted(p[0] for part in expected for p in part)
        first = 2 if kind == "csv" else 1
        assert positions == list(range(first, first + len(positions))), "every record is good or dead, once"
        assert source.position["row"] == first + len(positions) - 1


def test_the_reference_itself(tmp_path, monkeypatch):
    content = HEADER + b"".join(LINES) + b'e,"s8,x,5,,1\ne,s\xff9,x,5,,1\ne,"s"8,x,5,,1\ne,s10,y,1,x,0\ne,s11,x,5,,1'
    good, dead = outcome(read_all(open_lenient("csv", write(tmp_path / "f", content))))
    assert (good, dead) == read_by_hand(monkeypatch, "csv", str(tmp_path / "f"))
    assert [(p, dict(x)["a"], s) for p, x, _, s, _ in good] == [
        (2, 0.0, "s1"), (3, 0.5, "s2"), (4, pytest.approx(-0.2), "s,3"), (5, pytest.approx(-0.4), "s4"),
        (6, pytest.approx(-0.8), 's"5'), (11, pytest.approx(-0.6), "s6"), (12, 1.0, "s7"),
    ]  # fmt: skip
    assert [d[:3] for d in dead] == [
        (7, "empty_line", None), (8, "missing", "t"), (9, "too_few_fields", None), (10, "too_many_fields", None),
        (13, "malformed_quotes", None), (14, "not_utf8", None), (15, "malformed_quotes", None),
        (16, "bad_budget", "eps"),
    ]  # fmt: skip


def test_json_reasons(tmp_path):
    path = write(tmp_path / "f", b"".join(JSON_LINES))
    good, dead = outcome(read_all(open_lenient("jsonl", path)))
    assert [g[0] for g in good] == [1, 2, 11]
    assert [d[:3] for d in dead] == [
        (3, "not_an_object", None), (4, "not_an_object", None), (5, "empty_line", None), (6, "empty_line", None),
        (7, "duplicate_key", None), (8, "missing", "a"), (9, "nested", "a"), (10, "nested", "a"),
        (12, "not_a_number", "a"), (13, "not_json", None), (14, "unknown_category", "c"), (15, "not_utf8", None),
        (16, "not_json", None), (17, "not_json", None), (18, "not_json", None),
    ]  # fmt: skip


@pytest.mark.parametrize("kind", FORMATS)
def test_a_huge_record_is_one_dead_letter(tmp_path, kind):
    item = as_bytes(kind, rows(1)).splitlines(keepends=True)[-1]
    header = HEADER if kind == "csv" else b""
    for huge in (b"z" * (9 << 20), b'"' + b"z," * (3 << 20), b"z" * (1 << 20)):
        for last in (item, b""):
            path = write(tmp_path / "f", header + item + huge + b"\n" + last)
            source = open_lenient(kind, path, keep_payload=True)
            good, dead = outcome(read_all(source))
            assert len(good) == 1 + bool(last)
            assert [d[1] for d in dead] == ["too_long"]
            again = open_lenient(kind, path, keep_payload=True)
            again.seek(source.position)
            assert outcome(read_all(again)) == ([], [])


def test_header_in_any_order_with_mark_blanks_and_quotes(tmp_path):
    path = write(tmp_path / "f", b'\xef\xbb\xbf t;"eps";more;"a"; c;more;id\r\n1;;?;5;y;?;s\r\n')
    (batch,) = [b for b in read_all(CSVSource(path, SCHEMA, delimiter=";")) if len(b)]
    assert outcome([batch])[0] == [(2, (("a", 0.0), ("c=y", 1.0)), 1.0, "s", None)]


@pytest.mark.parametrize(("name", "delimiter"), [("f.tsv", b"\t"), ("f.csv", b",")])
def test_the_ending_of_the_name_tells_the_delimiter(tmp_path, name, delimiter):
    text = b"id,a,c,t,eps\ns,5,y,1,\n".replace(b",", delimiter)
    for path in (write(tmp_path / name, text), write(tmp_path / f"{name}.gz", gzip.compress(text))):
        (batch,) = [b for b in read_all(CSVSource(path, SCHEMA)) if len(b)]
        assert len(batch) == 1
        with pytest.raises(SchemaError, match=r"is the delimiter right \(source.delimiter\)\?"):
            CSVSource(path, SCHEMA, delimiter=";")


@pytest.mark.parametrize("text", [b'[{"a": 1}]', b'\xef\xbb\xbf\n [\n  {"a": 1},\n  {"a": 2}\n]\n'])
def test_a_json_array_is_no_file_of_json_lines(tmp_path, text):
    with pytest.raises(SourceError, match=r"f: the file holds one JSON array: expected JSON lines.* convert it"):
        JSONLSource(write(tmp_path / "f", text), SCHEMA)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (b"cc,ab,s1,2013,epsi\n", r"lacks the declared .*'eps'; does the data begin with a line of column names\?"),
        (b"ID,A,C,T,EPS\n1,2,x,3,4\n", r"did you mean 'A'\?"),
        (b"id,a,c,t,eps\rcc,1,x,3,epsi\r", "CR that ends no line"),
        (b"id,a,c,t\repsi,1,x,3\r", "CR that ends no line"),
    ],
)
def test_a_hint_about_a_header_shows_no_value_of_a_record(tmp_path, text, says):
    with pytest.raises((SchemaError, SourceError), match=says) as caught:
        CSVSource(write(tmp_path / "f", text), SCHEMA)
    assert "epsi" not in str(caught.value)


def test_a_header_that_does_not_fit_is_refused_at_once(tmp_path):
    with pytest.raises(SchemaError, match=r"lacks the declared 'a', 'eps'"):
        CSVSource(write(tmp_path / "f", b"id,c,t\n1,2,3\n"), SCHEMA)
    with pytest.raises(SchemaError, match=r"repeats the declared 'a'"):
        CSVSource(write(tmp_path / "f", b"id,c,t,a,a,eps\n"), SCHEMA)
    for bad in (b"\xff,b\n", b'"a,b\n', b"z" * (2 << 20)):
        with pytest.raises(SourceError, match="header"):
            CSVSource(write(tmp_path / "f", bad), SCHEMA)
    with pytest.raises(ConfigError):
        CSVSource("-", SCHEMA, delimiter='"')
    with pytest.raises(ConfigError):
        CSVSource("-", SCHEMA, follow=True)


@pytest.mark.parametrize("kind", FORMATS)
def test_what_cannot_be_read_is_refused_clearly(tmp_path, kind):
    data = as_bytes(kind, rows(2000))
    for path in (tmp_path / "none", tmp_path):
        with pytest.raises(SourceError, match="cannot open"):
            FORMATS[kind](path, SCHEMA)
    with pytest.raises(SourceError, match="not a gzip"):
        FORMATS[kind](write(tmp_path / "f.gz", data), SCHEMA)
    with pytest.raises(SourceError, match="cannot follow"):
        FORMATS[kind](write(tmp_path / "g", gzip.compress(data)), SCHEMA, follow=True)


@pytest.mark.parametrize("kind", FORMATS)
@pytest.mark.parametrize("form", [None, TextForm("cp1252")])
@pytest.mark.parametrize(("table", "name"), [("parquet", "Parquet"), ("ipc", "Arrow")])
def test_a_table_is_not_read_as_text_and_the_advice_fits_it(tmp_path, monkeypatch, kind, form, table, name):
    """The advice for a Parquet file was an encoding, which made text of its bytes."""
    getattr(pl.DataFrame({"t": [0.5], "a": [1.0]}), f"write_{table}")(tmp_path / "f")
    said = f"{name} file and no text: "
    with pytest.raises(SourceError, match=f"{said}set source.type: {name.lower()}"):
        FORMATS[kind](str(tmp_path / "f"), SCHEMA, form=form)
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO((tmp_path / "f").read_bytes())))
    with pytest.raises(SourceError, match=f"standard input: .*{said}write its rows as CSV"):
        read_all(FORMATS[kind]("-", SCHEMA, form=form))


def test_bytes_that_are_no_text_get_no_advice_for_text(tmp_path):
    for data, advice in [
        (b"\x7fELF\x02\x01\xff\xfe\n", "is this a CSV file"),
        ("a,t\n1,\u0142\n".encode("utf-16-le"), "utf-16-le"),
        ("a,t\n".encode("utf-16"), "source.encoding: utf-16,"),
        ("a,\xe9\n".encode("cp1252"), "source.encoding: cp1252"),
    ]:
        with pytest.raises((SourceError, SchemaError), match=advice):
            read_all(CSVSource(write(tmp_path / "f", data), SCHEMA))


@pytest.mark.parametrize("kind", FORMATS)
@pytest.mark.parametrize("packed", [False, True])
def test_empty_files_and_members_just_finish(tmp_path, kind, packed):
    contents = [b"", HEADER, HEADER.strip()] if kind == "csv" else [b""]
    for content in contents:
        data = gzip.compress(content) if packed else content
        assert outcome(read_all(FORMATS[kind](write(tmp_path / "f", data), SCHEMA))) == ([], [])
    data = as_bytes(kind, rows(10))
    members = gzip.compress(data[:50]) + bytes(20) + gzip.compress(data[50:])
    assert len(outcome(read_all(FORMATS[kind](write(tmp_path / "f", members), SCHEMA)))[0]) == 10


@pytest.mark.parametrize("kind", FORMATS)
@pytest.mark.parametrize("packed", [False, True])
def test_a_file_that_was_cut_or_replaced_is_refused(tmp_path, kind, packed):
    pack = gzip.compress if packed else bytes
    data = as_bytes(kind, rows(100))
    path = write(tmp_path / "f", pack(data))
    source = FORMATS[kind](path, SCHEMA)
    source.poll(50, 0.0)
    position = source.position
    for changed, message in [
        (data[:300], "does not hold the 50 records .* cut short or replaced"),
        (b"", "does not hold the 50 records"),
        *([(b"new_" + data, "another header")] if kind == "csv" else []),
    ]:
        write(tmp_path / "f", pack(changed))
        with pytest.raises(SourceError, match=message):
            FORMATS[kind](path, SCHEMA).seek(position)
    with pytest.raises(SourceError, match="position"):
        FORMATS[kind](write(tmp_path / "f", data), SCHEMA).seek({"index": 3})


@pytest.mark.parametrize("kind", FORMATS)
@pytest.mark.parametrize("form", [TextForm(comment="#"), TextForm(skip_lines=1)], ids=["comment", "skip_lines"])
def test_a_position_is_not_used_where_other_lines_are_passed_over(tmp_path, kind, form):
    """Positions count records: a comment that was a dead letter before, and then is none, lost a later record."""
    head, *lines = as_bytes(kind, rows(20)).splitlines(keepends=True)
    path = write(tmp_path / "f", b"".join([head, b"#\n", *lines]))
    source = FORMATS[kind](path, SCHEMA, max_bad_share=None)
    begun = source.position
    source.poll(10, 0.0)
    with pytest.raises((SourceError, SchemaError), match=r"lacks|comment was changed"):
        FORMATS[kind](path, SCHEMA, form=form).seek(source.position)
    same = FORMATS[kind](path, SCHEMA, form=TextForm("cp1252"), max_bad_share=None)  # the same records
    same.seek(source.position)
    assert same.position == source.position
    if form.comment:
        FORMATS[kind](path, SCHEMA, form=form).seek(begun)  # nothing was read


@pytest.mark.parametrize("kind", FORMATS)
@pytest.mark.parametrize("polled", [1, 2, 30, 500])
@pytest.mark.slow
def test_another_file_with_the_same_header_is_recognised(tmp_path, kind, polled):
    """By a keyed digest of its first records: positions are shown, and must not confirm a guess of a record."""

    def opened(key=b"k" * 32):
        source = open_lenient(kind, path)
        if key is not None:
            source.recognise(key)
        return source

    def lines(first, n):
        return as_bytes(kind, rows(1000)[first : first + n])

    path = write(tmp_path / "f", lines(0, 600))
    source = opened()
    for part in (1, polled - 1):
        batch = source.poll(part, 0.0)
        assert len(batch) + len(batch.dead) == part
    position = source.position
    unkeyed = {name: value for name, value in position.items() if name != "first"}
    write(tmp_path / "f", lines(0, 900))  # it has grown
    for stored in (position, unkeyed):  # the second is of an earlier version
        later = opened()
        later.seek(stored)
        assert later.position == position
    write(tmp_path / "f", lines(1, 600))
    with pytest.raises(SourceError, match="begins with other records"):
        opened().seek(position)
    opened(None).seek(position)  # a job without a key does not look
    write(tmp_path / "f", lines(0, 600))
    for key in (b"l" * 32, None):
        other = opened(key)
        other.poll(polled, 0.0)
        assert other.position.get("first") != position["first"]


@pytest.mark.parametrize("kind", FORMATS)
@pytest.mark.parametrize("follow", [False, True])
@pytest.mark.parametrize("pack", some([bytes, gzip.compress, zstandard.compress], 0, 2))
@pytest.mark.slow
def test_a_last_line_is_read_once_it_has_its_end(tmp_path, kind, follow, pack):
    """A part of a record is not a record: the first half of 97.5 is 9."""
    if follow and pack is not bytes:
        pytest.skip("packed files are not followed")
    data = as_bytes(kind, rows(3)[:2]) + as_bytes(kind, rows(3)).splitlines(keepends=True)[-1]
    whole = outcome(read_all(FORMATS[kind](write(tmp_path / "g", data), SCHEMA)))
    assert len(whole[0]) == 3
    start = len(as_bytes(kind, rows(2)))
    position, found = None, []
    for size in range(start, len(data) + 1):
        source = open_lenient(kind, write(tmp_path / "f", pack(data[:size])), follow=follow)
        source.recognise(b"k" * 32)
        if position is not None:
            source.seek(position)
        while len(batch := source.poll(9, 0.0)):
            found.append(batch)
        position = source.position
        assert source.unended == ([source.path] if start < size < len(data) else [])
        assert source.finished is not follow
        source.close()
    assert outcome(found) == whole


@pytest.mark.parametrize("follow", [False, True])
@pytest.mark.parametrize("quick", [False, True])
@pytest.mark.slow
def test_a_record_that_is_cut_in_a_quoted_field_waits_for_its_end(tmp_path, follow, quick):
    """Also after a newline inside the field: before, a run that did not follow made a dead letter of the first line."""
    first = b'"e ""1""\nmore, or less\n",s1,x,5,,1\n' if quick else b'e,s0,q"x"q,5,,1\n"e\n\nmore\n",s1,x,5,,1\n'
    data = HEADER + first + b'e,s2,"y\n",5,,1\n'
    whole = outcome(read_all(open_lenient("csv", write(tmp_path / "g", data))))
    position, found = None, []
    for size in range(len(HEADER), len(data) + 1):
        source = open_lenient("csv", write(tmp_path / "f", data[:size]), follow=follow)
        if position is not None:
            source.seek(position)
        while len(batch := source.poll(9, 0.0)) or batch.dead:
            found.append(batch)
        position = source.position
        source.close()
    assert outcome(found) == whole
    assert [d[1] for d in whole[1]] == ["unknown_category"] * (2 - quick)


def test_a_header_and_a_long_line_wait_for_their_ends(tmp_path):
    path = write(tmp_path / "f", HEADER[:-1])
    source = open_lenient("csv", path)
    assert outcome(read_all(source)) == ([], [])
    assert (source.position["row"], source.unended) == (0, [path])
    for last in (b"z" * (1 << 20), b"z" * (9 << 20)):
        path = write(tmp_path / "f", HEADER + last)
        source = open_lenient("csv", path)
        assert outcome(read_all(source)) == ([], [])
        assert (source.position["row"], source.unended) == (1, [path])
        write(tmp_path / "f", HEADER + last + b"\ne,s2,x,5,,1\n")
        later = open_lenient("csv", path)
        later.seek(source.position)
        good, dead = outcome(read_all(later))
        assert [d[:2] for d in dead] == [(2, "too_long")]
        assert [g[3] for g in good] == ["s2"]


def test_what_follows_in_a_block_is_no_last_line(tmp_path):
    source = CSVSource(write(tmp_path / "f", as_bytes("csv", rows(30)) + b"e"), SCHEMA)
    source.poll(29, 0.0)
    assert source.unended == []
    source.poll(1, 0.0)
    source.poll(1, 0.0)
    assert source.unended == [source.path]


def test_lines_that_became_one_record_are_not_passed_over_as_two(tmp_path):
    path = write(tmp_path / "f", HEADER + b'"e\ne,s1,x,5,,1\n')
    source = open_lenient("csv", path)
    assert [d[1] for d in outcome(read_all(source))[1]] == ["malformed_quotes"]
    with open(path, "ab") as f:
        f.write(b'",s2,x,5,,1\ne,s3,x,5,,1\n')
    for follow in (False, True):
        with pytest.raises(SourceError, match="does not hold the 2 records"):
            open_lenient("csv", path, follow=follow).seek(source.position)


@pytest.mark.parametrize("kind", FORMATS)
def test_follow_waits_for_whole_records_until_closed(tmp_path, kind):
    data = as_bytes(kind, rows(40))
    path = write(tmp_path / "f", b"")
    source = FORMATS[kind](path, SCHEMA, follow=True)
    assert len(source.poll(10, 0.0)) == 0

    def grow():
        with open(path, "ab", buffering=0) as f:
            for start in range(0, len(data), 97):
                f.write(data[start : start + 97])
                time.sleep(0.002)

    writer = threading.Thread(target=grow)
    writer.start()
    batches = []
    deadline = time.monotonic() + 300  # the machine may be busy
    while sum(map(len, batches)) < 40 and time.monotonic() < deadline:
        batches.append(source.poll(7, 0.2))
        if len(batches) % 3 == 0:
            position = source.position
            source.close()
            source = FORMATS[kind](path, SCHEMA, follow=True)
            source.seek(position)
    writer.join()
    assert outcome(batches) == outcome(read_all(FORMATS[kind](path, SCHEMA)))
    assert not source.finished
    started = time.monotonic()
    assert len(source.poll(7, 0.1)) == 0
    assert time.monotonic() - started > 0.09
    write(tmp_path / "f", b"")
    with pytest.raises(SourceError, match=r"cut, overwritten or replaced .* Give the original file"):
        source.poll(7, 0.0)
    source.close()
    assert source.finished


@pytest.mark.parametrize("kind", FORMATS)
@pytest.mark.parametrize("size", [30, 3000])
@pytest.mark.parametrize("change", ["longer", "same length", "shorter", "longer, same start", "longer, other header"])
def test_a_followed_file_that_is_overwritten_is_not_read_on(tmp_path, kind, size, change):
    """It was read on at the old place: the first records of the new content were passed over in silence."""
    items, others = rows(size), rows(size, seed=1)
    if change.startswith("longer"):
        others += rows(50, seed=2)
    if change == "shorter":
        others = others[: size // 2]
    if change == "longer, same start":
        others[: size // 2] = items[: size // 2]
    data, new = as_bytes(kind, items), as_bytes(kind, others)
    if change == "longer, other header":
        new = b"new_" + new if kind == "csv" else b'{"new": 1}\n' + new
    if change == "same length":
        new = data.replace(b"x", b"y")
    assert change != "same length" or (len(new) == len(data) and new != data)
    assert not change.startswith("longer") or len(new) > len(data)
    path = write(tmp_path / "f", data[:-1])
    with contextlib.closing(open_lenient(kind, path, follow=True)) as source:
        read = sum(len(batch) + len(batch.dead) for batch in (source.poll(7000, 0.0) for _ in range(3)))
        assert read == size - 1
        with open(path, "ab") as file:  # growing is no change of what was read
            file.write(data[-1:])
        batch = source.poll(7000, 0.0)
        assert len(batch) + len(batch.dead) == 1
        position = source.position
        with open(path, "wb") as file:  # in place: it is the same file
            file.write(new)
        with pytest.raises(SourceError, match="was cut, overwritten or replaced while it was followed"):
            source.poll(7000, 0.0)
        assert source.position == position


@pytest.mark.parametrize("kind", FORMATS)
def test_a_followed_file_that_is_edited_far_behind_is_read_on_where_it_was(tmp_path, kind):
    """That it was edited is not noticed: the page says so. No later record is passed over or read twice."""
    data, more = as_bytes(kind, rows(3000)), rows(20, seed=1)
    path = write(tmp_path / "f", data)
    middle = data.index(b"x", len(data) // 2)
    assert 1 << 13 < middle < len(data) - (1 << 14)
    with contextlib.closing(open_lenient(kind, path, follow=True)) as source:
        read = sum(len(batch) + len(batch.dead) for batch in (source.poll(7000, 0.0) for _ in range(3)))
        assert read == 3000
        with open(path, "r+b") as file:
            file.seek(middle)
            file.write(b"y")
            file.seek(0, 2)
            file.write(as_bytes(kind, more).removeprefix(HEADER))
        batch = source.poll(7000, 0.0)
        assert len(batch) + len(batch.dead) == len(more)


def test_follow_does_not_wait_behind_a_malformed_line(tmp_path):
    source = CSVSource(write(tmp_path / "f", HEADER + b'"x"y\ne,s1,x,5,,1\n'), SCHEMA, follow=True)
    assert len(source.poll(7, 0.0)) == 1


@pytest.mark.parametrize("packed", [False, True])
def test_standard_input(monkeypatch, packed):
    data = as_bytes("csv", rows(300))
    reading, writing = os.pipe()
    monkeypatch.setattr(sys, "stdin", os.fdopen(reading, "r"))
    source = CSVSource("-", SCHEMA)
    source.seek(source.position)
    assert len(source.poll(10, 0.01)) == 0
    os.write(writing, gzip.compress(data) if packed else data)
    os.close(writing)
    assert len(outcome(read_all(source))[0]) == 300
    with pytest.raises(SourceError, match="standard input"):
        source.seek({"row": 0, "bad": {}, "head": ""})
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(data)))
    assert len(outcome(read_all(CSVSource("-", SCHEMA)))[0]) == 300


@pytest.mark.timeout(120)
@pytest.mark.parametrize(("pack", "early"), [(gzip.compress, 2000), (zstandard.compress, 0)], ids=["gzip", "zstd"])
def test_packed_records_of_an_open_pipe_are_there_before_its_next_byte(monkeypatch, pack, early):
    """The end of a packed stream may come alone, and a piece may hold much."""
    packed = pack(as_bytes("csv", rows(3000)))
    reading, writing = os.pipe()
    monkeypatch.setattr(sys, "stdin", os.fdopen(reading, "r"))
    source = CSVSource("-", SCHEMA)
    batches = []
    for piece, learned in ((packed[:-8], early), (packed[-8:], 3000)):
        os.write(writing, piece)
        for _ in range(300):
            batches.append(source.poll(1000, 0.05))
            if sum(map(len, batches)) >= learned:
                break
    assert not source.poll(1000, 0.05)
    assert sum(map(len, batches)) == 3000
    os.close(writing)
    assert not outcome(read_all(source))[0]


@pytest.mark.slow
def test_a_gzip_file_that_unpacks_to_much_takes_a_block_of_memory_at_a_time(tmp_path):
    path = write(tmp_path / "f.gz", gzip.compress(HEADER + bytes(100 << 20)))
    stream = bytestream.ByteStream(path)
    tracemalloc.start()
    try:
        sizes = [len(piece) for piece in iter(lambda: stream.read(1 << 20, 0.0), b"")]
        assert tracemalloc.get_traced_memory()[1] < 8 << 20
    finally:
        tracemalloc.stop()
    assert max(sizes) <= 1 << 20
    assert sum(sizes) == len(HEADER) + (100 << 20)


def test_a_gzip_file_with_a_wrong_checksum_or_bytes_behind_it_is_damaged(tmp_path):
    packed = gzip.compress(as_bytes("csv", rows(100)))
    for damaged in (packed[:-8] + bytes(8), packed + b"SECRET", packed[:3] + b"\xff" + packed[4:]):
        with pytest.raises(SourceError, match=r"damaged|cut short") as caught:
            read_all(CSVSource(write(tmp_path / "f.gz", damaged), SCHEMA))
        assert "SECRET" not in str(caught.value)
    for size in (2, 5, 12, len(packed) - 1):
        with pytest.raises(SourceError, match="cut short"):
            read_all(CSVSource(write(tmp_path / "f.gz", packed[:size]), SCHEMA))


@pytest.mark.parametrize("kind", FORMATS)
def test_zstandard_frames_without_data_and_with_a_long_window(tmp_path, kind):
    data = as_bytes(kind, rows(20))
    skipped = b"\x53\x2a\x4d\x18" + (5).to_bytes(4, "little") + b"notes"
    window = (31 - 10) << 3  # 2 GiB, as `zstd --long=31` declares
    raw_block = (len(data) << 3 | 1).to_bytes(3, "little") + data
    long = b"\x28\xb5\x2f\xfd\x00" + bytes([window]) + raw_block
    packed = zstandard.compress(data)
    for content in (skipped + packed, packed + skipped, skipped + skipped + packed, long, skipped + long):
        source = FORMATS[kind](write(tmp_path / "f.zst", content), SCHEMA)
        assert len(outcome(read_all(source))[0]) == 20
    with pytest.raises(SourceError, match="cut short"):
        read_all(FORMATS[kind](write(tmp_path / "f.zst", packed + skipped[:-1]), SCHEMA))


def test_too_many_bad_records_stop_the_source_after_the_good_were_polled(tmp_path):
    lines = as_bytes("csv", rows(1000)).splitlines(keepends=True)
    for i in range(500, 700):
        lines[i] = b"e,SECRET,x,SECRET,,1\n"
    path = write(tmp_path / "f", b"".join(lines))
    source = CSVSource(path, SCHEMA)
    polled = sum(len(source.poll(1, 0.0)) for _ in range(599))
    assert polled == 499
    assert not source.finished
    with pytest.raises(TooManyBadRecordsError, match=r"100 of 599 .*'not_a_number' \(100\).*0\.05") as caught:
        source.poll(1, 0.0)
    assert "SECRET" not in str(caught.value)
    again = CSVSource(path, SCHEMA)
    again.seek(source.position)
    with pytest.raises(TooManyBadRecordsError):
        again.poll(1, 0.0)
    for options in ({"max_bad_share": 0.3}, {"max_bad_share": None}):
        assert len(outcome(read_all(CSVSource(path, SCHEMA, **options), 1))[0]) == 800


def test_a_file_without_one_good_record_is_an_error_however_short(tmp_path):
    with pytest.raises(TooManyBadRecordsError):
        read_all(CSVSource(write(tmp_path / "f", HEADER + b"1,2\n"), SCHEMA))
    path = write(tmp_path / "f", HEADER + b"1,2\ne,s1,x,5,,1\n")
    assert len(outcome(read_all(CSVSource(path, SCHEMA), 1))[0]) == 1, "the end is what was polled, not what was read"


def test_dead_letters_tell_no_value_unless_asked(tmp_path):
    bad = [b"e,SECRET1,x,SECRET2,,1", b"SECRET3", b"e,SECRET\xff,x,1,,1", b'e,"SECRET"4,x,1,,1', b"e,s,SECRET5,1,,1"]
    path = write(tmp_path / "f", HEADER + b"".join(line + b"\r\n" for line in bad))
    for keep, name in ((False, "quiet"), (True, "kept")):
        sink = DeadLetterFile(tmp_path / name)
        source = CSVSource(path, SCHEMA, max_bad_share=None, keep_payload=keep)
        for batch in read_all(source):
            sink.write(batch.dead)
        sink.commit()
        text = (tmp_path / name).read_text()
        assert "SECRET" not in text + repr(source.position)
        letters = [json.loads(line) for line in text.splitlines()]
        assert [(d["position"], d["reason"], d["column"]) for d in letters] == [
            (2, "not_a_number", "a"), (3, "too_few_fields", None), (4, "not_utf8", None),
            (5, "malformed_quotes", None), (6, "unknown_category", "c"),
        ]  # fmt: skip
        assert all(("payload" in letter) == keep for letter in letters)
        sink.close()
    assert letters[1]["payload"] == "U0VDUkVUMw=="
    again = DeadLetterFile(tmp_path / "quiet")
    again.write([DeadLetter(9, "missing", "a")])
    again.close()
    again.close()
    assert len((tmp_path / "quiet").read_text().splitlines()) == 6
    assert (tmp_path / "quiet").stat().st_mode & 0o077 == 0
    with pytest.raises(SourceError, match="cannot write"):
        DeadLetterFile(tmp_path / "none" / "f")


def test_dead_letters_are_for_their_owner_also_in_an_older_file(tmp_path):
    older = tmp_path / "older"
    older.touch()
    older.chmod(0o666)
    DeadLetterFile(older).close()
    assert older.stat().st_mode & 0o777 == 0o600
    (tmp_path / "link").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(SourceError, match="symbolic link"):
        DeadLetterFile(tmp_path / "link")
    assert not (tmp_path / "elsewhere").exists()


@pytest.mark.parametrize("kind", FORMATS)
@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.slow
def test_positions_do_not_tell_how_long_records_are(tmp_path, monkeypatch, kind, packed):
    monkeypatch.setattr(recordblocks, "MAX_RECORD_BYTES", 200)
    monkeypatch.setattr(recordblocks, "BLOCK_BYTES", 300)
    seen = []
    for answer in ("no", "yes", '"no\n"', "never" * 20):
        items = rows(20)
        items[7]["extra"] = answer
        data = as_bytes(kind, items)
        source = FORMATS[kind](write(tmp_path / "f", gzip.compress(data) if packed else data), SCHEMA)
        seen.append([source.position])
        while not source.finished:
            source.poll(1, 0.0)
            seen[-1].append(source.position)
    first = 2 if kind == "csv" else 1
    assert [p["row"] for p in seen[0] if p["row"] >= first] == list(range(first, first + 20))
    assert all(positions == seen[0] for positions in seen)


@pytest.mark.parametrize("broken", [1, 2, 3])
def test_an_interruption_while_a_block_is_decoded_loses_no_record(tmp_path, monkeypatch, broken):
    """The first block is decoded by the caller, the others by a second thread while the caller has the one before."""
    path = write(tmp_path / "f", as_bytes("csv", rows(60)))
    expected = outcome(read_all(open_lenient("csv", path)))
    monkeypatch.setattr(recordblocks, "BLOCK_BYTES", 300)
    decode, threads = CSVSource._decode, []

    def interrupted(self, *given):
        threads.append(threading.current_thread())
        if len(threads) == broken:
            raise KeyboardInterrupt
        return decode(self, *given)

    monkeypatch.setattr(CSVSource, "_decode", interrupted)
    source, batches = open_lenient("csv", path), []
    while not source.finished:
        try:
            batches.append(source.poll(7, 0.0))
        except KeyboardInterrupt:
            source.seek(source.position)
    assert outcome(batches) == expected
    assert len(threads) > 3
    assert len(set(threads)) == 2
    source.close()
    for thread in set(threads) - {threading.current_thread()}:
        thread.join(30)
        assert not thread.is_alive()


def test_a_json_position_holds_nothing_of_the_first_record(tmp_path):
    one = JSONLSource(write(tmp_path / "f", as_bytes("jsonl", rows(2, seed=1))), SCHEMA)
    two = JSONLSource(write(tmp_path / "g", as_bytes("jsonl", rows(2, seed=2))), SCHEMA)
    assert one.position == two.position


def test_a_file_without_its_end_is_named_once_after_a_return(tmp_path: Path) -> None:
    paths = [str(tmp_path / name) for name in ("a.csv", "b.csv")]
    for path in paths:
        Path(path).write_text("a,y\n1,1\n2,2\n3,3")
    source = FileList(paths, lambda path: CSVSource(path, Schema({"a": (0, 10)}, "y")))
    start = source.position
    for _ in range(2):  # the second time after a rollback
        source.seek(start)
        while not source.finished:
            source.poll(9, 0.0)
        assert source.unended == paths
    source.close()
