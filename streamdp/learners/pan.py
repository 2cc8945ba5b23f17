"""Pan-private batches: noise opens their sum, and noise closes it. Proof: docs/proofs/pan_private.md."""

import math
from collections.abc import Callable, Sequence
from functools import partial

import numpy as np

from streamdp.errors import check_choice
from streamdp.learners.batches import Batches, BatchPlan, Vectors
from streamdp.learners.learner import ONE_BREAK_IN
from streamdp.learners.linear_problem import LinearProblem
from streamdp.optim.batch_steps import Probes
from streamdp.optim.record_kernel import RecordKernel
from streamdp.privacy.entropy import FreshRng
from streamdp.privacy.grid_sum import GridSum
from streamdp.privacy.guarantees import Budget
from streamdp.privacy.mechanisms import Gaussian
from streamdp.privacy.mechanisms.additive import grid_noise

_MECHANISMS = ("auto", "gaussian", "none")


class PanBatches(Batches):
    """The sum of a batch between the noise that opens it and the noise that closes it, unless `mechanism` is "none"."""

    trust = ONE_BREAK_IN
    methods = ("newton", "ac-sa")
    noisy_from_first = True
    rng: FreshRng

    def __init__(
        self, problem: LinearProblem, budget: Budget, rng: FreshRng, plan: BatchPlan, *, mechanism: str
    ) -> None:
        check_choice("mechanism", mechanism, _MECHANISMS)
        super().__init__(problem, budget, rng, plan)
        self.noisy = mechanism != "none"
        Gaussian(budget)  # a budget that cannot be served is an error now

    def _sums(self, vectors: Vectors) -> None:
        from streamdp.optim.curvature_loops import accumulate

        self.sum = GridSum(self.budget, vectors.bound, vectors.sensitivity, vectors.size, self.noisy)
        self.accumulate: Callable[..., None] = partial(accumulate, factor=self.factor)

    @property
    def total(self) -> np.ndarray:
        """See `Batches.total`: in cells."""
        return self.sum.total

    @property
    def private(self) -> bool:
        return self.noisy

    def _noise(self, batch: int) -> float:
        return 2 * len(self.total) * self.sum.variance / batch**2

    def _open(self) -> None:
        each, share = self.batch_steps.probing
        if each and self.curvature is not None:
            d = self.curvature.parameters
            scale = self.sum.scale_of_first(d, self.curvature.gradient_sensitivity, share)
            self.probes = Probes(self.middle[:d], each, 1 / math.sqrt(1 - share), scale, self.sum.cells)
        self.sum.louder = 1.0 if self.probes is None else self.probes.louder
        self.sum.add_noise(self.rng)
        if self.probes is not None:
            self._next_probe(self.probes)

    def _next_probe(self, probes: Probes) -> np.ndarray:
        """End the open probe and begin the next one; return the noisy sum of the gradients of its rows."""
        d = len(probes.open)
        probes.end = 0  # if an exception interrupts this, nothing more of the batch is released
        noise = grid_noise(self.rng, probes.scale, 2 * d)
        total: np.ndarray = (probes.open + self.total[:d] + noise[:d]) / self.sum.cells
        probes.open[:] = noise[d:] - self.total[:d]
        noise[:] = 0
        self.fast, probes.end = None, self.open.taken + probes.each
        return total

    def end_full(self) -> int:
        """See `Learner.end_full`; here a probe that has its records ends first."""
        taken = self.open.records
        while (probes := self.probes) is not None and taken[0] < self.full:
            if not probes.end:  # an exception interrupted its end
                self.discard()
            elif taken[0] < probes.end:
                break
            elif self.batch_steps.looks(probes, self._next_probe(probes)):
                self.close()
        left = super().end_full()
        if not taken[0]:
            return self.batch_steps.probing[0] or left
        return left if self.probes is None else min(left, max(0, self.probes.end - int(taken[0])))

    def _add(self, X: np.ndarray, y: np.ndarray) -> None:
        self.accumulate(self.spec, self.middle, X, y, self.sum.cells, self.sum.total)

    def record_kernel(self) -> RecordKernel | None:
        from streamdp.optim.curvature_loops import VectorTotal

        if not self.open.taken:  # a batch must be opened first
            return None
        return VectorTotal(self.spec, self.middle, self.p, self.sum.cells, self.total, self.factor)

    def _close(self, records: int) -> np.ndarray:
        return self.sum.close(self.rng)

    def caveats(self, spent: Sequence[Budget], capped: bool, answers: bool) -> list[str]:
        return ["two break-ins within one batch are not covered", *super().caveats(spent, capped, answers)]
