"""River's checks of a model, and that neither the model nor River leaves any of them out."""

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import pytest
import river
from river import checks
from river.base import Classifier, Regressor

ALWAYS = {
    "check_learn_one", "check_pickling", "check_shuffle_features_no_impact", "check_emerging_features",
    "check_disappearing_features", "check_predict_one_pure", "check_predict_many_matches_predict_one",
    "check_learn_many_matches_learn_one", "check_seeding_is_idempotent", "check_bounded_memory_growth",
}  # fmt: skip


def models_to_check(models: Mapping[str, Callable[[], Any]], *marks: pytest.MarkDecorator) -> Iterator[Any]:
    """The models as parameters.

    The campaign has further models of the same class, LDPSGD, whose records take the ways of LDPASGD but for the step,
    and several classes of all but LDPASGD, since `classes` is read in one place.
    """
    met = set()
    for name, make in models.items():
        model, several = type(make()).__name__, "multiclass" in name
        kind = model, several
        repeats = kind in met or model.startswith("LDPSGD") or (several and not model.startswith("LDPASGD"))
        met.add(kind)
        yield pytest.param(make, id=name, marks=[*marks, *([pytest.mark.campaign] if repeats else [])])


def run_checks(make: Callable[[], Any], slow: bool) -> None:
    """All checks but that of memory, or the one of memory, which takes seconds; and whether River still has them.

    River 0.26 has 28 for a regressor, 50 for two classes (two data sets), and 65 for more.
    """
    model = make()
    found = list(checks.yield_checks(model))
    names = [check.__name__ for check in found]
    if tuple(map(int, river.__version__.split(".")[:2])) >= (0, 26):
        assert len(names) >= (28 if isinstance(model, Regressor) else 65 if len(model.labels) > 2 else 50)
        assert set(names) >= ALWAYS
        if isinstance(model, Classifier):
            assert {"check_predict_proba_one", "check_predict_proba_many_matches_predict_proba_one"} <= set(names)
    for check, name in zip(found, names, strict=True):
        if slow == (name == "check_bounded_memory_growth"):
            try:
                check(model.clone())
            except BaseException as error:
                error.add_note(name)
                raise
