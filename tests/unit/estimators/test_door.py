"""`streamdp.Regressor` and `streamdp.Classifier`: the estimator of a trust."""

from typing import Any, get_args

import numpy as np
import pytest

import streamdp
from streamdp.errors import ConfigError
from streamdp.estimators.door import Trust, chosen, trust_of

FEATURES = {"a": (0, 1), "b": ["x", "y"]}


@pytest.mark.parametrize("trust", get_args(Trust))
@pytest.mark.parametrize("classes", [False, True])
def test_it_is_the_estimator_that_a_job_with_this_trust_has(trust: Any, classes: bool) -> None:
    name = chosen(trust, classes=classes)
    make, named = (streamdp.Classifier if classes else streamdp.Regressor), getattr(streamdp, name)
    given: dict[str, Any] = {"features": FEATURES, "budget": "eps=1", "seed": 5} | (
        {} if classes else {"target": (0, 1)}
    )
    found, other = make(trust, **given), named(**given)
    assert type(found) is named
    assert trust_of(name) == trust
    for model in (found, other):
        for i in range(50):
            model.learn_one({"a": i / 50, "b": "xy"[i % 2]}, bool(i % 2) if classes else i / 50)
    assert np.array_equal(found.theta, other.theta)
    assert type(found.clone()) is named


def test_another_trust_is_refused_by_name() -> None:
    with pytest.raises(ConfigError, match="expected one of nobody, process, window, shuffler; did you mean 'window'"):
        streamdp.Regressor("windows", features=FEATURES)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="expected one of nobody, process, window, shuffler"):
        streamdp.Regressor(["process"], features=FEATURES)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="PanPrivateRegressor has no parameter 'items_per_user'"):
        streamdp.Regressor("process", features=FEATURES, items_per_user=3)


def test_an_unknown_name_is_a_typed_error() -> None:
    """Before, it was a StopIteration without a word, which ends the caller's generator."""
    with pytest.raises(ConfigError, match="expected the name of an estimator"):
        trust_of("RidgeRegressor")
