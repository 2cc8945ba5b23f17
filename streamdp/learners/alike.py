"""How many raw records teach as much as LDP reports do: what the trust in a process is worth."""

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np

from streamdp.learners.batches import BatchPlan
from streamdp.learners.linear_problem import Columns, LinearProblem
from streamdp.learners.pan import PanBatches
from streamdp.optim.curvature import Curvature, has_curvature
from streamdp.optim.losses import Loss, loss_for
from streamdp.privacy.entropy import FreshWords
from streamdp.privacy.guarantees import ApproxDP, Budget, PureDP, parse_budget
from streamdp.privacy.mechanisms import mechanism_for
from streamdp.reading.doubts import rounded

USUAL = 100_000  # records of a comparison, if it is not known how many are expected


@dataclass(frozen=True)
class Alike:
    """How many records teach as much as a number of LDP reports, if this process may see them raw."""

    process: int  # trust: process
    window: int  # trust: window


@lru_cache(maxsize=64)
def alike(
    loss: str | Loss, columns: int, budget: Budget | str, records: int, mechanism: Any = "auto", delta: float = 1e-8
) -> Alike | None:
    """Return how many raw records teach as much as LDP reports do; None for a loss without curvature.

    The arguments, with the name or class of the `mechanism`, are as for `prospect.planned`; a budget without delta gets
    this `delta`. What teaches as much has the same variance of the mean gradient: (V + N) / n for n reports with V of a
    gradient and N of the noise of one; 1 / sum of 1 / (V/b + z^2 d/b^2) over pan-private batches b; V/m + z^2 d/(2 m^2)
    for a window of m, which has half their noise. To that comes about what it takes to find the units of columns and
    target: N_0 = z^2 d/V records, or a quarter.
    """
    loss, budget = loss_for(loss), parse_budget(budget)
    if not has_curvature(loss):
        return None
    problem = LinearProblem(loss, PanBatches.default_domain, classes=2 if loss.of_classes else 0)
    d, variance = problem.size(columns), Curvature(loss, columns + 1, problem.outputs).variance
    noise = mechanism_for(mechanism, budget)(budget, loss.bound, loss.sensitivity).variance(d)
    needed = records / (1 + noise / variance)
    central = ApproxDP(budget.epsilon, delta) if isinstance(budget, PureDP) else budget
    learner = PanBatches(problem, central, FreshWords(), BatchPlan(), mechanism="auto")
    learner.begin(Columns(np.zeros(columns), np.ones(columns), np.zeros(columns, dtype=bool)))
    steps: Any = learner.batch_steps
    known = 0.0
    total = float(steps.least)
    for batch, times in steps.runs():
        each = batch / (1 + steps.least / batch)
        taken = min(times, max(1, math.ceil((needed - known) / each)))
        known, total = known + taken * each, total + taken * batch
        if known >= needed:
            break
    window = (needed + math.sqrt(needed**2 + 2 * needed * steps.least)) / 2 + steps.least / 4
    return Alike(min(records, int(total)), min(records, math.ceil(window)))


def cheaper(
    loss: str | Loss, columns: int, budget: Budget, records: int, mechanism: object = "auto", delta: float = 1e-8
) -> str | None:
    """Say what LDP costs, if this process sees raw records anyway; None if it is not known, or less than twice.

    `loss`, `columns`, `budget`, `records`, `mechanism` and `delta` are as for `alike`; the sentence has no full stop.
    """
    found = alike(loss, columns, budget, records, mechanism, delta)
    if found is None or found.process >= records / 2:
        return None
    return (
        f"each record is randomised alone (LDP) although this process sees it raw: with {budget}, {records:,} "
        f"records teach a model about as much as {rounded(found.process):,} do with trust: process, by `streamdp plan`"
    )
