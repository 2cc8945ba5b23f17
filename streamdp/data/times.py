"""The column with the time of a record: read by its declared unit, and compared with the present."""

from __future__ import annotations

import time
from dataclasses import dataclass

import numpy as np

from streamdp.data.columns import Faults, blank
from streamdp.data.late import pl
from streamdp.data.notation import Notation, written
from streamdp.errors import SchemaError

UNITS = {"iso": 0.0, "seconds": 1.0, "milliseconds": 1e3, "microseconds": 1e6}
"""Text in ISO 8601, or numbers since 1970 (UTC), with how many of them are a second."""

YEAR_10000 = 253_402_300_800.0
"""Its first second since 1970 (UTC). Such a time has no text in ISO 8601."""

_OFFSET = r"[+-][0-9]{2}(:?[0-9]{2})?$"


def present() -> float:
    """Return the present in seconds since 1970 (UTC)."""
    return time.time()


@dataclass(frozen=True, slots=True)
class TimeColumn:
    """The column with the time of a record. Raises `SchemaError` for another unit than `UNITS`.

    ISO 8601 text without an offset is UTC; a date alone is its first moment. `limits` says how far a time may be before
    and after the present, in seconds; None: any.
    """

    column: str
    unit: str
    limits: tuple[float, float] | None = None

    def __post_init__(self) -> None:
        if self.unit not in UNITS:
            raise SchemaError(f"time: expected a unit of {', '.join(UNITS)}")

    def read(self, frame: pl.DataFrame, notation: Notation | None, faults: Faults) -> np.ndarray:
        """Return the times (n,) float64 of a frame, in seconds since 1970 (UTC).

        Numbers have the `notation` of the source. A time that cannot be read is a fault `missing` or `not_a_time`, or
        says more: `before_1970`, or `another_unit` if it is beyond the year 9999, as milliseconds that are declared as
        seconds are. One outside the limits is `too_late` or `too_early`. Its number has no meaning.
        """
        text = frame.get_column(self.column).cast(pl.String).str.strip_chars()
        iso = self.unit == "iso"
        times = _iso(text) if iso else _numbers(written(text, notation)) / UNITS[self.unit]
        faults.add(blank(text), "missing", self.column)
        faults.add(np.isnan(times), "not_a_time", self.column)
        faults.add(times < 0, "before_1970", self.column)
        faults.add(times >= YEAR_10000, "another_unit", self.column)
        if self.limits is not None:
            now, (late, ahead) = present(), self.limits
            faults.add(times < now - late, "too_late", self.column)
            faults.add(times > now + ahead, "too_early", self.column)
        return times


def _numbers(text: pl.Series) -> np.ndarray:
    numbers: np.ndarray = text.cast(pl.Float64, strict=False).fill_null(np.nan).to_numpy().copy()
    numbers[~np.isfinite(numbers)] = np.nan
    return numbers


def _iso(text: pl.Series) -> np.ndarray:
    """Seconds of texts in ISO 8601; NaN for other texts."""
    whole = pl.DataFrame({"text": text}).select(
        pl.col("text")
        .str.to_uppercase()
        .str.replace(r"^([0-9]{4}-[0-9]{2}-[0-9]{2})$", "${1}T00:00:00")
        .str.replace(r"^([0-9-]{10}) ", "${1}T")
        .str.replace(r"Z$", "+00:00")
        .str.replace(r"(T[0-9]{2}:[0-9]{2})([+-]|$)", "${1}:00${2}")
        .alias("text")
    )
    zoned = whole.with_columns(
        pl.when(pl.col("text").str.contains("T.*" + _OFFSET))
        .then(pl.col("text").str.replace(r"([+-][0-9]{2})$", "${1}:00"))
        .otherwise(pl.col("text") + "+00:00")
        .alias("text")
    )
    read = zoned.get_column("text").str.strptime(pl.Datetime("us", "UTC"), "%Y-%m-%dT%H:%M:%S%.f%z", strict=False)
    micros = read.dt.epoch("us").cast(pl.Float64).fill_null(np.nan).to_numpy()
    return micros / 1e6
