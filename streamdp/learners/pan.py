"""Pan-private batches: noise opens their sum, and noise closes it. Proof: docs/proofs/pan_private.md."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np

from streamdp.errors import check_choice
from streamdp.learners.batches import Batches, BatchPlan, Vectors
from streamdp.learners.linear_problem import LinearProblem
from streamdp.optim.record_kernel import RecordKernel
from streamdp.privacy.entropy import FreshWords, SeededEntropy
from streamdp.privacy.guarantees import Budget
from streamdp.privacy.mechanisms import Gaussian
from streamdp.privacy.mechanisms.additive import grid_noise

_MECHANISMS = ("auto", "gaussian", "none")


class PanBatches(Batches):
    """The sum of a batch between the noise that opens it and the noise that closes it.

    `problem`, `budget`, `rng`, `plan`, `given_domain`: as for `Batches`. `mechanism`: "auto" or "gaussian", or "none"
    for comparisons.
    """

    trust = (
        "the operator while a record passes through memory; afterwards nobody: it protects against one break-in into "
        "the memory of this estimator at any moment, together with everything that was ever saved or served"
    )
    methods = ("newton", "ac-sa")
    noisy_from_first = True
    rng: FreshWords | SeededEntropy

    def __init__(
        self,
        problem: LinearProblem,
        budget: Budget,
        rng: FreshWords | SeededEntropy,
        plan: BatchPlan,
        *,
        given_domain: bool,
        mechanism: str,
    ) -> None:
        check_choice("mechanism", mechanism, _MECHANISMS)
        super().__init__(problem, budget, rng, plan, given_domain=given_domain)
        self.noisy = mechanism != "none"
        Gaussian(budget)  # a budget that cannot be served is an error now

    def _sums(self, vectors: Vectors) -> None:
        from streamdp.optim.curvature_loops import accumulate
        from streamdp.privacy import samplers

        row = Gaussian(self.budget, vectors.bound, vectors.sensitivity).rows(vectors.size)[0]
        self.cells = 1 / row[samplers.GRID]
        """Cells of the grid of the sum in 1."""
        self.scale = float(row[samplers.SCALE] * self.cells) if self.noisy else 0.0
        """The deviation of either noise, in cells."""
        self._total = np.zeros(vectors.size, dtype=np.int64)
        self._accumulate: Callable[..., None] = accumulate
        if self.curvature is not None:
            self._accumulate = partial(accumulate, factor=self.curvature.factor)

    @property
    def total(self) -> np.ndarray:
        """See `Batches.total`: in cells."""
        return self._total

    @property
    def private(self) -> bool:
        """False without noise."""
        return self.noisy

    def _noise(self, batch: int) -> float:
        variance: float = 2 * len(self._total) * (self.scale / self.cells / batch) ** 2
        return variance

    def _open(self) -> None:
        self._add_noise()

    def _add(self, X: np.ndarray, y: np.ndarray) -> None:
        self._accumulate(self.spec, self.middle, X, y, self.cells, self._total)

    def record_kernel(self) -> RecordKernel | None:
        """See `Learner.record_kernel`."""
        from streamdp.optim.curvature_loops import VectorTotal

        if not self.open.taken:  # a batch must be opened first
            return None
        factor = 0.0 if self.curvature is None else self.curvature.factor
        return VectorTotal(self.spec, self.middle, self.p, self.cells, self._total, factor)

    def _close(self, records: int) -> np.ndarray:
        self._add_noise()
        total: np.ndarray = self._total / self.cells
        return total

    def _add_noise(self) -> None:
        """Add fresh noise to the sum, then overwrite the noise: if left in freed memory, it could be subtracted."""
        noise = self.noises()
        self._total += noise
        noise[:] = 0

    def noises(self) -> np.ndarray:
        """N(0, zeta^2 I) in cells of the grid."""
        return grid_noise(self.rng, self.scale, len(self._total))

    def caveats(self, spent: Sequence[Budget], capped: bool, answers: bool) -> list[str]:
        """See `Learner.caveats`."""
        return ["two break-ins within one batch are not covered", *super().caveats(spent, capped, answers)]

    def __getstate__(self) -> dict[str, Any]:
        """A copy holds the state of the last boundary."""
        state = super().__getstate__()
        return state if self.columns is None else state | {"_total": np.zeros_like(self._total)}
