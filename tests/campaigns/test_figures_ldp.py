"""The figures of Shi et al. 2025: what is drawn is what it is said to be."""

from __future__ import annotations

import math

import numpy as np
import pytest

from streamdp import datasets
from studies.figures_ldp import Size, Study, distance, excess, exponents, figure_4
from studies.theory import PAPER, Case, simulate

pytestmark = pytest.mark.campaign


@pytest.mark.parametrize("loss", ["huber", "logistic"])
def test_the_papers_walk_is_that_of_theory(loss: str) -> None:
    study, case = Study(loss=loss, budget="mu=1", d=3), Case(loss=loss, budget="mu=1", d=3)
    (ours,), (theirs,) = simulate([study], [500], 1), simulate([case], [500], 1)
    np.testing.assert_array_equal(ours.average, theirs.average)
    assert not np.array_equal(
        simulate([Study(loss=loss, budget="mu=1", d=3, ours=True)], [500], 1)[0].average, ours.average
    )


def test_budgets_from_an_interval_of_one_point_are_that_point() -> None:
    drawn, fixed, other = Study(budget="mu=1", drawn=(2, 2)), Study(budget="mu=2"), Study(budget="mu=1")
    a, b, c = (run.last for run in simulate([drawn, fixed, other], [200, 500], 1))
    np.testing.assert_array_equal(a, b)
    assert not np.array_equal(b, c)


@pytest.mark.parametrize("loss", ["huber", "logistic"])
def test_the_excess_is_the_mean_loss_of_drawn_records(loss: str) -> None:
    """4,000 records: margins of five of their standard errors, and 2 % for the fixed x."""
    study = Study(loss=loss, d=3)
    make = datasets.linear if loss == "huber" else datasets.logistic
    X, y = make(4_000, 3, seed=5)
    X = np.hstack([X, np.ones((len(X), 1))])
    errors = np.zeros((2, len(study.theta)))
    errors[1] = np.linspace(0.5, 1.5, len(study.theta))
    off = [
        PAPER[loss].value(study.theta + errors[1], x, t) - PAPER[loss].value(study.theta, x, t)
        for x, t in zip(X, y, strict=True)
    ]
    found = excess(study, errors)
    assert found[0] == 0
    assert found[1] == pytest.approx(np.mean(off), abs=5 * np.std(off) / math.sqrt(len(off)) + 0.02 * found[1])
    assert 5 * np.std(off) / math.sqrt(len(off)) < found[1] / 2
    assert distance(study, errors)[1] == pytest.approx(np.sum(errors[1] ** 2))


@pytest.mark.parametrize(
    ("alpha", "last", "average"),
    [(1 / 3, 0, -1 / 3), (1 / 2, -1 / 4, -1 / 2), (2 / 3, -1 / 3, -1 / 3), (0.9, -0.1, -0.1)],
)
def test_exponents_are_those_of_table_1(alpha: float, last: float, average: float) -> None:
    assert exponents(alpha, excess) == pytest.approx((last, average))
    assert exponents(alpha, distance) == pytest.approx((-alpha, -min(1, 2 * alpha)))
    assert exponents(1.0, excess) is None


def test_a_figure_has_a_row_for_each_line_and_names_its_axes() -> None:
    found = figure_4(Size(600, 2))
    lines = [line for axis in found.picture.axes for line in axis.get_lines()]
    rows = found.table.splitlines()[2:]
    assert len(rows) == 16
    assert len(lines) == 2 * len(rows)  # the last and the averaged iterate
    assert all(axis.get_xlabel() for axis in found.picture.axes)
    assert found.picture.axes[0].get_ylabel()
