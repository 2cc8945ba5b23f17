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

from collections.abc import Callable, Hashable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from streamdp.errors import check_choice
from streamdp.estimators.divided import DividedModel
from streamdp.estimators.parameters import BATCHED, CLASSIFICATION_LOSSES, REGRESSION_LOSSES, documented
from streamdp.estimators.targets import LinearClassifier, LinearRegressor
from streamdp.optim.domains import Domain
from streamdp.optim.losses import Loss
from streamdp.privacy.entropy import FreshWords, SeededEntropy, forks
from streamdp.privacy.guarantees import Budget
from streamdp.privacy.mechanisms import Gaussian

if TYPE_CHECKING:
    from streamdp.ledger.ledger import Ledger
    from streamdp.optim.record_kernel import RecordKernel

_MECHANISMS = ("auto", "gaussian", "none")


class _PanPrivate(DividedModel):
    """The sum of a batch between the noise that opens it and the noise that closes it."""

    trust = (
        "the operator while a record passes through memory; afterwards nobody: it protects against one break-in into "
        "the memory of this estimator at any moment, together with everything that was ever saved or served"
    )

    mechanism: str
    _methods = ("newton", "ac-sa")
    _rng: FreshWords | SeededEntropy

    def _set_up(self) -> None:
        check_choice("mechanism", self.mechanism, _MECHANISMS)
        self._noisy = self.mechanism != "none"
        self._rng = FreshWords() if self.seed is None else SeededEntropy(self.seed)
        super()._set_up()
        Gaussian(self._budget)  # a budget that cannot be served is an error now

    def _allocate(self, p: int) -> None:
        from streamdp.optim.curvature_loops import accumulate
        from streamdp.privacy import samplers

        size, bound, sensitivity = self._vectors(p)
        row = Gaussian(self._budget, bound, sensitivity).rows(size)[0]
        self._cells = 1 / row[samplers.GRID]
        self._scale = float(row[samplers.SCALE] * self._cells) if self._noisy else 0.0
        self._total = np.zeros(size, dtype=np.int64)
        self._accumulate: Callable[..., None] = accumulate
        if self._curvature is not None:
            self._accumulate = partial(accumulate, factor=self._curvature.factor)
        super()._allocate(p)

    @property
    def private(self) -> bool:
        """False with a seed or without noise, and after a state was loaded that is not private."""
        return super().private and self._noisy

    def _noise(self, batch: int) -> float:
        variance: float = 2 * len(self._total) * (self._scale / self._cells / batch) ** 2
        return variance

    def _open(self) -> None:
        self._add_noise()

    def _add(self, X: np.ndarray, y: np.ndarray) -> None:
        self._accumulate(self._spec, self._middle, X, y, self._cells, self._total)

    def _record_kernel(self, p: int) -> RecordKernel:
        from streamdp.optim.curvature_loops import VectorTotal

        factor = 0.0 if self._curvature is None else self._curvature.factor
        return VectorTotal(self._spec, self._middle, p, self._cells, self._total, factor)

    def _close(self, records: int) -> np.ndarray:
        self._add_noise()
        total: np.ndarray = self._total / self._cells
        return total

    def _empty(self) -> dict[str, np.ndarray]:
        return {"_total": np.zeros_like(self._total)}

    def _add_noise(self) -> None:
        """Add fresh noise to the sum, then overwrite the noise: if left in freed memory, it could be subtracted."""
        noise = self._noises()
        self._total += noise
        noise[:] = 0

    def _noises(self) -> np.ndarray:
        """N(0, zeta^2 I) in cells of the grid; the random words are overwritten."""
        from streamdp.privacy.samplers import normals

        out = np.zeros(len(self._total), dtype=np.int64)
        size = 2 * len(out) + 64
        while self._scale:
            before = forks()
            words = self._rng.draw(size)
            enough = normals(words, self._scale, out)
            words[:] = 0
            if enough and forks() == before:  # otherwise a parent and its child would have the same noise
                break
            size *= 2
        return out

    def _caveats(self, capped: bool) -> list[str]:
        return ["two break-ins within one batch are not covered", *super()._caveats(capped)]


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
class PanPrivateRegressor(_PanPrivate, LinearRegressor):
    """Regression by pan-private Newton steps or accelerated SGD.

    Examples
    --------
    >>> model = PanPrivateRegressor(features=["a", "b"])
    >>> model.learn_one({"a": 1.0, "b": -1.0}, 0.5)
    >>> model.n_seen, str(model.guarantee), model.at_boundary
    (1, 'eps=1,delta=1e-06', False)
    """

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
class PanPrivateClassifier(_PanPrivate, LinearClassifier):
    """Classification by pan-private Newton steps or accelerated SGD.

    Examples
    --------
    >>> model = PanPrivateClassifier(features=["a", "b"])
    >>> model.learn_one({"a": 1.0, "b": -1.0}, True)
    >>> model.n_seen, str(model.guarantee), model.at_boundary
    (1, 'eps=1,delta=1e-06', False)
    """

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
