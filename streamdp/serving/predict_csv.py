"""Predictions for a CSV stream by a committed model: its fields come out as they came in, with columns added.

Not so what is around the fields: blank lines go, lines end in LF, and quotes are there where they are needed.
"""

from __future__ import annotations

import csv
from collections.abc import Iterator
from itertools import islice
from typing import Any, TextIO

import numpy as np
import polars as pl

from streamdp.errors import SchemaError, SourceError
from streamdp.estimators.targets import LinearClassifier
from streamdp.serving.holdout import probabilities
from streamdp.serving.publish import Model

CHUNK_ROWS = 8192
_MAX_FIELD = 2**31 - 1  # the most that fits everywhere


def predict_csv(model: Model, rows: TextIO, out: TextIO, *, delimiter: str = ",", column: str = "prediction") -> int:
    """Write the rows with the column `column`, and for a classifier a column `<column>_<class>` of probabilities.

    Needs the declared feature columns only. A row that does not fit the schema gets empty predictions; returns how
    many did not. Raises `SchemaError` for a header that lacks a column or has `column` already, `SourceError` for
    input that is no CSV.
    """
    csv.field_size_limit(_MAX_FIELD)
    reader = csv.reader(rows, delimiter=delimiter)
    writer = csv.writer(out, delimiter=delimiter, lineterminator="\n")
    predictor = _Predictor(model)
    added = [column, *(f"{column}_{label}" for label in predictor.labels)]
    header = next(_lines(reader), None)
    if header is None:
        raise SchemaError("standard input: expected a line of column names, got nothing")
    header[0] = header[0].removeprefix("\ufeff")
    lacks = [name for name in predictor.columns if name.strip() not in map(str.strip, header)]
    if lacks:
        raise SchemaError(f"standard input: the header lacks the declared {', '.join(map(repr, lacks))}")
    taken = [name for name in added if name in header]
    if taken:
        raise SchemaError(f"standard input: has a column {taken[0]!r} already; choose another --column")
    writer.writerow(header + added)
    places = [[name.strip() for name in header].index(name.strip()) for name in predictor.columns]
    bad, lines = 0, _lines(reader)
    while chunk := list(islice(lines, CHUNK_ROWS)):
        whole = [len(row) == len(header) for row in chunk]
        fields = [[row[j] if good else None for row, good in zip(chunk, whole, strict=True)] for j in places]
        predictions = predictor(fields)
        for row, values in zip(chunk, predictions, strict=True):
            bad += values is None
            row += [""] * (len(header) - len(row))  # a short row would shift its empty prediction
            writer.writerow(row + ([""] * len(added) if values is None else values))
        out.flush()
    return bad


def _lines(reader: Any) -> Iterator[list[str]]:
    try:
        yield from (row for row in reader if row)
    except csv.Error:
        raise SourceError(f"standard input, line {reader.line_num}: not CSV") from None


class _Predictor:
    """Encodes the feature columns and predicts; None for a row that the schema cannot encode."""

    def __init__(self, model: Model) -> None:
        declared = model.definition.schema_
        # A schema encodes whole records, so a target is made up; the model's predictions do not depend on it.
        self._target = pl.lit("0" if declared.target.classes is None else declared.target.classes[0])
        self._schema = declared.model_copy(update={"subject": None, "budget": None}).build()
        self._scale = declared.target.scale or 1.0
        self._estimator: Any = model.estimator
        self._classes = declared.target.classes
        self.columns = tuple(declared.features)
        self.labels: list[str] = []
        if isinstance(model.estimator, LinearClassifier) and model.estimator.probabilistic:
            self.labels = list(declared.target.classes or ())

    def __call__(self, fields: list[list[str | None]]) -> list[list[str] | None]:
        series = [
            pl.Series(name, [_readable(value) for value in values], dtype=pl.String)
            for name, values in zip(self.columns, fields, strict=True)
        ]
        frame = pl.DataFrame(series).with_columns(self._target.alias(self._schema.target))
        batch = self._schema.encode(frame, np.arange(frame.height), {})
        out: list[list[str] | None] = [None] * frame.height
        for place, values in zip(batch.positions.tolist(), self._predict(batch.X), strict=True):
            out[place] = values
        return out

    def _predict(self, X: np.ndarray) -> list[list[str]]:
        if not len(X):
            return []
        predicted = self._estimator.predict_arrays(X)
        if self._classes is None:
            return [[repr(value)] for value in (predicted * self._scale).tolist()]
        answers = [[self._classes[int(k)]] for k in predicted.tolist()]
        if self.labels:
            shares = probabilities(self._estimator, X).tolist()
            answers = [a + [f"{p:.6g}" for p in row] for a, row in zip(answers, shares, strict=True)]
        return answers


def _readable(value: str | None) -> str | None:
    """None for text with bytes that were not UTF-8, which were read as lone surrogates."""
    if value is None or value.isascii():
        return value
    return None if any("\ud800" <= c <= "\udfff" for c in value) else value
