"""Pan-private learning: a state that survives one break-in.

For each batch of b records (Cheu, Joseph, Mao, Peng 2022, Appendix C, Algorithm 6):

    A = Z_a;   A = A + vector of record i at the query point, for each record;   a step with A + Z_b,

with Z_a and Z_b from N(0, zeta^2 I), the least zeta for which either of them alone protects a sum whose sensitivity is
S, the largest distance of two vectors (analytic calibration; the paper's 8 L^2 ln(2/delta) / eps^2 holds for eps < 1
and is larger). method="newton": a vector is a record's gradient with its curvature, S is derived in `curvature`, and
the steps are those of `newton`. method="ac-sa", the paper's: a vector is a gradient, and the steps are those of
`ac_sa`. The next query point, and the units of its columns (`column_units`), depend on released sums only.

Neighbours: replace one record, say record i of batch t.

Trust: the operator while the record passes through memory, and nobody afterwards. The adversary sees the whole state
once, at a moment of its choice, all states at boundaries (whatever is saved or served), and the output.

Claim: each record has its budget, (epsilon, delta) or mu.

Proof. Earlier batches do not depend on the record.
* Break-in before the record: the state is independent of it; what follows is computed from A + Z_b of batch t, and Z_b
  is fresh.
* Break-in after the record but within the batch: A is a Gaussian mechanism with Z_a, and everything later is computed
  from A, other records and fresh noise.
* Break-in later: what is seen is computed from A + Z_b.
In each case all that is seen is post-processing of one Gaussian mechanism with sensitivity S.

Consequences for the code:
* Noise is drawn from the operating system when it is needed and overwritten when it is added; no generator, key or
  noise is kept.
* The sum lives on a grid of integers (see `entropy`: rounding moves two vectors apart by at most sqrt(size) h, which
  the calibration counts). A record's vector is overwritten when it is added.
* The state leaves memory at boundaries only (tests/statistical/test_intruder.py).

Limits. Two break-ins within a batch are not covered, and a fork of the process within a batch is a second copy of the
sum. The process around the estimator is not covered either: benchmarks/memory_dump.md measures what fetch buffers and
freed memory still hold of raw records.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from streamdp.estimators import batch_methods as methods
from streamdp.estimators.estimator import of_learner
from streamdp.estimators.parameters import BATCHED, CLASSIFICATION_LOSSES, REGRESSION_LOSSES, documented
from streamdp.estimators.targets import Classifier, Regressor
from streamdp.learners.linear_problem import LinearProblem
from streamdp.learners.pan import PanBatches
from streamdp.optim.domains import Domain
from streamdp.optim.losses import Loss
from streamdp.privacy.entropy import FreshWords, SeededEntropy
from streamdp.privacy.guarantees import Budget

if TYPE_CHECKING:
    from streamdp.ledger.ledger import Ledger


def _fresh_words(model: Any) -> FreshWords | SeededEntropy:
    return FreshWords() if model.seed is None else SeededEntropy(model.seed)


def _pan(model: Any, problem: LinearProblem, budget: Budget, rng: Any) -> PanBatches:
    given = model.domain is not None
    return PanBatches(problem, budget, rng, methods.batch_plan(model), given_domain=given, mechanism=model.mechanism)


_GUARANTEE = """
    Guarantee: each record has `budget`, against everyone who sees the state once at any moment and everything that is
    ever saved or served, for neighbours that differ in that record. Source: Cheu, Joseph, Mao, Peng 2022, Algorithm 6,
    Theorem C.3; the argument is in `streamdp.estimators.pan`.

    Raises `ConfigError` and `BudgetError` for parameters out of range."""

_PARAMETERS = {
    **BATCHED,
    "budget": """
        What each record spends: ApproxDP or GaussianDP; ApproxDP(1, 1e-6) if None. Text such as "mu=1" is accepted.""",
    "mechanism": '"auto" or "gaussian", or "none" (NOT private, for comparisons).',
}
_LOSS = """
    A name or a `Loss`: {}.
    With "ac-sa" a non-smooth loss is replaced by its Moreau envelope; another one that clips gradients needs
    `smoothness`."""


@documented(_GUARANTEE, _PARAMETERS, loss=_LOSS.format(REGRESSION_LOSSES))
class PanPrivateRegressor(Regressor):
    """Regression by pan-private Newton steps or accelerated SGD.

    Examples
    --------
    >>> model = PanPrivateRegressor(features=["a", "b"])
    >>> model.learn_one({"a": 1.0, "b": -1.0}, 0.5)
    >>> model.n_seen, str(model.guarantee), model.at_boundary
    (1, 'eps=1,delta=1e-06', False)
    """

    learns = PanBatches
    _make_learner = _pan
    _words = _fresh_words
    n_changes = of_learner(PanBatches, "n_changes")
    phase = property(methods.phase)
    gather_part = methods.gather_part
    surrender = methods.surrender
    part = methods.part
    learn_parts = methods.learn_parts

    def __init__(
        self,
        loss: str | Loss = "huber",
        budget: Budget | str | None = None,
        mechanism: str = "auto",
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
        change: str = "follow",
        validation: Mapping[str, Any] | None = None,
        target: tuple[float, float] | None = None,
    ) -> None:
        self._construct(locals())


@documented(_GUARANTEE, _PARAMETERS, loss=_LOSS.format(CLASSIFICATION_LOSSES))
class PanPrivateClassifier(Classifier):
    """Classification by pan-private Newton steps or accelerated SGD.

    Examples
    --------
    >>> model = PanPrivateClassifier(features=["a", "b"])
    >>> model.learn_one({"a": 1.0, "b": -1.0}, True)
    >>> model.n_seen, str(model.guarantee), model.at_boundary
    (1, 'eps=1,delta=1e-06', False)
    """

    learns = PanBatches
    _make_learner = _pan
    _words = _fresh_words
    n_changes = of_learner(PanBatches, "n_changes")
    phase = property(methods.phase)
    gather_part = methods.gather_part
    surrender = methods.surrender
    part = methods.part
    learn_parts = methods.learn_parts

    def __init__(
        self,
        loss: str | Loss = "logistic",
        budget: Budget | str | None = None,
        mechanism: str = "auto",
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
        change: str = "follow",
        classes: Sequence[Hashable] | None = None,
        validation: Mapping[str, Any] | None = None,
    ) -> None:
        self._construct(locals())
