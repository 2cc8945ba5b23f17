"""River's checks, one test parameter each, and a check that neither a model nor River leaves any of them out."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import pytest
import river
from river import checks
from river.base import Classifier, Regressor

ALWAYS = {
    "check_learn_one",
    "check_pickling",
    "check_shuffle_features_no_impact",
    "check_emerging_features",
    "check_disappearing_features",
    "check_predict_one_pure",
    "check_predict_many_matches_predict_one",
    "check_learn_many_matches_learn_one",
    "check_seeding_is_idempotent",
    "check_bounded_memory_growth",
}


def all_checks(models: Mapping[str, Callable[[], Any]], slow: bool = False) -> Iterator[Any]:
    """One parameter (make, number) for each check of a model.

    The campaign has further models of the same class, LDPSGD, whose records take the ways of LDPASGD but for the step,
    and several classes of all but LDPASGD, since `classes` is read in one place.
    """
    met = set()
    for name, make in models.items():
        model, several = type(make()).__name__, "multiclass" in name
        kind = model, several
        repeats = kind in met or model.startswith("LDPSGD") or (several and not model.startswith("LDPASGD"))
        known = [pytest.mark.campaign] if repeats else []
        met.add(kind)
        for number, check in enumerate(checks.yield_checks(make())):
            marks = known + ([pytest.mark.slow] if slow or check.__name__ == "check_bounded_memory_growth" else [])
            yield pytest.param(make, number, id=f"{name}-{number}-{check.__name__}", marks=marks)


def run_check(make: Callable[[], Any], number: int) -> None:
    model = make()
    list(checks.yield_checks(model))[number](model.clone())


def assert_none_vanishes(make: Callable[[], Any]) -> None:
    """28 for a regressor, 50 for two classes (two data sets), 65 for more, in River 0.26."""
    if tuple(map(int, river.__version__.split(".")[:2])) < (0, 26):
        pytest.skip("an older River has fewer checks")
    model = make()
    names = [check.__name__ for check in checks.yield_checks(model)]
    assert len(names) >= (28 if isinstance(model, Regressor) else 65 if len(model._labels) > 2 else 50)
    assert set(names) >= ALWAYS
    if isinstance(model, Classifier):
        assert {"check_predict_proba_one", "check_predict_proba_many_matches_predict_proba_one"} <= set(names)
