"""The declaration of one feature: what it may be, where its raw values come from, and what a gap means.

`pieces` are the encoded columns that it becomes (see `transforms`).

Every constant is declared, so what a record becomes depends on no other record. A rule for gaps changes no sensitivity:
a record without a value is still one record, and its row has the same bounds as any other.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from streamdp.data.columns import Faults, blank, decimals
from streamdp.data.dates import EPOCHS, NAMES, PARTS, part_of
from streamdp.data.encoder import buckets, first_bytes
from streamdp.data.late import pl
from streamdp.data.notation import Notation, written
from streamdp.data.transforms import (
    PERIODS,
    Piece,
    bin_pieces,
    bucket_pieces,
    byte_pieces,
    cyclic_pieces,
    number_pieces,
)
from streamdp.errors import SchemaError

Bounds = tuple[float, float]
"""The least and the largest value of a number."""

MISSING, OTHER = "(missing)", "(other)"
"""The categories of empty values and of values that are not declared, if a declaration has such categories."""

_GAPS = ("drop", "zero", "category", "typical")
_KINDS = ("bounds", "categories", "bins", "cyclic", "hash", "text")
_KEYS = frozenset(_KINDS) | {
    *("transform", "knots", "typical", "column", "part", "format", "decimal", "missing", "other", "product", "per")
}
_FALSE, _TRUE = ("false", "False", "FALSE", "0"), ("true", "True", "TRUE", "1")


PRIVATE = "private"
FURTHEST = 2.0**30
"""Numbers with the bounds `PRIVATE` are clipped to this size, and have a resolution of 2^-22."""


def declared_bounds(name: str, bounds: Iterable[float]) -> Bounds:
    """Return public bounds: two finite numbers, the lower one first. Raises `SchemaError`, with the name, otherwise."""
    try:
        low, high = (float(b) for b in bounds)
    except (TypeError, ValueError, OverflowError):
        raise SchemaError(f"{name!r}: expected public bounds (low, high)") from None
    if not (high / 2 - low / 2 > 0 and math.isfinite(high - low)):
        raise SchemaError(f"{name!r}: expected finite public bounds with low < high, got ({low:g}, {high:g})")
    return low, high


def decimal_places(name: str, places: object) -> int:
    """Return how many decimal places numbers in base64 have.

    Raises `SchemaError`, with the name, unless `places` is a whole number from 0 to 76.
    """
    if isinstance(places, bool) or not isinstance(places, int) or not 0 <= places <= 76:
        raise SchemaError(f"{name!r}: expected the number of decimal places, from 0 to 76, as decimal")
    return places


def declared_categories(name: str, categories: Iterable[str], least: int = 2) -> tuple[str, ...]:
    """Return public categories, `least` or more distinct texts or truth values. Raises `SchemaError`, with the name."""
    if isinstance(categories, set | frozenset):  # each process has its own order, and the first is the baseline
        raise SchemaError(f"{name!r}: expected a list of categories, got a set, which has no order")
    listed: tuple[Any, ...] = (
        tuple(str(one).lower() if isinstance(one, bool) else one for one in categories)
        if isinstance(categories, Iterable) and getattr(categories, "ndim", None) != 0
        else (None,)
    )
    if not all(isinstance(c, str) and c for c in listed):
        raise SchemaError(f"{name!r}: expected non-empty strings as public categories")
    if len(listed) < least or len(set(listed)) < len(listed):
        got = f"{len(listed)}, {len(set(listed))} distinct"
        raise SchemaError(f"{name!r}: expected two or more distinct public categories, got {got}")
    return listed


def spellings(labels: tuple[str, ...]) -> dict[str, int]:
    """Return the index of each of `labels` by its text; for a pair of false and true, by each of their spellings."""
    if len(labels) == 2:
        for first, second in ((_FALSE, _TRUE), (_TRUE, _FALSE)):
            if labels[0] in first and labels[1] in second:
                return dict.fromkeys(first, 0) | dict.fromkeys(second, 1)
    return {label: i for i, label in enumerate(labels)}


@dataclass(frozen=True)
class Declaration:
    """What a feature may be, and how it is read."""

    name: str
    column: str  # the raw column; a path with dots in nested JSON
    values: Bounds | tuple[str, ...]  # bounds, or the categories with those of gaps and of other values
    codes: Mapping[str, int]  # the index of each category by its text; empty for a number
    pieces: tuple[Piece, ...]  # the encoded columns
    baseline: str | None = None  # what its columns are compared with: the category without a column
    typical: tuple[float, float] | None = None  # the declared centre and spread of most values
    part: str | None = None  # the part of a date that is the value
    format: str | None = None  # how dates are written; None: ISO 8601
    decimal: int | None = None  # the decimal places of a number in base64: see `columns.decimals`
    fill: str | None = None  # the text that replaces a missing value; None: the record is left out
    per: bool | tuple[str, ...] = False  # the features whose effects each category has of its own; True: all

    @property
    def is_number(self) -> bool:
        """Whether it is a number with bounds."""
        return not self.codes and not self.hashed and not self.length

    @property
    def length(self) -> int:
        """How many bytes of a text of an open domain are kept; 0 if it is none."""
        return int(self.pieces[0].at[1]) if self.pieces[0].kind == "byte" else 0

    @property
    def hashed(self) -> int:
        """The number of buckets of a text that is hashed; 0 if it is not."""
        return int(self.pieces[0].at[1]) if self.pieces[0].kind == "bucket" else 0

    def read_texts(self, texts: Iterable[str]) -> np.ndarray:
        """Return the bucket (n,) or the first bytes (n, length) of each of n texts, which are hashed or open."""
        return buckets(texts, self.hashed) if self.hashed else first_bytes(texts, self.length)

    @property
    def other(self) -> bool:
        """Whether values that are not declared have a category."""
        return OTHER in self.codes

    @property
    def plain(self) -> bool:
        """Whether the raw column is the value, and gaps and other values are faults."""
        given = (self.column, self.part, self.decimal, self.fill, self.other)
        return given == (str(self.name), None, None, None, False)

    def read(self, column: pl.Series, blanks: frozenset[str], notation: Notation | None, faults: Faults) -> pl.Series:
        """Return the n values of the raw column; null if missing, as are the texts in `blanks`.

        A text that is a number has the `notation` of the source.
        """
        column = without_blanks(column, blanks)
        if self.decimal is not None:
            return decimals(column, self.decimal, faults)
        if self.format in EPOCHS or (self.part is None and self.is_number):
            column = written(column, notation)
        if self.part is None:
            return column
        named = self.part in NAMES and any(category in NAMES[self.part] for category in self.codes)
        return part_of(column, self.part, self.format, named, faults)

    def complete(self, column: pl.Series) -> pl.Series:
        """Return a column of `read`, (n), with the declared values in place of gaps and of other values."""
        if self.fill is None and not self.other:
            return column
        if column.dtype != pl.String:
            column = column.cast(pl.String)
        present = pl.Series(~blank(column.str.strip_chars() if self.is_number else column))
        if self.other:
            known = column.is_in(list(self.codes)).fill_null(False)
            column = column.set(present & ~known, OTHER)
        return column if self.fill is None else column.set(~present, self.fill)


def without_blanks(column: pl.Series, blanks: frozenset[str]) -> pl.Series:
    """Return a column with null for the texts that mean a missing value, `blanks`."""
    if not blanks or column.dtype != pl.String:
        return column
    return column.set(column.str.strip_chars().is_in(list(blanks)).fill_null(False), None)


def declaration(name: str, declared: object) -> Declaration:
    """Read the declaration of the feature `name`.

    `declared` is bounds (low, high), a list of categories, or a mapping with one of `bounds`, `categories`, `bins`,
    `cyclic`, `hash` and `text`, and with `transform` or `knots`, `typical`, `column`, `part`, `format`, `decimal`,
    `missing` and `other`. Raises `SchemaError` for a declaration that contradicts itself.
    """
    if isinstance(declared, Mapping):
        return _mapped(name, {key: value for key, value in declared.items() if value is not None})
    if isinstance(declared, str) or not isinstance(declared, Iterable):
        raise SchemaError(f"{name!r}: expected bounds (low, high) or a list of categories")
    values = list(declared)
    if len(values) > 2 or any(isinstance(v, str | bool) for v in values):
        return _mapped(name, {"categories": declared if isinstance(declared, set | frozenset) else values})
    return _mapped(name, {"bounds": values})


def _mapped(name: str, declared: Mapping[str, object]) -> Declaration:
    if unknown := sorted(declared.keys() - _KEYS):
        raise SchemaError(f"{name!r}: expected {', '.join(sorted(_KEYS))}, and no {unknown[0]}")
    kinds = [key for key in _KINDS if key in declared]
    if len(kinds) != 1:
        raise SchemaError(f"{name!r}: expected bounds, or one of {', '.join(_KINDS[1:])} and product")
    (kind,) = kinds
    if kind != "bounds" and ("transform" in declared or "knots" in declared):
        raise SchemaError(f"{name!r}: transform and knots need bounds")
    if kind != "categories" and "per" in declared:
        raise SchemaError(f"{name!r}: per needs categories, which are the groups")
    gap, part = declared.get("missing", "drop"), declared.get("part")
    if gap not in _GAPS:
        raise SchemaError(f"{name!r}: expected missing to be one of {', '.join(_GAPS)}")
    if isinstance(declared.get("cyclic"), str) and declared["cyclic"] in PERIODS and part is None:
        part = declared["cyclic"]
    _check_part(name, declared, part)
    shared = {"name": name, "column": str(declared.get("column", name)), "part": part, "format": declared.get("format")}
    read = {"categories": _category, "hash": _hashed, "text": _hashed}.get(kind, _number)
    return read(name, declared, gap, shared)


def _check_part(name: str, declared: Mapping[str, object], part: object) -> None:
    if part is not None and part not in PARTS:
        raise SchemaError(f"{name!r}: expected part to be one of {', '.join(PARTS)}")
    if "format" in declared and part is None:
        raise SchemaError(f"{name!r}: format is for dates; say which part of them is the value")


def _hashed(name: str, declared: Mapping[str, object], gap: str, shared: dict[str, Any]) -> Declaration:
    if any(key in declared for key in ("typical", "decimal", "other", "part")) or gap != "drop":
        raise SchemaError(f"{name!r}: a text that is hashed or open has no typical, decimal, missing, other and part")
    if "text" in declared:
        return Declaration(values=(), codes={}, pieces=byte_pieces(name, declared["text"]), **shared)
    pieces = bucket_pieces(name, declared["hash"])
    return Declaration(values=(), codes={}, pieces=pieces, baseline=f"{name}#0", **shared)


def _number(name: str, declared: Mapping[str, Any], gap: str, shared: dict[str, Any]) -> Declaration:
    bounds, baseline = (-math.inf, math.inf), None
    if "bounds" in declared:
        unknown = declared["bounds"] == PRIVATE
        if unknown and declared.keys() & {"transform", "knots", "typical"}:
            raise SchemaError(f"{name!r}: transform, knots and typical need public bounds")
        bounds = declared_bounds(name, (-FURTHEST, FURTHEST) if unknown else declared["bounds"])
        pieces = tuple(piece._replace(private=unknown) for piece in number_pieces(name, bounds, declared))
    elif "bins" in declared:
        pieces, baseline = bin_pieces(name, declared["bins"]), f"{name} below {declared['bins'][0]:g}"
    else:
        pieces = cyclic_pieces(name, declared["cyclic"])
    typical = None
    if "typical" in declared:
        if bounds[0] == -math.inf:
            raise SchemaError(f"{name!r}: typical needs bounds")
        typical = _typical(name, declared["typical"], bounds)
    if "decimal" in declared:
        shared["decimal"] = decimal_places(name, declared["decimal"])
        if shared["part"] is not None:
            raise SchemaError(f"{name!r}: expected part or decimal, not both")
    if gap == "category" or declared.get("other"):
        raise SchemaError(f"{name!r}: missing: category and other are for categories; a number may be zero or typical")
    if gap == "typical" and typical is None:
        raise SchemaError(f"{name!r}: missing: typical needs typical: [centre, spread]")
    fill = {"drop": None, "zero": "0", "typical": typical and repr(typical[0])}[gap]
    return Declaration(values=bounds, codes={}, pieces=pieces, baseline=baseline, typical=typical, fill=fill, **shared)


def _category(name: str, declared: Mapping[str, Any], gap: str, shared: dict[str, Any]) -> Declaration:
    alone = gap != "category" and not declared.get("other")
    categories = declared_categories(name, declared["categories"], 2 if alone else 1)
    if "decimal" in declared:
        raise SchemaError(f"{name!r}: decimal is for numbers with bounds")
    if gap == "typical" or "typical" in declared:
        raise SchemaError(f"{name!r}: typical is for numbers; a missing category may be zero or category")
    fill = {"drop": None, "zero": categories[0], "category": MISSING}[gap]
    codes = spellings(categories)
    more = [*([OTHER] if declared.get("other") else []), *([MISSING] if gap == "category" else [])]
    if taken := [level for level in more if level in categories]:
        raise SchemaError(f"{name!r}: {taken[0]} cannot be declared; missing: category and other: true add it")
    codes |= {level: len(categories) + i for i, level in enumerate(more)}
    values = (*categories, *more)
    if per := _per(name, declared.get("per", False)):  # a gap or another value is none of the groups
        pieces = tuple(Piece(f"{name}={level}", "level", (k,), own=True) for k, level in enumerate(categories))
        return Declaration(values=values, codes=codes, pieces=pieces, fill=fill, per=per, **shared)
    pieces = tuple(Piece(f"{name}={level}", "level", (k,)) for k, level in enumerate(values) if k)
    baseline = f"{name}={categories[0]}"
    return Declaration(values=values, codes=codes, pieces=pieces, baseline=baseline, fill=fill, **shared)


def _per(name: str, given: object) -> bool | tuple[str, ...]:
    """The features of which each category has its own effects."""
    if isinstance(given, bool):
        return given
    listed = tuple(given) if isinstance(given, Sequence) and not isinstance(given, str) else ()
    if not listed or len(set(listed)) < len(listed):
        raise SchemaError(f"{name!r}: expected per to be true, or to name other features")
    return listed


def _typical(name: str, given: Any, bounds: Bounds) -> tuple[float, float]:
    """The declared typical centre and spread of a number, which lie within its bounds."""
    try:
        centre, spread = (float(b) for b in given)
    except (TypeError, ValueError, OverflowError):
        raise SchemaError(f"{name!r}: expected typical (centre, spread)") from None
    low, high = bounds
    if not (low <= centre <= high and 0 < spread <= high - low):
        raise SchemaError(f"{name!r}: expected a typical centre within the bounds, and a positive spread")
    return centre, spread
