"""Sums by stretches, intervals, the drift test and the verdict."""

import math

import numpy as np
import pytest

from streamdp.validation import drift
from streamdp.validation.quality import BETTER, NO_BETTER, UNKNOWN, Stretch, stretch, verdict
from streamdp.validation.sums import ANSWERS, COLUMNS, ERROR, ERROR_RANGE, ERROR_SQUARE, ERRORS, Estimate, Rows, mean
from streamdp.validation.tasks import Classes


def block(n: float, error: float = 0.0, ranges: float = 1.0) -> np.ndarray:
    found = np.zeros(COLUMNS)
    found[[ERRORS, ERROR, ERROR_SQUARE, ERROR_RANGE, ANSWERS]] = n, n * error, n * error**2, n * ranges, n
    return found


def test_stretches_are_joined_and_the_later_half_has_at_least_half_of_the_answers() -> None:
    rows = Rows(8, 4)
    for i in range(1, 300):
        rows.add(block(3, i))
        later = rows.later_half()
        assert rows.numbers[:-1, ANSWERS].sum() == 3 * i
        assert later[ANSWERS] >= 1.5 * i
        if i > 16:
            assert later[ANSWERS] < 2.5 * i
            assert later[ERROR] / later[ERRORS] > 0.55 * i  # the newest ones


def test_at_most_the_longest_stretches_are_remembered() -> None:
    rows = Rows(8, 4, 16)
    for i in range(1000):
        rows.add(block(4, i))
    assert rows.used == 8
    assert rows.length == 16
    old, new = rows.numbers[:6].sum(axis=0), rows.numbers[6:8].sum(axis=0)
    assert (old[ANSWERS], new[ANSWERS]) == (96, 32)
    assert new[ERROR] / new[ERRORS] > 980


def test_means_have_standard_errors_from_thirty_answers_on() -> None:
    sums = np.zeros(COLUMNS)
    assert math.isnan(mean(sums, ERRORS)[0])
    values = np.random.default_rng(0).normal(3, 2, 400)
    sums[:3] = len(values), values.sum(), np.square(values).sum()
    found, square = mean(sums, ERRORS)
    assert (found, square) == pytest.approx((values.mean(), values.var() / 400))
    sums[0] = 29
    assert math.isnan(mean(sums, ERRORS)[1])


def test_no_alarm_without_a_rise_and_one_after_it() -> None:
    """Answers of full range at an error of 0.3, then of 0.6."""
    rng, rows = np.random.default_rng(1), Rows(drift.ROWS, drift.FIRST, drift.LONGEST)

    def alarm(error: float) -> bool:
        told = np.where(rng.random(256) < (error + 0.58) / 2.16, 1.58, -0.58)
        sums = block(256, 0.0, 1.08**2)
        sums[[ERROR, ERROR_SQUARE]] = told.sum(), np.square(told).sum()
        return rows.add(sums) and drift.risen(rows, 1.0)

    assert not any(alarm(0.3) for _ in range(2000))
    found = [alarm(0.6) for _ in range(40)]
    assert any(found)
    assert found.index(True) <= 12


def test_an_error_that_falls_or_rises_less_than_the_tolerance_is_no_drift() -> None:
    rows = Rows(drift.ROWS, drift.FIRST, drift.LONGEST)
    errors = [*np.linspace(0.6, 0.3, 500), *[0.309] * 500]
    for error in errors:  # answers without noise, so that only the tolerance is left
        assert not (rows.add(block(512, error, 0.0)) and drift.risen(rows, 1.0))
    rows.add(block(512, 0.33, 0.0))
    assert drift.risen(rows, 1.0)


@pytest.mark.parametrize(
    ("low", "high", "said"),
    [(-0.3, -0.1, BETTER), (-0.3, 0.1, UNKNOWN), (-0.01, 0.1, NO_BETTER), (0.1, 0.2, NO_BETTER), (None, None, UNKNOWN)],
)
def test_verdicts(low: float | None, high: float | None, said: str) -> None:
    estimate = Estimate(0.5, 0.4, 0.6)
    assert verdict(Stretch(100, estimate, estimate, Estimate(-0.1, low, high))) == said


def test_the_difference_follows_from_both_errors() -> None:
    sums = np.array([100, 30, 25, 1, 50, 20, 18, 150.0, 0, 0])  # errors of mean 0.3; 0.4 of the constant
    found = stretch(sums, Classes(2), np.zeros(6), 1.0)
    assert found.error.value == pytest.approx(0.3)
    assert found.constant.value == pytest.approx(0.4)
    assert found.difference.value == pytest.approx(-0.1)
    both = 1.96 * math.sqrt((0.25 - 0.09) / 100 + (0.36 - 0.16) / 50)
    assert found.difference.high == pytest.approx(-0.1 + both, rel=1e-3)
