"""User-level private gradient steps with private ranges: many passes over the users of one window.

Source: Bassily and Sun, "User-level private stochastic convex optimization with optimal rates", 2023, Algorithm 4 and
Theorem 3.1. Every step selects users, averages the gradients of each user at the current point, estimates the mean of
these vectors privately (`range_mean`), and moves.

Neighbours: all records of one user are replaced by any others; n, m and d are public. Trust: the process that holds the
window. Claim: the release is (epsilon, delta)-DP for the task's budget.

Proof, and what differs from the paper: docs/proofs/window_ranges.md.
"""

import math
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np

from streamdp.aggregation.range_mean import MOST_USERS, RangeMean
from streamdp.errors import ConfigError, check_whole
from streamdp.optim.ac_sa import Accelerated, Phase, Problem, run_of
from streamdp.privacy.entropy import Rng
from streamdp.privacy.guarantees import GaussianDP
from streamdp.privacy.subsampling import LEAST_NOISE, nearly_normal, noise_multiplier, sample
from streamdp.windows.task import Method, Task, Users, WindowResult, least, too_few

FAILURE = 0.01
"""The largest probability that any centre of a run is outside its range. Only accuracy depends on it."""

_MOST_STEPS = 4096
_STEPS = sorted({round(1.2**k) for k in range(46)})  # candidates for the steps of a phase
_MOST_PHASES = 6
_NEAR = 1.01  # the bound is flat near its minimum: 1 % more takes a third to a twentieth of the steps


@dataclass(frozen=True)
class RangePlan:
    """A plan of a run; public. Each step of the phases uses one private mean.

    `radii` are, for each phase, that of the ball that a non-smooth loss is convolved with; 0 for a smooth loss.
    """

    mean: RangeMean
    phases: tuple[Phase, ...]
    radii: tuple[float, ...]

    @property
    def steps(self) -> int:
        """T, the number of steps of all phases."""
        return sum(phase.steps for phase in self.phases)

    @property
    def centred(self) -> bool:
        """Whether private ranges are used. If not, gradients are clipped around zero."""
        return self.mean.share > 0

    @property
    def excess(self) -> float:
        """The bound on the expected excess loss of the release."""
        return self.phases[-1].excess

    @property
    def queries(self) -> int:
        """The expected number of gradients of single users."""
        return round(self.mean.batch * self.steps)


@dataclass(frozen=True)
class PrivateRange(Method):
    """Noisy gradient steps over private ranges of users' gradients.

    `most_queries`: the largest expected number of gradients of single users in a run, from 1 to 2^40.

    Raises `ConfigError` for a number out of range.

    Guarantee, trust and source: see the module.

    >>> from streamdp import ApproxDP
    >>> task = Task(10_000, 400, 50, ApproxDP(4.0, 1e-6), 1.0, 2.0, 1.0, 0.0, 2.0, 0.05)
    >>> plan = PrivateRange().plan(task)
    >>> plan.centred, plan.queries <= 2**20
    (True, True)
    """

    most_queries: int = 2**20

    name: ClassVar[str] = "private-range"

    def __post_init__(self) -> None:
        check_whole("most_queries", self.most_queries, 1, 2**40)

    def plan(self, task: Task) -> RangePlan:
        """As `Method.plan`: the fewest steps whose bound is within 1 % of the least.

        Raises `TooFewUsersError` if no number of steps has a bound below that of not learning, and `BudgetError` for a
        budget that cannot be accounted for.
        """
        best = self._draft(task)
        if not _learns(best, task):
            raise too_few(self.name, task, self.least_users(task))
        if best.mean.rate == 1:
            return best
        mu = 1 / noise_multiplier(task.budget, best.mean.rate, best.steps)  # the zero-out mu of a step
        return _drafted(task, best.mean.rate, mu, len(best.phases), best.phases[0].steps)

    def least_users(self, task: Task) -> int:
        """As `Method.least_users`: the least n with a bound below that of not learning; about sqrt(d) / epsilon.

        Raises `ConfigError` if no n up to 2^31 has such a bound, because `most_queries` allows too few steps.
        """
        users = least(lambda n: _learns(self._draft(replace(task, users=n)), task), MOST_USERS)
        if users is None:
            raise ConfigError(
                f"{self.name}: the steps that most_queries={self.most_queries} allows, {_MOST_STEPS} at most, are "
                f"too few for smoothness {task.smoothness:g} and gradients up to {task.bound:g}, with any users"
            )
        return users

    def _draft(self, task: Task) -> RangePlan:
        """The fewest steps whose bound is near the least; a formula replaces the exact accounting of drawn users."""
        whole = GaussianDP.from_approx(task.budget).mu
        most = min(_MOST_STEPS, self.most_queries)
        drafts = []
        for count in range(1, 1 + (_MOST_PHASES if task.convexity else 1)):
            for steps in (s for s in _STEPS if s * count <= most):
                total = steps * count
                rate = _rate(self.most_queries / (task.users * total))
                noise = max(LEAST_NOISE, nearly_normal(whole, rate, total))
                mu = whole / math.sqrt(total) if rate == 1 else 1 / noise
                drafts.append(_drafted(task, rate, mu, count, steps))
        best = min(drafts, key=lambda draft: draft.excess)
        near = [draft for draft in drafts if draft.excess <= _NEAR * best.excess and _learns(draft, task)]
        return min(near or [best], key=lambda draft: draft.steps)

    def run(self, plan: RangePlan, users: Users, start: np.ndarray, rng: Rng) -> WindowResult:
        """As `Method.run`. Gradients of single users are overwritten after each step."""
        mean, steps = plan.mean, Accelerated(start, users.project)
        for phase, radius in zip(plan.phases, plan.radii, strict=True):
            steps.restart()
            for _ in range(phase.steps):
                drawn = None if mean.rate == 1 else sample(mean.users, mean.rate, rng)
                gradients = users.gradients(steps.middle, drawn, radius)
                steps.move(mean.estimate(gradients, rng), phase.modulus)
        return WindowResult(steps.points[1].copy(), plan.queries)


def _rate(wanted: float) -> float:
    """The next lower rate of a coarse grid, less than 5 % below.

    The accounting of a rate takes long and is cached; windows of similar size share a rate.
    """
    return 1.0 if wanted >= 1 else 2.0 ** (math.floor(16 * math.log2(wanted)) / 16)


def _drafted(task: Task, rate: float, mu: float, count: int, steps: int) -> RangePlan:
    """A plan of `count` phases of `steps` steps each; each mean spends mu."""
    mean = RangeMean.planned(
        mu, task.bound, task.sensitivity, task.d, task.users, rate, task.spread, FAILURE / (steps * count)
    )
    variance, smooth, at = mean.variance, math.isfinite(task.smoothness), task.distance
    problem = Problem(task.bound, task.smoothness, 0.0, at, lambda _: variance, spread=0.0)
    phases, radii = [], []
    for _ in range(count):
        # For a non-smooth loss, 2 beta D^2 / (T (T+1)) + L^2 sqrt(d) / beta has its minimum at this beta.
        beta = task.smoothness if smooth else task.bound * task.d**0.25 / at * math.sqrt(steps * (steps + 1) / 2)
        radius = 0.0 if smooth else task.bound * math.sqrt(task.d) / beta
        run = run_of(problem, steps, 1, at, beta)
        off = mean.bias + task.spread / math.sqrt(task.users)
        phases.append(replace(run, excess=run.excess + at * off + radius * task.bound))
        radii.append(radius)
        if task.convexity:
            at = min(at, math.sqrt(2 * phases[-1].excess / task.convexity))
    return RangePlan(mean, tuple(phases), tuple(radii))


def _learns(plan: RangePlan, task: Task) -> bool:
    """Whether the bound is below that of not learning."""
    return plan.excess < task.bound * task.distance
