"""Compiled loops of gradients with their curvature: what a record contributes to a batch of `newton`.

The vector of a record is described, and its bounds are proved, in `curvature`. Like `loops.gradient`, a record whose
arithmetic overflows counts as zeros, and scratch space is overwritten.
"""

from __future__ import annotations

import math

import numpy as np

from streamdp.optim.loops import HUBER, INTERCEPT, KAPPA, LOSS, SHAPE
from streamdp.privacy.samplers import HUGE, compiled, inlined

_ROOT = math.sqrt(2.0)


@inlined
def _huber(r, c):
    """(a, h) of Huber's loss at the residual r, over sigma."""
    return -min(max(r, -c), c), 1.0 if abs(r) <= c else c / abs(r)


@inlined
def _logistic(u, y):
    """(a, h) of the logistic loss at the predictor u."""
    chance = 1.0 / (1.0 + math.exp(-min(max(u, -700.0), 700.0)))
    return chance - y, 4.0 * chance * (1.0 - chance)


@compiled
def joint(spec, theta, X, y, i, factor, out):
    """Write the gradient and `factor` times the curvature of record i into out.

    Parameters
    ----------
    spec
        The loss (see `loops`): Huber or logistic.
    theta
        (d,).
    X, y
        (n, p) features without a column for the intercept, and (n,) targets.
    i
        The record.
    factor
        lambda, by which the curvature is multiplied.
    out
        (size,), overwritten: the gradient (d,), the upper triangle of M row by row with off-diagonal entries times
        sqrt(2), and for Huber s.
    """
    p = X.shape[1]
    intercept = int(spec[INTERCEPT])
    q = p + intercept
    square = float(intercept)
    u = theta[q - 1] * intercept
    for j in range(p):
        square += X[i, j] * X[i, j]
        u += theta[j] * X[i, j]
    huber = spec[LOSS] == HUBER
    c = spec[SHAPE]
    r = (y[i] - u) / theta[q] if huber else u
    a, h = _huber(r, c) if huber else _logistic(u, y[i])
    weight = 1.0
    if square > 1.0:
        weight = min(1.0, _ROOT / math.sqrt(square), math.sqrt(2.0 * q) / square)
    if not (square < HUGE and abs(r) < HUGE):
        weight = a = h = r = 0.0
    at = q
    if huber:
        out[q] = 0.5 * (spec[KAPPA] - a * a) * weight
        out[out.shape[0] - 1] = r * r * weight * factor if abs(r) < c else 0.0
        at = q + 1
    a *= weight
    h *= weight * factor
    for j in range(q):
        left = X[i, j] if j < p else 1.0
        out[j] = a * left
        left *= h
        out[at] = left * (X[i, j] if j < p else 1.0)
        at += 1
        left *= _ROOT
        for k in range(j + 1, q):
            out[at] = left * (X[i, k] if k < p else 1.0)
            at += 1


@compiled
def joint_of_rows(spec, theta, X, y, factor, G):
    """Write the vectors of all rows at one theta into G.

    Parameters
    ----------
    spec, theta, X, y, factor
        As for `joint`.
    G
        (n, size), overwritten.
    """
    for i in range(X.shape[0]):
        joint(spec, theta, X, y, i, factor, G[i])


@compiled
def accumulate_averages(factor, spec, theta, X, y, starts, cells, total, room, mean):
    """Add the average vector of each user to a sum.

    Parameters
    ----------
    factor, spec, theta, X, y, cells, total
        As for `accumulate_joint`, with the records of all users.
    starts
        (users + 1,) int: user u has the rows starts[u] to starts[u + 1] - 1, at least one.
    room, mean
        (size,) scratch space, set to 0 at the end.
    """
    for u in range(starts.shape[0] - 1):
        mean[:] = 0.0
        for i in range(starts[u], starts[u + 1]):
            joint(spec, theta, X, y, i, factor, room)
            for j in range(total.shape[0]):
                mean[j] += room[j]
        share = cells / (starts[u + 1] - starts[u])
        for j in range(total.shape[0]):
            total[j] += np.int64(np.rint(mean[j] * share))
    room[:] = 0.0
    mean[:] = 0.0


@compiled
def accumulate_joint(factor, spec, theta, X, y, cells, total, room):
    """As `loops.accumulate`, for the vectors of `joint`.

    Parameters
    ----------
    factor, spec, theta, X, y
        As for `joint`.
    cells
        Grid cells for each unit of a vector.
    total
        (size,) int64, in cells.
    room
        (size,) scratch space. It is set to 0 at the end, so that no vector of a single record stays in
        memory.
    """
    for i in range(X.shape[0]):
        joint(spec, theta, X, y, i, factor, room)
        for j in range(total.shape[0]):
            total[j] += np.int64(np.rint(room[j] * cells))
    room[:] = 0.0
