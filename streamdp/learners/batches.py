"""Learning batch by batch: the open batch, its boundaries, and the steps that its noisy sum makes.

`BatchSteps` set the next batch, the point of its vectors and the step that their noisy sum makes: `Newton`, which
learns from gradients and curvature without a plan, or `Planned`, the papers' AC-SA and averaged SGD.

Within a batch the state holds contributions that are not released yet; between batches it holds only what was released.
So a state may be saved, copied or shown at boundaries only, and a copy or pickle holds the state of the last boundary.
A subclass defines how vectors are summed: `_open`, `_add`, `_close`, `_sum` and `_noise`.

A person's records in different batches are protected by different noises, and their spends compose. k records in one
batch are not k mechanisms but one with k times the sensitivity: see `privacy.release`.
"""

import math
from abc import abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, NamedTuple, Self

import numpy as np

from streamdp.data.records import MOST_RECORDS
from streamdp.errors import ConfigError, NotAtBoundaryError, NotAvailableError, check_choice, check_whole
from streamdp.learners.learner import WITH_DELTA, Learner
from streamdp.learners.linear_problem import USUAL, Columns, LinearProblem, Region, check_newton, check_unplanned
from streamdp.optim.ac_sa import Problem
from streamdp.optim.batch_steps import BatchSteps, Probes
from streamdp.optim.curvature import Curvature, has_curvature
from streamdp.optim.domains import RealSpace
from streamdp.optim.newton import Newton
from streamdp.optim.planned import Planned
from streamdp.privacy.entropy import AnyRng
from streamdp.privacy.guarantees import Budget
from streamdp.privacy.release import Release
from streamdp.reading.batch_intervals import StepEstimates
from streamdp.reading.change import OnChange, follows
from streamdp.scaling.batch_search import LEAST_SPREAD
from streamdp.scaling.units import free_units

SPREAD = 0.75
"""The root mean square length of a gradient in the plan for a smooth loss, as a share of its bound. Logistic gradients
have at most 1/2 of it at the start, and at the optimum of a model that is right."""


@dataclass(frozen=True)
class BatchPlan:
    """The parameters of learners in batches; see the estimators."""

    method: str = "auto"
    horizon: int | None = None
    batch_size: int | None = None
    smoothness: float | None = None
    strong_convexity: float = 0.0
    change: OnChange | None = None

    def __post_init__(self) -> None:
        for name, value in (("horizon", self.horizon), ("batch_size", self.batch_size)):
            if value is not None:
                check_whole(name, value, 1, MOST_RECORDS)


class Vectors(NamedTuple):
    """What a batch sums: the length of the vectors, their largest norm and their largest distance."""

    size: int
    bound: float
    sensitivity: float


class Batches(Learner):
    """The open batch and its steps: see the text of the module."""

    any_budget = True
    default_budget: ClassVar[Budget] = WITH_DELTA
    needs_delta: ClassVar[bool] = True
    default_domain = USUAL
    scales_columns = True
    stays = True
    methods: ClassVar[tuple[str, ...]]
    open: Release
    batch_steps: BatchSteps
    spec: np.ndarray
    middle: np.ndarray
    """Where the vectors of the open batch are taken."""
    full: int = 0
    factor = 0.0
    """`Curvature.factor`, if the vectors of records have their curvature."""

    def __init__(self, problem: LinearProblem, budget: Budget, rng: AnyRng, plan: BatchPlan) -> None:
        check_choice("method", plan.method, ("auto", *self.methods))
        region = Region.planned(problem, plan.smoothness, plan.strong_convexity)
        self.plan, self.given = plan, problem
        self.method = self.method_name = self._usual() if plan.method == "auto" else plan.method
        self.follows = follows(plan.change, None if self.method == "newton" else f'with method="{self.method}"')
        self.free = self.method == "newton" and all(free_units(problem.intercept, problem.given_domain).values())
        """Whether theta is learned in units that follow from what was released."""
        self.log_links = self.method == "newton"
        if self.log_links:
            check_newton(problem.loss, "ac-sa")
            check_unplanned(vars(plan), "ac-sa")
            if not problem.given_domain:
                problem = replace(problem, domain=RealSpace())
            if self.free and problem.target is not None:
                low, high = problem.target
                least = LEAST_SPREAD * (high / 2 - low / 2)  # for small targets
                problem = replace(problem, loss=problem.loss.with_least_scale(least))
        super().__init__(problem, budget, rng)
        self.region = replace(region, problem=problem)
        self.curvature: Curvature | None = None
        self.open = Release(budget)
        self.probes: Probes | None = None

    def _usual(self) -> str:
        """What "auto" means."""
        return "newton" if has_curvature(self.given.loss) else "ac-sa"

    # -- what subclasses define --------------------------------------------------------------------------------------

    @abstractmethod
    def _noise(self, batch: int) -> float:
        """The variance E||.||^2 that privacy adds to the average vector of a batch."""

    @abstractmethod
    def _open(self) -> None:
        """Begin a batch."""

    @abstractmethod
    def _add(self, X: np.ndarray, y: np.ndarray) -> None:
        """Add rows to the open batch, with vectors at `middle`."""

    @abstractmethod
    def _close(self, records: int) -> np.ndarray:
        """The noisy sum of the vectors of a batch with so many records."""

    @property
    @abstractmethod
    def total(self) -> np.ndarray:
        """What the open batch adds up to, as whole numbers: an array that changes in place."""

    @abstractmethod
    def _sums(self, vectors: Vectors) -> None:
        """Prepare the sum of such vectors."""

    # -- set-up ------------------------------------------------------------------------------------------------------

    def begin(self, columns: Columns) -> None:
        self.columns, problem, p = columns, self.problem, len(columns)
        vectors = Vectors(problem.size(p), problem.loss.bound, problem.loss.sensitivity)
        self.spec, box = problem.described(p)
        if self.method == "newton":
            self.curvature = curvature = problem.vectors_of(columns, plain=True)
            self.factor = curvature.factor
            vectors = Vectors(curvature.size, curvature.bound, curvature.sensitivity)
            curvature.mark(self.spec)
        self._sums(vectors)
        self.batch_steps = self._begin_steps(self.region.project(self._first(box.shape[1])))
        self.open.taken = 0
        self._begin_phase()

    def _first(self, d: int) -> np.ndarray:
        """The first theta (d,). With bounds of the target it begins in their middle, with half their width as scale."""
        first = self.problem.loss.start(d)
        if self.free and (bounds := self.problem.target) is not None:
            first[-2:] = bounds[0] / 2 + bounds[1] / 2, bounds[1] / 2 - bounds[0] / 2
        return first

    def _begin_steps(self, start: np.ndarray) -> BatchSteps:
        """Return the steps of the method; they begin at a vector (d,)."""
        plan = self.plan
        if self.curvature is None:
            return Planned(self._planning(start), start, self.region.project, plan.horizon, plan.batch_size)
        assert self.columns is not None
        return Newton(
            self.curvature,
            start,
            self.region.project,
            math.sqrt(self._noise(1) / self.curvature.size),
            plan.batch_size,
            self.free and self.problem.target is not None,
            self.columns.placed & self.free,
            follow=self.follows,
            replans=not self.shuffled,
            own=self.columns.own,
        )

    def _planning(self, start: np.ndarray) -> Problem:
        """The bounds that a plan follows from."""
        share = SPREAD if math.isfinite(self.region.beta(self.p)) else 1.0
        accelerated, spread = self.method != "sgd", share * self.problem.loss.bound
        return self.region.planning(start, self.p, self._noise, spread, accelerated)

    def _begin_phase(self) -> None:
        """Prepare for the next batches: called when their size changes, and when the steps go to another batch."""
        from streamdp.optim.loops import ENVELOPE

        self.full = self.batch_steps.batch
        self.spec[ENVELOPE] = self.batch_steps.envelope
        self._go_to_middle()

    def _go_to_middle(self) -> None:
        """Take the next vectors where the steps are."""
        from streamdp.optim.loops import LINK

        self.middle = self.batch_steps.middle
        self.spec[LINK] = self.batch_steps.link

    def go(self, place: tuple[int, int, int]) -> None:
        """Go to a batch, a `BatchSteps.place`; what was learned stays. Raises `ConfigError` if it is out of range."""
        self.batch_steps.go(place)
        self._begin_phase()

    # -- boundaries --------------------------------------------------------------------------------------------------

    @property
    def to_boundary(self) -> int:
        return 0 if self.columns is None else self.left(self.batch_steps.batch)

    def boundary_within(self, records: int) -> int:
        if self.columns is None:
            return records
        left = self.left(self.batch_steps.batch)
        if left > records:
            return records
        for batch, batches in self.batch_steps.runs():
            fit = min(batches, (records - left) // batch)
            left += fit * batch
            if fit < batches:
                break
        return left

    def close(self) -> None:
        if self.open.taken:
            self._finish()

    def need_boundary(self) -> None:
        """Raise `NotAtBoundaryError` within a batch."""
        if self.open.taken:
            raise NotAtBoundaryError("a batch is open: call close_batch() first")

    # -- learning ----------------------------------------------------------------------------------------------------

    def end_full(self) -> int:
        if not self.open.records[0] and self.full != self.batch_steps.batch:  # Ctrl-C interrupted the end of a batch
            self._begin_phase()
        return super().end_full()

    def learn(self, X: np.ndarray, y: np.ndarray, budget: Budget | None, amounts: np.ndarray | None) -> None:
        left = self.end_full()
        while len(X):
            if not self.open.records[0]:
                self._go_to_middle()
                self._wipe()  # it may have been interrupted before
                self._open()
                left = self.end_full()
            taken = min(len(X), left)
            self.seen[0] += taken  # before they are learned: an interruption may lose records, but never a count
            self.open.records[0] += taken
            self._add(X[:taken], y[:taken])
            if self.side is not None:
                self.side.add(X[:taken], y[:taken], self.full)
            if self.held_out is not None:
                self.held_out.add(X[:taken], y[:taken])
            X, y = X[taken:], y[taken:]
            left = self.end_full()

    def _finish(self) -> None:
        """End the open batch."""
        records = self.open.taken
        for one in self.open.sums.values():  # first: an exception may end them earlier, but never later
            one.close()
        total, probes = self._close(records), self.probes
        self.discard()
        self.move(total, self.batch_steps.closed(records), records, probes)

    def move(self, total: np.ndarray, size: int, advance: int, probes: Probes | None = None) -> None:
        """See `BatchSteps.move`; then the next batch is prepared."""
        before = self.batch_steps.place[:2], self.batch_steps.batch
        self.batch_steps.move(total, size, advance, probes)
        if (self.batch_steps.place[:2], self.batch_steps.batch) != before:
            self._begin_phase()
        self._go_to_middle()

    # -- batches whose records are in other processes: see `divided` --------------------------------------------------

    def part(self, X: np.ndarray, y: np.ndarray) -> np.ndarray:
        """What rows X (n, p) and y (n,) add to the next batch's sum. See `divided`; raises `NotAtBoundaryError`."""
        self.need_boundary()
        self.discard()
        try:
            self._add(X, y)
            return self.total.copy()
        finally:
            self.discard()

    def begin_planned(self) -> int:
        """Prepare for the next batch of `step`; return its size."""
        self._begin_phase()
        return self.full

    def step(self, records: int, parts: Iterable[np.ndarray]) -> None:
        """Make a step with a batch of so many rows, `records`, whose spends are counted.

        `parts`: what `part` returned, over all rows; each array is overwritten when it is added.
        """
        planned = self.full
        self.seen[0] += records  # before they are learned
        self.discard()  # a batch may have been interrupted before
        self._open()  # first: after an exception between these lines, no record joins a sum without its noise
        self.open.taken = records
        for part in parts:
            self.total[:] += part
            part[:] = 0
        total = self._close(records)
        self.discard()
        self.batch_steps.missing += planned - records
        self.move(total, self.batch_steps.closed(records), planned)

    # -- what was released -------------------------------------------------------------------------------------------

    @property
    def point(self) -> tuple[np.ndarray, bool]:
        return self.batch_steps.estimate, False

    @property
    def ranges(self) -> np.ndarray | None:
        """See `Learner.ranges`: of columns whose units Newton's steps have learned."""
        ranges = self.batch_steps.ranges if isinstance(self.batch_steps, Newton) else None
        return ranges if ranges is not None and ranges.size else None

    def answer(self) -> StepEstimates | None:
        """The answer that intervals are around, with its covariance; None if it is not known yet.

        Raises `NotAvailableError` for steps that never know it.
        """
        if not isinstance(self.batch_steps, Newton):
            raise NotAvailableError(f'interval: method="{self.method}" has none')
        return self.batch_steps.answer()

    @property
    def place_of_target(self) -> tuple[float, float, float]:
        """See `Learner.place_of_target`; Newton's steps learn it."""
        if isinstance(self.batch_steps, Newton) and self.problem.target is not None:
            return self.batch_steps.target
        return super().place_of_target

    @property
    def range_of_scale(self) -> tuple[float, float]:
        low, _ = super().range_of_scale
        return low, math.inf if self.problem.loss.least_scale is None else self.region.highest_scale

    @property
    def pools(self) -> bool:
        return self.method == "newton"

    @property
    def on_border(self) -> bool:
        return self.columns is not None and self.region.on_border(self.batch_steps.estimate)

    def caveats(self, spent: Sequence[Budget], capped: bool, answers: bool) -> list[str]:
        scaled = "columns with bounds, and levels, are scaled by what earlier batches released, which spends nothing"
        begun = self.columns is not None
        return [
            f"the method is {self.method}",
            *([scaled] if self.free and self.columns is not None and self.columns.placed.any() else []),
            *(self.region.caveats(self.batch_steps.estimate) if begun else []),
            "after a crash the records of the unfinished batch are learned again: for an observer who saw the state "
            "before the crash and sees the model after it, these records spend twice",
        ]

    # -- state -------------------------------------------------------------------------------------------------------

    def __getstate__(self) -> dict[str, object]:
        return super().__getstate__() | {"probes": None}

    def discard(self) -> None:
        """Discard the open batch. What an exception leaves of it is discarded when the next batch begins."""
        self.open.close()
        self._wipe()

    def _wipe(self) -> None:
        """Forget what the open batch adds up to."""
        if self.probes is not None:
            self.probes.open[:] = 0
        self.fast = self.probes = None
        self.total[:] = 0
        for one in self.open.sums.values():
            one.discard()

    def model(self) -> dict[str, object]:
        plan, place = self.plan, self.region.text
        horizon, size = (None if n is None else int(n) for n in (plan.horizon, plan.batch_size))
        planned: tuple[object, ...] = (horizon, size, self.region.beta(self.p), self.region.convexity, place)
        if self.method == "newton":
            planned = ("newton", size, place)
        return {"loss": repr(self.given.loss), "plan": repr(planned)}

    def learned(self) -> dict[str, object]:
        return self.batch_steps.learned() | {"budget": str(self.budget), "target": repr(self.problem.target)}

    def read(self, state: Mapping[str, object]) -> None:
        mine = repr(self.problem.target)
        if (target := state["target"]) != mine:  # answers about the error are in units of its width
            raise ConfigError(f"state: expected target {mine}, got {target}")
        if state["budget"] != str(self.budget):
            state = self.batch_steps.planned_anew(state)
        self.batch_steps.read(state, lambda theta: self.region.check_theta(theta, self.p))
        self._begin_phase()

    def merge(self, parts: Sequence[Self], average: Callable[[Sequence[np.ndarray]], np.ndarray]) -> None:
        sequences = [part.batch_steps for part in parts]
        if any(part.weight for part in parts):
            self.batch_steps.estimate[:] = average([steps.estimate for steps in sequences])
        self.batch_steps.merge(sequences, self.batch_steps.estimate.copy())
        self._begin_phase()
