"""The column with the time of a record: read by its declared unit, and compared with the present."""

from __future__ import annotations

import time
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta, tzinfo
from functools import lru_cache
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

import numpy as np

from streamdp.data.columns import Faults, blank
from streamdp.data.late import pl
from streamdp.data.notation import Notation, written
from streamdp.errors import ConfigError, SchemaError

UNITS = {"iso": 0.0, "seconds": 1.0, "milliseconds": 1e3, "microseconds": 1e6}
"""Text in ISO 8601, or numbers since 1970 (UTC), with how many of them are a second."""

YEAR_10000 = 253_402_300_800.0
"""Its first second since 1970 (UTC). Such a time has no text in ISO 8601."""

ZONE = "UTC"
"""The zone of windows of time, if no other is declared."""

_OFFSET = r"[+-][0-9]{2}(:?[0-9]{2})?$"


@dataclass(frozen=True, slots=True)
class Calendar:
    """Windows of `length` seconds on the clock of a time zone, counted from 1970.

    A window of a day lasts 23 or 25 hours when the clock of the zone is changed, and an hour that comes twice is in one
    window. Raises `ConfigError` for an unknown zone.
    """

    length: int
    zone: str = ZONE

    def __post_init__(self) -> None:
        try:
            _offset(self.zone, 0)
        except (ValueError, TypeError, OSError, ZoneInfoNotFoundError):
            need = (
                "the name of a time zone, such as Europe/Berlin (the package tzdata has them, if the system has none)"
            )
            raise ConfigError(f"zone: expected {need}") from None

    def numbers(self, times: np.ndarray) -> np.ndarray:
        """Return the windows (n,) int64 of times (n,), in seconds since 1970 (UTC)."""
        if self.zone != ZONE:
            minutes, places = np.unique(times // 60, return_inverse=True)
            times = times + np.array([_offset(self.zone, minute) for minute in minutes.tolist()])[places]
        return np.floor_divide(times, self.length).astype(np.int64)

    def start(self, window: int) -> str:
        """Return the beginning of a window in ISO 8601, with the offset of the zone at that moment."""
        clock = datetime(1970, 1, 1, tzinfo=_clock(self.zone)) + timedelta(seconds=window * self.length)
        return clock.isoformat().replace("+00:00", "Z")


def _clock(zone: str) -> tzinfo:
    return UTC if zone == ZONE else ZoneInfo(zone)


@lru_cache(1 << 16)
def _offset(zone: str, minute: float) -> float:
    """How many seconds the clock of a zone is before UTC in a minute since 1970."""
    offset = datetime.fromtimestamp(60 * minute, _clock(zone)).utcoffset()
    return 0.0 if offset is None else offset.total_seconds()


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
