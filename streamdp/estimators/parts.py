"""The parts of a model of River: the private estimators in it, and what no guarantee covers.

Everything that the model holds is visited: estimators of River, scikit-learn and this package, and lists, tuples, sets
and mappings of them.
"""

from collections import UserDict, UserList, deque
from collections.abc import Iterator, Mapping
from typing import Any

from river import base

from streamdp.learners.learner import Learner

_HOLDERS = (list, tuple, set, frozenset, deque, UserList)
_WALKED = ("river", "sklearn", "streamdp")


def _parts(item: object) -> Iterator[object]:
    """What an object of a model holds directly."""
    if is_private(item):
        return
    if isinstance(item, Mapping | UserDict):
        yield from item.values()
    elif isinstance(item, _HOLDERS):
        yield from item
    if isinstance(item, base.Base | base.Ensemble) or hasattr(item, "learn_one") or _module(item) in _WALKED:
        yield from getattr(item, "__dict__", {}).values()


def is_private(item: object) -> bool:
    """Return whether an item, a part of a model, is a private estimator of this package."""
    kind = getattr(type(item), "learns", None)  # by its type, because a Pipeline poses as its last step
    return isinstance(kind, type) and issubclass(kind, Learner)


def _module(item: object) -> str:
    return type(item).__module__.partition(".")[0]


def contents(model: object) -> Iterator[Any]:
    """Yield every object of a River model, or of several, once, in the order in which it holds them."""
    seen: set[int] = set()
    left = [model]
    while left:
        item = left.pop()
        if id(item) not in seen:
            seen.add(id(item))
            yield item
            left += reversed(list(_parts(item)))


def _keeps_nothing(item: object) -> bool:
    """Whether a part of a model is known to keep nothing of the records, except in the parts that it holds."""
    from river import compose, ensemble, preprocessing  # here, because they take a second to load

    passing = (compose.Pipeline, compose.TransformerUnion, compose.Grouper, compose.TargetTransformRegressor)
    scalers = (preprocessing.TargetStandardScaler, preprocessing.TargetMinMaxScaler)
    kind = type(item)
    if is_private(item) or (issubclass(kind, passing) and not issubclass(kind, scalers)):
        return True
    if kind in (ensemble.BaggingClassifier, ensemble.BaggingRegressor):
        return True
    learns = getattr(kind, "learn_one", None)
    if learns is not None:
        return learns is base.Transformer.learn_one  # it does nothing
    if hasattr(kind, "fit"):  # scikit-learn's, of which pipelines and this package keep nothing
        return kind.__module__.startswith(("sklearn.pipeline", "streamdp."))
    return not (_module(item) == "river" and hasattr(item, "update"))  # a metric, a statistic or a drift detector


def check_pipeline(model: object) -> tuple[str, ...]:
    """Return the parts of a River model that may keep something of the records without noise: their class names.

    No guarantee covers what they keep, and every prediction and saved state may release it. Named are: transformers
    that learn, such as StandardScaler and OneHotEncoder; scalers of the target; estimators that are not private;
    metrics, statistics and drift detectors; and wrappers that keep something themselves, or are not known to keep
    nothing, such as OneVsRestClassifier, which keeps the classes that have occurred. Wrappers and ensembles of every
    kind are searched. Pipelines, unions, groupers, target transforms and Bagging keep nothing, and transformers without
    a `learn_one` of their own are taken to keep nothing.

    The names are returned and not raised, because a part may be harmless where you know what the data are, such as an
    encoder of categories that are public. Before learning, write `assert not check_pipeline(model)`. A pipeline of
    River that learns its first record warns of them.

    Parameters
    ----------
    model
        A River model, or several in a list or a mapping.

    >>> from river.preprocessing import StandardScaler
    >>> from streamdp import LDPSGDRegressor
    >>> check_pipeline(StandardScaler() | LDPSGDRegressor(features=["a"]))
    ('StandardScaler',)
    """
    found: dict[str, None] = {}
    inside: set[int] = set()  # parts of a part that is named as a whole, because nothing in it is private
    for item in contents(model):
        if id(item) in inside or _keeps_nothing(item):
            continue
        found[type(item).__name__] = None
        parts = list(contents(item))
        if not any(map(is_private, parts)):
            inside |= set(map(id, parts))
    return tuple(found)
