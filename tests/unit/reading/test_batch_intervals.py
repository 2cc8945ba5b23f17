"""Intervals of the learners in batches and windows: coverage, units, and where there are none.

Coverage is that of simulated draws at a fixed seed; the tests fail for a true coverage of 95 % with a probability below
1e-6 (binomial, all parameters of a draw counted as one).
"""

from typing import Any

import numpy as np
import pytest

from streamdp import (
    PanPrivateClassifier,
    PanPrivateRegressor,
    Quantile,
    ShuffleClassifier,
    ShuffleRegressor,
    WindowedClassifier,
    WindowedRegressor,
)
from streamdp.errors import ConfigError, NotAvailableError
from streamdp.reading import change
from streamdp.reading.batch_intervals import BATCHES, WINDOWS, steps_of
from tests.support.sizes import some

WEIGHTS = np.array([1.0, -1.0, 0.5])
NAMES = ["a", "b", "c"]


def learned(kind: Any, n: int, seed: int, shift: float = 0.3, **more: Any) -> Any:
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, 3))
    scores = X @ WEIGHTS + shift
    if "Classifier" in kind.__name__:
        y = (scores + rng.logistic(size=n) > 0).astype(float)
    else:
        y = scores + rng.normal(size=n)
    model = kind(**{"features": NAMES, "budget": "eps=2,delta=1e-6", "seed": seed, **more})
    model.learn_encoded(X, y)
    model.close_batch()
    return model


def test_intervals_hold_if_the_spread_of_residuals_depends_on_a_column_and_are_no_wider_for_another() -> None:
    """Of 20 draws 16 covered the first weight without a spread; with a bound for it, limits of the second were .028."""
    covered, widths = 0, []
    for seed in range(20):
        rng = np.random.default_rng(seed)
        X = rng.uniform(-1, 1, size=(20_000, 2))
        y = np.clip(0.5 * X[:, 0] + (0.1 + 0.9 * X[:, 0] ** 2) * rng.normal(size=len(X)), -4, 4)
        plan: dict[str, Any] = {"budget": "eps=8,delta=1e-6", "window": len(X), "seed": seed}
        model = WindowedRegressor(features={"a": (-1, 1), "b": (-1, 1)}, target=(-4, 4), **plan)
        model.learn_encoded(X, y)
        low, high = model.interval()[0]
        covered += low <= 0.5 <= high
        widths.append(np.ptp(model.interval()[1]))
    assert covered >= 17
    assert np.median(widths) < 0.02


@pytest.mark.campaign
@pytest.mark.parametrize("windows", [1, 4])
def test_intervals_hold_for_each_weight_whatever_the_spread_of_residuals(windows: int) -> None:
    """Of 60 draws of four spreads; a share of .95 has a deviation of .028, and the bound for it covered 1.0 of most."""
    spreads: list[Any] = [
        lambda a: np.full(len(a), 0.5),
        lambda a: 0.1 + 0.9 * a**2,
        lambda a: 0.5 * np.exp(2 * a),
        np.abs,
    ]
    for spread in spreads:
        held = []
        for seed in range(60):
            rng = np.random.default_rng(seed)
            X = rng.uniform(-1, 1, size=(12_000, 2))
            y = np.clip(X @ [0.5, -0.3] + spread(X[:, 0]) * rng.normal(size=len(X)), -10, 10)
            model = WindowedRegressor(
                features={"a": (-1, 1), "b": (-1, 1)},
                target=(-10, 10),
                budget="eps=4,delta=1e-6",
                window=len(X) // windows,
                items_per_user=1,
                seed=seed,
            )
            model.learn_encoded(X, y)
            limits = model.interval()[:3]
            held.append((limits[:, 0] <= [0.5, -0.3, 0]) & (limits[:, 1] >= [0.5, -0.3, 0]))
        assert np.all(np.mean(held, axis=0) > 0.84)
        assert np.mean(held) > 0.9


@pytest.mark.parametrize(
    "kind", some([PanPrivateClassifier, PanPrivateRegressor, ShuffleClassifier, ShuffleRegressor], 0, 1)
)
@pytest.mark.slow
def test_intervals_of_95_percent_hold_about_95_percent(kind: Any) -> None:
    """Of 16 draws: the deviation of the mean share of covered parameters is at most .03; half as wide, .66 to .82."""
    truth, held = np.append(WEIGHTS, 0.3), []
    for seed in range(16):
        limits = learned(kind, 6000, seed).interval()[:4]
        held.append(np.mean((limits[:, 0] <= truth) & (truth <= limits[:, 1])))
    assert 0.86 < np.mean(held) <= 1.0
    half = learned(kind, 6000, 0).interval(0.5)[:4]
    whole = learned(kind, 6000, 0).interval(0.95)[:4]
    assert np.ptp(whole, axis=1) == pytest.approx(np.ptp(half, axis=1) * 1.96 / 0.674, rel=0.1)


@pytest.mark.parametrize(
    ("kind", "windows"),
    some([(WindowedClassifier, 1), (WindowedRegressor, 1), (WindowedClassifier, 4), (WindowedRegressor, 4)], 1, 2),
)
@pytest.mark.slow
def test_intervals_of_one_and_of_several_windows_hold_about_95_percent(kind: Any, windows: int) -> None:
    """Of 16 draws: the deviation of the mean share of covered parameters is at most .03; half as wide, .66 to .82."""
    truth, held = np.append(WEIGHTS, 0.3), []
    for seed in range(16):
        limits = learned(kind, 8000, seed, window=8000 // windows, items_per_user=1).interval()[:4]
        held.append(np.mean((limits[:, 0] <= truth) & (truth <= limits[:, 1])))
    assert 0.86 < np.mean(held) <= 1.0


def test_windows_have_intervals_in_the_units_of_the_columns() -> None:
    rng = np.random.default_rng(3)
    X, truth = rng.uniform(18, 90, (12_000, 2)), np.array([30.0, -20.0, 1000.0])
    y = X @ truth[:2] + truth[2] + rng.normal(0, 300, len(X))
    model = WindowedRegressor(
        features={"a": (0, 120), "b": (0, 120)},
        target=(-5000, 9000),
        budget="eps=4,delta=1e-6",
        window=6000,
        items_per_user=1,
        seed=1,
    )
    assert np.isnan(model.interval()).all()
    widths = []
    for part in (slice(6000), slice(6000, None)):
        model.learn_many(np.asarray(X[part]), y[part])
        limits = model.interval(1 - 1e-6)
        assert np.all((limits[:3, 0] < truth) & (truth < limits[:3, 1]))
        widths.append(np.ptp(limits[:2], axis=1))
    assert model.n_windows == 2
    assert np.all(widths[1] < widths[0])
    assert np.all(widths[1] < 8)


def test_a_method_of_windows_without_curvature_has_no_intervals() -> None:
    model = learned(WindowedClassifier, 4000, 1, window=4000, items_per_user=1, method="private-range")
    with pytest.raises(NotAvailableError, match="private-range"):
        model.interval()


def test_an_interval_is_in_the_units_of_the_columns_and_around_theta() -> None:
    rng = np.random.default_rng(3)
    X, truth = rng.uniform(18, 90, (20_000, 2)), np.array([30.0, -20.0, 1000.0])
    y = X @ truth[:2] + truth[2] + rng.normal(0, 300, len(X))
    model = PanPrivateRegressor(
        features={"a": (0, 120), "b": (0, 120)}, target=(-5000, 9000), budget="eps=4,delta=1e-6", seed=1
    )
    model.learn_many(np.asarray(X), y)
    model.close_batch()
    limits = model.interval()
    assert limits.shape == (4, 2)
    assert np.all((limits[:3, 0] < model.theta[:3]) & (model.theta[:3] < limits[:3, 1]))
    wide = model.interval(1 - 1e-6)
    assert np.all((wide[:3, 0] < truth) & (truth < wide[:3, 1]))
    assert np.all(np.ptp(limits[:2], axis=1) < 2)


def test_a_state_keeps_the_intervals_and_a_merged_model_has_none() -> None:
    model = learned(PanPrivateClassifier, 6000, 1)
    again = PanPrivateClassifier(features=NAMES, budget="eps=2,delta=1e-6", seed=1)
    again.load_state_dict(model.state_dict())
    assert np.array_equal(again.interval(), model.interval())
    assert np.isnan(model.merged(learned(PanPrivateClassifier, 6000, 2)).interval()).all()


def test_there_are_none_from_few_batches_or_without_curvature() -> None:
    assert np.isnan(learned(PanPrivateClassifier, 300, 1).interval()).all()
    with pytest.raises(NotAvailableError, match="ac-sa"):
        learned(PanPrivateRegressor, 300, 1, loss=Quantile(tau=0.5)).interval()
    with pytest.raises(ConfigError, match="level"):
        learned(PanPrivateClassifier, 300, 1).interval(95)


def blocks_of(count: int, seed: int, phi: float, noise: float) -> np.ndarray:
    """Blocks of gradients at 0 with the Hessian diag(1, 4), 100 records each."""
    rng, blocks = np.random.default_rng(seed), np.zeros((change.BLOCKS, change.width(2)))
    for j in range(count):
        gradient = rng.normal(size=2) * np.sqrt(phi * np.array([1.0, 4.0]) / 100 + noise)
        sums = [1.0, 1.0, 1.0, 1 / 100, noise, 100.0, 1.0]
        blocks[j] = [0.0, 0.0, *gradient, *sums]
    return blocks


@pytest.mark.parametrize(("phi", "noise"), some([(1.0, 0.0), (0.5, 0.01), (1.0, 1.0)], 1))
def test_the_covariance_is_that_of_the_answers_also_with_a_law_of_its_own(phi: float, noise: float) -> None:
    """The variance of 1,500 answers, whose deviation is 3.7 %."""
    hessian = np.diag([1.0, 4.0])
    found = [steps_of(blocks_of(20, seed, phi, noise), hessian, 0.0, 0.7) for seed in range(1500)]
    answers = np.array([one.answer for one in found if one is not None])
    said = np.mean([np.diagonal(one.covariance) for one in found if one is not None], axis=0)
    assert np.var(answers, axis=0) == pytest.approx(said, rel=0.2)
    beyond = [abs(one.answer) > one.limits(0.95)[:, 1] - one.answer for one in found if one is not None]
    assert abs(np.mean(beyond) - 0.05) < 0.025


def test_a_hessian_that_its_noise_hides_has_no_interval() -> None:
    blocks = blocks_of(20, 0, 1.0, 0.1)
    assert steps_of(blocks, np.diag([1.0, 4.0]), 0.1, 0.7) is not None
    assert steps_of(blocks, np.diag([1.0, 4.0]), 0.4, 0.7) is None
    few = blocks_of(3, 0, 1.0, 0.1)
    assert steps_of(few, np.diag([1.0, 4.0]), 0.1, 0.7) is None
    assert steps_of(few, np.diag([1.0, 4.0]), 0.1, 0.7, least=3) is not None
    assert steps_of(blocks, np.diag([1.0, 4.0]), 0.25, 0.7) is None  # a condition that selects needs a margin
    assert steps_of(blocks, np.diag([1.0, 4.0]), 0.25, 0.7, least=WINDOWS) is not None


def test_batches_have_the_covariance_of_the_least_hessian_that_noise_allows() -> None:
    """It is larger than that of A, by more in the direction that is known worse; the answer is that of A."""
    blocks = blocks_of(20, 0, 1.0, 0.1)
    batches, window = (steps_of(blocks, np.diag([1.0, 4.0]), 0.19, 0.7, least) for least in (BATCHES, WINDOWS))
    assert batches.answer == pytest.approx(window.answer, rel=1e-12)
    first, second = np.diagonal(batches.covariance) / np.diagonal(window.covariance)
    assert 1 / 0.81 <= first <= 1 / 0.81**2
    assert 4 / 3.81 <= second <= (4 / 3.81) ** 2
