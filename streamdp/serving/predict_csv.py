"""Predictions of a committed model for a CSV stream: each row is copied, and columns are added.

What surrounds the fields may change: empty lines are dropped, lines end in LF, and fields have quotes only if they need
them. Rows are read by the rules of `connectors.csvrows`.
"""

from __future__ import annotations

import csv
from contextlib import closing
from typing import TextIO

import polars as pl

from connectors.csvrows import CSVRows
from streamdp.config.file import FileSourceConfig
from streamdp.errors import SchemaError
from streamdp.serving.predictor import Predictor
from streamdp.serving.snapshots import Model


def predict_csv(
    model: Model,
    path: str,
    out: TextIO,
    *,
    delimiter: str = ",",
    column: str = "prediction",
    written: FileSourceConfig | None = None,
) -> int:
    """Write the rows of a CSV file with predictions added; return how many rows have none.

    The file at `path`, or `-` for standard input, needs the declared feature columns only; `written` has the form of
    its text and its numbers, if that is not the usual one. `out` must encode with
    `surrogateescape`, for rows that are not UTF-8. `delimiter` is one ASCII character between fields, of both. A
    classifier adds to the `column` of predictions a column `<column>_<class>` of probabilities for each class. A row
    that is unusable or does not fit the schema gets empty predictions. A row with too few fields is filled up with
    empty ones; a line whose quotes do not match becomes one field; the text of a row over 1 MiB is dropped. Raises
    `SchemaError` for a header that lacks or repeats a declared column or has `column` already, `SourceError` if the
    file cannot be read, and `NotAvailableError` while nothing is learned.
    """
    form, notation = (None, None) if written is None else (written.form, written.notation)
    predictor = Predictor(model, notation)
    added = [column, *(f"{column}_{label}" for label in predictor.labels)]
    writer = csv.writer(out, delimiter=delimiter, lineterminator="\n")
    bad = 0
    with closing(CSVRows(path, delimiter, predictor.columns, form)) as rows:
        taken = [name for name in added if name in rows.names]
        if taken:
            raise SchemaError(f"the input has a column {taken[0]!r} already; choose another --column")
        writer.writerow(rows.header + added)
        places = [rows.names.index(name) for name in predictor.columns]
        for chunk in rows:
            fields = [[row.fields[j] if row.reason is None else None for row in chunk] for j in places]
            predictions = _texts(predictor, fields)
            for row, values in zip(chunk, predictions, strict=True):
                bad += values is None
                padding = [""] * (len(rows.header) - len(row.fields))  # a short row would shift its empty prediction
                writer.writerow(row.fields + padding + ([""] * len(added) if values is None else values))
            out.flush()
    return bad


def _texts(predictor: Predictor, fields: list[list[str | None]]) -> list[list[str] | None]:
    """The predictions of rows, as texts; None for a row that the schema cannot encode."""
    frame = pl.DataFrame(
        [pl.Series(name, values, dtype=pl.String) for name, values in zip(predictor.columns, fields, strict=True)]
    )
    places, predicted, shares = predictor(frame)
    rows = [[value if isinstance(value, str) else repr(value)] for value in predicted]
    if shares is not None:
        rows = [row + [f"{p:.6g}" for p in of_one] for row, of_one in zip(rows, shares.tolist(), strict=True)]
    out: list[list[str] | None] = [None] * frame.height
    for place, row in zip(places.tolist(), rows, strict=True):
        out[place] = row
    return out
