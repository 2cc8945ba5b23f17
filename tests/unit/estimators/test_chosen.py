"""Tables of two columns that a window chooses."""

import math
from itertools import combinations
from typing import Any, cast

import numpy as np
import pytest

from streamdp.errors import BudgetError, ConfigError
from streamdp.estimators import statistics
from streamdp.estimators.statistics import Statistics
from streamdp.learners import cells
from streamdp.learners.cells import CHOICE, Chosen, levels
from streamdp.learners.sums import Held, divided
from streamdp.privacy.guarantees import ApproxDP, GaussianDP, PureDP

FEATURES: dict[str, Any] = {"a": ["x", "y"], "b": ["u", "v", "w"], "c": (0, 10), "d": ["p", "q"]}
PAIRS: dict[str, Any] = {"pairs": ["a", "b", "c", "d"], "edges": {"c": [0, 2, 5, 10]}}


def records(n: int) -> list[dict[str, Any]]:
    """b follows from a, and d from c; nothing else depends on anything."""
    rng = np.random.default_rng(1)
    return [
        {"a": "xy"[i % 2], "b": "uv"[i % 2] if i % 10 else "w", "c": c, "d": "pq"[c > 4]}
        for i, c in enumerate(rng.uniform(0, 10, n).tolist())
    ]


def learned(budget: Any = "eps=8", n: int = 4000, **more: Any) -> Statistics:
    model = Statistics({"all": PAIRS, "of a": {"count": "a"}}, FEATURES, budget, "window", **more)
    for record in records(n):
        model.learn_one(record)
    model.close_batch()
    return model


def test_the_tables_that_say_most_are_chosen_and_each_column_is_joined_once() -> None:
    assert str(learned(n=10).guarantee) == "eps=8,delta=1e-06"
    for seed in range(5):
        model = learned(seed=seed)
        found = model.get()
        chosen = {tuple(name.removeprefix("all: ").split(", ")) for name in found if name != "of a"}
        assert {("a", "b"), ("c", "d")} < chosen
        assert len(chosen) == 3
        table = found["all: a, b"]
        assert table["x", "u"] == pytest.approx(1600, abs=40)
        assert table["x", "v"] == pytest.approx(0, abs=40)
        assert len({row["statistic"] for row in model.rows()}) == 4
        again = Statistics({"all": PAIRS, "of a": {"count": "a"}}, FEATURES, "eps=8", "window")
        assert again.get().keys() == {"of a"}
        again.load_state_dict(model.state_dict())
        assert again.get() == found
    drawn = model.tables().draw(500, seed=1)
    assert drawn.select((drawn["d"] == "q").cast(int) == (drawn["c"] > 5).cast(int)).to_series().mean() > 0.7


def test_windows_may_choose_other_tables_and_the_tables_are_of_all_records() -> None:
    model = learned("eps=0.05", 3000, batch_size=1000, seed=2)
    for counts in model.tables().counts().values():
        assert counts.sum() == pytest.approx(3000)


def test_a_table_that_noise_hides_is_not_turned_round(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its noisy counts may have a sum below 0: what is largest stays largest, and few records say little."""
    monkeypatch.setattr(statistics, "Tables", lambda values, counted, records: counted)
    for seed in range(8):
        model = learned("eps=0.01", 40, seed=seed)
        noisy, tables = model.get(), cast("Any", model.tables())
        for one in tables:
            if one.name != "of a":
                counts = np.array([*noisy[one.name].values()])
                np.testing.assert_array_equal(np.argsort(one.counts), np.argsort(counts))


def test_one_row_moves_each_distance_by_at_most_what_the_noise_is_for() -> None:
    rng, largest = np.random.default_rng(0), 0.0
    for _ in range(2000):
        n, sizes = int(rng.integers(2, 30)), rng.integers(2, 5, 3)
        chosen = Chosen(tuple(levels(j, int(size)) for j, size in enumerate(sizes)))
        rows = np.stack([rng.integers(0, size, n) % rng.integers(1, size + 1) for size in sizes], axis=1)
        moved = rows.copy()
        moved[0] = [rng.integers(size) for size in sizes]
        both = []
        for each in (rows, moved):
            sums = [
                np.bincount(each[:, i] * sizes[j] + each[:, j], minlength=sizes[i] * sizes[j])
                for i, j in combinations(range(3), 2)
            ]
            both.append(chosen.distances(np.concatenate(sums)))
        change = np.abs(both[0] - both[1])
        largest = max(largest, float(change.max()))
        assert change.max() <= 6 + 4 / n + 1e-9
    assert largest > 3


def test_a_choice_is_for_the_rows_that_are_in_the_tables(monkeypatch: pytest.MonkeyPatch) -> None:
    """An exception may come after rows are counted and before they are added: others say as much as without them."""
    scales: list[float] = []

    def noise(rng: object, scale: float, n: int) -> np.ndarray:
        scales.append(scale)
        return np.zeros(n)

    monkeypatch.setattr(cells, "grid_laplace", noise)
    for lost in (0, 997):
        model = Statistics({"all": PAIRS}, FEATURES, "eps=8", "window", seed=1)
        for record in records(3):
            model.learn_one(record)
        cast("Any", model.learner).open.taken += lost
        model.close_batch()
    assert scales[:3] == scales[3:]


@pytest.mark.parametrize("budget", [GaussianDP(0.7), ApproxDP(1.0, 1e-6)], ids=str)
def test_the_choice_and_all_sums_together_spend_the_budget(budget: Any) -> None:
    chosen, other = Chosen((levels(0, 2), levels(1, 3), levels(2, 2))), Chosen((levels(0, 2), levels(1, 2)))
    spent, shares, choices = divided(budget, [(chosen, 0.6), (other.pieces[0], 0.4)])
    mu = budget.mu if isinstance(budget, GaussianDP) else GaussianDP.from_approx(budget).mu
    assert isinstance(spent, GaussianDP)
    assert spent.mu**2 + choices[chosen] ** 2 == pytest.approx(mu**2)
    assert choices[chosen] == pytest.approx(mu * math.sqrt(0.6 * CHOICE))
    assert sum(share for _, share in shares) == pytest.approx(1)
    held = Held(budget, [(chosen, 0.6), (other.pieces[0], 0.4)])
    summed = [*chosen.pieces[:2], other.pieces[0]]  # at most so many tables of the chosen ones
    sums = [
        np.concatenate([piece.index.of(row) == np.arange(piece.size) for piece in summed])
        for row in (np.array([[0.0, 0, 0]]), np.array([[1.0, 1, 1]]))
    ]
    factors = np.repeat([held.parts[0][1], held.parts[1][1]], [6 + 4, 4])
    assert np.linalg.norm((sums[0] * 1.0 - sums[1]) * factors) <= math.sqrt(2) * (1 + 1e-9)


@pytest.mark.parametrize(
    ("statistics", "budget", "trust", "error", "words"),
    [
        ({"p": PAIRS}, "eps=1", "process", ConfigError, "expected trust=\"window\""),
        ({"p": PAIRS}, PureDP(1.0), "window", BudgetError, "needs a delta"),
        ({"p": PAIRS, "q": PAIRS}, "eps=1", "window", ConfigError, "one such statistic"),
        ({"p": PAIRS, "w": {"heavy_hitters": "words"}}, "eps=1", "window", ConfigError, "no texts"),
        ({"p": {"pairs": ["a", "b"]}}, "eps=1", "window", ConfigError, "three or more"),
        ({"p": {"pairs": "a"}}, "eps=1", "window", ConfigError, "three or more"),
        ({"p": {"pairs": ["a", "b", "a"]}}, "eps=1", "window", ConfigError, "three or more different"),
        ({"p": {"pairs": ["a", "b", ["d"]]}}, "eps=1", "window", ConfigError, "three or more different"),
        ({"p": {"pairs": ["a", "b", "c"]}}, "eps=1", "window", ConfigError, "the edges of its bins"),
        ({"p": {"pairs": ["a", "b", "z"]}}, "eps=1", "window", ConfigError, "declared feature"),
        ({"p": PAIRS | {"by": "a"}}, "eps=1", "window", ConfigError, "no by"),
    ],
)  # fmt: skip
def test_what_cannot_be_chosen_is_refused(
    statistics: Any, budget: Any, trust: Any, error: type[Exception], words: str
) -> None:
    with pytest.raises(error, match=words):
        Statistics(statistics, FEATURES | {"words": {"text": 4}}, budget, trust)
