"""Compiled gradients of the losses, for one record and for arrays of records.

A model is described by `spec`, (`SPEC`,) numbers at the indices below: the loss, and the settings of the loops that
learn with it (`local_learning`).
"""

from __future__ import annotations

import math

import numpy as np

from streamdp.privacy.samplers import (
    HUGE,
    TINY,
    compiled,
    inlined,
    reordered_inlined,
)

# Indices of `spec`. ENVELOPE is 1 / beta of the Moreau envelope of a non-smooth loss; 0 to use a subgradient. BY_NORM
# is the weight (see `losses.base`); FACTOR, DECAY, OFFSET and BY_RECORDS are the steps (see `steps`).
LOSS, INTERCEPT, SHAPE, KAPPA, CLIP, TARGET_BOUND = range(6)
MECHANISM, DOMAIN, RADIUS, ENVELOPE, BY_NORM = range(6, 11)
FACTOR, DECAY, OFFSET, BY_RECORDS, AVERAGED = range(11, 16)
SPEC = 16

SQUARED, HUBER, LOGISTIC, SOFTMAX, QUANTILE, HINGE = range(6)
EVERYWHERE, BALL, BOX = range(3)

_TINY_ROOT = 1e-140


@inlined
def _coefficient(spec, u, y, sigma, t):
    """The derivative a of the loss in the linear predictor u, without the weight.

    For a non-smooth loss and t > 0 it is the derivative at the proximal point v = u - t a (see `Loss.prox`).
    """
    loss = int(spec[LOSS])
    if loss == LOGISTIC:
        a = 1.0 / (1.0 + math.exp(-min(max(u, -700.0), 700.0))) - y
    elif loss == HUBER:
        c = spec[SHAPE]
        a = -min(max((y - u) / sigma, -c), c)
    elif loss == SQUARED:
        bound = spec[TARGET_BOUND]
        a = u - min(max(y, -bound), bound)
    elif loss == QUANTILE:
        a = 1.0 if y < u else 0.0
        if t > 0.0:
            a = min(max((u - y) / t + spec[SHAPE], 0.0), 1.0)
        a -= spec[SHAPE]
    else:  # hinge
        sign = 2.0 * y - 1.0
        a = 1.0 if sign * u < 1.0 else 0.0
        if t > 0.0:
            a = min(max((1.0 - sign * u) / t, 0.0), 1.0)
        a *= -sign
    return a


@inlined
def _weight(spec, square):
    """The weight of a record whose x has this squared norm: see `losses.base`."""
    if square <= 2.0 or spec[CLIP] != math.inf:
        return 1.0
    return math.sqrt(2.0 / square) if spec[BY_NORM] else 2.0 / square


@reordered_inlined
def gradient(spec, theta, X, y, i, g):
    """Write the bounded gradient of record i into g, for losses of one linear predictor.

    For all X and y, ||g|| is at most the bound of the loss: by its weight, or by clipping to spec[CLIP]. If the
    arithmetic of a record overflows, g is 0. An x or a residual whose square underflows counts as 0.
    No array is accessed under a condition, because numba would count references to it (see `samplers`).

    Parameters
    ----------
    spec
        The loss.
    theta
        (d,).
    X, y
        (n, p) features without a column for the intercept, and (n,) targets.
    i
        The record.
    g
        (q + 1,), overwritten; q = p plus the intercept. The last entry is for Huber's scale.
    """
    p = X.shape[1]
    intercept = int(spec[INTERCEPT])
    q = p + intercept
    square = float(intercept)
    u = theta[q - 1] * intercept
    for j in range(p):
        square += X[i, j] * X[i, j]
        u += theta[j] * X[i, j]
    clip = spec[CLIP]
    weight = _weight(spec, square)
    a = _coefficient(spec, u, y[i], theta[theta.shape[0] - 1], spec[ENVELOPE] * weight * square)
    scale = 0.5 * (spec[KAPPA] - a * a) * weight if spec[LOSS] == HUBER else 0.0
    a = a * weight if square > TINY and abs(a) > _TINY_ROOT else 0.0
    size = a * a * square + scale * scale
    if not (square < HUGE and size < HUGE):
        a = scale = 0.0
    elif size > clip * clip:
        a *= clip / math.sqrt(size)
        scale *= clip / math.sqrt(size)
    g[q] = scale
    g[q - 1] = a
    for j in range(p):
        g[j] = a * X[i, j]


@compiled
def gradient_of_classes(spec, theta, X, y, i, g):  # noqa: C901 - one pass of a compiled loop
    """As `gradient`, for the multinomial loss: g (d,) has one block for each class."""
    p = X.shape[1]
    intercept = int(spec[INTERCEPT])
    q = p + intercept
    classes = g.shape[0] // q
    square = float(intercept)
    for j in range(p):
        square += X[i, j] * X[i, j]
    clip = spec[CLIP]
    weight = _weight(spec, square)
    top = -math.inf
    for k in range(classes):
        u = theta[k * q + q - 1] * intercept
        for j in range(p):
            u += theta[k * q + j] * X[i, j]
        g[k * q] = u
        top = max(top, u)
    total = 0.0
    for k in range(classes):
        g[k * q] = math.exp(g[k * q] - top)
        total += g[k * q]
    size, root = 0.0, math.sqrt(square)
    for k in range(classes):
        a = (g[k * q] / total - (1.0 if k == int(y[i]) else 0.0)) * weight
        size += (a * root) * (a * root)
        g[k * q + q - 1] = a
        for j in range(p):
            g[k * q + j] = a * X[i, j]
    shrink = 1.0
    if not (TINY < square < HUGE and size < HUGE):
        shrink = 0.0
    elif size > clip * clip:
        shrink = clip / math.sqrt(size)
    if shrink != 1.0:
        for j in range(g.shape[0]):
            g[j] = g[j] * shrink if shrink else 0.0


@compiled
def gradients(spec, theta, X, y, G):
    """Write the gradients of all rows at one theta into G, for losses of one linear predictor.

    Parameters
    ----------
    spec, theta, X, y
        As for `gradient`.
    G
        (n, d), overwritten.
    """
    room = np.empty(G.shape[1] + 1)
    for i in range(X.shape[0]):
        gradient(spec, theta, X, y, i, room)
        G[i] = room[: G.shape[1]]


@compiled
def gradients_of_classes(spec, theta, X, y, G):
    """As `gradients`, for the multinomial loss."""
    for i in range(X.shape[0]):
        gradient_of_classes(spec, theta, X, y, i, G[i])


@compiled
def accumulate(spec, theta, X, y, cells, total, room):
    """Add the gradients of all rows at theta, rounded to multiples of 1 / cells, to a total.

    Parameters
    ----------
    spec, theta, X, y
        As for `gradient`.
    cells
        Grid cells for each unit of the gradient.
    total
        (d,) int64, in cells.
    room
        (d + 1,) scratch space. It is set to 0 at the end, so that no gradient of a single record stays in memory.
    """
    for i in range(X.shape[0]):
        gradient(spec, theta, X, y, i, room)
        for j in range(total.shape[0]):
            total[j] += np.int64(np.rint(room[j] * cells))
    room[:] = 0.0


@compiled
def accumulate_of_classes(spec, theta, X, y, cells, total, room):
    """As `accumulate`, for the multinomial loss."""
    g = room[: total.shape[0]]
    for i in range(X.shape[0]):
        gradient_of_classes(spec, theta, X, y, i, g)
        for j in range(total.shape[0]):
            total[j] += np.int64(np.rint(g[j] * cells))
    room[:] = 0.0
