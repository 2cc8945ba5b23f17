"""The search for units of columns and target between batches: what it finds, its questions, its state."""

import math
from typing import Any

import numpy as np
import pytest

from streamdp.scaling.search import Question, UnitSearch

KEEP = 1 / (1 + math.exp(-4))
SCALED = np.array([True, False, True])
NOISY = 1 / (1 + math.exp(-1))
CENTRES, SPREADS = np.array([0.5, 0.0, -0.3]), np.array([0.05, 0.1, 0.4])


def columns_only(typical: dict[int, tuple[float, float]] | None = None) -> UnitSearch:
    return UnitSearch(SCALED, typical or {}, None, False, KEEP)


def question_of(search: UnitSearch) -> Question:
    question = search.ask()
    assert question is not None
    return question


def walk(search: UnitSearch, reports: int, batch: int, seed: int = 1) -> tuple[UnitSearch, list[int]]:
    """Let reports come, in calls of at most `batch` gradients; return which column each was asked about, or -1."""
    rng, asked = np.random.default_rng(seed), list[int]()
    while len(asked) < reports:
        if search.wait:
            count = min(search.wait, batch, reports - len(asked))
            search.count(count)
            asked += [-1] * count
        else:
            question = question_of(search)
            x = rng.normal(CENTRES[question.column], SPREADS[question.column])
            search.take(question, (question.low <= x < question.high) == bool(rng.random() < KEEP))
            asked.append(question.column)
        search, _ = search.rescaled(0.01 * len(asked)) or (search, False)
    return search, asked


def searched(reports: int = 4000) -> UnitSearch:
    return walk(columns_only(), reports, 50)[0]


def test_it_finds_centres_and_scales_of_the_columns_with_bounds() -> None:
    search = searched()
    centre, slope = search.units.columns
    assert (centre[1], slope[1]) == (0.0, 1.0)
    assert abs(centre[0] - 0.5) < 0.05
    assert 0.02 < 1 / slope[0] < 0.16
    assert 0.25 < 1 / slope[2] < 0.8
    assert search.since[1] == 0
    assert search.asked < 0.15 * 4000


def test_questions_do_not_depend_on_how_gradients_are_counted() -> None:
    by_one, by_many = (columns_only() for _ in range(2))
    asked = [walk(search, 300, batch)[1] for search, batch in ((by_one, 1), (by_many, 1000))]
    assert asked[0] == asked[1]
    assert set(asked[0]) == {-1, 0, 2}
    assert asked[0].count(-1) > 200
    search = columns_only()
    turns = []
    for _ in range(12):
        search.count(search.wait)
        turns.append(question_of(search).turn)
        search.take(question_of(search), True)
    assert turns == [0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5]  # each column asks about the same record of a user


def test_columns_are_scaled_between_batches_only() -> None:
    search, before = columns_only({0: (0.1, 0.2)}), None
    assert search.units.columns[:, 0].tolist() == [0.1, 5.0]
    for i in range(2000):
        before = search.units.columns
        search.take(question_of(search), True) if search.wait == 0 else search.count(1)
        np.testing.assert_array_equal(search.units.columns, before)
        if i == 1500:
            found = search.rescaled(10.0)
            search = found[0]
    assert 9.9 < search.since.max() < 10


def test_merged_searches_know_all_bits() -> None:
    parts, merged = [searched(800), searched(2000)], columns_only()
    merged.merge(parts)
    assert merged.asked == sum(part.asked for part in parts)
    np.testing.assert_array_equal(merged.units.columns, parts[1].units.columns)
    np.testing.assert_allclose(
        merged.learned()["posterior"], sum(part.learned()["posterior"] for part in parts), rtol=1e-5
    )


def target_only(bounds: tuple[float, float]) -> UnitSearch:
    return UnitSearch(np.zeros(0, dtype=bool), {}, bounds, True, NOISY)


def answer(search: UnitSearch, y: np.ndarray, rng: Any) -> None:
    """Answer one question."""
    question = question_of(search)
    truth = bool(question.low <= y[search.asked] < question.high)
    search.take(question, truth == bool(rng.random() < NOISY))


def found(bounds: tuple[float, float], y: np.ndarray, seed: int) -> UnitSearch:
    search, rng = target_only(bounds), np.random.default_rng(seed)
    while search.asking_target:
        answer(search, y, rng)
    return search


@pytest.mark.parametrize("width", [40.0, 1e3, 1e5])
@pytest.mark.slow
def test_wide_bounds_are_narrowed_and_the_centre_is_found(width: float) -> None:
    for seed in range(6):
        rng = np.random.default_rng(seed)
        middle = 3 + rng.uniform(-0.7, 0.7) * width
        search = found((middle - width, middle + width), rng.normal(3, 1, 6000), seed)
        centre, unit = search.units[1:3]
        assert abs(centre - 3) < 1.5
        assert 0.5 < unit < 3
        assert 281 * 2 <= search.asked < 281 * (5 + math.log10(width))


def test_bounds_that_fit_cost_one_search() -> None:
    for seed in range(6):
        search = found((-2.0, 4.0), np.random.default_rng(seed).normal(1.5, 1, 2000), seed)
        centre, unit = search.units[1:3]
        assert abs(centre - 1.5) < 1
        assert 0.5 < unit < 3
        assert 281 <= search.asked < 600


def test_a_search_goes_on_from_its_state_at_any_bit() -> None:
    y = np.random.default_rng(2).normal(0, 1, 4000)
    search, rng = target_only((-900.0, 1100.0)), np.random.default_rng(3)
    while True:
        other = target_only((-900.0, 1100.0))
        other.read(search.learned())
        assert other.units[1:] == search.units[1:]
        assert (other.asking_target, other.asked) == (search.asking_target, search.asked)
        if not search.asking_target:
            break
        assert other.ask() == question_of(search)
        search = other
        answer(search, y, rng)


def test_a_late_answer_is_counted_and_does_not_mislead() -> None:
    y = np.random.default_rng(4).normal(0, 1, 4000)
    search, rng = target_only((-90.0, 110.0)), np.random.default_rng(5)
    first, width = question_of(search), 200.0
    while width > 100:  # until the range is narrower
        answer(search, y, rng)
        width = 2 * float(search.learned()["target"][1])
    centre, asked = search.units.centre, search.asked
    for _ in range(20):
        search.take(first, True)
    assert search.asked == asked + 20
    assert abs(search.units.centre - centre) < 3
