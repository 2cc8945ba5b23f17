"""Accounts over all private estimators of a model, the check of its other parts, and the warning of shared records."""

import random
import warnings
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np
import pandas as pd
import pytest
from river import (
    compose,
    ensemble,
    evaluate,
    feature_extraction,
    feature_selection,
    imblearn,
    linear_model,
    metrics,
    model_selection,
    multiclass,
    preprocessing,
    stats,
)
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from streamdp import (
    ApproxDP,
    GaussianDP,
    LDPASGDClassifier,
    LDPSGDClassifier,
    LDPSGDRegressor,
    Ledger,
    PanPrivateClassifier,
    PrivacyWarning,
    PureDP,
    ShuffleClassifier,
    UserLevelLDPClassifier,
    WindowedClassifier,
    account,
)
from streamdp.errors import ConfigError, SchemaError
from streamdp.preprocessing import check_pipeline
from streamdp.sklearn import PrivateRegressor
from streamdp.stats import Statistics
from tests.support.sizes import some

Records = Iterable[tuple[dict[str, float], bool]]


def stream(n: int, seed: int = 0) -> Iterator[tuple[dict[str, float], bool]]:
    rng = random.Random(seed)
    for _ in range(n):
        x = {"a": rng.uniform(-1, 1), "b": rng.uniform(-1, 1)}
        yield x, x["a"] > 0


def classifier(**options: Any) -> LDPSGDClassifier:
    return LDPSGDClassifier(features=["a", "b"], **options)


def bagging(model: Any = None, n_models: int = 10) -> Any:
    return ensemble.BaggingClassifier(model or classifier(), n_models=n_models, seed=1)


def halving() -> Any:
    models = [classifier(), classifier(), classifier(budget="eps=2")]
    return model_selection.SuccessiveHalvingClassifier(models, metrics.Accuracy(), budget=600)


def oversampler() -> Any:
    return imblearn.RandomOverSampler(classifier(), desired_dist={False: 0.5, True: 0.5}, seed=1)


def scaler() -> compose.FuncTransformer:
    return compose.FuncTransformer(dict)


def learn(model: Any, records: Records, **options: Any) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", PrivacyWarning)
        for x, y in records:
            model.learn_one(x, y, **options)
    return model


MODELS: dict[str, tuple[Callable[[], Any], str, int, tuple[str, ...]]] = {
    "one estimator": (classifier, "eps=1", 1, ()),
    "a pipeline": (lambda: scaler() | classifier(), "eps=1", 1, ()),
    "a scaler that learns": (lambda: preprocessing.StandardScaler() | classifier(), "eps=1", 1, ("StandardScaler",)),
    "bagging": (bagging, "eps=10", 10, ()),
    "bagging of pipelines": (lambda: bagging(scaler() | classifier()), "eps=10", 10, ()),
    "bagging behind a scaler": (
        lambda: preprocessing.StandardScaler() | bagging(), "eps=10", 10, ("StandardScaler",),
    ),
    "one against the rest": (
        lambda: multiclass.OneVsRestClassifier(classifier()), "eps=2", 2, ("OneVsRestClassifier",),
    ),
    "boosting": (
        lambda: ensemble.AdaBoostClassifier(classifier(), n_models=4, seed=1), "eps=4", 4, ("AdaBoostClassifier",),
    ),
    "oversampling": (oversampler, "eps=1", 1, ("RandomOverSampler",)),
    "successive halving": (halving, "eps=4", 3, ("SuccessiveHalvingClassifier", "Accuracy")),
    "bagging of batches": (
        lambda: bagging(PanPrivateClassifier(features=["a", "b"])), "eps=10,delta=1e-05", 10, (),
    ),
}  # fmt: skip
every = pytest.mark.parametrize("name", MODELS)


@every
def test_an_account_finds_all_estimators_and_adds_their_spends(name: str) -> None:
    make, total, learned, uncovered = MODELS[name]
    found = account(learn(make(), stream(100)))
    assert str(found.guarantee) == total
    assert len(found.learned) == learned
    assert found.uncovered == uncovered
    said = found.statement()
    assert f"{len(found.estimators)} private estimators, of which {learned} learned" in said
    assert "learned several times" in said
    assert all(part in said for part in uncovered)
    assert "NOT PRIVATE" not in said


def test_an_account_of_several_has_those_of_scikit_learn() -> None:
    X = np.linspace(-1, 1, 1000)[:, None]
    fitted = make_pipeline(StandardScaler(), PrivateRegressor(bounds=(-1, 1), target=(-1, 1)))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = account([learn(classifier(), stream(1)), fitted.fit(X, X[:, 0])])
    assert (str(found.guarantee), found.uncovered) == ("eps=2,delta=1e-06", ("StandardScaler",))


def test_an_account_before_learning_has_spent_nothing() -> None:
    said = account(bagging()).statement()
    assert "11 private estimators, of which 0 learned" in said
    assert "nothing has been spent" in said


def test_an_account_composes_by_the_rules_of_spends() -> None:
    def total(*budgets: str) -> Any:
        models = [classifier(budget=budget) for budget in budgets]
        return account({"first": models[0], "others": (models[1:],)} if learn_all(models) else None).guarantee.budgets

    def learn_all(models: list[Any]) -> bool:
        return all(learn(model, stream(3)) for model in models)

    assert total("mu=3", "mu=4") == (GaussianDP(5.0),)
    assert total("eps=1", "eps=1,delta=1e-6", "eps=1,delta=1e-6") == (ApproxDP(3.0, 2e-6),)
    (mixed,) = total("mu=1", "eps=1,delta=1e-6")
    assert isinstance(mixed, ApproxDP)
    assert mixed.delta == pytest.approx(2e-6)
    assert 1 + GaussianDP(1).epsilon(1e-6) >= mixed.epsilon > GaussianDP(1).epsilon(1e-6)


def test_an_account_with_a_seed_is_not_private() -> None:
    models = [learn(classifier(), stream(3)), classifier(seed=1)]
    assert account(models).guarantee.private  # the seeded one has learned nothing
    learn(models[1], stream(3))
    assert "NOT PRIVATE" in account(models).statement()


def test_deltas_that_reach_one_promise_nothing() -> None:
    models = [learn(classifier(budget="eps=1,delta=0.4"), stream(3)) for _ in range(3)]
    assert str(account(models[:2]).guarantee) == "eps=2,delta=0.8"
    assert str(account(models).guarantee) == "not private"


def test_an_account_of_user_level_estimators_is_for_records() -> None:
    models = [UserLevelLDPClassifier(features=["a", "b"]), classifier()]
    for model in models:
        learn(model, stream(3))
    said = account(models).statement()
    assert "two streams that differ in one record" in said
    assert "(2, 1e-06)" in said


def test_an_account_names_the_cap_that_all_estimators_share() -> None:
    ledger = Ledger("eps=3")
    model = learn(bagging(classifier(ledger=ledger)), stream(20), subject="ann")
    assert ledger.spent("ann").epsilon == 3
    assert "would pass eps=3" in account(model).statement()
    assert "add up" in account([model, classifier()]).statement()
    assert "add up" in account([classifier(ledger=ledger), classifier(ledger=Ledger("eps=3"))]).statement()


WRAPPERS: dict[str, Callable[[Any], Any]] = {
    "bagging": bagging,
    "bagging of pipelines": lambda model: bagging(scaler() | model),
    "leveraging bagging": lambda model: ensemble.LeveragingBaggingClassifier(model, n_models=5, seed=1),
    "boosting": lambda model: ensemble.AdaBoostClassifier(model, n_models=4, seed=1),
    "one against the rest": multiclass.OneVsRestClassifier,
    "oversampling": lambda model: imblearn.RandomOverSampler(model, desired_dist={False: 0.5, True: 0.5}, seed=1),
}


@pytest.mark.parametrize("name", WRAPPERS)
@pytest.mark.slow
def test_a_ledger_bounds_what_a_person_spends_in_all_estimators_of_a_wrapper(name: str) -> None:
    """The wrapper copies the estimator and repeats records. What all copies have learned is counted by themselves."""
    ledger = Ledger("eps=3")
    model = WRAPPERS[name](classifier(ledger=ledger))
    for i, record in enumerate(stream(100)):
        learn(model, [record], subject=f"p{i % 5}")
    found = account(model).estimators
    assert sum(one.n_seen for one in found) == 15
    assert sum(one.n_refused for one in found) >= 85
    assert [ledger.spent(f"p{i}").epsilon for i in range(5)] == [3] * 5


def test_records_that_lost_their_subject_on_the_way_are_refused() -> None:
    """A wrapper may drop what it does not know; no cap would limit these records."""
    ledger = Ledger("eps=3")
    model, (x, y) = classifier(ledger=ledger), next(stream(1))
    rows, targets = np.zeros((2, 2)), np.zeros(2)
    ways: list[Callable[[], Any]] = [
        lambda: model.learn_one(x, y),
        lambda: model.learn_one(x, y, budget="eps=2"),
        lambda: model.learn_many(pd.DataFrame(rows, columns=["a", "b"]), [True, False]),
        lambda: model.learn_encoded(rows, targets),
        lambda: model.learn_encoded(rows, targets, subjects=["ann", None]),
        lambda: model.absorb(model.randomizer(x, y)),
    ]
    for learn_it in ways:
        with pytest.raises(SchemaError, match="cap eps=3 needs the subject of each record"):
            learn_it()
    assert (model.n_seen, model.n_refused, ledger.spent("ann").records) == (0, 0, 0)
    for _ in range(4):
        model.absorb(model.randomizer(x, y), subject="ann")
    assert (model.n_seen, model.n_refused, ledger.spent("ann").records) == (3, 1, 3)


def test_an_account_of_nothing_private_is_refused() -> None:
    with pytest.raises(ConfigError, match="private estimator"):
        account(linear_model.LinearRegression())


def test_a_model_that_holds_itself_is_walked_once() -> None:
    model = classifier()
    loop: list[Any] = [model]
    loop.append(loop)
    assert account(loop).estimators == (model,)


def test_a_statement_speaks_of_one_model_and_of_each_record_once() -> None:
    for kind in (LDPASGDClassifier, PanPrivateClassifier, ShuffleClassifier, UserLevelLDPClassifier,
                 WindowedClassifier):  # fmt: skip
        said = kind(features=["a", "b"]).statement()
        assert "this model alone, and each record as if it was given once" in said


@pytest.mark.parametrize("others", [lambda m: (m,), lambda m: (m.clone(), m)], ids=["itself", "itself and another"])
def test_no_estimator_is_merged_with_itself(others: Callable[[Any], tuple[Any, ...]]) -> None:
    model = learn(classifier(), stream(3))
    with pytest.raises(ConfigError, match="disjoint"):
        model.merged(*others(model))


# --- the other parts of a model


def test_every_part_that_learns_is_named() -> None:
    model = LDPSGDRegressor(features=["a"])
    forest = linear_model.LinearRegression()
    cases = [
        (preprocessing.StandardScaler() | model, ["StandardScaler"]),
        (scaler() | preprocessing.MinMaxScaler() | model, ["MinMaxScaler"]),
        ((preprocessing.MaxAbsScaler() + compose.Select("a")) | model, ["MaxAbsScaler"]),
        (compose.Grouper(preprocessing.RobustScaler(), by="a") | model, ["RobustScaler"]),
        (preprocessing.AdaptiveStandardScaler() | model, ["AdaptiveStandardScaler"]),
        (preprocessing.StatImputer(("a", stats.Mean())) | model, ["StatImputer"]),
        (feature_extraction.TargetAgg(by="a", how=stats.Mean()) | model, ["TargetAgg"]),
        (feature_selection.VarianceThreshold() | model, ["VarianceThreshold"]),
        (preprocessing.OneHotEncoder() | model, ["OneHotEncoder"]),
        (feature_selection.SelectKBest(stats.PearsonCorr()) | model, ["SelectKBest"]),
        (preprocessing.TargetStandardScaler(model), ["TargetStandardScaler", "Var"]),
        (preprocessing.TargetMinMaxScaler(preprocessing.StandardScaler() | model),
         ["TargetMinMaxScaler", "StandardScaler", "Min", "Max"]),
        (ensemble.BaggingRegressor(preprocessing.StandardScaler() | model), ["StandardScaler"]),
        (ensemble.EWARegressor([model, forest]), ["EWARegressor", "LinearRegression"]),
        (forest, ["LinearRegression"]),
    ]  # fmt: skip
    for pipeline, expected in cases:
        assert set(expected) <= set(check_pipeline(pipeline)), pipeline
        assert set(check_pipeline(pipeline)) - set(expected) <= {"SGD", "Squared", "Scheduler", "Constant"}, pipeline


def test_parts_by_public_constants_are_not_named() -> None:
    scaled, encoded = compose.Select("a") | scaler(), compose.Select("c")
    expanded = compose.FuncTransformer(dict) | feature_extraction.PolynomialExtender()
    model = compose.TargetTransformRegressor(LDPSGDRegressor(features=["a"]), abs, abs)
    assert check_pipeline((scaled + encoded) | expanded | ensemble.BaggingRegressor(model)) == ()
    assert check_pipeline([classifier(), PanPrivateClassifier()]) == ()


def test_a_wrapper_of_ones_own_is_searched_and_named() -> None:
    class Mine:
        def __init__(self, model: Any) -> None:
            self.inner = {"model": [model]}

        def learn_one(self, x: Any, y: Any) -> None:
            self.inner["model"][0].learn_one(x, y)

    model = Mine(classifier())
    assert account(model).estimators == (model.inner["model"][0],)
    assert check_pipeline(model) == ("Mine",)


# --- records that several estimators learn


def warned(act: Callable[[], Any]) -> int:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        act()
    return sum(w.category is PrivacyWarning and "StandardScaler" not in str(w.message) for w in caught)


SEVERAL = ["bagging", "one against the rest", "boosting", "bagging of batches"]


def loop(model: Any, records: Records) -> None:
    for x, y in records:
        model.learn_one(x, y)


@pytest.mark.parametrize("name", SEVERAL)
def test_ensembles_warn_that_their_estimators_share_records(name: str) -> None:
    make = MODELS[name][0]
    assert warned(lambda: loop(make(), stream(100)))
    assert warned(lambda: evaluate.progressive_val_score(stream(100), make(), metrics.Accuracy()))


def test_the_warning_says_what_to_do_and_shows_no_value() -> None:
    with pytest.warns(PrivacyWarning, match=r"account\(model\)") as caught:
        loop(bagging(), [({"a": 0.123456, "b": 0.654321}, True), ({"a": 0.123457, "b": 0.654322}, False)] * 50)
    (text,) = {str(w.message) for w in caught}  # one, so that it is shown once
    assert not any(value in text for value in ("0.1234", "0.6543", "True"))


KINDS = [LDPSGDClassifier, PanPrivateClassifier, UserLevelLDPClassifier]
STEPS: dict[str, Callable[[Any], Any]] = {
    "alone": lambda model: model,
    "behind a scaler": lambda model: scaler() | model,
    "behind a scaler of River": lambda model: preprocessing.StandardScaler() | model,
    "behind a selection": lambda model: compose.Select("a", "b") | model,
    "behind a function": lambda model: compose.FuncTransformer(dict) | model,
    "behind a union": lambda model: compose.Select("a") + compose.Select("b") | model,
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("step", some(STEPS, 0, 2, 5))
@pytest.mark.slow
def test_models_of_disjoint_records_do_not_warn(kind: Any, step: str) -> None:
    """One model for each shop: each record goes to one of them, one at a time."""
    for records in (stream(300), list(stream(300))):
        rng, shops = random.Random(2), [STEPS[step](kind(features=["a", "b"])) for _ in range(3)]
        assert not warned(lambda rng=rng, shops=shops, records=records: [
            rng.choice(shops).learn_one(x, y) for x, y in records
        ])  # fmt: skip


@pytest.mark.parametrize("kind", KINDS)
def test_records_that_are_made_in_a_call_or_filled_again_do_not_warn(kind: Any) -> None:
    first, second, third = (kind(features=["a", "b"]) for _ in range(3))
    record: dict[str, float] = {}

    def act() -> None:
        for x, y in stream(100):
            first.learn_one({"a": x["a"], "b": 0.0}, y)
            second.learn_one({"a": x["b"], "b": 0.0}, y)
        for x, y in stream(100):
            record.update(x)
            third.learn_one(record, y)

    assert not warned(act)


def test_one_softmax_model_spends_once_where_one_against_the_rest_spends_for_each_class() -> None:
    records = [(x, "xyz"[i % 3]) for i, (x, _) in enumerate(stream(30))]
    rest = learn(multiclass.OneVsRestClassifier(classifier()), records)  # type: ignore[arg-type]
    softmax = learn(LDPASGDClassifier(features=["a", "b"], classes=["x", "y", "z"]), records)  # type: ignore[arg-type]
    assert account(rest).guarantee.budgets == (PureDP(3),)
    assert account(softmax).guarantee.budgets == (PureDP(1),)


def test_an_account_says_that_times_are_public_where_an_estimator_says_so() -> None:
    statistics = Statistics({"n": {"count": "g"}}, {"g": ["a", "b"]}, "eps=1", every="1 day")
    statistics.learn_one({"g": "a"}, 1.7e9)
    assert "the subject, the budget and the window of time" in statistics.guarantee.neighbours
    assert "where an estimator learns by time, the time of each" in account([statistics]).statement()
