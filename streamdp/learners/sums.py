"""Sums of blocks in batches, each with its own noise: what statistics are read from, if a process sees raw records.

A batch's sum has noise from its first record on and gets fresh noise at its end (`Pan`), or is made from the bits of
a shuffler's protocol (`Mixed`), or is exact until its end (`Held`, `HeldPure`): then a batch is a window. `PanPure`
and `HeldPure` have Laplace noise and a pure epsilon, but for texts that nobody declared.
Batches are disjoint, so each record spends its budget once; the noises of all batches add up. Batches grow with the
stream: their number, and with it the variance of all noise, grows as the logarithm of the number of records.

Proof: docs/proofs/statistics.md.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from itertools import zip_longest
from types import MappingProxyType
from typing import Any, ClassVar, Protocol, Self

import numpy as np
import scipy

from streamdp.aggregation.block_loops import BlockSums, MixedRows, RowSums
from streamdp.aggregation.shuffled_sum import Analyzer
from streamdp.aggregation.vector_sum import VectorSum
from streamdp.data.floats import finite_array
from streamdp.data.records import NO_BYTE
from streamdp.errors import BudgetError, ConfigError
from streamdp.learners.cells import Block, Kept, Texts, added, sums_of
from streamdp.learners.learner import ONE_BREAK_IN, WITH_DELTA, Learner
from streamdp.learners.linear_problem import Columns, LinearProblem
from streamdp.optim.record_kernel import RecordKernel
from streamdp.privacy.entropy import AnyRng, FreshRng
from streamdp.privacy.grid_sum import GridSum
from streamdp.privacy.guarantees import ApproxDP, Budget, GaussianDP, PureDP, check_serviceable
from streamdp.privacy.mechanisms.additive import grid_laplace
from streamdp.privacy.mechanisms.base import ARITHMETIC
from streamdp.privacy.release import Release
from streamdp.reading.estimates import KNOWN

FIRST_BATCH = 1000
GROWTH = 4
"""A batch has at least this part of the records before it."""
_MOST_ROWS = 65_536
_CAREFUL = 1 - 1e-12  # more than the error of a sum of shares, and a norm that rounding does not bring above 1

HELD = (
    "the operator, whose process holds a window's exact sums and rounded values in memory until its release, and then "
    "overwrites them; nobody who sees statistics, a checkpoint or a statement"
)
HELD_CAVEATS = ("after a crash the open window is read again; nothing of it has left memory",)
_AGAIN = (
    "after a crash the records of the unfinished batch are learned again: for an observer who saw the state "
    "before the crash and sees the statistics after it, these records spend twice"
)


class BatchSum(Protocol):
    """A sum of the vectors of a batch, with words of the `rng` of the learner.

    Each of the `blocks` comes with its share of the budget that a vector spends; the shares add up to 1.
    """

    trust: str
    caveats: Sequence[str]
    pure: bool = False
    """Whether its noise is that of Laplace."""
    texts: Mapping[Block, Texts] = MappingProxyType({})
    """What the last batch released by texts."""
    kept: Mapping[Block, Kept] = MappingProxyType({})
    """By block, what is kept of rows that add no vector to it. Both are for `held.HeldPure`."""
    parts: Sequence[tuple[Block, float]]
    """The blocks, with the factors of their vectors."""
    variance: float
    """The variance of the noise of one coordinate of a batch's sum."""
    sums: BlockSums | None = None
    """What adds rows to `total`, if nothing else is kept of them."""

    def __init__(self, budget: Budget, blocks: Sequence[tuple[Block, float]]) -> None: ...

    @property
    def total(self) -> np.ndarray:
        """What the open batch adds up to, as whole numbers: an array that changes in place. `Mixed` has one more."""

    def open(self, rng: AnyRng, batch: int) -> None:
        """Begin a batch of so many rows, with words of `rng`."""

    def add(self, X: np.ndarray, rng: AnyRng) -> None:
        """Add rows X (n, p), with words of `rng`."""

    def close(self, rng: AnyRng) -> np.ndarray:
        """The noisy sum of the batch as a new array, with words of `rng`."""

    def wipe(self) -> None:
        """Forget the batch."""

    def kernel(self, p: int) -> RecordKernel | None:
        """What adds one row of p columns to the open batch; None if there is no faster way."""
        return None if self.sums is None else RowSums(self.sums, self.total, p)


def _normed(blocks: Sequence[tuple[Block, float]]) -> tuple[Sequence[tuple[Block, float]], float, int]:
    """The factors of blocks with shares, the largest distance of two vectors, and their length: norms are at most 1."""
    parts = [(block, math.sqrt(share) / block.norm) for block, share in blocks]
    distance = math.sqrt(sum((factor * block.distance) ** 2 for block, factor in parts))
    return parts, min(2.0, distance), sum(block.size for block, _ in blocks)


class Pan(BatchSum):
    """A sum of blocks between the noise that opens it and the noise that closes it: either alone protects a record."""

    sum: GridSum
    sums: BlockSums
    trust = ONE_BREAK_IN
    caveats: Sequence[str] = ("two break-ins within one batch are not covered", _AGAIN)

    def __init__(self, budget: Budget, blocks: Sequence[tuple[Block, float]]) -> None:
        self.parts, distance, size = _normed(blocks)
        self.sum = GridSum(budget, 1.0, distance, size)
        self.variance = 2 * self.sum.variance
        self.sums = sums_of(self.parts, self.sum.cells)

    @property
    def total(self) -> np.ndarray:
        return self.sum.total

    def open(self, rng: Any, batch: int) -> None:
        self.sum.add_noise(rng)

    def add(self, X: np.ndarray, rng: AnyRng) -> None:
        self.sums.add(X, self.sum.total)

    def close(self, rng: Any) -> np.ndarray:
        return self.sum.close(rng)

    def wipe(self) -> None:
        self.sum.total[:] = 0


def divided(
    budget: Budget, blocks: Sequence[tuple[Block, float]]
) -> tuple[Budget, Sequence[tuple[Block, float]], dict[Block, float]]:
    """Return the budget and the shares of sums of blocks, and by block the mu of the choice of its numbers."""
    left = 1 - math.fsum(block.choice * share for block, share in blocks)
    mu = GaussianDP.from_approx(budget).mu if isinstance(budget, ApproxDP) else budget.mu  # type: ignore[union-attr]
    rest = [(block, share * (1 - block.choice) / left) for block, share in blocks]
    choices = {block: mu * math.sqrt(block.choice * share) for block, share in blocks}
    return GaussianDP(mu * math.sqrt(left)), rest, choices


class Held(Pan):
    """The exact sum of blocks in a window, which gets its only noise at the end."""

    trust = HELD
    caveats = HELD_CAVEATS

    def __init__(self, budget: Budget, blocks: Sequence[tuple[Block, float]]) -> None:
        budget, blocks, self._choices = divided(budget, blocks)
        super().__init__(budget, blocks)
        self.variance = self.sum.variance

    def open(self, rng: AnyRng, batch: int) -> None:
        """See `BatchSum.open`."""

    def close(self, rng: Any) -> np.ndarray:
        """See `BatchSum.close`; numbers that are not chosen are 0."""
        shown, at = np.ones(len(self.total)), 0
        for block, factor in self.parts:
            counts = self.total[at : (at := at + block.size)] / np.rint(factor * self.sum.cells)
            shown[at - block.size : at] = block.chosen(counts, self._choices[block], rng)
        return shown * super().close(rng)


class Mixed(BatchSum):
    """See `shuffled_sum`: all parties in one process, which is trusted until the batch ends."""

    trust = (
        "the shuffler, which must mix whole batches and show only that, and enough people who follow the protocol. "
        "Here one process acts as all parties, so that process until a batch ends"
    )

    caveats: Sequence[str] = (_AGAIN,)

    def __init__(self, budget: Budget, blocks: Sequence[tuple[Block, float]]) -> None:
        self.parts, self._sensitivity, self._size = _normed(blocks)
        self._vectors = sums_of(self.parts, _CAREFUL)
        self._budget = budget
        self._begin(FIRST_BATCH)

    def _begin(self, batch: int) -> None:
        self._params = VectorSum.calibrated(self._budget, 1.0, batch, self._size, self._sensitivity)
        self.variance = self._params.variance / self._size
        self.wipe()

    @property
    def total(self) -> np.ndarray:
        return self._ones

    def __getstate__(self) -> dict[str, object]:
        return self.__dict__ | {"_ones": np.zeros_like(self._ones)}

    def open(self, rng: AnyRng, batch: int) -> None:
        self._begin(batch)

    def add(self, X: np.ndarray, rng: Any) -> None:
        rng.serve(self.kernel(X.shape[1]).add, X)

    def kernel(self, p: int) -> MixedRows:
        return MixedRows(self._vectors, self._params.g, self._params.b, self._ones, p)

    def close(self, rng: Any) -> np.ndarray:
        return Analyzer(self._params).closed(self._ones, rng)

    def wipe(self) -> None:
        self._ones = np.zeros(self._size + 1, dtype=np.int64)  # the last is the number of people whose noise is in it


def laplace_deviations(z: float) -> float:
    """How many deviations of a Laplace law are exceeded as often as `z`, above 0, of a normal law."""
    return float(-math.log(2 * scipy.special.ndtr(-z)) / math.sqrt(2))


class Sums(Learner):
    """The sums of several blocks, with words of an `rng`; `batch_size` None: batches grow."""

    private = any_budget = True
    default_budget: ClassVar[Budget] = WITH_DELTA
    open: Release

    def __init__(
        self,
        problem: LinearProblem,
        budget: Budget,
        rng: AnyRng,
        blocks: Sequence[tuple[Block, float]],
        kind: type[BatchSum],
        batch_size: int | None,
    ) -> None:
        super().__init__(problem, budget, rng)
        self._kind, self._batch_size = kind, batch_size
        self._size = sum(block.size for block, _ in blocks)
        self._sum = kind(budget, blocks)
        self.open = Release(budget)
        self._state = np.zeros(self._size + 1)  # the sums, and the variance of a coordinate by noise; one value
        self._no_texts = {block: none for block, _ in blocks if (none := block.no_texts)}
        self.texts: dict[Block, Texts] = self._no_texts
        """What was released by texts."""

    @property
    def trust(self) -> str:  # type: ignore[override]
        """See `Learner.trust`."""
        return self._sum.trust

    def begin(self, columns: Columns) -> None:
        self.columns = columns
        self._state = np.zeros(self._size + 1)
        self.texts = self._no_texts
        self.discard()

    # -- batches -----------------------------------------------------------------------------------------------------

    @property
    def full(self) -> int:
        return self.size_after(int(self.seen[0]) - self.open.taken)

    def size_after(self, records: int) -> int:
        """How many rows the batch after so many `records` has."""
        return self._batch_size or max(FIRST_BATCH, records // GROWTH)

    @property
    def to_boundary(self) -> int:
        return self.left(self.full)

    def boundary_within(self, records: int) -> int:
        before = int(self.seen[0]) - self.open.taken + self.full
        left = self.left(self.full)
        if left > records:
            return records
        while left + (size := self.size_after(before)) <= records:
            left, before = left + size, before + size
        return left

    def learn(self, X: np.ndarray, y: np.ndarray, budget: Budget | None, amounts: np.ndarray | None) -> None:
        left = self.end_full()
        while len(X):
            taken = min(len(X), left)
            self.add(X[:taken], self.full)
            X = X[taken:]
            left = self.end_full()

    def add(self, X: np.ndarray, size: int) -> None:
        """Add rows X (n, p) to the open batch, which has at most `size` of them and does not end here."""
        if self.open.taken == 0:
            self._open(size)
        for at in range(0, len(X), _MOST_ROWS):
            rows = X[at : at + _MOST_ROWS]
            self.seen[0] += len(rows)  # before they are learned: an interruption may lose records, but never a count
            self.open.taken += len(rows)
            self._sum.add(rows, self.rng)

    def record_kernel(self) -> RecordKernel | None:
        return self._sum.kernel(self.p) if self.open.taken else None  # a batch must be opened first

    def _open(self, size: int) -> None:
        self._sum.wipe()  # what an exception left
        self._sum.open(self.rng, size)

    def add_parts(self, parts: Sequence[Sequence[tuple[int, np.ndarray]]]) -> None:
        """Take the next batches, whose records are counted and in several other processes. See `divided.SumsPart`.

        `parts`: of each process the rows and the `BatchSum.total` of each of its batches, which is overwritten. Raises
        `ConfigError` for a batch with more records than planned.
        """
        planned = int(self.seen[0])
        for batch in zip_longest(*parts):
            size = -(-self.size_after(planned) // len(parts)) * len(parts)
            planned += size
            self._open(size)
            for rows, total in filter(None, batch):
                self.seen[0] += rows
                self.open.taken += rows
                self._sum.total[:] += total
                total[:] = 0
            if (records := self.open.taken) > size:
                self.discard()
                raise ConfigError(f"a batch of {size} records cannot have {records}")
            self.close()

    def close(self) -> None:
        if self.open.taken:
            total, variance = self._sum.close(self.rng), self._sum.variance
            self.discard()
            self.texts = {block: added([one, self._sum.texts[block]]) for block, one in self.texts.items()}
            self._state = self._state + np.append(total, variance)

    def discard(self) -> None:
        self.fast = None
        self.open.close()
        self._sum.wipe()

    # -- what was released -------------------------------------------------------------------------------------------

    @property
    def point(self) -> tuple[np.ndarray, bool]:
        return self._state[:-1], False

    def released(self) -> dict[Block, tuple[np.ndarray, float]]:
        """By block, or piece of one, its sums (size,) and the variance of each by noise.

        By texts the sums are those of `texts`, and the noise is that of one window.
        """
        found, at = {}, 0
        for block, factor in self._sum.parts:
            for piece in block.pieces:
                found[piece] = self._state[at : at + piece.size] / factor, float(self._state[-1]) / factor**2
                at += piece.size
        return found | {block: (sums, self._sum.kept[block].variance) for block, (_, sums) in self.texts.items()}

    @property
    def known(self) -> float:
        """How many deviations of noise above 0 a group is known from; of Laplace noise as surely as of normal noise."""
        return laplace_deviations(KNOWN) if self._sum.pure else KNOWN

    def reach(self, z: float) -> float:
        """How many deviations of the noise alone cover as often as z do of a normal law."""
        return z

    def caveats(self, spent: Sequence[Budget], capped: bool, answers: bool) -> list[str]:
        return [*self._sum.caveats]

    # -- state -------------------------------------------------------------------------------------------------------

    def model(self) -> dict[str, object]:
        return {"batches": repr((self._kind.__name__, self._batch_size))}

    def learned(self) -> dict[str, object]:
        state: dict[str, object] = {"sums": self._state.copy()}
        for i, (texts, sums) in enumerate(self.texts.values()):
            state |= {f"texts {i}": texts.astype(np.int64), f"of texts {i}": sums.copy()}
        return state

    def read(self, state: Mapping[str, Any]) -> None:
        sums = finite_array(state, "sums", (self._size + 1,))
        if sums[-1] < 0:
            raise ConfigError("state: expected a variance of at least 0")
        texts = {}
        for i, (block, (keys, of_texts)) in enumerate(self._no_texts.items()):
            keys = finite_array(state, f"texts {i}", (len(state[f"texts {i}"]), keys.shape[1]))
            of_texts = finite_array(state, f"of texts {i}", (len(keys), of_texts.shape[1]))
            if np.any((keys < 0) | (keys > NO_BYTE)) or np.any(of_texts[:, -1] < 1):
                raise ConfigError("state: expected bytes of texts, and the number of windows that released each")
            texts[block] = added([(keys.astype(np.uint8), of_texts)])
        self._state, self.texts = sums, texts

    def merge(self, parts: Sequence[Self], average: Callable[[Sequence[np.ndarray]], np.ndarray]) -> None:
        self._state = np.sum([part._state for part in parts], axis=0)  # noqa: SLF001 - the same class
        self.texts = {block: added([part.texts[block] for part in parts]) for block in self.texts}


WHOLE = 2**20
"""A window has this many records, if nothing ends it before."""


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

    def close(self, rng: Any) -> np.ndarray:
        released = {block: one.close(rng) for block, one in self.kept.items()}
        self.texts = {block: texts for block, (_, texts) in released.items() if texts is not None}
        total, found = super().close(rng), []
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
    """The epsilon of the noise for a budget. Raises `BudgetError` for another kind than `PureDP`, and out of range."""
    if not isinstance(budget, PureDP):
        raise BudgetError(f"sums with Laplace noise: expected PureDP, got {budget}")
    check_serviceable(budget)
    return budget.epsilon * _CAREFUL


class HeldSums(Sums):
    """Sums of blocks in windows, with a pure epsilon by default."""

    default_budget: ClassVar[Budget] = PureDP(1.0)

    def reach(self, z: float) -> float:
        """See `Sums.reach`: for one window by the Laplace law; the sum of several is taken as normal."""
        one = self._sum.pure and self._state[-1] < 1.5 * self._sum.variance
        return laplace_deviations(z) if one and z else z
