"""Tables that agree with each other, and records drawn from them."""

from typing import Any

import numpy as np
import polars as pl
import pytest

from streamdp import stats
from streamdp.errors import ConfigError, NotAvailableError

FEATURES = {"smoker": ["no", "yes"], "region": list("abcdefgh"), "age": (0, 100)}
EDGES = {"age": [0, 30, 100]}
DECLARED = {
    "pairs": {"count": ["smoker", "region"]},
    "ages": {"proportion": "smoker", "by": "age", "edges": EDGES},
    "regions": {"histogram": "region"},
}


def people(n: int) -> pl.DataFrame:
    rng = np.random.default_rng(3)
    smoker = rng.random(n) < 0.3
    age = np.where(rng.random(n) < np.where(smoker, 0.9, 0.2), 20.0, 60.0)
    region = rng.choice(list("abcdefgh"), n, p=[0.6, 0.39, 0.01, 0, 0, 0, 0, 0])
    return pl.DataFrame({"smoker": np.where(smoker, "yes", "no"), "region": region, "age": age})


def learned(trust: Any = "window", budget: str = "eps=0.5", n: int = 5_000) -> stats.Statistics:
    model = stats.Statistics(DECLARED, FEATURES, budget, trust, seed=1)
    model.learn_many(people(n))
    if trust != "nobody":
        model.close_batch()
    return model


@pytest.mark.parametrize(("trust", "budget"), [("window", "eps=0.2"), ("process", "eps=0.2"), ("nobody", "eps=4")])
def test_rows_sum_to_totals_and_no_count_is_negative(trust: str, budget: str) -> None:
    model = learned(trust, budget)
    noisy = np.array([*model.get()["pairs"].values()])
    assert noisy.min() < 0
    found = model.tables().counts()
    pairs, regions, ages = found["pairs"].reshape(2, 8), found["regions"], found["ages"].reshape(2, 2)
    assert min(table.min() for table in found.values()) >= 0
    assert pairs.sum(axis=0) == pytest.approx(regions, abs=0.5)
    assert pairs.sum(axis=1) == pytest.approx(ages.sum(axis=0), abs=0.5)
    assert pairs.sum() == pytest.approx(5_000, abs=0.5)


def test_consistent_counts_are_nearer_to_the_truth() -> None:
    true = people(5_000).group_by("smoker", "region").len()
    true_pairs = np.array([true.filter(smoker=s, region=r)["len"].sum() for s in ("no", "yes") for r in "abcdefgh"])
    noisy, consistent = [], []
    for seed in range(4):
        model = stats.Statistics(DECLARED, FEATURES, "eps=0.2", "window", seed=seed)
        model.learn_many(people(5_000))
        model.close_batch()
        noisy.append(np.abs([*model.get()["pairs"].values()] - true_pairs).mean())
        consistent.append(np.abs(model.tables().counts()["pairs"] - true_pairs).mean())
    assert np.mean(consistent) < 0.9 * np.mean(noisy)


def test_drawn_records_have_the_dependence_of_the_tables() -> None:
    tables = learned(budget="eps=4").tables()
    drawn = tables.draw(20_000, seed=1)
    assert drawn.columns == ["smoker", "region", "age"]
    assert tables.draw(20_000, seed=1).equals(drawn)
    assert not tables.draw(20_000, seed=2).equals(drawn)
    assert drawn["age"].is_between(0, 100).all()
    young = drawn.group_by("smoker").agg((pl.col("age") < 30).mean())
    assert dict(young.rows()) == pytest.approx({"yes": 0.9, "no": 0.2}, abs=0.05)
    assert (drawn["region"] == "a").mean() == pytest.approx(0.6, abs=0.05)


def test_a_drawn_number_has_the_name_of_its_transform() -> None:
    declared, features = (
        {"h": {"histogram": "income", "edges": [0, 1, 3]}},
        {"income": {"bounds": (1, 20), "transform": "log"}},
    )
    model = stats.Statistics(declared, features, "eps=1", "window", seed=1)
    model.learn_many(pl.DataFrame({"income": [2.0, 9.0] * 500}))
    model.close_batch()
    assert model.tables().draw(9).columns == ["log(income)"]


def test_what_has_no_tables_says_so() -> None:
    mean = stats.Statistics({"m": {"mean": "age"}}, FEATURES, "eps=1", "window")
    mean.learn_many(people(1_000))
    mean.close_batch()
    with pytest.raises(NotAvailableError, match="expected counts"):
        mean.tables()
    with pytest.raises(NotAvailableError, match="of which something was released"):
        stats.Statistics(DECLARED, FEATURES, "eps=1", "window").tables()
    other = {"a": {"histogram": "age", "edges": [0, 50, 100]}, "b": {"histogram": "age", "edges": [0, 30, 100]}}
    model = stats.Statistics(other, FEATURES, "eps=1", "window")
    model.learn_many(people(1_000))
    model.close_batch()
    with pytest.raises(ConfigError, match="same edges"):
        model.tables()
    with pytest.raises(ConfigError, match="records"):
        learned().tables().draw(0)
    with pytest.raises(ConfigError, match="seed"):
        learned().tables().draw(10, seed=-1)


def test_a_model_that_would_not_fit_memory_is_refused() -> None:
    features = {f"c{i}": [f"{j}" for j in range(100)] for i in range(5)}
    declared = {f"{a}{b}": {"count": [f"c{a}", f"c{b}"]} for a in range(5) for b in range(a)}
    model = stats.Statistics(declared, features, "eps=1", "window")
    model.learn_many(pl.DataFrame({name: ["0"] * 100 for name in features}))
    model.close_batch()
    with pytest.raises(ConfigError, match="fewer tables"):
        model.tables().counts()


def test_windows_of_time_and_a_feature_that_comes_twice_have_no_tables() -> None:
    late = stats.Statistics(DECLARED, FEATURES, "eps=1", "window", every="1 day")
    late.learn_many(people(1_000))
    late.close_batch()
    with pytest.raises(NotAvailableError, match="without every"):
        late.tables()
    for declared in ({"proportion": "smoker", "by": "smoker"}, {"proportion": "smoker", "by": ["smoker", "region"]}):
        model = stats.Statistics({"a": declared}, FEATURES, "eps=1", "window")
        model.learn_many(people(1_000))
        model.close_batch()
        with pytest.raises(ConfigError, match="each feature once"):
            model.tables()
