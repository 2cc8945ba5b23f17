"""The declared public schema of a stream: raw columns become bounded features by declared constants only.

Scaling by statistics of the stream (a running mean, a running maximum) would release these statistics without noise.
Here every constant comes from the declaration, so the encoding of a record depends on no other record.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import polars as pl

from streamdp.data.columns import Faults, blank, codes, numbers, scale_to_bounds, text_series, whole_numbers
from streamdp.data.records import Batch, DeadLetter, Position, Subject
from streamdp.errors import SchemaError
from streamdp.privacy.guarantees import SERVICEABLE

Bounds = tuple[float, float]
"""The least and the largest value of a number."""

_FALSE, _TRUE = ("false", "False", "FALSE", "0"), ("true", "True", "TRUE", "1")


def declared_bounds(name: str, bounds: Iterable[float]) -> Bounds:
    """Return public bounds as two finite numbers, the lower one first.

    Parameters
    ----------
    name
        The column, for messages.
    bounds
        The declaration.

    Raises `SchemaError` if it is not that.
    """
    try:
        low, high = (float(b) for b in bounds)
    except (TypeError, ValueError, OverflowError):
        raise SchemaError(f"{name!r}: expected public bounds (low, high)") from None
    if not (low < high and math.isfinite(high - low)):
        raise SchemaError(f"{name!r}: expected finite public bounds with low < high, got ({low:g}, {high:g})")
    return low, high


def declared_categories(name: str, categories: Iterable[str]) -> tuple[str, ...]:
    """Return public categories as two or more distinct, non-empty texts.

    Parameters
    ----------
    name
        The column, for messages.
    categories
        The declaration.

    Raises `SchemaError` if it is not that.
    """
    listed = tuple(categories)
    if not all(isinstance(c, str) and c for c in listed):
        raise SchemaError(f"{name!r}: expected non-empty strings as public categories")
    if len(listed) < 2 or len(set(listed)) < len(listed):
        got = f"{len(listed)}, {len(set(listed))} distinct"
        raise SchemaError(f"{name!r}: expected two or more distinct public categories, got {got}")
    return listed


def _typical(name: str, declaration: Any, bounds: Bounds) -> tuple[float, float]:
    """The declared typical centre and spread of a number, which lie within its bounds."""
    try:
        centre, spread = (float(b) for b in declaration)
    except (TypeError, ValueError, OverflowError):
        raise SchemaError(f"{name!r}: expected typical (centre, spread)") from None
    low, high = bounds
    if not (low <= centre <= high and 0 < spread <= high - low):
        raise SchemaError(f"{name!r}: expected a typical centre within the bounds, and a positive spread")
    return centre, spread


def _declared(name: str, declaration: Any) -> Bounds | tuple[str, ...]:
    """The declaration of a feature: categories if it contains a text, else bounds."""
    if isinstance(declaration, Mapping):
        if not {"bounds"} <= declaration.keys() <= {"bounds", "typical"}:
            raise SchemaError(f"{name!r}: expected bounds, and typical if it is known")
        return declared_bounds(name, declaration["bounds"])
    if isinstance(declaration, str) or not isinstance(declaration, Iterable):
        raise SchemaError(f"{name!r}: expected bounds (low, high) or a list of categories")
    values = list(declaration)
    if any(isinstance(v, str) for v in values):
        return declared_categories(name, values)
    return declared_bounds(name, values)


class Schema:
    """The declared public schema of a stream: its columns, and which values they may have.

    * A numeric feature with the bounds (low, high) is clipped to them and scaled to [-1, 1]. It keeps its name. With
      {"bounds": (low, high), "typical": (centre, spread)} an estimator that scales columns knows where to begin.
    * A categorical feature with the list (a, b, c) becomes the 0/1 columns `name=b` and `name=c`. The first category is
      the base level and has no column: with a column for each category, the columns would add up to the intercept, and
      no stream could identify the weights.

    Text is compared exactly, including blanks. Numbers may have blanks around them. If two categories or classes are a
    spelling of false and true (or 0 and 1), every spelling of false, true, 0 and 1 matches.

    Parameters
    ----------
    features
        Bounds (low, high), a list of categories, or a mapping with `bounds` and `typical`, for each feature.
    target
        The column of the target.
    target_bounds
        The target is clipped to these bounds.
    target_scale
        The target is divided by this public constant, after it was clipped. Positive.
    classes
        The labels of a classification, compared as text. The target is the index of the label.
    subject
        The column with the identifier of the person.
    subject_type
        "text": each spelling is a person. "integer": a whole number, and 7, +7 and 007 are one person.
    budget
        The column with what a record may spend: an epsilon or mu within `guarantees.SERVICEABLE`. Blank means the
        job's default.

    Raises `SchemaError` for a declaration that contradicts itself.

    >>> schema = Schema({"age": (18, 90), "sex": ["f", "m"]}, target="wage", target_bounds=(0, 100), target_scale=100)
    >>> schema.feature_names
    ('age', 'sex=m')
    >>> schema.encode_one({"age": 54, "sex": "m", "wage": "25"})
    ({'age': 0.0, 'sex=m': 1.0}, 0.25)
    """

    def __init__(
        self,
        features: Mapping[str, Any],
        target: str,
        *,
        target_bounds: Bounds | None = None,
        target_scale: float = 1.0,
        classes: Sequence[str] | None = None,
        subject: str | None = None,
        subject_type: str = "text",
        budget: str | None = None,
    ) -> None:
        self.features = {name: _declared(name, declaration) for name, declaration in features.items()}
        self.typical = {
            name: _typical(name, declaration["typical"], self.features[name])  # type: ignore[arg-type]
            for name, declaration in features.items()
            if isinstance(declaration, Mapping) and declaration.get("typical") is not None
        }
        self.target = target
        self.target_bounds = None if target_bounds is None else declared_bounds(target, target_bounds)
        self.target_scale = float(target_scale)
        self.classes = None if classes is None else declared_categories(target, classes)
        self.subject = subject
        self.subject_type = subject_type
        self.budget = budget
        if not self.features:
            raise SchemaError("expected at least one feature")
        if subject_type not in ("text", "integer"):
            raise SchemaError("subject_type: expected text or integer")
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
        """The raw columns that a record must have: features, target, subject, budget."""
        return self._columns

    @property
    def numeric_columns(self) -> tuple[str, ...]:
        """The raw columns that are numbers in every valid record. The budget is not included: it may be blank."""
        names = [c for c, d in self.features.items() if not isinstance(d[0], str)]
        return tuple(names if self.classes is not None else [*names, self.target])

    def encode(self, frame: pl.DataFrame, positions: np.ndarray, position: Position) -> Batch:
        """As `records.Encoder.encode`. A record that cannot be encoded becomes a dead letter.

        Its reason is `missing`, `not_a_number`, `not_finite`, `not_an_integer`, `unknown_category`, `unknown_class` or
        `bad_budget`. Its column is the first bad one in the order of `columns`.
        """
        faults = Faults(frame.height)
        X = self._features(frame, faults)
        y = self._target(frame.get_column(self.target), faults)
        subjects: list[Subject | None] | None = None
        budgets = None
        if self.subject is not None:
            people = frame.get_column(self.subject)
            if self.subject_type == "integer":
                people = whole_numbers(people, faults)
            else:
                faults.add(blank(people), "missing", self.subject)
            subjects = people.to_list()
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
        """Return the encoded features only, (n, p) float64, for predictions.

        Parameters
        ----------
        frame
            n rows with the raw columns of the features.

        Raises `SchemaError` that names the column if a column is missing or a value does not fit.
        """
        absent = [c for c in self.features if c not in frame.columns]
        if absent:
            raise SchemaError(f"missing columns: {', '.join(map(repr, absent))}")
        faults = Faults(frame.height)
        X = self._features(frame, faults)
        faults.refuse()
        return X

    def encode_one(self, raw: Mapping[str, Any]) -> tuple[dict[str, float], float | None]:
        """Return the encoded features of one record by name, and its target, or None if it has no target.

        Parameters
        ----------
        raw
            Text or JSON values by column. Missing columns are None.

        Raises `SchemaError` that names the column if a value does not fit.
        """
        frame = pl.DataFrame([text_series(c, raw.get(c)) for c in (*self.features, self.target)])
        x = dict(zip(self.feature_names, self.encode_features(frame)[0].tolist(), strict=True))
        if frame.item(0, self.target) is None:
            return x, None
        faults = Faults(1)
        y = self._target(frame.get_column(self.target), faults)
        faults.refuse()
        return x, float(y[0])

    def _features(self, frame: pl.DataFrame, faults: Faults) -> np.ndarray:
        X = np.empty((frame.height, len(self.feature_names)))
        j = 0
        for name, declared in self.features.items():
            column = frame.get_column(name)
            if isinstance(declared[0], str):
                found = _known(column, spellings(declared), faults, "unknown_category")
                for level in range(1, len(declared)):
                    X[:, j] = found == level
                    j += 1
            else:
                X[:, j] = scale_to_bounds(numbers(column, faults), *declared)
                j += 1
        return X

    def _target(self, column: pl.Series, faults: Faults) -> np.ndarray:
        if self.classes is None:
            y = numbers(column, faults)
            if self.target_bounds is not None:
                y = np.clip(y, *self.target_bounds)
            return y / self.target_scale if self.target_scale != 1.0 else y
        return _known(column, spellings(self.classes), faults, "unknown_class").astype(np.float64)

    def _budgets(self, column: pl.Series, faults: Faults) -> np.ndarray:
        if column.null_count() == len(column):
            return np.full(len(column), math.nan)
        text = column.cast(pl.String).str.strip_chars()
        amounts: np.ndarray = text.cast(pl.Float64, strict=False).fill_null(math.nan).to_numpy()
        least, largest = SERVICEABLE
        faults.add(~blank(text) & ~((amounts >= least) & (amounts <= largest)), "bad_budget", column.name)
        return amounts


def _known(column: pl.Series, code_of: Mapping[str, int], faults: Faults, reason: str) -> np.ndarray:
    """The codes of declared texts, which are not blank. Others are faults: `missing` if blank, else `reason`."""
    found = codes(column, code_of)
    unknown = found < 0
    if unknown.any():
        faults.add(blank(column), "missing", column.name)
        faults.add(unknown, reason, column.name)
    return found


def _encoded_names(column: str, declared: Bounds | tuple[str, ...]) -> list[str]:
    return [f"{column}={category}" for category in declared[1:]] if isinstance(declared[0], str) else [column]


def spellings(labels: tuple[str, ...]) -> dict[str, int]:
    """Return the index of each label by its text; for a pair of false and true, by each of their spellings.

    Parameters
    ----------
    labels
        Declared classes or categories.
    """
    if len(labels) == 2:
        for first, second in ((_FALSE, _TRUE), (_TRUE, _FALSE)):
            if labels[0] in first and labels[1] in second:
                return dict.fromkeys(first, 0) | dict.fromkeys(second, 1)
    return {label: i for i, label in enumerate(labels)}
