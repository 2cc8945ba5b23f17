"""What a whole model spends, and what in it no guarantee covers: for River's pipelines, wrappers and ensembles.

A private estimator counts its own spends. In a bagging of ten, each record is learned by ten of them, and each says
what it alone has spent. `account` finds them all and composes their spends. `check_pipeline` finds what else sees the
records. Both visit everything that the model holds: estimators of River, and lists, tuples, sets and mappings of them.
"""

from __future__ import annotations

from collections import Counter, UserDict, UserList, deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from river import base

from streamdp.errors import ConfigError
from streamdp.estimators.estimator import Estimator
from streamdp.learners.learner import NEIGHBOURS
from streamdp.ledger.charged import CapHistory
from streamdp.privacy.composition import Spend
from streamdp.privacy.guarantees import ApproxDP, Guarantee
from streamdp.privacy.statement import in_lines

DELTA = 1e-6
"""The delta that the composition of GaussianDP with other budgets adds to the deltas that are spent."""

_HOLDERS = (list, tuple, set, frozenset, deque, UserList)


def _parts(item: Any) -> Iterator[Any]:
    """What an object of a model holds directly."""
    if _is_private(item):
        return
    if isinstance(item, Mapping | UserDict):
        yield from item.values()
    elif isinstance(item, _HOLDERS):
        yield from item
    if isinstance(item, base.Base | base.Ensemble) or hasattr(item, "learn_one") or _of_river(item):
        yield from getattr(item, "__dict__", {}).values()


def _is_private(item: Any) -> bool:
    return issubclass(type(item), Estimator)  # by its type, because a Pipeline poses as its last step


def _of_river(item: Any) -> bool:
    return type(item).__module__.startswith("river.")


def _contents(model: Any) -> Iterator[Any]:
    """Every object of a model, once, in the order in which it holds them."""
    seen: set[int] = set()
    left = [model]
    while left:
        item = left.pop()
        if id(item) not in seen:
            seen.add(id(item))
            yield item
            left += reversed(list(_parts(item)))


def _keeps_nothing(item: Any) -> bool:
    """Whether a part of a model is known to keep nothing of the records, except in the parts that it holds."""
    from river import compose, ensemble, preprocessing  # here, because they take a second to load

    passing = (compose.Pipeline, compose.TransformerUnion, compose.Grouper, compose.TargetTransformRegressor)
    scalers = (preprocessing.TargetStandardScaler, preprocessing.TargetMinMaxScaler)
    kind = type(item)
    if _is_private(item) or (issubclass(kind, passing) and not issubclass(kind, scalers)):
        return True
    if kind in (ensemble.BaggingClassifier, ensemble.BaggingRegressor):
        return True
    learns = getattr(kind, "learn_one", None)
    if learns is not None:
        return learns is base.Transformer.learn_one  # it does nothing
    return not (_of_river(item) and hasattr(item, "update"))  # a metric, a statistic or a drift detector


def check_pipeline(model: Any) -> tuple[str, ...]:
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
    for item in _contents(model):
        if id(item) in inside or _keeps_nothing(item):
            continue
        found[type(item).__name__] = None
        parts = list(_contents(item))
        if not any(map(_is_private, parts)):
            inside |= set(map(id, parts))
    return tuple(found)


@dataclass(frozen=True)
class Account:
    """The private estimators of a model, and what they spend together on one record. `account` makes it.

    Parameters
    ----------
    model
        The model.
    """

    model: Any

    @property
    def estimators(self) -> tuple[Estimator, ...]:
        """The private estimators that the model holds now, each once."""
        return tuple(filter(_is_private, _contents(self.model)))

    @property
    def uncovered(self) -> tuple[str, ...]:
        """The parts that no guarantee covers, as `check_pipeline` returns them."""
        return check_pipeline(self.model)

    @property
    def learned(self) -> tuple[Estimator, ...]:
        """The estimators that have spent something."""
        return tuple(estimator for estimator in self.estimators if estimator.guarantee.budgets)

    @property
    def guarantee(self) -> Guarantee:
        """What holds for a single record.

        It is the composition of the spends of all estimators, if each learned the record at most once.

        Spends of PureDP and ApproxDP add up, mu^2 of GaussianDP add up. A mixture is composed to (epsilon, delta), at
        the sum of the deltas that were spent and 1e-6. An estimator whose records spent budgets of several kinds counts
        with the largest of each kind. It is a guarantee for records, also where an estimator protects more. It is not
        private if one of the estimators that learned is not, or if the deltas reach 1.
        """
        estimators = self.estimators
        learned = self.learned
        spend = Spend.of(budget for estimator in learned for budget in estimator.guarantee.budgets)
        trust = "; ".join(dict.fromkeys(f"{type(one).__name__}: {one.trust}" for one in learned or estimators))
        private = all(estimator.private for estimator in learned) and spend.delta + DELTA < 1
        total = spend.guarantee(spend.delta + DELTA) if private else None
        return Guarantee(() if total is None else (total,), NEIGHBOURS, trust, private)

    def statement(self) -> str:
        """Return the guarantee over all estimators in words."""
        guarantee, learned = self.guarantee, self.learned
        kinds = ", ".join(f"{n} {name}" for name, n in Counter(type(one).__name__ for one in learned).items())
        head = f"Privacy statement over {len(self.estimators)} private estimators, of which {len(learned)} learned."
        spend = f"The spend on a single record that each of them learned once ({kinds}) is at most:"
        notes = [
            "a record that one estimator learned several times, as by bagging, oversampling or a second epoch, "
            "spent there each time; the total counts it once",
            "estimators that the model no longer holds, as after drift or selection, are not in the total",
        ]
        if any(isinstance(budget, ApproxDP) for budget in guarantee.budgets):
            notes.append("delta is the mass of outcomes for which nothing is promised; keep it well below 1/n")
        if self.uncovered:
            parts = ", ".join(self.uncovered)
            notes.append(f"no guarantee covers what these parts may keep of the records without noise: {parts}")
        return in_lines(head, guarantee, spend, self._people(), notes)

    def _people(self) -> str:
        ledgers = {id(estimator.ledger): estimator.ledger for estimator in self.estimators}
        ledger = next(iter(ledgers.values()))
        spends = "the spends of a person's records in all of them add up"
        history = CapHistory({}).joined(*(estimator.cap_history for estimator in self.estimators))
        if len(ledgers) > 1 or ledger is None:
            return f"no cap is kept over all estimators, so {spends}"
        return history.people(ledger.cap, " over all of them", spends)


def account(model: Any) -> Account:
    """Return the account of a model: all private estimators in it, and what they spend together.

    Each private estimator says what it alone has spent. Where several learn the same records, as in River's ensembles,
    wrappers and model selection, the spends compose: ten estimators with eps=1 are eps=10. For classes, one
    LDPASGDClassifier(classes=[...]) learns a softmax model and spends once, where OneVsRestClassifier spends for each
    class. Estimators that share one `Ledger` keep its caps together.

    Parameters
    ----------
    model
        A River model, or several in a list or a mapping, such as all models that learn from the same people.

    Raises `ConfigError` if there is no private estimator in it.

    >>> from river.ensemble import BaggingRegressor
    >>> from streamdp import LDPSGDRegressor
    >>> model = BaggingRegressor(LDPSGDRegressor(features=["a"]), n_models=3, seed=7)
    >>> for _ in range(20):
    ...     model.learn_one({"a": 1.0}, 1.0)
    >>> str(account(model).guarantee)
    'eps=3'
    """
    found = Account(model)
    if not found.estimators:
        raise ConfigError(f"account: expected a model with a private estimator in it, got {type(model).__name__}")
    return found
