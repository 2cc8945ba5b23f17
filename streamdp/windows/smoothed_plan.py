"""The plan of `smoothed`: how many steps, on how many users, how smooth. docs/proofs/window_smoothed.md has the bounds.

Privacy does not depend on any number of this file: `smoothed` calibrates the noise to the plan, whatever the plan is.
The constants below limit and direct a search for a small bound; why they have these values is on that page, too.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from streamdp.optim.smoothing import constants
from streamdp.privacy.guarantees import GaussianDP
from streamdp.privacy.subsampling import nearly_normal
from streamdp.windows.regularisers import Regulariser
from streamdp.windows.task import Task

Noise = Callable[[object, object], object]
"""The noise multiplier m for a rate and a number of steps."""

_MOST_STEPS = 10**5  # of a run
_MOST_RUNS = 6  # of a localisation
_MOST_REPEATS = 3  # runs on the same users
_REGULARISERS = (1.0, 3.0, 9.0)  # multiples of lambda_i
_SLACK = 1.1  # of the least bound
_SHRINK = 4.0  # how much nearer a run of a localisation ends
_STEP = 10.0  # gradients that a step costs besides
_SHARE = 0.1  # of the excess, for smoothing and for the last run
_RAMPS = (1.0, 0.5, 0.25, 0.125)  # candidates for tau / T
_KAPPAS = np.geomspace(1e-3, 1, 7)  # candidates for kappa, relative to the best one for lambda = 0


@dataclass(frozen=True)
class Run:
    """One run, on the users with indices from `first` to `last` - 1.

    Each of the T steps draws each of them with the probability `rate`, and the weights of the steps grow up to tau
    (`ramp`). `noise` is m, the noise multiplier, `radius` that of the smoothing (0 for a smooth loss), `modulus` is
    psi, `convexity` lambda, and `pull` how much of it is that of the squared distance from the start of the run.
    `excess` is the bound on E Phi(output) - Phi*.
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
    pull: float
    excess: float

    @property
    def queries(self) -> float:
        """The expected number of gradients of single users."""
        return self.rate * (self.last - self.first) * self.steps


@dataclass(frozen=True)
class SmoothedPlan:
    """The runs for a window in their order, with the bound L of a gradient and that on the expected excess loss."""

    bound: float
    runs: tuple[Run, ...]
    excess: float

    @property
    def queries(self) -> int:
        """The expected number of gradients of single users."""
        return math.ceil(sum(run.queries for run in self.runs))


def weight_sum(steps: Any, ramp: Any) -> Any:
    """W_T, the sum of min(t, ramp) for t from 1 to `steps`, T; ramp <= T; numbers or arrays of one shape."""
    return ramp * (ramp + 1) / 2 + ramp * (steps - ramp)


def run_bound(steps: Any, ramp: Any, distance: Any, convexity: float, smoothness: Any, sigma: Any) -> tuple[Any, Any]:
    """(excess, psi) of one run with the best kappa, arrays of one shape; see `smoothed`.

    `steps` T, `ramp` tau, `distance` D_0, `smoothness` beta and `sigma`, the root mean square error of a gradient, are
    arrays; `convexity` is the number lambda >= 0.
    """
    total = weight_sum(steps, ramp)
    squares = ramp * (ramp + 1) * (2 * ramp + 1) / 6 + ramp**2 * (steps - ramp)
    kappa = (sigma / distance * np.sqrt(squares) / 2)[..., None] * _KAPPAS
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
    """Approximate noise multipliers for the search; they need no numerical accounting."""
    return partial(nearly_normal, GaussianDP.from_approx(task.budget).mu)


@dataclass(frozen=True)
class _Goal:
    """What runs on the users from `first` to `last` - 1 have to reach.

    `convexity` is lambda, and `curved` what the pull and the regulariser add to beta. If `radius` is None the search
    chooses it, and what smoothing costs counts.
    """

    first: int
    last: int
    distance: float
    convexity: float
    curved: float
    pull: float = 0.0
    radius: float | None = None
    repeats: int = 1
    enough: float = 0.0

    def runs(self, task: Task, steps: Any, rate: Any, share: object, noise: Noise) -> list[dict[str, Any]]:
        """The runs for T, q and tau / T (arrays of one shape); each run starts at the output of the run before."""
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
            excess, modulus = run_bound(length, ramp, distance, self.convexity, smoothness + self.curved, sigma)
            excess = excess + task.bound * price * radius
            found.append(
                {"steps": length, "ramp": ramp, "noise": m, "radius": radius, "modulus": modulus, "excess": excess}
            )
            if self.convexity:
                distance = np.minimum(distance, np.sqrt(2 * excess / self.convexity))
        return found

    def best(self, task: Task, noise: Noise, most_queries: float) -> list[Run]:
        """The runs with the fewest gradients whose bound is at most `enough` or within 10 % of the least."""
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

        def scalar(q: Any, steps: Any) -> object:
            return np.array([noise(float(q[0]), int(steps[0]))])

        T, q, ramps = (axis.ravel()[[at]] for axis in axes)
        chosen = self.runs(task, T, q, ramps, scalar)
        return [
            Run(
                self.first,
                self.last,
                float(rate[at]),
                convexity=self.convexity,
                pull=self.pull,
                steps=int(run.pop("steps")[0]),
                ramp=int(run.pop("ramp")[0]),
                **{name: float(value[0]) for name, value in run.items()},
            )
            for run in chosen
        ]


def repeated(task: Task, h: Regulariser | None, repeats: int, most_queries: float, noise: Noise) -> SmoothedPlan:
    """A number of runs (repeats) on all users; each starts at the output of the run before.

    `most_queries` is the largest expected number of gradients of single users.
    """
    convexity, smoothness = _constants(h)
    goal = _Goal(0, task.users, task.distance, task.convexity + convexity, smoothness, repeats=repeats)
    runs = goal.best(task, noise, most_queries)
    return SmoothedPlan(task.bound, tuple(runs), runs[-1].excess)


def localised(
    task: Task, h: Regulariser | None, blocks: int, count: int, multiple: float, most_queries: float, noise: Noise
) -> SmoothedPlan:
    """A number of blocks with a count of runs each, all on disjoint users, by localisation.

    `multiple` is the regulariser as a multiple of the one that is best without noise, `most_queries` that of
    `repeated`.
    """
    runs: list[Run] = []
    known, smoothness = _constants(h)
    distance, excess, first = task.distance, math.inf, 0
    for block in range(blocks):
        end = task.users >> (blocks - 1 - block)
        size, near, excess = end - first, distance, 0.0
        for i in range(1, count + 1):
            last = end if i == count else first + (size >> i)
            n = last - first
            pull = multiple * 2 * task.bound / (near * math.sqrt(n))
            convexity = pull + known
            radius, price = 0.0, 2 * task.bound**2 / (convexity * n)
            if math.isinf(task.smoothness):
                radius = _SHARE * near / (math.sqrt(n) * constants(task.d)[0])
                price += _SHARE * task.bound * near / math.sqrt(n)
            start = math.sqrt(near**2 + 2 / pull * (excess + price))
            excess += pull * near**2 / 2 + price
            slope = task.bound
            if h is None:
                start = min(task.bound / pull, start)
            else:
                slope += task.bound + pull * start
            target = near / _SHRINK if i < count else _SHARE * excess / slope
            goal = _Goal(
                first, last, start, convexity, pull + smoothness, pull, radius=radius, enough=convexity / 2 * target**2
            )
            [run] = goal.best(task, noise, most_queries * n / task.users)
            runs.append(run)
            near, first = math.sqrt(2 * run.excess / convexity), last
        excess += slope * near + (0.0 if h is None else run.excess)
        if task.convexity + known:
            distance = min(distance, math.sqrt(2 * excess / (task.convexity + known)))
    return SmoothedPlan(task.bound, tuple(runs), excess)


def _constants(h: Regulariser | None) -> tuple[float, float]:
    return (0.0, 0.0) if h is None else (float(h.convexity), float(h.smoothness))


def builders(
    task: Task, h: Regulariser | None, expected: bool, most_queries: int | None
) -> list[partial[SmoothedPlan]]:
    """Plans to choose from, for the expected loss or the average loss of the users; each is called with `noise`.

    `most_queries` is that of `repeated`; None for no limit.
    """
    most = math.inf if most_queries is None else float(most_queries)
    repeats = range(1, _MOST_REPEATS + 1 if task.convexity + _constants(h)[0] else 2)
    if not expected:
        return [partial(repeated, task, h, k, most) for k in repeats]
    return [
        partial(localised, task, h, blocks, count, multiple, most)
        for blocks in repeats
        for multiple in _REGULARISERS
        for count in range(1, _MOST_RUNS + 1)
        if 2 ** (blocks + count - 2) <= min(task.users, most)
    ]
