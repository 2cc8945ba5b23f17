"""The softmax loss of columns with known moments: its gradient, answers without noise, and what noise leaves."""

from typing import Any

import numpy as np
import pytest
from scipy.special import softmax

from streamdp import PanPrivateClassifier, ShuffleClassifier, Softmax
from streamdp.optim.classes import ClassProblem
from streamdp.optim.curvature import Curvature
from streamdp.optim.loops import INTERCEPT
from streamdp.optim.newton import Newton

K, Q = 4, 4


def moments(rows: np.ndarray) -> np.ndarray:
    found: np.ndarray = rows.T @ rows / len(rows)
    return found


def drawn(n: int) -> np.ndarray:
    rng = np.random.default_rng(1)
    return np.column_stack([rng.normal(0.3, 1.0, (n, Q - 1)) @ [[1, 0.4, 0], [0, 1, 0], [0, 0, 0.5]], np.ones(n)])


def test_the_rows_have_the_moments_and_the_gradient_is_that_of_the_loss() -> None:
    rows, theta = drawn(20_000), np.random.default_rng(2).normal(size=K * Q)
    model = ClassProblem(0.6 * moments(rows), 0.0, K)
    np.testing.assert_allclose(moments(model.rows), moments(rows), atol=1e-9)
    chances = softmax(rows @ theta.reshape(K, Q).T, axis=1)
    np.testing.assert_allclose(model.gradient(theta), 0.6 * np.ravel(chances.T @ rows) / len(rows), atol=0.01)


def test_without_noise_the_gradient_is_found_in_one_step_however_far() -> None:
    """A Newton step from 0 ends at half the way."""
    truth = 3 * np.random.default_rng(3).normal(size=(K, Q))
    truth -= truth.mean(axis=0)
    model = ClassProblem(moments(drawn(20_000)), 0.0, K)
    found = model.answer(model.gradient(np.ravel(truth)), 1e-14, 1e-12, np.zeros(K * Q), None)
    found = model.answer(model.gradient(np.ravel(truth)), 1e-14, 1e-12, np.zeros(K * Q), found)
    np.testing.assert_allclose(found.theta, truth, rtol=0.02, atol=0.02)


def test_what_noise_hides_stays_at_the_constant() -> None:
    rng, model = np.random.default_rng(4), ClassProblem(moments(drawn(20_000)), 0.0, K)
    still = np.zeros(K * Q)
    for noise in (0.1, 1.0, 10.0):
        found, wanted = None, model.gradient(still) + noise * rng.standard_normal(K * Q)
        for _ in range(3):
            found = model.answer(wanted, noise**2, 0.0, still, found)
        assert np.all(np.abs(found.theta[:, :-1]) < 0.4)
        np.testing.assert_allclose(found.theta.sum(axis=0), 0, atol=1e-9)


@pytest.mark.parametrize("kind", [PanPrivateClassifier, ShuffleClassifier])
def test_batches_learn_ten_classes_near_what_they_are_without_privacy(kind: Any) -> None:
    """AC-SA made 30 % more errors."""
    rng, B = np.random.default_rng(3), np.random.default_rng(7).standard_normal((6, 10))
    X = np.clip(rng.standard_normal((34_000, 6)), -4, 4)
    y = np.argmax(X @ B + rng.gumbel(size=(len(X), 10)), axis=1)
    names = {f"x{j}": (-4.0, 4.0) for j in range(6)}
    model = kind(budget="eps=2,delta=1e-6", classes=list(range(10)), features=names, seed=1)
    model.learn_encoded(X[:30_000] / 4, y[:30_000].astype(float))
    model.close_batch()
    best = float(np.mean(np.argmax(X[30_000:] @ B, axis=1) != y[30_000:]))
    assert float(np.mean(model.predict_encoded(X[30_000:] / 4) != y[30_000:])) < 1.06 * best
    assert model.n_changes == 0


def test_a_class_of_which_noise_shows_none_has_a_small_share_and_no_infinite_intercept() -> None:
    """A share of -.004 with an error of .01: the intercept ran to minus infinity, and stayed there."""
    still, model = np.zeros(3 * Q), ClassProblem(moments(drawn(20_000)), 0.0, 3)
    for share in (-0.004, 0.0, 0.01):
        shares = np.array([share, 0.3, 0.7 - share])
        wanted, found = np.ravel(3 * shares[:, None] * model.gradient(still).reshape(3, Q)), None
        for _ in range(3):
            found = model.answer(wanted, 0.01**2, 0.0, still, found)
        chances = softmax(model.rows @ found.theta.T, axis=1).mean(axis=0)
        np.testing.assert_allclose(chances, shares, atol=0.015)
        assert chances[0] > 0.002


def test_a_batch_of_noise_leaves_the_shares_of_the_classes_where_they_were() -> None:
    """The noise of a share is 2, and the classes have 65, 30 and 5 %: shares of noise were three times as bad."""
    rng, shares, model = (
        np.random.default_rng(2),
        np.array([0.65, 0.3, 0.05]),
        ClassProblem(moments(drawn(2000)), 0.0, 3),
    )
    last = np.zeros((3, Q))
    last[:, -1] = np.log(shares)
    for _ in range(5):
        wanted, found = 2 * rng.standard_normal(3 * Q), None
        for _ in range(3):
            found = model.answer(wanted, 2.0**2, 0.0, np.ravel(last), found)
        chances = softmax(model.rows @ found.theta.T, axis=1).mean(axis=0)
        assert -shares @ np.log(chances) < -1.4 * shares @ np.log(shares)


def test_a_rare_flag_is_found_without_steps_to_either_side() -> None:
    """Of 3 %, and ten times the share of a class: by normal columns its coefficient is three times too large."""
    flag, ends = (np.arange(10_000) < 300) * 2.0 - 1, np.array([[-1.0], [1.0]])
    rows = np.column_stack([flag, np.ones(len(flag))])
    truth = np.array([[1.25, -3.35], [0.0, 0.0], [0.0, 0.0]])
    truth -= truth.mean(axis=0)
    wanted, found = np.ravel(softmax(rows @ truth.T, axis=1).T @ rows) / len(rows), None
    model = ClassProblem(moments(rows), 0.0, 3, ends)
    for _ in range(3):
        found = model.answer(wanted, 1e-12, 1e-12, np.zeros(6), found)
    np.testing.assert_allclose(found.theta, truth, atol=0.1)


def test_a_change_of_units_just_before_the_end_forgets_nothing() -> None:
    """Averages in other units say about the same; they began anew, with the 300 records that were left."""
    rng, B = np.random.default_rng(5), 5 * np.random.default_rng(7).standard_normal((2, 3))
    X = np.clip(0.2 * rng.standard_normal((10_300, 2)), -1, 1)
    y = np.argmax(X @ B + rng.gumbel(size=(len(X), 3)), axis=1).astype(float)
    curvature = Curvature(Softmax(), 3, 3)
    walk = Newton(curvature, np.zeros(9), np.copy, 20.0, scaled=np.ones(2, dtype=bool))
    spec, found = Softmax().spec(), []
    spec[INTERCEPT] = 1.0
    for rows in (slice(0, 10_000), slice(10_000, None)):
        total = curvature.vectors(spec, walk.middle, X[rows], y[rows]).sum(axis=0)
        size = len(X[rows])
        walk.move(total + 20 * rng.standard_normal(len(total)), size, size)
        found.append(walk.estimate.reshape(3, 3).copy())
    for each in found:
        np.testing.assert_allclose(each[:, :2], (B - B.mean(axis=1, keepdims=True)).T, atol=2.0)
    np.testing.assert_allclose(found[1], found[0], atol=1.0)
