"""Declared transforms: what each column is of its value, and which declarations contradict themselves."""

import math
from typing import Any

import numpy as np
import polars as pl
import pytest

from streamdp import stats
from streamdp.data.encoder import buckets
from streamdp.data.schema import Schema
from streamdp.errors import SchemaError
from streamdp.estimators.features import features_of


def columns(declared: Any, *values: Any, **more: Any) -> dict[str, list[float]]:
    """The encoded columns of the values of one feature `x`, and of other features."""
    schema = Schema({"x": declared, **more}, "y")
    rows = [schema.encode_one({"x": value, **dict.fromkeys(more, "b"), "y": 0})[0] for value in values]
    return {name: [row[name] for row in rows] for name in schema.feature_names}


def test_a_curve_is_mapped_from_its_bounds_to_one_and_clipped_to_them() -> None:
    log = columns({"bounds": (1, 1e6), "transform": "log"}, -5, 0, 1, 1000, 1e6, 1e300)["log(x)"]
    assert log == pytest.approx([-1, -1, -1, 0, 1, 1])
    asinh = columns({"bounds": (-1e4, 1e4), "transform": {"asinh": 100}}, -1e5, 0, 300)["asinh(x/100)"]
    assert asinh == pytest.approx([-1, 0, math.asinh(3) / math.asinh(100)])
    power = columns({"bounds": (1, 4), "transform": {"power": -1}}, 0, 4, 2)["x^-1"]
    assert power == pytest.approx([1, -1, (0.5 - 0.625) / 0.375])


def test_a_number_bends_at_its_knots_and_nowhere_else() -> None:
    values = np.linspace(10, 110, 201)
    found = columns({"bounds": (18, 100), "knots": [30, 50]}, *values)
    assert list(found) == ["x", "x above 30", "x above 50"]
    clipped, units = np.clip(values, 18, 100), {"x": (59, 41), "x above 30": (65, 35), "x above 50": (75, 25)}
    for name, low in (("x", 18), ("x above 30", 30), ("x above 50", 50)):
        origin, unit = units[name]
        np.testing.assert_allclose(np.array(found[name]) * unit + origin, np.maximum(clipped, low), rtol=1e-12)


def test_bins_cover_the_numbers_once() -> None:
    found = columns({"bins": [0, 1.5, 3]}, -1e9, 0, 1.49, 1.5, 3, 1e9)
    assert found == {"x=[0,1.5)": [0, 1, 1, 0, 0, 0], "x=[1.5,3)": [0, 0, 0, 1, 0, 0], "x=[3,inf)": [0, 0, 0, 0, 1, 1]}


def test_a_cycle_closes() -> None:
    for declared, first, last in (({"cyclic": 24}, "0", "24"), ({"cyclic": "weekday"}, "2026-11-22", "2026-11-29")):
        found = columns(declared, first, last)
        for kind in ("sin", "cos"):
            one, other = found[f"{kind}(x)"]
            assert one == pytest.approx(other, abs=1e-12)
    turned = columns({"cyclic": "hour"}, "2026-11-22T06:30:00Z")
    assert (turned["sin(x)"], turned["cos(x)"]) == ([1.0], pytest.approx([0], abs=1e-12))


def test_a_text_has_the_bucket_of_fnv_1a() -> None:
    assert buckets(["", "a", "foobar"], 2**32 - 1).tolist() == [0x811C9DC5, 0xE40C292C, 0xBF9CF968]
    found = columns({"hash": 3}, "foobar", "a")
    assert list(found) == ["x#1", "x#2"]
    for i, text in enumerate(("foobar", "a")):
        assert [found[f"x#{k}"][i] for k in (1, 2)] == [float(buckets([text], 3)[0] == k) for k in (1, 2)]


def test_a_product_is_that_of_all_columns_of_its_factors() -> None:
    more: dict[str, Any] = {"city": ["a", "b", "c"], "both": {"product": ["x", "city"]}}
    schema = Schema({"x": {"bounds": (1, 100), "transform": "log"}, **more}, "y")
    assert schema.feature_names == ("log(x)", "city=b", "city=c", "log(x) x city=b", "log(x) x city=c")
    row, _ = schema.encode_one({"x": 1, "city": "c", "y": 0})
    assert list(row.values()) == [-1, 0, 1, 0, -1]
    assert schema.columns == ("x", "city", "y")


def test_a_number_that_is_none_is_the_fault_that_it_is_without_a_transform() -> None:
    transformed: Any
    for transformed in (
        {"bounds": (1, 9), "transform": "log"},
        {"bounds": (1, 9), "knots": [3]},
        {"bins": [3]},
        {"cyclic": 7},
    ):
        for value in ("x", "", "nan", "inf", None):
            messages = []
            for declared in ((1, 9), transformed):
                with pytest.raises(SchemaError) as error:
                    columns(declared, value)
                messages.append(str(error.value))
            assert messages[0] == messages[1]


@pytest.mark.parametrize(
    ("declared", "message"),
    [
        ({"bounds": (0, 1), "transform": "log"}, "above 0"),
        ({"bounds": (1, 2), "transform": "sine"}, "expected transform"),
        ({"bounds": (1, 2), "transform": {"power": 0}}, "exponent"),
        ({"bounds": (-1, 2), "transform": {"power": 2}}, "exponent"),
        ({"bounds": (0, 2), "transform": {"power": -1}}, "exponent"),
        ({"bounds": (0, 1e60), "transform": {"power": 90}}, "finite"),
        ({"bounds": (1e16, 1e16 + 4), "transform": {"power": 0.5}}, "differ after the transform"),
        ({"bounds": (0, 2), "transform": {"asinh": 0}}, "positive scale"),
        ({"bounds": (0, 2), "transform": {"power": math.nan}}, "finite number"),
        ({"bounds": (0, 2), "knots": [2]}, "between the bounds"),
        ({"bounds": (0, 2), "knots": [1.5, 1]}, "increasing"),
        ({"bounds": (0, 2), "knots": [1], "transform": "log"}, "not both"),
        ({"bins": []}, "increasing"),
        ({"bins": [1, 1]}, "increasing"),
        ({"bins": [1], "bounds": (0, 1)}, "one of"),
        ({"bins": [1], "transform": "log"}, "need bounds"),
        ({"bins": [1], "typical": (1, 1)}, "typical needs bounds"),
        ({"cyclic": "year"}, "finite number"),
        ({"cyclic": 0}, "period"),
        ({"hash": 1}, "number of buckets"),
        ({"hash": 10, "missing": "zero"}, "hashed"),
        ({"product": ["x", "z"]}, "other features"),
        ({"product": ["z"]}, "two or more"),
        ({"product": ["z", "z"]}, "two or more"),
        ({"product": ["z", "w"], "bounds": (0, 1)}, "product alone"),
    ],
)
def test_contradictions_are_refused(declared: Any, message: str) -> None:
    with pytest.raises(SchemaError, match=message):
        Schema({"z": (0, 1), "w": (0, 1), "x": declared}, "y")


def test_records_are_encoded_as_columns_are_bit_by_bit() -> None:
    declared = {
        "log": {"bounds": (1, 100), "transform": "log"},
        "asinh": {"bounds": (-5, 7), "transform": {"asinh": 2}},
        "power": {"bounds": (0, 9), "transform": {"power": 0.3}},
        "knots": {"bounds": (0, 10), "knots": [2, 5]},
        "bins": {"bins": [1, 4]},
        "cyclic": {"cyclic": 7},
        "city": ["a", "b", "c"],
        "both": {"product": ["log", "city"]},
    }
    rng = np.random.default_rng(1)
    table = pl.DataFrame({name: rng.uniform(-2, 12, 200) for name in list(declared)[:6]}).with_columns(
        city=pl.Series(rng.choice(["a", "b", "c"], 200))
    )
    schema = Schema(declared, "y")
    X = schema.encode_features(table)
    assert np.abs(X).max() <= 1
    packed = np.empty_like(X)
    assert schema.encoder().pack_rows(table.to_dicts(), packed)
    assert packed.tobytes() == X.tobytes()
    features = features_of(declared, "test")
    exact = [features.row_of(x | {"bins": np.float64(x["bins"]), "more": 0})[0] for x in table.to_dicts()]
    assert np.array(exact).tobytes() == X.tobytes()


def test_a_missing_text_of_an_open_domain_is_refused() -> None:
    counted = stats.Statistics({"w": {"heavy_hitters": "t"}}, {"t": {"text": 4}}, trust="window", seed=1)
    for gap in (None, math.nan, ""):
        with pytest.raises(SchemaError, match="missing"):
            counted.learn_one({"t": gap})
    assert counted.n_seen == 0
