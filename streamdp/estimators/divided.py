"""Batches whose records are in several processes: each adds up its own, and one process adds the sums and steps.

The estimators here release nothing of a batch but one noisy sum of whole numbers over its records. Such a sum does not
depend on how the records are divided or on the order of additions, so the records of a batch may be anywhere:

    gather_part    a process takes its part of the records of each batch, and admits them; nothing is learned
    surrender      it hands over the raw records, batch by batch
    part           a process that holds records of the next batch returns their sum
    learn_parts    one process adds these sums, adds what protects the total, and makes the step

Which records are in which batch. Batches have the sizes that they have in one process. Of `of` processes, number i gets
the places i, i + of, i + 2 of, ... of the sequence. So each knows its share of each batch without a word from another
one, and admits its records batch by batch, as in one process: with a ledger, a subject's second record within a batch
is refused. That needs all records of a subject in one process. When one process has no more records, the last batches
have fewer records than planned.

Neighbours and claim: those of the estimator.

Proof. Which process holds a record, and which batch it is in, follow from places, subjects and budgets, which are
public. The sum over a batch is that of one process. What is released of it has the noise of one process:
* PanPrivate*: `learn_parts` adds Z_a before the first sum and Z_b after the last one.
* Shuffle*: `part` randomises each record to bits, as its device does, and returns the number of ones of each
  coordinate. Mixed bits tell the number of ones and nothing else (`shuffled_sum`), and the number over all records is
  the sum of the numbers over the parts. So the total is what one shuffler forwards of all people of the batch, with all
  their noise; `learn_parts` adds that of absent people.
What a single part says is not protected, or only by the bits of its own people: only the process that adds parts may
read it. That process has the role of the operator or of the shuffler, who are trusted with more, the records or the
bits of each person. It adds a part when it reads it, and overwrites it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

from streamdp.errors import ConfigError, NotAtBoundaryError
from streamdp.estimators.batched import BatchedModel
from streamdp.estimators.packing import RecordLearner
from streamdp.optim.growing import Growing
from streamdp.optim.newton import Newton


class _Gathered:
    """The part of a process in each batch: how many records, and those that it has."""

    def __init__(self, number: int, of: int) -> None:
        self._number, self._of = number, of
        self._before = 0  # records of the batches before, in all processes
        self.batches: list[list[tuple[np.ndarray, np.ndarray]]] = [[]]
        self.held = 0

    def size(self, batch: int) -> int:
        """How many of the next `batch` places are this process's."""
        first, end = ((self._number - place) // self._of for place in (self._before, self._before + batch))
        return first - end

    def take(self, X: np.ndarray, y: np.ndarray) -> None:
        """Keep a copy of records of the open batch."""
        self.batches[-1].append((X.copy(), y.copy()))
        self.held += len(y)

    def close(self, batch: int) -> None:
        """Go on to the batch after one of so many records."""
        self._before += batch
        self.batches.append([])


class DividedModel(BatchedModel):
    """An estimator whose batch is one sum: see the text of the module."""

    scales_columns = True
    _gathered: _Gathered | None = None

    def _place_of_target(self) -> tuple[float, float, float]:
        """See `ValidatedModel._place_of_target`; Newton's steps learn it."""
        if isinstance(self._walk, Newton) and self._target_bounds() is not None:
            return self._walk.target
        return super()._place_of_target()

    # -- a part of the records ---------------------------------------------------------------------------------------

    def gather_part(self, number: int, of: int) -> None:
        """From now on take one part of the records of each batch, for `surrender`, and learn nothing.

        Parameters
        ----------
        number, of
            Which part, from 0, of how many.

        Raises `NotAtBoundaryError` within a batch.
        """
        self._need_features("gather_part")
        self._need_boundary()
        self._gathered = _Gathered(number, of)
        self._batch = self._next_size

    def surrender(self) -> list[tuple[np.ndarray, np.ndarray]]:
        """Return the raw records (n, p) and (n,) of each batch since `gather_part`, and forget them.

        They are counted in `n_seen`. Of them, only sums (`part`) that the process which calls `learn_parts` alone can
        read may be passed on.
        """
        assert self._gathered is not None, "gather_part was called"
        batches, self._gathered = self._gathered.batches, None
        self._discard()
        self._begin_phase()
        nothing = np.empty((0, len(self._names))), np.empty(0)
        return [
            (np.concatenate(X), np.concatenate(y)) for X, y in (zip(nothing, *batch, strict=True) for batch in batches)
        ]

    @property
    def _pending(self) -> int:
        return super()._pending if self._gathered is None else self._gathered.held

    def __getstate__(self) -> dict[str, Any]:
        """As `BatchedModel.__getstate__`: records that were gathered are not in it."""
        with self._rng.lock:
            return super().__getstate__() | {"_gathered": None}

    @property
    def _next_size(self) -> int:
        batch = super()._next_size
        return batch if self._gathered is None else self._gathered.size(batch)

    def _quickly(self) -> RecordLearner | None:
        return super()._quickly() if self._gathered is None else None

    def _begin(self) -> None:
        if self._gathered is None:
            super()._begin()

    def _include(self, X: np.ndarray, y: np.ndarray) -> None:
        if self._gathered is None:
            super()._include(X, y)
        else:
            self._gathered.take(X, y)

    def _finish(self) -> None:
        if self._gathered is None:
            super()._finish()
        else:
            self._gathered.close(self._walk.batch)
            self._discard()
            self._walk.skip()
            self._batch = self._next_size

    # -- sums --------------------------------------------------------------------------------------------------------

    @property
    def _sum(self) -> np.ndarray:
        """What the open batch adds up to: a view."""
        (name,) = self._empty()
        total: np.ndarray = getattr(self, name)
        return total

    def part(self, X: np.ndarray, y: np.ndarray) -> np.ndarray:
        """Return what records add to the sum of the next batch, as whole numbers. Only `learn_parts` may read it.

        Parameters
        ----------
        X, y
            Records (n, p) and (n,) that were admitted and are counted elsewhere.

        Raises `NotAtBoundaryError` within a batch.
        """
        with self._rng.lock:
            self._need_boundary()
            self._discard()
            try:
                self._add(X, y)
                return self._sum.copy()
            finally:
                self._discard()

    def learn_parts(self, sizes: Sequence[int], ask: Callable[[int, dict[str, Any]], Iterable[np.ndarray]]) -> None:
        """Learn the next batches, whose records are in other processes.

        Parameters
        ----------
        sizes
            How many records each of them has, over all processes of `gather_part`.
        ask
            Called for each batch with records, with its number from 0 and the state in which `part` is to be computed,
            which was released. It returns what `part` returned, over all records of the batch; each array is
            overwritten when it is added.

        Raises `NotAtBoundaryError` within a batch, and `ConfigError` for a batch with more records than planned. After
        an error of it or of `ask`, load a state.
        """
        with self._rng.lock:
            self._need_boundary()
            with self._walk.planned():
                self._learn_planned(sizes, ask)
            self._begin_phase()

    def _learn_planned(self, sizes: Sequence[int], ask: Callable[[int, dict[str, Any]], Iterable[np.ndarray]]) -> None:
        """As `learn_parts`."""
        missing, learned = 0, np.trim_zeros(sizes, "b")  # a batch without records is skipped if another one follows
        for number, records in enumerate(learned):
            self._begin_phase()
            size = self._batch
            if records > size:
                raise ConfigError(f"a batch of {size} records cannot have {records}")
            missing += size - records
            if records:
                self._step(records, size, ask(number, self.state_dict()))
            else:
                self._walk.skip()
        if isinstance(self._walk, Growing):  # `gather_part` counts batches as full
            self._walk.records -= missing

    def _step(self, records: int, planned: int, parts: Iterable[np.ndarray]) -> None:
        """Make a step with a batch of so many records."""
        self._count(self._budget)
        self.n_seen += records  # before they are learned
        self._discard()  # a batch may have been interrupted before
        self._taken = records
        self._open()
        for part in parts:
            self._sum[:] += part
            part[:] = 0
        total = self._close(records)
        self._discard()
        self._move(total, self._walk.closed(records), planned)

    def _need_boundary(self) -> None:
        if not self.at_boundary:
            raise NotAtBoundaryError("a batch is open: call close_batch() first")
