"""What `studies.subquadratic` says: its window, its rival, and that queries grow slower than the square of n."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks.shared.pages import mean_and_error
from streamdp.optim.losses import Hinge
from streamdp.privacy.entropy import SeededEntropy
from streamdp.privacy.subsampling import noise_multiplier
from studies.subquadratic import (
    GROWTH,
    RIDGE,
    WRONG,
    D,
    NoisySGD,
    Window,
    growth,
    learned,
    measured,
    slope,
    task,
)

pytestmark = pytest.mark.campaign


def test_the_least_loss_of_the_window_is_what_it_is_said_to_be() -> None:
    """It is reached, and subgradient steps from anywhere find nothing less."""
    window = Window(400, 6, 1)
    best = np.eye(6)[0]
    assert window.excess(best) == pytest.approx(0, abs=1e-12)
    rng = np.random.default_rng(2)
    for _ in range(5):
        theta = window.project(best + rng.standard_normal(6))
        for t in range(1, 1000):
            assert window.excess(theta) >= -1e-12
            theta = window.project(theta - 0.5 / np.sqrt(t) * window.gradients(theta).mean(axis=0))
        assert window.excess(theta) < 0.1


def test_the_expected_loss_is_that_of_many_new_users() -> None:
    """Within five standard errors of 200,000 records, whose losses are below 3."""
    theta = np.r_[0.7, np.full(9, 0.2)]
    new = Window(200_000, 10, 5)
    assert abs(Window.expected(theta) - (new.excess(theta) + new.least - 2 * WRONG)) < 5 * 3 / np.sqrt(200_000)
    assert Window.expected(np.eye(10)[0]) == pytest.approx(0, abs=1e-9)


def test_a_regulariser_of_ones_own_leaves_the_optimum() -> None:
    window, theta = Window(400, 6, 1, 0.1), np.array([0.3, 0.1, 0, 0.2, 0, 0])
    best = np.eye(6)[0]
    assert window.excess(best) == pytest.approx(0, abs=1e-12)
    for _ in range(2_000):
        assert window.excess(theta) >= 0.05 * np.sum((theta - best) ** 2) - 1e-12  # strong convexity
        theta = window.project(theta - 0.01 * window.gradients(theta).mean(axis=0))
    assert window.excess(theta) < 0.02


def test_the_excess_with_a_regulariser_is_that_of_both() -> None:
    """The optimum, e_1, has the norm 1, and no theta of the ball has more: the regulariser is largest there."""
    run = learned("erm", 1_000, 10, net=RIDGE)
    assert np.all(run.excess <= run.loss)
    assert np.all(run.excess > run.loss - RIDGE.l2 / 2)
    assert np.all(run.excess >= 0)


def test_gradients_are_those_of_the_hinge_loss() -> None:
    window, theta = Window(100, 5, 3), np.full(5, 0.3)
    plain = [Hinge().gradient(theta, x, float(y)) for x, y in zip(window.X, window.y, strict=True)]
    np.testing.assert_allclose(window.gradients(theta), plain, atol=1e-12)
    np.testing.assert_allclose(window.gradients(theta, None, 1e-9), plain, atol=1e-12)


def test_the_rival_keeps_its_bound_and_is_not_wasteful() -> None:
    target = 0.15
    sgd = NoisySGD.planned(task(1000), target)
    assert 0.9 * target < sgd.run.excess < 1.1 * target
    for rate in (0.5 * sgd.run.rate, 2 * sgd.run.rate):  # with as many queries, other batches have a larger bound
        steps = sgd.run.queries / (rate * 1000)
        square = NoisySGD.square(task(1000), rate, noise_multiplier(task(1000).budget, rate, round(steps)))
        assert np.sqrt(square / steps) > 0.98 * sgd.run.excess
    window = Window(1000, D, 1)
    assert window.excess(sgd.learn(window, D, SeededEntropy(1, 1 << 16))) < target


def test_queries_grow_slower_than_those_of_sgd() -> None:
    rows = [growth(n, D) for n in GROWTH]
    ours, theirs = (slope(GROWTH, [getattr(row, name) for row in rows]) for name in ("erm", "sgd"))
    assert ours < 1.7
    assert theirs > 1.85
    assert rows[-1].erm < rows[-1].sgd / 3
    served = [row for row in rows if row.sco is not None]
    assert len(served) >= 3
    assert slope([row.n for row in served], [row.sco or 0.0 for row in served]) < 1.4


def test_fewer_queries_at_the_same_measured_excess() -> None:
    row = measured(8000, 3, seed=50)
    (ours, a), (theirs, b) = mean_and_error(row.excess), mean_and_error(row.sgd_excess)
    assert row.smoothed.queries < row.sgd.run.queries
    assert ours < 1.05 * theirs + 5 * np.hypot(a, b)
    assert ours < row.smoothed.excess
