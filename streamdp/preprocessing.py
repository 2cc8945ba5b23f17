"""From raw columns to bounded features, by what is public only: declared bounds and declared categories.

Scaling by statistics of the stream (a running mean, a running maximum) would release them without noise. Here every
constant comes from the declaration, so encoding one record depends on no other record.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import polars as pl
from river import base

from streamdp.errors import SchemaError
from streamdp.records import Batch, DeadLetter, Position, Subject

if TYPE_CHECKING:
    import pandas as pd

Bounds = tuple[float, float]

_FALSE, _TRUE = ("false", "False", "FALSE", "0"), ("true", "True", "TRUE", "1")


class PrivacyWarning(UserWarning):
    """A pipeline releases something that no guarantee covers."""


def _bounds(name: str, bounds: Iterable[float]) -> Bounds:
    """Two finite numbers, the lower first; `SchemaError` otherwise."""
    try:
        low, high = (float(b) for b in bounds)
    except (TypeError, ValueError):
        raise SchemaError(f"{name!r}: expected public bounds (low, high)") from None
    if not (low < high and math.isfinite(high - low)):
        raise SchemaError(f"{name!r}: expected finite public bounds with low < high, got ({low:g}, {high:g})")
    return low, high


def _categories(name: str, categories: Iterable[str]) -> tuple[str, ...]:
    """Two or more distinct texts; `SchemaError` otherwise."""
    listed = tuple(categories)
    if not all(isinstance(c, str) and c for c in listed):
        raise SchemaError(f"{name!r}: expected non-empty strings as public categories")
    if len(listed) < 2 or len(set(listed)) < len(listed):
        raise SchemaError(f"{name!r}: expected two or more distinct public categories, got {len(listed)}")
    return listed


def _declared(name: str, declaration: Sequence[Any]) -> Bounds | tuple[str, ...]:
    """What a feature was declared as: bounds, where both entries are numbers, or else categories."""
    if isinstance(declaration, str) or not isinstance(declaration, Iterable):
        raise SchemaError(f"{name!r}: expected bounds (low, high) or a list of categories")
    values = list(declaration)
    if any(isinstance(v, str) for v in values):
        return _categories(name, values)
    return _bounds(name, values)


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
      epsilon or mu, positive and finite; blank means the job's default).

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
        self.target_bounds = None if target_bounds is None else _bounds(target, target_bounds)
        self.target_scale = float(target_scale)
        self.classes = None if classes is None else _categories(target, classes)
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
                X[:, j] = _scale(_numbers(column, faults), *declared)
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
        faults.add(~blank & ~((amounts > 0) & np.isfinite(amounts)), "bad_budget", column.name)
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


def _scale(values: np.ndarray, low: float, high: float) -> np.ndarray:
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


class BoundsScaler(base.MiniBatchTransformer):
    """Scales features to [-1, 1] by declared public bounds; a River transformer that learns nothing.

    Parameters
    ----------
    bounds
        Public (low, high) by feature; values outside are clipped. Features without bounds pass unchanged.

    Examples
    --------
    >>> from streamdp.preprocessing import BoundsScaler
    >>> BoundsScaler({"age": (18, 90)}).transform_one({"age": 72, "city": "Rome"})
    {'age': 0.5, 'city': 'Rome'}

    """

    def __init__(self, bounds: Mapping[str, Bounds]) -> None:
        self.bounds = bounds
        self._checked = {name: _bounds(name, pair) for name, pair in bounds.items()}

    @classmethod
    def _unit_test_params(cls) -> Iterator[dict[str, Any]]:
        yield {"bounds": {"feature": (0.0, 1.0)}}

    def transform_one(self, x: dict[Hashable, Any]) -> dict[Hashable, Any]:
        """A new dict with the bounded features scaled."""
        out = dict(x)
        for name, (low, high) in self._checked.items():
            if name in out:
                out[name] = min(max((out[name] - low) / (high - low) * 2.0 - 1.0, -1.0), 1.0)
        return out

    def transform_many(self, X: pd.DataFrame) -> pd.DataFrame:
        """A new DataFrame with the bounded features scaled."""
        return X.assign(**{n: _scale(X[n].to_numpy(float), *b) for n, b in self._checked.items() if n in X.columns})


class CategoryEncoder(base.MiniBatchTransformer):
    """Encodes categories from public lists as 0/1 features; a River transformer that learns nothing.

    The first category of a list is the base level and gets no feature, so that an intercept is identifiable. River's
    OneHotEncoder would release which values have occurred.

    Parameters
    ----------
    categories
        Public list of texts by feature. A value that is not in its list raises `SchemaError`; features without a
        list pass unchanged.

    Examples
    --------
    >>> from streamdp.preprocessing import CategoryEncoder
    >>> CategoryEncoder({"size": ["s", "m", "l"]}).transform_one({"size": "m", "age": 7})
    {'age': 7, 'size=m': 1, 'size=l': 0}

    """

    def __init__(self, categories: Mapping[str, Sequence[str]]) -> None:
        self.categories = categories
        self._checked = {name: _categories(name, listed) for name, listed in categories.items()}

    @classmethod
    def _unit_test_params(cls) -> Iterator[dict[str, Any]]:
        yield {"categories": {"feature": ["a", "b"]}}

    def transform_one(self, x: dict[Hashable, Any]) -> dict[Hashable, Any]:
        """A new dict with 0/1 features in place of the listed ones."""
        out = {name: value for name, value in x.items() if name not in self._checked}
        for name, listed in self._checked.items():
            if name in x:
                if x[name] not in listed:
                    raise SchemaError(f"column {name!r}: unknown_category")
                out |= {f"{name}={category}": int(x[name] == category) for category in listed[1:]}
        return out

    def transform_many(self, X: pd.DataFrame) -> pd.DataFrame:
        """A new DataFrame with 0/1 columns in place of the listed ones."""
        out = X.drop(columns=[n for n in self._checked if n in X.columns])
        for name, listed in self._checked.items():
            if name in X.columns:
                if not X[name].isin(listed).all():
                    raise SchemaError(f"column {name!r}: unknown_category")
                out = out.assign(**{f"{name}={c}": (X[name] == c).astype(int) for c in listed[1:]})
        return out


def warn_data_dependent(pipeline: base.Estimator) -> tuple[str, ...]:
    """Warn (`PrivacyWarning`) for every step of a River pipeline that learns from the records without noise.

    A step does so if its class overrides `learn_one` of River's Transformer, which does nothing; a target scaler does
    so by its nature. Unions, groupers and pipelines in pipelines are looked into; the last step, the estimator, is
    not. Returns the class names of the steps warned about, in order.

    >>> from river.preprocessing import StandardScaler
    >>> from river.linear_model import LinearRegression
    >>> with warnings.catch_warnings():
    ...     warnings.simplefilter("ignore")
    ...     warn_data_dependent(StandardScaler() | LinearRegression())
    ('StandardScaler',)
    """
    names = tuple(type(step).__name__ for step in _data_dependent(pipeline))
    for name in names:
        warnings.warn(
            f"{name} learns statistics of the records without noise, and every prediction and saved state releases "
            "them; the privacy guarantee does not cover this. Use streamdp.preprocessing.BoundsScaler or "
            "CategoryEncoder, which use declared public constants only.",
            PrivacyWarning,
            stacklevel=2,
        )
    return names


def _data_dependent(step: Any) -> Iterator[Any]:
    from river import compose, preprocessing  # here: they take a second to load, and only pipelines need them

    if isinstance(step, compose.Pipeline):
        for inner in step.steps.values():
            yield from _data_dependent(inner)
    elif isinstance(step, compose.TransformerUnion):
        for inner in step.transformers.values():
            yield from _data_dependent(inner)
    elif isinstance(step, compose.Grouper):
        yield from _data_dependent(step.transformer)
    elif isinstance(step, compose.TargetTransformRegressor):
        if isinstance(step, preprocessing.TargetStandardScaler | preprocessing.TargetMinMaxScaler):
            yield step
        yield from _data_dependent(step.regressor)
    elif isinstance(step, base.BaseTransformer) and (
        getattr(type(step), "learn_one", None) is not base.Transformer.learn_one
    ):
        yield step
