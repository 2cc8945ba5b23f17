"""Predictions of a committed model for a file: each record is copied, and the prediction is added.

In CSV, a record is copied as it is, empty lines are dropped, and lines end in LF. Rows are read by the rules of
`connectors.csvgrammar`. Predictions have the decimal mark of the file, and as many digits as tell them apart.
"""

import csv
import io
from collections import Counter
from contextlib import closing
from dataclasses import dataclass, field
from itertools import chain
from typing import IO

import numpy as np
import orjson
import polars as pl

from connectors.csvgrammar import CSVRows, usual_delimiter
from connectors.files import CSVDecoder
from streamdp.config.file import FileSourceConfig
from streamdp.data.records import Batch
from streamdp.errors import ConfigError, SchemaError
from streamdp.serving.predictor import Predicting
from streamdp.serving.snapshots import Model


@dataclass
class Predicted:
    """How many rows there were, and why some have no prediction."""

    rows: int = 0
    unfit: Counter[tuple[str, str | None]] = field(default_factory=Counter)


def predict_file(model: Model, source: FileSourceConfig, out: IO[bytes], column: str = "prediction") -> Predicted:
    """Write the records of a file with predictions added, in the format of the file, which `source` describes.

    The file, or standard input, needs the declared feature columns only. A classifier adds to the `column` of
    predictions a column `<column>_<class>` of probabilities for each class. A record that is unusable or does not fit
    the schema gets empty predictions. In CSV, a row with too few fields is filled up with empty ones, and what a row
    has beyond its header is left out; a line whose quotes do not match becomes one field; the text of a row over 1 MiB
    is dropped. `out` may be a pipe.

    Raises `SchemaError` for a file that lacks or repeats a declared column or has `column` already, `SourceError` if it
    cannot be read, and `NotAvailableError` while nothing is learned.
    """
    predictor = Predicting(model, source.notation)
    added = [column, *(f"{column}_{label}" for label in predictor.labels)]
    if len(files := source.files()) != 1:
        raise ConfigError("predict: expected one file, and no folder")
    return _WRITERS[source.type](predictor, source, files[0], out, added)


def _csv(predictor: Predicting, source: FileSourceConfig, path: str, out: IO[bytes], added: list[str]) -> Predicted:
    found, delimiter = Predicted(), source.delimiter or usual_delimiter(path)
    without = delimiter.encode() * len(added) + b"\n"
    with closing(CSVRows(path, delimiter, predictor.columns, source.form)) as rows:
        _check_names(added, rows.names)
        out.write(_line(rows.grammar.header + added, delimiter) + b"\n")
        decoder = CSVDecoder(rows.grammar, predictor.encoder)
        for records in rows.blocks():
            lines, count = records.lines(), len(records.ends)
            batch = decoder.decode(records, np.arange(count))
            ends = _ends(predictor, batch, delimiter, source.decimal)
            found.rows += count
            if len(ends) < count:
                every = [without] * count
                for place, end in zip(batch.positions.tolist(), ends, strict=True):
                    every[place] = end
                ends = every
            for letter in batch.dead:
                i = letter.position
                if letter.reason == "empty_line":
                    found.rows, ends[i] = found.rows - 1, b""
                    continue
                found.unfit[letter.reason, letter.column] += 1
                fields, unusable = rows.grammar.read(lines[i], records.flaws.get(i))
                if unusable:  # another number of fields would shift its empty prediction
                    lines[i] = _line((fields + [""] * rows.grammar.width)[: rows.grammar.width], delimiter)
            out.write(b"".join(chain.from_iterable(zip(lines, ends, strict=True))))
            out.flush()
    return found


def _ends(predictor: Predicting, batch: Batch, delimiter: str, decimal: str) -> list[bytes]:
    """What follows each record of a batch: its prediction and probabilities, with the end of the line."""
    _, predicted, shares = predictor.of(batch)
    if predictor.classes is None:
        columns = [orjson.dumps(predicted)[1:-1].split(b",") if predicted else []]
    else:
        texts = {
            label: _line(["", label if isinstance(label, str) else repr(label)], delimiter) for label in {*predicted}
        }
        columns = [[texts[label][1:] for label in predicted]]
    for share in () if shares is None else shares.T.tolist():
        columns.append([b"%.6g" % value for value in share])
    if decimal != ".":
        columns = [[text.replace(b".", decimal.encode()) for text in column] for column in columns]
    mark = delimiter.encode()
    return [mark + mark.join(texts) + b"\n" for texts in zip(*columns, strict=True)]


def _line(fields: list[str], delimiter: str) -> bytes:
    """A record without its end. Bytes that are not UTF-8 are copied unchanged."""
    text = io.StringIO()
    csv.writer(text, delimiter=delimiter, lineterminator="").writerow(fields)
    return text.getvalue().encode("utf-8", "surrogateescape")


def _json_lines(
    predictor: Predicting, source: FileSourceConfig, path: str, out: IO[bytes], added: list[str]
) -> Predicted:
    from connectors.files import Lines
    from connectors.jsonrows import encode_json_lines
    from connectors.recordblocks import RecordBlocks

    found = Predicted()
    with closing(RecordBlocks(path, Lines(), whole=True, form=source.form)) as blocks:
        while (records := blocks.next(0.0)) is not None:
            count = len(records.ends)
            batch = encode_json_lines(records, np.arange(count), predictor.encoder)
            columns = _columns(predictor, batch, count, found)
            for line, *predicted in zip(records.raw(range(count)), *columns, strict=True):
                out.write(_with(line, dict(zip(added, predicted, strict=True))))
            out.flush()
    return found


def _with(line: bytes, added: dict[str, object]) -> bytes:
    """The object of a line with what is added; a line that is no object is copied."""
    bare = line.strip()
    try:
        if not isinstance(given := orjson.loads(bare), dict):
            return bare + b"\n"
    except orjson.JSONDecodeError:
        return bare + b"\n"
    _check_names([*added], [*given])
    more = orjson.dumps(added)[1:]
    return bare[:-1].rstrip() + (b"," if given else b"") + more + b"\n"


def _table(predictor: Predicting, source: FileSourceConfig, path: str, out: IO[bytes], added: list[str]) -> Predicted:
    from connectors.tables import frame_of

    found = Predicted()
    table, read = frame_of(path, source.type, predictor.encoder)
    _check_names(added, table.columns)
    columns = _columns(predictor, predictor.encode(read), read.height, found)
    table = table.with_columns(pl.Series(name, column) for name, column in zip(added, columns, strict=True))
    (table.write_parquet if source.type == "parquet" else table.write_ipc)(out)
    return found


_WRITERS = {"csv": _csv, "jsonl": _json_lines, "parquet": _table, "arrow": _table}


def _check_names(added: list[str], names: list[str]) -> None:
    if taken := [name for name in added if name in names]:
        raise SchemaError(f"the input has a column {taken[0]!r} already; choose another --column")


def _columns(predictor: Predicting, batch: Batch, count: int, found: Predicted) -> list[list[object]]:
    """What `Predicting.every` returns; the records are counted."""
    found.rows += count
    found.unfit.update((letter.reason, letter.column) for letter in batch.dead)
    return predictor.every(batch, count)
