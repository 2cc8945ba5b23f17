"""Compiled loops of single records: gradient, noise, step.

The gradients of losses are computed here, for one record and for arrays of records. A loop draws no randomness by
itself: words come from `entropy` as an array (see `samplers`). A loop that runs out of words rolls back to the start of
its record and returns, and is called again with more words. The loops themselves move the position in the words
(`words[0]`) and count the records seen (`seen[0]`). So no exception and no other thread can interrupt between a record
and its count, or between the use of a word and its overwriting.

Arrays that describe a model:

* `spec`: (`SPEC`,) the loss and the settings, at the indices below.
* `box`: (2, d) lower and upper bounds of theta.
* `state`: (4, d) theta, its running average, and the two sums of random scaling (see `inference`).

A calibration is one row of `CALIBRATION` numbers for each record, or one row for all (see `mechanisms`).
"""

from __future__ import annotations

import math

import numpy as np

from streamdp.privacy.samplers import (
    HUGE,
    TINY,
    compiled,
    inlined,
    noise,
    reordered,
    reordered_inlined,
    use_words,
)

# Indices of `spec`. ENVELOPE is 1 / beta of the Moreau envelope of a non-smooth loss; 0 to use a subgradient.
LOSS, INTERCEPT, SHAPE, KAPPA, CLIP, TARGET_BOUND = range(6)
MECHANISM, DOMAIN, RADIUS, ETA, ALPHA, AVERAGED = range(6, 12)
ENVELOPE = 12
SPEC = 13

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


@reordered_inlined
def gradient(spec, theta, X, y, i, g):
    """Write the bounded gradient of record i into g, for losses of one linear predictor.

    For all X and y, ||g|| is at most the bound of the loss: by the Mallows weight min(1, 2/||x||^2), or by clipping to
    spec[CLIP]. If the arithmetic of a record overflows, g is 0. An x or a residual whose square underflows counts as 0.
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
    weight = 2.0 / square if square > 2.0 and clip == math.inf else 1.0
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
    weight = 2.0 / square if square > 2.0 and clip == math.inf else 1.0
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


@reordered_inlined
def step(spec, box, state, i, g):
    """Step i: theta = Proj(theta - eta i^-alpha g); then update its average and the sums of random scaling.

    Parameters
    ----------
    spec, box, state
        The model (see the module's text).
    i
        The number of the step, from 1.
    g
        (d,) the noisy gradient.
    """
    theta = state[0]
    d = theta.shape[0]
    alpha = spec[ALPHA]
    eta = spec[ETA] / math.sqrt(i) if alpha == 0.5 else spec[ETA] * i**-alpha
    for j in range(d):
        theta[j] = min(max(theta[j] - eta * g[j], box[0, j]), box[1, j])
    if spec[DOMAIN] == BALL:
        free = d - 1 if spec[LOSS] == HUBER else d  # the scale is not a coefficient
        square = 0.0
        for j in range(free):
            square += theta[j] * theta[j]
        if square > spec[RADIUS] ** 2:
            shrink = spec[RADIUS] / math.sqrt(square)
            for j in range(free):
                theta[j] *= shrink
    if spec[AVERAGED]:
        share = 1.0 / i
        weight = 6.0 * i / ((i + 1.0) * (2.0 * i + 1.0))  # i^2 over 1 + 4 + ... + i^2
        grow = float(i) * i
        for j in range(d):
            state[1, j] += share * (theta[j] - state[1, j])
            away = state[1, j] - state[2, j]
            state[2, j] += weight * away
            state[3, j] += grow * away * (state[1, j] - state[2, j])


@reordered
def learn(spec, box, state, seen, X, y, calibration, words):
    """Learn the rows of X in order. Returns the number of rows learned before the words ran out.

    Parameters
    ----------
    spec, box, state
        The model (see the module's text).
    seen
        (1,) int64, the number of records learned; incremented for each.
    X, y
        (n, p) features and (n,) targets.
    calibration
        (n, c), one row for each record, or (1, c).
    words
        Random words; the first entry is the position.
    """
    theta = state[0]
    d = theta.shape[0]
    room = np.empty(d + 1)
    g, side = room[:d], np.empty(d)
    mechanism = int(spec[MECHANISM])
    each = 1 if calibration.shape[0] > 1 else 0
    at, n = np.int64(words[0]), seen[0]
    for i in range(X.shape[0]):
        start = at
        gradient(spec, theta, X, y, i, room)
        at = noise(mechanism, calibration, i * each, g, side, words, at)
        if at > words.shape[0] or not use_words(words, start, at):
            return i
        n += 1
        seen[0] = n
        step(spec, box, state, n, g)
    return X.shape[0]


@reordered
def learn_classes(spec, box, state, seen, X, y, calibration, words):
    """As `learn`, for the multinomial loss."""
    theta = state[0]
    g, side = np.empty(theta.shape[0]), np.empty(theta.shape[0])
    mechanism = int(spec[MECHANISM])
    each = 1 if calibration.shape[0] > 1 else 0
    at, n = np.int64(words[0]), seen[0]
    for i in range(X.shape[0]):
        start = at
        gradient_of_classes(spec, theta, X, y, i, g)
        at = noise(mechanism, calibration, i * each, g, side, words, at)
        if at > words.shape[0] or not use_words(words, start, at):
            return i
        n += 1
        seen[0] = n
        step(spec, box, state, n, g)
    return X.shape[0]


@reordered
def absorb(spec, box, state, seen, g):
    """One step with a gradient that was randomised elsewhere.

    Parameters
    ----------
    spec, box, state, seen
        As for `learn`.
    g
        (d,) the noisy gradient.
    """
    seen[0] += 1
    step(spec, box, state, seen[0], g)


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
