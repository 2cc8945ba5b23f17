"""What `studies.user_rates` says: its users, and that many records of each help as the theorems have it."""

from __future__ import annotations

import numpy as np
import pytest

from studies.user_rates import PROBLEMS, SQUARED, WAYS, Averages, Problem, Size, draw, measured, public

pytestmark = pytest.mark.campaign

ITEM, CUT, RANGES, OUTLIERS = WAYS
SMALL = Size(d=4)


@pytest.mark.parametrize("problem", PROBLEMS, ids=lambda problem: problem.name)
def test_gradients_are_those_of_the_excess(problem: Problem) -> None:
    """The mean gradient of 100,000 users is the excess' within five standard errors, which are below 1 / sqrt(n m)."""
    size, a, theta = Size(n=100_000, m=16, d=3), 0.4, np.array([0.1, -0.5, 0.3])
    users = Averages(problem, draw(size, a, 1))
    found, step = users.gradients(theta).mean(axis=0), 1e-4
    for j, unit in enumerate(np.eye(3)):
        slope = (problem.excess(theta + step * unit, a) - problem.excess(theta - step * unit, a)) / (2 * step)
        assert abs(found[j] - slope) < 5 / np.sqrt(size.n * size.m)
    best = np.full(3, (a if problem.convexity else 1.0) / np.sqrt(3))
    assert problem.excess(best, a) == pytest.approx(0, abs=1e-12)
    assert np.linalg.norm(users.project(3 * theta)) <= 1 + 1e-12


def test_users_are_as_near_each_other_as_methods_are_told() -> None:
    points = draw(SMALL, 0.5, 1)
    assert np.mean(np.sum((points - points.mean(axis=0)) ** 2, axis=1)) < 1 / SMALL.m
    assert np.linalg.norm(points, axis=1).max() <= 1 + 1e-12


@pytest.mark.parametrize("problem", PROBLEMS, ids=lambda problem: problem.name)
def test_many_records_of_a_user_help_as_the_theorems_have_it(problem: Problem) -> None:
    """Means within 1 / sqrt(m) of each other need less noise than a cut at the bound, and more than item level has."""
    excess = {}
    for way in WAYS:
        cell = measured(problem, way, SMALL)
        excess[way] = cell[0].mean()
    assert public(problem, SMALL).mean() < 2 * excess[ITEM]
    assert excess[ITEM] < excess[RANGES] < excess[CUT] / 2
    assert excess[OUTLIERS] < excess[CUT] / 2


def test_users_far_away_do_not_move_the_mean_without_outliers() -> None:
    """Four in a thousand at the edge of the ball triple the excess of a plain mean, at least."""
    usual, unlike = measured(SQUARED, OUTLIERS, SMALL), measured(SQUARED, OUTLIERS, SMALL, 0.004, 100)
    assert unlike[0].mean() < 2 * usual[0].mean()
    assert unlike[1] == 0
    assert public(SQUARED, SMALL, 0.004, 100).mean() > 3 * public(SQUARED, SMALL).mean()
