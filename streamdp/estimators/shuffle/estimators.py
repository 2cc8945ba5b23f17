"""Shuffle-private learning: only a shuffler stands between the people and the learner.

Each person's device randomises its vector into bits, a shuffler mixes the bits of a batch, and the learner makes one
step of the estimated sum. Source: Cheu, Joseph, Mao, Peng 2022, Algorithms 1 to 5.

Neighbours: replace one record. Trust: the shuffler, and enough people who follow the protocol; not the learner. In one
process (`learn_one`, `learn_many`, `learn_arrays`) the process is trusted. Claim: (epsilon, delta)-DP for each record,
for the whole transcript.

Proof: docs/proofs/shuffle.md.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from streamdp.errors import ConfigError
from streamdp.estimators import batch_methods as methods
from streamdp.estimators.estimator import of_learner
from streamdp.estimators.parameters import BATCHED, CLASSIFICATION_LOSSES, METHOD, REGRESSION_LOSSES, documented, given
from streamdp.estimators.shuffle import methods as own
from streamdp.estimators.targets import Classifier, Regressor
from streamdp.learners.batches import BatchPlan
from streamdp.learners.linear_problem import LinearProblem
from streamdp.learners.shuffle import ShuffleBatches, cohort_of
from streamdp.optim.domains import Domain
from streamdp.optim.losses import Loss
from streamdp.privacy.guarantees import Budget

if TYPE_CHECKING:
    from streamdp.ledger.ledger import Ledger


def _shuffle(model: Any, problem: LinearProblem, budget: Budget, rng: Any) -> ShuffleBatches:
    cohort = None if model.cohort is None else cohort_of(model.cohort)
    if cohort is not None and model.features is None:
        raise ConfigError("cohort: it needs declared features, because only `absorb` learns")
    plan, domain = given(BatchPlan, model), model.domain is not None
    return ShuffleBatches(problem, budget, rng, plan, given_domain=domain, cohort=cohort)


_GUARANTEE = """
    Guarantee: each record has `budget`, against everyone who sees what the shuffler forwards and all that follows from
    it, for neighbours that differ in that record; a larger spend if fewer people answer than were planned for
    (`guarantee` says how much). Source: Cheu, Joseph, Mao, Peng 2022, Algorithms 1 to 5, Theorems 4.1 to 4.9;
    the proof is docs/proofs/shuffle.md.

    Raises `ConfigError` and `BudgetError` for parameters out of range."""

_PARAMETERS = {
    **BATCHED,
    "budget": "What each record spends, an ApproxDP with epsilon up to 100; ApproxDP(1, 1e-6) if None.",
    "method": METHOD.format(' "sgd": averaged SGD, a planned baseline.'),
    "cohort": """
        {"people": n, "rounds": T}: the same n people answer in each of T rounds, the budget is for all rounds
        together, and only `absorb` learns. Without rounds, T is planned as by `learn_cohort`. None: each record is in
        one batch.""",
}
_LOSS = """
    A name or a `Loss`: {}.
    With "ac-sa" a non-smooth loss is replaced by its Moreau envelope; another one that clips gradients needs
    `smoothness`."""


@documented(_GUARANTEE, _PARAMETERS, loss=_LOSS.format(REGRESSION_LOSSES))
class ShuffleRegressor(Regressor):
    """Regression from shuffled gradients and curvature.

    Examples
    --------
    >>> model = ShuffleRegressor(features=["a", "b"])
    >>> model.learn_one({"a": 1.0, "b": -1.0}, 0.5)
    >>> model.n_seen, str(model.guarantee), model.at_boundary
    (1, 'eps=1,delta=1e-06', False)
    """

    cohort: Mapping[str, Any] | None
    learns = ShuffleBatches
    _make_learner = _shuffle
    batch = property(methods.batch)
    finished = of_learner(ShuffleBatches, "finished")
    randomizer = property(own.randomizer)
    absorb = own.absorb
    learn_cohort = own.learn_cohort
    phase = property(methods.phase)
    interval = methods.interval
    settling = methods.settling
    gather_part = methods.gather_part
    take_records = methods.take_records
    part = methods.part
    learn_parts = methods.learn_parts

    def __init__(
        self,
        loss: str | Loss = "huber",
        budget: Budget | str | None = None,
        method: str = "auto",
        domain: Domain | None = None,
        features: Sequence[str] | None = None,
        intercept: bool = True,
        ledger: Ledger | None = None,
        seed: int | None = None,
        horizon: int | None = None,
        batch_size: int | None = None,
        smoothness: float | None = None,
        strong_convexity: float = 0.0,
        change: str | None = None,
        validation: Mapping[str, Any] | None = None,
        target: tuple[float, float] | None = None,
        cohort: Mapping[str, Any] | None = None,
    ) -> None:
        self._construct(locals())


@documented(_GUARANTEE, _PARAMETERS, loss=_LOSS.format(CLASSIFICATION_LOSSES))
class ShuffleClassifier(Classifier):
    """Classification from shuffled gradients and curvature.

    Examples
    --------
    >>> model = ShuffleClassifier(features=["a", "b"])
    >>> model.learn_one({"a": 1.0, "b": -1.0}, True)
    >>> model.n_seen, str(model.guarantee), model.at_boundary
    (1, 'eps=1,delta=1e-06', False)
    """

    cohort: Mapping[str, Any] | None
    learns = ShuffleBatches
    _make_learner = _shuffle
    batch = property(methods.batch)
    finished = of_learner(ShuffleBatches, "finished")
    randomizer = property(own.randomizer)
    absorb = own.absorb
    learn_cohort = own.learn_cohort
    phase = property(methods.phase)
    interval = methods.interval
    settling = methods.settling
    gather_part = methods.gather_part
    take_records = methods.take_records
    part = methods.part
    learn_parts = methods.learn_parts

    def __init__(
        self,
        loss: str | Loss = "logistic",
        budget: Budget | str | None = None,
        method: str = "auto",
        domain: Domain | None = None,
        features: Sequence[str] | None = None,
        intercept: bool = True,
        ledger: Ledger | None = None,
        seed: int | None = None,
        horizon: int | None = None,
        batch_size: int | None = None,
        smoothness: float | None = None,
        strong_convexity: float = 0.0,
        change: str | None = None,
        classes: Sequence[Hashable] | None = None,
        validation: Mapping[str, Any] | None = None,
        cohort: Mapping[str, Any] | None = None,
    ) -> None:
        self._construct(locals())
