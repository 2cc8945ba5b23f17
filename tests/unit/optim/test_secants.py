"""A Hessian that gradients of several rounds improve, and what windows gain by it."""

import numpy as np

from streamdp import WindowedRegressor
from streamdp.optim.secants import Secants


def test_directions_in_which_points_moved_are_known_better() -> None:
    rng = np.random.default_rng(1)
    true, v, weight = np.diag([2.0, 1.0, 0.01]), 0.04, 1e4
    noise = rng.normal(0, v**0.5, (3, 3))
    hessian = true + (noise + noise.T) / 2
    secants = Secants()
    for _ in range(8):
        point = np.array([0.0, 0.0, rng.normal()])  # along the flat direction only
        secants.add(point, true @ point + rng.normal(0, weight**-0.5, 3), weight)
    found, rows = secants.improved(hessian, v)
    last = np.abs(found - true)[2]
    assert last[2] < 0.02  # four deviations of 1 / sqrt(8 weight) are .014
    assert rows[2, 2] < 1e-3 * v
    np.testing.assert_allclose(found[:2, :2], hessian[:2, :2])
    np.testing.assert_allclose(rows[:2, :2], v * np.eye(2))


def test_one_round_says_nothing() -> None:
    secants = Secants()
    assert not secants
    secants.add(np.ones(2), np.ones(2), 1.0)
    assert not secants


def windows_error(n: int, columns: int, correlation: float, seed: int) -> float:
    """The mean absolute error of a window's model, over that of the true one, with correlated columns."""
    rng = np.random.default_rng(seed)
    common = rng.normal(size=(n, 1))
    X = np.clip(correlation**0.5 * common + (1 - correlation) ** 0.5 * rng.normal(size=(n, columns)), -4, 4)
    slopes = np.where(np.arange(columns) % 2, -1.0, 1.0)
    noise = rng.laplace(size=n) / 4
    features = {f"x{j}": (-4, 4) for j in range(columns)}
    model = WindowedRegressor(features=features, target=(-10, 10), budget="eps=1,delta=1e-8", items_per_user=1, seed=1)
    model.learn_encoded(X, X @ slopes + noise)
    model.close_batch()
    return float(np.mean(np.abs(model.predict_encoded(X) - X @ slopes - noise)) / np.mean(np.abs(noise)))


def test_windows_learn_what_correlated_columns_differ_in() -> None:
    """Without `secants` and with the floor nu the ratio was 1.065."""
    assert windows_error(30_000, 8, 0.99, 1) < 1.03
