"""Shrinkage by a known noise: its limits, its covariance, and its risk."""

from typing import Any

import numpy as np
import pytest

from streamdp import Huber, PanPrivateRegressor, ShuffleRegressor
from streamdp.optim.curvature import Curvature
from streamdp.optim.newton import Newton
from streamdp.optim.newton_state import State
from streamdp.optim.shrinkage import likely, pooled, shrunk
from tests.support.sizes import some

FOUND = np.array([0.8, -0.5, 0.3, 2.0])


def test_little_noise_changes_nothing_and_much_leaves_the_constant() -> None:
    np.testing.assert_allclose(shrunk(FOUND, np.eye(4) * 1e-8)[0], FOUND, atol=1e-5)
    np.testing.assert_allclose(shrunk(FOUND, np.zeros((4, 4)))[0], FOUND, atol=1e-12)
    loud, _ = shrunk(FOUND, np.eye(4) * 1e4)
    assert np.abs(loud[:3]).max() < 0.001
    assert loud[3] == 2.0


def test_the_intercept_moves_with_what_it_shares_with_the_slopes() -> None:
    """The noise of the intercept is the negative sum of that of the slopes, as for columns with a mean of 1."""
    change = np.vstack([np.eye(3), -np.ones(3)])
    found, _ = shrunk(FOUND, change @ change.T * 100)
    assert found.sum() == pytest.approx(FOUND.sum())
    assert np.abs(found[:3]).max() < 0.05


@pytest.mark.parametrize("correlation", [0.0, 0.1, 0.9])
def test_a_noisy_matrix_is_nearer_to_the_truth_where_columns_are_alike(correlation: float) -> None:
    """Of ten matrices with the noise of an svec: the mean squared error never grows, and falls if little is true."""
    rng, q, before, after = np.random.default_rng(4), 30, 0.0, 0.0
    truth = np.eye(q) + correlation * (1 - np.eye(q)) * (np.arange(q)[:, None] % 2 == np.arange(q) % 2)
    truth[-1, :-1] = truth[:-1, -1] = 0.0
    for _ in range(10):
        noise = rng.normal(size=(q, q)) * 0.3
        noisy = truth + (np.tril(noise, -1) + np.tril(noise, -1).T) / np.sqrt(2) + np.diag(np.diag(noise))
        found, left = pooled(noisy, 0.3**2, (), np.ones(q - 1))
        assert left.min() == left.max() <= 0.3**2
        np.testing.assert_allclose(found, found.T)
        before, after = before + np.sum((noisy - truth) ** 2), after + np.sum((found - truth) ** 2)
    assert after < before * (0.2 if correlation < 0.2 else 1.0)
    np.testing.assert_allclose(pooled(truth, 1e-12, (), np.ones(q - 1))[0], truth, atol=1e-6)


def test_a_matrix_of_one_column_or_without_noise_is_as_it_is() -> None:
    for matrix in (np.eye(1), np.array([[2.0, 0.3], [0.3, 1.0]])):
        np.testing.assert_allclose(pooled(matrix, 0.0, (), np.ones(len(matrix) - 1))[0], matrix)
    np.testing.assert_array_equal(
        np.diag(pooled(np.array([[2.0, 0.3], [0.3, 1.0]]), 1.0, (), np.ones(1))[0]), [2.0, 1.0]
    )


@pytest.mark.parametrize(
    ("size", "noise"), some([(0.0, 0.5), (0.1, 0.5), (0.5, 0.5), (1.5, 0.5), (0.5, 3.0), (0.5, 0.02)], 0, 2, 5)
)
def test_the_risk_is_at_most_about_that_of_the_better_of_estimate_and_constant(size: float, noise: float) -> None:
    """Eight slopes, noises of different sizes. A tenth of the noise, if assumed, loses most of the gain."""
    rng = np.random.default_rng(1)
    scales = noise * np.geomspace(0.3, 3, 9)
    axes = np.linalg.qr(rng.normal(size=(9, 9)))[0]
    covariance = (axes * scales**2) @ axes.T
    risks, blind = [], []
    for _ in range(400):
        truth = np.append(size * rng.normal(size=8), 1.0)
        found = truth + axes @ (scales * rng.normal(size=9))
        risks.append(float(np.sum((shrunk(found, covariance)[0] - truth)[:8] ** 2)))
        blind.append(float(np.sum((shrunk(found, covariance / 100)[0] - truth)[:8] ** 2)))
    own = float(np.trace(covariance[:8, :8]))
    best = min(own, 8 * size**2)
    assert np.mean(risks) < 1.1 * best + 0.05 * own
    if size < noise / 2:
        assert np.mean(blind) > 2 * np.mean(risks)


def test_the_walk_knows_the_noise_of_its_slopes() -> None:
    """Sums of no person, in which the slopes are noise alone: with the right deviation they nearly vanish."""
    lengths = {}
    for claimed in (1.0, 0.01):
        walk = Newton(
            Curvature(Huber(), 6), np.append(np.zeros(6), 1.0), lambda t: t, 20.0 * claimed, 500, False, np.ones(5) > 0
        )
        found = []
        for seed in range(20):
            rng = np.random.default_rng(seed)
            point, units = np.append(np.zeros(6), 1.0), np.array([np.zeros(5), np.ones(5)])
            walk.state = State.first(walk.curvature, point, units, np.zeros(0))
            total = 20.0 * rng.normal(size=walk.curvature.size)
            total[7 + np.cumsum([0, 6, 5, 4, 3, 2])] += 100.0 * walk.curvature.factor
            walk.move(total, 500, 500)
            found.append(float(np.linalg.norm(walk.estimate[:5])))
        lengths[claimed] = np.mean(found)
    assert lengths[1.0] < lengths[0.01] / 2


@pytest.mark.parametrize("kind", [PanPrivateRegressor, ShuffleRegressor])
def test_a_few_records_with_far_too_wide_bounds_give_about_the_constant(kind: Any) -> None:
    """The constant has an error of .8 spreads; no record tells of the columns. Bounds are 400 spreads wide."""
    rng = np.random.default_rng(4)
    X, y = rng.uniform(-1, 1, (2000, 3)), 70 + 5 * rng.normal(size=2000)
    errors = []
    for seed in range(6):
        model = kind(features=dict.fromkeys("abc", (-1, 1)), target=(-1000, 1000), budget="eps=2,delta=1e-6", seed=seed)
        model.learn_encoded(X, y)
        model.close_batch()
        errors.append(float(np.mean(np.abs(y - model.predict_encoded(X)))))
    assert np.mean(errors) < 1.1 * np.mean(np.abs(y - 70))


def test_products_of_columns_that_are_off_their_centres_are_those_of_their_means() -> None:
    """Rare flags are 0 almost always, so their means are not those of their units. Only their noise is left."""
    rng, q = np.random.default_rng(3), 60
    means = np.append(np.full(q - 1, 0.5), 1.0)
    truth = np.outer(means, means) + np.diag(np.append(np.full(q - 1, 0.75), 0.0))
    noise = np.triu(rng.standard_normal((q, q)), 1) * 0.1
    found, left = pooled(truth + noise + noise.T, 2 * 0.1**2, (), np.ones(q - 1))
    wrong = found - truth
    assert np.sqrt(np.mean(wrong[:-1, :-1] ** 2)) < 0.07  # those of two means, .5 times .1 each
    assert np.abs(wrong)[-1, :-1].max() > 0.1
    assert left.max() < 0.5 * 2 * 0.1**2


def test_what_groups_have_of_their_own_does_not_hide_the_spread_of_what_all_share() -> None:
    """Three columns of all groups, and 50 that are 0 in nearly all records; noise is far above their spread."""
    rng, shared, groups = np.random.default_rng(4), 3, 50
    truth = np.diag([*[0.3] * shared, *[0.003] * groups, 1.0])
    noisy = truth + np.diag(0.05 * rng.standard_normal(len(truth)))
    found, _ = pooled(noisy, 0.05**2, (), np.ones(shared + groups), range(shared, shared + groups))
    np.testing.assert_allclose(np.diag(found)[:shared], 0.3, atol=0.12)
    assert np.abs(np.diag(found)[shared:-1]).max() < 0.05


@pytest.mark.parametrize("slope", [1.0, 3.0])
def test_levels_of_a_category_have_no_products_and_two_noisy_values_of_each_share(slope: float) -> None:
    """The noise is as large as the shares of the levels. Two columns of numbers come before them."""
    rng, k, noise = np.random.default_rng(3), 100, 0.01
    shares = np.append(rng.gamma(2.0, size=k - 1) / k / 4, 0.4)
    truth = np.diag(np.concatenate([[1.0, 1.0], slope**2 * shares, [1.0]]))
    truth[2:-1, -1] = truth[-1, 2:-1] = slope * shares
    noisy = truth + np.diag(noise * rng.standard_normal(k + 3))
    above = np.triu(rng.standard_normal((k + 3, k + 3)), 1) * noise / np.sqrt(2)
    apart = (tuple(range(2, k + 2)),)
    noisy = (noisy + above + above.T) * Curvature(Huber(), k + 3, apart=apart).joint
    found, left = pooled(noisy, noise**2, apart, np.full(k + 2, slope))
    np.testing.assert_array_equal(found, found.T)
    inner = found[2:-1, 2:-1]
    np.testing.assert_array_equal(inner, np.diag(np.diag(inner)))
    np.testing.assert_allclose(np.diag(inner), slope * found[2:-1, -1])
    error = np.sqrt(np.mean((found[2:-1, -1] - slope * shares) ** 2))
    assert error < noise / 2
    assert np.diag(inner).min() >= 0
    levels = left[2:-1, 2:-1]
    assert np.sqrt(np.mean(left[2:-1, -1])) == pytest.approx(error, rel=0.5)
    np.testing.assert_array_equal(levels, np.diag(np.diag(levels)))
    np.testing.assert_allclose(np.diag(levels), slope**2 * left[2:-1, -1])
    np.testing.assert_array_equal(left, left.T)


def test_likely_values_do_not_move_what_is_far_from_the_others() -> None:
    rng = np.random.default_rng(2)
    truth = np.append(np.full(50, 1.0), 9.0)
    found, left = likely(truth + 0.5 * rng.standard_normal(51), np.full(51, 0.25))
    assert np.sqrt(np.mean((found[:-1] - 1) ** 2)) < 0.3
    assert abs(found[-1] - 9) < 1
    assert np.mean(left) < 0.15
    assert all(map(np.array_equal, likely(truth, np.zeros(51)), (truth, np.zeros(51))))
    few = likely(np.array([-0.1, 0.3]), np.full(2, 0.01))  # they tell too little of each other
    assert all(map(np.array_equal, few, ([0.0, 0.3], [0.01, 0.01])))
