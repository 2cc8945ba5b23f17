"""Bits about the class: when they are asked, where the intercept begins, and how they are merged."""

import math
from typing import Any

import numpy as np
import pytest

from streamdp import LDPASGDClassifier, LDPSGDClassifier
from streamdp.errors import ConfigError
from streamdp.optim import loops
from streamdp.reading.doubts import too_few
from streamdp.scaling import schedule
from streamdp.scaling import unit_table as k
from tests.support.states import report_arrays, units_of

KEEP = math.e / (1 + math.e)


def model(estimator: Any = LDPASGDClassifier, **options: Any) -> Any:
    return estimator(**({"features": {"a": (-1, 1)}, "budget": "eps=1", "seed": 1} | options))


def rare(n: int, d: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Columns that tell nothing, and classes of which one in fifty is 1."""
    rng = np.random.default_rng((seed, 1))  # not the words of a model with this seed
    return rng.uniform(-1, 1, (n, d)), (rng.random(n) < 0.02).astype(float)


@pytest.mark.parametrize("estimator", [LDPASGDClassifier, LDPSGDClassifier])
def test_the_intercept_is_the_log_odds_of_the_expected_probability(estimator: Any) -> None:
    """Bayes' rule on the grid, by numpy, from the number of noisy answers; other parameters stay at 0. Clocks begin
    earlier the rarer the class is."""
    learner = model(estimator)
    learner.learn_encoded(np.zeros((30, 1)), np.zeros(30))
    assert learner.n_asked == 30
    assert "of the 30 records, 30 spent their budget on one bit about the class, or" in learner.statement()
    total, information = units_of(learner).progress[[k.CLASS, k.TARGET]]
    assert information == pytest.approx(30 * (2 * KEEP - 1) ** 2)
    yes = round((30 + total / (2 * KEEP - 1)) / 2)
    b = np.linspace(-6, 6, 97)
    p = 1 / (1 + np.exp(-b))
    says_yes = KEEP * p + (1 - KEEP) * (1 - p)
    weights = says_yes**yes * (1 - says_yes) ** (30 - yes) / (1 + 4 * b**2)
    probability = weights @ p / weights.sum()
    np.testing.assert_allclose(learner.theta, [0.0, math.log(probability / (1 - probability))], rtol=1e-9)
    assert learner.theta[1] < -0.5
    late = (1 - math.cosh(learner.theta[1] / 2) ** 3) * report_arrays(learner).spec[loops.OFFSET]
    np.testing.assert_allclose(units_of(learner).table[:, k.SINCE], late)


def test_many_answers_of_a_class_that_is_rarer_than_any_of_the_grid() -> None:
    learner = model(budget="eps=4")
    learner.learn_encoded(np.zeros((60_000, 1)), np.zeros(60_000))
    assert -6 < learner.theta[1] < -5
    assert units_of(learner).progress[k.TOTAL] > 0


def test_rare_classes_are_asked_about_for_longer() -> None:
    """Bits end when what they tell is 8 + 100 (cosh b - 1), and the gradients begin."""
    counts = []
    for seed in range(20):
        even, (X, y) = model(seed=seed, budget="eps=4"), rare(6000, 1, seed)
        even.learn_encoded(X, (X[:, 0] < 0).astype(float))
        odd = model(seed=seed, budget="eps=4")
        odd.learn_encoded(X, y)
        counts.append([units_of(each).progress[k.TARGET] for each in (even, odd)])
        assert units_of(even).progress[k.TOTAL] > 0
        assert units_of(odd).progress[k.TOTAL] > 0
    assert 8 <= np.mean(counts, axis=0)[0] < 25
    assert 200 < np.mean(counts, axis=0)[1] < 1000


@pytest.mark.parametrize(
    ("n", "draws", "options", "most"), [(1000, 20, {}, 0.2), (20_000, 12, {"budget": "eps=4"}, 0.115)]
)
def test_a_rare_class_has_a_small_probability_from_the_start(
    n: int, draws: int, options: dict[str, Any], most: float
) -> None:
    """Log loss of 20 columns that tell nothing: .098 is that of the constant. It was .64 of 1,000 records without these
    bits, and .136 of 20,000 when clocks began at 0. The model knows that it has few records."""
    losses = []
    for seed in range(draws):
        X, y = rare(n, 20, seed)
        learner = model(features={f"x{j}": (-1.0, 1.0) for j in range(20)}, seed=seed, **options)
        learner.learn_encoded(X, y)
        held, truth = rare(4000, 20, 100 + seed)
        shares = learner.predict_proba_encoded(held)
        losses.append(-np.mean(np.log(shares[np.arange(4000), truth.astype(int)])))
        assert "few" in str(too_few(learner))
    assert np.mean(losses) < most


@pytest.mark.parametrize(
    "options",
    [
        {"scaling": "none"},
        {"classes": ["a", "b", "c"]},
        {"loss": "hinge"},
        {"features": ["a"]},
        {"features": ["a"], "intercept": False},
    ],
)
def test_others_are_not_asked(options: dict[str, Any]) -> None:
    learner = model(**options)
    learner.learn_encoded(np.zeros((3, 1)), np.zeros(3))
    assert learner.n_asked == 0


def test_devices_and_trained_models_are_not_asked() -> None:
    learner = model()
    assert schedule.next_question(units_of(learner)) == k.GRADIENT
    learner.absorb(learner.randomizer({"a": 0.5}, 1))
    learner.learn_encoded(np.zeros((3, 1)), np.zeros(3))
    assert learner.n_asked == 0


def test_a_merge_of_bits_begins_where_all_of_them_say() -> None:
    """The parts have no gradient, so their thetas have no weight."""
    X, y = np.zeros((60, 1)), np.zeros(60)
    whole, parts = model(budget="eps=30"), [model(budget="eps=30"), model(budget="eps=30")]  # so bits are true
    whole.learn_encoded(X, y)
    parts[0].learn_encoded(X[:25], y[:25])
    parts[1].learn_encoded(X[25:], y[25:])
    both = parts[0].merged(parts[1])
    np.testing.assert_allclose(both.theta, whole.theta, rtol=1e-12)
    assert both.theta[1] < min(part.theta[1] for part in parts)


def test_clocks_that_begin_later_than_now_are_refused() -> None:
    learner = model()
    learner.learn_encoded(np.zeros((50, 1)), np.arange(50) % 2.0)
    for row, since in ((-1, 1e-3), (0, -1e16), (0, 1e9)):
        state = learner.state_dict()
        state["scales"][row, k.SINCE] = since
        with pytest.raises(ConfigError, match="scales of columns"):
            model().load_state_dict(state)
