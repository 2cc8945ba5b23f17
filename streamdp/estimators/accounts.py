"""What a whole model spends: the spends of all private estimators in River's pipelines, wrappers and ensembles.

A private estimator counts its own spends. In a bagging of ten, each record is learned by ten of them, and each says
what it alone has spent. `account` finds them all and composes their spends.
"""

from collections import Counter
from dataclasses import dataclass

from streamdp.errors import ConfigError
from streamdp.estimators.estimator import Estimator
from streamdp.estimators.parts import check_pipeline, contents, is_private
from streamdp.learners.learner import NEIGHBOURS
from streamdp.ledger.charged import CapHistory
from streamdp.privacy.composition import Spend
from streamdp.privacy.guarantees import Guarantee, about_delta
from streamdp.privacy.statement import statement

DELTA = 1e-6
"""The delta that the composition of GaussianDP with other budgets adds to the deltas that are spent."""
_OF_ALL = NEIGHBOURS.replace(
    "the subject and the budget", "the subject, the budget and, where an estimator learns by time, the time"
)


@dataclass(frozen=True)
class Account:
    """The private estimators of a model, and what they spend together on one record. `account` makes it.

    Parameters
    ----------
    model
        The model.
    """

    model: object

    @property
    def estimators(self) -> tuple[Estimator, ...]:
        """The private estimators that the model holds now, each once."""
        return tuple(filter(is_private, contents(self.model)))

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
        return Guarantee(() if total is None else (total,), _OF_ALL, trust, private)

    def statement(self) -> str:
        """Return the guarantee over all estimators in words."""
        guarantee, learned = self.guarantee, self.learned
        kinds = ", ".join(f"{n} {name}" for name, n in Counter(type(one).__name__ for one in learned).items())
        head = f"Privacy statement over {len(self.estimators)} private estimators, of which {len(learned)} learned."
        spend = f"single record that each of them learned once ({kinds})"
        notes = [
            "a record that one estimator learned several times, as by bagging, oversampling or a second epoch, "
            "spent there each time; the total counts it once",
            "estimators that the model no longer holds, as after drift or selection, are not in the total",
        ]
        limits = about_delta(guarantee.budgets, max((one.n_seen for one in learned), default=0))
        if self.uncovered:
            parts = ", ".join(self.uncovered)
            notes.append(f"no guarantee covers what these parts may keep of the records without noise: {parts}")
        return statement(head, guarantee, self._people(), {"What this covers": notes}, spend=spend, limits=limits)

    def _people(self) -> str:
        ledgers = {id(estimator.ledger): estimator.ledger for estimator in self.estimators}
        ledger = next(iter(ledgers.values()))
        spends = "the spends of a person's records in all of them add up"
        history = CapHistory({}).joined(*(estimator.cap_history for estimator in self.estimators))
        if len(ledgers) > 1 or ledger is None:
            return f"no cap is kept over all estimators, so {spends}"
        return history.people(ledger.cap, " over all of them", spends)


def account(model: object) -> Account:
    """Return the account of a model: all private estimators in it, and what they spend together.

    Each private estimator says what it alone has spent. Where several learn the same records, as in River's ensembles,
    wrappers and model selection, the spends compose: ten estimators with eps=1 are eps=10. For classes, one
    LDPASGDClassifier(classes=[...]) learns a softmax model and spends once, where OneVsRestClassifier spends for each
    class. Estimators that share one `Ledger` keep its caps together.

    Parameters
    ----------
    model
        A model of River or scikit-learn, or several in a list or a mapping, as all that learn from the same people.

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
