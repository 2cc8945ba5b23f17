"""How many steps, on how many users, how smooth: the plan of `smoothed`, from the bounds that are derived there."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from streamdp.optim.smoothing import constants
from streamdp.privacy.guarantees import GaussianDP
from streamdp.privacy.subsampling import nearly_normal
from streamdp.windows.task import Task

Noise = Callable[[Any, Any], Any]
"""The noise multiplier m for a rate and a number of steps."""

_MOST_STEPS = 10**5
_MOST_RUNS = 6
_MOST_REPEATS = 3
_REGULARISERS = (1.0, 3.0, 9.0)  # of the one that is best without noise
_SLACK = 1.1  # fewer queries are worth so much of a bound
_SHRINK = 4.0  # a run of a localisation that comes so much nearer than the last one is accurate enough
_STEP = 10.0  # what a step costs besides its gradients, in gradients
_SHARE = 0.1  # of the excess so far, for the last one and for what smoothing costs
_RAMPS = (1.0, 0.5, 0.25, 0.125)
_KAPPAS = np.geomspace(1e-3, 1, 7)


@dataclass(frozen=True)
class Run:
    """T = `steps` steps on the users from `first` to before `last`, each drawn with probability `rate`.

    Weights grow up to `ramp`; `noise` is m; `radius` that of the smoothing, 0 for a smooth loss; `modulus` psi;
    `convexity` lambda, that of a regulariser around the run's start where it is `regularised`; `excess` the bound on
    E Phi(output) - Phi*.
    """

    first: int
    last: int
    rate: float
    steps: int
    ramp: int
    noise: float
    radius: float
    modulus: float
    convexity: float
    regularised: bool
    excess: float

    @property
    def queries(self) -> float:
        """Gradients of single users that are expected to be asked for."""
        return self.rate * (self.last - self.first) * self.steps


@dataclass(frozen=True)
class Plan:
    """Runs in their order; `bound` is L, `excess` the bound on the expected excess loss."""

    bound: float
    runs: tuple[Run, ...]
    excess: float

    @property
    def queries(self) -> int:
        """Gradients of single users that are expected to be asked for."""
        return math.ceil(sum(run.queries for run in self.runs))


def weight_sum(steps: Any, ramp: Any) -> Any:
    """W_T: the sum of min(t, ramp) for t up to T >= ramp."""
    return ramp * (ramp + 1) / 2 + ramp * (steps - ramp)


def run_bound(steps: Any, ramp: Any, distance: Any, convexity: float, smoothness: Any, sigma: Any) -> tuple[Any, Any]:
    """(excess, psi) of one run with the best kappa. All but `convexity` are arrays of one shape."""
    total = weight_sum(steps, ramp)
    squares = ramp * (ramp + 1) * (2 * ramp + 1) / 6 + ramp**2 * (steps - ramp)
    kappa = (sigma / distance * np.sqrt(squares) / 2)[..., None] * _KAPPAS  # the last is the best for lambda = 0
    sums = squares[..., None] / (4 * kappa)
    if convexity > 0:
        z = (ramp[..., None] + 1) * np.sqrt(convexity / kappa) / 2
        growing = (ramp[..., None] + 1) / convexity * (1 - np.arctan(z) / z)
        ends = (2 * convexity * w[..., None] + 4 * kappa for w in (total, ramp * (ramp + 1) / 2))
        level = ramp[..., None] / (2 * convexity) * np.log(np.divide(*ends))
        sums = np.minimum(sums, growing + level)
    bounds = ((smoothness[..., None] + kappa) * distance[..., None] ** 2 + sigma[..., None] ** 2 * sums) / total[
        ..., None
    ]
    best = np.argmin(bounds, axis=-1)[..., None]
    excess, kappa = (np.take_along_axis(array, best, axis=-1)[..., 0] for array in (bounds, kappa))
    return excess, smoothness + kappa


def rough_noise(task: Task) -> Noise:
    """Noise multipliers at once, for the search."""
    return partial(nearly_normal, GaussianDP.from_approx(task.budget).mu)


@dataclass(frozen=True)
class _Goal:
    """What runs on the users from `first` to before `last` are to do. `radius` None: free, and its price counts."""

    first: int
    last: int
    distance: float
    convexity: float
    regularised: bool = False
    radius: float | None = None
    repeats: int = 1
    enough: float = 0.0

    def runs(self, task: Task, steps: Any, rate: Any, share: Any, noise: Noise) -> list[dict[str, Any]]:
        """What the runs are for T, q and ramp / T (arrays of one shape), each from the last one's output."""
        parts = [2.0 ** (i - self.repeats) for i in range(self.repeats)]
        lengths = [np.ceil(steps * part / sum(parts)) for part in parts]
        m, drawn = noise(rate, sum(lengths)), rate * (self.last - self.first)
        sigma = task.bound * np.sqrt((1 - rate) / drawn + task.d * (m / drawn) ** 2)
        distance = np.full(steps.shape, self.distance)
        found = []
        for length in lengths:
            ramp = np.ceil(share * length)
            radius, price, smoothness = np.zeros(steps.shape), 0.0, np.full(steps.shape, task.smoothness)
            if math.isinf(task.smoothness):
                price, smooth = constants(task.d)
                radius = distance * np.sqrt(smooth / price / weight_sum(length, ramp))
                if self.radius is not None:
                    radius, price = np.full(steps.shape, self.radius), 0.0
                smoothness = task.bound * smooth / radius
            if self.regularised:
                smoothness = smoothness + self.convexity
            excess, modulus = run_bound(length, ramp, distance, self.convexity, smoothness, sigma)
            excess = excess + task.bound * price * radius
            found.append(
                {"steps": length, "ramp": ramp, "noise": m, "radius": radius, "modulus": modulus, "excess": excess}
            )
            if self.convexity:
                distance = np.minimum(distance, np.sqrt(2 * excess / self.convexity))
        return found

    def best(self, task: Task, noise: Noise, most_queries: float) -> list[Run]:
        """The cheapest runs whose bound is `enough`, or within 10 % of the least."""
        users = self.last - self.first
        grid = np.unique(np.rint(np.geomspace(1, max(1.0, min(_MOST_STEPS, most_queries)), 40)))
        axes = np.meshgrid(grid, np.geomspace(1 / users, 1, 20), _RAMPS, indexing="ij")
        steps, rate, share = (axis.ravel() for axis in axes)
        rough = self.runs(task, steps, rate, share, rough_noise(task))
        steps, excess = sum(run["steps"] for run in rough), rough[-1]["excess"]
        queries = steps * rate * users
        excess = np.where(queries <= most_queries, excess, math.inf)
        accurate = excess <= max(_SLACK * float(excess.min()), self.enough)
        at = int(np.argmin(np.where(accurate, queries + _STEP * steps, math.inf)))

        def scalar(q: Any, steps: Any) -> Any:
            return np.array([noise(float(q[0]), int(steps[0]))])

        T, q, ramps = (axis.ravel()[[at]] for axis in axes)
        chosen = self.runs(task, T, q, ramps, scalar)
        return [
            Run(
                self.first,
                self.last,
                float(rate[at]),
                convexity=self.convexity,
                regularised=self.regularised,
                steps=int(run.pop("steps")[0]),
                ramp=int(run.pop("ramp")[0]),
                **{name: float(value[0]) for name, value in run.items()},
            )
            for run in chosen
        ]


def repeated(task: Task, repeats: int, most_queries: float, noise: Noise) -> Plan:
    """Runs on all users, each from the last one's output."""
    goal = _Goal(0, task.users, task.distance, task.convexity, repeats=repeats)
    runs = goal.best(task, noise, most_queries)
    return Plan(task.bound, tuple(runs), runs[-1].excess)


def localised(task: Task, blocks: int, count: int, multiple: float, most_queries: float, noise: Noise) -> Plan:
    """Blocks of `count` runs, all on users of their own, with so many times the regulariser that no noise asks for."""
    runs: list[Run] = []
    distance, excess, first = task.distance, math.inf, 0
    for block in range(blocks):
        end = task.users >> (blocks - 1 - block)
        size, near, excess = end - first, distance, 0.0
        for i in range(1, count + 1):
            last = end if i == count else first + (size >> i)
            n = last - first
            convexity = multiple * 2 * task.bound / (near * math.sqrt(n))
            radius, price = 0.0, 2 * task.bound**2 / (convexity * n)
            if math.isinf(task.smoothness):
                radius = _SHARE * near / (math.sqrt(n) * constants(task.d)[0])
                price += _SHARE * task.bound * near / math.sqrt(n)
            start = near**2 + 2 / convexity * (excess + price)
            excess += convexity * near**2 / 2 + price
            target = near / _SHRINK if i < count else _SHARE * excess / task.bound
            goal = _Goal(
                first,
                last,
                min(task.bound / convexity, math.sqrt(start)),
                convexity,
                regularised=True,
                radius=radius,
                enough=convexity / 2 * target**2,
            )
            [run] = goal.best(task, noise, most_queries * n / task.users)
            runs.append(run)
            near, first = math.sqrt(2 * run.excess / convexity), last
        excess += task.bound * near
        if task.convexity:
            distance = min(distance, math.sqrt(2 * excess / task.convexity))
    return Plan(task.bound, tuple(runs), excess)


def builders(task: Task, expected: bool, most_queries: int | None) -> list[partial[Plan]]:
    """Plans to choose from, to be called with `noise`: for the expected loss, or for that of the window's users."""
    most = math.inf if most_queries is None else float(most_queries)
    repeats = range(1, _MOST_REPEATS + 1 if task.convexity else 2)
    if not expected:
        return [partial(repeated, task, k, most) for k in repeats]
    return [
        partial(localised, task, blocks, count, multiple, most)
        for blocks in repeats
        for multiple in _REGULARISERS
        for count in range(1, _MOST_RUNS + 1)
        if 2 ** (blocks + count - 2) <= min(task.users, most)
    ]
