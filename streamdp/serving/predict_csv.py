"""Predictions of a committed model for a CSV stream: each row is copied, and columns are added.

What surrounds the fields may change: empty lines are dropped, lines end in LF, and fields have quotes only if they need
them. Rows are read by the rules of `connectors.csvrows`.
"""

from __future__ import annotations

import csv
from contextlib import closing
from typing import Any, TextIO

import numpy as np
import polars as pl

from connectors.csvrows import CSVRows
from streamdp.errors import SchemaError
from streamdp.serving.snapshots import Model


def predict_csv(model: Model, path: str, out: TextIO, *, delimiter: str = ",", column: str = "prediction") -> int:
    """Write the rows of a CSV file with predictions added; return how many rows have none.

    Parameters
    ----------
    model
        The committed model.
    path
        The file, or `-` for standard input. It needs the declared feature columns only.
    out
        Where the rows are written. Must encode with `surrogateescape`, for rows that are not UTF-8.
    delimiter
        One ASCII character between fields, of the file and of `out`.
    column
        The name of the added column. A classifier adds a column `<column>_<class>` of probabilities for each class.

    A row that is unusable or does not fit the schema gets empty predictions. A row with too few fields is filled up
    with empty ones; a line whose quotes do not match becomes one field; the text of a row over 1 MiB is dropped.

    Raises `SchemaError` for a header that lacks or repeats a declared column or has `column` already, `SourceError`
    if the file cannot be read.
    """
    predictor = _Predictor(model)
    added = [column, *(f"{column}_{label}" for label in predictor.labels)]
    writer = csv.writer(out, delimiter=delimiter, lineterminator="\n")
    bad = 0
    with closing(CSVRows(path, delimiter, predictor.columns)) as rows:
        taken = [name for name in added if name in rows.names]
        if taken:
            raise SchemaError(f"the input has a column {taken[0]!r} already; choose another --column")
        writer.writerow(rows.header + added)
        places = [rows.names.index(name) for name in predictor.columns]
        for chunk in rows:
            predictions = predictor([[row.fields[j] if row.reason is None else None for row in chunk] for j in places])
            for row, values in zip(chunk, predictions, strict=True):
                bad += values is None
                padding = [""] * (len(rows.header) - len(row.fields))  # a short row would shift its empty prediction
                writer.writerow(row.fields + padding + ([""] * len(added) if values is None else values))
            out.flush()
    return bad


class _Predictor:
    """Encode the feature columns and predict; None for a row that the schema cannot encode."""

    def __init__(self, model: Model) -> None:
        declared = model.definition.schema_
        # A schema encodes whole records, so each gets an arbitrary target; predictions do not depend on it.
        self._target = pl.lit("0" if declared.target.classes is None else declared.target.classes[0])
        self._schema = declared.model_copy(update={"subject": None, "budget": None}).build()
        self._scale = declared.target.scale or 1.0
        estimator: Any = model.estimator
        self._estimator = estimator
        self._classes = declared.target.classes
        self.columns = self._schema.feature_columns
        self.labels: list[str] = []
        if self._classes is not None and estimator.probabilistic:
            self.labels = self._classes

    def __call__(self, fields: list[list[str | None]]) -> list[list[str] | None]:
        series = [pl.Series(name, values, dtype=pl.String) for name, values in zip(self.columns, fields, strict=True)]
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
            shares = self._estimator.predict_proba_arrays(X).tolist()
            answers = [a + [f"{p:.6g}" for p in row] for a, row in zip(answers, shares, strict=True)]
        return answers
