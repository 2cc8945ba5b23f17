"""The columns of a data file or a topic as text, for the draft of a job."""

import codecs
import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import closing
from itertools import islice

import polars as pl

from connectors.bytestream import ByteStream
from connectors.csvgrammar import CSVRows
from connectors.textform import TextForm
from streamdp.config.draft import DraftColumn
from streamdp.config.file import FileType
from streamdp.config.kafka import KafkaSourceConfig
from streamdp.errors import SchemaError, SourceError

ROWS, MESSAGES = 100_000, 10_000
"""How many rows, and messages of a topic, are read to find the types of columns."""

_DELIMITERS = ",;\t|"


_LOOKED_AT, _LINES = 1 << 20, 50  # bytes, and lines of them that show where the names of the columns are
_MARKS = {codecs.BOM_UTF16_LE: "utf-16", codecs.BOM_UTF16_BE: "utf-16"}
# Encodings by the letters of their language. charset-normalizer and chardet take German and French tables, which
# are mostly ASCII, for those of Poland, Iceland or Korea (measured on the files of benchmarks/shared/messy.py).
_SCRIPTS = {"cp932": "[ぁ-ヿ]", "euc_jp": "[ぁ-ヿ]", "cp949": "[가-힣]", "cp1251": "[А-яЁё]"}
_IDEOGRAPHS = "[\u3000-\u30ff\u4e00-\u9fff\uff01-\uff60]"
_QUOTED = re.compile(r'(?<![^,;\t|\n])"(?:[^"]|"")+"')
_SEPARATOR = re.compile(r"sep=(.)\r?\n", re.IGNORECASE)


def encoding_of(data: bytes) -> str:
    """The encoding of text that is neither UTF-8 nor UTF-16: Japanese, Korean, Cyrillic, or else cp1252.

    The letters of a word are of one script: in cp1251 the German umlauts would be Cyrillic.
    """
    for encoding, letters in _SCRIPTS.items():
        try:
            text = data[: data.rfind(b"\n") + 1 or None].decode(encoding)
        except UnicodeDecodeError:
            continue
        foreign = len(re.findall(r"[^\x00-\x7f]", text))
        known = len(re.findall(letters if encoding == "cp1251" else f"{letters}|{_IDEOGRAPHS}", text))
        own = len(re.findall(letters + "{2}", text))
        mixed = len(re.findall(r"[A-Za-z][^\x00-\x7f]|[^\x00-\x7f][A-Za-z]", text))
        if known > 0.9 * foreign and own > 0.1 * foreign > mixed:
            return encoding
    return "cp1252"


def form_of(path: str) -> TextForm | None:
    """How the text of a CSV file differs from UTF-8 with a header first, by its first bytes; None if it does not.

    Leading lines with # are taken for comments, a first line such as `sep=;` is Excel's, and leading lines with one
    field at most, where others have several, are titles.
    """
    data = b""
    with closing(ByteStream(path)) as stream:
        while len(data) < _LOOKED_AT and (piece := stream.read(_LOOKED_AT, 0.0)):
            data += piece
    encoding = next((name for mark, name in _MARKS.items() if data.startswith(mark)), None)
    if encoding is None:
        try:
            codecs.getincrementaldecoder("utf-8")().decode(data)
        except UnicodeDecodeError:
            encoding = encoding_of(data)
    text = data.decode(encoding or "utf-8", "replace").lstrip("\ufeff")
    comment = "#" if text.startswith("#") and "\n" in text and not _is_header(text) else None
    skipped = 1 if _SEPARATOR.match(text) else 0 if comment else _titles(text)
    return None if encoding is None and comment is None and not skipped else TextForm(encoding, skipped, comment)


def _titles(text: str) -> int:
    """How many lines are before the names of the columns: those with one field at most, where most have several."""
    lines = _QUOTED.sub("x", text).split("\n")[:_LINES]
    marks = {d: [line.count(d) for line in lines] for d in _DELIMITERS}
    best = max(_DELIMITERS, key=lambda d: max((marks[d].count(n), n) if n else (0, 0) for n in {*marks[d]}))
    filled = [sum(bool(part.strip(' "\r')) for part in line.split(best)) for line in lines]
    return next((k for k, fields in enumerate(filled) if fields > 1), 0)


def _is_header(text: str) -> bool:
    """Whether the first line is cut as the second one is, so that its # may belong to the name of a column."""
    first, second = text.split("\n")[:2]
    return (
        not first.startswith("# ")
        and any(first.count(d) == second.count(d) > 0 for d in _DELIMITERS)
        and not second.startswith("#")
    )


def delimiter_of(path: str, form: TextForm | None) -> str:
    """The character that separates the columns of a CSV file, as its header shows.

    `form` is that of `form_of`. Raises `SourceError` if the file cannot be read, and `SchemaError` if it has no header.
    """
    widths, refused = {}, None
    for delimiter in _DELIMITERS:  # a quote that another one ends does not match
        try:
            rows = CSVRows(path, delimiter, form=form)
        except (SchemaError, SourceError) as error:
            refused = refused or error
            continue
        rows.close()
        widths[delimiter] = len(rows.names)
    if refused is not None and max(widths.values(), default=1) == 1:
        raise refused
    return max(widths, key=lambda delimiter: widths[delimiter])


def names_twice(path: str, delimiter: str, form: TextForm | None) -> list[str]:
    """The names that several columns of a CSV file have, which `peek` leaves out. It raises as `delimiter_of`."""
    with closing(CSVRows(path, delimiter, form=form)) as rows:
        return [name for name, count in Counter(rows.names).items() if name and count > 1]


def peek(
    path: str, source: FileType, delimiter: str, rows: int | None, form: TextForm | None = None
) -> list[DraftColumn]:
    """Read columns as text.

    Columns without a name, or with the name of another one, are left out. `delimiter` separates the fields of a CSV
    file, and `form` is that of its text. None as `rows`: all. Raises `SourceError` if the file cannot be read, is not
    UTF-8 text or has no records that fit its header, and `SchemaError` if it has no header.
    """
    if source in ("parquet", "arrow"):
        from connectors.tables import read_texts

        frame = read_texts(path, source, rows)
    else:
        frame = _objects(_lines(path), rows) if source == "jsonl" else _table(path, delimiter, rows, form)
    if not frame.height:
        raise SourceError(f"{path} has no records: expected at least one, to find the types of the columns")
    return _columns(frame)


def peek_topic(source: KafkaSourceConfig) -> tuple[list[DraftColumn], int]:
    """Read columns of about the latest `MESSAGES` messages, and count those messages that are no JSON objects.

    Raises the errors of `KafkaSourceConfig.latest`, and `SourceError` if no message is a JSON object.
    """
    messages = source.latest(MESSAGES)
    if not messages:
        raise SourceError(
            f"the topic {source.topic!r} has no messages: expected at least one, to find the types of the columns"
        )
    frame = _objects((message.value or b"" for message in messages), None)
    if not frame.height:
        raise SourceError(
            f"the topic {source.topic!r}: none of the latest {len(messages):,} messages is a JSON object; init drafts"
            " no job for Avro or framed JSON: see source.format and source.json_framing"
        )
    return _columns(frame), len(messages) - frame.height


def _columns(frame: pl.DataFrame) -> list[DraftColumn]:
    return [DraftColumn(name, frame.get_column(name)) for name in frame.columns]


def _table(path: str, delimiter: str, rows: int | None, form: TextForm | None) -> pl.DataFrame:
    values: list[list[str]] = []
    flaws: Counter[str] = Counter()
    with closing(CSVRows(path, delimiter, form=form)) as found:
        names = found.names
        chosen = {name: j for j, name in enumerate(names) if name and names.count(name) == 1}
        for chunk in found:
            values += [row.fields for row in chunk if row.reason is None]
            flaws.update(row.reason for row in chunk if row.reason is not None)
            if rows is not None and len(values) >= rows:
                break
    if flaws["not_utf8"]:
        raise SourceError(
            f"{path}: {flaws['not_utf8']:,} of the first {len(values) + flaws.total():,} records are not UTF-8 text: "
            "set source.encoding, or convert the file"
        )
    if flaws and not values:
        raise SourceError(
            f"{path}: no record has the fields of the header, which has {len(names)} columns: expected the names of "
            "all columns in the first line; source.skip_lines and source.comment pass over lines before it"
        )
    return pl.DataFrame(
        {name: [row[j] for row in values[:rows]] for name, j in chosen.items()}, dict.fromkeys(chosen, pl.String)
    )


def _lines(path: str) -> Iterator[bytes]:
    from connectors.files import Lines
    from connectors.recordblocks import RecordBlocks

    with closing(RecordBlocks(path, Lines(), whole=True)) as blocks:
        while (records := blocks.next(0.0)) is not None:
            yield from records.raw(range(len(records.ends)))


def _objects(texts: Iterable[bytes], rows: int | None) -> pl.DataFrame:
    """A row for each JSON object among some texts; at most so many rows."""
    objects = list(islice((item for item in map(_object, texts) if item is not None), rows))
    names = dict.fromkeys(name for item in objects for name in item)
    return pl.DataFrame({name: [item.get(name) for item in objects] for name in names}, dict.fromkeys(names, pl.String))


def _object(text: bytes) -> dict[str, str | None] | None:
    try:
        item = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return dict(_flat(item)) if isinstance(item, dict) else None


def _flat(item: dict[str, object], path: str = "") -> list[tuple[str, str | None]]:
    """The scalars of an object as text, by path; lists are left out."""
    out: list[tuple[str, str | None]] = []
    for name, value in item.items():
        if isinstance(value, dict):
            out += _flat(value, f"{path}{name}.")
        elif not isinstance(value, list):
            out.append((path + name, value if isinstance(value, str | None) else json.dumps(value)))
    return out
