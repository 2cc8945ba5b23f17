"""Predictions of a committed model for a file: each record is copied, and the prediction is added.

In CSV, what surrounds the fields may change: empty lines are dropped, lines end in LF, and fields have quotes only if
they need them. Rows are read by the rules of `connectors.csvrows`. Predictions have the decimal mark of the file.
"""

from __future__ import annotations

import codecs
import csv
from collections import Counter
from contextlib import closing
from dataclasses import dataclass, field, replace
from typing import IO, Any

import numpy as np
import orjson
import polars as pl

from connectors.csvgrammar import usual_delimiter
from connectors.csvrows import CSVRows
from streamdp.config.file import FileSourceConfig
from streamdp.data.records import Batch
from streamdp.errors import ConfigError, SchemaError
from streamdp.serving.predictor import Predictor
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
    the schema gets empty predictions. In CSV, a row with too few fields is filled up with empty ones; a line whose
    quotes do not match becomes one field; the text of a row over 1 MiB is dropped. `out` may be a pipe.

    Raises `SchemaError` for a file that lacks or repeats a declared column or has `column` already, `SourceError` if it
    cannot be read, and `NotAvailableError` while nothing is learned.
    """
    predictor = Predictor(model, source.notation)
    added = [column, *(f"{column}_{label}" for label in predictor.labels)]
    if len(files := source.files()) != 1:
        raise ConfigError("predict: expected one file, and no folder")
    return _WRITERS[source.type](predictor, source, files[0], out, added)


def _csv(predictor: Predictor, source: FileSourceConfig, path: str, out: IO[bytes], added: list[str]) -> Predicted:
    found, delimiter = Predicted(), source.delimiter or usual_delimiter(path)
    # Bytes that are not UTF-8 are copied unchanged.
    writer = csv.writer(codecs.getwriter("utf-8")(out, "surrogateescape"), delimiter=delimiter, lineterminator="\n")
    with closing(CSVRows(path, delimiter, predictor.columns, source.form)) as rows:
        _check_names(added, rows.names)
        writer.writerow(rows.header + added)
        places = [rows.names.index(name) for name in predictor.columns]
        for chunk in rows:
            fields = {
                name: [row.fields[j] if row.reason is None else None for row in chunk]
                for name, j in zip(predictor.columns, places, strict=True)
            }
            frame = pl.DataFrame(fields, schema=dict.fromkeys(predictor.columns, pl.String))
            batch = predictor.encode(frame)
            unread = [
                replace(letter, reason=reason, column=None) if (reason := chunk[letter.position].reason) else letter
                for letter in batch.dead
            ]
            values = _values(predictor, replace(batch, dead=unread), len(chunk), found)
            for row, predicted in zip(chunk, values, strict=True):
                padding = [""] * (len(rows.header) - len(row.fields))  # a short row would shift its empty prediction
                writer.writerow(row.fields + padding + [_text(value, source.decimal) for value in predicted])
            out.flush()
    return found


def _text(value: Any, decimal: str) -> str:
    if value is None or isinstance(value, str):
        return value or ""
    return (f"{value:.6g}" if isinstance(value, np.floating) else repr(value)).replace(".", decimal)


def _json_lines(
    predictor: Predictor, source: FileSourceConfig, path: str, out: IO[bytes], added: list[str]
) -> Predicted:
    from connectors.files import Lines
    from connectors.jsonrows import encode_json_lines
    from connectors.recordblocks import RecordBlocks

    found = Predicted()
    with closing(RecordBlocks(path, Lines(), whole=True, form=source.form)) as blocks:
        while (records := blocks.next(0.0)) is not None:
            count = len(records.ends)
            batch = encode_json_lines(records, np.arange(count), predictor.encoder)
            values = _values(predictor, batch, count, found)
            for line, predicted in zip(records.raw(range(count)), values, strict=True):
                out.write(_with(line, dict(zip(added, predicted, strict=True))))
            out.flush()
    return found


def _with(line: bytes, added: dict[str, Any]) -> bytes:
    """The object of a line with what is added; a line that is no object is copied."""
    bare = line.strip()
    try:
        if not isinstance(given := orjson.loads(bare), dict):
            return bare + b"\n"
    except orjson.JSONDecodeError:
        return bare + b"\n"
    _check_names([*added], [*given])
    more = orjson.dumps(added, option=orjson.OPT_SERIALIZE_NUMPY)[1:]
    return bare[:-1].rstrip() + (b"," if given else b"") + more + b"\n"


def _table(predictor: Predictor, source: FileSourceConfig, path: str, out: IO[bytes], added: list[str]) -> Predicted:
    from connectors.tables import frame_of

    found = Predicted()
    table, read = frame_of(path, source.type, predictor.encoder)
    _check_names(added, table.columns)
    values = _values(predictor, predictor.encode(read), read.height, found)
    columns = [pl.Series(name, column) for name, column in zip(added, zip(*values, strict=True), strict=True)]
    table = table.with_columns(columns)
    (table.write_parquet if source.type == "parquet" else table.write_ipc)(out)
    return found


_WRITERS = {"csv": _csv, "jsonl": _json_lines, "parquet": _table, "arrow": _table}


def _check_names(added: list[str], names: list[str]) -> None:
    if taken := [name for name in added if name in names]:
        raise SchemaError(f"the input has a column {taken[0]!r} already; choose another --column")


def _values(predictor: Predictor, batch: Batch, count: int, found: Predicted) -> list[list[Any]]:
    """The prediction and the probabilities of each of the records; None for those that the schema cannot encode."""
    found.rows += count
    found.unfit.update((letter.reason, letter.column) for letter in batch.dead)
    places, predicted, shares = predictor.of(batch)
    out: list[list[Any]] = [[None] * (1 + len(predictor.labels)) for _ in range(count)]
    for k, place in enumerate(places.tolist()):
        out[place] = [predicted[k], *([] if shares is None else shares[k])]
    return out
