"""The search for centres and scales of columns between batches: what it finds, its questions, its state."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from streamdp.errors import ConfigError
from streamdp.scaling import unit_table as k
from streamdp.scaling.column_search import ColumnSearch

KEEP = 1 / (1 + math.exp(-4))
SCALED = np.array([True, False, True])
CENTRES, SPREADS = np.array([0.5, 0.0, -0.3]), np.array([0.05, 0.1, 0.4])


def walk(search: ColumnSearch, reports: int, batch: int, seed: int = 1) -> list[int]:
    """Let reports come, in calls of at most `batch` gradients; return which column each was asked about, or -1."""
    rng, asked = np.random.default_rng(seed), []
    while len(asked) < reports:
        if search.wait:
            count = min(search.wait, batch, reports - len(asked))
            search.count(count)
            asked += [-1] * count
        else:
            question = search.question()
            x = rng.normal(CENTRES[question.column], SPREADS[question.column])
            search.take(question, (question.low <= x < question.high) == bool(rng.random() < KEEP))
            asked.append(question.column)
        search.rescale(0.01 * len(asked))
    return asked


def searched(reports: int = 4000, **options: Any) -> ColumnSearch:
    search = ColumnSearch(SCALED, options.get("typical", {}), KEEP)
    walk(search, reports, 50)
    return search


def test_it_finds_centres_and_scales_of_the_columns_with_bounds() -> None:
    search = searched()
    centre, slope = search.units
    assert (centre[1], slope[1]) == (0.0, 1.0)
    assert abs(centre[0] - 0.5) < 0.05
    assert 0.02 < 1 / slope[0] < 0.16
    assert 0.25 < 1 / slope[2] < 0.8
    assert search.since[1] == 0
    assert search.asked < 0.15 * 4000


def test_questions_do_not_depend_on_how_gradients_are_counted() -> None:
    by_one, by_many = (ColumnSearch(SCALED, {}, KEEP) for _ in range(2))
    asked = [walk(search, 300, batch) for search, batch in ((by_one, 1), (by_many, 1000))]
    assert asked[0] == asked[1]
    assert set(asked[0]) == {-1, 0, 2}
    assert asked[0].count(-1) > 200
    search = ColumnSearch(SCALED, {}, KEEP)
    turns = []
    for _ in range(12):
        search.count(search.wait)
        turns.append(search.question().turn)
        search.take(search.question(), True)
    assert turns == [0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5]  # each column asks about the same record of a user


def test_columns_are_scaled_between_batches_only() -> None:
    search, before = ColumnSearch(SCALED, {0: (0.1, 0.2)}, KEEP), None
    assert search.units[:, 0].tolist() == [0.1, 5.0]
    for i in range(2000):
        before = search.units
        search.take(search.question(), True) if search.wait == 0 else search.count(1)
        np.testing.assert_array_equal(search.units, before)
        if i == 1500:
            search.rescale(10.0)
    assert 9.9 < search.since.max() < 10


def test_a_state_goes_on_and_wrong_numbers_are_refused() -> None:
    search, other = searched(1000), ColumnSearch(SCALED, {}, KEEP)
    state = search.learned()
    columns = state["columns"]
    other.read(state)
    assert walk(search, 500, 7, seed=3) == walk(other, 500, 7, seed=3)
    np.testing.assert_array_equal(search.units, other.units)
    wrong: list[dict[str, Any]] = [
        {"columns": columns | {"scales": -columns["scales"]}},
        {"columns": columns | {"scales": columns["scales"][1:]}},
        {"columns": columns | {"progress": columns["progress"] - 1e9}},
        {"columns": columns | {"progress": columns["progress"] * np.nan}},
        {"columns": columns | {"scales": columns["scales"] + 1e9 * np.eye(k.LEARNED)[k.SINCE]}},  # from after now
        {"columns": columns | {"posterior": np.resize([0.0, 1e31], columns["posterior"].shape)}},
    ]
    for bad in wrong:
        with pytest.raises(ConfigError):
            ColumnSearch(SCALED, {}, KEEP).read(bad)


def test_merged_searches_know_all_bits() -> None:
    parts, merged = [searched(800), searched(2000)], ColumnSearch(SCALED, {}, KEEP)
    merged.merge(parts)
    assert merged.asked == sum(part.asked for part in parts)
    np.testing.assert_array_equal(merged.units, parts[1].units)
    np.testing.assert_allclose(
        merged.learned()["columns"]["posterior"],
        sum(part.learned()["columns"]["posterior"] for part in parts),
        rtol=1e-5,
    )
