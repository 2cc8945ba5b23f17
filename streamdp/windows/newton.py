"""User-level private Newton steps: several passes over the users of a window, each with gradient and curvature.

A round releases the noisy sum of the users' average vectors (`optim.curvature`); `optim.newton` makes a step of the
averages of the later half of the rounds and of all earlier windows. The first rounds are cheap. They are far from the
answer, where the curvature is another one, so they only show the way.

Neighbours: all records of one user are replaced by any others; n, m and d are public. Trust: the process that holds the
window. Claim: the release is (epsilon, delta)-DP for the task's budget.

Proof: docs/proofs/window_newton.md.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import ClassVar

import numpy as np

from streamdp.errors import ConfigError, check_whole, is_number
from streamdp.optim.curvature import Curvature
from streamdp.optim.cuts import Cuts
from streamdp.optim.newton import Newton, Round
from streamdp.optim.newton_state import full
from streamdp.privacy.entropy import Rng
from streamdp.privacy.guarantees import ApproxDP, GaussianDP
from streamdp.privacy.mechanisms import Gaussian
from streamdp.reading import change
from streamdp.reading.batch_intervals import Spread
from streamdp.scaling.window_moments import WIDTH
from streamdp.windows.task import Method, Task, Users, WindowResult, too_few

_LOUDEST = 1 / 16  # the largest noise of the mean gradient over the bound
_MOST_ROUNDS = 1024
_PARTS, _LOOK, _CHEAP = 16, 1 / 16, 1 / 64  # of a window; the most and least of its mu^2 to look for a change in them
_SPREAD = 1 / 64  # of mu^2, for the spread of gradients
_MOVED = 1 / 32  # the least move of the mean gradient of the last quarter to show, over the bound
_HIDDEN = 2  # times mu^2: if that is needed to show it, which is half of mu^2 for twice the move, it is not looked for
_SURE = 16  # a change is detected with so many times the users whose noise is their own spread


@dataclass(frozen=True)
class NewtonPlan:
    """A plan of a run for n users; public.

    Each round has a share of mu^2. `variance` is that of a mean gradient times n without noise, and `deviation` the
    standard deviation of the noise of a sum that has the budget of all rounds. `look` is the noise by which a change
    within the window is looked for, None: it is not; and `least` are the fewest users to learn from after one. `spread`
    is the noise on `Users.squares`, None: there are several outputs, and no intervals.
    """

    curvature: Curvature
    users: int
    shares: tuple[float, ...]
    noises: tuple[Gaussian, ...]
    variance: float
    deviation: float
    own: tuple[int, ...]
    slopes: tuple[float, ...]
    least: int
    look: Gaussian | None
    spread: Gaussian | None

    def information(self, users: int) -> float:
        """What the window counts as with so many users: the inverse variance of their mean gradient."""
        return 1 / (self.variance / users + (self.deviation / users) ** 2 * self.curvature.parameters)


@dataclass(frozen=True)
class NewtonSteps(Method):
    """The method; its parameters matter for accuracy only.

    - `rounds`: how often the users of a window are asked, from 1 to 1024.
    - `growth`: by which factor the share of the budget grows from round to round, from 1 to 10.
    - `follow`: whether a change of the stream is looked for, between windows, and within one that has users enough to
      show it for a sixteenth of its mu^2 or less (see `streamdp.reading.change`).

    Raises `ConfigError` for numbers out of range.
    """

    rounds: int = 16
    growth: float = 1.5
    follow: bool = True

    name: ClassVar[str] = "newton"
    sums_only: ClassVar[bool] = True
    free: ClassVar[bool] = True

    def __post_init__(self) -> None:
        check_whole("rounds", self.rounds, 1, _MOST_ROUNDS)
        if not (is_number(self.growth) and 1 <= self.growth <= 10):
            raise ConfigError(f"growth: expected from 1 to 10, got {self.growth!r}")

    def memory(self, task: Task) -> int:
        return Newton.size(_curvature(task)) - task.d + _kept(_curvature(task))

    def plan(self, task: Task) -> NewtonPlan:
        """As `Method.plan`.

        Raises `TooFewUsersError` for users that the noise would hide, and `ConfigError` for a loss without curvature.
        """
        needed = self.least_users(task)
        if task.users < needed:
            raise too_few(self.name, task, needed)
        curvature, whole, look, spread = _curvature(task), _mu(task.budget), None, None
        if _kept(curvature):
            spread, whole = _noise_of_squares(task, whole * math.sqrt(_SPREAD)), whole * math.sqrt(1 - _SPREAD)
        if self.follow:
            deviation = float(_noise_of_parts(task, whole).rows(_PARTS * task.d)[0, 0])
            visible = 4 * _PARTS * change.least_sum(task.d) * (deviation / (_MOVED * task.bound * task.users)) ** 2
            if visible <= _HIDDEN:
                part = min(max(visible, _CHEAP), _LOOK)
                look, whole = _noise_of_parts(task, whole * math.sqrt(part)), whole * math.sqrt(1 - part)
        sizes = self.growth ** np.arange(1.0 - self.rounds, 1.0)
        shares = tuple((sizes / sizes.sum()).tolist())
        # The shares sum to 1 up to rounding, which costs less than the factor.
        noises = tuple(_noise(task, whole * math.sqrt(share) * (1 - 1e-12), task.users) for share in shares)
        variance = min(curvature.variance, task.spread**2)
        deviation = _deviation(task, whole)
        known = task.own, task.slopes
        return NewtonPlan(curvature, task.users, shares, noises, variance, deviation, *known, needed, look, spread)

    def least_users(self, task: Task) -> int:
        """As `Method.least_users`: about 16 sqrt(d) z / bound."""
        deviation = _deviation(task, _mu(task.budget))
        return max(1, math.ceil(deviation * math.sqrt(task.d) / (_LOUDEST * _curvature(task).bound)))

    def run(self, plan: NewtonPlan, users: Users, start: np.ndarray, rng: Rng) -> WindowResult:
        d, spent, n, since = plan.curvature.parameters, 0.0, plan.users, 0.0
        rounds: list[Round] = []
        steps = Newton(
            plan.curvature,
            start[:d],
            users.project,
            plan.deviation,
            follow=self.follow,
            own=plan.own,
            slopes=plan.slopes,
        )
        first = steps.state.of(start)
        if first.level.size:
            first = replace(first, level=np.array([users.link[0]]))
        if plan.curvature.loss.grows and not first.weight:
            point = first.point.copy()
            point[-1] = min(point[-1], Cuts(plan.curvature).usual(1 / WIDTH, plan.deviation / n))
            first = replace(first, point=point)
        steps.state = first
        for at, (share, noise) in enumerate(zip(plan.shares, plan.noises, strict=True)):
            if plan.look is not None and at == len(plan.shares) // 2:
                since = self._change(plan, plan.look, users, steps, rng)
                if since:
                    n, rounds, spent = users.keep_from(since), [], 0.0
                    first = steps.changed(first)
            deviation, grid = noise.rows(plan.curvature.size)[0, :2].tolist()
            noisy = _noisy(users.curvatures(plan.curvature, steps.middle, grid), noise, rng)
            rounds.append(Round(steps.estimate.copy(), noisy, deviation, share))
            spent += share
            steps.state = replace(first, point=steps.estimate)  # the first half of the rounds is forgotten
            steps.learn(rounds[len(rounds) // 2 :], n, spent * plan.information(n))
        if self.follow:
            steps.follow(_SURE)
        numbers = steps.state.numbers()
        before = start[len(numbers) :] * (steps.renewals == first.renewals and not since)
        if plan.spread is not None:
            before = before + self._squares(plan.curvature, plan.spread, users, steps.middle, rng, n)
        return WindowResult(np.append(numbers, before), len(plan.shares) * plan.users, since=since)

    def _squares(
        self, curvature: Curvature, noise: Gaussian, users: Users, theta: np.ndarray, rng: Rng, n: int
    ) -> np.ndarray:
        """The noisy sum of `Users.squares`, n, and the variance of the noise of a coordinate."""
        deviation, grid = noise.rows(_kept(curvature) - 2)[0, :2].tolist()
        noisy = _noisy(users.squares(curvature, theta, grid), noise, rng)
        return np.append(noisy, [n, deviation**2])

    def _change(self, plan: NewtonPlan, noise: Gaussian, users: Users, steps: Newton, rng: Rng) -> float:
        """The place of a change within the window, after which users enough follow; 0 if there is none."""
        d = plan.curvature.parameters
        deviation, grid = noise.rows(_PARTS * d)[0, :2].tolist()
        found = users.parts(steps.estimate, _PARTS, grid)
        if found is None:
            return 0.0
        sums, counts = found
        noisy = _noisy(sums, noise, rng)
        variances = steps.variances
        part = change.step(noisy[:, : len(variances)], counts, variances, deviation**2)
        if part is None or counts[part:].sum() < plan.least:
            return 0.0
        return (part + (_PARTS - part > 2)) / _PARTS  # the change is within a part next to the division

    def steps(self, task: Task, state: np.ndarray) -> Newton:
        deviation = _deviation(task, _mu(task.budget))
        steps = Newton(
            _curvature(task), state[: task.d], np.copy, deviation, follow=self.follow, own=task.own, slopes=task.slopes
        )
        steps.state, steps.records = steps.state.of(state), task.users
        return steps

    def spread(self, task: Task, state: np.ndarray) -> Spread | None:
        """As `Method.spread`, for a scale of 1."""
        curvature = _curvature(task)
        if not (size := _kept(curvature)) or not (n := float(state[-2])):
            return None
        q, bounds, variance = curvature.columns, curvature.squares, float(state[-1])
        parts = np.split(state[-size:-2], len(bounds))
        first, *more = (full(part * bound / n, q) for part, bound in zip(parts, bounds, strict=True))
        hessian = more[0] if more else None
        return Spread(first, variance * (bounds[0] / n) ** 2, hessian, variance * (bounds[-1] / n) ** 2)

    def in_other_units(self, task: Task, state: np.ndarray, theta: np.ndarray) -> np.ndarray:
        """As `Method.in_other_units`; how many changes were noticed stays known."""
        steps = self.steps(task, state)
        steps.state = replace(steps.state, point=theta)
        steps.begin_anew()
        return np.append(steps.state.numbers(), np.zeros(_kept(steps.curvature)))

    def check(self, task: Task, state: np.ndarray, check: Callable[[np.ndarray], None]) -> None:
        steps = self.steps(task, state)
        steps.state.check(steps.curvature, check)
        if np.any(state[len(steps.state.numbers()) :][-2:] < 0):
            raise ConfigError("state: its sums of squares are out of range")

    def merge(
        self, task: Task, states: Sequence[np.ndarray], average: np.ndarray, project: Callable[[np.ndarray], np.ndarray]
    ) -> np.ndarray:
        """As `Method.merge`: the sums of all, weighted by what they know; the answer stays the average of theirs.

        A step of the averages would lack what the rounds of each part said about the Hessian (`secants`).
        """
        whole = Newton(_curvature(task), average, project, 0.0, follow=self.follow, own=task.own, slopes=task.slopes)
        whole.merge([self.steps(task, state) for state in states], average)
        numbers = replace(whole.state, point=average).numbers()
        return np.append(numbers, np.sum([state[len(numbers) :] for state in states], axis=0))


@lru_cache(maxsize=16)
def _mu(budget: ApproxDP) -> float:
    return GaussianDP.from_approx(budget).mu


def _curvature(task: Task) -> Curvature:
    if task.curvature is None:
        raise ConfigError(
            'method="newton" needs a bounded curvature, which the Huber, squared, Poisson, logistic and softmax losses '
            "have"
        )
    return task.curvature


def _noise(task: Task, mu: float, users: int) -> Gaussian:
    """The noise on the sum of the vectors of so many users."""
    curvature = _curvature(task)
    sensitivity = curvature.sensitivity * (1 + task.items * 2.0**-52)
    most = (curvature.bound + curvature.sensitivity) * users  # the second term is more than rounding to the grid adds
    return Gaussian(GaussianDP(mu), most, sensitivity)


def _kept(curvature: Curvature) -> int:
    """How many numbers of `_squares` are kept."""
    parts = len(curvature.squares)
    return parts * curvature.columns * (curvature.columns + 1) // 2 + 2 * (parts > 0)


def _noise_of_squares(task: Task, mu: float) -> Gaussian:
    """The noise on `Users.squares`: each part of a user is at most 1 long, and those of two at most sqrt2 apart."""
    apart = math.sqrt(2 * len(_curvature(task).squares))
    return Gaussian(GaussianDP(mu), (1 + apart) * task.users, apart * (1 + 2 * task.items * 2.0**-52))


def _noise_of_parts(task: Task, mu: float) -> Gaussian:
    """The noise on the sums of gradients of parts: users in two parts are further apart than their lengths are."""
    most = (task.bound + task.sensitivity) * task.users
    apart = max(task.sensitivity, math.sqrt(2) * task.bound)
    return Gaussian(GaussianDP(mu), most, apart * (1 + task.items * 2.0**-52))


def _deviation(task: Task, mu: float) -> float:
    """z, the standard deviation of the noise on a sum, on each coordinate."""
    return float(_noise(task, mu, 1).rows(_curvature(task).size)[0, 0])


def _noisy(total: np.ndarray, noise: Gaussian, rng: Rng) -> np.ndarray:
    """A `total` with noise, in its shape; the total is overwritten."""
    try:
        return noise.randomize(total.ravel(), rng).reshape(total.shape)
    finally:
        total[:] = 0.0
