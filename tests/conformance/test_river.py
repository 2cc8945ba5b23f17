"""Every public estimator passes River's checks and works in River's pipelines, with its guarantee."""

import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd
import pytest
import sklearn  # noqa: F401  River leaves checks out without pandas and scikit-learn: fail rather than pass fewer
from river import compose, evaluate, metrics, preprocessing
from river.base import Regressor

import streamdp
from streamdp import (
    ApproxDP,
    GaussianDP,
    Huber,
    L2Ball,
    LDPASGDClassifier,
    LDPASGDRegressor,
    LDPSGDClassifier,
    LDPSGDRegressor,
    PanPrivateClassifier,
    PanPrivateRegressor,
    PureDP,
    Quantile,
    ShuffleClassifier,
    ShuffleRegressor,
    Squared,
    UserLevelLDPClassifier,
    UserLevelLDPRegressor,
    WindowedClassifier,
    WindowedRegressor,
)
from streamdp.errors import BudgetError, ConfigError, NotAvailableError, SchemaError
from streamdp.estimators.estimator import Estimator
from streamdp.estimators.features import SchemaWarning
from streamdp.optim.losses import LOSSES
from streamdp.windows.smoothed import ConvolutionSmoothing
from tests.support.river_checks import models_to_check, run_checks
from tests.support.sizes import some
from tests.support.states import loss_of, pending_of, steps_of, words_of

SEGMENTS = (False, True, "brickface", "sky", "foliage", "cement", "window", "path", "grass")

LDP: dict[str, Callable[[], Any]] = {
    "sgd huber": lambda: LDPSGDRegressor(),
    "asgd huber": lambda: LDPASGDRegressor(),
    "asgd huber object": lambda: LDPASGDRegressor(loss=Huber(c=1.0), budget=GaussianDP(1)),
    "sgd squared": lambda: LDPSGDRegressor(loss="squared", budget="eps=1,delta=1e-6"),
    "asgd squared clipped": lambda: LDPASGDRegressor(loss=Squared(clip=2.0), domain=L2Ball(2.0)),
    "sgd quantile": lambda: LDPSGDRegressor(loss=Quantile(tau=0.9), mechanism="laplace", intercept=False),
    "sgd logistic": lambda: LDPSGDClassifier(),
    "asgd logistic": lambda: LDPASGDClassifier(budget=GaussianDP(2)),
    "sgd hinge": lambda: LDPSGDClassifier(loss="hinge"),
    "asgd hinge": lambda: LDPASGDClassifier(loss="hinge"),
    "sgd multiclass": lambda: LDPSGDClassifier(classes=SEGMENTS),
    "asgd multiclass": lambda: LDPASGDClassifier(classes=SEGMENTS),
}
PAN: dict[str, Callable[[], Any]] = {
    "pan huber": lambda: PanPrivateRegressor(),
    "pan huber in batches": lambda: PanPrivateRegressor(batch_size=3, budget=GaussianDP(1)),
    "pan quantile": lambda: PanPrivateRegressor(loss=Quantile(tau=0.9), intercept=False, horizon=100),
    "pan squared": lambda: PanPrivateRegressor(loss="squared"),
    "pan poisson": lambda: PanPrivateRegressor(loss="poisson", target=(0, 100)),
    "pan logistic": lambda: PanPrivateClassifier(),
    "pan logistic in batches": lambda: PanPrivateClassifier(batch_size=7, budget="eps=2,delta=1e-6"),
    "pan hinge": lambda: PanPrivateClassifier(loss="hinge", batch_size=2),
    "pan multiclass": lambda: PanPrivateClassifier(classes=SEGMENTS),
    "pan multiclass in batches": lambda: PanPrivateClassifier(classes=SEGMENTS, batch_size=5),
}
SHUFFLE: dict[str, Callable[[], Any]] = {
    "shuffle huber": lambda: ShuffleRegressor(),
    "shuffle quantile in batches": lambda: ShuffleRegressor(loss=Quantile(tau=0.9), batch_size=3, intercept=False),
    "shuffle logistic sgd": lambda: ShuffleClassifier(method="sgd", batch_size=7),
    "shuffle hinge": lambda: ShuffleClassifier(loss="hinge", horizon=100),
    "shuffle multiclass in batches": lambda: ShuffleClassifier(classes=SEGMENTS, batch_size=5),
}
USER: dict[str, Callable[[], Any]] = {
    "user huber": lambda: UserLevelLDPRegressor(),
    "user squared mu": lambda: UserLevelLDPRegressor(loss="squared", smoothness=2.0, budget="mu=1"),
    "user quantile pure": lambda: UserLevelLDPRegressor(loss=Quantile(tau=0.9), budget="eps=1", intercept=False),
    "user logistic": lambda: UserLevelLDPClassifier(items_per_user=1),
    "user hinge": lambda: UserLevelLDPClassifier(loss="hinge", window=7),
    "user multiclass": lambda: UserLevelLDPClassifier(classes=SEGMENTS, batch_size=5),
}
AMPLE: dict[str, Any] = {"window": 60, "items_per_user": 2, "budget": "eps=5000,delta=0.1"}
"""With these, windows are released in River's checks."""
WINDOWED: dict[str, Callable[[], Any]] = {
    "windowed huber": lambda: WindowedRegressor(),
    "windowed logistic": lambda: WindowedClassifier(),
    "windowed multiclass": lambda: WindowedClassifier(classes=SEGMENTS),
    "windowed newton": lambda: WindowedClassifier(**AMPLE),
    "windowed poisson": lambda: WindowedRegressor(loss="poisson", target=(0, 100), **AMPLE),
    "windowed private-range": lambda: WindowedClassifier(method="private-range", **AMPLE),
    "windowed outlier-removal": lambda: WindowedRegressor(
        loss="squared", smoothness=1.0, method="outlier-removal", **AMPLE
    ),
    "windowed smoothed quantile": lambda: WindowedRegressor(
        loss=Quantile(tau=0.9), method=ConvolutionSmoothing(most_queries=2000), **AMPLE
    ),
}
MODELS = LDP | PAN | SHUFFLE
CHECKED = MODELS | USER | WINDOWED
every = pytest.mark.parametrize("make", MODELS.values(), ids=MODELS.keys())
every_ldp = pytest.mark.parametrize("make", LDP.values(), ids=LDP.keys())


def numbers(model: Any) -> np.ndarray:
    """What the model has learned up to the last boundary."""
    state: np.ndarray = (
        steps_of(model).learned()["state"] if steps_of(model) is not None else model.state_dict()["state"]
    )
    return state


checked = pytest.mark.parametrize(
    "make", [*models_to_check(MODELS | USER), *models_to_check(WINDOWED, pytest.mark.slow)]
)


@checked
@pytest.mark.filterwarnings("ignore::streamdp.estimators.features.SchemaWarning")
@pytest.mark.filterwarnings("ignore::streamdp.learners.user_windows.WindowWarning")
def test_river_checks(make: Callable[[], Any]) -> None:
    run_checks(make, slow=False)


@pytest.mark.campaign
@pytest.mark.parametrize("budget", ["eps=0.5", "eps=1", "eps=4", "mu=0.5", "eps=1,delta=1e-6"])
@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("family", ["LDPSGD", "LDPASGD", "UserLevelLDP", "PanPrivate", "Shuffle", "Windowed"])
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_river_checks_of_each_loss_and_budget(family: str, loss: str, budget: str) -> None:
    kind: Any = getattr(streamdp, family + ("Classifier" if LOSSES[loss].of_classes else "Regressor"))
    if LOSSES[loss].log_link:
        with pytest.raises(ConfigError, match=r"needs bounds|by Newton's steps alone"):
            kind(loss=loss, budget=budget)
        return
    if budget.startswith("mu") and family in ("Shuffle", "Windowed"):
        with pytest.raises(BudgetError, match="expected eps=E,delta=D, got mu"):
            kind(loss=loss, budget=budget)
        return
    run_checks(lambda: kind(loss=loss, budget=budget), slow=False)
    if loss in ("logistic", "softmax") and budget == "eps=1":
        run_checks(lambda: kind(loss=loss, budget=budget, classes=SEGMENTS), slow=False)


@pytest.mark.parametrize("make", some(CHECKED.values(), 1, 13, 22, 24, 35), ids=CHECKED.keys())
@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::streamdp.learners.user_windows.WindowWarning")
def test_river_finds_memory_bounded(make: Callable[[], Any]) -> None:
    run_checks(make, slow=True)


def test_every_public_estimator_is_checked() -> None:
    names = (getattr(streamdp, name) for name in streamdp.__all__)  # some are imported when they are asked for
    public = {v for v in names if isinstance(v, type) and issubclass(v, Estimator)}
    assert public == {type(make()) for make in CHECKED.values()}


# --- in pipelines

WEIGHTS = np.array([1.0, -2.0, 0.5])


def records(n: int, classes: tuple[Any, ...] | None = None, seed: int = 3) -> list[tuple[dict[str, float], Any]]:
    """(x, y) of a linear model, or of classes by its sign (and size)."""
    rng = np.random.default_rng(seed)
    X = rng.uniform(-1, 1, (n, 3))
    u = X @ WEIGHTS
    if classes is None:
        targets: list[Any] = (u + rng.normal(0, 0.1, n)).tolist()
    else:
        index = np.digitize(u, np.linspace(-1, 1, len(classes) + 1)[1:-1])
        targets = [classes[i] for i in index]
    return [(dict(zip("abc", row, strict=True)), y) for row, y in zip(X.tolist(), targets, strict=True)]


def data_for(model: Any, n: int, seed: int = 3) -> list[tuple[dict[str, float], Any]]:
    return records(n, getattr(model, "labels", None), seed)


def test_a_pipeline_learns() -> None:
    """Accuracy over a stream of 4,000 at eps = 4; guessing gives one half. Seeded."""
    model = compose.Pipeline(
        compose.Select("a", "b", "c"), LDPASGDClassifier(features=["a", "b", "c"], budget=PureDP(4), seed=1, eta=1.0)
    )
    score = evaluate.progressive_val_score(iter(records(4000, (False, True))), model, metrics.Accuracy())
    assert score.get() > 0.8
    assert model[-1].n_seen == 4000


def test_budgets_come_with_the_streams_third_element() -> None:
    """`progressive_val_score` passes {"budget": ...} to learn_one; the widest is guaranteed, and noise follows."""

    def run(epsilon: float) -> LDPASGDRegressor:
        model = compose.Pipeline(
            compose.Select("a", "b", "c"), LDPASGDRegressor(features=["a", "b", "c"], budget=PureDP(0.5), seed=2)
        )
        stream = ((x, y, {"budget": PureDP(epsilon if i % 2 else 0.25)}) for i, (x, y) in enumerate(records(400)))
        evaluate.progressive_val_score(stream, model, metrics.MAE())
        return model[-1]

    model = run(3.0)
    assert model.guarantee.budgets == (PureDP(3.0),)
    assert model.n_seen == 400
    direct = LDPASGDRegressor(features=["a", "b", "c"], budget=PureDP(0.5), seed=2)
    for i, (x, y) in enumerate(records(400)):
        direct.learn_one(x, y, budget=PureDP(3.0 if i % 2 else 0.25))
    assert np.array_equal(direct.state_dict()["state"], model.state_dict()["state"])
    assert not np.array_equal(run(2.0).state_dict()["state"], model.state_dict()["state"])


def test_budgets_of_other_kinds_in_one_stream() -> None:
    model = LDPASGDRegressor(features=["a", "b", "c"])
    spends = ["eps=2", GaussianDP(1), ApproxDP(1, 1e-6), None, ApproxDP(0.5, 1e-5)]
    for (x, y), spend in zip(records(5), spends, strict=True):
        model.learn_one(x, y, budget=spend)
    assert model.guarantee.budgets == (PureDP(2), ApproxDP(1, 1e-5), GaussianDP(1))


def test_in_a_pipeline_with_a_transformer_of_river() -> None:
    model = preprocessing.OneHotEncoder() | LDPASGDRegressor(features=["k_u", "k_v"], intercept=False, seed=1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # a one-hot record lacks a category; the encoder learns categories
        for i in range(10):
            model.learn_one({"k": "uv"[i % 2]}, float(i % 2))
    assert model[-1].n_seen == 10


# --- predictions


@every
def test_predictions_before_and_after_learning(make: Callable[[], Any]) -> None:
    model = make()
    data = data_for(model, 50)
    x = data[0][0]
    if isinstance(model, Regressor):
        assert model.predict_one(x) == 0.0
    else:
        assert model.predict_one(x) == model.labels[0]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SchemaWarning)
        for row, y in data:
            model.learn_one(row, y)
    model.close_batch()
    if isinstance(model, Regressor):
        weights = model.weights
        direct = weights.get("(intercept)", 0.0) + sum(weights[name] * x[name] for name in "abc")
        assert model.predict_one(x) == pytest.approx(min(np.exp(direct), 100) if model.link else direct)
        return
    if loss_of(model).name == "hinge":
        with pytest.raises(NotImplementedError):
            model.predict_proba_one(x)
        assert model.predict_one(x) in model.labels
        return
    chances = model.predict_proba_one(x)
    assert tuple(chances) == model.labels
    assert sum(chances.values()) == pytest.approx(1)
    assert model.predict_one(x) == max(chances, key=chances.__getitem__)


# --- what it says


@every
def test_statement_and_guarantee_name_the_spend(make: Callable[[], Any]) -> None:
    model = make()
    assert model.guarantee.budgets == ()
    assert "Nothing has been learned" in model.statement()
    with pytest.warns(SchemaWarning):
        model.learn_one(*data_for(model, 1)[0])
    assert model.guarantee.budgets == (model.record_budget,)
    assert model.guarantee.private
    released = int(model.at_boundary)  # what an open batch holds was spent, and is not learned yet
    said = model.statement()
    assert f"after {released} records learned" in said
    assert "replace-one" in said
    assert "NOT PRIVATE" not in said
    assert "first record's names" in said
    assert model.at_boundary or model.to_boundary
    assert model.at_boundary or steps_of(model) is not None
    model.close_batch()
    assert model.at_boundary


# --- schema


def caught(act: Callable[[], Any]) -> list[str]:
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        act()
    return [str(w.message) for w in seen if issubclass(w.category, SchemaWarning)]


def test_schema_warnings_come_once() -> None:
    model = LDPASGDRegressor(features=["a", "b"])

    def learn(x: dict[str, float]) -> Callable[[], None]:
        return lambda: [model.learn_one(x, 1.0) for _ in range(3)] and None

    assert caught(learn({"a": 1.0, "b": 2.0})) == []
    assert len(caught(learn({"a": 1.0}))) == 1
    assert len(caught(learn({"a": 1.0, "b": 1.0, "z": 1.0}))) == 1
    assert caught(learn({"a": 1.0})) == caught(learn({"a": 1.0, "b": 1.0, "z": 1.0})) == []


def test_an_undeclared_schema_is_adopted_sorted_with_a_warning() -> None:
    model = LDPASGDRegressor()
    assert len(caught(lambda: model.learn_one({"b": 1.0, "a": 2.0}, 1.0))) == 1
    assert list(model.weights) == ["a", "b", "(intercept)", "(error spread)"]


def test_missing_features_count_as_zero_and_unknown_ones_not_at_all() -> None:
    rows = [{"a": 0.5, "b": 0.0}, {"a": 0.5}, {"a": 0.5, "b": 0.0, "z": 9.0}, {"a": 0.5, "z": 9.0}]
    states = []
    for row in rows:
        model = LDPASGDRegressor(features=["a", "b"], seed=4)
        caught(lambda model=model, row=row: model.learn_one(row, 1.0))
        states.append(model.state_dict()["state"])
    assert all(np.array_equal(states[0], other) for other in states)


@pytest.mark.parametrize("kind", [LDPASGDClassifier, PanPrivateClassifier])
def test_an_undeclared_class_is_refused_by_every_way_in(kind: Any) -> None:
    model = kind(features=["a"], classes=("u", "v", "w"))
    for act in (
        lambda: model.learn_one({"a": 1.0}, "z"),
        lambda: model.learn_many(pd.DataFrame({"a": [1.0, 1.0]}), pd.Series(["u", "z"])),
        lambda: model.learn_encoded([[1.0]], [3.0]),
        lambda: model.learn_encoded([[1.0]], [-1.0]),
        lambda: model.learn_encoded([[1.0]], [0.5]),
    ):
        with pytest.raises(SchemaError):
            act()
    assert model.n_seen == 0


def test_settings_that_contradict_one_another_are_refused_at_once() -> None:
    with pytest.raises(ConfigError):
        LDPASGDClassifier(loss="hinge", classes=("u", "v", "w"))
    for budget, mechanism in ((GaussianDP(1), "laplace"), (PureDP(1), "gaussian")):
        with pytest.raises(BudgetError):
            LDPASGDRegressor(budget=budget, mechanism=mechanism)


# --- state


def declared(make: Callable[[], Any], **more: Any) -> Any:
    return make().clone({"features": ["a", "b", "c"], **more})


@every
def test_the_state_is_plain_and_a_copy(make: Callable[[], Any]) -> None:
    model = declared(make)
    for x, y in data_for(model, 20):
        model.learn_one(x, y)
    model.close_batch()
    state = model.state_dict()
    kept = state["state"].copy()

    def plain(value: Any) -> bool:
        if isinstance(value, list):
            return all(map(plain, value))
        if isinstance(value, dict):
            return all(map(plain, value.values()))
        return isinstance(value, int | float | str | bool | np.ndarray | None)

    assert all(map(plain, state.values()))
    for x, y in data_for(model, 20):
        model.learn_one(x, y)
    assert np.array_equal(state["state"], kept)


def test_no_state_before_features_are_known() -> None:
    model = LDPASGDRegressor()
    for act in (model.state_dict, model.interval, lambda: model.theta, lambda: model.randomizer):
        with pytest.raises(NotAvailableError):
            act()
    assert model.weights == {}


# --- merged and clone


@pytest.mark.parametrize("make", (MODELS | USER).values(), ids=(MODELS | USER).keys())
def test_merged_is_the_average_by_records(make: Callable[[], Any]) -> None:
    """Without records of an open batch."""
    parts = [declared(make) for _ in range(3)]
    sizes = (10, 40, 50)
    for i, (part, n) in enumerate(zip(parts, sizes, strict=True)):
        for x, y in data_for(part, n, seed=i):
            part.learn_one(x, y)
        part.close_batch()
    for x, y in data_for(parts[0], 5):
        parts[0].learn_one(x, y)
    sizes = (15 - pending_of(parts[0]), 40, 50)
    before = [numbers(part).copy() for part in parts]
    together = parts[0].merged(*parts[1:])
    if getattr(together.learner, "method", "") != "newton":  # which weighs by information
        expected = np.average([part.theta for part in parts], axis=0, weights=sizes)
        assert together.theta == pytest.approx(expected, rel=1e-12, abs=1e-12)
    assert (together.n_seen, together.at_boundary) == (sum(sizes), True)
    declared(make).load_state_dict(together.state_dict())
    assert together.guarantee.budgets == (parts[0].record_budget,)
    for part, state in zip(parts, before, strict=True):
        assert np.array_equal(numbers(part), state)
    if hasattr(together, "interval") and getattr(together.learner, "method", "") != "newton":  # whose sums add up
        with pytest.raises(NotAvailableError):
            together.interval()
    together.learn_one(x, y)
    assert together.n_seen == sum(sizes) + 1


def test_merged_takes_the_widest_budget() -> None:
    one, other = (LDPASGDRegressor(features=["a", "b", "c"], budget=PureDP(e)) for e in (1, 2))
    for model in (one, other):
        model.learn_one(*records(1)[0])
    assert one.merged(other).guarantee.budgets == other.merged(one).guarantee.budgets == (PureDP(2),)


@every
def test_clone_forgets_and_keeps_the_settings(make: Callable[[], Any]) -> None:
    model = declared(make)
    for x, y in data_for(model, 20):
        model.learn_one(x, y)
    other = model.clone()
    assert other.n_seen == 0
    assert other.guarantee.budgets == ()
    assert np.array_equal(numbers(other), numbers(declared(make)))
    assert repr(other) == repr(model)
    new = declared(make)
    mine, theirs = (m.learner.arrays.spec if hasattr(m.learner, "arrays") else m.learner.spec for m in (other, new))
    assert np.array_equal(mine, theirs)
    assert words_of(other) is not words_of(model)


# --- the two halves


@every_ldp
def test_learn_one_is_the_two_halves_in_a_row(make: Callable[[], Any]) -> None:
    """Under one seed, bit for bit; some records bring their own budget."""
    whole, halves = declared(make, seed=8), declared(make, seed=8)
    for i, (x, y) in enumerate(data_for(whole, 150)):
        spend = None if i % 3 else str(whole.record_budget).replace("=1", "=0.7").replace("=2", "=1.3")
        whole.learn_one(x, y, budget=spend)
        report = halves.randomizer(x, y, budget=spend)
        halves.absorb(report)
    assert np.array_equal(whole.state_dict()["state"], halves.state_dict()["state"])
    assert (whole.n_seen, whole.guarantee) == (halves.n_seen, halves.guarantee)


@pytest.mark.parametrize("p", [1, 8, 17, 40])
def test_the_two_halves_also_for_many_features(p: int) -> None:
    """Sums are so long that vector instructions could reorder them."""
    names = [f"f{j}" for j in range(p)]
    X = np.random.default_rng(p).standard_normal((400, p))
    whole, halves = (LDPASGDRegressor(features=names, seed=9, budget=GaussianDP(1)) for _ in range(2))
    for row in X.tolist():
        x = dict(zip(names, row, strict=True))
        whole.learn_one(x, row[0])
        halves.absorb(halves.randomizer(x, row[0]))
    assert np.array_equal(whole.state_dict()["state"], halves.state_dict()["state"])


def test_a_randomizer_stands_by_itself() -> None:
    """It holds theta as it was, has its own random words, and no data of records."""
    model = declared(LDPASGDRegressor)
    for x, y in records(20):
        model.learn_one(x, y)
    randomizer = model.randomizer
    kept = randomizer.theta.copy()
    model.learn_one(*records(1)[0])
    assert np.array_equal(randomizer.theta, kept)
    assert randomizer.rng is not words_of(model)
    x, y = records(1)[0]
    assert not np.array_equal(randomizer(x, y).gradient, randomizer(x, y).gradient)
    report = randomizer(x, y, budget="eps=2")
    assert report.budget == PureDP(2)
    model.absorb(report)
    assert model.guarantee.budgets == (PureDP(2),)


@pytest.mark.parametrize("bad", [np.zeros(3), np.zeros((1, 5)), np.full(5, np.nan), np.full(5, np.inf)])
def test_absorb_refuses_what_is_no_gradient(bad: np.ndarray) -> None:
    model = declared(LDPASGDRegressor)
    report = model.randomizer(*records(1)[0])
    before = model.state_dict()["state"]
    with pytest.raises(SchemaError):
        model.absorb(type(report)(bad, report.budget))
    assert np.array_equal(before, model.state_dict()["state"])
    assert model.n_seen == 0
