"""Compiled inner loops: gradient, noise, step, one record after another.

This is the only place that computes gradients and noise; `losses`, `mechanisms` and `estimators` call it for one
record as for a million. Nothing here draws randomness by itself: words come from `entropy` as an array, and a loop
that runs out of words rolls back to the start of its record and returns, to be called again with more.

A model is described by `spec`, a vector of numbers (indices below), `box`, a (2, d) array of lower and upper bounds,
and `state`, a (4, d) array: theta, its running average, and the two sums of random scaling (see `inference`).
A calibration is one row of `CALIBRATION` numbers a record, or one row for all (see `mechanisms`).
"""

from __future__ import annotations

import math

import numpy as np
from numba import njit

# Indices of `spec`.
LOSS, INTERCEPT, CLASSES, SHAPE, KAPPA, CLIP, TARGET_BOUND = range(7)
MECHANISM, DOMAIN, RADIUS, ETA, ALPHA, AVERAGED = range(7, 13)
SPEC = 13

SQUARED, HUBER, LOGISTIC, SOFTMAX, QUANTILE, HINGE = range(6)
NO_NOISE, LAPLACE, GAUSSIAN, PRIVUNIT = range(4)
EVERYWHERE, BALL, BOX = range(3)

# Columns of a calibration row. Additive noise uses the first two.
SCALE, GRID, CAP_PROBABILITY, CAP_COSINE, CAP_RADIAL, NORM_BOUND = range(6)
CALIBRATION = 6

_HUGE = 1e300


def _ziggurat() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Tables of the 256-layer ziggurat (Marsaglia and Tsang 2000) for 52-bit abscissas."""
    edge = 3.6541528853610088
    area = edge * math.exp(-(edge**2) / 2) + math.sqrt(math.pi / 2) * math.erfc(edge / math.sqrt(2))
    unit = 2.0**52
    accept = np.zeros(256, dtype=np.uint64)
    width = np.empty(256)
    height = np.empty(256)
    base = area / math.exp(-(edge**2) / 2)
    accept[0] = int(edge / base * unit)
    width[0], width[255] = base / unit, edge / unit
    height[0], height[255] = 1.0, math.exp(-(edge**2) / 2)
    right = edge
    for layer in range(254, 0, -1):
        x = math.sqrt(-2 * math.log(area / right + math.exp(-(right**2) / 2)))
        accept[layer + 1] = int(x / right * unit)
        height[layer], width[layer] = math.exp(-(x**2) / 2), x / unit
        right = x
    return accept, width, height


_EDGE = 3.6541528853610088
_ACCEPT, _WIDTH, _HEIGHT = _ziggurat()


@njit(cache=True)
def _uniform(words, at):
    """A uniform in [0, 1) with 53 bits."""
    if at >= words.shape[0]:
        return 0.5, at + 1
    return (words[at] >> np.uint64(11)) * 2.0**-53, at + 1


@njit(cache=True)
def _normal(words, at):
    """A standard normal variate. Past the end of `words` the value is void and `at` goes past the end too."""
    while at < words.shape[0]:
        word = words[at]
        at += 1
        layer = word & np.uint64(0xFF)
        negative = (word >> np.uint64(8)) & np.uint64(1)
        abscissa = (word >> np.uint64(9)) & np.uint64(0x000FFFFFFFFFFFFF)
        x = abscissa * _WIDTH[layer]
        if abscissa >= _ACCEPT[layer]:
            if layer == 0:
                while True:
                    u, at = _uniform(words, at)
                    v, at = _uniform(words, at)
                    beyond = -math.log1p(-u) / _EDGE
                    if -2 * math.log1p(-v) > beyond * beyond or at > words.shape[0]:
                        break
                x = _EDGE + beyond
            else:
                u, at = _uniform(words, at)
                below = _HEIGHT[layer]
                if below + u * (_HEIGHT[layer - np.uint64(1)] - below) >= math.exp(-0.5 * x * x):
                    continue
        if negative:
            x = -x
        return x, at
    return 0.0, words.shape[0] + 1


@njit(cache=True)
def _laplace(words, at):
    """A Laplace variate of scale 1: sign times -log of a uniform m 2^-k, m in [1/2, 1), k geometric."""
    if at >= words.shape[0]:
        return 0.0, at + 1
    word = words[at]
    at += 1
    mantissa = 0.5 + (word >> np.uint64(12)) * 2.0**-53
    coins = (word >> np.uint64(1)) & np.uint64(0x7FF)
    exponent = 0
    if coins == 0:
        if at >= words.shape[0]:
            return 0.0, at + 1
        exponent = 11
        coins = words[at]
        at += 1
        if coins == 0:
            exponent = 75
            coins = np.uint64(1)
    while coins & np.uint64(1) == 0:
        exponent += 1
        coins >>= np.uint64(1)
    x = exponent * 0.6931471805599453 - math.log(mantissa)
    if word & np.uint64(1):
        x = -x
    return x, at


@njit(cache=True)
def _cosine(d, in_cap, cap_cosine, cap_radial, words, at):
    """The cosine between a uniform direction and a fixed one, given that it is (or is not) at least `cap_cosine`.

    For d >= 3 the first two coordinates of a uniform point of the sphere have radius sqrt(1 - U^(2/(d-2))) and a uniform
    angle. In the cap the radius must be at least the cosine, U < cap_radial = (1 - cosine^2)^((d-2)/2), and the angle at
    most arccos(cosine); what is left is rejected. For d = 2 the radius is 1, for d = 1 the cosine is a sign.
    """
    if d == 1:
        return (1.0 if in_cap else -1.0), at
    widest = math.acos(cap_cosine)
    while True:
        u, at = _uniform(words, at)
        v, at = _uniform(words, at)
        if d == 2:
            return math.cos(v * widest if in_cap else widest + v * (math.pi - widest)), at
        if in_cap:
            u *= cap_radial
        radius = math.sqrt(1.0 - u ** (2.0 / (d - 2)))
        cosine = radius * math.cos(v * (widest if in_cap else math.pi))
        if (cosine >= cap_cosine) == in_cap or at > words.shape[0]:
            return cosine, at


@njit(cache=True)
def _privunit(row, g, words, at):
    """Replace g by an unbiased direction of fixed length (see `mechanisms.PrivUnit`)."""
    d = g.shape[0]
    square = 0.0
    for j in range(d):
        square += g[j] * g[j]
    norm = math.sqrt(square)
    u, at = _uniform(words, at)
    v, at = _uniform(words, at)
    sign = 1.0 if 2 * u < 1.0 + norm / row[NORM_BOUND] else -1.0
    if norm > 0:
        for j in range(d):
            g[j] *= sign / norm
    else:
        g[0] = sign
    cosine, at = _cosine(d, v < row[CAP_PROBABILITY], row[CAP_COSINE], row[CAP_RADIAL], words, at)
    side = np.empty(d)
    along = 0.0
    for j in range(d):
        side[j], at = _normal(words, at)
        along += side[j] * g[j]
    square = 0.0
    for j in range(d):
        side[j] -= along * g[j]
        square += side[j] * side[j]
    across = math.sqrt(max(0.0, 1.0 - cosine * cosine) / square) if square > 0 and d > 1 else 0.0
    grid = row[GRID]
    for j in range(d):
        g[j] = np.rint((cosine * g[j] + across * side[j]) / grid) * grid * row[SCALE]
    return at


@njit(cache=True)
def noise(mechanism, row, g, words, at):
    """Randomise g in place. Returns the next position in `words`, or one past its length + 1 where they ran out."""
    grid = row[GRID]
    scale = row[SCALE] / grid
    if mechanism == GAUSSIAN:
        for j in range(g.shape[0]):
            z, at = _normal(words, at)
            g[j] = (np.rint(g[j] / grid) + np.rint(z * scale)) * grid
    elif mechanism == LAPLACE:
        for j in range(g.shape[0]):
            z, at = _laplace(words, at)
            g[j] = (np.rint(g[j] / grid) + np.rint(z * scale)) * grid
    elif mechanism == PRIVUNIT:
        at = _privunit(row, g, words, at)
    return at


@njit(cache=True)
def _coefficient(spec, u, y, sigma):
    """The derivative of the loss in the linear predictor u, without the weight."""
    loss = int(spec[LOSS])
    if loss == LOGISTIC:
        return 1.0 / (1.0 + math.exp(-min(max(u, -700.0), 700.0))) - y
    if loss == HUBER:
        c = spec[SHAPE]
        return -min(max((y - u) / sigma, -c), c)
    if loss == SQUARED:
        bound = spec[TARGET_BOUND]
        return u - min(max(y, -bound), bound)
    if loss == QUANTILE:
        return (1.0 if y < u else 0.0) - spec[SHAPE]
    sign = 2.0 * y - 1.0  # hinge
    return -sign if sign * u < 1.0 else 0.0


@njit(cache=True)
def gradient(spec, theta, x, y, g):
    """Write the bounded gradient of one record into g (d,). Whatever x and y are, ||g|| is at most the loss's bound.

    Mallows weight min(1, 2/||x||^2), or clipping to spec[CLIP]. A record so large that arithmetic overflows gives 0.
    """
    p = x.shape[0]
    intercept = int(spec[INTERCEPT])
    q = p + intercept
    square = float(intercept)
    for j in range(p):
        square += x[j] * x[j]
    if not square < _HUGE:
        g[:] = 0.0
        return
    clip = spec[CLIP]
    weight = 1.0
    if clip == math.inf and square > 2.0:
        weight = 2.0 / square
    classes = int(spec[CLASSES])
    if classes > 1:
        top = -math.inf
        for k in range(classes):
            u = theta[k * q + p] if intercept else 0.0
            for j in range(p):
                u += theta[k * q + j] * x[j]
            g[k * q] = u
            top = max(top, u)
        total = 0.0
        for k in range(classes):
            g[k * q] = math.exp(g[k * q] - top)
            total += g[k * q]
        for k in range(classes):
            a = (g[k * q] / total - (1.0 if k == int(y) else 0.0)) * weight
            for j in range(p):
                g[k * q + j] = a * x[j]
            if intercept:
                g[k * q + p] = a
    else:
        u = theta[p] if intercept else 0.0
        for j in range(p):
            u += theta[j] * x[j]
        sigma = theta[q] if spec[LOSS] == HUBER else 1.0
        a = _coefficient(spec, u, y, sigma)
        if spec[LOSS] == HUBER:
            g[q] = 0.5 * (spec[KAPPA] - a * a) * weight
        a *= weight
        for j in range(p):
            g[j] = a * x[j]
        if intercept:
            g[p] = a
    square = 0.0
    for j in range(g.shape[0]):
        square += g[j] * g[j]
    if not square < _HUGE:
        g[:] = 0.0
    elif square > clip * clip:
        shrink = clip / math.sqrt(square)
        for j in range(g.shape[0]):
            g[j] *= shrink


@njit(cache=True)
def step(spec, box, state, i, g):
    """Step i (from 1): theta = Proj(theta - eta i^-alpha g), then the running average and the sums of random scaling."""
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


@njit(cache=True)
def learn(spec, box, state, n, X, y, calibration, words, at):
    """Learn the rows of X in order. Returns how many were learned before `words` ran out, and the next position."""
    g = np.empty(state.shape[1])
    mechanism = int(spec[MECHANISM])
    each = calibration.shape[0] > 1
    for i in range(X.shape[0]):
        row = calibration[i if each else 0]
        start = at
        gradient(spec, state[0], X[i], y[i], g)
        at = noise(mechanism, row, g, words, at)
        if at > words.shape[0]:
            return i, start
        n += 1
        step(spec, box, state, n, g)
    return X.shape[0], at


@njit(cache=True)
def randomize(mechanism, calibration, G, words, at):
    """Randomise the rows of G in place. Returns how many were done before `words` ran out, and the next position."""
    each = calibration.shape[0] > 1
    g = np.empty(G.shape[1])
    for i in range(G.shape[0]):
        start = at
        g[:] = G[i]
        at = noise(mechanism, calibration[i if each else 0], g, words, at)
        if at > words.shape[0]:
            return i, start
        G[i] = g
    return G.shape[0], at
