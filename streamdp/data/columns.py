"""Raw columns as arrays: texts as codes, texts as numbers, and the faults of the records in them."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from datetime import date, time

import numpy as np

from streamdp.data.late import pl
from streamdp.data.subjects import FLOAT_TEXT
from streamdp.errors import SchemaError

MOST_BYTES = 32
"""The length of a decimal: 76 digits, as many as databases have."""


class Faults:
    """The first fault of each of n records. `good` (n,) bool is True for a record without a fault."""

    def __init__(self, n: int) -> None:
        self.good = np.ones(n, dtype=bool)
        self.found: list[tuple[np.ndarray, str, str]] = []

    def add(self, where: np.ndarray, reason: str, column: str) -> None:
        """Note a fault, with a reason, in a column of the records `where`, (n,) bool, that have none yet."""
        if where.any():
            rows = np.flatnonzero(where & self.good)
            if len(rows):
                self.found.append((rows, reason, column))
                self.good[rows] = False

    def found_by_row(self) -> list[tuple[int, str, str]]:
        """Return record, reason and column of each fault, in the order of the records."""
        return sorted((i, reason, column) for rows, reason, column in self.found for i in rows.tolist())

    def refuse(self) -> None:
        """Raise `SchemaError` for the first fault that was found; without faults, do nothing."""
        for _, reason, column in self.found[:1]:
            gap = ": leave such records out, or declare what missing values mean"
            said = reason.replace("_", " ") + gap * (reason in ("missing", "not_finite"))
            raise SchemaError(f"column {column!r}: {said}")


def text_of(value: object) -> str | None:
    """Return a scalar value, of JSON or numpy, or a date or time, as the text that CSV would have; None for None.

    Raises `TypeError` for a nested value.
    """
    match value:
        case None | str():
            return value
        case bool() | np.bool_():
            return "true" if value else "false"
        case int() | float() | np.number():
            return repr(value.item() if isinstance(value, np.number) else value)
        case date() | time():
            return value.isoformat()
        case np.datetime64():
            return str(value)
    raise TypeError(f"no text for a {type(value).__name__}")


def text_series(name: str, value: object) -> pl.Series:
    """Return a scalar value as a column, with a name, of one text, as `text_of` writes it; or raise `SchemaError`."""
    with contextlib.suppress(Exception):  # an object may raise anything, with itself in the message
        return pl.Series(name, [text_of(value)], dtype=pl.String)
    raise SchemaError(f"column {name!r}: expected text, a number or a time, got {type(value).__name__}")


def decimals(column: pl.Series, places: int, faults: Faults) -> pl.Series:
    """Return a column of decimals as numbers, Float64; null for an empty text. Kafka Connect writes them so in JSON.

    The n texts are the base64 of a whole number, as bytes in two's complement, the highest one first; `places` of its
    digits are decimal places. Other texts, and more than `MOST_BYTES`, are faults `not_a_number`.
    """
    raw = column.str.decode("base64", strict=False) if column.dtype == pl.String else [None] * len(column)
    found = [
        int.from_bytes(data, "big", signed=True) / 10**places if data and len(data) <= MOST_BYTES else None
        for data in raw
    ]
    read = pl.Series(column.name, found, dtype=pl.Float64)
    faults.add(read.is_null().to_numpy() & ~blank(column), "not_a_number", column.name)
    return read


def blank(column: pl.Series) -> np.ndarray:
    """Return which of the n values of a column are null or empty, (n,) bool."""
    null: np.ndarray = column.is_null().to_numpy() if column.null_count() else np.zeros(len(column), dtype=bool)
    if column.dtype != pl.String:
        return null
    empty = column == ""
    return null | (empty.fill_null(False) if empty.null_count() else empty).to_numpy()


def codes(column: pl.Series, code_of: Mapping[str, int]) -> np.ndarray:
    """Return the code of each of the n texts of a column, (n,) int32; -1 for a text that is not in `code_of`."""
    levels = list(code_of)
    code_of_level = np.array([*code_of.values(), -1], dtype=np.int32)
    physical = column.cast(pl.Enum(levels), strict=False).to_physical().cast(pl.Int32)
    return code_of_level[(physical.fill_null(-1) if physical.null_count() else physical).to_numpy()]


def numbers(column: pl.Series, faults: Faults) -> np.ndarray:
    """Return a column as (n,) float64. A value that is not a finite number is a fault; its number has no meaning."""
    values = column
    if column.dtype == pl.String:
        text = column.str.strip_chars()
        values = text.cast(pl.Float64, strict=False)
        if values.null_count():
            faults.add(blank(text), "missing", column.name)
            faults.add(values.is_null().to_numpy(), "not_a_number", column.name)
    elif values.null_count():
        faults.add(values.is_null().to_numpy(), "missing", column.name)
    array = (values.fill_null(0.0) if values.null_count() else values).to_numpy()
    finite = np.isfinite(array)
    if not finite.all():
        faults.add(~finite, "not_finite", column.name)
    return array


def whole_numbers(column: pl.Series, faults: Faults) -> pl.Series:
    """Return the shortest decimal texts of a column of whole numbers: 7 for 7, +7 and 007. Other values are faults.

    Blanks around a number are ignored.
    """
    text = column.cast(pl.String).str.strip_chars()
    faults.add(blank(text), "missing", column.name)
    faults.add(~text.str.contains(r"^[+-]?[0-9]{1,300}$").fill_null(False).to_numpy(), "not_an_integer", column.name)
    shortest = text.str.replace(r"^\+", "").str.replace(r"^(-?)0+([0-9])", "${1}${2}")
    return shortest.str.replace(r"^-0$", "0")


def people(column: pl.Series, whole: bool, faults: Faults) -> pl.Series:
    """Return a column of subjects as text, `whole` numbers or any. A value that is none (see `subjects`) is a fault."""
    if whole:
        return whole_numbers(column, faults)
    faults.add(blank(column), "missing", column.name)
    float_text = column.str.contains(FLOAT_TEXT)
    faults.add((float_text.fill_null(False) if column.null_count() else float_text).to_numpy(), "float", column.name)
    return column
