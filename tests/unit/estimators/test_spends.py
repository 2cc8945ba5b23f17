"""What a record spends is asked of the ledger and counted before it is learned, by every way in."""

from typing import Any

import numpy as np
import pytest

from streamdp import LDPASGDClassifier, LDPSGDRegressor, Ledger, PureDP

X = np.linspace(-1, 1, 12).reshape(6, 2)
Y = np.array([0.0, 1.0, 1.0, 0.0, 1.0, 0.0])
CAP = "eps=2"


@pytest.fixture(params=[LDPASGDClassifier, LDPSGDRegressor])
def kind(request: pytest.FixtureRequest) -> Any:
    return request.param


def made(kind: Any, **options: Any) -> Any:
    return kind(features=["a", "b"], budget="eps=1", seed=4, **options)


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
