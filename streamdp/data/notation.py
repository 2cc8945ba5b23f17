"""How numbers are written in a text file: the decimal mark, and what stands between groups of three digits."""

from __future__ import annotations

from dataclasses import dataclass

from streamdp.data.late import pl
from streamdp.errors import ConfigError

_SPELLINGS = {" ": " \u00a0\u202f\u2009", "'": "'\u2019"}
"""Marks of thousands with several characters: blanks that do not break, as French and Excel write, and apostrophes."""


@dataclass(frozen=True, slots=True)
class Notation:
    """How a source writes numbers. Raises `ConfigError` for marks that are no two different characters.

    It belongs to the source, and the encoder applies it wherever a text is read as a number.
    """

    decimal: str
    thousands: str | None = None

    def __post_init__(self) -> None:
        known = self.decimal in (".", ",") and self.thousands in (None, ".", ",", " ", "'", "_")
        if not known or self.decimal == self.thousands:
            expected = "decimal . or , and another character of . , ' _ or a blank as thousands"
            raise ConfigError(f"numbers: expected {expected}")

    @property
    def _marks(self) -> str:
        return f"[{_SPELLINGS.get(self.thousands or '', self.thousands)}]"

    def fits(self, column: pl.Series) -> pl.Series:
        """Say which texts of a column are numbers in this notation, (n,) bool."""
        groups = rf"[0-9]{{1,3}}(?:{self._marks}[0-9]{{3}})+|" if self.thousands else ""
        pattern = rf"^\s*[+-]?(?:{groups}[0-9]*)(?:[{self.decimal}][0-9]*)?(?:[eE][+-]?[0-9]+)?\s*$"
        return column.str.contains(pattern).fill_null(False)

    def usual(self, column: pl.Series) -> pl.Series:
        """Return a column of text with the numbers in this notation as Python writes them. Other texts stay."""
        bare = column.str.replace_all(self._marks, "") if self.thousands else column
        return bare.str.replace(self.decimal, ".", literal=True).zip_with(self.fits(column), column)

    def numbers(self, column: pl.Series) -> pl.Series:
        """As `usual`, for a column of numbers: one in another notation becomes `?`, which is none.

        With decimal commas, 1.5 may be 1.5 or a wrong group of thousands.
        """
        other = ~self.fits(column) & column.str.contains("[0-9]").fill_null(False)
        return self.usual(column).set(other, "?")


def written(column: pl.Series, notation: Notation | None) -> pl.Series:
    """Return a column of numbers, whose texts have the `notation`, with texts as Python writes them; None: they are."""
    return column if notation is None or column.dtype != pl.String else notation.numbers(column)
