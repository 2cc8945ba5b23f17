"""Steps of AC-SA or averaged SGD along a plan: phases, and epochs of doubling length (see `ac_sa`)."""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property
from itertools import count as count_from
from typing import Any, Self

import numpy as np

from streamdp.data.floats import finite_array
from streamdp.errors import ConfigError
from streamdp.optim.ac_sa import Accelerated, Averaged, Phase, Problem, plan
from streamdp.optim.batch_steps import BatchSteps, Place, Probes

FIRST_EPOCH = 1024  # records, of a stream of unknown length; each later epoch has twice as many

_MOST_EPOCHS = 50  # the last one has more records than any stream


class Planned(BatchSteps):
    """The sequences of AC-SA or averaged SGD, and their position in the plan.

    They begin at `start` (d,); `project` maps a vector (d,) to the nearest point of the domain. `horizon` is the
    expected number of records; None means the epochs of a stream of unknown length. A batch of None is planned.
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
        self.epoch = self.number = 0  # and the number of its phase
        self.plan = self.plan_of(0)

    def plan_of(self, epoch: int) -> list[Phase]:
        """The phases of an epoch; if the loss is strongly convex, each epoch starts nearer to the optimum."""
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
    def envelope(self) -> float:
        return self.problem.envelope(self.phase)

    @property
    def middle(self) -> np.ndarray:
        return self.sequence.middle

    @property
    def estimate(self) -> np.ndarray:
        return self.sequence.points[1]

    @cached_property
    def least(self) -> int | None:
        """See `BatchSteps.least`: with so many or half, the bound of the plan is a thirtieth of that of none.

        It holds on a whole domain, whose radius is 5 by default; the slopes of scaled columns are hardly longer than
        1/2.
        """
        enough = self.problem.bound / 30 * self.problem.distance
        tried = (2**k for k in range(4, 40))
        return next((n for n in tried if plan(self.problem, n, self._fixed)[-1].excess < enough), None)

    # -- batches -----------------------------------------------------------------------------------------------------

    @property
    def batch(self) -> int:
        return self.phase.batch

    def runs(self) -> Iterator[tuple[int, int]]:
        yield self.batch, self.phase.steps - self.sequence.step - 1
        for phase in self.plan[self.number + 1 :]:
            yield phase.batch, phase.steps

    @property
    def place(self) -> Place:
        return self.epoch, self.number, self.sequence.step

    def go(self, place: Place) -> None:
        epoch, number, step = place
        plan = [] if not 0 <= epoch < _MOST_EPOCHS else self.plan if epoch == self.epoch else self.plan_of(epoch)
        if not (0 <= number < len(plan) and 0 <= step < plan[number].steps):
            raise ConfigError("state: its place in the plan is out of range")
        self.epoch, self.number, self.sequence.step = place
        self.plan = plan

    def skip(self) -> None:
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
        return self.batch

    def move(self, total: np.ndarray, size: int, advance: int, probes: Probes | None = None) -> None:
        self.sequence.move(total / size, self.phase.modulus)
        self._turn()

    # -- state -------------------------------------------------------------------------------------------------------

    @property
    def _numbers(self) -> np.ndarray:
        return self.sequence.points

    def planned_anew(self, state: Mapping[str, Any]) -> Mapping[str, object]:
        """See `BatchSteps.planned_anew`: its answer begins the epoch again, by the plan for the present noise."""
        points = finite_array(state, "state", self.sequence.points.shape)
        return {**state, "state": np.broadcast_to(points[1], points.shape), "place": [state["place"][0], 0, 0]}

    def _check_state(self, numbers: np.ndarray, check: Callable[[np.ndarray], None]) -> None:
        for theta in numbers:
            check(theta)

    def merge(self, parts: Sequence[Self], average: np.ndarray) -> None:
        """See `BatchSteps.merge`: from their average, in the latest of their epochs."""
        self.sequence.points[:] = average
        self.epoch = max(part.epoch for part in parts)
        self.plan = self.plan_of(self.epoch)


class Rounds(Planned):
    """Steps with the same people in every step: they end after the planned number of steps.

    `run` is the plan, with the people as batch and the rounds as steps; start and project are those of `Planned`.
    """

    def __init__(
        self, problem: Problem, start: np.ndarray, project: Callable[[np.ndarray], np.ndarray], run: Phase
    ) -> None:
        self._run = run
        super().__init__(problem, start, project, None, None)

    least = None  # of people who answer in each round

    def plan_of(self, epoch: int) -> list[Phase]:
        return [self._run]

    @property
    def finished(self) -> bool:
        """Whether all rounds are done."""
        return self.sequence.step >= self._run.steps

    def go(self, place: Place) -> None:
        """See `BatchSteps.go`; the step after the last one is the end."""
        if place[:2] != (0, 0) or not 0 <= place[2] <= self._run.steps:
            raise ConfigError("state: its place in the plan is out of range")
        self.sequence.step = place[2]

    def _turn(self) -> None:
        """After the last step nothing follows."""

    def merge(self, parts: Sequence[Self], average: np.ndarray) -> None:
        """See `BatchSteps.merge`: no round follows, because the people of the parts have answered."""
        super().merge(parts, average)
        self.sequence.step = self._run.steps
