"""Plain decoded records to arrays, one by one: for few records, for which the set-up of polars takes longer.

A record is plain if each declared column has a value that needs no rule: a finite number, a declared category or class,
a subject that is text, and no budget. `Schema.encode` defines what a record means; for plain records both agree.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from streamdp.data.columns import scale_number
from streamdp.data.declaration import spellings

if TYPE_CHECKING:
    from streamdp.data.schema import Schema

_EXACT = 1 << 53
"""A whole number up to this one is a double without rounding."""


class Encoded(NamedTuple):
    """Plain records as arrays.

    Parameters
    ----------
    X, y, subjects, budgets
        As in `records.Batch`.
    """

    X: np.ndarray
    y: np.ndarray
    subjects: list[Any] | None
    budgets: np.ndarray | None


class PlainRecords:
    """Reads the plain records of a schema.

    Parameters
    ----------
    schema
        The declaration. Its `plain` is True, its columns are no paths, and it declares no time and no whole numbers as
        subjects.
    """

    def __init__(self, schema: Schema) -> None:
        self._schema = schema
        self._numbers: list[tuple[str, int, Any]] = []
        self._categories: list[tuple[str, int, Any]] = []
        j = 0
        for name, declared in schema.declarations.items():
            if declared.is_number:
                self._numbers.append((name, j, declared.values))
                j += 1
            else:
                self._categories.append((name, j - 1, declared.codes))
                j += len(declared.values) - 1
        self._classes = None if schema.classes is None else spellings(schema.classes)

    def encode(self, records: Sequence[dict[str, Any]]) -> Encoded | None:
        """Encode records; None if one of them is not plain.

        Parameters
        ----------
        records
            n decoded JSON objects. No key occurred twice.
        """
        schema, n = self._schema, len(records)
        try:
            X = np.array([self._row(record) for record in records])
            y = np.array([self._target(record[schema.target]) for record in records])
            subjects = None if schema.subject is None else [_subject(record[schema.subject]) for record in records]
        except (LookupError, TypeError, _NotPlainError):
            return None
        if schema.budget is None:
            return Encoded(X, y, subjects, None)
        given = any(record.get(schema.budget) is not None for record in records)
        return None if given else Encoded(X, y, subjects, np.full(n, math.nan))

    def _row(self, record: dict[str, Any]) -> list[float]:
        row = [0.0] * len(self._schema.feature_names)
        for name, j, bounds in self._numbers:
            row[j] = scale_number(_number(record[name]), *bounds)
        for name, j, codes in self._categories:
            if code := codes[record[name]]:
                row[j + code] = 1.0
        return row

    def _target(self, value: Any) -> float:
        if self._classes is not None:
            return float(self._classes[str(value).lower() if type(value) is bool else value])
        number, bounds = _number(value), self._schema.target_bounds
        if bounds is not None:
            number = min(max(number, bounds[0]), bounds[1])
        return number / self._schema.target_scale


class _NotPlainError(Exception):
    """A value needs a rule."""


def _number(value: Any) -> float:
    if type(value) is float and math.isfinite(value):
        return value
    if type(value) is int and -_EXACT <= value <= _EXACT:
        return float(value)
    raise _NotPlainError


def _subject(value: Any) -> str:
    if type(value) is str and value:
        return value
    raise _NotPlainError
