"""Sums with Laplace noise, and quantiles of a window: pure epsilon, but for texts that nobody declared.

Proof: docs/proofs/statistics.md.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np

from streamdp.errors import BudgetError
from streamdp.learners.cells import Block, sums_of
from streamdp.learners.keyed import Keyed, KeyedSum
from streamdp.learners.learner import WITH_DELTA
from streamdp.learners.linear_problem import LinearProblem
from streamdp.learners.ranks import Ranks
from streamdp.learners.sums import HELD, HELD_CAVEATS, BatchSum, Held, Pan, Sums, laplace_deviations
from streamdp.privacy.entropy import AnyRng, FreshRng
from streamdp.privacy.grid_sum import GridSum
from streamdp.privacy.guarantees import ApproxDP, Budget, PureDP
from streamdp.privacy.mechanisms.additive import grid_laplace
from streamdp.privacy.mechanisms.base import ARITHMETIC

WHOLE = 2**20
"""A window has this many records, if nothing ends it before."""
_CAREFUL = 1 - 1e-12  # more than the error of a sum of shares


class HeldPure(BatchSum):
    """A window's exact sums of blocks, and the bins of its numbers for quantiles, with a pure epsilon."""

    pure = True
    trust = HELD
    caveats: Sequence[str] = HELD_CAVEATS
    _sum: np.ndarray
    _places: np.ndarray
    """The bins of the rows, for each of `_ranks`, in an array that is longer than there are rows."""
    _rows: int

    def __init__(self, budget: Budget, blocks: Sequence[tuple[Block | Ranks | Keyed, float]]) -> None:
        keyed = {block: share for block, share in blocks if isinstance(block, Keyed)}
        if keyed and not isinstance(budget, ApproxDP):
            raise BudgetError(f"texts that nobody declared need a delta, such as eps=1,delta=1e-6, got {budget}")
        delta = budget.delta / sum(keyed.values()) if isinstance(budget, ApproxDP) and keyed else 0.0
        epsilon = _epsilon_of(PureDP(budget.epsilon) if isinstance(budget, ApproxDP) and keyed else budget)
        self.parts: Any = [
            (block, 1.0 if isinstance(block, Ranks | Keyed) else share / block.distance_l1) for block, share in blocks
        ]
        self._epsilons = {block: epsilon * share for block, share in blocks}
        self.keyed = {block: KeyedSum(block, epsilon * share, delta * share) for block, share in keyed.items()}
        """The sums by texts. They alone spend delta."""
        summed = [pair for pair in blocks if not isinstance(pair[0], Ranks | Keyed)]
        self._cells, self._scale = _laplace(epsilon, summed)
        self.variance = 2 * (self._scale / self._cells) ** 2
        self._ranks = [block for block, _ in blocks if isinstance(block, Ranks)]
        self._summed = sums_of([pair for pair in self.parts if not isinstance(pair[0], Ranks | Keyed)], self._cells)
        self.sums = None if keyed or self._ranks else self._summed
        vars(self).update(self._nothing())

    def __getstate__(self) -> dict[str, object]:
        return self.__dict__ | self._nothing()

    def _nothing(self) -> dict[str, object]:
        places = np.zeros((len(self._ranks), 0), dtype=np.int64)
        return {"_sum": np.zeros(self._summed.size, dtype=np.int64), "_places": places, "_rows": 0}

    @property
    def total(self) -> np.ndarray:
        return self._sum

    def open(self, rng: AnyRng, batch: int) -> None:
        """See `BatchSum.open`."""

    def add(self, X: np.ndarray, rng: AnyRng) -> None:
        rows = self._rows + len(X)
        if rows > self._places.shape[1]:
            longer = np.zeros((len(self._ranks), 2 * rows), dtype=np.int64)
            longer[:, : self._rows] = self._places[:, : self._rows]
            shorter, self._places = self._places, longer
            shorter[:] = 0
        for block, _ in self.parts:
            if isinstance(block, Keyed):
                self.keyed[block].add(X)
            elif isinstance(block, Ranks):
                bins = block.of(X)
                self._places[self._ranks.index(block), self._rows : rows] = bins
                bins[:] = 0
        self._summed.add(X, self._sum)
        self._rows = rows

    def close(self, rng: Any, rows: int) -> np.ndarray:
        found, at = [np.zeros(0)], 0
        self.texts = {block: one.close(rng) for block, one in self.keyed.items()}
        for block, _ in self.parts:
            if isinstance(block, Keyed):
                continue
            if isinstance(block, Ranks):
                places = self._places[self._ranks.index(block), : self._rows]
                found.append(block.released(places, self._epsilons[block], rng))
            else:
                noise = grid_laplace(rng, self._scale, block.size)
                found.append((self._sum[at : at + block.size] + noise) / self._cells)
                noise[:], at = 0, at + block.size
        return np.concatenate(found)

    def wipe(self) -> None:
        for array in (self._sum, self._places):
            array[:] = 0
        for one in self.keyed.values():
            one.wipe()
        self._rows = 0


class LaplaceSum(GridSum):
    """As `GridSum`, of `blocks` with their shares, with Laplace noise of this `scale` and a pure `epsilon`."""

    def __init__(self, epsilon: float, blocks: Sequence[tuple[Block, float]]) -> None:
        self.cells, self.scale = _laplace(epsilon, blocks)
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


def _epsilon_of(budget: Budget) -> float:
    """The epsilon of the noise for a budget. Raises `BudgetError` for another kind than `PureDP`."""
    if not isinstance(budget, PureDP):
        raise BudgetError(f"sums with Laplace noise: expected PureDP, got {budget}")
    return budget.epsilon * _CAREFUL


def _laplace(epsilon: float, blocks: Sequence[tuple[Any, float]]) -> tuple[float, float]:
    """How many cells of the grid are 1, and the scale in cells of the noise of all blocks with their shares."""
    moved = sum(min(block.size, 6) for block, _ in blocks)  # by rounding: a cell for each coordinate of two rows
    cells = 2.0 ** (20 + math.ceil(math.log2(epsilon)))
    share = sum(share for _, share in blocks) or 1.0
    return cells, (cells * ARITHMETIC + moved / share) / epsilon


class HeldSums(Sums):
    """Sums of blocks in windows, by words of an `rng`, with a pure epsilon by default; `size`: their records."""

    default_budget: ClassVar[Budget] = PureDP(1.0)

    def __init__(
        self, problem: LinearProblem, budget: Budget, rng: AnyRng, blocks: Sequence[tuple[Any, float]], size: int | None
    ) -> None:
        pure = isinstance(budget, PureDP) or any(isinstance(block, Keyed) for block, _ in blocks)
        kind: Any = HeldPure if pure else Held
        super().__init__(problem, budget, rng, blocks, kind, size or WHOLE)

    def reach(self, z: float) -> float:
        """See `Sums.reach`: for one window by the Laplace law; the sum of several is taken as normal."""
        one = isinstance(self._sum, HeldPure) and self._state[-1] < 1.5 * self._sum.variance
        return laplace_deviations(z) if one and z else z


class HeldWithDelta(HeldSums):
    """As `HeldSums`, with texts that nobody declared or tables that are chosen, which need a delta."""

    default_budget: ClassVar[Budget] = WITH_DELTA
