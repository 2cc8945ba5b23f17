"""Every documented name and budget works with the defaults of all other parameters, or is refused as documented."""

import inspect
import math
import re
import warnings
from ast import literal_eval
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import streamdp
from streamdp.errors import BudgetError, ConfigError, SchemaError
from streamdp.estimators.estimator import Estimator
from streamdp.optim.losses import LOSSES

KINDS = [
    f"{family}{end}"
    for family in ("LDPSGD", "LDPASGD", "UserLevelLDP", "PanPrivate", "Shuffle", "Windowed")
    for end in ("Regressor", "Classifier")
]
NAMED = {
    "LDPSGD": {"mechanism", "clock", "scaling"}, "LDPASGD": {"mechanism", "clock", "scaling"},
    "UserLevelLDP": {"method", "centre", "scaling"}, "PanPrivate": {"method", "mechanism"}, "Shuffle": {"method"},
    "Windowed": {"method", "scaling"},
}  # fmt: skip
"""The parameters that take names, beside `loss` and `change`, which all have."""
BUDGETS = ("eps=0.5", "eps=1", "eps=4", "mu=0.5", "eps=1,delta=1e-6")
REFUSED: dict[str, tuple[Any, ...]] = {
    "loss": ("absolute", "", 5),
    "budget": ("eps=-1", "much", 5),
    "domain": ("ball", 3),
    "features": ([], ["a", "a"], "a", 3, {"a", "b"}),
    "intercept": ("no", 1),
    "ledger": (5, "eps=1"),
    "seed": ("x", 1.5, -1),
    "change": ("sometimes", 5),
    "mechanism": ("uniform", 5),
    "eta": (0, -1, math.nan, math.inf, "fast", None),
    "alpha": (-0.1, 1.1, math.nan, "fast", None),
    "clock": ("days", None),
    "scaling": ("shared", 5),
    "classes": (("u",), ("u", "u"), 5, "ab", {"a", "b"}),
    "target": ((1, 0), (0, math.inf), (1,), "y"),
    "method": ("adam", "Newton", "", 3, object(), None),
    "horizon": (0, -5, 1.5, "9", True, 10**19),
    "batch_size": (0, -5, 1.5, "9", True, 10**19),
    "smoothness": (0, -1, math.inf, math.nan, "1", True),
    "strong_convexity": (-1, math.inf, math.nan, "1", None),
    "items_per_user": (0, 2.5, True, 2**21),
    "window": (0, 2.5, True),
    "window_seconds": (0.0, -1.0, math.nan, "1"),
    "spread": (0.0, -1.0, math.nan, True, "0.1"),
    "centre": ("guessed", None),
    "cohort": (0, 1.5, "9"),
    "validation": (5, "much"),
}
"""Values of parameters that no estimator takes."""
ROWS = np.random.default_rng(1).uniform(-1, 1, (300, 2))


def named(kind: str) -> Iterator[tuple[str, str]]:
    """The parameters of an estimator that take names, with each name, as its types say."""
    for name, parameter in inspect.signature(getattr(streamdp, kind)).parameters.items():
        for values in re.findall(r"Literal(\[.*?\])", str(parameter.annotation)):
            yield from ((name, value) for value in literal_eval(values))


def fits(kind: str, loss: str) -> bool:
    learned_here = not LOSSES[loss].log_link or kind.startswith(("PanPrivate", "Shuffle", "Windowed"))
    return learned_here and LOSSES[loss].of_classes == kind.endswith("Classifier")


def learned(kind: str, **given: Any) -> Estimator:
    """A model of 300 records, with declared bounds, which private scaling asks for."""
    least = 0 if given.get("loss") == "poisson" else -1
    target: dict[str, Any] = {"target": (least, 1)} if kind.endswith("Regressor") else {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # a window stays open, or a budget is large
        model: Any = getattr(streamdp, kind)(features={"a": (-1, 1), "b": (-1, 1)}, **target, **given)
        y = ROWS[:, 0] if target else ROWS[:, 0] > 0
        model.learn_arrays(ROWS, y, subjects=[i // 2 for i in range(300)])
        model.close_batch()
    assert model.n_seen == 300
    assert np.isfinite(model.predict_one({"a": 0.5, "b": -0.5}))
    assert ("NOT PRIVATE" in model.statement()) == (given.get("mechanism") == "none")
    return model


@pytest.mark.parametrize("kind", KINDS)
def test_each_name_works_with_defaults(kind: str) -> None:
    """Before, mechanism="gaussian" asked for a delta, which the default budget does not have."""
    met = set()
    for name, value in named(kind):
        if name == "loss" and not fits(kind, value):
            with pytest.raises(ConfigError, match="loss"):
                learned(kind, loss=value)
            continue
        learned(kind, **{name: value})
        met.add(name)
    assert met == NAMED[kind.removesuffix("Regressor").removesuffix("Classifier")] | {"loss", "change"}


@pytest.mark.parametrize("kind", KINDS)
def test_each_wrong_value_is_refused_at_once_and_its_parameter_named(kind: str) -> None:
    for name in inspect.signature(getattr(streamdp, kind)).parameters:
        for value in REFUSED[name]:
            with pytest.raises(BudgetError if name == "budget" else (ConfigError, SchemaError)) as caught:
                getattr(streamdp, kind)(**{"features": ["a"], name: value})
            assert name in str(caught.value) or name == "budget"


def check_budgets(kind: str, loss: str) -> None:
    for budget in BUDGETS:
        if budget.startswith("mu") and kind.startswith(("Shuffle", "Windowed")):
            with pytest.raises(BudgetError, match="expected eps=E,delta=D, got mu"):
                learned(kind, loss=loss, budget=budget)
        else:
            model: Any = learned(kind, loss=loss, budget=budget)
            assert model.guarantee.private
            assert str(model.guarantee).startswith(budget.replace("1e-6", "1e-06"))


@pytest.mark.parametrize("kind", KINDS)
def test_each_budget_works(kind: str) -> None:
    check_budgets(kind, "huber" if kind.endswith("Regressor") else "logistic")


@pytest.mark.campaign
@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("kind", KINDS)
def test_each_name_and_budget_works_with_each_loss(kind: str, loss: str) -> None:
    """Only Newton's steps need a curvature, follow a change of a batch, and scale windows privately."""
    if not fits(kind, loss):
        return
    check_budgets(kind, loss)
    flat = loss in ("quantile", "hinge") and kind.startswith(("PanPrivate", "Shuffle", "Windowed"))
    newton = {("method", "newton"), ("change", "follow"), ("scaling", "private")}
    for name, value in named(kind):
        other = (name == "method" and value not in ("auto", "newton")) or (name, value) == ("scaling", "none")
        if flat and (name, value) in newton:
            with pytest.raises(ConfigError, match=f"{name}.*(newton|private-range|ac-sa)"):
                learned(kind, loss=loss, **{name: value})
        elif LOSSES[loss].log_link and other:
            with pytest.raises(ConfigError, match="by Newton's steps alone"):
                learned(kind, loss=loss, **{name: value})
        elif name != "loss":
            learned(kind, loss=loss, **{name: value})
