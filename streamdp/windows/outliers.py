"""Full-batch accelerated descent on the users of a window, with outliers removed from every gradient.

Source: Asi and Liu, "User-level differentially private stochastic convex optimization: efficient algorithms with
optimal rates", 2023, Algorithms 3 and 4 (their 1 and 2 are in `concentrated_mean`).

Neighbours: all records of one user are replaced by any others. Trust: the process that holds the window. Claim: the
release is (epsilon, delta)-DP for the task's budget.

Proof, what differs from the paper, and when it helps: docs/proofs/window_outliers.md.
"""

import math
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import ClassVar

import numpy as np

from streamdp.aggregation.concentrated_mean import ConcentratedMean, QueryRun
from streamdp.errors import ConfigError, check_whole, is_number
from streamdp.optim.ac_sa import Accelerated, Problem, run_of
from streamdp.privacy.entropy import Rng
from streamdp.privacy.guarantees import ApproxDP, GaussianDP
from streamdp.windows.task import Method, Task, Users, WindowResult, least, too_few


@dataclass(frozen=True)
class RemovalPhase:
    """One run of AC-SA on disjoint users.

    `mean` answers the queries, `radius` is that of the smoothing (0 for a smooth loss), `modulus` is M of `ac_sa`, and
    `excess` bounds the expected excess loss of the output.
    """

    mean: ConcentratedMean
    radius: float
    modulus: float
    excess: float


@dataclass(frozen=True)
class RemovalPlan:
    """The phases of a run, in their order, and whether they are worth it.

    `gain` is the noise of clipping at the bound, for the same queries, users and budget, divided by that of the last
    phase. Below 1, clipping is better.
    """

    phases: tuple[RemovalPhase, ...]
    gain: float

    @property
    def excess(self) -> float:
        """The bound on the expected loss of the release."""
        return self.phases[-1].excess


@dataclass(frozen=True)
class OutlierRemoval(Method):
    """Means of gradients without outliers, accelerated: (epsilon, delta)-DP at the level of users.

    - `most_queries`: the largest number of gradients of one user, from 1 to 10^6.
    - `outliers`: rho, in (0, 0.2]: the probability that two users' gradients are further than tau apart. A larger rho
      lowers tau and makes the test less strict.
    - `failure`: in (0, 0.5]: the probability that the test of a phase fails although users are as close as assumed.

    Raises `ConfigError` for a parameter out of range.

    >>> from streamdp.windows.task import Task
    >>> task = Task(20_000, 2000, 10, ApproxDP(1.0, 1e-6), 1.0, 2.0, 1.0, 0.0, 1.0, 2000**-0.5)
    >>> round(OutlierRemoval().plan(task).gain, 1)
    2.9
    """

    most_queries: int = 256
    outliers: float = 0.01
    failure: float = 0.01

    name: ClassVar[str] = "outlier-removal"

    def __post_init__(self) -> None:
        check_whole("most_queries", self.most_queries, 1, 10**6)
        shares = is_number(self.outliers) and is_number(self.failure)
        if not (shares and 0 < self.outliers <= 0.2 and 0 < self.failure <= 0.5):
            raise ConfigError("expected outliers in (0, 0.2] and failure in (0, 0.5]")

    def plan(self, task: Task) -> RemovalPlan:
        counts = [1]
        if task.convexity > 0:
            largest = math.ceil(math.log2(max(2.0, math.log2(max(4, task.items * task.users)))))
            counts = list(range(1, largest + 1))
        plans = [p for p in (self._phases(task, count) for count in counts) if p]
        if not plans:
            raise too_few(self.name, task, self.least_users(task))
        phases = min(plans, key=lambda p: p[-1].excess)
        last = phases[-1].mean
        clipping = task.sensitivity * math.sqrt(last.queries) / (last.users * GaussianDP.from_approx(task.budget).mu)
        return RemovalPlan(phases, clipping / last.noise)

    def least_users(self, task: Task) -> int:
        """As `Method.least_users`: the least n such that `plan` accepts n and all larger numbers of users."""
        pairs = least(lambda half: self._mean(task, 2 * half, 1) is not None)
        if pairs is None:
            raise ConfigError(f"outlier removal cannot serve {task.budget}")
        return 2 * pairs - (self._mean(task, 2 * pairs - 1, 1) is not None)

    def run(self, plan: RemovalPlan, users: Users, start: np.ndarray, rng: Rng) -> WindowResult:
        """As `Method.run`. A failed test ends the run with the current output of its phase."""
        theta, first, asked = start, 0, 0
        for phase in plan.phases:
            named = np.arange(first, first + phase.mean.users)
            first += phase.mean.users
            learner, answers = Accelerated(theta, users.project), QueryRun(phase.mean, rng)
            for _ in range(phase.mean.queries):
                points = users.gradients(learner.middle, named, phase.radius)
                asked += len(named)
                try:
                    answer = answers.of(points)
                finally:
                    points[...] = 0
                if answer is None:
                    return WindowResult(learner.points[1].copy(), asked, complete=False)
                learner.move(answer, phase.modulus)
            theta = learner.points[1].copy()
        return WindowResult(theta, asked)

    def _phases(self, task: Task, count: int) -> tuple[RemovalPhase, ...]:
        """The phases if there are `count` of them; () if one of them would have too few users."""
        sizes = [task.users >> (count - i) for i in range(count - 1)]
        sizes.append(task.users - sum(sizes))
        distance, phases = task.distance, []
        for size in sizes:
            phase = self._phase(task, size, distance)
            if phase is None:
                return ()
            phases.append(phase)
            if task.convexity > 0:
                distance = min(distance, math.sqrt(2 * phase.excess / task.convexity))
        return tuple(phases)

    def _phase(self, task: Task, users: int, distance: float) -> RemovalPhase | None:
        """The number of queries with the least bound."""
        best = None
        for queries in sorted({round(t) for t in np.geomspace(1, self.most_queries, 33)}):
            mean = self._mean(task, users, queries)
            if mean is None:
                break
            radius, smoothness = 0.0, task.smoothness
            if math.isinf(smoothness):
                radius = distance * math.sqrt(2 * math.sqrt(task.d) / (queries * (queries + 1)))
                smoothness = task.bound * math.sqrt(task.d) / radius
            variance = task.d * mean.noise**2
            problem = Problem(task.bound, smoothness, 0.0, distance, partial(_same, variance), spread=0.0)
            run = run_of(problem, queries, 1, distance, smoothness)
            excess = run.excess + radius * task.bound + distance * task.spread / math.sqrt(users)
            if best is None or excess < best.excess:
                best = RemovalPhase(mean, radius, run.modulus, excess)
        return best

    def _mean(self, task: Task, users: int, queries: int) -> ConcentratedMean | None:
        if not isinstance(task.budget, ApproxDP):
            raise ConfigError(f"outlier removal serves a budget eps=E,delta=D, got {task.budget}")
        reach = math.sqrt(2) * task.spread * (1 + math.sqrt(2 * math.log(1 / self.outliers)))
        return _planned(
            task.budget, users, task.d, queries, task.bound, min(reach, task.sensitivity), self.outliers, self.failure
        )


_planned = lru_cache(maxsize=4096)(ConcentratedMean.planned)


def _same(variance: float, batch: int) -> float:
    """The variance of a query's noise; a query is always about all users, whatever the batch."""
    return variance
