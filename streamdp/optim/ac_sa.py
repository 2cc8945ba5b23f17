"""Accelerated stochastic approximation (AC-SA) with private batch gradients: batch sizes and steps from the bounds.

Everything here is about accuracy. Privacy depends only on the batches being disjoint, not on any number chosen here.
For t = 0, 1, ..., T-1, theta_0 = ag_0 (Lan 2012; Cheu, Joseph, Mao, Peng 2022, Algorithms 4 and 6):

    md = alpha_t theta_t + (1 - alpha_t) ag_t,                                        alpha_t = 2 / (t + 2)
    theta_{t+1} = Proj(theta_t - G_t / L_t),  G_t a noisy gradient at md,              L_t = M / (t + 1)
    ag_{t+1} = alpha_t theta_{t+1} + (1 - alpha_t) ag_t

The paper counts t from 1. The bounds, those of averaged SGD, phases, non-smooth losses and epochs:
docs/proofs/accelerated.md.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

NEAR = 1.1  # of runs whose bounds differ by less, the one with the fewest steps is taken


@dataclass(frozen=True)
class Problem:
    """The assumptions of a plan: L (`bound`), beta (`smoothness`, may be inf), lambda (`convexity`) and D (`distance`).

    `noise` is the variance E||.||^2 that privacy adds to the average of b gradients, as a function of b. `spread` is
    the root mean square distance of one gradient from the mean; `bound` if None, its largest value. If not
    `accelerated`, averaged SGD is planned.
    """

    bound: float
    smoothness: float
    convexity: float
    distance: float
    noise: Callable[[int], float]
    accelerated: bool = True
    spread: float | None = None

    def variance(self, batch: int) -> float:
        """sigma^2, the variance of a noisy average of a batch of gradients."""
        return (self.bound if self.spread is None else self.spread) ** 2 / batch + self.noise(batch)

    def envelope(self, run: "Phase") -> float:
        """ENVELOPE of the compiled loops for a run: the width of the envelope of a non-smooth loss, else 0."""
        return 1 / run.beta if self.accelerated and math.isinf(self.smoothness) else 0.0


@dataclass(frozen=True)
class Phase:
    """One run of AC-SA or averaged SGD: T steps, each with a batch of records.

    `beta` is the smoothness of the loss, or of its envelope if the loss is non-smooth, `modulus` is M, and `excess` the
    bound on E f(output) - f*.
    """

    batch: int
    steps: int
    beta: float
    modulus: float
    excess: float


def run_of(problem: Problem, records: int, batch: int, distance: float, beta: float) -> Phase:
    """The run of AC-SA over a number of records, with the batch size reduced to it if larger.

    `distance` is D at the start of this run, `beta` the smoothness of the loss or its envelope.
    """
    batch = min(batch, records)
    steps = records // batch
    noise = _weighted(problem, batch, steps, distance)
    modulus = _modulus(beta, noise)
    bound = modulus + noise / modulus * (1 + 2 * beta / modulus)
    return Phase(batch, steps, beta, modulus, distance**2 * bound / (steps * (steps + 1)))


def _weighted(problem: Problem, batch: int, steps: int, distance: float) -> float:
    """q, the variance of the steps' gradients with their weights: sigma^2 (1^2 + ... + T^2) / D^2."""
    return problem.variance(batch) * steps * (steps + 1) * (2 * steps + 1) / 6 / distance**2


def _modulus(beta: float, noise: float) -> float:
    """M >= 2 beta with the least bound: 2 beta, or the root of M^3 = q (M + 4 beta) if it is larger."""
    if noise <= 4 / 3 * beta**2:
        return 2 * beta
    third = 6 * math.sqrt(3 / noise) * beta  # the root of a cubic by the cosine of a third of an angle
    share = math.cos(math.acos(third) / 3) if third <= 1 else math.cosh(math.acosh(third) / 3)
    return 2 * math.sqrt(noise / 3) * share


def _envelope_run(problem: Problem, records: int, batch: int, distance: float) -> Phase:
    """As `run_of`, for a non-smooth loss, with the envelope that has the least bound."""
    steps = records // min(batch, records)
    least = problem.bound / distance * math.sqrt(steps * (steps + 1)) / 2  # the best beta without noise
    noise = _weighted(problem, min(batch, records), steps, distance)
    near = 2 * least >= math.sqrt(noise)  # then M = 2 beta
    beta = math.sqrt(least**2 + noise / 2) if near else least * math.sqrt(1 + 4 * least / math.sqrt(noise))
    run = run_of(problem, records, batch, distance, beta)
    return replace(run, excess=run.excess + problem.bound**2 / (2 * beta))


def _averaged_run(problem: Problem, records: int, batch: int, distance: float) -> Phase:
    """As `run_of`, for averaged SGD, which needs no smoothness."""
    batch = min(batch, records)
    steps = records // batch
    size = math.sqrt(problem.bound**2 + problem.noise(batch))
    return Phase(batch, steps, problem.smoothness, size * math.sqrt(steps) / distance, distance * size / steps**0.5)


def _best_run(problem: Problem, records: int, batch: int | None, distance: float) -> Phase:
    """The best run over all batch sizes if `batch` is None, and over the envelopes."""
    sizes = [batch] if batch is not None else sorted({round(b) for b in np.geomspace(1, records, 129)})
    if not problem.accelerated:
        return _fewest([_averaged_run(problem, records, b, distance) for b in sizes])
    if math.isfinite(problem.smoothness):
        return _fewest([run_of(problem, records, b, distance, problem.smoothness) for b in sizes])
    return _fewest([_envelope_run(problem, records, b, distance) for b in sizes])


def _fewest(runs: Sequence[Phase]) -> Phase:
    """The fewest steps whose bound is within a tenth of the least: near it the bound is flat, and the noise falls."""
    near = NEAR * min(run.excess for run in runs)
    return min((run for run in runs if run.excess <= near), key=lambda run: (run.steps, run.excess))


def rounds_of(problem: Problem, users: int, distance: float, noises: dict[int, float]) -> Phase:
    """The run over the same n users in every round: the fewest rounds whose bound is within a tenth of the least.

    `distance` is D at the start. By number of rounds, `noises` is the variance E||.||^2 that privacy adds to the
    average of n gradients in one round.
    """

    def run_of_rounds(rounds: int, noise: float) -> Phase:
        same = replace(problem, noise=lambda _: noise, spread=0.0)
        return _best_run(same, rounds * users, users, distance)

    return _fewest([run_of_rounds(*each) for each in noises.items()])


def plan(problem: Problem, records: int, batch: int | None = None, distance: float | None = None) -> list[Phase]:
    """The phases for a stream: one for a convex loss, up to ceil(log2 log2 n) for a strongly convex one.

    The number of phases is the one with the least final bound. n is the number of records; a batch size of None is
    chosen; `distance` is D at the start, that of the problem if None.
    """
    reach = problem.distance if distance is None else distance
    if problem.convexity == 0:
        return [_best_run(problem, records, batch, reach)]
    best: list[Phase] = []
    for count in range(1, max(1, math.ceil(math.log2(max(1.0, math.log2(max(2, records)))))) + 1):
        at, phases = reach, []
        for _ in range(count):
            phases.append(_best_run(problem, max(1, records // count), batch, at))
            at = min(at, math.sqrt(2 * phases[-1].excess / problem.convexity))
        if not best or phases[-1].excess < best[-1].excess:
            best = phases
    return best


class Accelerated:
    """The sequences of AC-SA: `points` (2, d) holds theta and ag, `step` is t of the phase.

    They begin at `start` (d,), and `project` maps a vector (d,) to the nearest point of the domain.
    """

    def __init__(self, start: np.ndarray, project: Callable[[np.ndarray], np.ndarray]) -> None:
        self.points = np.stack([start, start]).astype(float)
        self.step = 0
        self._project = project

    @property
    def middle(self) -> np.ndarray:
        """md (d,), the point of the next gradient."""
        alpha = 2.0 / (self.step + 2)
        return alpha * self.points[0] + (1 - alpha) * self.points[1]

    def move(self, gradient: np.ndarray, modulus: float) -> None:
        """Make one step with the noisy gradient (d,) at `middle`; `modulus` is M of the phase."""
        alpha = 2.0 / (self.step + 2)
        self.points[0] = self._project(self.points[0] - gradient * ((self.step + 1) / modulus))
        self.points[1] = alpha * self.points[0] + (1 - alpha) * self.points[1]
        self.step += 1

    def restart(self) -> None:
        """Begin the next phase at the output of this one."""
        self.points[0] = self.points[1]
        self.step = 0


class Averaged(Accelerated):
    """Averaged SGD with the same interface: `points` holds theta and the average of all thetas before it."""

    @property
    def middle(self) -> np.ndarray:
        """theta (d,), the point of the next gradient."""
        return self.points[0].copy()

    def move(self, gradient: np.ndarray, modulus: float) -> None:
        self.points[1] += (self.points[0] - self.points[1]) / (self.step + 1)
        self.points[0] = self._project(self.points[0] - gradient / modulus)
        self.step += 1
