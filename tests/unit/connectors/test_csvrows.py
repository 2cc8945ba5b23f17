"""A job's source, `predict` and `produce` take one CSV file apart in the same way, however odd it is."""

import csv
import gzip
import io
import json
from collections.abc import Iterator
from itertools import islice, takewhile
from pathlib import Path
from typing import Any, cast

import numpy as np
import polars as pl
import pytest

from connectors import CSVSource
from connectors.csvgrammar import CSVRow, CSVRows
from streamdp.cli.kafka_job import _messages
from streamdp.config.file import FileSourceConfig
from streamdp.data.records import Batch
from streamdp.data.schema import Schema
from streamdp.errors import ConfigError, SchemaError, SourceError, StreamDPError
from streamdp.serving import predict_file as predict

SCHEMA = Schema({"a": (0, 10)}, "t", subject="id")
HEADER = b"id,a,t\n"
MIB = 1 << 20

ODD: dict[str, tuple[bytes, list[str], list[tuple[int, str]]]] = {  # a file, ids of good rows, reasons of the others
    "plain": (HEADER + b"s1,1,2\ns2,3,4\n", ["s1", "s2"], []),
    "byte order mark, blanks and quotes in the header": (b'\xef\xbb\xbf id,"a", t\ns1,1,2\n', ["s1"], []),
    "byte order mark before a quote": (b'\xef\xbb\xbf"x\n,",id,a,t\nx,s1,1,2\n', ["s1"], []),
    "any order and more columns": (b"t,more,a,id,\n1,x,2,s1,y\n", ["s1"], []),
    "CRLF": (b"id,a,t\r\ns1,1,2\r\ns2,1,2\r\n", ["s1", "s2"], []),
    "no last line end": (HEADER + b"s1,1,2\ns2,1,2", ["s1", "s2"], []),
    "only a header": (HEADER.strip(), [], []),
    "empty lines": (HEADER + b"\ns1,1,2\n\r\n\ns2,1,2\n\n", ["s1", "s2"], []),
    "a blank is no empty line": (HEADER + b" \ns1,1,2\n", ["s1"], [(2, "too_few_fields")]),
    "quoted delimiters, quotes and line ends": (HEADER + b'"s,""1""\r\n\n",1,2\n"s2","1","2"\n', ['s,"1"\r\n\n', "s2"],
        []),
    "an empty quoted field": (HEADER + b'"",1,2\n', [], [(2, "missing")]),
    "quotes within a field": (HEADER + b's"1",1,2\n "s2",1,2\n', ['s"1"', ' "s2"'], []),
    "bytes behind a quote": (HEADER + b'"s"1,1,2\ns2,1,2\n', ["s2"], [(2, "malformed_quotes")]),
    "a quote without an end": (HEADER + b's1,1,2\n"s2,1,2\ns3,1,2\n', ["s1", "s3"], [(3, "malformed_quotes")]),
    "a quote without an end at the end": (HEADER + b's1,1,2\ns2,1,"2', ["s1"], [(3, "malformed_quotes")]),
    "too few and too many": (HEADER + b"s1,1\ns2,1,2,\ns3,1,2\n", ["s3"],
        [(2, "too_few_fields"), (3, "too_many_fields")]),
    "not UTF-8": (HEADER + b"s\xff,1,2\nr\xc3\xa9,1,2\n", ["ré"], [(2, "not_utf8")]),
    "not UTF-8 in a column that is not declared": (b"id,a,t,x\ns1,1,2,\xff\n", [], [(2, "not_utf8")]),
    "CR within lines": (HEADER + b"s\r1,1,2\ns2,1,2 \r\n", ["s\r1", "s2"], []),
    "NUL, comment and other line ends": (HEADER + b"\0,1,2\n#s2,1,2\n" + "s\u2028\x85\x0b\x0c\x1c3,1,2\n".encode(),
        ["\0", "#s2", "s\u2028\x85\x0b\x0c\x1c3"], []),
    "long": (HEADER + b"s" * (MIB - 5) + b",1,2\ns2,1,2\n", ["s" * (MIB - 5), "s2"], []),
    "too long": (HEADER + b"s" * MIB + b",1,2\ns2,1,2\n", ["s2"], [(2, "too_long")]),
    "longer than a block": (HEADER + b"s" * 9 * MIB + b",1,2\ns2,1,2\n", ["s2"], [(2, "too_long")]),
    "gzip": (gzip.compress(HEADER + b"s1,1,2\n"), ["s1"], []),
}  # fmt: skip

NO_HEADER: dict[str, bytes] = {
    "not UTF-8": b"id,a,\xff,t\ns,1,2,3\n",
    "quotes": b'id,"a,t\ns,1,2\n',
    "too long": b"id,a,t," + b"x" * MIB + b"\n",
}


def write(folder: Path, data: bytes) -> str:
    (folder / "f").write_bytes(data)
    return str(folder / "f")


def sent_of(path: str, key: str | None, delimiter: str = ",") -> Iterator[tuple[bytes | None, bytes]]:
    return _messages(FileSourceConfig(path=path, delimiter=delimiter), key)


def rows(path: str, delimiter: str = ",") -> list[CSVRow]:
    return [row for chunk in CSVRows(path, delimiter) for row in chunk]


def source(path: str, delimiter: str = ",") -> tuple[list[Any], list[tuple[int, str]]]:
    """Subjects of the good records, positions and reasons of the others but for empty lines."""
    read = CSVSource(path, SCHEMA, delimiter=delimiter, max_bad_share=None)
    good, dead = [], []
    while not read.finished:
        batch = read.poll(10**6, 0.0)
        good += batch.subjects or []
        dead += [(letter.position, letter.reason) for letter in batch.dead if letter.reason != "empty_line"]
    return good, dead


class Stub:
    """Predicts the id of a row."""

    def __init__(self, _model: Any, _notation: Any) -> None:
        self.columns, self.numeric_columns, self.encoder = ("id", "a", "t"), (), self
        self.labels, self.classes = [], ("any",)

    def encode(self, frame: pl.DataFrame, rows: np.ndarray, _: object) -> Batch:
        assert frame.columns == list(self.columns)
        zeros = np.zeros((frame.height, 1))
        ids = frame["id"].fill_null("").to_list()
        return Batch(("id",), zeros, zeros[:, 0], rows, {}, subjects=ids)

    def of(self, batch: Batch) -> tuple[np.ndarray, list[Any], None]:
        return batch.positions, batch.subjects or [], None


def predicted(path: str, monkeypatch: pytest.MonkeyPatch) -> tuple[int, list[str], str]:
    """How many rows have no prediction, the predictions, and the output."""
    monkeypatch.setattr(predict, "Predicting", Stub)
    out = io.BytesIO()
    found = predict.predict_file(cast(Any, None), FileSourceConfig(path=path), out)
    csv.field_size_limit(2**31 - 1)
    text = out.getvalue().decode("utf-8", "surrogateescape")
    table = list(csv.reader(io.StringIO(text.replace("\r", "<CR>"), newline="")))
    assert {len(row) for row in table} <= {len(table[0]), len(table[0]) + 1}, "one more if a row has one more"
    return found.unfit.total(), [row[-1].replace("<CR>", "\r") for row in table[1:]], text


@pytest.mark.parametrize("case", ODD)
def test_three_readers_agree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, case: str) -> None:
    data, good, dead = ODD[case]
    left, unended = "at the end" in case, case in ("no last line end", "only a header")
    assert source(write(tmp_path, data + b"\n" if unended else data)) == (good, [] if left else dead)
    path = write(tmp_path, data)
    flawed = [(number, reason) for number, reason in dead if reason != "missing"]
    read = rows(path)
    assert [(row.number, row.reason) for row in read if row.reason is not None] == flawed
    place = CSVRows(path).names.index("id")
    ids = [row.fields[place] for row in read if row.reason is None]
    assert [text for text in ids if text] == good
    bad, answers, _ = predicted(path, monkeypatch)
    assert bad == len(flawed)
    assert [answer for answer in answers if answer] == good
    assert len(answers) == len(read)

    messages = sent_of(path, "id")
    sent = list(islice(messages, len(list(takewhile(lambda row: row.reason is None, read)))))
    assert [json.loads(value)["id"] for _, value in sent] == ids[: len(sent)]
    assert [key for key, _ in sent] == [text.encode() for text in ids[: len(sent)]]
    if flawed:
        message = f"row {flawed[0][0]}: .*; the {len(sent)} records before it were sent"
        with pytest.raises(SchemaError, match=message):
            next(messages)
    else:
        assert len(sent) == len(ids)
        assert list(messages) == []


@pytest.mark.parametrize("case", NO_HEADER)
def test_three_readers_refuse_the_same_headers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, case: str) -> None:
    path = write(tmp_path, NO_HEADER[case])
    said = set()
    for read in (
        lambda: source(path),
        lambda: rows(path),
        lambda: predicted(path, monkeypatch),
        lambda: list(sent_of(path, None)),
    ):
        with pytest.raises(SourceError, match="expected a line of column names") as caught:
            read()
        said.add(str(caught.value))
    assert len(said) == 1


def test_headers_that_lack_or_repeat_columns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for data, match in ((b"id,a\n", r"lacks the declared 't'"), (b"id,a,t,a\n", r"repeats the declared 'a'")):
        path = write(tmp_path, data)
        with pytest.raises(SchemaError, match=match):
            source(path)
        with pytest.raises(SchemaError, match=match):
            predicted(path, monkeypatch)
    path = write(tmp_path, b"id,more,a,t,more\ns1,x,1,2,y\n")  # only `produce` cannot name both
    assert source(path) == (["s1"], [])
    assert predicted(path, monkeypatch)[:2] == (0, ["s1"])
    with pytest.raises(SchemaError, match="column twice"):
        list(sent_of(path, "id"))
    with pytest.raises(SchemaError, match="column twice"):
        list(sent_of(write(tmp_path, b"x, x\n1,2\n"), None))
    with pytest.raises(SchemaError, match="lacks the column 'y'"):
        list(sent_of(write(tmp_path, b"x\n1\n"), "y"))
    with pytest.raises(SchemaError, match="has a column 'prediction' already"):
        predicted(write(tmp_path, b"id,a,t,prediction\n"), monkeypatch)
    for data in (b"", b"\n", b"\xef\xbb\xbf\n"):
        with pytest.raises(SchemaError, match="expected a header line"):
            rows(write(tmp_path, data))
    with pytest.raises(SourceError, match=r"cannot open .*: no such file"):
        rows(str(tmp_path / "none"))
    with pytest.raises(ConfigError, match="delimiter"):
        rows(write(tmp_path, HEADER), '"')


def test_produce_sends_numbers_as_they_are_usually_written(tmp_path: Path) -> None:
    path = write(tmp_path, "# é\nid;a;t\n1,5;1.234,5;1,5 %\n".encode("latin-1"))
    written = FileSourceConfig(path=path, encoding="latin-1", comment="#", decimal=",", thousands=".", delimiter=";")
    sent = [(key, json.loads(value)) for key, value in _messages(written, "id")]
    assert sent == [(b"1,5", {"id": "1,5", "a": "1234.5", "t": "1,5 %"})]


@pytest.mark.parametrize("delimiter", [";", "\t", "|", "."])
def test_other_delimiters(tmp_path: Path, delimiter: str) -> None:
    d = delimiter.encode()
    path = write(tmp_path, d.join([b"id", b"a", b"t"]) + b"\n" + d.join([b's,"1', b"1", b"2\n"]))
    assert rows(path, delimiter) == [CSVRow(2, ['s,"1', "1", "2"], None)]
    assert source(path, delimiter) == (['s,"1'], [])
    assert [json.loads(value) for _, value in sent_of(path, None, delimiter)] == [{"id": 's,"1', "a": "1", "t": "2"}]


def test_what_predict_writes_of_rows_that_are_unusable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data = HEADER + b's1,1\n"s"2,1,2\ns\xff3,1,2\ns4,1,2,3\n' + b"s" * MIB + b'\n"s,6",1,2\n'
    bad, _, out = predicted(write(tmp_path, data), monkeypatch)
    assert bad == 5
    assert out.encode("utf-8", "surrogateescape").split(b"\n") == [
        b"id,a,t,prediction",
        b"s1,1,,",
        b'"""s""2,1,2",,,',
        b"s\xff3,1,2,",
        b"s4,1,2,",
        b",,,",
        b'"s,6",1,2,"s,6"',
        b"",
    ]


def test_no_error_shows_a_value(tmp_path: Path) -> None:
    for row in (b"SECRET,1\n", b"SECRET,\xff,1\n", b'"SECRET"1,1,2\n', b"SECRET" * MIB + b"\n"):
        with pytest.raises(StreamDPError) as caught:
            list(sent_of(write(tmp_path, HEADER + row), None))
        assert "SECRET" not in str(caught.value)
