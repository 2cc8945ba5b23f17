"""From raw columns to bounded features, by what is public only: declared bounds and declared categories.

Scaling by statistics of the stream (a running mean, a running maximum) would release them without noise. Here every
constant comes from the declaration, so encoding one record depends on no other record.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import polars as pl

from streamdp.data.records import Batch, DeadLetter, Position, Subject
from streamdp.errors import SchemaError
from streamdp.privacy.guarantees import SERVICEABLE

Bounds = tuple[float, float]

_FALSE, _TRUE = ("false", "False", "FALSE", "0"), ("true", "True", "TRUE", "1")


def declared_bounds(name: str, bounds: Iterable[float]) -> Bounds:
    """Two finite numbers, the lower first; `SchemaError` otherwise."""
    try:
        low, high = (float(b) for b in bounds)
    except (TypeError, ValueError):
        raise SchemaError(f"{name!r}: expected public bounds (low, high)") from None
    if not (low < high and math.isfinite(high - low)):
        raise SchemaError(f"{name!r}: expected finite public bounds with low < high, got ({low:g}, {high:g})")
    return low, high


def declared_categories(name: str, categories: Iterable[str]) -> tuple[str, ...]:
    """Two or more distinct texts; `SchemaError` otherwise."""
    listed = tuple(categories)
    if not all(isinstance(c, str) and c for c in listed):
        raise SchemaError(f"{name!r}: expected non-empty strings as public categories")
    if len(listed) < 2 or len(set(listed)) < len(listed):
        got = f"{len(listed)}, {len(set(listed))} distinct"
        raise SchemaError(f"{name!r}: expected two or more distinct public categories, got {got}")
    return listed


def _declared(name: str, declaration: Sequence[Any]) -> Bounds | tuple[str, ...]:
    """What a feature was declared as: bounds, where both entries are numbers, or else categories."""
    if isinstance(declaration, str) or not isinstance(declaration, Iterable):
        raise SchemaError(f"{name!r}: expected bounds (low, high) or a list of categories")
    values = list(declaration)
    if any(isinstance(v, str) for v in values):
        return declared_categories(name, values)
    return declared_bounds(name, values)


class Schema:
    """The declared public schema of a stream: which columns there are and what their values may be.

    * A numeric feature with bounds (low, high) is clipped to them and scaled to [-1, 1]; it keeps its name.
    * A categorical feature with the list (a, b, c) becomes the 0/1 columns `name=b` and `name=c`. The first category
      is the base level and has no column: with all three, the columns would add up to the intercept, and no stream
      could tell the weights apart.
    * `target` is a number, clipped to `target_bounds` where given, then divided by the public constant
      `target_scale`; or, with `classes`, the index of its label in `classes`. Labels are compared as text. Where the
      two classes are some spelling of false and true (or 0 and 1), every spelling of false, true, 0 and 1 matches.
    * `subject` names the column with the person's identifier, `budget` the column with what the record allows (an
      epsilon or mu within `guarantees.SERVICEABLE`; blank means the job's default).

    Text is compared exactly, blanks included; numbers may have blanks around them. Raises `SchemaError` for a
    declaration that contradicts itself.

    >>> schema = Schema({"age": (18, 90), "sex": ["f", "m"]}, target="wage", target_bounds=(0, 100), target_scale=100)
    >>> schema.feature_names
    ('age', 'sex=m')
    >>> schema.encode_one({"age": 54, "sex": "m", "wage": "25"})
    ({'age': 0.0, 'sex=m': 1.0}, 0.25)
    """

    def __init__(
        self,
        features: Mapping[str, Sequence[Any]],
        target: str,
        *,
        target_bounds: Bounds | None = None,
        target_scale: float = 1.0,
        classes: Sequence[str] | None = None,
        subject: str | None = None,
        budget: str | None = None,
    ) -> None:
        self.features = {name: _declared(name, declaration) for name, declaration in features.items()}
        self.target = target
        self.target_bounds = None if target_bounds is None else declared_bounds(target, target_bounds)
        self.target_scale = float(target_scale)
        self.classes = None if classes is None else declared_categories(target, classes)
        self.subject = subject
        self.budget = budget
        if not self.features:
            raise SchemaError("expected at least one feature")
        if not (math.isfinite(self.target_scale) and self.target_scale > 0):
            raise SchemaError(f"expected a positive, finite target_scale, got {self.target_scale:g}")
        if self.classes is not None and (target_bounds is not None or target_scale != 1.0):
            raise SchemaError("a target with classes has neither target_bounds nor target_scale")
        others = [c for c in (target, subject, budget) if c is not None]
        self._columns = (*self.features, *others)
        if len(set(self._columns)) < len(self._columns):
            raise SchemaError("expected distinct columns for features, target, subject and budget")
        self._feature_names = tuple(n for c, d in self.features.items() for n in _encoded_names(c, d))
        if len(set(self._feature_names)) < len(self._feature_names):
            raise SchemaError("two features would get the same encoded name; rename a column or a category")

    @property
    def feature_names(self) -> tuple[str, ...]:
        """The names of the p encoded features, in the order of the columns of `Batch.X`."""
        return self._feature_names

    @property
    def columns(self) -> tuple[str, ...]:
        """The raw columns that must be there: features, target, subject, budget."""
        return self._columns

    @property
    def numeric_columns(self) -> tuple[str, ...]:
        """The raw columns that are numbers in every good record. A budget may be blank, so it is not among them."""
        names = [c for c, d in self.features.items() if not isinstance(d[0], str)]
        return tuple(names if self.classes is not None else [*names, self.target])

    def encode(self, frame: pl.DataFrame, positions: np.ndarray, position: Position) -> Batch:
        """Encode n raw records; see `records.Encoder`. What cannot be encoded becomes a dead letter.

        Reasons: `missing`, `not_a_number`, `not_finite`, `unknown_category`, `unknown_class`, `bad_budget`; the
        column is the first bad one in the order of `columns`.
        """
        faults = _Faults(frame.height)
        X = self._features(frame, faults)
        y = self._target(frame.get_column(self.target), faults)
        subjects: list[Subject | None] | None = None
        budgets = None
        if self.subject is not None:
            subjects = frame.get_column(self.subject).to_list()
            faults.add(_blank(frame.get_column(self.subject)), "missing", self.subject)
        if self.budget is not None:
            budgets = self._budgets(frame.get_column(self.budget), faults)
        if not faults.found:
            return Batch(self.feature_names, X, y, positions, position, subjects, budgets)
        good = np.flatnonzero(faults.good)
        return Batch(
            features=self.feature_names,
            X=X[good],
            y=y[good],
            positions=positions[good],
            position=position,
            subjects=None if subjects is None else [subjects[i] for i in good.tolist()],
            budgets=None if budgets is None else budgets[good],
            dead=[DeadLetter(int(positions[i]), reason, column) for i, reason, column in faults.found_by_row()],
        )

    def encode_features(self, frame: pl.DataFrame) -> np.ndarray:
        """Encode the features only, for predictions: (n, p) float64.

        Raises `SchemaError` that names the column, if a column is missing or any value does not fit.
        """
        absent = [c for c in self.features if c not in frame.columns]
        if absent:
            raise SchemaError(f"missing columns: {', '.join(map(repr, absent))}")
        faults = _Faults(frame.height)
        X = self._features(frame, faults)
        faults.refuse()
        return X

    def encode_one(self, raw: Mapping[str, Any]) -> tuple[dict[str, float], float | None]:
        """Encode one record, of text or JSON values: encoded features by name, and y or None where no target came.

        Raises `SchemaError` that names the column where a value does not fit.
        """
        frame = pl.DataFrame([_text_series(c, raw.get(c)) for c in (*self.features, self.target)])
        x = dict(zip(self.feature_names, self.encode_features(frame)[0].tolist(), strict=True))
        if frame.item(0, self.target) is None:
            return x, None
        faults = _Faults(1)
        y = self._target(frame.get_column(self.target), faults)
        faults.refuse()
        return x, float(y[0])

    def _features(self, frame: pl.DataFrame, faults: _Faults) -> np.ndarray:
        X = np.empty((frame.height, len(self.feature_names)))
        j = 0
        for name, declared in self.features.items():
            column = frame.get_column(name)
            if isinstance(declared[0], str):
                codes = _codes(column, {c: i for i, c in enumerate(declared)})
                faults.add(_blank(column), "missing", name)
                faults.add(codes < 0, "unknown_category", name)
                for level in range(1, len(declared)):
                    X[:, j] = codes == level
                    j += 1
            else:
                X[:, j] = scale_to_bounds(_numbers(column, faults), *declared)
                j += 1
        return X

    def _target(self, column: pl.Series, faults: _Faults) -> np.ndarray:
        if self.classes is None:
            y = _numbers(column, faults)
            if self.target_bounds is not None:
                y = np.clip(y, *self.target_bounds)
            return y / self.target_scale if self.target_scale != 1.0 else y
        codes = _codes(column, _class_spellings(self.classes))
        faults.add(_blank(column), "missing", self.target)
        faults.add(codes < 0, "unknown_class", self.target)
        return codes.astype(np.float64)

    def _budgets(self, column: pl.Series, faults: _Faults) -> np.ndarray:
        text = column.cast(pl.String).str.strip_chars()
        amounts = text.cast(pl.Float64, strict=False).fill_null(math.nan).to_numpy()
        blank = _blank(text)
        least, largest = SERVICEABLE
        faults.add(~blank & ~((amounts >= least) & (amounts <= largest)), "bad_budget", column.name)
        return amounts


def _encoded_names(column: str, declared: Bounds | tuple[str, ...]) -> Iterator[str]:
    if isinstance(declared[0], str):
        yield from (f"{column}={category}" for category in declared[1:])
    else:
        yield column


def _class_spellings(classes: tuple[str, ...]) -> dict[str, int]:
    """Class index by label; for a false/true pair, by every spelling of it."""
    if len(classes) == 2:
        for first, second in ((_FALSE, _TRUE), (_TRUE, _FALSE)):
            if classes[0] in first and classes[1] in second:
                return dict.fromkeys(first, 0) | dict.fromkeys(second, 1)
    return {label: i for i, label in enumerate(classes)}


def _text_series(name: str, value: Any) -> pl.Series:
    """One JSON scalar as the text that a CSV file would hold, null for None; `SchemaError` for anything nested."""
    match value:
        case None | str():
            text = value
        case bool() | np.bool_():
            text = "true" if value else "false"
        case int() | float() | np.number():
            text = repr(value.item() if isinstance(value, np.number) else value)
        case _:
            raise SchemaError(f"column {name!r}: nested")
    return pl.Series(name, [text], dtype=pl.String)


def _blank(column: pl.Series) -> np.ndarray:
    """(n,) bool: null or empty."""
    blank = column.is_null()
    return (blank | (column == "").fill_null(False) if column.dtype == pl.String else blank).to_numpy()


def _codes(column: pl.Series, codes: Mapping[str, int]) -> np.ndarray:
    """(n,) int32: the code of each text, -1 where it has none."""
    levels = list(codes)
    code_of_level = np.array([*codes.values(), -1], dtype=np.int32)
    physical = column.cast(pl.Enum(levels), strict=False).to_physical().cast(pl.Int32)
    return code_of_level[physical.fill_null(-1).to_numpy()]


def _numbers(column: pl.Series, faults: _Faults) -> np.ndarray:
    """(n,) float64; what is not a finite number is a fault, and its value here means nothing."""
    values = column
    if column.dtype == pl.String:
        text = column.str.strip_chars()
        values = text.cast(pl.Float64, strict=False)
        if values.null_count():
            faults.add(_blank(text), "missing", column.name)
            faults.add(values.is_null().to_numpy(), "not_a_number", column.name)
    elif values.null_count():
        faults.add(values.is_null().to_numpy(), "missing", column.name)
    array = (values.fill_null(0.0) if values.null_count() else values).to_numpy()
    finite = np.isfinite(array)
    if not finite.all():
        faults.add(~finite, "not_finite", column.name)
    return array


def scale_to_bounds(values: np.ndarray, low: float, high: float) -> np.ndarray:
    """(n,) values mapped linearly from [low, high] to [-1, 1], and clipped."""
    with np.errstate(over="ignore"):  # far outside the bounds: infinite, then clipped
        scaled = values - low
        scaled /= high - low
        scaled *= 2.0
        scaled -= 1.0
        return np.clip(scaled, -1.0, 1.0, out=scaled)


class _Faults:
    """The first fault of each of n records."""

    def __init__(self, n: int) -> None:
        self.good = np.ones(n, dtype=bool)
        self.found: list[tuple[np.ndarray, str, str]] = []

    def add(self, where: np.ndarray, reason: str, column: str) -> None:
        """Note a fault (`where` is (n,) bool) of the records that have none yet."""
        if where.any():
            rows = np.flatnonzero(where & self.good)
            if len(rows):
                self.found.append((rows, reason, column))
                self.good[rows] = False

    def found_by_row(self) -> list[tuple[int, str, str]]:
        return sorted((i, reason, column) for rows, reason, column in self.found for i in rows.tolist())

    def refuse(self) -> None:
        """Raise `SchemaError` for the first fault, if there is one."""
        for _, reason, column in self.found[:1]:
            raise SchemaError(f"column {column!r}: {reason}")
