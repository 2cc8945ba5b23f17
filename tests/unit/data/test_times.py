"""The times of records: read by their declared unit, never guessed, and compared with the present."""

from collections import Counter
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from streamdp.data import times
from streamdp.data.columns import Faults
from streamdp.data.schema import Schema
from streamdp.data.times import TimeColumn
from streamdp.errors import SchemaError
from streamdp.runtime.bad_records import fixes

NOW = 1_763_000_000.0


def read(unit: str, values: list[Any], limits: tuple[float, float] | None = None) -> list[Any]:
    """The time of each value, or its fault."""
    faults = Faults(len(values))
    found: list[Any] = TimeColumn("at", unit, limits).read(pl.DataFrame({"at": values}), None, faults).tolist()
    for i, reason, _ in faults.found_by_row():
        found[i] = reason
    return found


@settings(deadline=None, max_examples=50)
@given(
    st.datetimes(datetime(1970, 1, 3), datetime(2200, 1, 1)),
    st.integers(-23 * 60, 23 * 60),
    st.sampled_from(["T", " ", "t"]),
    st.sampled_from(["seconds", "milliseconds", "microseconds", "auto"]),
)
def test_iso_text_is_what_python_reads(moment: datetime, offset: int, between: str, spec: str) -> None:
    zoned = moment.replace(tzinfo=timezone(timedelta(minutes=offset)))
    text = zoned.isoformat(between.upper(), spec).replace("T", between)
    assert read("iso", [text]) == pytest.approx([datetime.fromisoformat(text.replace("t", "T")).timestamp()], abs=1e-5)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("2026-11-22T16:05:00Z", "2026-11-22T16:05:00+00:00"),
        ("2026-11-22t16:05z", "2026-11-22T16:05:00+00:00"),
        (" 2026-11-22 16:05:00 ", "2026-11-22T16:05:00+00:00"),
        ("2026-11-22T16:05:00+0100", "2026-11-22T15:05:00+00:00"),
        ("2026-11-22T16:05:00-05", "2026-11-22T21:05:00+00:00"),
        ("2026-11-22", "2026-11-22T00:00:00+00:00"),
    ],
)
def test_other_forms_of_iso_text(text: str, expected: str) -> None:
    assert read("iso", [text]) == [datetime.fromisoformat(expected).timestamp()]


def test_what_is_no_time_is_a_fault() -> None:
    bad = ["1763000000", "22.11.2026", "2026-13-01", "2026-11-22T25:00:00", "2026-11-22T16", "now", "-"]
    assert read("iso", [*bad, "", None]) == ["not_a_time"] * len(bad) + ["missing"] * 2
    bad = ["2026-11-22", "nan", "inf", "1e400"]
    assert read("seconds", [*bad, ""]) == ["not_a_time"] * len(bad) + ["missing"]


def test_a_time_out_of_range_says_why() -> None:
    assert read("iso", ["1960-01-01", "1969-12-31T23:59:59Z", "1970-01-01"]) == ["before_1970"] * 2 + [0.0]
    assert read("seconds", ["-1", "1763000000250", "253402300799"]) == ["before_1970", "another_unit", 253402300799.0]
    assert read("milliseconds", ["1763000000250000"]) == ["another_unit"]
    reasons = Counter({("before_1970", "at"): 2, ("another_unit", "at"): 1})
    assert [text.partition(";")[0] for text in fixes(reasons)] == [
        "'at': times are counted from 1970-01-01 (UTC) on: leave such records out, or schema.time",
        "'at': its numbers lie beyond the year 9999: declare unit: milliseconds or microseconds in schema.time",
    ]


def test_numbers_have_their_unit() -> None:
    assert read("seconds", ["1763000000.25", " 0 "]) == [1763000000.25, 0.0]
    assert read("milliseconds", ["1763000000250"]) == [1763000000.25]
    assert read("milliseconds", pl.Series([1763000000250]).to_list()) == [1763000000.25]
    assert read("microseconds", ["1763000000250000"]) == [1763000000.25]
    with pytest.raises(SchemaError, match="iso, seconds, milliseconds, microseconds"):
        TimeColumn("at", "days")


def test_the_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(times, "present", lambda: NOW)
    values = [str(NOW + shift) for shift in (-61, -60, 0, 30, 31)]
    assert read("seconds", values, (60, 30)) == ["too_late", NOW - 60, NOW, NOW + 30, "too_early"]


def test_a_schema_keeps_times_with_their_records() -> None:
    schema = Schema({"a": (0, 1)}, "y", subject="who", time=TimeColumn("at", "iso"))
    at = [datetime.fromtimestamp(NOW + i, UTC).isoformat() for i in range(4)]
    at[2] = "yesterday"
    frame = pl.DataFrame({"a": [0.5, 0.5, 0.5, None], "y": [1.0] * 4, "who": ["ann"] * 4, "at": at})
    batch = schema.encode(frame, np.arange(4), {})
    assert batch.times.tolist() == [NOW, NOW + 1]
    assert [(letter.position, letter.reason, letter.column) for letter in batch.dead] == [
        (2, "not_a_time", "at"),
        (3, "missing", "a"),
    ]
    assert schema.columns == ("a", "y", "who", "at")
