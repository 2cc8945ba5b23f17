"""What a whole model spends, and what in it no guarantee covers: for River's pipelines, wrappers and ensembles.

A private estimator counts its own spends. In a bagging of ten, each record is learned by ten of them, and each says
what it alone has spent. `account` finds them all and composes their spends. `check_pipeline` finds what else sees the
records. Both walk what the model holds: estimators of River, and lists, tuples, sets and mappings of them.
"""

from __future__ import annotations

import warnings
from collections import Counter, UserDict, UserList, deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from river import base

from streamdp.errors import ConfigError, PrivacyWarning, SchemaError
from streamdp.estimators.base import NEIGHBOURS, StreamEstimator
from streamdp.estimators.frames import records_of
from streamdp.ledger.caps import check_counts
from streamdp.ledger.periods import refusals
from streamdp.ledger.record_cap import RecordCap
from streamdp.privacy.composition import Spend
from streamdp.privacy.guarantees import ApproxDP, Budget, Guarantee
from streamdp.privacy.statement import in_lines

if TYPE_CHECKING:
    from streamdp.data.records import Subject

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
    return issubclass(type(item), StreamEstimator)  # by its type, because a Pipeline poses as its last step


def _of_river(item: Any) -> bool:
    return type(item).__module__.startswith("river.")


def _walk(model: Any) -> Iterator[Any]:
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
    encoder of categories that are public. Before learning, write `assert not check_pipeline(model)`. An estimator does
    not know what is in front of it, so nothing checks this when it learns.

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
    for item in _walk(model):
        if id(item) in inside or _keeps_nothing(item):
            continue
        found[type(item).__name__] = None
        parts = list(_walk(item))
        if not any(map(_is_private, parts)):
            inside |= set(map(id, parts))
    return tuple(found)


def _replays(item: Any) -> bool:
    """Whether a part of a model is known to learn earlier records again, without telling which."""
    from river import imblearn  # here, because it takes a second to load

    return isinstance(item, imblearn.HardSamplingClassifier | imblearn.HardSamplingRegressor)


@dataclass(frozen=True)
class Account:
    """The private estimators of a model, and what they spend together on one record. `account` makes it.

    Parameters
    ----------
    model
        The model.
    record_cap
        What a record may spend in all estimators together; None: no cap is kept.
    before
        What the estimators had spent before there was this cap.
    """

    model: Any
    record_cap: RecordCap | None = None
    before: tuple[Budget, ...] = ()

    @property
    def estimators(self) -> tuple[StreamEstimator, ...]:
        """The private estimators that the model holds now, each once."""
        return tuple(filter(_is_private, _walk(self.model)))

    @property
    def uncovered(self) -> tuple[str, ...]:
        """The parts that no guarantee covers, as `check_pipeline` returns them."""
        return check_pipeline(self.model)

    @property
    def learned(self) -> tuple[StreamEstimator, ...]:
        """The estimators that have spent something."""
        return tuple(estimator for estimator in self.estimators if estimator.guarantee.budgets)

    def learn_one(self, x: Mapping[Any, Any], y: Any, *, record: Subject | None = None, **options: Any) -> None:
        """Let the model learn one record under the cap.

        Each time one of its private estimators is given the record, it spends on it, or refuses and counts it in its
        `n_refused`. Threads may learn at the same time, if the model allows it.

        Parameters
        ----------
        x, y
            The record.
        record
            The name of the record, such as the number of its row: text, bytes or a whole number. All calls with one
            name share one cap, as in several epochs. None: the record is never given again.
        **options
            What else the model's `learn_one` takes, such as `subject`.

        Raises `ConfigError` for an account without a cap, `SchemaError` for a malformed name, and the model's errors.
        """
        if self.record_cap is None:
            raise ConfigError("this account only reads: account(model, cap=...) keeps a cap and learns")
        try:
            self.record_cap.open(record)
            self.model.learn_one(x, y, **options)
        finally:
            self.record_cap.close()  # if Ctrl-C comes before it, all that follows is charged to this record's cap

    def learn_many(self, X: Any, y: Iterable[Any], records: Iterable[Subject] | None = None) -> None:
        """Let the model learn the rows of a frame one after another, each as `learn_one` does.

        Parameters
        ----------
        X
            A frame of pandas or polars.
        y
            The targets of the rows.
        records
            The names of the rows; None: they are never given again.

        Raises what `learn_one` raises; `SchemaError` for what is no frame and for other numbers of targets or names,
        before anything is learned.
        """
        rows, targets = records_of(X), list(y)
        names = [None] * len(rows) if records is None else list(records)
        if not len(rows) == len(targets) == len(names):
            raise SchemaError(f"y, records: expected {len(rows)} of each")
        for x, target, name in zip(rows, targets, names, strict=True):
            self.learn_one(x, target, record=name)

    @property
    def guarantee(self) -> Guarantee:
        """What holds for a single record.

        With a cap it is the cap, composed with what the estimators had spent before. Without one it is the composition
        of the spends of all estimators, if each learned the record at most once.

        Spends of PureDP and ApproxDP add up, mu^2 of GaussianDP add up. A mixture is composed to (epsilon, delta), at
        the sum of the deltas that were spent and 1e-6. An estimator whose records spent budgets of several kinds counts
        with the largest of each kind. It is a guarantee for records, also where an estimator protects more. It is not
        private if one of the estimators that learned is not, or if the deltas reach 1.
        """
        estimators = self.estimators
        learned = self.learned
        spend = Spend.of(self._spends(learned))
        trust = "; ".join(dict.fromkeys(f"{type(one).__name__}: {one.trust}" for one in learned or estimators))
        private = all(estimator.private for estimator in learned) and spend.delta + DELTA < 1
        total = spend.guarantee(spend.delta + DELTA) if private else None
        return Guarantee(() if total is None else (total,), NEIGHBOURS, trust, private)

    def _spends(self, learned: Sequence[StreamEstimator]) -> Iterator[Budget]:
        """What composes to the spend on one record."""
        if self.record_cap is not None and learned:
            yield from self.before
            yield self.record_cap.cap
        for estimator in learned:
            if self.record_cap is None or self._is_strange(estimator):
                yield from estimator.guarantee.budgets

    def _is_strange(self, estimator: StreamEstimator) -> bool:
        """Whether the model took in this estimator after the cap was made."""
        return estimator._record_cap is not self.record_cap  # noqa: SLF001 - set by `account` only

    def statement(self) -> str:
        """Return the guarantee over all estimators in words."""
        guarantee, learned = self.guarantee, self.learned
        kinds = ", ".join(f"{n} {name}" for name, n in Counter(type(one).__name__ for one in learned).items())
        head = f"Privacy statement over {len(self.estimators)} private estimators, of which {len(learned)} learned."
        if self.record_cap is None:
            spend = f"The spend on a single record that each of them learned once ({kinds}) is at most:"
            notes = [
                "a record that one estimator learned several times, as by bagging, oversampling or a second epoch, "
                "spent there each time; the total counts it once",
                "estimators that the model no longer holds, as after drift or selection, are not in the total",
            ]
        else:
            spend = f"The spend on a single record in all of them together ({kinds}) is at most:"
            notes = [
                f"each record is under a cap of {self.record_cap.cap} over all estimators, also those that the model "
                "no longer holds; a record is what one call of the account's learn_one is given, or all calls with one "
                "name; every part of the model is taken to hand on the record of the call only",
            ]
            strange = sum(map(self._is_strange, learned))
            if self.before or strange:
                notes.append(
                    f"the total has {len(self.before)} spends from before the cap, and those of {strange} estimators "
                    "that came later and are not under it; each is counted once"
                )
        if any(isinstance(budget, ApproxDP) for budget in guarantee.budgets):
            notes.append("delta is the mass of outcomes for which nothing is promised; keep it well below 1/n")
        if self.uncovered:
            parts = ", ".join(self.uncovered)
            notes.append(f"no guarantee covers what these parts may keep of the records without noise: {parts}")
        return in_lines(head, guarantee, spend, self._people(), notes)

    def _people(self) -> str:
        ledgers = {id(estimator.ledger): estimator.ledger for estimator in self.estimators}
        ledger = next(iter(ledgers.values()))
        if len(ledgers) == 1 and ledger is not None:
            return f"all estimators share one ledger, so {refusals(ledger.cap, ' over all of them')}"
        return "no cap is kept over all estimators, so the spends of a person's records in all of them add up"


def account(model: Any, cap: Budget | str | None = None, *, shares: int | None = None) -> Account:
    """Return the account of a model: all private estimators in it, and what they spend together.

    Each private estimator says what it alone has spent. Where several learn the same records, as in River's ensembles,
    wrappers and model selection, the spends compose: ten estimators with eps=1 are eps=10. For classes, one
    LDPASGDClassifier(classes=[...]) learns a softmax model and spends once, where OneVsRestClassifier spends for each
    class. Estimators that share one `Ledger` keep its caps together.

    With a cap, the account learns in place of the model, and no record spends more than the cap in all estimators
    together, however often a wrapper copies estimators and repeats records (`streamdp.ledger.record_cap` has the
    proof). From then on the estimators, their clones and copies learn by `Account.learn_one` and `Account.learn_many`
    only; everything else that would learn or load raises `ConfigError`. The account lasts as long as the process.

    Parameters
    ----------
    model
        A River model, or several in a list or a mapping, such as all models that learn from the same people. With a cap
        it is one model.
    cap
        What a record may spend in all estimators together, such as `"eps=1"`, "mu=1" or "eps=1,delta=1e-6": epsilons
        and deltas add up, or mu^2 (see `Ledger` for kinds). A spend beyond it is refused. None: no cap is kept.
    shares
        Each spend of LDP estimators is scaled down to one of so many equal shares of the cap: epsilon by this number,
        mu by its root. So the first estimators do not spend it all. Other estimators keep their own budget, as do
        spends of another kind than the cap. None: nothing is scaled.

    Raises `ConfigError` if there is no private estimator in it, and with a cap if an estimator is in another account
    with a cap or if a part, such as HardSamplingClassifier, learns earlier records again; `BudgetError` for a malformed
    cap and for one that cannot count the budget of an estimator. With a cap it warns (`PrivacyWarning`) of parts that
    no guarantee covers, such as a scaler that learns.

    >>> from river.ensemble import BaggingRegressor
    >>> from streamdp import LDPSGDRegressor
    >>> model = BaggingRegressor(LDPSGDRegressor(features=["a"]), n_models=3, seed=7)
    >>> for _ in range(20):
    ...     model.learn_one({"a": 1.0}, 1.0)
    >>> str(account(model).guarantee)
    'eps=3'
    >>> capped = account(model.clone(), cap="eps=1", shares=3)
    >>> for _ in range(20):
    ...     capped.learn_one({"a": 1.0}, 1.0)
    >>> str(capped.guarantee)
    'eps=1'
    """
    found = Account(model)
    estimators = found.estimators
    if not estimators:
        raise ConfigError(f"account: expected a model with a private estimator in it, got {type(model).__name__}")
    if cap is None:
        if shares is not None:
            raise ConfigError("shares: expected a cap to divide")
        return found
    if any(estimator._record_cap is not None for estimator in estimators):  # noqa: SLF001 - set here only
        raise ConfigError("account: an estimator of this model is in another account with a cap")
    if any(map(_replays, _walk(model))):
        raise ConfigError("account: expected a model that learns each record when it comes, got one with HardSampling")
    if uncovered := found.uncovered:
        warnings.warn(
            f"no guarantee covers what {', '.join(uncovered)} may keep of the records without noise: "
            "streamdp.preprocessing has scalers and encoders that learn nothing",
            PrivacyWarning,
            stacklevel=2,
        )
    record_cap = RecordCap(cap, shares)
    for estimator in estimators:
        check_counts(record_cap.cap, estimator.record_budget)
    before = tuple(budget for estimator in found.learned for budget in estimator.guarantee.budgets)
    for estimator in estimators:
        estimator._record_cap = record_cap  # noqa: SLF001
    return Account(model, record_cap, before)
