"""Plain decoded records to arrays, one by one: for few records, for which the set-up of polars takes longer.

A record is plain if each declared column has a value that needs no rule: a finite number, a declared category or class,
a subject that is text, and no budget. `Schema.encode` defines what a record means; for plain records both agree.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np

from streamdp.data.columns import scale_number
from streamdp.data.declaration import Bounds, Declaration, spellings

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
    """Reads the plain records of a schema whose `plain` is True.

    Parameters
    ----------
    declarations
        Of the features. Their columns are no paths.
    target, classes, bounds, scale
        The column of the target; its classes, or None for a number, which is clipped to `bounds` and divided by
        `scale`.
    subject, budget
        Their columns, or None. Subjects are text.
    """

    def __init__(
        self,
        declarations: Iterable[Declaration],
        target: str,
        classes: tuple[str, ...] | None,
        bounds: Bounds | None,
        scale: float,
        subject: str | None,
        budget: str | None,
    ) -> None:
        self._numbers: list[tuple[str, int, Any]] = []
        self._categories: list[tuple[str, int, Any]] = []
        j = 0
        for declared in declarations:
            if declared.is_number:
                self._numbers.append((declared.name, j, declared.values))
                j += 1
            else:
                self._categories.append((declared.name, j - 1, declared.codes))
                j += len(declared.values) - 1
        self._blank = [0.0] * j
        self._target_column, self._bounds, self._scale = target, bounds, scale
        self._classes = None if classes is None else spellings(classes)
        self._subject, self._budget = subject, budget

    def encode(self, records: Sequence[dict[str, Any]]) -> Encoded | None:
        """Encode records; None if one of them is not plain.

        Parameters
        ----------
        records
            n decoded JSON objects. No key occurred twice.
        """
        try:
            X = np.array([self._row(record) for record in records])
            y = np.array([self._target(record[self._target_column]) for record in records])
            subjects = None if self._subject is None else [_subject(record[self._subject]) for record in records]
        except (LookupError, TypeError, _NotPlainError):
            return None
        if self._budget is None:
            return Encoded(X, y, subjects, None)
        given = any(record.get(self._budget) is not None for record in records)
        return None if given else Encoded(X, y, subjects, np.full(len(records), math.nan))

    def _row(self, record: dict[str, Any]) -> list[float]:
        row = self._blank.copy()
        for name, j, bounds in self._numbers:
            row[j] = scale_number(_number(record[name]), *bounds)
        for name, j, codes in self._categories:
            if code := codes[record[name]]:
                row[j + code] = 1.0
        return row

    def _target(self, value: Any) -> float:
        if self._classes is not None:
            return float(self._classes[str(value).lower() if type(value) is bool else value])
        number = _number(value)
        if self._bounds is not None:
            number = min(max(number, self._bounds[0]), self._bounds[1])
        return number / self._scale


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
