"""Shuffle-private learning: only a shuffler stands between the people and the learner.

Each person's device randomises its vector into bits, a shuffler mixes the bits of a batch, and the learner makes one
step of the estimated sum. Source: Cheu, Joseph, Mao, Peng 2022, Algorithms 1 to 5.

Neighbours: replace one record. Trust: the shuffler, and enough people who follow the protocol; not the learner. In one
process (`learn_one`, `learn_many`, `learn_arrays`) the process is trusted. Claim: (epsilon, delta)-DP for each record,
for the whole transcript.

Proof: docs/proofs/shuffle.md.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from streamdp.aggregation.shuffled_sum import Shuffled
from streamdp.errors import ConfigError
from streamdp.estimators.batch_methods import BatchEstimator, batch
from streamdp.estimators.estimator import of_learner
from streamdp.estimators.parameters import CLASSIFICATION_LOSSES, REGRESSION_LOSSES, documented, given
from streamdp.estimators.shuffle.randomizer import ShuffleRandomizer
from streamdp.estimators.targets import Classifier, Regressor
from streamdp.learners.batches import BatchPlan
from streamdp.learners.linear_problem import LinearProblem
from streamdp.learners.shuffle import ShuffleBatches, cohort_of
from streamdp.privacy.entropy import Rng
from streamdp.privacy.guarantees import Budget


@dataclass(eq=False, repr=False, kw_only=True)
class _Shuffle(BatchEstimator):
    """Shuffle-private learning.

    Guarantee: each record has `budget`, against everyone who sees what the shuffler forwards and all that follows from
    it, for neighbours that differ in that record; a larger spend if fewer people answer than were planned for
    (`guarantee` says how much). Source: Cheu, Joseph, Mao, Peng 2022, Algorithms 1 to 5, Theorems 4.1 to 4.9;
    the proof is docs/proofs/shuffle.md.

    Raises `ConfigError` and `BudgetError` for parameters out of range.

    Parameters
    ----------
    method
        ... "sgd": averaged SGD, a planned baseline.
    budget
        What each record spends, an ApproxDP with epsilon up to 100; ApproxDP(1, 1e-6) if None.
    cohort
        {"people": n, "rounds": T}: the same n people answer in each of T rounds, the budget is for all rounds
        together, and only `absorb` learns. Without rounds, T is the fewest whose bound on the excess loss is within a
        tenth of the least. None: each record is in one batch.
    """

    cohort: Mapping[str, object] | None = None
    learns = ShuffleBatches
    batch = property(batch)
    finished = of_learner(ShuffleBatches, "finished")

    def _make_learner(self, problem: LinearProblem, budget: Budget, rng: Rng) -> ShuffleBatches:
        cohort = None if self.cohort is None else cohort_of(self.cohort)
        if cohort is not None and self.features is None:
            raise ConfigError("cohort: it needs declared features, because only `absorb` learns")
        return ShuffleBatches(problem, budget, rng, given(BatchPlan, self), cohort=cohort)

    @property
    def randomizer(self) -> ShuffleRandomizer:
        """A person's half for the next batch. Raises `NotAvailableError` before the features are known."""
        learner = self._learner(ShuffleBatches, "randomizer")
        return ShuffleRandomizer(
            learner.middle.copy(),
            learner.spec.copy(),
            params=learner.params,
            batch=learner.batch_steps.place,
            curvature=learner.curvature,
            **self._on_device,
        )

    def absorb(self, shuffled: Shuffled) -> None:
        """Make one step with the mixed bits of the next batch. Its spend follows from how many people answered.

        The rounds of a cohort have one spend together, which the first one counts: that of the smallest round so far.

        Parameters
        ----------
        shuffled
            The bits of all who answered, mixed by the shuffler.

        Raises `NotAtBoundaryError` if `learn_one` has begun a batch, `SchemaError` for bits that are not of the agreed
        sum, and if there is a ledger, because the bits name no subjects, `BudgetError` if too few answered for any
        guarantee, and `ConfigError` after the last round of a cohort; then nothing changes.
        """
        learner = self._learner(ShuffleBatches, "absorb")
        self._admission.need_subjects(None)
        with self.learner.rng.lock:
            spent, take = learner.taken(shuffled)
            self._count(spent)
            take()


@documented(losses=REGRESSION_LOSSES)
@dataclass(eq=False, repr=False)
class ShuffleRegressor(Regressor, _Shuffle):
    """Regression from shuffled gradients and curvature.

    Examples
    --------
    >>> model = ShuffleRegressor(features=["a", "b"])
    >>> model.learn_one({"a": 1.0, "b": -1.0}, 0.5)
    >>> model.n_seen, str(model.guarantee), model.at_boundary
    (1, 'eps=1,delta=1e-06', False)
    """


@documented(losses=CLASSIFICATION_LOSSES)
@dataclass(eq=False, repr=False)
class ShuffleClassifier(Classifier, _Shuffle):
    """Classification from shuffled gradients and curvature.

    Examples
    --------
    >>> model = ShuffleClassifier(features=["a", "b"])
    >>> model.learn_one({"a": 1.0, "b": -1.0}, True)
    >>> model.n_seen, str(model.guarantee), model.at_boundary
    (1, 'eps=1,delta=1e-06', False)
    """
