"""Batches whose records are in several processes: each adds up its own, and one process adds the sums and steps.

The learners in batches release nothing of a batch but one noisy sum of whole numbers over its records. Such a sum does
not depend on how the records are divided or on the order of additions, so the records of a batch may be anywhere:

    GatheredPart   a process takes its part of the records of each batch, and admits them; nothing is learned
    records        it returns the raw records, batch by batch
    Batches.part   a process that holds records of the next batch returns their sum
    learn_parts    one process adds these sums, adds what protects the total, and makes the step

Statistics need no query point, so a process adds up all its batches at once:

    SumsPart        a process takes its part of the records of each batch, admits them and adds them up, without noise
    Sums.add_parts  one process adds these sums, and what protects the totals

Batches have sizes that are known before (`BatchSteps.planned`). Of `of` processes, number i gets the places i, i + of,
i + 2 of, ... of the sequence. So each knows its share of each batch, and refuses a subject's second record within one.
That needs all records of a subject in one process. A batch of statistics has up to `of` more records, so that shares
are equal.

Neighbours and claim: those of the learner. Only the process that adds parts may read one. Proof:
docs/proofs/shuffled_sum.md.
"""

import copy
from collections.abc import Callable, Iterable, Sequence
from typing import NoReturn

import numpy as np

from streamdp.errors import ConfigError
from streamdp.learners.batches import Batches
from streamdp.learners.learner import Learner
from streamdp.learners.sums import Sums
from streamdp.privacy.guarantees import Budget
from streamdp.privacy.release import Release


class GatheredPart(Learner):
    """Part `number`, from 0, `of` several in each batch of a learner. It takes the learner's place until `records`.

    A copy or pickle is that of the learner: the records are not in it.
    """

    def __init__(self, batches: Batches, number: int, of: int) -> None:
        super().__init__(batches.problem, batches.budget, batches.rng)
        batches.need_boundary()
        self.trust, self.neighbours, self.unit = batches.trust, batches.neighbours, batches.unit  # type: ignore[misc]
        self.columns, self.seen, self.counts = batches.columns, batches.seen.copy(), batches.counts
        self.open: Release = copy.deepcopy(batches.open)
        self._inner, self._number, self._of = batches, number, of
        self._before = self._held = 0  # records of the batches before, in all processes; records here
        self._batches: list[list[tuple[np.ndarray, np.ndarray]]] = [[]]

    def __reduce__(self) -> tuple[object, ...]:
        return _same, (self._inner,)

    @property
    def private(self) -> bool:
        return self._inner.private

    @property
    def full(self) -> int:
        steps = self._inner.batch_steps
        with steps.planned():
            end = self._before + steps.batch
        return (self._number - self._before) // self._of - (self._number - end) // self._of

    def end_full(self) -> int:
        """See `Learner.end_full`; a batch of which this part has no records ends, too."""
        steps = self._inner.batch_steps
        while not (left := self.left(self.full)):
            with steps.planned():
                self._before += steps.batch
                steps.skip()
            self._batches.append([])
            self.open.close()
        return left

    def learn(self, X: np.ndarray, y: np.ndarray, budget: Budget | None, amounts: np.ndarray | None) -> None:
        """As `Learner.learn`: takes a copy of rows."""
        while len(X):
            taken = min(len(X), self.end_full())
            self.seen[0] += taken
            self.open.taken += taken
            self._batches[-1].append((X[:taken].copy(), y[:taken].copy()))
            self._held += taken
            X, y = X[taken:], y[taken:]

    @property
    def pending(self) -> int:
        return self._held

    def discard(self) -> None:
        self.open.close()
        self._batches, self._held = [[] for _ in self._batches], 0

    def records(self) -> tuple[Batches, list[tuple[np.ndarray, np.ndarray]]]:
        """The learner, and the raw records of each batch: see the estimators' `take_records`."""
        self.end_full()
        nothing = np.empty((0, self.p)), np.empty(0)
        found = [
            (np.concatenate(X), np.concatenate(y))
            for X, y in (zip(nothing, *batch, strict=True) for batch in self._batches)
        ]
        self._batches, self._held = [[]], 0
        self._inner.seen[:] = self.seen
        self._inner.begin_planned()
        return self._inner, found

    def _none(self, *args: object, **kwargs: object) -> NoReturn:
        raise NotImplementedError("a learner that gathers learns nothing")

    begin = read = merge = _none

    @property
    def point(self) -> tuple[np.ndarray, bool]:
        return self._inner.point

    def learned(self) -> dict[str, object]:
        return self._inner.learned()


def _same(batches: Batches) -> Batches:
    return batches


def learn_parts(
    learner: Batches, sizes: Sequence[int], ask: Callable[[int], Iterable[np.ndarray]], count: Callable[[], None]
) -> None:
    """See the estimators' `learn_parts`, for `sizes` and `ask`; `count` counts the spend of a batch before it."""
    learner.need_boundary()
    with (steps := learner.batch_steps).planned():  # `GatheredPart` counts batches as full
        for number, records in enumerate(np.trim_zeros(sizes, "b")):  # an empty batch is skipped if another one follows
            size = learner.begin_planned()
            if records > size:
                raise ConfigError(f"a batch of {size} records cannot have {records}")
            if records:
                parts = ask(number)
                count()
                learner.step(records, parts)
            else:
                steps.missing += size
                steps.skip()
    learner.begin_planned()


class SumsPart(Sums):
    """One `of` several parts of each batch of statistics: sums without noise. A copy or pickle has none of them."""

    def __init__(self, whole: Sums, of: int) -> None:
        self.__setstate__(vars(whole))
        self._of, self._planned = of, int(whole.seen[0])
        self.sums: list[tuple[int, np.ndarray]] = []
        """The rows and the `BatchSum.total` of each batch."""

    def __getstate__(self) -> dict[str, object]:
        return super().__getstate__() | {"sums": []}

    def forget(self) -> None:
        self.sums.clear()

    @property
    def full(self) -> int:
        return -(-self.size_after(self._planned) // self._of)

    def _open(self, size: int) -> None:
        super()._open(size * self._of)
        self._sum.total[:] = 0  # the process that adds the sums adds the noise

    def close(self) -> None:
        """See `Learner.close`: the next batch has the size that it has after full ones, as in all processes."""
        if rows := self.open.taken:
            self.sums.append((rows, self._sum.total.copy()))
            self._planned += self.full * self._of
            self.discard()
