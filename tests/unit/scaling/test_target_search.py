"""The search for the centre and the spread of a target: what it finds, its state, and answers that come late."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from streamdp.errors import ConfigError
from streamdp.scaling.target_search import TargetSearch

KEEP = 1 / (1 + math.exp(-1))  # epsilon = 1


def ask(search: TargetSearch, y: np.ndarray, rng: Any, keep: float = KEEP) -> None:
    """Answer one question."""
    question = search.question()
    truth = bool(question.low <= y[search.asked] < question.high)
    search.take(question, truth == bool(rng.random() < keep), keep)


def searched(bounds: tuple[float, float], y: np.ndarray, seed: int) -> TargetSearch:
    search, rng = TargetSearch(bounds), np.random.default_rng(seed)
    while search.open:
        ask(search, y, rng)
    return search


@pytest.mark.parametrize("width", [40.0, 1e3, 1e5])
@pytest.mark.slow
def test_wide_bounds_are_narrowed_and_the_centre_is_found(width: float) -> None:
    for seed in range(6):
        rng = np.random.default_rng(seed)
        middle = 3 + rng.uniform(-0.7, 0.7) * width
        search = searched((middle - width, middle + width), rng.normal(3, 1, 6000), seed)
        centre, unit = search.place
        assert abs(centre - 3) < 1.5
        assert 0.5 < unit < 3
        assert 281 * 2 <= search.asked < 281 * (5 + math.log10(width))


def test_bounds_that_fit_cost_one_search() -> None:
    for seed in range(6):
        search = searched((-2.0, 4.0), np.random.default_rng(seed).normal(1.5, 1, 2000), seed)
        centre, unit = search.place
        assert abs(centre - 1.5) < 1
        assert 0.5 < unit < 3
        assert 281 <= search.asked < 600


def test_a_search_goes_on_from_its_state_at_any_bit() -> None:
    y = np.random.default_rng(2).normal(0, 1, 4000)
    search, rng = TargetSearch((-900.0, 1100.0)), np.random.default_rng(3)
    while True:
        other = TargetSearch((-900.0, 1100.0))
        other.read(search.learned())
        assert (other.place, other.open, other.asked) == (search.place, search.open, search.asked)
        if not search.open:
            break
        assert other.question() == search.question()
        search = other
        ask(search, y, rng)
    assert search.learned()["posterior"].size == 0


def test_states_out_of_range_are_refused() -> None:
    good = TargetSearch((0.0, 1.0)).learned()
    for place, value in ((1, 0.0), (3, -1.0), (5, -1.0), (4, -1.0), (0, np.nan)):
        bad = good["search"].copy()
        bad[place] = value
        with pytest.raises(ConfigError):
            TargetSearch((0.0, 1.0)).read(good | {"search": bad})
    with pytest.raises(ConfigError, match=r"shape \(6,\)"):
        TargetSearch((0.0, 1.0)).read(good | {"search": good["search"][:-1]})
    with pytest.raises(ConfigError):
        TargetSearch((0.0, 1.0)).read(good | {"posterior": np.resize([0.0, 1e31], good["posterior"].shape)})


def test_a_late_answer_is_counted_and_does_not_mislead() -> None:
    y = np.random.default_rng(4).normal(0, 1, 4000)
    search, rng = TargetSearch((-90.0, 110.0)), np.random.default_rng(5)
    first, width = search.question(), 200.0
    while width > 100:  # until the range is narrower
        ask(search, y, rng)
        width = 2 * float(search.learned()["search"][1])
    place, asked = search.place, search.asked
    for _ in range(20):
        search.take(first, True, KEEP)
    assert search.asked == asked + 20
    assert abs(search.place[0] - place[0]) < 3
