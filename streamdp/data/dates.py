"""Parts of dates and times that are written as text. The time is taken as it is written, in its own zone.

Each text is read alone: a reader that infers the format from a column would make records depend on each other.
"""

from __future__ import annotations

from streamdp.data.columns import Faults, blank
from streamdp.data.late import pl

PARTS = ("year", "month", "day", "weekday", "hour", "minute")
"""The parts of a date; a weekday is 1 for Monday to 7 for Sunday."""

NAMES = {
    "month": ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"),
    "weekday": ("Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun"),
}
"""The names of parts as categories, from 1."""

EPOCHS = {"days": 86_400_000_000, "seconds": 1_000_000, "milliseconds": 1_000, "microseconds": 1}
"""Formats that count since 1970 (UTC), as Avro's dates do, in microseconds."""
YEARS = (-62_135_596_800_000_000, 253_402_300_800_000_000)
"""When the years 1 and 10,000 begin, in microseconds since 1970: a date is between them, as of Python."""

_ZONES = ("%z", "%:z", "%::z", "%:::z", "%#z", "%+")
"""Codes of `strftime` for an offset from UTC."""

_ZONE = r"(?:Z|[+-][0-9]{2}(?::?[0-9]{2})?)?"
_ISO_TIME = rf"([0-9]{{2}}):[0-9]{{2}}(?::[0-9]{{2}}(?:[.,][0-9]+)?)?{_ZONE}$"
_ISO = rf"^[0-9]{{4}}-[0-9]{{2}}-[0-9]{{2}}(?:[T ]{_ISO_TIME[:-1]})?$"


def part_of(column: pl.Series, part: str, written: str | None, named: bool, faults: Faults) -> pl.Series:
    """Return a part, one of `PARTS`, of n dates: Float64, or its name as text if `named`; null for an empty text.

    Texts are written in a format of `strftime`; None is ISO 8601, such as 2013-01-31, 2013-01-31T23:59:00Z or 23:59
    (hour and minute only), and one of `EPOCHS` counts since 1970. Other texts in the column are faults `not_a_date`.
    """
    text = column.cast(pl.String).str.strip_chars()
    if written in EPOCHS:
        numbers = _counted(text, part, EPOCHS[written])
    else:
        numbers = _written(text, part, written) if written is not None else _iso(text, part)
    missing = blank(text)
    faults.add(numbers.is_null().to_numpy() & ~missing, "not_a_date", column.name)
    if not named:
        return numbers.cast(pl.Float64).alias(column.name)
    names = dict(enumerate(NAMES[part], 1))
    return numbers.cast(pl.Int64).replace_strict(names, default=None, return_dtype=pl.String).alias(column.name)


def _iso(text: pl.Series, part: str) -> pl.Series:
    if part in ("hour", "minute"):
        clock = text.str.extract(r"(?:^|[T ])([0-9]{2}:[0-9]{2})", 1)
        whole = text.str.contains(_ISO).fill_null(False) | text.str.contains("^" + _ISO_TIME).fill_null(False)
        hours = clock.str.slice(0, 2).cast(pl.Int64, strict=False)
        minutes = clock.str.slice(3, 2).cast(pl.Int64, strict=False)
        good = whole & (hours < 24).fill_null(False) & (minutes < 60).fill_null(False)
        return (hours if part == "hour" else minutes).set(~good, None)
    days = text.str.slice(0, 10).str.to_date("%Y-%m-%d", strict=False)
    return _of(days, part).cast(pl.Int64).set(~text.str.contains(_ISO).fill_null(False), None)


def _counted(text: pl.Series, part: str, unit: int) -> pl.Series:
    moments = text.cast(pl.Float64, strict=False) * unit
    known = moments.is_between(*YEARS, closed="left").fill_null(False)
    moments = moments.set(~known, None).floor().cast(pl.Int64)
    return _of(pl.from_epoch(moments, time_unit="us"), part).cast(pl.Int64)


def _written(text: pl.Series, part: str, written: str) -> pl.Series:
    written = written.replace(".%f", "%.f")  # Python leaves out the fraction of a whole second, and polars warns
    has_time = any(code in written for code in ("%H", "%I", "%T", "%R", "%X", "%k", "%s", "%r", "%c", "%+"))
    has_date = any(code in written for code in ("%d", "%e", "%j", "%F", "%D", "%x", "%s", "%c", "%+", "%y", "%Y"))
    try:
        if not has_date:
            moments = text.str.to_time(written, strict=False)
        elif has_time:
            moments = text.str.to_datetime(written, strict=False)
            if any(
                code in written for code in _ZONES
            ):  # the moments are in UTC; a date or time alone leaves out the zone
                alone = text.str.to_time if part in ("hour", "minute") else text.str.to_date
                moments = alone(written, strict=False).set(moments.is_null(), None)
        else:
            moments = text.str.to_date(written, strict=False)
        return _of(moments, part).cast(pl.Int64)
    except (pl.exceptions.PolarsError, pl.exceptions.PanicException):  # the format has no such part, or is none
        return pl.Series([None] * len(text), dtype=pl.Int64)


def _of(moments: pl.Series, part: str) -> pl.Series:
    if moments.dtype != pl.Time:
        moments = moments.set((moments.dt.year() < 1).fill_null(False), None)  # no date in Python and ISO 8601
    return getattr(moments.dt, part)()
