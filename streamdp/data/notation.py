"""How numbers are written in a text file: the decimal mark, what stands between groups of digits, and units."""

from __future__ import annotations

import re
from dataclasses import dataclass

from streamdp.data.late import pl
from streamdp.errors import ConfigError

_SPELLINGS = {" ": " \u00a0\u202f\u2009", "'": "'\u2019"}
"""Marks of thousands with several characters: blanks that do not break, as French and Excel write, and apostrophes."""


@dataclass(frozen=True, slots=True)
class Notation:
    """How a source writes numbers. Raises `ConfigError` for marks that are no two different characters, or a bad unit.

    `units` are texts that stand before or after a number and are passed over, such as `CHF` and `%`: 12 % is 12. It
    belongs to the source, and the encoder applies it wherever a text is read as a number.
    """

    decimal: str
    thousands: str | None = None
    units: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        known = self.decimal in (".", ",") and self.thousands in (None, ".", ",", " ", "'", "_")
        if not known or self.decimal == self.thousands:
            expected = "decimal . or , and a mark of thousands that differs, of . , ' _ or a blank"
            raise ConfigError(f"numbers: expected {expected}")
        if not all(re.fullmatch(r"[^\d\s.,'_+-][^\d\s,'_+-]*", unit) for unit in self.units):
            raise ConfigError("units: expected texts without digits, blanks, signs and marks, such as CHF and %")

    @property
    def _marks(self) -> str:
        return f"[{_SPELLINGS.get(self.thousands or '', self.thousands)}]"

    def fits(self, column: pl.Series) -> pl.Series:
        """Say which texts of a column are numbers in this notation, (n,) bool."""
        return self._fits(self.without_units(column))

    def _fits(self, bare: pl.Series) -> pl.Series:
        mark, groups = self._marks, ""
        if self.thousands:  # 1,234,567, and in India 12,34,567
            groups = rf"[0-9]{{1,3}}(?:{mark}[0-9]{{3}})+|[0-9]{{1,2}}(?:{mark}[0-9]{{2}})+{mark}[0-9]{{3}}|"
        pattern = rf"^\s*[+-]?(?:{groups}[0-9]*)(?:[{self.decimal}][0-9]*)?(?:[eE][+-]?[0-9]+)?\s*$"
        return bare.str.contains(pattern).fill_null(False)

    def without_units(self, column: pl.Series) -> pl.Series:
        """Return a column of text without the units beside numbers. Other texts stay."""
        if not self.units:
            return column
        units = "|".join(map(re.escape, sorted(self.units, key=len, reverse=True)))
        ahead = column.str.replace(rf"^\s*([+-]?)\s*(?:{units})\s*([+-]?[0-9.,])", "$1$2")
        return ahead.str.replace(rf"([0-9.,])\s*(?:{units})\s*$", "$1")

    def usual(self, column: pl.Series) -> pl.Series:
        """Return a column of text with the numbers in this notation as Python writes them. Other texts stay."""
        bare = self.without_units(column)
        plain = bare.str.replace_all(self._marks, "") if self.thousands else bare
        return plain.str.replace(self.decimal, ".", literal=True).zip_with(self._fits(bare), column)

    def numbers(self, column: pl.Series) -> pl.Series:
        """As `usual`, for a column of numbers: one in another notation becomes `?`, which is none.

        With decimal commas, 1.5 may be 1.5 or a wrong group of thousands.
        """
        other = ~self.fits(column) & column.str.contains("[0-9]").fill_null(False)
        return self.usual(column).set(other, "?")


def written(column: pl.Series, notation: Notation | None) -> pl.Series:
    """Return a column of numbers, whose texts have the `notation`, with texts as Python writes them; None: they are."""
    return column if notation is None or column.dtype != pl.String else notation.numbers(column)
