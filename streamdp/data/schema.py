"""The declared public schema of a stream: raw columns become bounded features by declared constants only.

Scaling by statistics of the stream (a running mean, a running maximum) would release these statistics without noise.
Here every constant comes from the declaration, so the encoding of a record depends on no other record.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Collection, Hashable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any

import numpy as np

from streamdp.data.columns import Faults, blank, codes, decimals, numbers, people, text_series
from streamdp.data.declaration import (
    Bounds,
    decimal_places,
    declaration,
    declared_bounds,
    declared_categories,
    spellings,
    without_blanks,
)
from streamdp.data.encoder import RowEncoder
from streamdp.data.floats import is_missing, number
from streamdp.data.late import pl
from streamdp.data.notation import Notation, written
from streamdp.data.records import Batch, DeadLetter, Position, Subject, check_record, lookup
from streamdp.data.times import TimeColumn
from streamdp.data.transforms import Piece, product_pieces
from streamdp.errors import SchemaError
from streamdp.privacy.guarantees import SERVICEABLE

_BLOCK = 8192  # rows that are encoded at once


class Schema:
    """The declared public schema of a stream: its columns, and which values they may have.

    * A numeric feature with the bounds (low, high) is clipped to them and scaled to [-1, 1]. It keeps its name. With
      {"bounds": (low, high), "typical": (centre, spread)} an estimator that scales columns knows where to begin.
      {"bounds": "private"}: the operator of a window finds them, for a share of its budget.
    * A categorical feature with the list (a, b, c) becomes the 0/1 columns `name=b` and `name=c`. The first category is
      the base level and has no column: with a column for each category, the columns would add up to the intercept, and
      no stream could identify the weights.
    * Declared transforms make other columns of a value (see `transforms`). Columns of products come after all others.
    * With {"categories": (a, b, c), "per": names} each category is a group with effects of its own, beside those that
      all share: a 0/1 column for each category, and its products with the columns of these features (True: of all that
      are no products). A record of no declared category has zeros there, so the shared effects predict for it. Proof:
      docs/proofs/groups.md.

    `streamdp.config.schema.FeatureConfig` says what else is declared of a feature.

    Text is compared exactly, including blanks. Numbers may have blanks around them. If two categories or classes are a
    spelling of false and true (or 0 and 1), every spelling of false, true, 0 and 1 matches.

    - `features`: bounds (low, high), a list of categories, or a mapping with the keys of `declaration.declaration`, or
      {"product": names}, for each feature.
    - `target`: the column of the target; empty text: records have none, as for statistics.
    - `target_bounds`: the target is clipped to these bounds.
    - `target_scale`: the target is divided by this public constant, after it was clipped. Positive.
    - `target_decimal`: the number of decimal places of a target in base64: see `columns.decimals`. None: it is not.
    - `classes`: the labels of a classification, compared as text. The target is the index of the label.
    - `subject`: the column with the identifier of the person.
    - `subject_type`: "text": each spelling is a person. "integer": a whole number, and 7, +7 and 007 are one person.
    - `budget`: the column with what a record may spend: an epsilon or mu within `guarantees.SERVICEABLE`. Blank means
      the job's default.
    - `missing_values`: texts that mean an empty value in features and target, such as NA.
    - `coded`: each categorical feature becomes one column, the index of its category, and there are no products: for
      statistics, whose work must not grow with the categories.

    Raises `SchemaError` for a declaration that contradicts itself.

    >>> schema = Schema({"age": (18, 90), "sex": ["f", "m"]}, target="wage", target_bounds=(0, 100), target_scale=100)
    >>> schema.feature_names
    ('age', 'sex=m')
    >>> schema.encode_one({"age": 54, "sex": "m", "wage": "25"})
    ({'age': 0.0, 'sex=m': 1.0}, 0.25)
    """

    def __init__(
        self,
        features: Mapping[str, object],
        target: str = "",
        *,
        target_bounds: Bounds | None = None,
        target_scale: float = 1.0,
        target_decimal: int | None = None,
        classes: Sequence[str] | None = None,
        subject: str | None = None,
        subject_type: str = "text",
        budget: str | None = None,
        time: TimeColumn | None = None,
        missing_values: Collection[str] = (),
        coded: bool = False,
    ) -> None:
        if not isinstance(features, Mapping):
            raise SchemaError(f"features: expected declarations by name, got {type(features).__name__}")
        self.declarations = {n: declaration(n, d) for n, d in features.items() if not _is_product(n, d)}
        if coded:
            for name, one in self.declarations.items():
                if one.codes:
                    self.declarations[name] = replace(one, pieces=(Piece(name, "code", ()),), per=False)
        self.features = {name: declared.values for name, declared in self.declarations.items()}
        self.blanks = frozenset(missing_values)
        self.notation: Notation | None = None
        self.target = target
        self.target_bounds = None if target_bounds is None else declared_bounds(target, target_bounds)
        self.target_scale = number("target_scale", target_scale)
        self.target_decimal = None if target_decimal is None else decimal_places(target, target_decimal)
        self.classes = None if classes is None else declared_categories(target, classes)
        self.subject = subject
        self.subject_type = subject_type
        self.budget = budget
        self.time = time
        if not self.features:
            raise SchemaError("expected at least one feature")
        if not (math.isfinite(self.target_scale) and self.target_scale > 0):
            raise SchemaError(f"expected a positive, finite target_scale, got {self.target_scale:g}")
        if self.classes is not None and (target_bounds, target_scale, target_decimal) != (None, 1.0, None):
            raise SchemaError("a target with classes has no target_bounds, target_scale and target_decimal")
        others = (target or None, subject, budget, None if time is None else time.column)
        self.feature_columns = tuple(dict.fromkeys(d.column for d in self.declarations.values()))
        """The raw columns of the features."""
        self.columns = (*self.feature_columns, *(c for c in others if c is not None))
        """The raw columns that a record must have: features, target, subject, budget, time."""
        if twice := [column for i, column in enumerate(self.columns) if column in self.columns[:i]]:
            raise SchemaError(
                f"expected distinct columns for features, target, subject, budget and time, got {twice[0]!r} twice"
            )
        self.pieces = self._pieces({} if coded else features)
        """The p encoded columns."""
        self.feature_names = tuple(piece.name for piece in self.pieces)
        """Their names: the columns of `Batch.X`."""
        if len(set(self.feature_names)) < len(self.feature_names):
            raise SchemaError("two features would get the same encoded name; rename a column or a category")

    def _pieces(self, features: Mapping[str, Any]) -> tuple[Piece, ...]:
        found: list[Piece] = []
        factors: dict[str, tuple[int, tuple[Piece, ...]]] = {}
        for name, declared in self.declarations.items():
            if not declared.length:
                factors[name] = (len(found), declared.pieces)
            found += declared.pieces
        for name, given in features.items():
            if name not in self.declarations:
                found += product_pieces(name, given["product"], factors)
        for name, declared in self.declarations.items():
            if declared.per:
                if not self.effects(name):
                    raise SchemaError(f"{name!r}: per needs another feature")
                for other in self.effects(name):
                    if other == name or other not in factors:
                        raise SchemaError(f"{name!r}: expected per to name other features that are no products")
                    products = product_pieces(name, (name, other), factors)
                    found += [piece._replace(numeric=False, own=True) for piece in products]
        return tuple(found)

    def effects(self, name: str) -> tuple[str, ...]:
        """The features whose effects each category of the feature `name` has of its own."""
        per = self.declarations[name].per
        if isinstance(per, tuple):
            return per
        return tuple(n for n, d in self.declarations.items() if per and n != name and not d.length)

    def reading(self, notation: Notation) -> Schema:
        """See `records.Encoder.reading`."""
        found = copy.copy(self)
        found.notation = notation
        return found

    @property
    def numeric_columns(self) -> tuple[str, ...]:
        """The raw columns that a source may give as Float64: numbers in every valid record, in the usual notation.

        This says nothing about which texts are read as numbers, which each declaration decides. The budget is not
        included: it may be blank.
        """
        if self.blanks or self.notation is not None:
            return ()
        names = [d.column for d in self.declarations.values() if d.plain and d.is_number]
        shared = {d.column for d in self.declarations.values() if not d.plain}
        names = [name for name in names if name not in shared]
        is_text = self.classes is not None or self.target_decimal is not None
        return tuple(names if is_text or not self.target else [*names, self.target])

    @cached_property
    def plain(self) -> bool:
        """Whether each feature is a raw column, and gaps and other values are faults."""
        return not self.blanks and all(d.plain for d in self.declarations.values())

    def encode(
        self, frame: pl.DataFrame, positions: np.ndarray, position: Position, X: np.ndarray | None = None
    ) -> Batch:
        """As `records.Encoder.encode`. A record that cannot be encoded becomes a dead letter.

        Its reason is `missing`, `not_a_number`, `not_a_date`, `not_finite`, `not_an_integer`, `float` for a subject,
        `unknown_category`, `unknown_class`, `bad_budget`, `not_a_time`, `before_1970`, `another_unit`, `too_late` or
        `too_early`. Its column is the first bad one in the order of `columns`.

        `X` (n, p): the features, if they are encoded already; the frame has the other columns.
        """
        faults = Faults(frame.height)
        if X is None:
            X = self._features(frame, faults)
        y = self._target(frame.get_column(self.target), faults) if self.target else None
        subjects: list[Subject | None] | None = None
        budgets = None
        if self.subject is not None:
            subjects = people(frame.get_column(self.subject), self.subject_type == "integer", faults).to_list()
        if self.budget is not None:
            budgets = self._budgets(frame.get_column(self.budget), faults)
        times = None if self.time is None else self.time.read(frame, self.notation, faults)
        if y is None:  # what has no target may ask for the time
            y = np.full(frame.height, math.nan) if times is None else times
        batch = Batch(self.feature_names, X, y, positions, position, subjects, budgets, times=times)
        if not faults.found:
            return batch
        dead = [DeadLetter(int(positions[i]), reason, column) for i, reason, column in faults.found_by_row()]
        return replace(batch.take(faults.good), dead=dead)

    def encode_features(self, frame: pl.DataFrame) -> np.ndarray:
        """Return the encoded features only, (n, p) float64, for predictions; the frame has their n rows.

        Raises `SchemaError` that names the column if a column is missing or a value does not fit.
        """
        absent = [c for c in self.feature_columns if c not in frame.columns]
        if absent:
            raise SchemaError(f"missing columns: {', '.join(map(repr, absent))}")
        faults = Faults(frame.height)
        X = self._features(frame, faults)
        faults.refuse()
        return X

    def encode_raw(self, raw: Mapping[str, object]) -> list[float]:
        """Return the p encoded features of one record, of text or JSON values by column, possibly nested.

        Columns that `raw` lacks are None; NaN, NA and NaT are missing. Raises `SchemaError` that names the column if a
        value does not fit.
        """
        check_record(raw)
        values = {c: lookup(raw, c) for c in self.feature_columns}
        frame = pl.DataFrame([text_series(c, None if is_missing(v) else v) for c, v in values.items()])
        return self.encode_features(frame)[0].tolist()

    def encode_one(self, raw: Mapping[str, object]) -> tuple[dict[str, float], float | None]:
        """Return the encoded features of one record by name, and its target, or None if it has no target.

        `raw` is as for `encode_raw`, and the errors are the same.
        """
        x = dict(zip(self.feature_names, self.encode_raw(raw), strict=True))
        target = text_series(self.target, lookup(raw, self.target))
        if without_blanks(target, self.blanks).null_count():
            return x, None
        faults = Faults(1)
        y = self._target(target, faults)
        faults.refuse()
        return x, float(y[0])

    def encoder(self, targets: Mapping[Hashable, float] | tuple[float, float] | None = None) -> RowEncoder:
        """Return what makes columns of raw values; `targets`: see `RowEncoder`."""
        features = [(name, d.codes or None, d.pieces) for name, d in self.declarations.items()]
        read = self.plain and not any(d.hashed or d.length for d in self.declarations.values())
        return RowEncoder(features, self.pieces[sum(len(own) for _, _, own in features) :], read, targets)

    @cached_property
    def _encoder(self) -> RowEncoder:
        return self.encoder()

    def _features(self, frame: pl.DataFrame, faults: Faults) -> np.ndarray:
        plain, raw = self.plain and self.notation is None, []
        for declared in self.declarations.values():
            column = frame.get_column(declared.column)
            if not plain:
                column = declared.complete(declared.read(column, self.blanks, self.notation, faults))
            if declared.is_number:
                values = numbers(column, faults)
            elif declared.codes:
                values = _known(column, declared.codes, faults, "unknown_category")
            else:
                faults.add(blank(column), "missing", column.name)
                values = declared.read_texts(column.cast(pl.String).fill_null("").to_list())
            raw.append(values.T)
        X = np.empty((frame.height, len(self.feature_names)))
        for at in range(0, frame.height, _BLOCK):  # what is made of all rows at once needs more memory than X has
            X[at : at + _BLOCK] = self._encoder.columns(
                np.vstack([of[..., at : at + _BLOCK] for of in raw], dtype=float).T
            )
        return X

    def _target(self, column: pl.Series, faults: Faults) -> np.ndarray:
        column = without_blanks(column, self.blanks)
        if self.target_decimal is not None:
            column = decimals(column, self.target_decimal, faults)
        if self.classes is None:
            y = numbers(written(column, self.notation), faults)
            if self.target_bounds is not None:
                y = np.clip(y, *self.target_bounds)
            return y / self.target_scale if self.target_scale != 1.0 else y
        return _known(column, spellings(self.classes), faults, "unknown_class").astype(np.float64)

    def _budgets(self, column: pl.Series, faults: Faults) -> np.ndarray:
        if column.null_count() == len(column):
            return np.full(len(column), math.nan)
        text = written(column.cast(pl.String), self.notation).str.strip_chars()
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


def _is_product(name: str, declared: Any) -> bool:
    """Whether a feature is a product. Raises `SchemaError` if something else is declared of it, too."""
    product = isinstance(declared, Mapping) and declared.get("product") is not None
    if product and any(value is not None for key, value in declared.items() if key != "product"):
        raise SchemaError(f"{name!r}: expected product alone")
    return product
