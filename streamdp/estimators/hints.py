"""Names that other libraries have for parameters and methods of estimators, and what is meant here."""

import re
from functools import cache
from inspect import signature

from streamdp.errors import BUDGETS, ConfigError, is_number, suggestion

NO_WEIGHTS = (
    "w, sample_weight: records have no weights, because a heavier one would need more noise than its budget allows, and"
    " a lighter one has the noise of all: leave it out. For a rare class, read the probabilities; if weights are public"
    " learn each record with this probability. The argument is in docs/explanations/limits.md"
)
WEIGHT = 1.0
"""The default weight of a record. `learn_one` checks any other object by `check_weight`."""
_PARAMETERS = {
    **{name: f'budget="{budget}"' for name, budget in BUDGETS.items()},
    "fit_intercept": "intercept",
    "random_state": "seed, in tests",
    **dict.fromkeys(("l1", "l2", "penalty", "C"), "domain=L2Ball(radius), which bounds the weights"),
    **dict.fromkeys(("learning_rate", "lr", "eta0", "optimizer"), "eta, a factor of planned steps, and mostly nothing"),
    **dict.fromkeys(("bounds", "bounds_X", "data_norm"), 'features={"age": (18, 100)}, with bounds for each column'),
    **dict.fromkeys(("bounds_y", "target_bounds"), "target=(low, high)"),
    "cap": 'ledger=Ledger("eps=3")',
}
_NEEDLESS = {
    **dict.fromkeys(
        ("max_iter", "n_iter", "epochs", "n_epochs", "tol", "early_stopping"), "each record is learned once"
    ),
    **dict.fromkeys(
        ("class_weight", "sample_weight"), "records have no weights; read the probabilities of a rare class"
    ),
}
_SKLEARN = "or streamdp.sklearn, which has scikit-learn's interface"
_ATTRIBUTES = {
    **dict.fromkeys(("fit", "partial_fit"), f"learn_many(X, y), {_SKLEARN}"),
    "predict": f"predict_one(x) and predict_many(X), {_SKLEARN}",
    "predict_proba": f"predict_proba_one(x) and predict_proba_many(X), {_SKLEARN}",
    "score": "streamdp.sklearn, or validation={...} for a private answer",
    **dict.fromkeys(("coef_", "coef", "intercept_", "params"), "weights, a dict by name"),
    **dict.fromkeys(("epsilon", "privacy_spent", "spent"), "guarantee and statement()"),
    "classes_": "classes",
}


@cache
def _known(kind: type) -> frozenset[str]:
    return frozenset(signature(kind).parameters)


def check_parameters(kind: type, given: dict[str, object]) -> None:
    """Raise `ConfigError` for given keywords that a kind of estimator does not have, with what is meant."""
    for name in given.keys() - _known(kind):
        if name in _NEEDLESS:
            raise ConfigError(f"{kind.__name__} has no parameter {name!r}: {_NEEDLESS[name]}")
        meant = _PARAMETERS.get(name, "")
        there = re.split(r"\W", meant)[0] in _known(kind)
        hint = f": use {meant}" if there else suggestion(name, _known(kind))
        raise ConfigError(f"{kind.__name__} has no parameter {name!r}{hint}")


def check_weight(w: object) -> None:
    """Raise `ConfigError` unless the weight of a record, `w`, is the number 1."""
    if not (is_number(w) and w == WEIGHT):
        raise ConfigError(NO_WEIGHTS)


def missing(owner: object, name: str) -> AttributeError:
    """Return the error for an attribute, name, that its owner does not have, with what is meant."""
    meant = _ATTRIBUTES.get(name)
    hint = "" if meant is None else f": use {meant}"
    return AttributeError(f"{type(owner).__name__!r} object has no attribute {name!r}{hint}", name=name, obj=owner)
