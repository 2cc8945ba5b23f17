"""What `streamdp.reading.intervals` is given of a local learner: its path, steps and noise, in original units.

The model and what it promises: docs/proofs/intervals.md.
"""

import math

import numpy as np

from streamdp.errors import NotAvailableError, check_level
from streamdp.learners.local_reports import LocalReports
from streamdp.optim import follow, loops
from streamdp.optim.losses import without_shift
from streamdp.privacy import samplers
from streamdp.reading.intervals import LEAST_TIMES, UNPAIRED, path_intervals, records_to_settle
from streamdp.scaling import pair_bits
from streamdp.scaling import unit_table as k

LEAST_ALPHA, LEAST_EXPECTED = 0.5, 5.0
RAREST = 0.05
"""Limits of classes are given if each has at least this probability in the middle of the columns, by the answer."""
_SOON = 20.0  # the square of about the relaxation times after which an answer shows a rare class


def settling(learner: LocalReports, level: float) -> tuple[np.ndarray, np.ndarray]:
    """See the estimators' `settling`, at a confidence level, for an averaged learner that has begun.

    Gradients have the second moment C0^2/information, and the same in all d directions: exactly for the noise, and
    nearly for the rest. In original units a parameter is a sum of coordinates of theta, whose noises add up.
    """
    check_level(level)
    seen = int(learner.seen[0])
    if learner.merged or seen < 2:
        raise NotAvailableError("interval: needs one pass over at least two records, and none after merged()")
    if not LEAST_ALPHA <= learner.steps.alpha < 1:
        raise NotAvailableError(
            f"interval: expected alpha of at least {LEAST_ALPHA} and below 1, got {learner.steps.alpha:g}, with which "
            "the average may be further from its limit than an interval is wide: choose alpha = 0.6"
        )
    arrays, problem, p = learner.arrays, learner.problem, learner.p
    d, spec, outward = arrays.state.shape[1], arrays.spec, learner.units.outward
    units = without_shift(np.array([outward(unit) - outward(np.zeros(d)) for unit in np.eye(d)]), problem.outputs)
    information = learner.default_rows[0, samplers.INFORMATION] if spec[loops.BY_RECORDS] else 1.0
    segments, rates, noises = _ended(learner)
    moved = problem.curvature(p) * float(rates[:, p:].sum(axis=0).min(initial=np.inf))
    if not len(segments):  # as where all records answered with bits
        return np.full((d, 2), np.nan), np.full(d, np.nan)
    noises *= (spec[loops.FACTOR] * problem.loss.bound) ** 2 / (d * information)
    covariance = units.T * noises.sum(axis=0) @ units
    deviations = np.sqrt(np.diagonal(covariance))
    original = noises @ units**2
    rates = (rates * noises) @ units**2 / original
    theta = learner.average_in_units()
    limits, times = path_intervals(
        segments,
        rates,
        original,
        learner.distance / math.sqrt(d) * np.sqrt(np.sum(units**2, axis=0)),
        covariance / np.outer(deviations, deviations),
        problem.loss.expected_inverses(theta, p),
        _signs(learner),
        level,
    )
    if _withheld(learner, theta, moved):
        limits[:] = np.nan
        times[times >= LEAST_TIMES] = np.nan  # how many records it takes is not known
    for block in (limits, times):  # how fast such coefficients move is not known
        for start in range(0, problem.blocks(theta, p).size, p + problem.intercept):
            block[start + np.array(arrays.units.unresolved, dtype=int)] = np.nan
    return limits, records_to_settle(times, seen, segments[:, -1], learner.steps.alpha)


def _withheld(learner: LocalReports, theta: np.ndarray, moved: float) -> bool:
    """Whether no limits are given at all, for an answer (d,) in units.

    `moved`: for how many relaxation times an intercept moved, if the loss has the curvature of equal shares.
    """
    if learner.arrays.spec[loops.BY_RECORDS] and _expected_times(learner, theta) < LEAST_EXPECTED:
        return True  # what seems to be settled seems so by chance: the estimate still leaves the start
    least = learner.least_records
    if least is not None and int(learner.seen[0]) < least:  # the steps are as long as theta: the model is far away
        return True
    if _rare(learner, theta, moved):  # what is released is far from normal
        return True
    return bool(learner.arrays.blocks[follow.NUMBERS, follow.MIXED] > 0)  # the answer is not the average of this path


def _rare(learner: LocalReports, theta: np.ndarray, moved: float) -> bool:
    """Whether a class may be rarer than `RAREST` in the middle of the columns, by theta (d,) in units.

    Theta begins at equal shares. If an intercept has come a part f of its way to a class of `RAREST`, then the class
    seems to have a probability of RAREST^f by equal^(1 - f).
    """
    problem, p = learner.problem, learner.p
    if not (problem.intercept and problem.loss.probabilistic):
        return False
    scores = problem.blocks(theta, p)[:, p]
    odds = np.append(scores, 0.0) if problem.outputs == 1 else scores
    rarest = odds.min() - odds.max() - math.log(np.sum(np.exp(odds - odds.max())))
    part = -math.expm1(-(moved**2) / _SOON)
    return bool(rarest < part * math.log(RAREST) - (1 - part) * math.log(len(odds)))


def _expected_times(learner: LocalReports, theta: np.ndarray) -> float:
    """How many relaxation times the clock of steps eta i^-alpha has, for the curvature that the loss expects."""
    problem, steps = learner.problem, learner.steps
    curvature = problem.curvature(learner.p)
    if problem.loss.least_scale is not None:
        curvature /= max(float(theta[-1]), 1e-6)
    return float(curvature * steps.eta * int(learner.seen[0]) ** (1 - steps.alpha) / (1 - steps.alpha))


def _ended(learner: LocalReports) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The segments that have ended (K, d + 1), and their rates and noises (K, d) in the units of today (`path`)."""
    arrays, problem, p = learner.arrays, learner.problem, learner.p
    d = arrays.state.shape[1]
    column, scales = np.full(d, p), np.append(arrays.units.table[:p, k.SCALE], 1.0)
    problem.blocks(column, p)[:, :p] = np.arange(p)
    ended = arrays.segments[:, d + 1 + p] > 0
    rates, noises = arrays.segments[ended, d + 1 :][:, column], arrays.segments[ended, d + p + 2 :][:, column]
    paths = without_shift(arrays.segments[:, :d], problem.outputs)[ended]
    squares = scales[column] ** 2
    return np.column_stack([paths, arrays.segments[ended, d]]), rates * squares, noises * squares


def _signs(learner: LocalReports) -> np.ndarray:
    """The bits about pairs, for each two parameters (2, d, d), as `path_intervals` takes it."""
    arrays, problem, p = learner.arrays, learner.problem, learner.p
    d = arrays.state.shape[1]
    signs = np.zeros((2, d, d))
    both = arrays.units.pairs[:-1, [pair_bits.FIRST, pair_bits.SECOND]].astype(int)
    for start in range(0, d - p, p + problem.intercept):
        i, j = start + both.T
        signs[:, i, j] = signs[:, j, i] = arrays.units.pair_evidence[:, :2].T
    if problem.loss.least_scale is not None:
        signs[1, -1] = signs[1, :, -1] = UNPAIRED  # the scale, if residuals are symmetric
    return signs
