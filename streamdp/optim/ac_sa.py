"""Accelerated stochastic approximation (AC-SA) with private batch gradients: batch sizes and steps from the bounds.

Everything here is about accuracy. Privacy depends only on the batches being disjoint, not on any number chosen here.

AC-SA. For t = 0, 1, ..., T-1, theta_0 = ag_0 (Lan 2012; Cheu, Joseph, Mao, Peng 2022, Algorithms 4 and 6):

    md = alpha_t theta_t + (1 - alpha_t) ag_t,                                        alpha_t = 2 / (t + 2)
    theta_{t+1} = Proj(theta_t - G_t / L_t),  G_t a noisy gradient at md,              L_t = M / (t + 1)
    ag_{t+1} = alpha_t theta_{t+1} + (1 - alpha_t) ag_t

M and the bound. For a beta-smooth convex f, E G_t = grad f(md), E||G_t - grad f(md)||^2 <= sigma^2 and L_t > beta
alpha_t, Lan's one-step inequality divided by Gamma_t = 2 / ((t+1)(t+2)) gives, because alpha_t / Gamma_t = t + 1,

    (f(ag_T) - f*) T (T+1) / 2 <= sum_t (t+1) [ L_t/2 (||theta_t - x*||^2 - ||theta_{t+1} - x*||^2)
                                                + sigma^2 / (2 (L_t - beta alpha_t)) ]      in expectation.

With L_t = M / (t+1) the first sum telescopes to M D^2 / 2, where D only bounds the distance from the start to the
optimum. L_t - beta alpha_t >= (M - 2 beta) / (t+1) and sum (t+1)^2 = T (T+1) (2T+1) / 6. So the best M is

    M = 2 beta + (sigma / D) sqrt(T (T+1) (2T+1) / 6),
    E f(ag_T) - f* <= 2 beta D^2 / (T (T+1)) + D sigma sqrt(2 (2T+1) / (3 T (T+1))).

The paper prints M = beta + (T+2)^(3/2) sigma / D. Its noise term is sqrt(3) times this one, which costs a constant
factor, and its beta is half of what L_t > beta alpha_t requires.

Averaged SGD (`Averaged`; Algorithm 3 of Cheu et al., which prints theta + eta g) is the baseline: theta_{t+1} =
Proj(theta_t - G_t / M). Its output is the average of theta_0, ..., theta_{T-1}. With E||G_t||^2 <= Q = L^2 + noise and
the best step, M = sqrt(Q T) / D, it has E f - f* <= D sqrt(Q / T) (their Lemma 4.2).

Strong convexity. If f - f* >= lambda/2 ||x - x*||^2, f is minimised in phases that each start at the output of the
phase before. After a phase with excess at most Delta, E||x - x*||^2 <= 2 Delta / lambda, which is D^2 of the next
phase.

Non-smooth losses. f is replaced by its Moreau envelope, which is beta-smooth and below f by at most L^2 / (2 beta).
beta is chosen together with the batch.

The same people in every round. T rounds over n people have no error of sampling but for that of the people: sigma^2 is
the noise of one round. The budget is for all rounds, so sigma^2 is about T times that of one round, and the bound is

    2 beta D^2 / (T (T+1)) + D sigma_1 sqrt(2 (2T+1) / (3 (T+1))),

sigma_1^2 being the noise of a plan of one round. From about T = sqrt(beta D / sigma_1) on more rounds gain little.
Averaged gradient descent (Cheu et al., Algorithm 5) has D sqrt(L^2 / T + sigma_1^2), and needs (L / sigma_1)^2 rounds.

Unknown length. A stream of unknown length is learned in epochs of doubling length that each start at the output of the
epoch before. All are planned with the D of the first: no later start is further away than 2 D, so 4 times the bound
holds for them.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np


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
    sigma = math.sqrt(problem.variance(batch))
    squares = steps * (steps + 1) * (2 * steps + 1) / 6
    modulus = 2 * beta + sigma / distance * math.sqrt(squares)
    pairs = steps * (steps + 1)
    excess = 2 * beta * distance**2 / pairs + distance * sigma * math.sqrt(2 * (2 * steps + 1) / (3 * pairs))
    return Phase(batch, steps, beta, modulus, excess)


def _averaged_run(problem: Problem, records: int, batch: int, distance: float) -> Phase:
    """As `run_of`, for averaged SGD, which needs no smoothness."""
    batch = min(batch, records)
    steps = records // batch
    size = math.sqrt(problem.bound**2 + problem.noise(batch))
    return Phase(batch, steps, problem.smoothness, size * math.sqrt(steps) / distance, distance * size / steps**0.5)


def _best_run(problem: Problem, records: int, batch: int | None, distance: float) -> Phase:
    """The run with the least bound, over all batch sizes if `batch` is None, and over the envelopes."""
    sizes = [batch] if batch is not None else sorted({round(b) for b in np.geomspace(1, records, 129)})
    if not problem.accelerated:
        return min((_averaged_run(problem, records, b, distance) for b in sizes), key=lambda p: p.excess)
    if math.isfinite(problem.smoothness):
        return min((run_of(problem, records, b, distance, problem.smoothness) for b in sizes), key=lambda p: p.excess)
    best = None
    for size in sizes:
        # excess = first * beta + rest + L^2 / (2 beta) is least at this beta.
        steps = records // min(size, records)
        beta = problem.bound / distance * math.sqrt(steps * (steps + 1)) / 2
        run = run_of(problem, records, size, distance, beta)
        run = Phase(run.batch, run.steps, beta, run.modulus, run.excess + problem.bound**2 / (2 * beta))
        best = run if best is None or run.excess < best.excess else best
    assert best is not None
    return best


def rounds_of(problem: Problem, users: int, distance: float, noises: dict[int, float]) -> Phase:
    """The run over the same n users in every round: the fewest rounds whose bound is within a tenth of the least.

    `distance` is D at the start. By number of rounds, `noises` is the variance E||.||^2 that privacy adds to the
    average of n gradients in one round.
    """

    def run_of_rounds(rounds: int, noise: float) -> Phase:
        same = replace(problem, noise=lambda _: noise, spread=0.0)
        return _best_run(same, rounds * users, users, distance)

    runs = [run_of_rounds(*each) for each in noises.items()]
    least = min(run.excess for run in runs)
    return min((run for run in runs if run.excess <= 1.1 * least), key=lambda run: run.steps)


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
        middle: np.ndarray = alpha * self.points[0] + (1 - alpha) * self.points[1]
        return middle

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
        theta: np.ndarray = self.points[0].copy()
        return theta

    def move(self, gradient: np.ndarray, modulus: float) -> None:
        """See `Accelerated.move`."""
        self.points[1] += (self.points[0] - self.points[1]) / (self.step + 1)
        self.points[0] = self._project(self.points[0] - gradient / modulus)
        self.step += 1
