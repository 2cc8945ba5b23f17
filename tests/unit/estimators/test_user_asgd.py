"""User-level averaged SGD: what it is, what it protects, what it learns, and stores of the planned steps."""

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from streamdp import (
    ApproxDP,
    GaussianDP,
    Huber,
    L2Ball,
    Logistic,
    PureDP,
    Quantile,
    UserLevelLDPClassifier,
    UserLevelLDPRegressor,
)
from streamdp.aggregation.local_mean import UserMean, pure_allowed
from streamdp.errors import ConfigError
from streamdp.estimators.user.randomizer import averages
from streamdp.optim.asgd import Asgd
from streamdp.optim.planned import Planned
from streamdp.privacy.entropy import SeededEntropy
from streamdp.privacy.mechanisms import Gaussian, PrivUnit
from tests.support.audit import epsilon_lower_bound
from tests.support.states import give_words, loss_of, steps_of, words_of
from tests.support.user_model import data, model, silent


def test_without_noise_it_is_averaged_sgd_on_users_averages(monkeypatch: pytest.MonkeyPatch) -> None:
    silent(monkeypatch)
    X, y, subjects = data(30, 4)
    learner = model(items_per_user=4, batch_size=10)
    learner.learn_encoded(X, y, subjects=subjects)
    loss, theta, clock, weights = Logistic(weighting="norm"), np.zeros(3), 0.0, 0.0
    average = np.zeros(3)
    cut, tau = math.sqrt(2) / 4, 10 * steps_of(learner)._reports.information
    for t in range(3):
        rows = slice(40 * t, 40 * t + 40)
        gradients = [loss.gradient(theta, np.append(x, 1.0), k) for x, k in zip(X[rows], y[rows], strict=True)]
        clock += tau
        step = 0.75 * math.sqrt(3) / cut * 6**0.1 * tau * (clock + 6) ** -0.6
        theta = theta - step * np.mean(gradients, axis=0)
        weights += tau * math.sqrt(clock)
        average = average + tau * math.sqrt(clock) / weights * (theta - average)
    np.testing.assert_allclose(learner.theta, average, rtol=1e-9)
    assert learner.batch == (0, 0, 30)


def test_auto_is_averaged_sgd_unless_something_is_set_that_only_plans_use() -> None:
    options: dict[str, Any]
    for options in ({}, {"domain": L2Ball(3.0)}, {"batch_size": 7}, {"spread": 0.1}, {"loss": "hinge"}):
        assert isinstance(steps_of(model(**options)), Asgd)
    for options in ({"horizon": 100}, {"smoothness": 0.4}, {"strong_convexity": 0.01}, {"centre": "asked"}):
        assert isinstance(steps_of(model(**options)), Planned)
        with pytest.raises(ConfigError, match=next(iter(options))):
            model(method="asgd", **options)
    with pytest.raises(ConfigError, match="method"):
        model(method="newton")
    assert loss_of(model(loss=Logistic(weighting="mallows"))).weighting == "mallows"
    assert loss_of(model()).by_norm


def test_nothing_is_cut_with_one_record_and_one_longest_gradient_never_is() -> None:
    """Rare classes: an average of zeros and one gradient of full length is reported as it is."""
    for items in (1, 2, 3, 4, 16, 400):
        mean = model(items_per_user=items).randomizer.mean
        assert mean.radius == pytest.approx(math.sqrt(2) * max(1 / items, 0.5 / math.sqrt(items)))
        assert mean.radius * items >= math.sqrt(2) * (1 - 1e-12)
    assert model(items_per_user=4, spread=0.05).randomizer.mean.radius == 0.05


# --- the noise


def test_an_approximate_budget_is_spent_by_the_quieter_mechanism() -> None:
    for budget, kind in (("eps=1,delta=1e-06", PrivUnit), ("eps=1", PrivUnit), ("mu=1", Gaussian)):
        learner = model(items_per_user=4, budget=budget)
        assert isinstance(learner.randomizer.mean.fine, kind)
        assert str(learner.randomizer.mean.budget) == budget
    assert isinstance(
        model(items_per_user=4, budget="eps=.1,delta=.3").randomizer.mean.fine, Gaussian
    )  # less noise there
    loud, quiet = model(method="ac-sa").randomizer.mean, model().randomizer.mean
    assert quiet.variance < 0.1 * replace(loud, cut=quiet.cut, users=quiet.users).variance


def test_the_delta_covers_the_arithmetic_of_privunit_or_the_noise_is_gaussian() -> None:
    least = 3 * 2.0**-32 * (1 + math.e)
    assert pure_allowed(ApproxDP(1.0, least * 1.001), 3)
    assert not pure_allowed(ApproxDP(1.0, least * 0.999), 3)
    assert isinstance(model(budget=f"eps=1,delta={least * 0.9}").randomizer.mean.fine, Gaussian)
    for budget in (ApproxDP(1.0, least * 0.9), GaussianDP(1.0), PureDP(1.0)):
        with pytest.raises(ConfigError, match="pure"):
            UserMean(budget, 1.0, 2.0, 3, 10, 1.0, pure=True)


@pytest.mark.slow
def test_an_attack_on_a_user_all_of_whose_records_are_replaced() -> None:
    """50 records with the longest gradient, or 50 with its opposite: 300,000 reports of each, made as a device does.

    The bound is below the claim and near it. With PrivUnit for twice the epsilon it is above the claim.
    """
    trials, budget = 300_000, ApproxDP(1.0, 1e-6)
    device = replace(model(items_per_user=50, budget=budget, intercept=False).randomizer, point=np.array([0.0, 2000.0]))
    assert isinstance(device.mean.fine, PrivUnit)
    found = []
    for mean in (device.mean, replace(device.mean, budget=ApproxDP(2.0, 1e-6))):
        scores = []
        for seed, sign in ((60, 1.0), (61, -1.0)):
            X = np.tile([sign * math.sqrt(2), 0.005], (50, 1))
            vectors = averages(device.spec, device.loss, device.point, X, np.zeros(50), [50])
            answers = mean.answer_fine(np.repeat(vectors, trials, axis=0), device.centre, SeededEntropy(seed, 1 << 16))
            scores.append(answers[:, 0])
            # Unbiased: within six standard errors of the cut vector, a false alarm below 1e-8.
            cut = vectors[0] * mean.radius / np.linalg.norm(vectors[0])
            assert np.all(np.abs(answers.mean(axis=0) - cut) < 6 * answers.std(axis=0) / math.sqrt(trials))
        found.append(epsilon_lower_bound(*scores, delta=1e-6))
    assert 0.85 < found[0] <= 1.0
    assert found[1] > 1.5


# --- learning


@pytest.mark.parametrize("kind", ["classes", "numbers", "median"])
@pytest.mark.slow
def test_it_learns_where_the_planned_steps_do_not(kind: str) -> None:
    """2,000 users with 4 records at eps = 1: the mean distance from the truth of two seeded runs."""
    X, y, subjects = data(2_000, 4)
    truth = np.array([2.0, -3.0])
    if kind != "classes":
        y = X @ truth + np.random.default_rng(4).normal(0, 0.5, len(X))

    def distance(method: str, batch: int | None) -> float:
        found = []
        for seed in range(2):
            make: Any = UserLevelLDPClassifier if kind == "classes" else UserLevelLDPRegressor
            loss = {"classes": "logistic", "numbers": "huber", "median": Quantile(tau=0.5)}[kind]
            more: Any = {"items_per_user": 4, "method": method, "batch_size": batch, "seed": seed}
            learner = make(loss, "eps=1,delta=1e-6", features=["a", "b"], **more)
            learner.learn_encoded(X, y, subjects=subjects)
            found.append(float(np.linalg.norm(learner.theta[:2] - truth)))
        return float(np.mean(found))

    ours = distance("asgd", None)
    assert ours < 0.6 * np.linalg.norm(truth)
    assert ours < distance("ac-sa", 20)


# --- streams that change


def flipped(users: int, flips: bool = True) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Users of two records; theta explains a half, and changes its sign after half of the users."""
    rng = np.random.default_rng(3)
    X = rng.normal(size=(2 * users, 2))
    X[:, 0] += 1
    sign = np.where((np.arange(2 * users) >= users) & flips, -1.0, 1.0)
    return X, sign * (X @ [0.7, -0.7]) + rng.normal(size=2 * users), np.repeat(np.arange(users), 2)


def regressor(seed: int = 1, **options: Any) -> UserLevelLDPRegressor:
    return UserLevelLDPRegressor(features=["a", "b"], budget="eps=6", items_per_user=2, seed=seed, **options)


def test_a_state_goes_on_in_a_change_and_parts_that_noticed_one_are_merged() -> None:
    X, y, subjects = flipped(2000)
    half = slice(0, 2400), slice(2400, None)
    whole, first = regressor(), regressor()
    whole.learn_encoded(X, y, subjects=subjects)
    first.learn_encoded(X[half[0]], y[half[0]], subjects=subjects[half[0]])
    second = regressor()
    second.load_state_dict(first.state_dict())
    give_words(second, words_of(first))
    second.learn_encoded(X[half[1]], y[half[1]], subjects=subjects[half[1]])
    assert whole.n_changes > 0
    for key, value in whole.state_dict().items():
        np.testing.assert_array_equal(second.state_dict()[key], value, err_msg=key)
    other = regressor(seed=2)
    other.learn_encoded(X, y, subjects=subjects)
    merged = whole.merged(other)
    assert merged.n_changes == max(whole.n_changes, other.n_changes)
    assert np.linalg.norm(merged.theta[:2] - [-0.7, 0.7]) < 0.2


def test_merged_averages_have_the_least_scale_of_their_units() -> None:
    parts = []
    for seed, spread in enumerate((0.5, 1.0)):
        part = UserLevelLDPRegressor(budget="eps=50", features=["a"], target=(-1, 1), items_per_user=1, seed=seed)
        part.learn_encoded(np.zeros((5000, 1)), np.linspace(-spread, spread, 5000))
        steps_of(part).state[[2, 5]] = Huber().sigma_min  # where errors are small
        part.learner.search.asked_target += seed * 1000  # the units of the wide one are those of both
        parts.append(part)
    loaded = parts[0].clone()
    loaded.load_state_dict(parts[0].merged(parts[1]).state_dict())
    assert loaded.randomizer.units.scale == parts[1].randomizer.units.scale > parts[0].randomizer.units.scale
