"""What `studies.user_claims` says: its gradients, its slopes, and that a wrong law would be seen."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from streamdp.estimators.user.randomizer import averages
from studies.few_users import vectors
from studies.rates import linear
from studies.user_claims import (
    CENTRAL,
    Size,
    Smoothable,
    Sweep,
    answered,
    answering,
    ball,
    estimated,
    kink,
    learned,
    learner,
    local_mean,
    norm,
    rows_of,
)

pytestmark = pytest.mark.campaign


@pytest.mark.parametrize("made", [kink(4), norm(4)])
def test_gradients_are_those_of_the_functions(made: Smoothable) -> None:
    f, gradient = made
    x = np.random.default_rng(1).standard_normal((50, 4))
    for step in np.eye(4) * 1e-6:
        np.testing.assert_allclose((f(x + step) - f(x - step)) / 2e-6, gradient(x) @ step / 1e-6, atol=1e-6)


def test_points_of_the_ball_are_uniform() -> None:
    """Their mean is 0 exactly; a norm is below t with probability t^d, within five standard errors."""
    y = ball(3, 1)
    np.testing.assert_allclose(y.mean(axis=0), 0, atol=1e-15)
    norms = np.linalg.norm(y[: len(y) // 2], axis=1)
    for t in (0.3, 0.6, 0.9):
        assert abs(np.mean(norms < t) - t**3) < 5 * np.sqrt(t**3 / len(norms))


def test_a_slope_is_found_and_one_that_is_too_flat_is_not_met() -> None:
    noise = np.array([0.98, 1.0, 1.02])
    for power, met in ((-2.0, "(yes)"), (-1.0, "(**no**)")):

        def runs(size: Size, power: float = power) -> np.ndarray:
            return noise * size.n**power

        (row,) = rows_of(Size(10, 10), [Sweep("n", (10, 100), -2)], runs, lambda size: size.n**-1.5)
        assert row[3].startswith(f"{power:.2f} ±")
        assert row[3].endswith(met)
        assert row[4] == "-1.50"


def test_the_error_of_means_is_that_of_the_plan() -> None:
    """80 coordinates have a relative standard error of 0.16; half the noise, or twice, would be seen."""
    size = Size(2_000, 2_500)
    found, stopped = answered(size, runs=5)
    assert stopped == 0
    assert 0.5 < found.mean() / (size.d * answering(size).noise ** 2 / 2) < 1.8
    assert {sweep.varied for sweep in CENTRAL} == {"n", "m", "d", "T", "epsilon"}


def test_many_unlike_users_stop_a_run_and_few_do_not() -> None:
    assert answered(Size(2_000, 2_500), 0.1, 30, runs=5)[1] == 5
    assert answered(Size(2_000, 2_500), 0.002, 30, runs=5)[1] == 0


def test_the_law_of_local_means_holds_and_a_wrong_centre_is_seen() -> None:
    """With six runs of four coordinates: 24 squares, a relative standard error of 0.29."""
    size = Size(60_000, 4_096, d=4, epsilon=4.0)
    mean = local_mean(size)
    assert mean.coarse
    assert estimated(size, runs=6).mean() / (mean.variance / 2) < 1 + 5 * 0.29
    few = replace(mean, coarse=mean.padded)  # one user for each coordinate
    assert estimated(size, few, runs=6).mean() / (few.variance / 2) > 100


def test_local_learners_get_gradients_of_the_linear_loss() -> None:
    """`learned` draws averages of m records; those of records that are all alike are the library's own."""
    problem, size = linear(4, 0.5), Size(400, 3, d=4)
    model = learner(problem, size, 0)
    X, y = problem.points, np.full(1, 100.0)
    own = averages(model.learner.spec, model.learner.problem.loss, np.zeros(4), X, y, [1])
    np.testing.assert_allclose(own[0], -problem.points[0] / 2)
    assert learned(size, runs=2).shape == (2,)


def test_vectors_have_the_spread_that_is_asked_for() -> None:
    found = vectors(16, 4_000, np.random.default_rng(1), 0.05)
    far = np.sqrt(np.mean(np.sum((found - found.mean(axis=0)) ** 2, axis=1)))
    assert abs(far / 0.05 - 1) < 0.02
