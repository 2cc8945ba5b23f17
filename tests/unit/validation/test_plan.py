"""Who answers, and what they pay."""

from typing import Any

import numpy as np
import pytest

from streamdp import ApproxDP, GaussianDP, PureDP
from streamdp.errors import BudgetError, ConfigError
from streamdp.validation.plan import CELL, CONSTANT, ERROR, NOTHING, OTHER, plan_of, questions
from streamdp.validation.tasks import Classes, Numbers
from tests.support.questions import said_about_constant, values_of


def test_the_share_of_records_that_answer_and_their_questions() -> None:
    asked = questions(0, 400_000, 0.1, False)
    shares = np.bincount(asked, minlength=4) / len(asked)
    assert shares[NOTHING] == pytest.approx(0.9, abs=0.003)
    assert shares[[CONSTANT, ERROR, OTHER]] * 10 == pytest.approx([1 / 8, 1 / 2, 3 / 8], abs=0.015)
    with_cells = np.bincount(questions(0, 400_000, 0.1, False, cells=True), minlength=5) / len(asked)
    assert with_cells[[CONSTANT, ERROR, OTHER, CELL]] * 10 == pytest.approx([1 / 8, 1 / 2, 1 / 8, 1 / 4], abs=0.015)
    summed = np.bincount(questions(0, 400_000, 0.1, False, summed=True), minlength=5) / len(asked)
    assert summed[[CONSTANT, ERROR]] * 10 == pytest.approx([1 / 4, 3 / 4], abs=0.015)
    assert set(questions(0, 1000, 0.1, True).tolist()) == {NOTHING, CONSTANT}
    assert (questions(5, 1000, None, False) != NOTHING).all()


def test_a_question_depends_on_the_number_of_the_record_alone() -> None:
    whole = questions(0, 1000, 0.3, False)
    parts = [questions(i, 1, 0.3, False)[0] for i in range(1000)]
    assert whole.tolist() == parts


def test_answers_of_consecutive_records_are_uncorrelated() -> None:
    told = (questions(0, 200_000, 0.5, False) != NOTHING) - 0.5
    for lag in (1, 2, 7, 24, 365):
        assert abs(np.mean(told[lag:] * told[:-lag])) < 0.25 * 5.2 / np.sqrt(200_000)


@pytest.mark.parametrize(
    ("budget", "answer", "total"),
    [
        (PureDP(1), "eps=0.5", PureDP(1.5)),
        (ApproxDP(1, 1e-6), "eps=0.5", ApproxDP(1.5, 1e-6)),
        (ApproxDP(1, 1e-6), "eps=0.5,delta=1e-6", ApproxDP(1.5, 1e-6)),  # an answer needs no delta
        (GaussianDP(3), "mu=4", GaussianDP(5)),
    ],
    ids=str,
)
def test_what_a_record_spends_in_all(budget: Any, answer: str, total: Any) -> None:
    assert plan_of({"budget": answer}).total(budget) == total
    assert plan_of({"share": 0.1}).total(budget) == budget


@pytest.mark.parametrize(("budget", "answer"), [(PureDP(1), "mu=1"), (GaussianDP(1), "eps=1")], ids=str)
def test_kinds_that_do_not_add_up_are_refused(budget: Any, answer: str) -> None:
    with pytest.raises(BudgetError, match="the model's kind"):
        plan_of({"budget": answer}).total(budget)


@pytest.mark.parametrize(
    "value",
    [{}, {"share": 0.1, "budget": "eps=1"}, {"share": 0.6}, {"share": 0}, {"share": True}, {"share": "0.1"},
        {"share": 0.1, "bound": -1}, {"share": 0.1, "bound": float("nan")}, {"part": 0.1}, "share", 0.1],
    ids=str,
)  # fmt: skip
def test_other_plans_are_refused(value: Any) -> None:
    with pytest.raises(ConfigError, match="validation"):
        plan_of(value)


@pytest.mark.parametrize("tau", [0.5, 0.1, 0.9])
def test_the_best_constant_of_numbers_is_found_from_noisy_bits(tau: float) -> None:
    """The quantile of a skewed target, up to 2 % of the largest error more than the least error."""
    rng = np.random.default_rng(2)
    y = rng.exponential(1.0, 40_000)
    task, reach = Numbers(tau, -5, 20), 2.5
    known = task.start(3.0, reach)
    for at in range(0, len(y), 50):
        known = said_about_constant(task, y[at : at + 50], known, at, reach)

    def loss(c: float) -> float:
        return float(values_of(task.errors(known, 1e9), np.full((len(y), 1), c), y).mean())

    assert loss(task.constant(known)) - loss(float(np.quantile(y, tau))) < 0.02 * task.largest(reach)


def test_the_most_frequent_class_is_found_from_noisy_bits() -> None:
    rng = np.random.default_rng(3)
    y = rng.choice(3, 20_000, p=[0.3, 0.25, 0.45]).astype(float)
    task = Classes(3)
    known = task.start(0.0, 1.0)
    known = said_about_constant(task, y, known, 0, 1.0)
    assert np.argmax(task.shares(known)[0]) == 2
    assert task.shares(known)[0] == pytest.approx([0.3, 0.25, 0.45], abs=0.06)
    assert task.lacks(known) < 1
    assert task.lacks(task.start(0.0, 1.0)) >= 1
