"""Algorithm 5 and the groups of Theorem 4.9 of Cheu et al. 2022: the same people answer in every round, in one process.

The library learns from a cohort by messages (`streamdp.protocol.cohort`), and n rounds of n people send gigabytes.
Here only the numbers of ones of all people are drawn, which have the same law: places are rounded for each person, and
the fair bits of all people are one binomial number.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from streamdp.aggregation.shuffled_sum import Analyzer
from streamdp.aggregation.vector_sum import VectorSum
from streamdp.learners.shuffle import ShuffleBatches
from streamdp.optim.ac_sa import Phase, rounds_of
from streamdp.optim.loops import ENVELOPE
from streamdp.optim.planned import Planned
from streamdp.optim.user_averages import gradients

_ROWS = 16_384
"""The most gradients in memory at a time."""


def steps_of(learner: ShuffleBatches) -> Planned:
    """The steps of a planned method, which a cohort continues."""
    assert isinstance(learner.batch_steps, Planned)
    return learner.batch_steps


def planned_rounds(learner: ShuffleBatches, users: int, rounds: int | None, distance: float) -> Phase:
    """The plan for so many users and rounds (None: planned), from a point at this distance of the best one."""
    return rounds_of(steps_of(learner).problem, users, distance, learner.noises(users, rounds))


def groups(convexity: float, people: int) -> int:
    """How many groups are asked one after another: ceil(log2 log2 n) for a strongly convex loss."""
    return math.ceil(math.log2(max(2.0, math.log2(max(2, people))))) if convexity else 1


def learn_cohort(model: Any, X: np.ndarray, y: np.ndarray, rng: np.random.Generator, rounds: int | None = None) -> None:
    """Teach a shuffled estimator of a planned method raw X (n, p) and y (n,), all people of a group in each round.

    Each of the `groups` begins at the output of the last. The model does not count the spend.
    """
    learner: ShuffleBatches = model.learner
    steps, convexity, lipschitz = steps_of(learner), learner.region.convexity, learner.problem.loss.bound
    distance = steps.problem.distance
    for rows in np.array_split(np.arange(len(X)), groups(convexity, len(X))):
        run = planned_rounds(learner, len(rows), rounds, distance)
        _descend(learner, X[rows], y[rows], rng, run)
        if convexity:  # to the group's own optimum, and from there to that of all people
            away = math.sqrt(2 * run.excess / convexity) + lipschitz / (convexity * math.sqrt(len(rows)))
            distance = min(distance, away)


def _ones(params: VectorSum, vectors: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    places = params.places(vectors)
    whole = np.floor(places)
    ones = np.sum(whole + (rng.random(places.shape) < places - whole), axis=0).astype(np.int64)
    return np.asarray(ones + rng.binomial(len(vectors) * params.b, 0.5, params.d))


def _descend(learner: ShuffleBatches, X: np.ndarray, y: np.ndarray, rng: np.random.Generator, run: Phase) -> None:
    steps, params = steps_of(learner), learner.cohort_sum(len(X), run.steps)
    sequence = type(steps.sequence)(steps.estimate, learner.region.project)
    analyzer = Analyzer(params)
    spec = learner.problem.described(learner.p)[0]
    spec[ENVELOPE] = steps.problem.envelope(run)
    for _ in range(run.steps):
        ones = np.zeros(params.d, dtype=np.int64)
        for begin in range(0, len(X), _ROWS):
            part = slice(begin, begin + _ROWS)
            ones += _ones(params, gradients(spec, sequence.middle, X[part], y[part]), rng)
        sequence.move(analyzer.sum_of_counts(ones, len(X)) / len(X), run.modulus)
    steps.sequence.points[:] = sequence.points[1]
