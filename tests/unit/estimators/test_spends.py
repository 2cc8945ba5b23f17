"""What a record spends is asked of the ledger and counted before it is learned, by every way in."""

from typing import Any

import numpy as np
import pytest

from streamdp import LDPASGDClassifier, LDPSGDRegressor, Ledger, PureDP
from streamdp.privacy.release import JOINED, REFUSED

X = np.linspace(-1, 1, 12).reshape(6, 2)
Y = np.array([0.0, 1.0, 1.0, 0.0, 1.0, 0.0])
PEOPLE = ["ann", "bob", "ann", "ann", "cid", "bob"]
CAP = "eps=2"
LEARNED = np.array([True, True, True, False, True, True])
"""With a budget of 1 for each record under `CAP`."""


@pytest.fixture(params=[LDPASGDClassifier, LDPSGDRegressor])
def kind(request: pytest.FixtureRequest) -> Any:
    return request.param


def made(kind: Any, **options: Any) -> Any:
    return kind(features=["a", "b"], budget="eps=1", seed=4, **options)


def one_by_one(model: Any, budget: Any = None) -> None:
    for x, y, person in zip(X, Y, PEOPLE, strict=True):
        target = bool(y) if isinstance(model, LDPASGDClassifier) else y
        model.learn_one({"a": x[0], "b": x[1]}, target, budget=budget, subject=person)


def only(kind: Any) -> Any:
    """A model that has met those records alone that the cap admits, with the same random words."""
    model = made(kind)
    model.learn_encoded(X[LEARNED], Y[LEARNED])
    return model


@pytest.mark.parametrize("budget", [None, "eps=1"])
def test_a_record_over_the_cap_moves_nothing(kind: Any, budget: Any) -> None:
    model = made(kind, ledger=Ledger(CAP))
    one_by_one(model, budget)
    assert (model.n_seen, model.n_refused) == (5, 1)
    assert np.array_equal(model.theta, only(kind).theta)


def test_refused_rows_move_nothing(kind: Any) -> None:
    model = made(kind, ledger=Ledger(CAP))
    assert np.array_equal(model.learn_encoded(X, Y, subjects=PEOPLE), np.where(LEARNED, JOINED, REFUSED))
    assert (model.n_seen, model.n_refused) == (5, 1)
    assert np.array_equal(model.theta, only(kind).theta)


def test_amounts_of_refused_rows_go_with_them(kind: Any) -> None:
    """Of ann's records with 1.5, 1 and .5 the second is refused: the third gets the noise of its own amount."""
    amounts = np.array([1.5, 0.25, 1.0, 0.5, 2.0, 0.25])
    learned = np.array([True, True, False, True, True, True])
    model, other = made(kind, ledger=Ledger(CAP)), made(kind)
    outcome = model.learn_encoded(X, Y, budgets=amounts, subjects=PEOPLE)
    assert np.array_equal(outcome, np.where(learned, JOINED, REFUSED))
    other.learn_encoded(X[learned], Y[learned], budgets=amounts[learned])
    assert np.array_equal(model.theta, other.theta)


def test_the_largest_amount_is_in_the_guarantee(kind: Any) -> None:
    model = made(kind)
    model.learn_encoded(X, Y, budgets=np.array([0.5, 0.25, 3.0, 0.5, 1.0, 0.25]))
    assert model.guarantee.budgets == (PureDP(3.0),)


def test_a_report_spends_what_it_says(kind: Any) -> None:
    model = made(kind, ledger=Ledger(CAP))
    for number, budget in enumerate(("eps=.5", "eps=1.5", "eps=.25")):
        report = model.randomizer({"a": 0.5, "b": 1.0}, 1.0, budget=budget)
        before = model.theta
        model.absorb(report, subject="ann")
        assert np.array_equal(model.theta, before) == (number == 2)
    assert (model.n_seen, model.n_refused) == (2, 1)
    assert model.guarantee.budgets == (PureDP(1.5),)
    assert model.ledger.spent("ann").epsilon == 2.0
