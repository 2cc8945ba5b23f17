"""User-level private stochastic gradients with private ranges: many passes over the users of one window.

Source: Bassily and Sun, "User-level private stochastic convex optimization with optimal rates", 2023, Algorithm 4 and
Theorem 3.1. Every step draws users at random, averages each one's gradients at the current point, estimates the mean of
these vectors privately (`range_mean`: PrivateRange, then noise in proportion to how far users lie apart), and moves.

The argument. Neighbours: all records of one user replaced by any others; n, m and d are public. A user enters a step by
one vector. Where all users are in every step, `range_mean` is mu-GDP for a replaced vector, and T steps are sqrt(T)
mu-GDP, adaptively (Dong, Roth, Su 2022, Corollary 2). Where each is drawn with probability q, it is mu-GDP for a vector
that is left out, and `accounting.subsampling` proves how large mu may be for T steps to be (epsilon, delta)-DP where
records are replaced. That needs who was drawn to stay secret: batch sizes too, so `Release.queries` is their
expectation. Points between are answers like others, and only the last is released.

What differs from the paper, and why.
* Subsets: the paper draws B users without replacement and composes by advanced composition. Here each user is drawn on
  its own, so that dp-accounting's numerical composition applies; and all are taken in each step (q = 1) where
  `most_queries` allows. Its noise is as little, users need not be sampled, and in the accounting a replaced user counts
  once rather than as one who leaves and one who comes.
* Steps: the paper's averaged SGD takes T = n^2 eps^2 / (c^2 d) steps. The more steps, the less may each choice of a bin
  spend: PrivateRange needs users in proportion to sqrt(T D). So steps are accelerated (`acceleration`), which reaches
  the same excess with fewer, and as few are made as bring the bound within 1 % of the least. A strongly convex loss
  goes in phases, with one budget for all steps.
* Non-smooth losses, which Theorem 3.1 leaves out, are convolved with the uniform ball of radius r: they are then (L
  sqrt(d) / r)-smooth and at most r L higher (Duchi, Bartlett, Wainwright 2012); r is chosen by the bound.
* Few users: the paper assumes n > sqrt(d) / epsilon and users enough for PrivateRange. Here the range is taken where it
  lowers the bound, and gradients are cut to L around zero where it does not: with few users, or users who are as far
  apart as L allows (`RangePlan.centred`). Too few users are those with whom the bound on the excess is no better than L
  times the distance, that of not learning at all: which is, up to constants, the theorem's n > sqrt(d) / epsilon.

The bound (`RangePlan.excess`) is `acceleration`'s for the variance of one mean, plus the distance times what the mean
of all users is off: its `bias`, and spread / sqrt(n), as if the output were one fixed point. It takes users' gradients
to lie apart as `Task.spread` says at points that depend on the users: that they do is Theorem 3.4 (a tail of
probability rho grows to e^(2 epsilon) rho + delta); and it takes centres to be where they are but for a chance of
`FAILURE` a run. None of this is needed for privacy.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np

from streamdp.aggregation.range_mean import MOST_USERS, RangeMean, Rng
from streamdp.errors import ConfigError, TooFewUsersError
from streamdp.optim.ac_sa import Accelerated, Phase, Problem, run_of
from streamdp.privacy.guarantees import GaussianDP
from streamdp.privacy.subsampling import LEAST_NOISE, nearly_normal, sample, zero_out_mu
from streamdp.windows.task import Release, Task, Users

FAILURE = 0.01
"""How likely any centre of a run may be further off than promised. Accuracy only."""

_MOST_STEPS = 4096
_STEPS = sorted({round(1.2**k) for k in range(46)})  # of a phase
_MOST_PHASES = 6
_NEAR = 1.01  # the bound is flat around its least: a third to a twentieth of the steps do for 1 % more


@dataclass(frozen=True)
class RangePlan:
    """What a run will do; public.

    `mean` is how every gradient is estimated, `phases` the steps, of one mean each; `radii` (one a phase) are those of
    the ball that a non-smooth loss is convolved with, 0 for a smooth one.
    """

    mean: RangeMean
    phases: tuple[Phase, ...]
    radii: tuple[float, ...]

    @property
    def steps(self) -> int:
        """T, of all phases."""
        return sum(phase.steps for phase in self.phases)

    @property
    def centred(self) -> bool:
        """Whether private ranges are taken; else gradients are cut around zero."""
        return self.mean.share > 0

    @property
    def excess(self) -> float:
        """The bound on the expected excess loss of the release."""
        return self.phases[-1].excess

    @property
    def queries(self) -> int:
        """How many gradients of single users are expected to be asked for."""
        return round(self.mean.batch * self.steps)


@dataclass(frozen=True)
class PrivateRange:
    """Noisy gradient steps over private ranges of users' gradients.

    Parameters
    ----------
    most_queries
        How many gradients of single users a run may ask for, in expectation; at least 1.

    Raises `ConfigError` for a number out of range.

    Guarantee: the release spends the task's budget, (epsilon, delta)-DP where all records of one user are replaced by
    any others. Whom to trust: the process that holds the window. Source: Bassily, Sun 2023, Algorithm 4 and Theorem
    3.1; argument and deviations are in `streamdp.windows.ranges` and `streamdp.aggregation.range_mean`.

    >>> from streamdp import ApproxDP
    >>> task = Task(10_000, 400, 50, ApproxDP(4.0, 1e-6), 1.0, 2.0, 1.0, 0.0, 2.0, 0.05)
    >>> plan = PrivateRange().plan(task)
    >>> plan.centred, plan.queries <= 2**20
    (True, True)
    """

    most_queries: int = 2**20

    name: ClassVar[str] = "private-range"

    def __post_init__(self) -> None:
        if isinstance(self.most_queries, bool) or not 1 <= self.most_queries <= 2**40:
            raise ConfigError(f"most_queries: expected from 1 to 2^40, got {self.most_queries!r}")

    def plan(self, task: Task) -> RangePlan:
        """Steps, noise and phases: the fewest steps whose bound is within 1 % of the least.

        Raises `TooFewUsersError` where no number of steps has a bound below that of not learning, and `BudgetError`
        for a budget that cannot be accounted for.
        """
        best = self._draft(task)
        if not _learns(best, task):
            needed = self.least_users(task)
            raise TooFewUsersError(
                f"{task.users} users are too few to learn {task.d} parameters by {self.name} with {task.budget}: "
                f"expected at least {needed}",
                needed,
            )
        if best.mean.rate == 1:
            return best
        mu = zero_out_mu(task.budget, best.mean.rate, best.steps)
        return _drafted(task, best.mean.rate, mu, len(best.phases), best.phases[0].steps)

    def least_users(self, task: Task) -> int:
        """The least n with a bound below that of not learning, which is in proportion to sqrt(d) / epsilon.

        Raises `ConfigError` where none up to 2^31 has: `most_queries` allows too few steps.
        """
        low, high = 0, 1
        while not _learns(self._draft(replace(task, users=high)), task):
            low, high = high, 2 * high
            if high > MOST_USERS:
                raise ConfigError(
                    f"{self.name}: the steps that most_queries={self.most_queries} allows, {_MOST_STEPS} at most, are "
                    f"too few for smoothness {task.smoothness:g} and gradients up to {task.bound:g}, with any users"
                )
        while high - low > 1:
            middle = (low + high) // 2
            if _learns(self._draft(replace(task, users=middle)), task):
                high = middle
            else:
                low = middle
        return high

    def _draft(self, task: Task) -> RangePlan:
        """The fewest steps whose bound is near the least, with a formula in place of the exact accounting of drawn
        users.
        """
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

    def run(self, plan: RangePlan, users: Users, start: np.ndarray, rng: Rng) -> Release:
        """Learn from the users, beginning at start (d,). Gradients of single users are wiped after each step."""
        mean, walk = plan.mean, Accelerated(start, users.project)
        for phase, radius in zip(plan.phases, plan.radii, strict=True):
            walk.restart()
            for _ in range(phase.steps):
                drawn = None if mean.rate == 1 else sample(mean.users, mean.rate, rng)
                gradients = users.gradients(walk.middle, drawn, radius)
                walk.move(mean.estimate(gradients, rng), phase.modulus)
        return Release(walk.points[1].copy(), plan.queries)


def _rate(wanted: float) -> float:
    """A rate of at most this, by less than 5 %: one of few, so that windows of about as many users share what it takes
    a quarter of a second to account for.
    """
    return 1.0 if wanted >= 1 else 2.0 ** (math.floor(16 * math.log2(wanted)) / 16)


def _drafted(task: Task, rate: float, mu: float, count: int, steps: int) -> RangePlan:
    """`count` phases of `steps` steps each, whose means spend mu."""
    mean = RangeMean.planned(
        mu, task.bound, task.sensitivity, task.d, task.users, rate, task.spread, FAILURE / (steps * count)
    )
    variance, smooth, at = mean.variance, math.isfinite(task.smoothness), task.distance
    problem = Problem(task.bound, task.smoothness, 0.0, at, lambda _: variance, spread=0.0)
    phases, radii = [], []
    for _ in range(count):
        # Of a non-smooth loss: 2 beta D^2 / (T (T+1)) + L^2 sqrt(d) / beta is least at this beta.
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
    """Whether the bound tells more than that the loss is Lipschitz."""
    return plan.excess < task.bound * task.distance
