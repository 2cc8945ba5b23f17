"""Declared rules for gaps, other values and dates: what a record becomes, and that its row keeps its bounds."""

import base64
from datetime import datetime
from fractions import Fraction
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamdp.config.job import make_config
from streamdp.config.schema import SchemaConfig
from streamdp.data.dates import PARTS
from streamdp.data.schema import Schema
from streamdp.errors import ConfigError, SchemaError
from streamdp.protocol.local_agreement import LocalAgreement
from streamdp.service.features import RecordReader

RULES: dict[str, Any] = {
    "age": {"bounds": (0, 100), "typical": (40, 10), "missing": "typical"},
    "debt": {"bounds": (10, 20), "missing": "zero"},
    "city": {"categories": ["Paris", "Lyon"], "other": True, "missing": "category"},
    "sex": {"categories": ["f", "m"], "missing": "zero"},
    "hour": {"column": "at", "part": "hour", "bounds": (0, 23)},
    "day": {"column": "at", "part": "weekday", "categories": ["Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun"]},
    "ok": {"categories": ["false", "true"]},
}
FULL = {"age": "50", "debt": "15", "city": "Lyon", "sex": "m", "at": "2024-01-02T23:30:00Z", "ok": "TRUE"}


def encode(**changes: object) -> dict[str, float]:
    return Schema(RULES, "y", missing_values=["NA"]).encode_one({**FULL, **changes})[0]


def test_a_full_record() -> None:
    x = encode()
    assert x == encode(age=np.int64(50), at=np.datetime64("2024-01-02T23:30"))
    assert x["age"] == x["debt"] == 0.0
    assert [name for name, value in x.items() if value == 1.0] == ["city=Lyon", "sex=m", "hour", "day=Tue", "ok=true"]


@pytest.mark.parametrize("gap", [None, "", "NA", pd.NA, pd.NaT, np.float32("nan"), np.datetime64("NaT")])
def test_gaps_have_their_declared_meaning(gap: object) -> None:
    assert encode(age=gap)["age"] == pytest.approx(-0.2)  # 40, the typical centre
    assert encode(debt=gap)["debt"] == -1.0  # 0, clipped to the bounds
    x = encode(city=gap, sex=gap)
    assert (x["city=(missing)"], x["city=(other)"], x["city=Lyon"], x["sex=m"]) == (1.0, 0.0, 0.0, 0.0)
    with pytest.raises(SchemaError, match="column 'at': missing: leave such records out, or declare"):
        encode(at=gap)


def test_other_values_have_one_category() -> None:
    x = encode(city="Rome")
    assert (x["city=(other)"], x["city=Lyon"], x["city=(missing)"]) == (1.0, 0.0, 0.0)
    with pytest.raises(SchemaError, match="column 'sex': unknown category"):
        encode(sex="x")


@pytest.mark.parametrize(
    ("part", "text", "value"),
    [
        ("year", "2024-02-29", 2024),
        ("month", "2024-02-29 01:02", 2),
        ("day", "2024-02-29T01:02:03.5+02:00", 29),
        ("weekday", "2024-02-29", 4),
        ("hour", "23:59", 23),
        ("minute", "2024-02-29 01:02", 2),
        ("hour", "2024-02-29", None),  # no time
        ("day", "2023-02-29", None),
        ("hour", "24:00", None),
        ("year", "29.02.2024", None),
        ("year", "2024", None),
        ("year", "2024-02-29x", None),
    ],
)
def test_parts_of_dates_as_python_reads_them(part: str, text: str, value: int | None) -> None:
    schema = Schema({"d": {"part": part, "bounds": (0, 4000)}}, "y")
    frame = pl.DataFrame({"d": [text, "2000-01-01T00:00"], "y": ["1", "1"]})
    batch = schema.encode(frame, np.arange(2), {})
    if value is None:
        assert [(d.position, d.reason) for d in batch.dead] == [(0, "not_a_date")]
    else:
        assert not batch.dead
        assert batch.X[0, 0] == pytest.approx(value / 2000 - 1)


@pytest.mark.parametrize(
    ("written", "text"),
    [
        ("%Y-%m-%dT%H:%M:%S%z", "2024-01-31T23:30:00-0500"),
        ("%Y-%m-%dT%H:%M:%S%:z", "2024-01-31T23:30:00-05:00"),
        ("%FT%T%#z", "2024-01-31T23:30:00-05"),
        ("%+", "2024-01-31T23:30:00-05:00"),
        ("%a %b %d %H:%M:%S %z %Y", "Wed Jan 31 23:30:00 -0500 2024"),
    ],
)
def test_a_part_is_in_the_zone_in_which_the_time_is_written(written: str, text: str) -> None:
    features = {part: {"column": "d", "part": part, "format": written, "bounds": (0, 4000)} for part in PARTS}
    frame = pl.DataFrame({"d": [text, text.replace("31", "32")], "y": [1.0, 1.0]})
    batch = Schema(features, "y").encode(frame, np.arange(2), {})
    values = np.rint((batch.X[0] + 1) * 2000)
    assert dict(zip(PARTS, values, strict=True)) == dict(zip(PARTS, (2024, 1, 31, 3, 23, 30), strict=True))
    assert [letter.reason for letter in batch.dead] == ["not_a_date"]


def test_formats_of_dates() -> None:
    when = datetime(2024, 3, 1, 13, 45)
    for written in ("%d.%m.%Y %H:%M", "%m/%d/%Y %I:%M %p"):
        for part in ("year", "month", "day", "hour", "minute"):
            schema = Schema({"d": {"part": part, "format": written, "bounds": (0, 4000)}}, "y")
            found = schema.encode_one({"d": when.strftime(written)})[0]["d"]
            assert found == pytest.approx(getattr(when, part) / 2000 - 1)
    day = Schema({"d": {"part": "month", "format": "%d.%m.%y", "categories": ["Jan", "Feb", "Mar"]}}, "y")
    assert day.encode_one({"d": "01.03.24"})[0] == {"d=Feb": 0.0, "d=Mar": 1.0}


values = st.one_of(
    st.none(), st.sampled_from(["", "NA", "Paris", "1e300", "-5", "2024-01-02 10:00"]), st.text(max_size=8)
)


@given(st.lists(st.fixed_dictionaries(dict.fromkeys(FULL, values)), min_size=1, max_size=5))
@pytest.mark.slow
def test_rows_are_bounded_and_no_record_depends_on_another(records: list[dict[str, Any]]) -> None:
    schema = Schema(RULES, "y", missing_values=["NA"])
    records = [*records, FULL]
    frame = pl.DataFrame([r | {"y": "1"} for r in records], schema=dict.fromkeys(schema.columns, pl.String))
    whole = schema.encode(frame, np.arange(len(records)), {})
    assert len(whole) + len(whole.dead) == len(records)  # a record stays one record
    assert np.all(np.abs(whole.X) <= 1)
    levels = [j for j, name in enumerate(schema.feature_names) if name.startswith("city=")]
    assert np.all(whole.X[:, levels].sum(axis=1) <= 1)
    alone = [schema.encode(frame[i : i + 1], np.array([i]), {}) for i in range(len(records))]
    assert np.array_equal(np.concatenate([b.X for b in alone]), whole.X)
    assert [d for b in alone for d in b.dead] == whole.dead


@pytest.mark.parametrize(
    ("declared", "message"),
    [
        ({"bounds": (0, 1), "missing": "typical"}, "missing: typical needs typical"),
        ({"bounds": (0, 1), "missing": "category"}, "are for categories"),
        ({"bounds": (0, 1), "missing": "guess"}, "one of drop, zero, category, typical"),
        ({"categories": ["a", "b"], "missing": "typical"}, "typical is for numbers"),
        ({"categories": ["a", "(other)"], "other": True}, "cannot be declared"),
        ({"categories": ["a", "b"], "bounds": (0, 1)}, "expected bounds, or one of categories"),
        ({"typical": (0, 1)}, "expected bounds, or one of categories"),
        ({"bounds": (0, 1), "part": "second"}, "one of year"),
        ({"bounds": (0, 1), "format": "%Y"}, "format is for dates"),
        ({"bounds": (0, 1), "unit": "m"}, "and no unit"),
    ],
)
def test_contradictions_are_refused(declared: Any, message: str) -> None:
    with pytest.raises(SchemaError, match=message):
        Schema({"x": declared}, "y")


def base64_of(unscaled: int, size: int) -> str:
    return base64.b64encode(unscaled.to_bytes(size, "big", signed=True)).decode()


@given(st.integers(-(2**255), 2**255 - 1), st.integers(0, 76))
def test_a_decimal_in_base64_is_the_number_nearest_to_it(unscaled: int, places: int) -> None:
    rules = {"a": {"bounds": (-1, 1), "decimal": places, "column": "x.a"}}
    schema = Schema(rules, "y", target_decimal=places)
    _, y = schema.encode_one({"x": {"a": base64_of(unscaled, 32)}, "y": base64_of(unscaled, 32)})
    assert y == float(Fraction(unscaled, 10**places))


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        ("", "missing"),
        (None, "missing"),
        ("2.50", "not a number"),
        ("=", "not a number"),
        ("AfQ", "not a number"),
        (base64_of(1, 33), "not a number"),
        ({"scale": 2, "value": "AfQ="}, "expected text, a number or a time, got dict"),
    ],
)
def test_what_is_no_decimal_in_base64(value: Any, reason: str) -> None:
    schema = Schema({"a": {"bounds": (0, 1), "decimal": 2}}, "y", target_bounds=(0, 9), target_decimal=2)
    assert schema.encode_one({"a": "AA==", "y": "AfQ="}) == ({"a": -1.0}, 5.0)
    assert schema.numeric_columns == ()
    with pytest.raises(SchemaError, match=f"column 'a': {reason}"):
        schema.encode_one({"a": value, "y": "AfQ="})
    with pytest.raises(SchemaError, match="column 'a': not a number"):
        schema.encode_features(pl.DataFrame({"a": [1234]}))  # a number, whose text would be base64


@pytest.mark.parametrize(
    ("declared", "match"),
    [
        ({"bounds": (0, 1), "decimal": -1}, "from 0 to 76"),
        ({"bounds": (0, 1), "decimal": 77}, "from 0 to 76"),
        ({"bounds": (0, 1), "decimal": True}, "from 0 to 76"),
        ({"bounds": (0, 1), "decimal": 2, "part": "hour"}, "part or decimal"),
        ({"categories": ["a", "b"], "decimal": 2}, "decimal is for numbers"),
    ],
)
def test_decimals_that_are_none(declared: Any, match: str) -> None:
    with pytest.raises(SchemaError, match=match):
        Schema({"a": declared}, "y")
    with pytest.raises(SchemaError, match="a target with classes"):
        Schema({"a": (0, 1)}, "y", classes=["a", "b"], target_decimal=2)


def test_a_missing_decimal_may_have_a_declared_meaning() -> None:
    rule = {"bounds": (0, 100), "decimal": 2, "typical": (40, 10), "missing": "typical"}
    schema = Schema({"a": rule}, "y", missing_values=["NA"])
    assert [schema.encode_one({"a": a, "y": "1"})[0]["a"] for a in (None, "NA", "E4g=")] == pytest.approx(
        [-0.2, -0.2, 0.0]
    )


def test_a_service_reads_features_of_a_job_whose_target_is_a_decimal() -> None:
    target = {"column": "y", "bounds": [0, 9], "decimal": 2}
    declared = SchemaConfig.model_validate({"features": {"a": {"bounds": [0, 1], "decimal": 2}}, "target": target})
    X, flaws = RecordReader(declared).read([{"a": "ZA=="}, {"a": "1.0"}])
    assert (X[0].tolist(), list(flaws)) == ([1.0], [1])


def test_a_device_does_not_know_decimals() -> None:
    target = {"column": "y", "bounds": [0, 9], "decimal": 2}
    model = {"estimator": "LDPASGDRegressor", "budget": "eps=1"}
    job = {"job": "x", "source": {"type": "http"}, "schema": {"features": {"a": [0, 1]}, "target": target}}
    with pytest.raises(ConfigError, match="takes no reports over HTTP"):
        LocalAgreement.of("x", make_config(job | {"model": model}))


@pytest.mark.parametrize("declared", [[False, True], {"categories": [False, True]}])
def test_truth_values_are_categories_as_in_a_job(declared: Any) -> None:
    schema = Schema({"member": declared})
    assert schema.feature_names == ("member=true",)
    assert [schema.encode_raw({"member": value}) for value in (True, "FALSE", 1)] == [[1], [0], [1]]
