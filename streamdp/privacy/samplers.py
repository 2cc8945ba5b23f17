"""Compiled samplers: words of randomness in, noise out.

A sampler draws no randomness by itself. Words come from `entropy` as an array whose first entry is the position of the
first unused word. A sampler that runs out of words reports it, and is called again with more words. A used word is
overwritten with zero at once, because it would allow its noise to be subtracted. A calibration is one row of
`CALIBRATION` numbers for each record, or one row for all records (see `mechanisms`).
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
from numba import njit

NO_NOISE, LAPLACE, GAUSSIAN, PRIVUNIT = range(4)
"""Codes of the mechanisms."""

# Columns of a calibration row. Additive noise uses the first two.
SCALE, GRID, CAP_PROBABILITY, CAP_COSINE, CAP_RADIAL, CAP_ANGLE, NORM_BOUND = range(7)
# What holds for every mechanism: the probability of a true answer about one bit at this budget, and the information of
# a noisy gradient, C0^2 over its second moment: 1 without noise.
KEEP, INFORMATION = 7, 8
CALIBRATION = 9

HUGE = 1e300  # squared norms above it count as overflow
TINY = 1e-280  # squared norms below it have lost digits

# Only functions of scalars are inlined: numba counts references on arrays at every inlined or branching use, which
# costs more than to draw a variate. So the common case of each sampler is a function of one word, and the rare case is
# a call.
compiled = njit(cache=True, nogil=True, error_model="numpy")
inlined = njit(cache=True, error_model="numpy", inline="always")
# Sums over coordinates may be reordered to use vector instructions. Additive noise may not, because its rounding is
# part of the privacy proof.
reordered = njit(cache=True, nogil=True, error_model="numpy", fastmath={"reassoc", "contract"})
reordered_inlined = njit(cache=True, error_model="numpy", fastmath={"reassoc", "contract"}, inline="always")


def _ziggurat(
    edge: float, area: float, density: Callable[[float], float], inverse: Callable[[float], float]
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Tables (acceptance, width, height) of a 256-layer ziggurat (Marsaglia and Tsang 2000) for 52-bit abscissas.

    The tail begins at `edge`, each layer has the area `area`, and `density` is 1 at 0.
    """
    unit = 2.0**52
    accept = np.zeros(256, dtype=np.int64)
    width = np.empty(256)
    height = np.empty(256)
    base = area / density(edge)
    accept[0] = int(edge / base * unit)
    width[0], width[255] = base / unit, edge / unit
    height[0], height[255] = 1.0, density(edge)
    right = edge
    for layer in range(254, 0, -1):
        x = inverse(area / right + density(right))
        accept[layer + 1] = int(x / right * unit)
        height[layer], width[layer] = density(x), x / unit
        right = x
    return accept, width, height


_NORMAL_EDGE = 3.6541528853610088
_NORMAL_ACCEPT, _NORMAL_WIDTH, _NORMAL_HEIGHT = _ziggurat(
    _NORMAL_EDGE,
    _NORMAL_EDGE * math.exp(-(_NORMAL_EDGE**2) / 2) + math.sqrt(math.pi / 2) * math.erfc(_NORMAL_EDGE / math.sqrt(2)),
    lambda x: math.exp(-(x**2) / 2),
    lambda f: math.sqrt(-2 * math.log(f)),
)
_LAPLACE_EDGE = 7.69711747013104972
_LAPLACE_ACCEPT, _LAPLACE_WIDTH, _LAPLACE_HEIGHT = _ziggurat(
    _LAPLACE_EDGE,
    (_LAPLACE_EDGE + 1) * math.exp(-_LAPLACE_EDGE),
    lambda x: math.exp(-x),
    lambda f: -math.log(f),
)


@inlined
def unit(word):
    """A uniform in [0, 1) with 53 bits.

    Parameters
    ----------
    word
        A random word.
    """
    return np.int64(word >> np.uint64(11)) * 2.0**-53


@inlined
def _split(word):
    """Split a word into a layer (0 to 255), a sign and a 52-bit abscissa."""
    layer = np.int64(word & np.uint64(0xFF))
    sign = 1.0 - 2.0 * np.int64((word >> np.uint64(8)) & np.uint64(1))
    return layer, sign, np.int64((word >> np.uint64(9)) & np.uint64(0x000FFFFFFFFFFFFF))


@inlined
def _normal(word):
    """(True, a standard normal variate), or (False, nothing) for the 1.5 % of words that need `_normal_rare`."""
    layer, sign, abscissa = _split(word)
    return abscissa < _NORMAL_ACCEPT[layer], abscissa * _NORMAL_WIDTH[layer] * sign


@inlined
def _laplace(word):
    """(True, a Laplace variate of scale 1), or (False, nothing) for the 2 % of words that need `_laplace_rare`."""
    layer, sign, abscissa = _split(word)
    return abscissa < _LAPLACE_ACCEPT[layer], abscissa * _LAPLACE_WIDTH[layer] * sign


@compiled
def _normal_rare(words, at):
    """The variate of the word at `at` and the words after it, and the next position.

    If the words run out, the position is past the end of `words`.
    """
    end = words.shape[0]
    while at + 1 < end:
        layer, sign, abscissa = _split(words[at])
        x = abscissa * _NORMAL_WIDTH[layer]
        if abscissa < _NORMAL_ACCEPT[layer]:
            return sign * x, at + 1
        if layer == 0:
            at += 1
            while at + 1 < end:
                x = -math.log1p(-unit(words[at])) / _NORMAL_EDGE
                at += 2
                if -2 * math.log1p(-unit(words[at - 1])) > x * x:
                    return sign * (_NORMAL_EDGE + x), at
            break
        low, high = _NORMAL_HEIGHT[layer], _NORMAL_HEIGHT[layer - 1]
        at += 2
        if low + unit(words[at - 1]) * (high - low) < math.exp(-0.5 * x * x):
            return sign * x, at
    return 0.0, end + 1


@compiled
def _laplace_rare(words, at):
    """As `_normal_rare`. The tail is the edge plus a fresh exponential, so its resolution does not become coarser."""
    end = words.shape[0]
    start = 0.0
    while at + 1 < end:
        layer, sign, abscissa = _split(words[at])
        x = abscissa * _LAPLACE_WIDTH[layer]
        if abscissa < _LAPLACE_ACCEPT[layer]:
            return sign * (start + x), at + 1
        if layer == 0:
            start += _LAPLACE_EDGE
            at += 1
            continue
        low, high = _LAPLACE_HEIGHT[layer], _LAPLACE_HEIGHT[layer - 1]
        at += 2
        if low + unit(words[at - 1]) * (high - low) < math.exp(-x):
            return sign * (start + x), at
    return 0.0, end + 1


@compiled
def _cosine(d, in_cap, gamma, radial, widest, words, at):
    """The cosine between a uniform direction and a fixed one, given that it is (or is not) in the cap.

    For d >= 3 the first two coordinates of a uniform point of the sphere have radius sqrt(1 - U^(2/(d-2))) and a
    uniform angle. In the cap the radius is at least the cosine gamma, so U < radial = (1 - gamma^2)^((d-2)/2), and the
    angle is at most widest = arccos(gamma). Points in this range that are outside the cap are rejected. For d = 2 the
    radius is 1, for d = 1 the cosine is a sign.
    """
    if d == 1:
        return (1.0 if in_cap else -1.0), at
    if d == 2:
        if at >= words.shape[0]:
            return 0.0, at + 1
        v = unit(words[at])
        return math.cos(v * widest if in_cap else widest + v * (math.pi - widest)), at + 1
    power = 2.0 / (d - 2)
    reach = widest if in_cap else math.pi
    part = radial if in_cap else 1.0
    while at + 1 < words.shape[0]:
        radius = math.sqrt(1.0 - (part * unit(words[at])) ** power)
        cosine = radius * math.cos(reach * unit(words[at + 1]))
        at += 2
        if (cosine >= gamma) == in_cap:
            return cosine, at
    return 0.0, words.shape[0] + 1


@compiled
def _rescaled(g, bound):
    """Divide g by its largest modulus, unless g is 0. Returns the old norm over `bound` and the new squared norm."""
    top = 0.0
    for j in range(g.shape[0]):
        top = max(top, abs(g[j]))
    if top == 0.0:
        return 0.0, 0.0
    square = 0.0
    for j in range(g.shape[0]):
        g[j] /= top
        square += g[j] * g[j]
    return top / bound * math.sqrt(square), square


@reordered
def _privunit(calibration, r, g, side, words, at):  # noqa: C901 - a call inside a compiled loop costs more than a branch
    """Replace g by an unbiased direction of fixed length (see `mechanisms.PrivUnit`); `side` (d,) is scratch space."""
    d = g.shape[0]
    end = words.shape[0]
    if at + 1 >= end:
        return end + 1
    square = 0.0
    for j in range(d):
        square += g[j] * g[j]
    share = math.sqrt(square) / calibration[r, NORM_BOUND]
    if not TINY < square < HUGE:  # the direction would be off the unit sphere
        share, square = _rescaled(g, calibration[r, NORM_BOUND])
    norm = math.sqrt(square)
    sign = 1.0 if 2 * unit(words[at]) < 1.0 + share else -1.0
    in_cap = unit(words[at + 1]) < calibration[r, CAP_PROBABILITY]
    cosine, at = _cosine(
        d, in_cap, calibration[r, CAP_COSINE], calibration[r, CAP_RADIAL], calibration[r, CAP_ANGLE], words, at + 2
    )
    if norm == 0.0:  # any direction is right, because the sign is fair
        g[0] = norm = 1.0
    for j in range(d):
        if at >= end:
            return end + 1
        accepted, z = _normal(words[at])
        at += 1
        if not accepted:
            z, at = _normal_rare(words, at - 1)
        side[j] = z
    sign /= norm
    along = 0.0
    for j in range(d):
        g[j] *= sign
        along += side[j] * g[j]
    square = 0.0
    for j in range(d):
        side[j] -= along * g[j]
        square += side[j] * side[j]
    across = math.sqrt(max(0.0, 1.0 - cosine * cosine) / square) if square > 0 and d > 1 else 0.0
    cells = 1.0 / calibration[r, GRID]
    scale = calibration[r, SCALE] * calibration[r, GRID]
    for j in range(d):
        g[j] = np.rint((cosine * g[j] + across * side[j]) * cells) * scale
    return at


@compiled
def noise(mechanism, calibration, r, g, side, words, at):
    """Randomise g in place by one calibration.

    Returns the next position in `words`, or a position past its end if the words ran out; then g is not valid.

    Parameters
    ----------
    mechanism
        The code of a mechanism.
    calibration, r
        (n, c) calibrations, and the row to use.
    g
        (d,) the vector.
    side
        (d,) scratch space.
    words, at
        Random words, and the position of the first unused one.
    """
    end = words.shape[0]
    grid = calibration[r, GRID]
    scale = calibration[r, SCALE] / grid
    if mechanism == GAUSSIAN:
        for j in range(g.shape[0]):
            if at >= end:
                return end + 1
            accepted, z = _normal(words[at])
            at += 1
            if not accepted:
                z, at = _normal_rare(words, at - 1)
            g[j] = (np.rint(g[j] / grid) + np.rint(z * scale)) * grid
    elif mechanism == LAPLACE:
        for j in range(g.shape[0]):
            if at >= end:
                return end + 1
            accepted, z = _laplace(words[at])
            at += 1
            if not accepted:
                z, at = _laplace_rare(words, at - 1)
            g[j] = (np.rint(g[j] / grid) + np.rint(z * scale)) * grid
    elif mechanism == PRIVUNIT:
        return _privunit(calibration, r, g, side, words, at)
    return at


@compiled
def use_words(words, start, at):
    """Overwrite the words from `start` to `at` and move the position past them.

    Returns False if one of them was zero. It may have been used before, so its noise may be known: the caller must not
    use the noise. Then the position moves to the end of the words.

    Parameters
    ----------
    words
        Random words; the first entry is the position.
    start, at
        The first used word, and the first unused one after it.
    """
    fresh = True
    for k in range(start, at):
        fresh &= words[k] != 0
        words[k] = 0
    words[0] = at if fresh else words.shape[0]
    return fresh


@compiled
def respond(truth, keep, words):
    """A noisy bit, 0 or 1: the true one with probability `keep` (see `mechanisms.response`). -1 if the words ran out.

    Parameters
    ----------
    truth
        The bit.
    keep
        From 1/2 to 1.
    words
        Random words; the first entry is the position.
    """
    at = np.int64(words[0])
    if at >= words.shape[0]:
        return -1
    told = unit(words[at]) < keep
    return int(truth == told) if use_words(words, at, at + 1) else -1


@compiled
def normals(words, scale, out):
    """Fill an array with rounded normal variates; False if the words ran out.

    Parameters
    ----------
    words
        Random words without a position; they are not overwritten.
    scale
        The standard deviation.
    out
        (d,) int64.
    """
    at = 0
    for j in range(out.shape[0]):
        if at >= words.shape[0]:
            return False
        accepted, z = _normal(words[at])
        at += 1
        if not accepted:
            z, at = _normal_rare(words, at - 1)
            if at > words.shape[0]:
                return False
        out[j] = np.int64(np.rint(z * scale))
    return True


@compiled
def randomize(mechanism, calibration, G, words):
    """Randomise the rows of G in place. Returns the number of rows done before the words ran out.

    Parameters
    ----------
    mechanism
        The code of a mechanism.
    calibration
        (n, c), one row for each row of G, or (1, c).
    G
        (n, d).
    words
        Random words; the first entry is the position.
    """
    each = 1 if calibration.shape[0] > 1 else 0
    at = np.int64(words[0])
    g, side = np.empty(G.shape[1]), np.empty(G.shape[1])
    for i in range(G.shape[0]):
        start = at
        g[:] = G[i]
        at = noise(mechanism, calibration, i * each, g, side, words, at)
        if at > words.shape[0] or not use_words(words, start, at):
            return i
        G[i] = g
    return G.shape[0]
