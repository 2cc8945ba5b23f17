"""Accounts with a cap: what a record spends in all private estimators of a model, counted apart from the cap."""

from __future__ import annotations

import copy
import os
import pickle
import sys
import threading
import warnings
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pytest
from river import base, ensemble, imblearn, metrics, model_selection, multiclass
from river.preprocessing import StandardScaler

from streamdp import (
    GaussianDP,
    LDPASGDClassifier,
    LDPSGDClassifier,
    LDPSGDRegressor,
    PanPrivateRegressor,
    PureDP,
    ShuffleRegressor,
    UserLevelLDPRegressor,
    WindowedRegressor,
    account,
)
from streamdp.errors import BudgetError, ConfigError, NotAvailableError, PrivacyWarning, SchemaError, StreamDPError
from streamdp.estimators.base import StreamEstimator
from streamdp.preprocessing import BoundsScaler
from streamdp.privacy.composition import Spend
from tests.support.threads import in_threads

X = {"a": 0.5, "b": -0.25}


def classifier(**options: Any) -> LDPSGDClassifier:
    return LDPSGDClassifier(features=["a", "b"], **options)


def regressor(**options: Any) -> LDPSGDRegressor:
    return LDPSGDRegressor(features=["a", "b"], **options)


class Met:
    """What the estimators truly learn of each record, noted where the noise is added."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.present: Any = None
        self.spends: dict[Any, list[Any]] = defaultdict(list)
        meet = StreamEstimator._meet

        def noted(estimator: Any, X: Any, y: Any, budget: Any, amounts: Any) -> None:
            assert len(X) == 1
            assert amounts is None
            self.spends[self.present].append(budget or estimator.record_budget)
            meet(estimator, X, y, budget, amounts)

        monkeypatch.setattr(LDPSGDRegressor, "_meet", noted)
        monkeypatch.setattr(LDPSGDClassifier, "_meet", noted)

    def epsilons(self) -> dict[Any, float]:
        return {record: Spend.of(spends).epsilon for record, spends in self.spends.items()}


@pytest.fixture
def met(monkeypatch: pytest.MonkeyPatch) -> Met:
    return Met(monkeypatch)


class Twice(base.Wrapper, base.Regressor):
    """A wrapper that gives its model each record twice."""

    def __init__(self, model: Any) -> None:
        self.model = model

    @property
    def _wrapped_model(self) -> Any:
        return self.model

    def learn_one(self, x: Any, y: Any, **options: Any) -> None:
        for _ in range(2):
            self.model.learn_one(x, y, **options)

    def predict_one(self, x: Any) -> Any:
        return self.model.predict_one(x)


def halving(kind: Any, model: Callable[[], Any], metric: Any) -> Any:
    return kind([model() for _ in range(4)], metric, budget=200)


MODELS: dict[str, Callable[[], Any]] = {
    "bagging": lambda: ensemble.BaggingRegressor(regressor(), n_models=5, seed=1),
    "bagging of pipelines": lambda: ensemble.BaggingRegressor(
        BoundsScaler({"a": (-2, 2)}) | regressor(), n_models=5, seed=1
    ),
    "bagging behind a scaler": lambda: (
        BoundsScaler({"a": (-2, 2)}) | ensemble.BaggingClassifier(classifier(), n_models=5, seed=1)
    ),
    "leveraging bagging": lambda: ensemble.LeveragingBaggingClassifier(classifier(), n_models=5, seed=1),
    "one against the rest": lambda: multiclass.OneVsRestClassifier(classifier()),
    "one against one": lambda: multiclass.OneVsOneClassifier(classifier()),
    "output codes": lambda: multiclass.OutputCodeClassifier(classifier(), code_size=6, seed=1),
    "boosting": lambda: ensemble.AdaBoostClassifier(classifier(), n_models=5, seed=1),
    "oversampling": lambda: imblearn.RandomOverSampler(classifier(), desired_dist={False: 0.2, True: 0.8}, seed=1),
    "greedy selection": lambda: model_selection.GreedyRegressor([regressor() for _ in range(4)]),
    "successive halving": lambda: halving(model_selection.SuccessiveHalvingClassifier, classifier, metrics.Accuracy()),
    "twice": lambda: Twice(Twice(regressor())),
}


@pytest.mark.parametrize("name", MODELS)
def test_no_record_spends_more_than_the_cap_in_a_wrapper_over_two_epochs(name: str, met: Met) -> None:
    found = account(MODELS[name](), cap="eps=2")
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # what is counted needs no warning
        for epoch in range(2):
            for row in range(40):
                met.present = row
                x = {"a": np.cos(row), "b": np.sin(row + epoch)}
                found.learn_one(x, row % 3 if "one against" in name or "codes" in name else row % 2 == 0, record=row)
    spent = met.epsilons()
    assert max(spent.values()) == 2
    assert sum(one.n_seen for one in found.estimators) <= sum(spent.values())  # some may have been dropped
    assert str(found.guarantee) == "eps=2"
    assert "each record is under a cap of eps=2 over all estimators" in found.statement()


def test_without_names_each_call_is_another_record(met: Met) -> None:
    found = account(MODELS["bagging"](), cap="eps=2")
    for i in range(30):
        met.present = i
        found.learn_one(X, 1.0)
    assert set(met.epsilons().values()) == {2.0}
    assert len(met.spends) == 30


@pytest.mark.parametrize(
    ("cap", "budget", "times"),
    [("mu=3", "mu=1", 9), ("eps=1", "eps=0.1", 10), ("mu=3", "eps=1", 5), ("eps=1,delta=1e-6", "eps=0.25", 4),
     ("eps=1,delta=2e-6", "eps=0.1,delta=1e-6", 2)],
)  # fmt: skip
@pytest.mark.parametrize("record", [None, "row 7"])
def test_spends_compose_as_in_a_ledger(cap: str, budget: str, times: int, record: Any) -> None:
    models = [regressor(budget=budget) for _ in range(12)]
    found = account(Together(models), cap=cap)
    found.learn_one(X, 1.0, record=record)
    assert [model.n_seen for model in models] == [1] * times + [0] * (12 - times)
    assert sum(model.n_refused for model in models) == 12 - times
    assert str(found.guarantee) == str(account(Together([regressor()]), cap=cap).record_cap.cap)  # type: ignore[union-attr]


class Together(list[Any]):
    """Models that learn the same records: a list and no estimator of River."""

    def learn_one(self, x: Any, y: Any, **options: Any) -> None:
        for model in self:
            model.learn_one(x, y, **options)


def test_spends_are_scaled_to_shares_of_the_cap(met: Met) -> None:
    models = [regressor() for _ in range(4)]
    found = account(Together(models), cap="eps=1", shares=4)
    for i in range(10):
        met.present = i
        found.learn_one(X, 1.0)
    assert [model.n_seen for model in models] == [10] * 4
    assert all(spends == [PureDP(0.25)] * 4 for spends in met.spends.values())
    assert str(models[0].guarantee) == "eps=0.25"
    met.present = "own"
    found.learn_one(X, 1.0, budget="eps=0.1")  # smaller than a share
    assert met.spends["own"] == [PureDP(0.1)] * 4


def test_shares_of_a_cap_in_mu_are_by_its_root() -> None:
    models = [regressor(budget="mu=2") for _ in range(4)]
    account(Together(models), cap="mu=2", shares=4).learn_one(X, 1.0)
    assert [model.guarantee.budgets for model in models] == [(GaussianDP(1.0),)] * 4


def test_a_scaled_record_is_learned_with_the_noise_of_its_share() -> None:
    """By the same words: the estimator in the account takes the step of one that is given the share as budget."""
    inside, outside = regressor(seed=1), regressor(seed=1)
    account(inside, cap="eps=1", shares=5).learn_one(X, 1.0)
    outside.learn_one(X, 1.0, budget="eps=0.2")
    assert np.array_equal(inside.theta, outside.theta)


BATCHED: dict[str, Callable[[], Any]] = {
    "pan": lambda: PanPrivateRegressor(features=["a", "b"], budget="mu=1", batch_size=50),
    "shuffle": lambda: ShuffleRegressor(features=["a", "b"], batch_size=3000),
}


@pytest.mark.parametrize("kind", BATCHED)
@pytest.mark.parametrize("record", [None, 7])
def test_a_record_is_in_a_batch_once(kind: str, record: Any) -> None:
    """Copies in one batch share its noise, so that their spends would not compose."""
    model = BATCHED[kind]()
    budget = model.record_budget
    cap = GaussianDP(9) if isinstance(budget, GaussianDP) else "eps=9,delta=1e-3"
    found = account(Twice(model), cap=cap)
    found.learn_one(X, 1.0, record=record)
    assert (model.n_seen, model.n_refused) == (1, 1)
    found.learn_one(X, 1.0, record=record)
    assert (model.n_seen, model.n_refused) == ((2, 2) if record is None else (1, 3))
    model.close_batch()
    found.learn_one(X, 1.0, record=record)
    assert model.n_seen == (3 if record is None else 2)


def test_copies_of_a_record_without_a_subject_are_one_user_of_a_window() -> None:
    model = WindowedRegressor(features=["a", "b"], budget="eps=8,delta=1e-3", window=400, items_per_user=2)
    found = account(Twice(model), cap="eps=16,delta=2e-3")
    for _ in range(200):
        found.learn_one(X, 1.0)
    assert model.n_windows == 1
    assert model.n_users == 200


def test_reports_of_users_are_charged_for_each_of_their_records() -> None:
    model = UserLevelLDPRegressor(features=["a", "b"], items_per_user=2)
    found = account(Twice(model), cap="eps=1,delta=1e-6")
    for _ in range(10):
        found.learn_one(X, 1.0)
    assert (model.n_seen, model.n_refused) == (10, 10)


def test_a_model_in_an_account_learns_by_the_account_only() -> None:
    model, batched = regressor(), BATCHED["shuffle"]()
    state, report = model.state_dict(), model.randomizer(X, 1.0)
    account({"both": Twice(model)}, cap="eps=1")
    account(batched, cap="eps=1,delta=1e-6")
    rows, targets = np.zeros((3, 2)), np.zeros(3)
    for act in (
        lambda: model.learn_one(X, 1.0),
        lambda: model.learn_many(pd.DataFrame(rows, columns=["a", "b"]), targets),
        lambda: model.learn_arrays(rows, targets),
        lambda: model.absorb(report),
        lambda: model.load_state_dict(state),
        lambda: batched.learn_one(X, 1.0),
        lambda: batched.learn_arrays(rows, targets),
        lambda: batched.learn_cohort(rows, targets),
        lambda: batched.absorb(None),  # type: ignore[arg-type]
    ):
        with pytest.raises(ConfigError, match="account with a cap"):
            act()
    assert model.n_seen == batched.n_seen == model.n_refused == batched.n_refused == 0
    assert not model.guarantee.budgets


@pytest.mark.parametrize(
    "copied", [lambda m: m.clone(), copy.deepcopy, copy.copy, lambda m: m.clone(include_attributes=True)]
)
def test_clones_and_copies_share_the_account(copied: Callable[[Any], Any], met: Met) -> None:
    model = Twice(regressor(budget="eps=0.5"))
    found = account(model, cap="eps=1")
    other = copied(model)
    with pytest.raises(ConfigError, match="account with a cap"):
        other.learn_one(X, 1.0)
    with pytest.raises(ConfigError, match="another account"):
        account(other, cap="eps=1")
    both = type(found)(Together([model, other]), found.record_cap)
    both.learn_one(X, 1.0)
    assert met.epsilons() == {None: 1.0}
    with pytest.raises(NotAvailableError, match="pickled"):
        pickle.dumps(model)


def test_another_thread_has_no_open_record() -> None:
    """A wrapper that learns in threads of its own is refused, because a record is known by its thread."""
    errors: list[Exception] = []

    class Threaded(Together):
        def learn_one(self, x: Any, y: Any, **options: Any) -> None:
            def act() -> None:
                try:
                    self[0].learn_one(x, y)
                except ConfigError as error:
                    errors.append(error)

            thread = threading.Thread(target=act)
            thread.start()
            thread.join()

    model = regressor()
    account(Threaded([model]), cap="eps=1").learn_one(X, 1.0)
    assert len(errors) == 1
    assert model.n_seen == 0


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this system")
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
@pytest.mark.parametrize("record", [None, "r"])
def test_a_fork_within_a_call_spends_nothing_of_the_record(record: Any) -> None:
    class Forking(Together):
        def learn_one(self, x: Any, y: Any, **options: Any) -> None:
            child = os.fork()
            if child == 0:
                try:
                    self[0].learn_one(x, y)
                except StreamDPError:
                    os._exit(7)
                os._exit(0)
            assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
            self[0].learn_one(x, y)

    model = regressor()
    account(Forking([model]), cap="eps=1").learn_one(X, 1.0, record=record)
    assert model.n_seen == 1


def test_threads_share_the_cap_of_a_named_record() -> None:
    models = [regressor(budget="eps=0.25") for _ in range(3)]
    found = account(Together(models), cap="eps=1")
    gate = threading.Barrier(4)

    def act() -> None:
        gate.wait()
        for row in range(50):
            found.learn_one(X, 1.0, record=row)

    in_threads(act)
    assert sum(model.n_seen for model in models) == 200  # four of twelve for each row
    assert sum(model.n_refused for model in models) == 400


@pytest.mark.parametrize("frame", [pd.DataFrame, pl.DataFrame])
def test_learn_many_is_learn_one_for_each_row(frame: Any) -> None:
    rows = {"a": [0.1, 0.2, 0.3], "b": [1.0, 0.5, 0.0]}
    one, many = regressor(seed=3), regressor(seed=3)
    first, second = account(Twice(one), cap="eps=3"), account(Twice(many), cap="eps=3")
    for _ in range(2):
        second.learn_many(frame(rows), [1.0, 2.0, 3.0], records=[7, 8, 7])
        for i, row in enumerate((7, 8, 7)):
            first.learn_one({"a": rows["a"][i], "b": rows["b"][i]}, float(i + 1), record=row)
    assert np.array_equal(one.theta, many.theta)
    assert (many.n_seen, many.n_refused) == (6, 6)  # three spends for each of two names
    with pytest.raises(SchemaError, match="expected 3 of each"):
        second.learn_many(frame(rows), [1.0, 2.0])
    with pytest.raises(SchemaError, match="expected a frame"):
        second.learn_many(np.zeros((3, 2)), [1.0, 2.0, 3.0])
    assert many.n_seen == 6


def test_what_was_spent_before_is_in_the_guarantee() -> None:
    model = regressor()
    model.learn_one(X, 1.0)
    found = account(Twice(model), cap="eps=3")
    assert str(found.guarantee) == "eps=4"
    assert "1 spends from before the cap" in found.statement()


def test_an_estimator_that_comes_later_is_counted_beside_the_cap() -> None:
    models = Together([regressor()])
    found = account(models, cap="eps=1")
    assert "nothing has been spent" in found.statement()
    models.append(regressor(budget="eps=5"))
    found.learn_one(X, 1.0)
    assert str(found.guarantee) == "eps=6"
    assert "1 estimators that came later" in found.statement()


def test_an_account_with_a_seed_is_not_private_under_a_cap_either() -> None:
    found = account(regressor(seed=1), cap="eps=1")
    found.learn_one(X, 1.0)
    assert "NOT PRIVATE" in found.statement()


@pytest.mark.parametrize(
    ("make", "error", "match"),
    [
        (lambda: account(regressor()).learn_one(X, 1.0), ConfigError, "only reads"),
        (lambda: account(regressor(), shares=2), ConfigError, "cap to divide"),
        (lambda: account(regressor(), cap="eps=1", shares=0), ConfigError, "shares: expected a whole number from 1"),
        (lambda: account(regressor(), cap="eps=1 per 3 days"), BudgetError, "expected eps"),
        (lambda: account(regressor(budget="mu=1"), cap="eps=1"), BudgetError, "cannot count GaussianDP"),
        (lambda: account(regressor(), cap="eps=1").learn_one(X, 1.0, record=1.5), SchemaError, "float"),
        (lambda: account(imblearn.HardSamplingRegressor(regressor(), size=3, p=0.5), cap="eps=1"), ConfigError, "Hard"),
    ],
)
def test_what_no_cap_can_be_kept_for_is_refused(make: Callable[[], Any], error: Any, match: str) -> None:
    with pytest.raises(error, match=match):
        make()


def test_bad_records_spend_nothing_and_the_next_one_is_learned(met: Met) -> None:
    model = regressor()
    found = account(Twice(model), cap="eps=1")
    for x, y in (({"a": "text", "b": 1.0}, 1.0), (X, float("nan"))):
        with pytest.raises(SchemaError):
            found.learn_one(x, y, record="r")  # type: ignore[arg-type]
        with pytest.raises(ConfigError):
            model.learn_one(X, 1.0)  # the record is closed
    found.learn_one(X, 1.0, record="r")
    assert (model.n_seen, model.n_refused) == (1, 1)


def lines(act: Callable[[], None], at: int) -> bool:
    """Raise at the line `at` of streamdp; return whether there is such a line."""
    left = at

    def trace(frame: Any, event: str, _: Any) -> Any:
        nonlocal left
        if "streamdp" not in frame.f_code.co_filename or "tests" in frame.f_code.co_filename:
            return None
        if event == "line":
            left -= 1
            if left == 0:
                sys.settrace(None)
                raise KeyboardInterrupt
        return trace

    sys.settrace(trace)
    try:
        act()
    except KeyboardInterrupt:
        return True
    finally:
        sys.settrace(None)
    return False


def test_an_exception_at_any_line_loses_no_spend(met: Met) -> None:
    """What was learned of it is within its cap when it is given again."""

    model = regressor()
    found = account(Together([model]), cap="eps=2")
    found.learn_one(X, 1.0)

    def cases() -> Iterator[bool]:
        for at in range(1, 1000):
            met.spends.clear()
            go_on = lines(partial(found.learn_one, X, 1.0, record=at), at)
            with suppress(ConfigError):  # the record may be open still: then this one is charged to it
                model.learn_one(X, 1.0)
            for _ in range(4):
                found.learn_one(X, 1.0, record=at)
            assert sum(met.epsilons().values()) <= 2
            with pytest.raises(ConfigError):
                model.learn_one(X, 1.0)
            yield go_on
            if not go_on:
                return

    assert 40 < sum(cases()) < 500


def test_softmax_needs_no_account() -> None:
    model = LDPASGDClassifier(features=["a", "b"], classes=["x", "y", "z"])
    found = account(model, cap="eps=1")
    for i in range(30):
        found.learn_one(X, "xyz"[i % 3])
    assert (model.n_seen, model.n_refused) == (30, 0)


def test_a_scaler_that_learns_is_told_of_when_the_account_is_made() -> None:
    with pytest.warns(PrivacyWarning, match="no guarantee covers what StandardScaler may keep"):
        account(StandardScaler() | LDPSGDRegressor(features=["a"]), cap="eps=1")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        account(BoundsScaler({"a": (0, 1)}) | LDPSGDRegressor(features=["a"]), cap="eps=1")
