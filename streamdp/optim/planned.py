"""A walk of AC-SA or averaged SGD along its plan: phases, and epochs of doubling length (see `ac_sa`)."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import count as count_from
from typing import Any, Self

import numpy as np

from streamdp.errors import ConfigError
from streamdp.optim.ac_sa import Accelerated, Averaged, Phase, Problem, plan
from streamdp.optim.states import finite_array

FIRST_EPOCH = 1024
"""Records of the first epoch of a stream of unknown length; each later epoch has twice as many."""

_MOST_EPOCHS = 50  # the last one has more records than any stream


class Planned:
    """The sequences of AC-SA or averaged SGD, and their place in the plan.

    Parameters
    ----------
    problem
        The assumptions of the plan.
    start
        (d,) theta_0.
    project
        Maps a vector (d,) to the nearest point of the domain.
    horizon
        The expected number of records; None: the epochs of a stream of unknown length.
    batch
        Records of each batch; None: planned.
    """

    def __init__(
        self,
        problem: Problem,
        start: np.ndarray,
        project: Callable[[np.ndarray], np.ndarray],
        horizon: int | None,
        batch: int | None,
    ) -> None:
        self.problem = problem
        self.sequence = (Accelerated if problem.accelerated else Averaged)(start, project)
        self._records = horizon or FIRST_EPOCH
        self._fixed = batch
        self.epoch = self.number = 0
        """The epoch, and the number of its phase."""
        self.plan = self.plan_of(0)

    def plan_of(self, epoch: int) -> list[Phase]:
        """The phases of an epoch; if the loss is strongly convex, each epoch starts nearer to the optimum.

        Parameters
        ----------
        epoch
            At least 0.
        """
        convexity = self.problem.convexity
        if convexity == 0:
            return plan(self.problem, self._records * 2**epoch, self._fixed)
        distance = self.problem.distance
        for number in count_from():
            phases = plan(self.problem, self._records * 2**number, self._fixed, distance)
            if number == epoch:
                return phases
            distance = min(distance, math.sqrt(2 * phases[-1].excess / convexity))
        raise AssertionError

    @property
    def phase(self) -> Phase:
        """The present phase: its batch size and steps."""
        return self.plan[self.number]

    @property
    def middle(self) -> np.ndarray:
        """The point (d,) of the next gradient."""
        return self.sequence.middle

    @property
    def estimate(self) -> np.ndarray:
        """The answer (d,)."""
        output: np.ndarray = self.sequence.points[1]
        return output

    # -- batches -----------------------------------------------------------------------------------------------------

    @property
    def batch(self) -> int:
        """The number of records of the next batch."""
        return self.phase.batch

    def runs(self) -> Iterator[tuple[int, int]]:
        """Yield the batches of this epoch after the next one: (records, how many batches of that size)."""
        yield self.batch, self.phase.steps - self.sequence.step - 1
        for phase in self.plan[self.number + 1 :]:
            yield phase.batch, phase.steps

    @property
    def place(self) -> tuple[int, int, int]:
        """The next batch: (epoch, phase, step)."""
        return self.epoch, self.number, self.sequence.step

    def go(self, place: tuple[int, int, int]) -> None:
        """Go to a batch; the sequences stay.

        Parameters
        ----------
        place
            As `place` returns it.

        Raises `ConfigError` if the plan has no such batch.
        """
        plan = self._planned(place)
        self.epoch, self.number, self.sequence.step = place
        self.plan = plan

    def _planned(self, place: tuple[int, int, int]) -> list[Phase]:
        epoch, number, step = place
        plan = [] if not 0 <= epoch < _MOST_EPOCHS else self.plan if epoch == self.epoch else self.plan_of(epoch)
        if not (0 <= number < len(plan) and 0 <= step < plan[number].steps):
            raise ConfigError("state: its place in the plan is out of range")
        return plan

    def batch_at(self, place: tuple[int, int, int]) -> int:
        """Return the number of records of a batch.

        Parameters
        ----------
        place
            As `place` returns it.

        Raises `ConfigError` if the plan has no such batch.
        """
        return self._planned(place)[place[1]].batch

    def skip(self) -> None:
        """Go to the batch after the next one."""
        self.sequence.step += 1
        self._turn()

    def _turn(self) -> None:
        """After the last step of a phase begin the next one."""
        if self.sequence.step >= self.phase.steps:
            self.sequence.restart()
            self.number += 1
            if self.number == len(self.plan):
                self.epoch, self.number = self.epoch + 1, 0
                self.plan = self.plan_of(self.epoch)

    # -- steps -------------------------------------------------------------------------------------------------------

    def closed(self, records: int) -> int:
        """What the sum of a batch that was closed with so many records is divided by: the planned number.

        Parameters
        ----------
        records
            At least 1.
        """
        return self.batch

    def move(self, total: np.ndarray, size: int, advance: int) -> None:
        """Make a step with the sum of a batch.

        Parameters
        ----------
        total
            (d,) the noisy sum of the gradients at `middle`.
        size
            What it is divided by.
        advance
            The number of records in the sum; not used, because the batches are planned.
        """
        self.sequence.move(total / size, self.phase.modulus)
        self._turn()

    # -- state -------------------------------------------------------------------------------------------------------

    def learned(self) -> dict[str, Any]:
        """The state as plain values and new arrays."""
        return {"state": self.sequence.points.copy(), "place": list(self.place)}

    def read(self, state: Mapping[str, Any], check: Callable[[np.ndarray], None]) -> Callable[[], None]:
        """Check what `learned` returned; return the function that takes it over.

        Parameters
        ----------
        state
            The entries of `learned`.
        check
            Raises `ConfigError` for a vector (d,) that is no parameter.

        Raises `ConfigError` for numbers out of range.
        """
        points = finite_array(state, "state", self.sequence.points.shape)
        epoch, number, step = (int(value) for value in state["place"])
        plan = self._planned((epoch, number, step))
        for theta in points:
            check(theta)

        def take_over() -> None:
            self.sequence.points[:] = points
            self.epoch, self.number, self.sequence.step = epoch, number, step
            self.plan = plan

        return take_over

    def merge(self, parts: Sequence[Self], average: np.ndarray) -> None:
        """Start from the average of several walks, in the latest of their epochs.

        Parameters
        ----------
        parts
            At least one, of the same plan.
        average
            (d,) the average of their answers, weighted by records.
        """
        self.sequence.points[:] = average
        self.epoch = max(part.epoch for part in parts)
        self.plan = self.plan_of(self.epoch)
