"""Gradient descent on a window: its noise, what it refuses, and learning."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from streamdp import ApproxDP, WindowedClassifier
from streamdp.errors import ConfigError, TooFewUsersError
from streamdp.optim.curvature import Curvature
from streamdp.privacy.entropy import SeededEntropy
from streamdp.privacy.guarantees import GaussianDP
from streamdp.windows.descent import Descent
from streamdp.windows.task import Task

TASK = Task(2000, 1, 3, ApproxDP(1.0, 1e-6), 1.0, 2.0, 1.0, 0.0, math.inf, 1.0)


class Flat:
    """Users with one gradient (d,) everywhere."""

    def __init__(self, gradient: np.ndarray) -> None:
        self.gradient, self.asked = gradient, 0

    def gradients(self, theta: np.ndarray, users: np.ndarray | None = None, radius: float = 0.0) -> np.ndarray:
        assert users is not None
        assert radius == 0
        self.asked += len(users)
        return np.tile(self.gradient, (len(users), 1))

    def curvatures(self, curvature: Curvature, theta: np.ndarray, grid: float) -> np.ndarray:
        raise NotImplementedError

    def project(self, theta: np.ndarray) -> np.ndarray:
        return theta


@pytest.mark.parametrize("rounds", [1, 2, 5])
def test_the_rounds_have_this_noise_and_no_less(rounds: int) -> None:
    """The noise of each round is S sqrt(T) / mu, written out through the steps; half of it would be noticed."""
    method = Descent(rounds=rounds)
    plan, users, steps = method.plan(TASK), Flat(np.zeros(3)), []
    found = [method.run(plan, users, np.zeros(3), SeededEntropy(seed, 1 << 12)).theta for seed in range(400)]
    assert users.asked == 400 * rounds * TASK.users
    deviation = TASK.sensitivity * math.sqrt(rounds) / GaussianDP.from_approx(TASK.budget).mu / TASK.users
    for first in range(rounds):  # what the noise of one round adds to the mean of the later points
        impulse, velocity, theta, points = np.arange(rounds) == first, 0.0, 0.0, []
        for one in impulse:
            velocity = 0.9 * velocity + float(one)
            theta -= 1.9 * velocity
            points.append(theta)
        steps.append(np.mean(points[rounds // 2 :]))
    assert np.std(found) == pytest.approx(deviation * float(np.linalg.norm(steps)), rel=0.08)


def test_gradients_are_followed_and_too_long_ones_are_refused() -> None:
    method = Descent(rounds=3)
    plan = method.plan(replace(TASK, users=100_000))
    theta = method.run(plan, Flat(np.array([0.5, 0.0, 0.0])), np.zeros(3), SeededEntropy(1, 1 << 12)).theta
    np.testing.assert_allclose(theta, [-(2.755 + 5.3295) / 2, 0, 0], atol=0.01)
    with pytest.raises(ConfigError, match="norm at most 1"):
        method.run(plan, Flat(np.array([1.5, 0.0, 0.0])), np.zeros(3), SeededEntropy(1, 1 << 12))


def test_too_few_users_and_losses_without_smoothness_are_refused() -> None:
    method = Descent()
    least = method.least_users(TASK)
    method.plan(replace(TASK, users=least))
    with pytest.raises(TooFewUsersError, match=f"at least {least}"):
        method.plan(replace(TASK, users=least - 1))
    with pytest.raises(ConfigError, match="smooth loss"):
        method.plan(replace(TASK, smoothness=math.inf))
    with pytest.raises(ConfigError, match="rounds"):
        Descent(rounds=0)


def test_many_classes_are_learned_near_what_they_are_without_privacy() -> None:
    """Six classes; private ranges make more errors."""
    rng, B = np.random.default_rng(3), np.random.default_rng(7).standard_normal((6, 6))
    X = rng.standard_normal((16_000, 6))
    y = np.argmax(X @ B + rng.gumbel(size=(len(X), 6)), axis=1)
    errors = {}
    for method in ("auto", "private-range"):
        model = WindowedClassifier(
            "softmax",
            budget="eps=2,delta=1e-6",
            method=method,
            window=12_000,
            items_per_user=1,
            classes=list(range(6)),
            features={f"x{j}": (-4.0, 4.0) for j in range(6)},
            seed=1,
        )
        model.learn_encoded(X[:12_000] / 4, y[:12_000].astype(float))
        errors[method] = float(np.mean(model.predict_encoded(X[12_000:] / 4) != y[12_000:]))
    assert model.n_windows == 1
    assert errors["auto"] < 0.97 * errors["private-range"]
    best = float(np.mean(np.argmax(X[12_000:] @ B, axis=1) != y[12_000:]))
    assert errors["auto"] < 1.15 * best
