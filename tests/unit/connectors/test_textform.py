"""Files as people have them: encodings, leading lines, comments, other marks in numbers, and other packers."""

import gzip
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from connectors.textform import Converter, TextForm
from streamdp.config.file import FileSourceConfig
from streamdp.data.records import Batch
from streamdp.data.schema import Schema
from streamdp.errors import ConfigError

WAGES = np.arange(200) * 1234.5 - 5000
CITIES = ["Köln", "São Paulo"]
SCHEMA = Schema({"wage": (-1e6, 1e6), "city": CITIES}, "late", classes=["no", "yes"])
PLAIN = "wage,city,late\n" + "".join(f"{w},{CITIES[i % 2]},{['no', 'yes'][i % 3 % 2]}\n" for i, w in enumerate(WAGES))


def german(value: float) -> str:
    return f"{value:,.1f}".translate(str.maketrans(",.", ".,"))


GERMAN = "wage;city;late\n" + "".join(
    f"{german(w)};{CITIES[i % 2]};{['no', 'yes'][i % 3 % 2]}\n" for i, w in enumerate(WAGES)
)
MARKS = {"delimiter": ";", "decimal": ",", "thousands": "."}


def read(path: Path, **options: Any) -> Batch:
    source = FileSourceConfig(path=str(path), max_bad_share=None, **options).build(SCHEMA)
    try:
        return source.poll(10_000, 1.0)
    finally:
        source.close()


def save(path: Path, content: str | bytes) -> Path:
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


@pytest.mark.parametrize(
    ("content", "options"),
    [
        (PLAIN.encode("latin-1"), {"encoding": "latin-1"}),
        (PLAIN.encode("utf-16"), {"encoding": "utf-16"}),
        (PLAIN.encode("utf-16-be"), {"encoding": "utf-16-be"}),
        ("\ufeff" + PLAIN, {}),
        ("exported on Monday\nby hand\n" + PLAIN, {"skip_lines": 2}),
        ("\ufeff# by hand\n" + PLAIN.replace("\n0.0,", "\n# half\n0.0,"), {"comment": "#"}),
        (
            "x\n# y\n".encode("utf-16") + PLAIN.encode("utf-16-le"),
            {"encoding": "utf-16", "skip_lines": 1, "comment": "#"},
        ),
        (GERMAN, MARKS),
        (GERMAN.replace(".", ""), {"delimiter": ";", "decimal": ","}),
        (GERMAN.replace(";", '";"').replace("\n", '"\n"')[:-1].join(('"', "")), MARKS),
        (PLAIN.replace("-5000.0", '"-5,000.0"').replace("1172.5", '"1,172.5"'), {"thousands": ","}),
    ],
)
def test_records_are_those_of_the_plain_file(tmp_path: Path, content: Any, options: Any) -> None:
    found, plain = read(save(tmp_path / "a.csv", content), **options), read(save(tmp_path / "b.csv", PLAIN))
    assert not found.dead
    np.testing.assert_allclose(found.X, plain.X)
    np.testing.assert_array_equal(found.y, plain.y)
    np.testing.assert_array_equal(found.positions, plain.positions)


def test_texts_that_are_no_such_numbers_stay_what_they_are(tmp_path: Path) -> None:
    rows = ["1.234,5", "12.34,5", "1,2,3", "NA", "", "1e3", "1,5e3", "+7", ","]
    content = "wage;city;late\n" + "".join(f"{row};Köln;no\n" for row in rows)
    found = read(save(tmp_path / "a.csv", content), **MARKS)
    assert (found.X[:, 0] * 1e6).round(6).tolist() == [1234.5, 1000, 1500, 7]
    assert [(d.position - 2, d.reason) for d in found.dead] == [
        *((i, "not_a_number") for i in (1, 2, 3)),
        (4, "missing"),
        (8, "not_a_number"),
    ]


def test_the_ending_of_a_packed_file_does_not_hide_its_type(tmp_path: Path) -> None:
    assert len(read(save(tmp_path / "a.tsv.gz", gzip.compress(PLAIN.replace(",", "\t").encode())))) == 200


@pytest.mark.parametrize("encoding", ["klingon", "base64", "\0"])
def test_an_encoding_that_is_none_is_refused(encoding: str) -> None:
    with pytest.raises(ConfigError, match="expected a text encoding"):
        TextForm(encoding)


@pytest.mark.parametrize("form", [TextForm(None, 2), TextForm("utf-16", 2), TextForm(None, 2, "#")], ids=str)
def test_lines_are_passed_over_wherever_the_data_are_cut(form: TextForm) -> None:
    """The beginning of the header was lost if the lines before it ended within the first four bytes."""
    data = "\n\nna\u00efve;y\n1;2\n".encode(form.encoding or "utf-8")
    for first in range(len(data) + 1):
        for second in range(first, len(data) + 1):
            converter = Converter(form)
            pieces = [data[:first], data[first:second], data[second:]]
            assert b"".join(map(converter.convert, [*filter(None, pieces), b""])) == "na\u00efve;y\n1;2\n".encode()
