"""Estimators and clients under interruptions, threads, forged inputs and extreme budgets; their documentation."""

import contextlib
import inspect
import itertools
import pickle
import re
import signal
import sys
from collections.abc import Callable, Iterator
from decimal import Decimal
from typing import Any

import numpy as np
import pytest
from docstring_parser import numpydoc

import streamdp.estimators
from streamdp import (
    ApproxDP,
    Box,
    GaussianDP,
    L2Ball,
    Laplace,
    LDPASGDRegressor,
    LDPSGDClassifier,
    LDPSGDRegressor,
    Ledger,
    PanPrivateClassifier,
    PanPrivateRegressor,
    PrivUnit,
    PureDP,
    Squared,
    UserLevelLDPRegressor,
    WindowedRegressor,
)
from streamdp.errors import BudgetError, ConfigError, SchemaError, StreamDPError
from streamdp.estimators.ldp.randomizer import Randomizer, Report
from streamdp.optim.losses import Huber, Logistic, Loss, Quantile, Softmax
from streamdp.privacy.entropy import Entropy
from streamdp.privacy.guarantees import SERVICEABLE, parse_budget
from streamdp.privacy.mechanisms import NoNoise
from streamdp.privacy.statement import in_words
from streamdp.scaling import unit_table as k
from streamdp.windows.regularisers import ElasticNet
from tests.support.states import buffer_of, words_of
from tests.support.threads import in_threads

ESTIMATORS = [name for name in streamdp.estimators.__all__ if name.endswith(("Regressor", "Classifier"))]


def classifier(**options: Any) -> LDPSGDClassifier:
    steps: dict[str, Any] = {"eta": 0.2, "alpha": 0.5, "clock": "records"}
    return LDPSGDClassifier(features=["a", "b"], budget="mu=0.01", **(steps | options))


# --- interruptions


@pytest.fixture
def alarm() -> Iterator[None]:
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGALRM, interrupt)
    yield
    signal.setitimer(signal.ITIMER_REAL, 0)
    signal.signal(signal.SIGALRM, before)


@pytest.mark.no_cover  # an exception inside the tracer would leave its lock held
@pytest.mark.skipif(not hasattr(signal, "SIGALRM"), reason="no SIGALRM on this system")
@pytest.mark.parametrize("way", ["one", "arrays"])
def test_an_interrupted_learner_counts_what_it_learned_and_never_uses_a_word_twice(way: str, alarm: None) -> None:
    X = np.random.default_rng(0).normal(size=(200_000, 2))
    y = (X[:, 0] > 0).astype(float)
    classifier().learn_encoded(X[:10], y[:10])
    for trial in range(40):
        model = classifier(eta=1e-9)
        model.learn_one({"a": 1.0, "b": 0.0}, True)
        try:
            signal.setitimer(signal.ITIMER_REAL, 0.002 + trial * 1e-4)
            while True:
                if way == "one":
                    model.learn_one({"a": 1.0, "b": 0.5}, True)
                else:
                    model.learn_encoded(X, y)
        except KeyboardInterrupt:
            pass
        words = words_of(model).words[words_of(model).position :]
        assert words.all()
        assert len(np.unique(words)) == len(words)
        n, before = model.n_seen, model.theta
        model.learn_one({"a": 1.0, "b": 0.5}, True)
        assert model.n_seen == n + 1
        assert np.linalg.norm(model.theta - before) * np.sqrt(n + 1) / 1e-9 > 5  # noise of 280 on three coordinates


def test_a_used_word_is_refused_as_noise() -> None:
    """It does not matter why the position moved back."""
    model = classifier()
    model.learn_one({"a": 1.0, "b": 0.5}, True)
    words_of(model).words[0] = 1
    before = model.state_dict()["state"][0]
    model.learn_one({"a": 1.0, "b": 0.5}, True)
    # Without noise at most 0.2 sqrt(2)/sqrt(2) of one direction.
    assert np.abs(model.state_dict()["state"][0] - before).max() > 0.1
    assert words_of(model).words[words_of(model).position :].all()
    rng = Entropy()
    Laplace(PureDP(0.01)).randomize(np.zeros((3, 2)), rng)
    rng.words[0] = 1
    assert Laplace(PureDP(0.01)).randomize(np.zeros((3, 2)), rng).all()


@pytest.mark.parametrize("moment", range(3))
def test_an_interrupted_refill_hands_no_word_out_twice(moment: int, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = Entropy(64)
    rng.refill()
    rng.words[0] = 40
    rest = set(rng.words[40:].tolist())

    def fill(self: Entropy, out: np.ndarray) -> None:
        if moment:
            out[: moment * 7] = 1
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Entropy, "_fill", fill)
        with pytest.raises(KeyboardInterrupt):
            rng.refill()
    rng.refill()
    unused = rng.words[rng.position :].tolist()
    assert len(set(unused)) == len(unused)
    assert rest <= set(unused)
    assert 1 not in unused


def test_the_spend_counts_before_the_record_is_learned(monkeypatch: pytest.MonkeyPatch) -> None:
    model = LDPSGDRegressor(features=["a"])

    def stop(*_: object) -> int:
        raise KeyboardInterrupt

    monkeypatch.setattr(model.learner, "learn", stop)
    with pytest.raises(KeyboardInterrupt):
        model.learn_one({"a": 1.0}, 1.0, budget="eps=3")
    assert model.guarantee.budgets == (PureDP(3),)


def test_no_raw_record_stays_behind() -> None:
    model = LDPSGDRegressor(features=["a"], ledger=Ledger("eps=1"))
    for budget, subject in ((None, "ann"), (None, "ann"), ("eps=2", "bob")):
        model.learn_one({"a": 0.3}, 0.7, budget=budget, subject=subject)
        assert not buffer_of(model).any()
    with pytest.raises(SchemaError):
        model.learn_one({"a": float("nan")}, 0.7, subject="cid")
    assert not np.isnan(buffer_of(model)).any()
    model.predict_one({"a": 0.3})
    assert not buffer_of(model).any()


# --- private


@pytest.mark.parametrize("name", ESTIMATORS)
def test_private_follows_from_the_generator_in_use(name: str) -> None:
    """Not from parameters, which anyone may change afterwards."""
    made: Any = getattr(streamdp, name)(features=["a", "b"], seed=1)
    made.seed = None
    assert not made.private
    assert not made.guarantee.private
    assert "seed" in made.statement()
    assert not made.clone({"seed": 1}).private


@pytest.mark.parametrize("name", [name for name in ESTIMATORS if name.startswith(("LDP", "Pan"))])
def test_private_follows_from_the_mechanism_in_use(name: str) -> None:
    made: Any = getattr(streamdp, name)(features=["a", "b"], mechanism="none")
    made.mechanism = "auto"
    assert not made.private
    noisy: Any = getattr(streamdp, name)(features=["a", "b"])
    noisy.mechanism = "none"
    assert noisy.private
    start = noisy.theta
    for _ in range(400):
        noisy.learn_one({"a": 0.0, "b": 0.0}, 1.0 if name.endswith("Regressor") else True)
    noisy.close_batch()
    assert (noisy.theta != start)[:2].all()  # there is no gradient along these, so this is noise
    if name.startswith("LDP"):
        assert noisy.randomizer({"a": 0.0, "b": 0.0}, 1.0).private
        noisy.learn_one({"a": 0.0, "b": 0.0}, 1.0 if name.endswith("Regressor") else True, budget="eps=0.5")
        assert noisy.randomizer.mechanism == "auto"


@pytest.mark.parametrize("name", ESTIMATORS)
def test_a_model_that_learned_without_privacy_stays_so(name: str) -> None:
    kind: Any = getattr(streamdp, name)
    made, open_, private = kind(features=["a", "b"]), kind(features=["a", "b"], seed=1), kind(features=["a", "b"])
    made.load_state_dict(open_.state_dict())
    assert not made.private
    made.load_state_dict(private.state_dict())
    assert not made.private
    assert private.private
    assert not private.merged(open_).private


# --- odd numbers


@pytest.mark.parametrize("value", [Decimal("0.5"), 10**400, Decimal(10) ** 400, -(10**400), float("nan")], ids=repr)
def test_odd_numbers_of_budgets_raise_typed_errors(value: Any) -> None:
    for make in (PureDP, lambda v: ApproxDP(1.0, v), lambda v: ApproxDP(v, 1e-6), GaussianDP(1.0).epsilon):
        with contextlib.suppress(StreamDPError):
            make(value)


WRONG: tuple[Any, ...] = (
    *(5, 0, -1, True, 1j, float("nan"), float("inf"), 10**400, Decimal(10) ** 400, "", "no", "1", b"x", object(), dict),
    *([], [["a"]], [None], (1, 2, 3), np.array([1, 2]), {}, {None: (0, 1)}),
    *({"a": value} for value in (1, None, (1,), (2, 1), [], ["x"], ["x", "x"], {"bounds": 5})),
    *({"a": {"bounds": (0, 1), "typical": typical}} for typical in (5, (0, 1e-70))),
)


@pytest.mark.parametrize("kind", [getattr(streamdp.estimators, name) for name in ESTIMATORS], ids=ESTIMATORS)
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_wrong_arguments_raise_typed_errors(kind: Any) -> None:
    """Any value of any parameter is either refused in words, or makes a model that learns, predicts and is saved."""
    target = 0.5 if kind.__name__.endswith("Regressor") else True
    for name, value in itertools.product(inspect.signature(kind).parameters, WRONG):
        with contextlib.suppress(StreamDPError):
            model = kind(**{"features": ["a", "b"], name: value})
            model.learn_one({"a": 0.1, "b": 0.2}, target, subject="s")
            model.predict_one({"a": 0.1, "b": 0.2})
            if model.at_boundary:
                kind(**{"features": ["a", "b"], name: value}).load_state_dict(model.state_dict())


ROWS, CLASSES = np.zeros((2, 2)), np.zeros(2)


def test_wrong_arguments_are_named() -> None:
    wrong: dict[str, Callable[[], Any]] = {
        "merged: expected estimators of the same model": lambda: classifier().merged(5),  # type: ignore[arg-type]
        "loss: expected one of .* or a Loss, got 'logistik'; did you mean 'logistic'": lambda: classifier(
            loss="logistik"
        ),
        "l1: expected a finite number": lambda: ElasticNet(l1="1"),  # type: ignore[arg-type]
        "clip must be positive": lambda: Logistic(clip=float("inf")),
        "clip must be .* got nan": lambda: Logistic(clip=float("nan")),
        "Huber: c must be": lambda: Huber(c=None),  # type: ignore[arg-type]
        "Huber: c must be in .* got 0": lambda: Squared(c=0),
        "Huber: sigma_min must be": lambda: Huber(sigma_min=0),
        "tau must be": lambda: Quantile(tau=np.ones(2)),  # type: ignore[arg-type]
        "tau must be .* got 1": lambda: Quantile(tau=1),
        "radius must be": lambda: L2Ball("1"),  # type: ignore[arg-type]
        "low must be below high": lambda: Box(None, 1.0),  # type: ignore[arg-type]
        "^bound must be": lambda: Laplace(PureDP(1), "1"),  # type: ignore[arg-type]
        "^sensitivity must be": lambda: Laplace(PureDP(1), 1.0, "1"),  # type: ignore[arg-type]
        "report: expected what a randomizer returns": lambda: classifier().absorb(5),  # type: ignore[arg-type]
        "state: expected what state_dict returns": lambda: classifier().load_state_dict(np.ones(2)),  # type: ignore[arg-type]
        "x: expected numbers$": lambda: Huber().gradient(np.ones(2), ["secret"], 1.0),  # type: ignore[arg-type]
        "clone: expected values of parameters by name: loss": lambda: classifier().clone(5),  # type: ignore[arg-type]
        "clone: expected values of .* budget": lambda: classifier().clone({"nope": 1}),
        "subjects: expected a list with .* got int": lambda: classifier().learn_encoded(ROWS, CLASSES, subjects=5),
        "subjects: expected a list with .* got str": lambda: classifier().learn_encoded(ROWS, CLASSES, subjects="ab"),
        "subjects: expected 2, got 1": lambda: classifier().learn_encoded(ROWS, CLASSES, subjects=iter(["ann"])),
        "y .for a classifier, the index of each class.: expected numbers$": lambda: classifier().learn_encoded(
            ROWS, ["no", "yes"]
        ),
        "y: expected the targets of the rows, got int": lambda: classifier().learn_many(ROWS, 5),
        "y: expected the targets of the rows, got ndarray": lambda: classifier().learn_many(ROWS, np.array(5)),
        "X: expected a frame or an array, got ndarray": lambda: classifier().learn_many(np.array(5), [1]),
        "X: expected numbers$": lambda: classifier().predict_many([[1], [2, 3]]),
        "record: expected a mapping .* got int": lambda: LDPSGDClassifier().learn_one(5, True),  # type: ignore[arg-type]
        "features: expected a list of names or a schema, got ndarray": lambda: LDPSGDClassifier(features=np.array(5)),
        "save: expected the path of a file, got bytes": lambda: classifier().save(b"x"),  # type: ignore[arg-type]
        "save: expected the path of a file, got str": lambda: classifier().save("\0"),
        "load: expected the path of a file, got int": lambda: streamdp.load(5),  # type: ignore[arg-type]
        "level: expected a number above 0 .* got str": lambda: LDPASGDRegressor(features=["a"]).interval("x"),  # type: ignore[arg-type]
        "report: expected what a randomizer returns, got int": lambda: UserLevelLDPRegressor(features=["a"]).absorb(5),  # type: ignore[arg-type]
        "state: expected what state_dict returns$": lambda: UserLevelLDPRegressor(features=["a"]).load_state_dict(5),  # type: ignore[arg-type]
        "state: expected what state_dict": lambda: streamdp.WindowedRegressor(features=["a"]).load_state_dict(5),  # type: ignore[arg-type]
        "target: expected numbers$": lambda: Huber().gradient(np.ones(2), np.ones(1), "secret"),  # type: ignore[arg-type]
    }
    for words, act in wrong.items():
        with pytest.raises((ConfigError, SchemaError), match=words):
            act()


def test_the_least_deltas() -> None:
    for delta in (1e-320, 5e-324):
        with pytest.raises(BudgetError, match="at least 1e-300"):
            GaussianDP(1.0).epsilon(delta)
    assert 37 < GaussianDP(1.0).epsilon(1e-300) < 38


def test_text_and_bytes_name_one_user() -> None:
    made = UserLevelLDPRegressor(features=["a"], items_per_user=2)
    made.learn_one({"a": 1.0}, 1.0, subject="ann")
    made.learn_one({"a": 1.0}, 1.0, subject=b"ann")
    assert (made.n_users, made.at_boundary) == (1, True)
    made.learn_one({"a": 1.0}, 1.0, subject=b"ann")
    made.close_user("ann")
    assert (made.n_users, made.at_boundary) == (2, True)


def test_the_neighbours_say_what_is_public() -> None:
    said = LDPSGDRegressor(features=["a"]).guarantee.neighbours
    assert "any other that fits the schema" in said
    assert "which of them do not fit the schema and why" in said
    assert "which ones a cap refuses" in said
    assert "d 2^-32" in (PrivUnit.__doc__ or "")


# --- threads


@pytest.fixture
def switching() -> Iterator[None]:
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


@pytest.mark.slow
def test_threads_share_a_randomizer_without_sharing_noise(switching: None) -> None:
    model = classifier()
    randomizer = model.randomizer
    reports: list[tuple[float, ...]] = []

    def work() -> None:
        for _ in range(1000):
            reports.append(tuple(randomizer({"a": 1.0, "b": 0.5}, 1.0).gradient.tolist()))

    in_threads(work)
    assert len(set(reports)) == len(reports) == 4_000
    assert min(np.linalg.norm(report) for report in reports) > 2  # noise of 280: shorter with probability 1e-7


def test_threads_share_a_learner_and_each_record_counts_once(switching: None) -> None:
    model = LDPSGDRegressor(
        loss=Quantile(tau=0.5), features=["a"], mechanism="none", alpha=0.0, clock="records", intercept=False
    )
    model.learn_one({"a": 0.0}, 1.0)

    def work() -> None:
        for _ in range(2500):
            model.learn_one({"a": 1.0}, 1e9)
            model.learn_one({"a": -1.0}, 1e9)

    in_threads(work)
    assert model.n_seen == 20_001
    assert model.theta[0] == 0.0  # as many steps up as down: no record was learned twice or replaced another one


# --- what comes from others


@pytest.mark.parametrize(
    ("loss", "d", "bad"),
    [
        (Logistic(), 2, [-1.0, 50.0, 1e6, 0.5, float("nan")]),
        (Softmax(), 6, [-1.0, 3.0, 0.5, float("inf")]),
        (Huber(), 3, [float("nan"), float("inf")]),
    ],
    ids=["logistic", "softmax", "huber"],
)
def test_a_client_refuses_targets_that_the_bound_does_not_hold_for(loss: Loss, d: int, bad: list[float]) -> None:
    randomizer = Randomizer(np.ones(d), loss, ("a",), True, GaussianDP(1), "auto", classes=(0, 1, 2))
    randomizer({"a": 1.0}, 1.0)
    for y in bad:
        with pytest.raises(SchemaError):
            randomizer({"a": 1.0}, y)
        with pytest.raises(SchemaError):
            loss.gradient(np.ones(d), np.ones(2), y)


@pytest.mark.parametrize(
    ("theta", "loss"),
    [([1.0], Logistic()), ([1.0, 2.0, 3.0], Logistic()), ([1.0] * 5, Softmax()), ([1.0] * 2, Softmax()),
        ([[1.0, 1.0]], Logistic()), ([float("nan"), 1.0], Logistic()), ([1.0, 1.0, 0.01], Huber()),
        ([1.0, 1.0], Huber())],
)  # fmt: skip
def test_a_client_refuses_a_theta_that_the_bound_does_not_hold_for(theta: list[float], loss: Loss) -> None:
    with pytest.raises(ConfigError):
        Randomizer(np.array(theta), loss, ("a",), True, GaussianDP(1), "auto")


def test_a_clients_theta_cannot_change_after_it_was_checked() -> None:
    theta = np.zeros(2)
    randomizer = Randomizer(theta, Quantile(tau=0.5), ("a",), True, GaussianDP(1), "auto")
    theta[:] = 1e6
    assert not randomizer.theta.any()
    with pytest.raises(ValueError, match="read-only"):
        randomizer.theta[0] = 1e6


def test_a_loss_checks_shapes_before_compiled_code_writes() -> None:
    with pytest.raises(ConfigError):
        Logistic().gradient(np.zeros(1), np.arange(1.0, 2001.0), 1.0)
    with pytest.raises(SchemaError):
        Logistic().gradient(np.zeros(2), np.ones((2, 2)), 1.0)


def test_a_state_with_numbers_that_no_stream_reaches_is_refused() -> None:
    """The next column in turn is an index in compiled code: as 1e300 it was one before the first column."""
    model = LDPASGDRegressor(features=dict.fromkeys("abc", (0, 1)), target=(0, 1), seed=1)
    model.learn_encoded(np.full((100, 3), 0.5), np.full(100, 0.5))
    state = model.state_dict()
    for name, place in (
        ("progress", k.CLASS),
        ("progress", k.CHANGES),
        ("scales", (0, k.CENTRE)),
        ("scales", (1, k.SCALE)),
    ):
        forged = state[name].copy()
        forged[place] = 1e300
        with pytest.raises(ConfigError, match="out of range"):
            model.load_state_dict(state | {name: forged})


@pytest.mark.parametrize(
    ("kind", "options", "records"), [(LDPASGDRegressor, {}, 10_000), (WindowedRegressor, {"window": 1000}, 4000)]
)
def test_merged_models_with_targets_of_other_spreads_are_stored_and_loaded(
    kind: Any, options: dict[str, Any], records: int
) -> None:
    """Before, the error spread could be below the least one of the common units, and workers ended at a rebalance."""
    parts = []
    for number, (spread, share) in enumerate([(0.05, 1.0)] * 4 + [(1.0, 1.2)]):
        part = kind(budget="eps=50", features={"a": (-1, 1)}, target=(-1, 1), seed=number, **options)
        X = spread * np.random.default_rng(number).uniform(-1, 1, (int(share * records), 1))
        part.learn_arrays(X, 0.9 * X[:, 0])
        parts.append(part)
    merged, loaded = parts[-1].merged(*parts[:-1]), parts[-1].clone()
    loaded.load_state_dict(merged.state_dict())
    assert loaded.weights == merged.weights


@pytest.mark.parametrize("what", ["y", "subjects", "budgets"])
def test_arrays_of_another_length_are_refused_before_anything_is_spent(what: str) -> None:
    ledger = Ledger("eps=1")
    model = LDPSGDRegressor(features=["a"], ledger=ledger)
    others: dict[str, Any] = {"y": np.ones(5), "subjects": list("abcde"), "budgets": None}
    for short in (1, 4, 6):
        with pytest.raises(SchemaError):
            model.learn_encoded(
                np.ones((5, 1)), **(others | {what: (["ann"] if what == "subjects" else [1.0]) * short})
            )
    assert (model.n_seen, ledger.spent("ann").records, ledger.spent("a").records) == (0, 0, 0)


def test_learn_many_refuses_another_number_of_targets() -> None:
    pd = pytest.importorskip("pandas")
    with pytest.raises(SchemaError):
        LDPSGDRegressor(features=["a"]).learn_many(pd.DataFrame({"a": [1.0, 2.0, 3.0]}), pd.Series([1.0]))


# --- small numbers and large


@pytest.mark.parametrize("size", [0.0, 5e-324, 1e-320, 1e-170, 1e-162, 1e-160, 1e-155, 1e-8, 1.0])
def test_privunit_stays_on_its_sphere(size: float) -> None:
    mechanism = PrivUnit(PureDP(1.0), bound=10.0)
    for d in (1, 2, 3, 7):
        for g in (np.full(d, size), np.arange(d) * size, np.eye(d)[0] * size):
            out = mechanism.randomize(np.tile(g, (50, 1)))
            assert np.linalg.norm(out, axis=1) == pytest.approx(mechanism.rows(d)[0, 0], rel=1e-3)


def test_privunit_keeps_the_direction_of_a_tiny_gradient_with_a_fair_sign() -> None:
    g = np.tile([3e-170, -4e-170], (20_000, 1))
    out = PrivUnit(PureDP(5.0)).randomize(g)
    along = out @ [0.6, -0.8]
    assert abs(along.mean()) < 6 * along.std() / np.sqrt(len(g))
    assert along.std() > 2 * (out @ [0.8, 0.6]).std()


@pytest.mark.parametrize(
    "loss", [Squared(clip=1.0), Huber(clip=0.1), Logistic(clip=1e-20), Softmax(clip=1e-20)], ids=str
)
@pytest.mark.parametrize("x", [1e-175, 1e-165, 1e-161, 1e-158, 1e-150, 1e-10, 1e140])
def test_clipped_gradients_stay_clipped_where_squares_vanish(loss: Loss, x: float) -> None:
    row = np.array([x, -x])
    for u in (0.0, 340.0, 370.0, 372.0):
        theta = np.array([1.0, -1.0] * (2 if isinstance(loss, Softmax) else 1)) * u / x / 2
        theta[2:] *= -1
        theta = np.append(theta, 1.0) if isinstance(loss, Huber) else theta
        if np.isfinite(theta).all():
            for y in (0.0, 1.0) if isinstance(loss, Logistic | Softmax) else (0.0, 1.0, 1e300):
                assert np.linalg.norm(loss.gradient(theta, row, y)) <= loss.bound * (1 + 1e-12)


@pytest.mark.parametrize("mechanism", ["laplace", "privunit"])
@pytest.mark.parametrize("budget", [1e-308, 1e-17, 9e-7, 1.1e6, 1e300])
def test_budgets_out_of_range_are_refused_and_the_state_stays_finite(mechanism: str, budget: float) -> None:
    model = LDPASGDRegressor(features=["a"], mechanism=mechanism)
    with pytest.raises(BudgetError):
        model.learn_one({"a": 1.0}, 1.0, budget=PureDP(budget))
    with pytest.raises(SchemaError):
        model.learn_encoded(np.ones((3, 1)), np.ones(3), budgets=np.array([1, budget, 1]))
    with pytest.raises(BudgetError):
        LDPSGDRegressor(features=["a"], mechanism=mechanism, budget=PureDP(budget))
    assert (model.n_seen, model.guarantee.budgets) == (0, ())


@pytest.mark.parametrize("kind", ["eps", "mu"])
@pytest.mark.parametrize("mechanism", ["auto", "laplace"])
def test_the_least_and_the_largest_budget_are_served_at_the_largest_bound(kind: str, mechanism: str) -> None:
    if kind == "mu" and mechanism == "laplace":
        return
    for least in SERVICEABLE:
        for bound in (1e-60, 1e60):
            options: dict[str, Any] = {"loss": Squared(clip=bound), "mechanism": mechanism, "eta": 1e6, "alpha": 0.0}
            model = LDPASGDRegressor(features=["a", "b"], budget=f"{kind}={least!r}", **options)
            model.learn_encoded(np.ones((2000, 2)), np.ones(2000))
            model.learn_encoded(np.ones((3, 2)), np.ones(3), budgets=np.full(3, least))
            model.learn_one({"a": 1.0, "b": 1.0}, 1.0, budget=f"{kind}={least!r}")
            assert np.isfinite(model.state_dict()["state"]).all()
            model.load_state_dict(model.state_dict())


def test_forged_reports_cannot_make_the_state_infinite() -> None:
    model = LDPASGDRegressor(features=["a"])
    with pytest.raises(SchemaError):
        model.absorb(Report(np.array([1e308, 1e308, 0.0]), PureDP(1)))
    for sign in (1, -1) * 20:
        model.absorb(Report(np.array([1e15, 1e15, 0.0]) * sign, PureDP(1)))
    assert np.isfinite(model.state_dict()["state"]).all()


# --- what the statement says


@pytest.mark.parametrize(("mechanism", "kind"), [("gaussian", "mu=1"), ("laplace", "eps=1"), ("privunit", "eps=1")])
@pytest.mark.parametrize("scaled", [False, True])
@pytest.mark.slow
def test_budgets_of_many_records_are_those_of_each(mechanism: str, kind: str, scaled: bool) -> None:
    """They are calibrated in blocks; the noise is the same wherever a block begins, and for single records."""
    n = 8192 + 40
    rng = np.random.default_rng(3)
    X, y, budgets = rng.uniform(-1, 1, (n, 2)), rng.normal(size=n), rng.uniform(0.5, 3, n)
    features = {"a": (-1, 1), "b": (-1, 1)} if scaled else ["a", "b"]
    whole, parts = (LDPASGDRegressor(features=features, budget=kind, mechanism=mechanism, seed=1) for _ in range(2))
    whole.learn_encoded(X, y, budgets)
    parts.learn_encoded(X[:8000], y[:8000], budgets[:8000])
    for x, target, amount_ in zip(X[8000:], y[8000:].tolist(), budgets[8000:].tolist(), strict=True):
        parts.learn_one(dict(zip("ab", x.tolist(), strict=True)), target, budget=f"{kind[:-1]}{amount_!r}")
    assert whole.n_seen == parts.n_seen == n
    assert np.array_equal(whole.theta, parts.theta)


@pytest.mark.parametrize(
    ("budget", "said"),
    [
        ("eps=1", "epsilon = 1: no output is more than 2.72 times"),
        ("eps=1.1", "more than 3.01 times"),
        ("eps=1.0000004", "epsilon = 1.00001: "),
        ("eps=710", "epsilon = 710: gives no useful bound"),
        ("eps=1e300", "gives no useful bound"),
        ("mu=1.0000004", "mu = 1.00001 "),
        ("eps=1.0000004,delta=1.0000004e-6", "(1.00001, 1.00001e-06)"),
    ],
)
def test_budgets_are_never_said_stronger_than_they_are(budget: str, said: str) -> None:
    assert said in in_words(parse_budget(budget))


def test_a_kind_of_no_noise_is_not_private() -> None:
    class Mine(NoNoise):
        pass

    model = LDPSGDRegressor(features=["a"], mechanism=Mine)
    model.learn_one({"a": 1.0}, 1.0)
    assert not model.private
    assert "NOT PRIVATE" in model.statement()
    assert not model.randomizer({"a": 1.0}, 1.0).private


# --- constructors and their documentation


@pytest.mark.parametrize("kind", [getattr(streamdp.estimators, name) for name in ESTIMATORS], ids=ESTIMATORS)
def test_the_documentation_of_an_estimator_describes_its_signature(kind: Any) -> None:
    parsed = numpydoc.parse(inspect.cleandoc(kind.__doc__)).params
    described = [item for item in parsed if item.arg_name.isidentifier()]  # it takes the prose that follows as well
    assert [item.arg_name for item in described] == list(inspect.signature(kind).parameters)
    assert all(item.description and not re.search(r"\{\w*\}", item.description) for item in described)


@pytest.mark.parametrize("kind", [getattr(streamdp.estimators, name) for name in ESTIMATORS], ids=ESTIMATORS)
def test_arguments_are_kept_under_their_names_by_clones_and_pickles(kind: Any) -> None:
    model = kind(features=["a", "b"], budget="eps=2,delta=1e-6", seed=7, intercept=False)
    names = set(inspect.signature(kind).parameters)
    for other in (model, model.clone(), pickle.loads(pickle.dumps(model))):
        given = {name: getattr(other, name) for name in names}
        assert given | {"features": ["a", "b"], "seed": 7, "intercept": False} == given
        assert given["budget"] == "eps=2,delta=1e-6"
        assert repr(other) == repr(model)
    assert model.clone({"seed": None}).private
    assert not {"self", "arguments"} & vars(model).keys()


@pytest.mark.parametrize("records", [np.nan, np.inf, 1.5, -1, None, "7", True, 10**19], ids=str)
@pytest.mark.parametrize(
    "kind",
    [LDPSGDRegressor, PanPrivateRegressor, UserLevelLDPRegressor, WindowedRegressor],
    ids=lambda kind: kind.__name__,
)
def test_the_records_before_a_boundary_are_a_whole_number(kind: Any, records: Any) -> None:
    with pytest.raises(ConfigError, match="records: expected a whole number"):
        kind(features=["a"]).boundary_within(records)


@pytest.mark.parametrize("kind", [LDPSGDClassifier, PanPrivateClassifier])
def test_a_ledger_that_comes_or_goes_is_asked_from_then_on(kind: Any) -> None:
    """Not the compiled way of single records, which asks none; and the statement says what was learned without."""
    model = kind(features=["a"], budget="eps=1,delta=1e-6" if kind is PanPrivateClassifier else "eps=1")
    for _ in range(20):
        model.learn_one({"a": 0.5}, True)
    ledger = Ledger("eps=3,delta=1e-5")
    model.ledger = ledger
    with pytest.raises(SchemaError, match="needs the subject"):
        model.learn_one({"a": 0.5}, True)
    assert model.n_seen == 20
    other = kind(features=["a"], budget=model.budget, ledger=ledger)
    other.learn_one({"a": 0.5}, True, subject="ann")
    assert "would pass eps=3" in other.statement()
    other.ledger = None
    other.learn_one({"a": 0.5}, True)
    other.ledger = ledger
    assert "learned without a ledger" in other.statement()
