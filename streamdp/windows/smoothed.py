"""Accelerated steps on a smoothed loss and sampled users: few gradient queries for non-smooth losses.

Source: Kulkarni, Lee, Liu, "Private non-smooth ERM and SCO in subquadratic steps", 2021, with the accelerated step of
Ghadimi and Lan 2012 and the localisation of Feldman, Koren, Talwar 2020. In a step every user is drawn with a public
probability, and the noisy sum of their average gradients is divided by the expected number.

Neighbours: all records of one user are replaced by any others. Trust: the process that holds the window. Claim: the
release is (epsilon, delta)-DP for the task's budget. objective="erm" is for the window's users, "sco" for new ones.

Proof, and the bounds on the excess: docs/proofs/window_smoothed.md.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import ClassVar

import numpy as np

from streamdp.data.records import MOST_RECORDS
from streamdp.errors import BudgetError, ConfigError, check_choice, check_whole
from streamdp.privacy.entropy import Rng
from streamdp.privacy.guarantees import ApproxDP, GaussianDP
from streamdp.privacy.mechanisms import Gaussian, calibrated, randomize_rows
from streamdp.privacy.samplers import GRID
from streamdp.privacy.subsampling import noise_multiplier, sample
from streamdp.windows.regularisers import Regulariser
from streamdp.windows.smoothed_plan import Run, SmoothedPlan, builders, rough_noise
from streamdp.windows.task import CHUNK, Method, Task, Users, WindowResult, least, too_few

OBJECTIVES = ("erm", "sco")

_SLACK = 1.1


@dataclass(frozen=True)
class ConvolutionSmoothing(Method):
    """Strongly convex AC-SA on the smoothed loss of sampled users (see the module's text).

    - `objective`: "erm": the average loss of the window's users. "sco": the expected loss, by localisation over
      disjoint users.
    - `most_queries`: the largest expected number of gradients of single users, at least 1; None for no limit.
    - `regulariser`: h, which is added to the loss, such as `ElasticNet`; None: nothing is added.

    Raises `ConfigError` for anything else.

    Guarantee, trust and source: see the module.
    """

    objective: str = "erm"
    most_queries: int | None = None
    regulariser: Regulariser | None = None

    name: ClassVar[str] = "smoothed"

    def __post_init__(self) -> None:
        check_choice("objective", self.objective, OBJECTIVES)
        if self.most_queries is not None:
            check_whole("most_queries", self.most_queries, 1, MOST_RECORDS)
        if (h := self.regulariser) is not None and not 0 <= h.convexity <= h.smoothness < math.inf:
            raise ConfigError(
                "regulariser: expected constants 0 <= convexity <= smoothness, both finite, "
                f"got {h.convexity} and {h.smoothness}"
            )

    def plan(self, task: Task) -> SmoothedPlan:
        """As `Method.plan`: of all runs whose bound is within 10 % of the least, those with the fewest gradients.

        The search uses the approximate noise of `subsampling.nearly_normal`, the plan the exact noise. Raises
        `TooFewUsersError` if the search finds no bound below L D, the bound of staying at the start, and `BudgetError`
        for a budget that is not (epsilon, delta).
        """
        build = self._search(task)
        if build is None:
            raise too_few(self.name, task, self.least_users(task))
        return build(noise=partial(noise_multiplier, task.budget))

    def least_users(self, task: Task) -> int:
        """As `Method.least_users`. Raises `ConfigError` if `plan` accepts no n."""
        users = least(lambda n: self._search(replace(task, users=n)) is not None)
        if users is None:
            raise ConfigError("no number of users makes up for so few queries")
        return users

    def run(self, plan: SmoothedPlan, users: Users, start: np.ndarray, rng: Rng) -> WindowResult:
        """As `Method.run`. `queries` is the expected number: the true one would reveal which users were drawn."""
        theta, h = np.array(start, dtype=float), self.regulariser

        def gradient(run: Run, theta: np.ndarray) -> np.ndarray:
            noisy = noisy_gradient(run, plan.bound, users, rng, theta)
            return noisy if h is None else noisy + h.gradient(theta)

        def prox(theta: np.ndarray, size: float) -> np.ndarray:
            found = users.project(theta if h is None else h.prox(theta, size))
            if not np.all(np.isfinite(found)):
                raise ConfigError("regulariser: gradient and prox must return finite numbers")
            return found

        for run in plan.runs:
            theta = accelerate(run, theta, partial(gradient, run), prox)
        return WindowResult(theta, plan.queries)

    def _search(self, task: Task) -> partial[SmoothedPlan] | None:
        """How to build the best plan for given noise; None if no bound is below L D."""
        if not isinstance(task.budget, ApproxDP):
            raise BudgetError(f"expected an (epsilon, delta) budget, got {type(task.budget).__name__}")
        rough = rough_noise(task)
        every = builders(task, self.regulariser, self.objective == "sco", self.most_queries)
        found = [(build(noise=rough), build) for build in every]
        best = min(plan.excess for plan, _ in found)
        if best >= task.bound * task.distance:
            return None
        return min((pair for pair in found if pair[0].excess <= _SLACK * best), key=lambda pair: pair[0].queries)[1]


def noisy_gradient(run: Run, bound: float, users: Users, rng: Rng, theta: np.ndarray) -> np.ndarray:
    """An unbiased noisy gradient (d,) of the average loss of a run's users at theta (d,).

    It is the noisy sum over the drawn users, divided by their expected number. Raises `ConfigError` if a user's
    gradient is not finite or longer than the bound L, because it would not be protected.
    """
    mechanism = calibrated(Gaussian, GaussianDP(1 / run.noise), bound, bound)
    rows = mechanism.rows(len(theta))
    grid = rows[0, GRID]
    drawn = run.first + sample(run.last - run.first, run.rate, rng)
    total = summed_gradients(users, theta, drawn, bound, grid, run.radius)
    randomize_rows(mechanism.code, rows, total[None, :], rng)
    return total / (run.rate * (run.last - run.first))


def summed_gradients(
    users: Users, theta: np.ndarray, chosen: np.ndarray, bound: float, grid: float, radius: float = 0.0
) -> np.ndarray:
    """The sum (d,) of the average gradients of the `chosen` users at theta (d,), each rounded to the grid. Not private.

    If the `radius` is positive, the loss is convolved with the uniform ball of this radius. Raises `ConfigError` if a
    gradient is not finite or longer than the `bound`, because it would not be protected.
    """
    total = np.zeros(len(theta))
    for at in range(0, len(chosen), CHUNK):
        gradients = users.gradients(theta, chosen[at : at + CHUNK], radius)
        if not np.all(np.linalg.norm(gradients, axis=1) <= bound * (1 + 1e-9)):
            raise ConfigError(f"users' gradients must be finite and of l2 norm at most {bound:g}")
        gradients /= grid
        np.rint(gradients, out=gradients)
        total += gradients.sum(axis=0)  # whole numbers: exact
        gradients[...] = 0
    total *= grid
    return total


def accelerate(
    run: Run,
    start: np.ndarray,
    gradient: Callable[[np.ndarray], np.ndarray],
    prox: Callable[[np.ndarray, float], np.ndarray],
) -> np.ndarray:
    """The output (d,) of one run from `start` (d,); see the head of this module.

    `gradient` estimates the gradient of F + g at a point. `prox` returns the minimiser (d,) of size s(v) + ||v - z||^2
    / 2 in the domain, of z (d,) and the size.
    """
    x = ag = start
    convexity, total = run.convexity, 0
    for t in range(1, run.steps + 1):
        weight = min(t, run.ramp)
        total += weight
        alpha, gamma = weight / total, 2 * run.modulus / total
        rest = (1 - alpha) * convexity + gamma
        md = ((1 - alpha) * (convexity + gamma) * ag + alpha * rest * x) / (gamma + (1 - alpha**2) * convexity)
        slope = gradient(md) + run.pull * (md - start)
        x = prox((alpha * convexity * md + rest * x - alpha * slope) / (convexity + gamma), alpha / (convexity + gamma))
        ag = alpha * x + (1 - alpha) * ag
    return ag
