"""Validation by sums: one noisy sum of what people's records say about the model, for each block.

A block is a batch or a window. A quarter of those who answer, chosen by number, is counted to find the constant, and
the records of the others say how wrong the model of the block is. Both sums are released once. The model of a batch is
the one before it, so all its people answer, and are learned afterwards: both share their budget. The model of a window
is the one that it released, so a share of its people is held out, and is not learned.

A record's values, two numbers u in [-1, 1], enter as (u, u^2) with a weight, and its cell as 1/2 in one place.

Neighbours: all records of one person in one block. Trust: that of the learner; with `first`, noise is in a sum from its
beginning on, as in pan-private learning. Claim: a person spends the budget of these sums, in one of them.
Proof: docs/proofs/validation.md.
"""

import copy
import math
from collections.abc import Sequence

import numpy as np

from streamdp.privacy.entropy import FreshRng, FreshWords
from streamdp.privacy.grid_sum import GridSum
from streamdp.privacy.guarantees import Budget
from streamdp.validation import sums
from streamdp.validation.answers import Adding
from streamdp.validation.plan import CONSTANT, NOTHING, Plan, questions
from streamdp.validation.tasks import Classes, Task
from streamdp.validation.validator import END, MET, REACH, Validator

_CELL = 0.5
_AHEAD = 512  # what so many records are asked is found at once
_LOUDEST = 8.0  # people are held out of a window if they are expected to be so many deviations of the noise of a sum


class NoisySum:
    """The sum of vectors (size,), any two of which differ by at most `sensitivity`, with Gaussian noise.

    With `first`, it has noise from its first vector on, and again at its end. A copy or pickle of it is empty.
    """

    def __init__(self, budget: Budget, sensitivity: float, size: int, first: bool, rng: FreshRng) -> None:
        self.rng, self._first = rng, first
        self.sum = GridSum(budget, sensitivity, sensitivity, size)
        self.variance = (1 + first) * self.sum.variance  # of a coordinate, by noise
        self.vectors = 0

    def add(self, vectors: np.ndarray) -> None:
        """Add vectors (n, size), which are overwritten."""
        if not self.vectors:
            self.discard()
            if self._first:
                self.sum.add_noise(self.rng)
        self.vectors += len(vectors)
        vectors *= self.sum.cells
        np.rint(vectors, out=vectors)
        self.sum.total += vectors.sum(axis=0).astype(np.int64)
        vectors[:] = 0

    def close(self) -> tuple[int, np.ndarray]:
        """End the sum; return how many vectors it has, and the noisy sum (size,)."""
        found = self.vectors, self.sum.close(self.rng)
        self.discard()
        return found

    def discard(self) -> None:
        """Discard the open sum."""
        self.sum.total[:] = 0
        self.vectors = 0

    def __getstate__(self) -> dict[str, object]:
        return self.__dict__ | {"sum": copy.deepcopy(self.sum), "vectors": 0}


class HeldOut(Validator):
    """The noisy sums of one model's held-out people; `budget` is what each spends, `first` is as for `NoisySum`.

    The `size` is as for `Validator`.
    """

    summed = True

    def __init__(self, plan: Plan, task: Task, size: int, rng: FreshRng, budget: Budget, first: bool) -> None:
        super().__init__(plan, task, size, rng)
        squares = 4 * sum(weight**2 for weight in task.weights) + 2 * _CELL**2 * bool(task.cells)
        self.begun, self.alone = False, True
        """Whether a block is open, and whether its records are asked about the constant alone."""
        self._counts = NoisySum(budget, math.sqrt(2), task.groups, first, rng)
        self.scores = NoisySum(budget, math.sqrt(squares), 2 * len(task.weights) + task.cells, first, rng)
        self.asking: Adding = Adding()

    def enough(self, people: float) -> bool:
        """Whether so many held-out people are enough for a sum: otherwise noise would hide what they say."""
        return people > _LOUDEST * math.sqrt(self.scores.variance)

    @property
    def least(self) -> float:
        """See `Validator.least`: a quarter of them, in groups of equal size, determine the constant."""
        task, n = self.task, 1.0
        while (
            task.lacks(task.counted(self.known, np.full(task.groups, n / task.groups), n, self._counts.variance)) >= 1
        ):
            n += 1 + n // 8
        return max(_LOUDEST * math.sqrt(self.scores.variance), 4.0 * n)

    def decides(self, gain: float, shares: Sequence[float] = ()) -> float:
        """About how many held-out people decide, if the model's error is by this `gain`, a share, below the constant's.

        They are at least as many as give a first interval. The classes have these `shares`, by default the same. The
        error of a number that counts is at most 2.5 times the spread of the target, of which that of the constant is
        taken for .6: it is .8 for normal targets.
        """
        task = self.task
        if isinstance(task, Classes):
            p = np.array(shares or np.full(task.groups, 1 / task.groups))
            known = task.counted(task.start(0.0, 1.0), 1e9 * p, int(1e9), 1.0)
            low, high = task.errors(known, 1.0).range(False)
            entropy = float(-np.sum(p * np.log(np.maximum(p, 1e-12))))
            error = entropy if task.measure == "log loss" else 1 - float(p.max())
            spread, sums_of_noise = ((high - low) / 4) ** 2 * float(1 - p @ p), 1
        else:
            low, high, error = 0.0, task.largest(task.reach), 0.6
            spread, sums_of_noise = 2 * error**2, 2
        noise = sums_of_noise * self.scores.variance * ((high - low) / 2) ** 2
        sure = (gain * error / 1.96) ** 2  # noise / n^2 + spread / n
        answers = float((spread + math.sqrt(spread**2 + 4 * sure * noise)) / (2 * sure)) * 4 / 3
        return max(answers, self.least)

    def begin(self, point: np.ndarray, middle: float, scale: float, most: float) -> None:
        """See `Validator.begin`; an open block is discarded."""
        self.discard()
        super().begin(point, middle, scale, most)
        self.begun, self.alone = True, not self.knows_constant()

    def discard(self) -> None:
        """Forget what the people of the open block have said."""
        self.settle()
        self.begun = False
        self._counts.discard()
        self.scores.discard()

    def take(self, most: int, learns_constant: bool | None = None) -> np.ndarray:
        """See `Validator.take`: here all people are asked, of any number, as soon as the largest distance is known.

        They are asked about the constant alone if this block `learns_constant`; None: unless it is known.
        """
        self.settle()
        if len(self.questions) < most:
            alone = self.alone if learns_constant is None else learns_constant
            found = questions(int(self.progress[MET]), max(most, _AHEAD), None, alone, summed=True)
            self.questions = found if self.progress[REACH] else np.full(len(found), NOTHING)
        asked = super().take(most)
        self.progress[END] = self.progress[MET]
        return asked

    def _ask(self) -> None:
        self.questions = self.questions[:0]

    def settle(self) -> None:
        """See `Validator.settle`."""
        came = self.questions[: int(self._came[0])]
        self._counts.vectors += int(np.count_nonzero(came == CONSTANT))
        self.scores.vectors += int(np.count_nonzero(came > CONSTANT))
        super().settle()
        self.progress[END] = self.progress[MET]

    def _look(self, predictor: object, keep: float) -> None:
        begun = ((one.sum.total, one.sum.cells) if one.vectors else None for one in (self._counts, self.scores))
        came, weights = self._came, self.task.weights
        self.asking.sum(predictor, self.errors, self.questions, came, self.known, weights, _CELL, *begun)

    def add(self, asked: np.ndarray, scores: np.ndarray, y: np.ndarray, sizes: np.ndarray) -> None:
        """Add what people say, who are asked something (n,); `scores` (N, K) are overwritten. Hold the lock.

        Person i has the next sizes[i] of the scores and targets y (N,).
        """
        task, rows = self.task, np.repeat(asked, sizes)
        counted, scored = rows == CONSTANT, rows > CONSTANT
        try:
            if counted.any():
                targets = y[counted]
                words = FreshWords().draw(len(targets) if self.errors.rounds else 0)
                groups = self.errors.groups(targets, self.known, words)
                self._counts.add(_averages(np.eye(task.groups)[groups], sizes[asked == CONSTANT]))
                targets[:], groups[:] = 0, 0
            if scored.any():
                own = scores[scored], y[scored]
                vectors = self.errors.vectors(task.weights, _CELL, *own)
                for raw in own:
                    raw[:] = 0
                self.scores.add(_averages(vectors, sizes[asked > CONSTANT]))
        finally:
            scores[:] = 0

    def close(self) -> None:
        """End the block: release its sums."""
        self.settle()
        task, block = self.task, np.zeros_like(self.open)
        if self._counts.vectors:
            n, counts = self._counts.close()
            self.known = task.counted(self.known, counts, n, self._counts.variance)
            block[sums.ANSWERS] += n
        if self.scores.vectors:
            n, total = self.scores.close()
            for j, first in enumerate((sums.ERRORS, sums.OTHERS)):
                low, high = self.errors.range(bool(j))
                middle, half, weight = (high + low) / 2, (high - low) / 2, task.weights[j]
                u, square = total[2 * j : 2 * j + 2] / weight
                value, excess = n * middle + half * u, max(min(square, n) - u**2 / n, 0.0)  # noise may lead u beyond n
                excess += self.scores.variance / weight**2
                block[first : first + 3] = n, value, value**2 / n + half**2 * excess
                if not j:
                    block[sums.ERROR_RANGE] = half**2 * (n + self.scores.variance / weight**2)
            if task.cells:
                block[sums.CELLS : sums.CELLS + 2] = n, self.scores.variance / _CELL**2
                block[sums.COLUMNS :] = total[4:] / _CELL
            block[sums.ANSWERS] += n
        self.open, self.begun = block, False
        self._end_block()


def _averages(vectors: np.ndarray, sizes: np.ndarray) -> np.ndarray:
    """The averages (n, size) of the vectors (N, size) of people with so many each; the vectors are overwritten."""
    if len(sizes) == len(vectors):
        return vectors
    found: np.ndarray = np.add.reduceat(vectors, np.cumsum(sizes) - sizes, axis=0) / sizes[:, None]
    vectors[:] = 0
    return found
