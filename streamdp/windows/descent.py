"""User-level private gradient descent: a few passes over all users of a window, for losses whose curvature costs much.

A round releases the noisy mean of the users' average gradients at a point and makes a step with momentum. The release
is the mean of the points of the later half of the rounds. Source: Bassily, Smith, Thakurta 2014; the rounds are
accounted for together by mu-GDP (Dong, Roth, Su 2022).

Neighbours: all records of one user are replaced by any others; n, m and d are public. Trust: the process that holds the
window. Claim: the release is (epsilon, delta)-DP for the task's budget.

Proof: docs/proofs/window_newton.md, gradients alone.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from streamdp.errors import ConfigError, check_whole
from streamdp.privacy.entropy import Rng
from streamdp.privacy.guarantees import GaussianDP
from streamdp.privacy.mechanisms import Gaussian
from streamdp.windows.smoothed import summed_gradients
from streamdp.windows.task import Method, Task, Users, WindowResult, too_few

_LOUDEST = 1 / 4  # the largest noise of the mean gradient with the whole budget, over the bound
_MOMENTUM = 0.9
_MOST_ROUNDS = 1024


@dataclass(frozen=True)
class DescentPlan:
    """A plan of a run for n users; public. All rounds have the same `noise`; `rate` is the length of a step."""

    users: int
    d: int
    bound: float
    noise: Gaussian
    rate: float


@dataclass(frozen=True)
class Descent(Method):
    """Noisy gradient descent.

    `rounds`: how often the users of a window are asked, from 1 to 1024; only accuracy depends on it.

    Raises `ConfigError` for a number out of range.

    Guarantee, trust and source: see the module.
    """

    rounds: int = 48

    name: ClassVar[str] = "descent"
    free: ClassVar[bool] = True
    vague: ClassVar[float] = 4.0  # the noise that Newton's steps allow is a quarter as large

    def __post_init__(self) -> None:
        check_whole("rounds", self.rounds, 1, _MOST_ROUNDS)

    def plan(self, task: Task) -> DescentPlan:
        """As `Method.plan`.

        Raises `TooFewUsersError` for users that the noise would hide, and `ConfigError` for a loss without smoothness.
        """
        if not math.isfinite(task.smoothness):
            raise ConfigError(f'method="{self.name}" needs a smooth loss')
        needed = self.least_users(task)
        if task.users < needed:
            raise too_few(self.name, task, needed)
        whole = GaussianDP.from_approx(task.budget).mu
        noise = _noise(task, whole / math.sqrt(self.rounds) * (1 - 1e-12))
        return DescentPlan(task.users, task.d, task.bound, noise, (1 + _MOMENTUM) / task.smoothness)

    def least_users(self, task: Task) -> int:
        """As `Method.least_users`: about 4 sqrt(d) z / bound, z being the noise of a sum that has the whole budget."""
        noise = _noise(task, GaussianDP.from_approx(task.budget).mu)
        return max(1, math.ceil(float(noise.rows(task.d)[0, 0]) * math.sqrt(task.d) / (_LOUDEST * task.bound)))

    def run(self, plan: DescentPlan, users: Users, start: np.ndarray, rng: Rng) -> WindowResult:
        theta, velocity, points = start.copy(), np.zeros(plan.d), []
        everyone, grid = np.arange(plan.users), float(plan.noise.rows(plan.d)[0, 1])
        for _ in range(self.rounds):
            total = summed_gradients(users, theta, everyone, plan.bound, grid)
            try:
                velocity = _MOMENTUM * velocity + plan.noise.randomize(total, rng) / plan.users
            finally:
                total[:] = 0.0
            theta = users.project(theta - plan.rate * velocity)
            points.append(theta)
        return WindowResult(np.mean(points[self.rounds // 2 :], axis=0), self.rounds * plan.users)


def _noise(task: Task, mu: float) -> Gaussian:
    """The noise on the sum of the gradients of the users."""
    most = (task.bound + task.sensitivity) * task.users  # the second term is more than rounding to the grid adds
    return Gaussian(GaussianDP(mu), most, task.sensitivity * (1 + task.items * 2.0**-52))
