"""How many steps, on how many users, how smooth: the plan of `smoothed`, from the bounds that are derived there."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from streamdp.accounting.subsampling import nearly_normal
from streamdp.convolution import constants
from streamdp.guarantees import GaussianDP
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
_KAPPAS = np.geomspace(1e-3, 1, 7)


@dataclass(frozen=True)
class Run:
    """T = `steps` steps on the users from `first` to before `last`, each drawn with probability `rate`.

    `noise` is m; `radius` that of the smoothing, 0 for a smooth loss; `modulus` psi; `convexity` lambda, that of a
    regulariser around the run's start where it is `regularised`; `excess` the bound on E Phi(output) - Phi*.
    """

    first: int
    last: int
    rate: float
    steps: int
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


def run_bound(steps: Any, distance: Any, convexity: float, smoothness: Any, sigma: Any) -> tuple[Any, Any]:
    """(excess, psi) of one run: the bound with the best kappa. Arrays are broadcast."""
    pairs = steps * (steps + 1.0)
    cubes = pairs * (2 * steps + 1) / 24
    kappa = (sigma / distance * np.sqrt(cubes))[..., None] * _KAPPAS  # the last one is the best for lambda = 0
    sums = cubes[..., None] / kappa
    if convexity > 0:
        z = (steps[..., None] + 1) * np.sqrt(convexity / kappa) / 2
        sums = np.minimum(sums, (steps[..., None] + 1) / convexity * (1 - np.arctan(z) / z))
    reach, square = np.asarray(distance)[..., None], np.asarray(sigma)[..., None] ** 2
    bounds = 2 * ((np.asarray(smoothness)[..., None] + kappa) * reach**2 + square * sums) / pairs[..., None]
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

    def runs(self, task: Task, steps: Any, rate: Any, noise: Noise) -> list[dict[str, Any]]:
        """What the runs are for T and q (arrays of one shape), each from the last one's output."""
        shares = [2.0 ** (i - self.repeats) for i in range(self.repeats)]
        lengths = [np.ceil(steps * share / sum(shares)) for share in shares]
        m, drawn = noise(rate, sum(lengths)), rate * (self.last - self.first)
        sigma = task.bound * np.sqrt((1 - rate) / drawn + task.d * (m / drawn) ** 2)
        distance: Any = np.full(np.shape(steps), self.distance)
        found = []
        for length in lengths:
            radius: Any = 0.0
            smoothness: Any = task.smoothness
            price = 0.0
            if math.isinf(task.smoothness):
                price, smooth = constants(task.d)
                radius = distance * np.sqrt(2 * smooth / price / (length * (length + 1)))
                radius = radius if self.radius is None else np.full(np.shape(steps), self.radius)
                smoothness = task.bound * smooth / radius
            smoothness = smoothness + (self.convexity if self.regularised else 0.0) + np.zeros(np.shape(steps))
            excess, modulus = run_bound(length, distance, self.convexity, smoothness, sigma)
            if self.radius is None:
                excess = excess + task.bound * price * radius
            found.append({"steps": length, "noise": m, "radius": radius, "modulus": modulus, "excess": excess})
            if self.convexity:
                distance = np.minimum(distance, np.sqrt(2 * excess / self.convexity))
        return found

    def best(self, task: Task, noise: Noise, most_queries: float) -> list[Run]:
        """The cheapest runs whose bound is `enough`, or within 10 % of the least."""
        users = self.last - self.first
        most_steps = max(1.0, min(_MOST_STEPS, most_queries))
        grid = np.unique(np.rint(np.geomspace(1, most_steps, 50)))
        steps, rate = (a.ravel() for a in np.meshgrid(grid, np.geomspace(1 / users, 1, 25), indexing="ij"))
        excess = self.runs(task, steps, rate, rough_noise(task))[-1]["excess"]
        queries = steps * rate * users
        excess = np.where(queries <= most_queries, excess, math.inf)
        accurate = excess <= max(_SLACK * float(excess.min()), self.enough)
        at = int(np.argmin(np.where(accurate, queries + _STEP * steps, math.inf)))
        q = float(rate[at])

        def scalar(q: Any, steps: Any) -> Any:
            return np.array([noise(float(q[0]), int(steps[0]))])

        chosen = self.runs(task, steps[[at]], rate[[at]], scalar)
        return [
            Run(
                self.first,
                self.last,
                q,
                int(run["steps"][0]),
                float(run["noise"][0]),
                float(np.ravel(run["radius"])[0]),
                float(run["modulus"][0]),
                self.convexity,
                self.regularised,
                float(run["excess"][0]),
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
        if 2 ** (blocks + count - 2) <= task.users
    ]
