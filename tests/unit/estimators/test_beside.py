"""Statistics beside a model: one record, one budget."""

import signal
from typing import Any

import numpy as np
import polars as pl
import pytest
from scipy.stats import binom, chi2

from streamdp import GaussianDP, Ledger, account, parse_budget
from streamdp.config.definition import Definition
from streamdp.config.trust import completed
from streamdp.errors import ConfigError, SchemaError
from streamdp.learners.learner import Learner
from streamdp.learners.side_statistics import divided
from streamdp.privacy.composition import Spend
from tests.support.states import pending_of, probes_of

BINS = 200
TRUSTS = {"process": "eps=1,delta=1e-6", "shuffler": "eps=1,delta=1e-6", "nobody": "eps=1"}


def job(trust: str, seed: int | None = 4, **more: Any) -> Definition:
    """A job whose model has 2/5 of the budget."""
    schema = {"features": {"a": [-1, 1], "g": ["x", "y"]}, "target": {"column": "t", "bounds": [-2, 2]}}
    edges = np.linspace(-2, 2, BINS + 1).tolist()
    statistics = {"all": {"histogram": "t", "edges": edges, "share": 2}, "groups": {"count": "g"}}
    model = {"trust": trust, "budget": TRUSTS[trust], "share": 2, "seed": seed}
    settings = {"schema": schema, "statistics": statistics, "model": model, **more}
    return Definition.model_validate(completed(settings))


def records(n: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(2)
    a, g = rng.uniform(-1, 1, n), rng.integers(0, 2, n)
    return np.column_stack([a, g]), np.clip(a + rng.normal(0, 0.1, n), -2, 2)


@pytest.mark.parametrize("trust", TRUSTS)
def test_both_parts_together_spend_the_budget_and_no_more(trust: str) -> None:
    model = job(trust, seed=None).build_estimator()
    X, y = records(1200)
    model.learn_encoded(X, y)
    whole = parse_budget(TRUSTS[trust])
    assert [str(budget) for budget in model.guarantee.budgets] == [str(whole)]
    assert str(account(model).guarantee) == str(whole)  # the statistics are not counted again
    parts = [model.learner.budget, model.estimated.record_budget]
    if trust == "nobody":
        assert parts == [whole, whole]
    elif trust == "process":
        spent: Any = Spend.of(parts).guarantee()
        assert spent.mu == pytest.approx(GaussianDP.from_approx(whole).mu, rel=1e-12)
        assert spent.delta(whole.epsilon) <= whole.delta * (1 + 1e-9)
        assert parts[0].mu ** 2 / spent.mu**2 == pytest.approx(2 / 5)
    else:
        assert sum(part.epsilon for part in parts) == pytest.approx(whole.epsilon)
        assert sum(part.delta for part in parts) == pytest.approx(whole.delta)


@pytest.mark.parametrize("trust", ["process", "nobody"])
def test_a_person_spends_the_whole_budget_for_each_record(trust: str) -> None:
    """The ledger allows two records of a person, whatever parts there are."""
    whole = parse_budget(TRUSTS[trust])
    cap = "eps=2" if trust == "nobody" else "eps=2,delta=2e-6"
    ledger = Ledger(cap)
    model = job(trust).build_estimator(ledger)
    X, y = records(4)
    for i in range(4):
        model.learn_encoded(X[i : i + 1], y[i : i + 1], None, ["ann"])
        model.close_batch()
    assert (model.n_seen, model.n_refused) == (2, 2)
    assert str(model.record_budget) == str(whole)


def test_a_person_is_in_a_batch_once_for_both() -> None:
    model = job("process").build_estimator(Ledger("eps=9,delta=9e-6"))
    X, y = records(3)
    model.learn_encoded(X, y, None, ["ann", "bob", "ann"])
    model.close_batch()
    assert (model.n_seen, model.n_refused, model.n_left_out) == (2, 0, 1)
    assert model.estimated.n_seen == 2


def test_batches_end_together_also_where_records_bring_budgets() -> None:
    """Otherwise a person is in a batch of the statistics twice, and both records share its noise."""
    settings = {"trust": "process", "budget": TRUSTS["process"], "share": 2, "batch_size": 10}
    model = job("process", model=settings).build_estimator(Ledger("eps=9,delta=9e-6"))
    X, y = records(14)
    people = ["ann", *map(str, range(12)), "ann"]
    for i, person in enumerate(people):
        budget = None if person == "ann" else "eps=2,delta=1e-6"
        model.learn_one({"a": X[i, 0], "g": "x"}, y[i], subject=person, budget=budget)
    assert (pending_of(model), pending_of(model.estimated), model.estimated.n_seen) == (4, 4, 14)


def test_a_record_with_a_budget_of_its_own_takes_no_other_one_from_the_statistics() -> None:
    model = job("nobody").build_estimator()
    X, y = records(40)
    model.learn_encoded(X, y, np.where(np.arange(40) == 7, 0.5, np.nan))
    assert (model.n_seen, model.estimated.n_seen) == (40, 39)


def test_the_model_is_that_of_its_part_of_the_budget() -> None:
    """Its noise is that of a model with this budget alone: with a seed the same numbers."""
    model = job("process").build_estimator()
    X, y = records(6000)
    model.learn_encoded(X, y)
    settings = job("process").model_dump(by_alias=True, exclude_none=True, exclude={"statistics"})
    settings["model"] |= {"budget": str(divided(parse_budget(TRUSTS["process"]), 2 / 5, "process")[0])}
    del settings["model"]["share"]
    alone = Definition.model_validate(settings).build_estimator()
    alone.learn_encoded(X, y)
    assert np.array_equal(model.theta, alone.theta)


def test_statistics_have_the_noise_of_their_part_and_not_of_the_whole() -> None:
    """False alarms: 1e-6. The bins share 2/3 of what the statistics have; the noise is that of two draws a batch."""
    model = job("process").build_estimator()
    X, y = records(6000)
    model.learn_encoded(X, y)
    model.close_batch()
    learner = model.estimated.learner
    one = model.estimated.declared[0]
    sums, variance = learner.released()[one.block]
    truth = np.histogram(y, np.linspace(-2, 2, BINS + 1))[0]
    square = float(np.sum((sums - truth) ** 2)) / variance
    low, high = chi2.ppf([5e-7, 1 - 5e-7], BINS)
    assert low < square < high
    whole = GaussianDP.from_approx(parse_budget(TRUSTS["process"])).mu
    part = model.estimated.record_budget.mu
    assert not low < square * (whole / part) ** 2 < high  # if the statistics had the whole budget


@pytest.mark.parametrize("trust", TRUSTS)
@pytest.mark.parametrize("row", [[9.0, 0.0], [0.0, 0.5]])
def test_columns_that_no_record_has_are_refused(trust: str, row: list[float]) -> None:
    """A model clips gradients; a sum of columns is not clipped, and its noise is for columns in [-1, 1]."""
    model = job(trust).build_estimator()
    with pytest.raises(SchemaError, match="columns of the schema"):
        model.learn_encoded(np.array([row]), np.zeros(1))
    assert (model.n_seen, model.guarantee.budgets) == (0, ())
    model.learn_encoded(np.array([[1.0, 1.0]]), np.array([99.0]))  # a target is clipped
    assert model.n_seen == 1


def test_a_record_is_drawn_to_one_of_both() -> None:
    """False alarms: 1e-6. Counts are of all records."""
    model = job("nobody").build_estimator()
    X, y = records(20_000)
    model.learn_encoded(X, y)
    reports = int(model.estimated.learner.point[0].sum())
    low, high = binom.ppf([5e-7, 1 - 5e-7], len(X), 3 / 5)
    assert low <= reports <= high
    assert model.n_seen == len(X)
    groups = model.estimated.get()["groups"]
    assert groups["x"] + groups["y"] == pytest.approx(len(X), abs=3000)


@pytest.mark.parametrize("trust", TRUSTS)
def test_records_in_any_pieces_are_learned_the_same_and_states_go_on(trust: str) -> None:
    X, y = records(2500)
    whole, pieces = job(trust).build_estimator(), job(trust).build_estimator()
    whole.learn_encoded(X, y)
    for at in range(0, len(X), 700):
        pieces.learn_encoded(X[at : at + 700], y[at : at + 700])
    for model in (whole, pieces):
        model.close_batch()
        assert model.at_boundary
    restored = job(trust).build_estimator()
    restored.load_state_dict(whole.state_dict())
    assert restored.estimated.rows() == whole.estimated.rows()
    assert np.array_equal(restored.theta, whole.theta)
    assert restored.n_seen == pieces.n_seen == len(X)
    assert pieces.estimated.n_seen == len(X)
    merged = whole.merged(restored)
    assert merged.n_seen == merged.estimated.n_seen == 2 * len(X)
    with pytest.raises(ConfigError, match="state"):
        job(trust, statistics={"groups": {"count": "g"}}).build_estimator().load_state_dict(whole.state_dict())


def test_within_a_batch_no_statistics_leave_memory() -> None:
    """A model that is loaded again goes on with the batch that was open, for both."""
    model = job("process").build_estimator()
    X, y = records(1500)
    model.learn_encoded(X[:1000], y[:1000])
    model.close_batch()
    state = model.state_dict()
    model.learn_encoded(X[1000:1100], y[1000:1100])
    model.load_state_dict(state)
    assert (model.n_seen, model.estimated.n_seen, model.estimated.at_boundary) == (1000, 1000, True)
    model.learn_encoded(X[1000:], y[1000:])
    model.close_batch()
    assert (model.n_seen, model.estimated.n_seen) == (1500, 1500)


def test_batches_end_together_also_where_probes_end() -> None:
    """Statistics ended a batch at the first probe, and had two noises for one of the model."""
    model = job("process", seed=1).build_estimator()
    X, y = records(60_000)
    probes = 0
    for at in range(0, len(X), 500):
        model.learn_encoded(X[at : at + 500], y[at : at + 500])
        assert pending_of(model.estimated) == pending_of(model)
        probes += probes_of(model) is not None
    assert probes > 10


def test_a_model_with_statistics_is_kept_by_a_store_only(tmp_path: Any) -> None:
    model = job("nobody").build_estimator()
    with pytest.raises(ConfigError, match="Store"):
        model.save(tmp_path / "model.json")
    clone = model.clone()
    assert clone.estimated is not None
    assert clone.estimated is not model.estimated


def test_the_model_cannot_have_more_than_its_part() -> None:
    """The statement names the whole budget, so a model that spends all of it would make it false."""
    with pytest.raises(ConfigError, match="the part of eps=1,delta=1e-06"):
        job("process").build_estimator().clone({"budget": "eps=1,delta=1e-6"})


@pytest.mark.parametrize("trust", TRUSTS)
@pytest.mark.parametrize("more", [{"per": True}, {}], ids=["groups", "product"])
def test_statistics_of_the_target_are_of_the_target_also_beside_products(trust: str, more: dict[str, Any]) -> None:
    """Columns of products come after all others, and so after the target's."""
    features = {"a": [-1, 1], "g": {"categories": ["x", "y", "z"], **more}}
    if not more:
        features["both"] = {"product": ["a", "g"]}
    rng, n = np.random.default_rng(3), 4000
    rows = pl.DataFrame({"a": rng.uniform(-1, 1, n), "g": rng.choice(list("xyz"), n)})
    for target, statistic, y, wanted in (
        ({"bounds": [0, 10]}, {"mean": "t"}, np.full(n, 9.0), 9.0),
        ({"classes": ["m", "n"]}, {"proportion": "t"}, ["n"] * n, {"m": 0.0, "n": 1.0}),
    ):
        schema = {"features": features, "target": {"column": "t"} | target}
        model = {"trust": trust, "budget": "eps=8" if trust == "nobody" else "eps=8,delta=1e-6", "seed": 4}
        settings = {"schema": schema, "statistics": {"s": statistic}, "model": model}
        estimator = Definition.model_validate(completed(settings)).build_estimator()
        estimator.learn_many(rows, y)
        estimator.close_batch()
        assert estimator.estimated.get()["s"] == pytest.approx(wanted, abs=0.2)


def test_an_exception_leaves_no_statistics_for_which_records_spend_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    definition: Any = job("process")
    statistics, share, target = definition._side_statistics(definition.statistics)
    model = definition._build_model(None, divided(statistics.record_budget, share, "process")[0])
    monkeypatch.setattr(Learner, "estimate", lambda *_: signal.default_int_handler(2, None))
    with pytest.raises(KeyboardInterrupt):
        model.add_statistics(statistics, share, target)
    assert model.record_budget == statistics.record_budget
