"""What an LDP learner holds, the units of its columns, and which question the next record answers.

A record answers one question with its whole budget: either with a noisy gradient, or with one noisy bit about a column,
from which the columns and the target are centred and scaled (`location_scale` has the model of a column). Which one
depends on the number of the record, on public budgets and on earlier answers only.

Schedule. The information of a bit is (2 p - 1)^2, p being the probability of a true answer. With u the information that
all records so far would have given as bits, b that of the bits asked, and p columns to scale, the next record answers
with a bit

* about the target, until the bits about it have an information of 60, and then up to 240 while ln s is known to less
  than a third;
* else about the columns in turn, if b < A(5 p);
* else about the column with the largest expected gain, if b < A(60 p) and this gain is above .03 min(1, 60 p/u),

A(k) = min(.15 u, k (1 + ln max(1, .15 u/k))); otherwise with a gradient. After 32 records, and then every time their
number has grown by a fifth, columns are scaled anew (`_rescale`). Scales only fall.

Units. Gradients are taken at theta for (x - centre)/scale and (y - centre)/scale. Averages are kept in original units,
so that no average changes its meaning when a scale does.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from streamdp.optim import location_scale as ls
from streamdp.optim.loops import HUBER, INTERCEPT, LOSS
from streamdp.privacy.samplers import HUGE, compiled, reordered_inlined


class Arrays(NamedTuple):
    """What is learned, and what describes the model.

    Parameters
    ----------
    spec, box
        (`loops.SPEC`,) and (2, d): the model, and the lower and upper bounds of theta.
    state
        (2, d): theta, and in original units its average.
    segments
        (`SEGMENTS`, d + 1): the sums of the segments of `inference`, in original units, and their lengths.
    clock
        (`CLOCK`,) numbers at the indices below.
    frame
        (p + 1, `FRAME`) the columns and, in the last row, the target.
    posterior
        (c, ...) what is known about the c columns that are scaled; the target is the last one if it is scaled.
    summary
        (c, `SUMMARY`) what follows from the posteriors.
    """

    spec: np.ndarray
    box: np.ndarray
    state: np.ndarray
    segments: np.ndarray
    clock: np.ndarray
    frame: np.ndarray
    posterior: np.ndarray
    summary: np.ndarray


# `clock`: the information of gradients; the weights of the average; the open segment, and the length that ends it; the
# information of all records, of the bits about columns, and of those about the target (`HUGE` when it has its scale);
# the records after the target's bits; when columns are scaled next; the next column in turn; how often something was
# scaled; bits.
TOTAL, WEIGHT, SEGMENT, WIDTH, REACHED, ASKED, TARGET, COUNT, NEXT, TURN, CHANGES, BITS = range(12)
CLOCK = 12

# `frame`: x is (raw - ORIGIN)/UNIT, and what is learned from is (x - CENTRE)/SCALE. For the target, x is raw, and its
# bounds are ORIGIN - UNIT and ORIGIN + UNIT. SHRUNK is TOTAL when SCALE fell last, LOWEST is SCALE at the last restart
# of the average, and SLOT is the index of the posterior, or -1. SLOPE and SHIFT follow from the others.
CENTRE, SCALE, SHRUNK, LOWEST, ORIGIN, UNIT, SLOT, SLOPE, SHIFT = range(9)
LEARNED = 4  # the first four are learned
FRAME = 9

# `summary`, after `location_scale.SUMMARY` numbers: the expected gain of the column, and its index in `frame`.
GAIN, COLUMN = ls.SUMMARY, ls.SUMMARY + 1
SUMMARY = ls.SUMMARY + 2

GRADIENT = -1
"""The answer of `next_question` for a gradient."""

_TARGET_LEAST, _TARGET_MOST, _TARGET_VARIANCE = 60.0, 240.0, 0.11
_FEW, _MANY = 5.0, 60.0
_SHARE = 0.15
_FIRST, _GROWTH = 32.0, 1.2
_SHRINK, _FINE, _SURE = 1.5, 1.19, 0.05
_LEAST_SCALE = 2.0**-7


@reordered_inlined
def _allowance(u, k):
    """A(k): how much information the bits about columns may have."""
    share = _SHARE * u
    return min(share, k * (1.0 + math.log(max(1.0, share / k))))


@compiled
def next_question(clock, frame, summary):
    """The column that the next record is asked about: p for the target, or `GRADIENT`.

    Parameters
    ----------
    clock, frame, summary
        See `Arrays`.
    """
    columns = summary.shape[0]
    if columns == 0:
        return GRADIENT
    p = frame.shape[0] - 1
    if frame[p, SLOT] >= 0.0:
        columns -= 1
        if clock[TARGET] < HUGE:
            return p
    u, asked = clock[REACHED], clock[ASKED]
    if columns == 0 or not asked < _SHARE * u:
        return GRADIENT
    if asked < _allowance(u, _FEW * columns):
        return int(summary[int(clock[TURN]) % columns, COLUMN])
    if asked < _allowance(u, _MANY * columns):
        best = 0
        for c in range(1, columns):
            if summary[c, GAIN] > summary[best, GAIN]:
                best = c
        if summary[best, GAIN] > 0.03 * min(1.0, _MANY * columns / u):
            return int(summary[best, COLUMN])
    return GRADIENT


@compiled
def fit(frame):
    """Compute SLOPE and SHIFT of all columns from their centres, scales and units.

    Parameters
    ----------
    frame
        See `Arrays`.
    """
    for j in range(frame.shape[0] - 1):
        frame[j, SLOPE] = 1.0 / (frame[j, SCALE] * frame[j, UNIT])
        frame[j, SHIFT] = (frame[j, CENTRE] + frame[j, ORIGIN] / frame[j, UNIT]) / frame[j, SCALE]


@reordered_inlined
def to_original(spec, frame, theta, out):
    """As `outward`, for loops.

    Parameters
    ----------
    spec, frame, theta, out
        See `outward`.
    """
    p = frame.shape[0] - 1
    intercept = int(spec[INTERCEPT])
    q = p + intercept
    scale = frame[p, SCALE]
    last = theta.shape[0] - 1
    for k in range(theta.shape[0] // q):
        shift = 0.0
        for j in range(p):
            shift += theta[k * q + j] * frame[j, SHIFT]
            out[k * q + j] = theta[k * q + j] * frame[j, SLOPE] * scale
        if intercept:
            out[k * q + p] = frame[p, CENTRE] + (theta[k * q + p] - shift) * scale
    if spec[LOSS] == HUBER:
        out[last] = theta[last] * scale


@compiled
def outward(spec, frame, theta, out):
    """Write theta in original units.

    Parameters
    ----------
    spec, frame
        See `Arrays`.
    theta, out
        (d,).
    """
    to_original(spec, frame, theta, out)


@compiled
def inward(spec, frame, original, out):
    """Write original units as theta: the inverse of `outward`.

    Parameters
    ----------
    spec, frame
        See `Arrays`.
    original, out
        (d,).
    """
    p = frame.shape[0] - 1
    intercept = int(spec[INTERCEPT])
    q = p + intercept
    scale = frame[p, SCALE]
    last = original.shape[0] - 1
    for k in range(original.shape[0] // q):
        shift = 0.0
        for j in range(k * q, k * q + p):
            out[j] = original[j] / (frame[j - k * q, SLOPE] * scale)
            shift += out[j] * frame[j - k * q, SHIFT]
        if intercept:
            out[k * q + p] = (original[k * q + p] - frame[p, CENTRE]) / scale + shift
    if spec[LOSS] == HUBER:
        out[last] = original[last] / scale


@compiled
def _refresh(frame, posterior, summary, slot):
    weights = ls.weights(posterior, slot)
    ls.summarise(weights, summary[slot])
    j = int(summary[slot, COLUMN])
    summary[slot, GAIN] = ls.gain(weights, summary[slot, ls.MEAN], frame[j, SCALE])


@compiled
def refresh(arrays):
    """Compute `summary` and the derived columns of `frame` anew, as after a state was loaded.

    Parameters
    ----------
    arrays
        See `Arrays`.
    """
    fit(arrays.frame)
    for slot in range(arrays.summary.shape[0]):
        _refresh(arrays.frame, arrays.posterior, arrays.summary, slot)


@compiled
def _rescale(arrays):  # noqa: C901 - one pass over the columns
    """Centre and scale the columns anew where their posteriors are sure, and carry theta along.

    With r the distance of a value from E m: a scale falls by 1.5, and then by 1.19 again and again, as long as P(r >
    the new scale) < .05. A centre moves if it is off by half a scale and known to a quarter of it.
    """
    spec, clock, frame = arrays.spec, arrays.clock, arrays.frame
    posterior, summary, theta = arrays.posterior, arrays.summary, arrays.state[0]
    p = frame.shape[0] - 1
    q = p + int(spec[INTERCEPT])
    changed = restart = False
    for slot in range(summary.shape[0]):
        j = int(summary[slot, COLUMN])
        if j == p:
            continue
        mean, scale = summary[slot, ls.MEAN], frame[j, SCALE]
        new, weights = scale, ls.weights(posterior, slot)
        if ls.exceeding(weights, mean, scale / _SHRINK) < _SURE:
            new = max(scale / _SHRINK, _LEAST_SCALE)
            while new > _LEAST_SCALE and ls.exceeding(weights, mean, new / _FINE) < _SURE:
                new = max(new / _FINE, _LEAST_SCALE)
        elif not (abs(mean - frame[j, CENTRE]) > scale / 2 and math.sqrt(summary[slot, ls.VARIANCE]) < scale / 4):
            continue
        for k in range(theta.shape[0] // q):
            theta[k * q + p] += theta[k * q + j] * (mean - frame[j, CENTRE]) / scale
            theta[k * q + j] *= new / scale
        changed = True
        frame[j, CENTRE], frame[j, SCALE] = mean, new
        if new < scale:
            frame[j, SHRUNK] = clock[TOTAL]
        restart |= new < frame[j, LOWEST] / 3
        summary[slot, GAIN] = ls.gain(weights, mean, new)
    if changed:
        clock[CHANGES] += 1
        clock[SEGMENT] = clock[WIDTH] = 0.0
        arrays.segments[:] = 0.0
        fit(frame)
    if restart:
        clock[WEIGHT] = 0.0
        for j in range(p):
            frame[j, LOWEST] = frame[j, SCALE]


@compiled
def after(arrays, keep):
    """Count a record, and scale the columns anew when it is time. For records after the bits about the target.

    Parameters
    ----------
    arrays
        See `Arrays`.
    keep
        The probability of a true answer that its budget would have allowed.
    """
    clock = arrays.clock
    clock[REACHED] += (2 * keep - 1) ** 2
    clock[COUNT] += 1
    if clock[COUNT] >= clock[NEXT]:
        _rescale(arrays)
        clock[NEXT] = math.ceil(max(_FIRST, clock[COUNT] * _GROWTH))


@compiled
def take_bit(arrays, column, low, high, answer, keep):
    """Take in one noisy bit.

    Parameters
    ----------
    arrays
        See `Arrays`.
    column
        The column, or p for the target.
    low, high
        The question that was answered, in units of the declared bounds: [-1, 1].
    answer
        The noisy answer.
    keep
        The probability that it is the true one.
    """
    clock, frame, posterior, summary = arrays.clock, arrays.frame, arrays.posterior, arrays.summary
    p = frame.shape[0] - 1
    slot = int(frame[column, SLOT])
    clock[BITS] += 1
    ls.update(posterior, slot, low, high, answer, keep)
    _refresh(frame, posterior, summary, slot)
    if column < p:
        clock[ASKED] += (2 * keep - 1) ** 2
        clock[TURN] += 1
        after(arrays, keep)
    elif clock[TARGET] < HUGE:
        clock[TARGET] += (2 * keep - 1) ** 2
        known = clock[TARGET] >= _TARGET_LEAST and summary[slot, ls.LOG_VARIANCE] < _TARGET_VARIANCE
        if known or clock[TARGET] >= _TARGET_MOST:
            clock[TARGET] = HUGE
            frame[p, CENTRE] = frame[p, ORIGIN] + frame[p, UNIT] * summary[slot, ls.MEAN]
            spread = math.sqrt(summary[slot, ls.VARIANCE] + math.exp(2.0 * summary[slot, ls.LOG]))
            frame[p, SCALE] = frame[p, UNIT] * min(1.0, spread)
            clock[CHANGES] += 1
            outward(arrays.spec, frame, arrays.state[0], arrays.state[1])
