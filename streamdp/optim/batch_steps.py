"""The interface of the steps that batched learners make: the point of the gradients, the size of a batch, the state."""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Self

import numpy as np

from streamdp.data.floats import finite_array
from streamdp.reading import change

Place = tuple[int, int, int]
"""A batch: (epoch, phase, step) of a plan, or (0, 0, records before it) without a plan."""


class Probes:
    """Sums of the gradients of parts of the open batch, which were released within it.

    `point`: where the gradients (d,) are taken. `each`: the records of a probe. `louder`: the factor by which the noise
    of the whole batch is larger for them. `scale`: the deviation of one noise of a probe, in cells of 1 / `cells`.
    """

    def __init__(self, point: np.ndarray, each: int, louder: float, scale: float, cells: float) -> None:
        self.point, self.each, self.louder, self.scale, d = point, each, louder, scale, len(point)
        self.deviation = math.sqrt(2) * scale / cells
        self.open, self.end = np.zeros(d, dtype=np.int64), 0
        """(d,) what the open probe adds to the sum of the batch, to be the noisy sum of its own records, in cells; the
        records of the batch at its end, 0: it is not open."""
        self.sums: list[np.ndarray] = []  # of the probes, noisy (d,), the newest last
        self.blocks, self.waiting = np.zeros((change.BLOCKS, change.width(d))), 0
        """Those that were looked at more closely, all but the last `waiting` of them, as the blocks of `change`."""
        self.found: change.Change | None = None


class BatchSteps(ABC):
    """Steps with the noisy sums of batches."""

    missing = 0
    """The records that batches have lacked while their sizes are `planned`, or in all batches of a shuffler; a plan
    does not use it."""

    @property
    @abstractmethod
    def middle(self) -> np.ndarray:
        """The point (d,) of the next gradients."""

    @property
    @abstractmethod
    def estimate(self) -> np.ndarray:
        """The answer (d,): a view."""

    @property
    def link(self) -> float:
        """LINK of the compiled loops for gradients at `middle`: the level of a log link; 0: there is none."""
        return 0.0

    @property
    def envelope(self) -> float:
        """ENVELOPE of the compiled loops for gradients at `middle`; 0: the loss itself."""
        return 0.0

    @property
    def least(self) -> int | None:
        """With fewer records the noise is larger than the signal; None: not known."""
        return None

    @property
    def flatness(self) -> float:
        """How many times more records noise hides, because a class is rare, as far as was released; 1: not known."""
        return 1.0

    @property
    def begun(self) -> bool:
        """Whether the estimate follows from gradients, and is no start or place that a search found."""
        return True

    @property
    def determined(self) -> float | None:
        """The variance of what columns predict over its sum with its expected error, from 0 to 1; None: not known.

        It is computed from what was released.
        """
        return None

    @property
    def changes(self) -> int:
        """How many changes of the stream were noticed."""
        return 0

    @property
    def renewals(self) -> int:
        """See `Learner.renewals`."""
        return self.changes

    @property
    def last_change(self) -> int | None:
        """The number of records when the last change was noticed; None: there was none, or in a part of a merge."""
        return None

    @property
    def latest(self) -> float:
        """See `Learner.latest`."""
        return 1.0

    def keep_latest(self, share: float) -> None:  # noqa: B027 - steps without changes keep all
        """See `Learner.keep_latest`."""

    # -- batches -----------------------------------------------------------------------------------------------------

    @property
    @abstractmethod
    def batch(self) -> int:
        """The number of records of the next batch."""

    @abstractmethod
    def runs(self) -> Iterator[tuple[int, int]]:
        """Yield the batches after the next one, of a plan those of this epoch: (records, how many of that size)."""

    @property
    @abstractmethod
    def place(self) -> Place:
        """The next batch."""

    @abstractmethod
    def go(self, place: Place) -> None:
        """Go to a batch, as `place` returns it; what was learned stays.

        Raises `ConfigError` for a place out of range.
        """

    @abstractmethod
    def skip(self) -> None:
        """Go to the batch after the next one."""

    @contextmanager
    def planned(self) -> Iterator[None]:
        """While this is open, the sizes of batches stay as they were planned."""
        yield

    @abstractmethod
    def closed(self, records: int) -> int:
        """What the sum of a batch that was closed early is divided by: its records >= 1, or as many as were planned."""

    # -- steps -------------------------------------------------------------------------------------------------------

    @abstractmethod
    def move(self, total: np.ndarray, size: int, advance: int, probes: Probes | None = None) -> None:
        """Make a step with `total`, the noisy sum of the vectors at `middle`; `size` is what it is divided by.

        `advance` is the number of records by which the sequence of batches goes on, which a plan does not use.
        """

    @property
    def probing(self) -> tuple[int, float]:
        """The records of a probe of the next batch, 0: it needs none, and the share of mu^2 that probes spend."""
        return 0, 0.0

    def looks(self, probes: Probes, total: np.ndarray) -> bool:
        """Whether the stream has changed, by the probes of the open batch and a new one.

        `total` (d,) is the noisy sum of its gradients at `middle`.
        """
        raise NotImplementedError

    @abstractmethod
    def merge(self, parts: Sequence[Self], average: np.ndarray) -> None:
        """Start from what other parts have learned: at least one, of disjoint records, made with the same parameters.

        `average` (d,) is that of the answers of these parts, weighted by records.
        """

    # -- state -------------------------------------------------------------------------------------------------------

    def learned(self) -> dict[str, object]:
        """The state as plain values and new arrays."""
        return {"state": self._numbers.copy(), "place": list(self.place)}

    def planned_anew(self, state: Mapping[str, object]) -> Mapping[str, object]:
        """Return what to `read` of a state that was learned with another noise; a plan follows from the noise."""
        return state

    def read(self, state: Mapping[str, Any], check: Callable[[np.ndarray], None]) -> None:
        """Take over the state that `learned` returned. Raises `ConfigError` for numbers out of range.

        So does `check`, for a vector (d,) that is no parameter.
        """
        numbers = finite_array(state, "state", self._numbers.shape)
        epoch, phase, step = (int(number) for number in state["place"])
        self._check_state(numbers, check)
        self.go((epoch, phase, step))
        self._take(numbers)

    @property
    @abstractmethod
    def _numbers(self) -> np.ndarray:
        """All numbers that were learned."""

    def _take(self, numbers: np.ndarray) -> None:
        """Take over what `_numbers` had, where that is a view."""
        self._numbers[:] = numbers

    @abstractmethod
    def _check_state(self, numbers: np.ndarray, check: Callable[[np.ndarray], None]) -> None:
        """Check what is to become `_numbers`; `check` raises `ConfigError` for a vector (d,) that is no parameter."""
