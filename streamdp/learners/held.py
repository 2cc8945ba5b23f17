"""Sums with Laplace noise, and quantiles of a window: pure epsilon, but for texts that nobody declared.

Proof: docs/proofs/statistics.md.
"""

import math
from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np

from streamdp.errors import BudgetError
from streamdp.learners.cells import Block, Kept, sums_of
from streamdp.learners.sums import HELD, HELD_CAVEATS, Pan, Sums, laplace_deviations
from streamdp.optim.record_kernel import RecordKernel
from streamdp.privacy.entropy import AnyRng, FreshRng
from streamdp.privacy.grid_sum import GridSum
from streamdp.privacy.guarantees import ApproxDP, Budget, PureDP
from streamdp.privacy.mechanisms.additive import grid_laplace
from streamdp.privacy.mechanisms.base import ARITHMETIC

WHOLE = 2**20
"""A window has this many records, if nothing ends it before."""
_CAREFUL = 1 - 1e-12  # more than the error of a sum of shares


class LaplaceSum(GridSum):
    """As `GridSum`, of `blocks` with their shares, with Laplace noise of this `scale` and a pure `epsilon`."""

    def __init__(self, epsilon: float, blocks: Sequence[tuple[Block, float]]) -> None:
        self.cells = 2.0 ** (20 + math.ceil(math.log2(epsilon)))
        moved = sum(min(block.size, 6) for block, _ in blocks)  # by rounding: a cell for each coordinate of two rows
        share = sum(share for _, share in blocks) or 1.0
        self.scale = (self.cells * ARITHMETIC + moved / share) / epsilon
        self.total = np.zeros(sum(block.size for block, _ in blocks), dtype=np.int64)

    @property
    def variance(self) -> float:
        return 2 * super().variance

    def noise(self, rng: FreshRng) -> np.ndarray:
        return grid_laplace(rng, self.scale, len(self.total))


class PanPure(Pan):
    """As `Pan`, with Laplace noise and a pure epsilon: no ordered cells."""

    pure = True

    def __init__(self, budget: Budget, blocks: Sequence[tuple[Block, float]]) -> None:
        self.parts = [(block, share / block.distance_l1) for block, share in blocks]
        self.sum = LaplaceSum(_epsilon_of(budget), blocks)
        self.variance = 2 * self.sum.variance
        self.sums = sums_of(self.parts, self.sum.cells)


class HeldPure(PanPure):
    """The exact sum of blocks in a window, which gets its only noise at the end, and what is kept of rows until it."""

    trust = HELD
    caveats = HELD_CAVEATS

    def __init__(self, budget: Budget, blocks: Sequence[tuple[Block, float]]) -> None:
        delta = 0.0
        if of_texts := sum(share for block, share in blocks if block.no_texts):  # they alone spend delta
            if not isinstance(budget, ApproxDP):
                raise BudgetError(f"texts that nobody declared need a delta, such as eps=1,delta=1e-6, got {budget}")
            delta, budget = budget.delta / of_texts, PureDP(budget.epsilon)
        epsilon, rows = _epsilon_of(budget), [pair for pair in blocks if pair[0].row is not None]
        self.kept = {block: Kept(block, epsilon * share, delta * share) for block, share in rows}
        super().__init__(budget, [pair for pair in blocks if pair not in rows])
        factors = dict(self.parts)
        self.parts = [(block, factors.get(block, 1.0)) for block, _ in blocks]
        self.variance = self.sum.variance

    def open(self, rng: AnyRng, batch: int) -> None:
        """See `BatchSum.open`."""

    def add(self, X: np.ndarray, rng: AnyRng) -> None:
        for one in self.kept.values():
            one.add(X)
        super().add(X, rng)

    def kernel(self, p: int) -> RecordKernel | None:
        return None if self.kept else super().kernel(p)

    def close(self, rng: Any, rows: int) -> np.ndarray:
        released = {block: one.close(rng) for block, one in self.kept.items()}
        self.texts = {block: texts for block, (_, texts) in released.items() if texts is not None}
        total, found = super().close(rng, rows), []
        for block, _ in self.parts:
            if block in released:
                found.append(released[block][0])
            else:
                numbers, total = np.split(total, [block.size])
                found.append(numbers)
        return np.concatenate(found)

    def wipe(self) -> None:
        super().wipe()
        for one in self.kept.values():
            one.wipe()


def _epsilon_of(budget: Budget) -> float:
    """The epsilon of the noise for a budget. Raises `BudgetError` for another kind than `PureDP`."""
    if not isinstance(budget, PureDP):
        raise BudgetError(f"sums with Laplace noise: expected PureDP, got {budget}")
    return budget.epsilon * _CAREFUL


class HeldSums(Sums):
    """Sums of blocks in windows, with a pure epsilon by default."""

    default_budget: ClassVar[Budget] = PureDP(1.0)

    def reach(self, z: float) -> float:
        """See `Sums.reach`: for one window by the Laplace law; the sum of several is taken as normal."""
        one = self._sum.pure and self._state[-1] < 1.5 * self._sum.variance
        return laplace_deviations(z) if one and z else z
