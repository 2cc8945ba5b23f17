"""Pan-private learning: a state that survives one break-in.

A batch's sum of vectors has noise from its first record on, and gets fresh noise before it is released. Either noise
alone protects a record. Source: Cheu, Joseph, Mao, Peng 2022, Appendix C, Algorithm 6.

Neighbours: replace one record. Trust: the operator while the record passes through memory, and nobody afterwards; one
break-in. Claim: each record has its budget, (epsilon, delta) or mu. The state leaves memory at boundaries only. Two
break-ins within a batch are not covered, nor the process around the estimator.

Proof: docs/proofs/pan_private.md.
"""

from dataclasses import dataclass
from typing import Literal

from streamdp.estimators.batch_methods import BatchEstimator
from streamdp.estimators.parameters import CLASSIFICATION_LOSSES, REGRESSION_LOSSES, documented, given
from streamdp.estimators.targets import Classifier, Regressor
from streamdp.learners.batches import BatchPlan
from streamdp.learners.linear_problem import LinearProblem
from streamdp.learners.pan import PanBatches
from streamdp.privacy.entropy import FreshRng
from streamdp.privacy.guarantees import Budget


@dataclass(eq=False, repr=False, kw_only=True)
class _PanPrivate(BatchEstimator):
    """Pan-private learning.

    Guarantee: each record has `budget`, against everyone who sees the state once at any moment and everything that is
    ever saved or served, for neighbours that differ in that record. Source: Cheu, Joseph, Mao, Peng 2022, Algorithm 6,
    Theorem C.3; the proof is docs/proofs/pan_private.md.

    Raises `ConfigError` and `BudgetError` for parameters out of range.

    Parameters
    ----------
    budget
        What each record spends: ApproxDP or GaussianDP; ApproxDP(1, 1e-6) if None. Text such as "mu=1" is accepted;
        "eps=2" has a delta of 1e-6.
    mechanism
        "auto" or "gaussian", or "none" (NOT private, for comparisons).
    """

    mechanism: Literal["auto", "gaussian", "none"] = "auto"
    method: Literal["auto", "newton", "ac-sa"] = "auto"
    learns = PanBatches

    def _make_learner(self, problem: LinearProblem, budget: Budget, rng: FreshRng) -> PanBatches:
        return PanBatches(problem, budget, rng, given(BatchPlan, self), mechanism=self.mechanism)


@documented(losses=REGRESSION_LOSSES)
@dataclass(eq=False, repr=False)
class PanPrivateRegressor(Regressor, _PanPrivate):
    """Regression by pan-private Newton steps or accelerated SGD.

    Examples
    --------
    >>> model = PanPrivateRegressor(features=["a", "b"])
    >>> model.learn_one({"a": 1.0, "b": -1.0}, 0.5)
    >>> model.n_seen, str(model.guarantee), model.at_boundary
    (1, 'eps=1,delta=1e-06', False)
    """


@documented(losses=CLASSIFICATION_LOSSES)
@dataclass(eq=False, repr=False)
class PanPrivateClassifier(Classifier, _PanPrivate):
    """Classification by pan-private Newton steps or accelerated SGD.

    Examples
    --------
    >>> model = PanPrivateClassifier(features=["a", "b"])
    >>> model.learn_one({"a": 1.0, "b": -1.0}, True)
    >>> model.n_seen, str(model.guarantee), model.at_boundary
    (1, 'eps=1,delta=1e-06', False)
    """
