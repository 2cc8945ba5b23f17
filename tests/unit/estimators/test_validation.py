"""Records that answer about the model's error: who answers, what they spend, what is kept, and what is told."""

import warnings
from typing import Any
from unittest import mock

import numpy as np
import pytest

from streamdp import (
    ApproxDP,
    LDPASGDClassifier,
    LDPASGDRegressor,
    LDPSGDClassifier,
    LDPSGDRegressor,
    Ledger,
    PanPrivateClassifier,
    PanPrivateRegressor,
    PureDP,
    Quantile,
    ShuffleClassifier,
    ShuffleRegressor,
    UserLevelLDPClassifier,
    WindowedClassifier,
)
from streamdp.errors import BudgetError, ConfigError
from streamdp.estimators.held_out_statistics import HeldOutStatistics
from streamdp.privacy.release import JOINED, REFUSED
from streamdp.validation.quality import BETTER, UNKNOWN
from streamdp.validation.sums import ANSWERS
from streamdp.validation.validator import Validator

SHARE, BUDGET = {"share": 0.25}, {"budget": "eps=1"}
NAMES = ["a", "b"]


def records(n: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, 2))
    return X, (X @ [3, -2] + rng.normal(size=n) > 0).astype(float)


def classifier(validation: Any, **more: Any) -> LDPASGDClassifier:
    return LDPASGDClassifier(features=NAMES, budget="eps=1", validation=validation, **more)


NUMBERS = {"budget": "eps=1", "bound": 3.0}
SINGLE: dict[str, Any] = {
    "a share, nobody": lambda: classifier(SHARE, seed=3),
    "a budget, nobody": lambda: classifier(BUDGET, seed=3),
    "three classes": lambda: classifier(BUDGET, seed=3, loss="softmax", classes=[0, 1, 2]),
    "without probabilities": lambda: classifier(SHARE, seed=3, loss="hinge"),
    "numbers": lambda: LDPASGDRegressor(features=NAMES, validation=NUMBERS, seed=3),
    "a budget, process": lambda: PanPrivateClassifier(
        features=NAMES, budget="eps=1,delta=1e-6", validation=BUDGET, batch_size=500, seed=3
    ),
    "a budget, shuffler": lambda: ShuffleRegressor(
        features=NAMES, budget="eps=1,delta=1e-6", validation=NUMBERS, batch_size=700, seed=3
    ),
    "a cap": lambda: classifier(SHARE, seed=3, ledger=Ledger("eps=9")),
}


@pytest.mark.parametrize("name", SINGLE)
def test_single_records_are_asked_by_compiled_code_as_rows_are(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    X, y = records(3000)
    whole, single = SINGLE[name](), SINGLE[name]()
    people = None if whole.ledger is None else [i % 900 for i in range(3000)]
    whole.learn_encoded(X, y, subjects=people)
    slow = mock.Mock(side_effect=HeldOutStatistics.learn)
    monkeypatch.setattr(HeldOutStatistics, "learn", lambda *given: slow(*given))
    for i, (row, label) in enumerate(zip(X.tolist(), y.tolist(), strict=True)):
        subject = None if people is None else people[i]
        target = (single.classes or [False, True])[int(label)] if single.predicts_classes else label
        single.learn_one(dict(zip(NAMES, row, strict=True)), target, subject=subject)
    assert slow.call_count < 300
    assert np.array_equal(whole.theta, single.theta)
    assert (whole.n_seen, whole.n_refused) == (single.n_seen, single.n_refused)
    mine, theirs = (one.held_out.validator.state() for one in (whole, single))
    assert mine["total"][ANSWERS] > 500
    for key, value in mine.items():
        np.testing.assert_allclose(theirs[key], value, rtol=1e-9, atol=1e-9)


def test_with_a_share_each_record_answers_or_is_learned_and_the_guarantee_is_the_same() -> None:
    X, y = records(20_000)
    model = classifier(SHARE)
    learned = []
    learn_rows = model.learner.learn

    def watched(X: np.ndarray, *more: Any) -> None:
        learned.append(len(X))
        learn_rows(X, *more)

    model.learner.learn = watched  # type: ignore[method-assign]
    model.learn_encoded(X, y)
    assert sum(learned) + model.quality.total.answers == 20_000 == model.n_seen
    assert model.quality.total.answers == pytest.approx(5000, abs=320)  # 5.2 standard deviations
    assert model.guarantee.budgets == (PureDP(1),)
    assert "in place of a gradient" in model.statement()


def test_with_a_budget_the_guarantee_and_the_cap_count_both() -> None:
    X, y = records(6)
    ledger = Ledger("eps=4")
    model = classifier({"budget": "eps=0.5"}, ledger=ledger)
    outcome = model.learn_encoded(X, y, subjects=["p"] * 6)
    assert outcome.tolist() == [JOINED] * 2 + [REFUSED] * 4
    model.learn_one({"a": 0, "b": 1}, True, subject="q")
    model.learn_one({"a": 0, "b": 1}, True, subject="q")
    model.learn_one({"a": 0, "b": 1}, True, subject="q")
    assert (model.n_seen, model.n_refused) == (4, 5)
    assert model.quality.total.answers == 4
    assert model.guarantee.budgets == (PureDP(1.5),)
    assert "each spent eps=0.5 on it beside its gradient or bit, and the spend above has both" in model.statement()


@pytest.mark.parametrize("kind", [PanPrivateClassifier, ShuffleClassifier])
def test_batches_count_both_budgets_and_their_answers_are_local(kind: Any) -> None:
    X, y = records(3000)
    model = kind(features=NAMES, budget="eps=1,delta=1e-6", validation=BUDGET, batch_size=500)
    model.learn_encoded(X, y)
    model.close_batch()
    assert model.guarantee.budgets == (ApproxDP(2, 1e-6),)
    assert model.n_seen == model.quality.total.answers == 3000
    other = kind(features=NAMES, budget="eps=1,delta=1e-6", validation=SHARE, batch_size=500)
    other.learn_encoded(X, y)
    other.close_batch()
    assert other.n_seen == 3000
    assert other.guarantee.budgets == (ApproxDP(1, 1e-6),)
    again = kind(features=NAMES, budget="eps=1,delta=1e-6", validation=SHARE, batch_size=500)
    again.load_state_dict(other.state_dict())
    assert again.quality == other.quality


def test_a_batch_refuses_records_that_allow_less_than_both() -> None:
    X, y = records(3)
    model = PanPrivateClassifier(features=NAMES, budget="eps=1,delta=1e-6", validation=BUDGET)
    model.learn_encoded(X, y, budgets=np.array([1.0, 2.0, np.nan]))
    assert (model.n_seen, model.n_refused) == (2, 1)


def test_records_with_budgets_of_their_own_spend_no_more_than_these() -> None:
    X, y = records(50)
    model = classifier(BUDGET)
    model.learn_encoded(X, y, budgets=np.full(50, 0.7))
    model.learn_one({"a": 0, "b": 1}, True, budget="eps=0.5")
    assert model.quality.total.answers == 0
    assert model.guarantee.budgets == (PureDP(0.7),)
    other = classifier({"share": 0.5})
    other.learn_encoded(X, y, budgets=np.full(50, 0.7))
    assert other.quality.total.answers > 0
    assert other.guarantee.budgets == (PureDP(0.7),)


def test_records_of_which_none_has_a_budget_of_its_own_answer() -> None:
    """Also if their budgets are given as gaps, as the service and files with a column for budgets do."""
    X, y = records(50)
    models = [classifier(BUDGET, seed=1), classifier(BUDGET, seed=1)]
    models[0].learn_encoded(X, y)
    models[1].learn_encoded(X, y, budgets=np.full(50, np.nan))
    for model in models:
        assert model.quality.total.answers == 50
        assert model.guarantee.budgets == (PureDP(2),)
    np.testing.assert_array_equal(models[0].theta, models[1].theta)


@pytest.mark.parametrize(
    ("name", "place", "number"),
    [
        ("window", (0, 0), 1e-320),  # its square is 0: it ended in a division by zero
        ("window", (0, 3), -1.0),
        ("halves", (1, 7), 0.5),
        ("total", (8,), -1.0),
        ("open", (2,), -5e-324),
        ("progress", (2,), 1e-320),
        ("progress", (2,), 1e100),
        ("known", (1,), -1.0),
    ],
)
def test_a_state_with_answers_that_no_stream_makes_is_refused(name: str, place: Any, number: float) -> None:
    X, y = records(700)
    made = [LDPASGDRegressor("squared", target=(-1, 1), features=NAMES, validation=SHARE, seed=1) for _ in range(2)]
    made[0].learn_encoded(X, y)
    state = made[0].state_dict()
    made[1].load_state_dict(state)
    state["answers"][name][place] = number
    with pytest.raises(ConfigError, match="state: validation"):
        made[1].load_state_dict(state)


def test_the_widest_bounds_have_a_state_that_can_be_loaded() -> None:
    """Squares of the squares of errors passed the largest number of a state."""
    X, y = records(700)
    far = (-1e60, 1e60)
    made = [LDPASGDRegressor("squared", target=far, features=NAMES, validation=SHARE, seed=1) for _ in range(2)]
    made[0].learn_encoded(X, y * 1e60)
    made[1].load_state_dict(made[0].state_dict())
    assert made[1].quality == made[0].quality


def test_shards_add_their_answers_up() -> None:
    parts = [classifier(BUDGET) for _ in range(3)]
    for seed, part in enumerate(parts):
        part.learn_encoded(*records(2000 * (seed + 1), seed))
    merged = parts[0].merged(*parts[1:])
    found = [part.quality for part in parts]
    assert merged.quality.total.answers == 12_000
    assert merged.quality.total.error.value == pytest.approx(
        np.average([q.total.error.value for q in found if q], weights=[1, 2, 3]), abs=0.03
    )
    assert merged.quality.recent.answers == sum(q.recent.answers for q in found if q)
    assert merged.quality.verdict == BETTER
    again = classifier(BUDGET)
    again.load_state_dict(merged.state_dict())
    assert again.quality == merged.quality


def test_a_model_with_features_to_learn_is_better_and_one_without_records_is_unknown() -> None:
    model = classifier(BUDGET)
    assert model.quality.verdict == UNKNOWN
    assert model.quality.total.error.value is None
    model.learn_encoded(*records(20_000))
    X, y = records(20_000, 1)
    assert model.quality.verdict == BETTER
    now = np.mean(model.predict_encoded(X) != y)
    rate = model.quality.recent.rate
    assert rate.low - 0.04 < now < rate.high + 0.04
    assert "better than the best constant (log loss " in model.quality.sentence()


@pytest.mark.parametrize("loss", ["huber", Quantile(tau=0.8)], ids=str)
def test_numbers_with_a_learned_scale(loss: Any) -> None:
    rng = np.random.default_rng(5)
    x = rng.uniform(-1, 1, 30_000)
    y = 50 + 20 * x + rng.normal(0, 2, len(x))
    model = LDPASGDRegressor(loss, "eps=2", features={"x": (-1, 1)}, target=(-100, 200), validation=BUDGET)
    model.learn_encoded(x[:, None], y)
    found = model.quality
    assert found.measure == ("mean absolute error" if loss == "huber" else "mean pinball loss")
    assert f", errors above {found.largest:.3g} counted as that; with" in found.sentence()
    assert found.verdict == BETTER
    best = 0.8 * 2.5 * 12
    assert 0.6 * best < found.largest < 2.2 * best * (1.25 if loss == "huber" else 1)


def test_a_flipped_weight_is_found() -> None:
    """At epsilon = 1 for the answers, within 20,000 records, and no alarm comes before."""
    rng = np.random.default_rng(6)

    def stream(n: int, weight: float) -> tuple[np.ndarray, np.ndarray]:
        X = rng.normal(size=(n, 2))
        return X, (weight * X[:, 0] - X[:, 1] + rng.logistic(size=n) > 0).astype(float)

    model = classifier(BUDGET)
    model.learn_encoded(*stream(40_000, 2.0))
    assert (model.quality.drifts, model.quality.last_drift) == (0, None)
    model.learn_encoded(*stream(20_000, -2.0))
    assert model.quality.drifts >= 1
    assert 40_000 < model.quality.last_drift <= 60_000
    assert "the stream has changed" in model.quality.sentence()


def test_true_errors_and_records_are_overwritten(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every array that the validator makes of a record is zero after the call."""
    model = classifier(BUDGET)
    kept: list[np.ndarray] = []
    values: list[float] = []
    tell = Validator.answer

    def watched(self: Validator, asked: np.ndarray, scores: np.ndarray, y: np.ndarray, keep: np.ndarray) -> None:
        kept.extend([y, scores])
        values.append(float(np.abs(y).sum() + np.abs(scores).sum()))
        tell(self, asked, scores, y, keep)

    monkeypatch.setattr(Validator, "answer", watched)
    model.learn_encoded(*records(2000))
    assert sum(values) > 0
    assert not any(array.any() for array in kept)


def test_a_device_and_its_learner_go_on_without_answers() -> None:
    model = classifier(BUDGET)
    model.absorb(model.randomizer({"a": 1.0, "b": 0.0}, 1.0))
    assert model.quality.total.answers == 0
    assert model.guarantee.budgets == (PureDP(1),)


def test_configurations_that_do_not_fit_are_refused() -> None:
    with pytest.raises(ConfigError, match="expected a bound"):
        LDPSGDRegressor(features=NAMES, validation=SHARE)
    with pytest.raises(ConfigError, match="expected a bound"):
        PanPrivateRegressor(features=NAMES, validation=SHARE)
    with pytest.raises(ConfigError, match="for numbers"):
        LDPSGDClassifier(features=NAMES, validation={"share": 0.1, "bound": 2})
    with pytest.raises(BudgetError, match="the model's kind"):
        LDPSGDClassifier(features=NAMES, budget="mu=1", validation=BUDGET)
    with pytest.raises(ConfigError, match="no parameter 'validation'"):
        UserLevelLDPClassifier(features=NAMES, validation=SHARE)  # type: ignore[call-arg]
    with pytest.raises(ConfigError, match="hold people back"):
        WindowedClassifier(features=NAMES, validation=BUDGET)
    assert LDPSGDRegressor(features=NAMES, validation=SHARE | {"bound": 3}).quality is not None


def test_an_estimator_without_declared_features_is_asked_from_its_first_record() -> None:
    model = LDPSGDClassifier(budget="eps=1", validation=BUDGET)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model.learn_one({"a": 1.0}, True)
    assert model.quality.total.answers == 1


@pytest.mark.parametrize("kind", [PanPrivateRegressor, ShuffleRegressor])
@pytest.mark.slow
def test_errors_are_counted_up_to_the_scale_of_the_target(kind: Any) -> None:
    """Not up to 2.5 dollars where targets spread over thousands: each verdict was noise then."""
    for seed in range(3):
        rng = np.random.default_rng(seed)
        X = rng.uniform(-1, 1, (20_000, 1))
        y = 10_000 + 4_000 * X[:, 0] + 500 * rng.standard_normal(len(X))
        model = kind(
            features={"a": (-1, 1)}, target=(0, 20_000), validation={"share": 0.5}, budget="eps=8,delta=1e-6",
            seed=seed,
        )  # fmt: skip
        model.learn_encoded(X, y)
        quality = model.quality
        assert quality.largest > 1_000
        assert 0 < quality.recent.error.value < quality.recent.constant.value < quality.largest
        assert quality.verdict == "better"
