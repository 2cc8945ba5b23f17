"""No interval excludes the number that it is shown with."""

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import streamdp
from streamdp import stats
from streamdp.reading.estimates import limits_of
from streamdp.validation.sums import interval
from tests.support.sizes import some

NUMBERS = st.floats(-1e6, 1e6)


@given(NUMBERS, st.floats(0, 1e6), NUMBERS, NUMBERS, NUMBERS)
def test_limits_are_in_the_range_and_reach_what_is_shown(
    a: float, half: float, one: float, two: float, t: float
) -> None:
    low, high = min(one, two), max(one, two)
    shown = min(max(t, low), high)
    answer = np.array([a])
    ((least, most),) = limits_of(np.array([[a - half, a + half]]), answer, np.array([shown]), (low, high)).tolist()
    assert low <= least <= shown <= most <= high
    if low <= a <= high and a - half <= shown <= a + half:
        assert (least, most) == pytest.approx((max(low, a - half), min(high, a + half)))


def test_what_is_not_known_stays_so_and_an_answer_beyond_the_range_is_moved_to_it() -> None:
    """The spread was shown as +1000 [-43163, -21004]."""
    limits, answer = np.array([[-43_163.0, -21_004.0], [math.nan, math.nan]]), np.array([-32_000.0, math.nan])
    found = limits_of(limits, answer, np.array([1000.0, 2.0]), (np.array([1000.0, 0.0]), np.array([1e6, 9.0])))
    assert found[0] == pytest.approx([1000.0, 1000 + 32_000 - 21_004])
    assert np.isnan(found[1]).all()


def noisy(name: str, seed: int) -> Any:
    """A model whose shown parameters are shrunk, or at the floor of the spread: its noise is almost none."""
    more = {"window": 5000} if name == "Windowed" else {}
    model = getattr(streamdp, f"{name}Regressor")(
        features={"a": (0, 1), "b": (0, 1), "c": (0, 1)}, target=(0, 1_000_000), seed=seed, **more
    )
    rng = np.random.default_rng(seed)
    X = rng.uniform(0, 1, (100_000 if name in ("PanPrivate", "Shuffle") else 20_000, 3))
    model.learn_arrays(X, np.maximum(10_000 * X[:, 0] + rng.normal(0, 0.1, len(X)), 0))
    model.close_batch()
    return model


@pytest.mark.parametrize("name", some(["PanPrivate", "Shuffle", "Windowed", "LDPASGD"], 0, 3))
def test_the_limits_of_a_model_include_what_it_shows(name: str) -> None:
    """For pan-private models they were around the raw Newton step in 3 of these 4 seeds."""
    known = 0
    for seed in range(4):
        model = noisy(name, seed)
        limits, theta = model.interval(), model.theta
        settled = ~np.isnan(limits[:, 0])
        known += int(settled.sum())
        assert np.all((limits[:, 0] <= theta) & (theta <= limits[:, 1]) | ~settled), (seed, theta, limits)
        assert not settled[-1] or limits[-1, 0] > 0  # no error spread is 0 or less
    assert known > 3


@pytest.mark.parametrize("trust", some(["process", "window", "nobody", "shuffler"], 0, 2))
def test_the_limits_of_statistics_include_what_they_show(trust: Any) -> None:
    """Few records: noisy means lie beyond their bounds, and quantiles that would cross are sorted."""
    declared = {"m": {"mean": "x"}, "q": {"quantile": [0.4, 0.5, 0.6], "of": "x"}, "g": {"mean": "x", "by": "k"}}
    for seed in range(5):
        rng = np.random.default_rng(seed)
        budget = "eps=0.5,delta=1e-6" if trust in ("process", "shuffler") else "eps=0.5"
        found = stats.Statistics(declared, {"x": (0, 40), "k": ["a", "b"]}, budget, trust, seed=seed)
        for _ in range(400):
            found.learn_one({"x": float(rng.choice([0.0, 40.0], p=[0.02, 0.98])), "k": "ab"[int(rng.integers(2))]})
        found.close_batch()
        for row in found.rows():
            if row["value"] is not None and row["low"] is not None:
                assert row["low"] <= row["value"] <= row["high"], (seed, row)
                assert row["statistic"] not in "mg" or 0 <= row["low"] <= row["high"] <= 40


def test_a_validation_and_its_limits_are_in_the_range_of_errors() -> None:
    for value, shown in ((-0.3, 0.0), (1.4, 1.0), (0.5, 0.5), (0.0, 0.0)):
        found = interval(value, 0.01 * (value != 0), 0.0, 1.0)
        assert found.value == shown
        assert 0 <= found.low <= shown <= found.high <= 1  # type: ignore[operator]
        assert interval(value, np.nan, 0.0, 1.0).value == shown
