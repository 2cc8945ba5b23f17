"""Encoding depends on public constants and on nothing else, and says why a record does not fit."""

import math

import numpy as np
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamdp.data.schema import Schema
from streamdp.errors import SchemaError

SCHEMA = Schema(
    {"age": (18, 90), "sex": ["f", "m"], "city": ["Rome", "Oslo", "Bern"]},
    "wage",
    target_bounds=(0, 100),
    target_scale=50,
    subject="id",
    budget="eps",
)


def encode(schema, rows):
    frame = pl.DataFrame(
        {c: [row.get(c) for row in rows] for c in schema.columns}, schema=dict.fromkeys(schema.columns, pl.String)
    )
    return schema.encode(frame, np.arange(len(rows)) + 5, {"row": 1})


GOOD = {"age": "54", "sex": "m", "city": "Bern", "wage": "25", "id": "ann", "eps": "0.5"}


def test_good_records_become_columns():
    batch = encode(SCHEMA, [GOOD, GOOD | {"age": "1e3", "sex": "f", "city": "Rome", "wage": "-3", "eps": " "}])
    assert batch.features == SCHEMA.feature_names == ("age", "sex=m", "city=Oslo", "city=Bern")
    np.testing.assert_array_equal(batch.X, [[0, 1, 0, 1], [1, 0, 0, 0]])
    np.testing.assert_array_equal(batch.y, [0.5, 0.0])
    np.testing.assert_array_equal(batch.budgets, [0.5, math.nan])
    assert batch.subjects == ["ann", "ann"]
    assert batch.positions.tolist() == [5, 6]
    assert batch.position == {"row": 1}
    assert batch.dead == []


@pytest.mark.parametrize(
    ("column", "value", "reason"),
    [
        ("age", None, "missing"),
        ("age", " ", "missing"),
        ("age", "SECRET", "not_a_number"),
        ("age", "12,5", "not_a_number"),
        ("age", "nan", "not_finite"),
        ("age", "-inf", "not_finite"),
        ("age", "1e999", "not_finite"),
        ("sex", "", "missing"),
        ("sex", "SECRET", "unknown_category"),
        ("sex", "M", "unknown_category"),
        ("city", "Rome ", "unknown_category"),
        ("wage", "", "missing"),
        ("wage", "SECRET", "not_a_number"),
        ("id", "", "missing"),
        ("id", None, "missing"),
        ("eps", "0", "bad_budget"),
        ("eps", "-1", "bad_budget"),
        ("eps", "inf", "bad_budget"),
        ("eps", "nan", "bad_budget"),
        ("eps", "SECRET", "bad_budget"),
    ],
)
def test_a_bad_value_is_a_dead_letter_with_its_reason(column, value, reason):
    batch = encode(SCHEMA, [GOOD, GOOD | {column: value}, GOOD])
    assert [(d.position, d.reason, d.column, d.payload) for d in batch.dead] == [(6, reason, column, None)]
    assert batch.positions.tolist() == [5, 7]
    assert len(batch.X) == len(batch.y) == len(batch.subjects) == len(batch.budgets) == 2
    assert "SECRET" not in repr(batch.dead)


def test_the_first_bad_column_is_named():
    batch = encode(SCHEMA, [GOOD | {"eps": "x", "city": "x", "age": "x"}])
    assert [d.column for d in batch.dead] == ["age"]


def test_float_columns_give_the_same_as_text():
    text = encode(SCHEMA, [GOOD, GOOD | {"age": ""}, GOOD | {"age": "inf"}])
    frame = pl.DataFrame(
        {c: [GOOD[c]] * 3 for c in SCHEMA.columns} | {"age": [54.0, None, math.inf], "wage": [25.0] * 3}
    )
    numbers = SCHEMA.encode(frame, np.arange(3) + 5, {})
    assert numbers.dead == text.dead
    np.testing.assert_array_equal(numbers.X, text.X)
    np.testing.assert_array_equal(numbers.y, text.y)
    assert set(SCHEMA.numeric_columns) == {"age", "wage"}


@given(st.floats(-1e300, 1e300), st.floats(1e-3, 1e300), st.floats(allow_nan=False, allow_infinity=False, width=64))
def test_scaled_features_stay_in_bounds(low, width, value):
    high = low + width
    if not low < high:
        return
    x, y = Schema({"a": (low, high)}, "y").encode_one({"a": value})
    assert y is None
    assert -1 <= x["a"] <= 1
    assert Schema({"a": (low, high)}, "y").encode_one({"a": low})[0]["a"] == pytest.approx(-1)
    assert Schema({"a": (low, high)}, "y").encode_one({"a": high})[0]["a"] == pytest.approx(1)


def test_one_record_is_encoded_alone_as_in_any_company():
    rng = np.random.default_rng(1)
    rows = [
        {"age": str(a), "sex": s, "city": c, "wage": str(w), "id": "i", "eps": ""}
        for a, s, c, w in zip(
            rng.uniform(0, 120, 50), rng.choice(["f", "m"], 50), rng.choice(["Rome", "Oslo", "Bern"], 50),
            rng.uniform(-9, 120, 50), strict=True,
        )
    ]  # fmt: skip
    batch = encode(SCHEMA, rows)
    for row, record in zip(rows, batch, strict=True):
        assert SCHEMA.encode_one(row) == (record.x, record.y)


def test_encode_one_names_the_column_and_no_value():
    for change in ({"age": "SECRET"}, {"age": None}, {"age": ["SECRET"]}, {"age": math.nan}, {"age": True}):
        with pytest.raises(SchemaError, match="'age'") as caught:
            SCHEMA.encode_one(GOOD | change)
        assert "SECRET" not in str(caught.value)
    with pytest.raises(SchemaError, match="'city'"):
        SCHEMA.encode_features(pl.DataFrame({"age": [3.0], "sex": ["f"]}))
    with pytest.raises(SchemaError, match="'sex'"):
        SCHEMA.encode_features(pl.DataFrame({"age": [3.0], "sex": ["SECRET"], "city": ["Rome"]}))


def test_classes_become_indices():
    schema = Schema({"a": (0, 1)}, "y", classes=["low", "mid", "high"])
    batch = encode(schema, [{"a": "1", "y": v} for v in ("high", "low", "SECRET", None, "mid")])
    assert batch.y.tolist() == [2, 0, 1]
    assert [(d.position, d.reason, d.column) for d in batch.dead] == [(7, "unknown_class", "y"), (8, "missing", "y")]


@pytest.mark.parametrize("classes", [("False", "True"), ("0", "1"), ("false", "true")])
def test_a_boolean_class_matches_every_spelling(classes):
    schema = Schema({"a": (0, 1)}, "y", classes=classes)
    batch = encode(schema, [{"a": "1", "y": v} for v in ("0", "1", "true", "True", "false", "False", "FALSE")])
    assert batch.y.tolist() == [0, 1, 1, 1, 0, 0, 0]
    assert schema.encode_one({"a": 0.5, "y": True}) == ({"a": 0.0}, 1.0)
    assert Schema({"a": (0, 1)}, "y", classes=classes[::-1]).encode_one({"a": 0, "y": 1})[1] == 0.0


@pytest.mark.parametrize(
    "arguments",
    [
        {"features": {}},
        {"features": {"a": (1, 1)}},
        {"features": {"a": (0, math.inf)}},
        {"features": {"a": (0,)}},
        {"features": {"a": 3}},
        {"features": {"a": "text"}},
        {"features": {"a": ["x"]}},
        {"features": {"a": ["x", "x"]}},
        {"features": {"a": ["x", 1]}},
        {"features": {"y": (0, 1)}},
        {"features": {"a": ["x", "y"], "a=y": (0, 1)}},
        {"subject": "y"},
        {"target_scale": 0},
        {"target_scale": math.nan},
        {"target_bounds": (1, 0)},
        {"classes": ["a"]},
        {"classes": ["a", "b"], "target_bounds": (0, 1)},
    ],
)
def test_a_contradictory_declaration_is_refused(arguments):
    with pytest.raises(SchemaError):
        Schema(**({"features": {"a": (0, 1)}, "target": "y"} | arguments))
