"""Compiled loops of LDP-SGD and LDP-ASGD: question or gradient (`frame`), noise, step (`steps`).

A loop draws no randomness by itself: words come from `entropy` as an array (see `samplers`). A loop that runs out of
words rolls back to the start of its record and returns, and is called again with more words. The loops themselves move
the position in the words (`words[0]`) and count the records seen (`seen[0]`). So no exception and no other thread can
interrupt between a record and its count, or between the use of a word and its overwriting.
"""

from __future__ import annotations

import math

import numpy as np

from streamdp.optim import location_scale as ls
from streamdp.optim.frame import (
    CENTRE,
    GRADIENT,
    ORIGIN,
    SCALE,
    SEGMENT,
    SHRUNK,
    SLOT,
    TOTAL,
    UNIT,
    WEIGHT,
    WIDTH,
    Arrays,
    after,
    next_question,
    take_bit,
    to_original,
)
from streamdp.optim.loops import (
    AVERAGED,
    BALL,
    BY_RECORDS,
    DECAY,
    DOMAIN,
    FACTOR,
    HUBER,
    INTERCEPT,
    LOSS,
    MECHANISM,
    OFFSET,
    RADIUS,
    SOFTMAX,
    gradient,
    gradient_of_classes,
)
from streamdp.privacy.samplers import (
    INFORMATION,
    KEEP,
    compiled,
    noise,
    reordered,
    reordered_inlined,
    respond,
    use_words,
)


@compiled
def _end_segment(segments, clock):
    """Begin a new segment. If there is no room, segments are joined in pairs, and are twice as long from now on."""
    at = int(clock[SEGMENT])
    if at + 1 < segments.shape[0]:
        clock[SEGMENT] += 1
        return
    half = segments.shape[0] // 2
    for i in range(half):
        segments[i] = segments[2 * i] + segments[2 * i + 1]
    segments[half:] = 0.0
    clock[SEGMENT] = half
    clock[WIDTH] *= 2.0


@reordered_inlined
def _step(spec, box, state, segments, clock, frame, g, information, out):  # noqa: C901 - a call costs more than a branch
    """One step with a noisy gradient (see `steps`), its average, and the sums of `inference`. `out` is scratch."""
    theta = state[0]
    d, p = theta.shape[0], frame.shape[0] - 1
    q = p + int(spec[INTERCEPT])
    tau = 1.0 if spec[BY_RECORDS] else information
    total = clock[TOTAL] + tau
    clock[TOTAL] = total
    decay, offset, factor = spec[DECAY], spec[OFFSET], -spec[FACTOR] * tau
    size = factor * math.exp(-decay * math.log(total + offset))
    for j in range(d):
        out[j] = size
    for j in range(p):
        if frame[j, SHRUNK] > 0.0:
            larger = factor * math.exp(-decay * math.log(total - frame[j, SHRUNK] + offset))
            for k in range(d // q):
                out[k * q + j] = larger
    for j in range(d):
        theta[j] = min(max(theta[j] + out[j] * g[j], box[0, j]), box[1, j])
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
        to_original(spec, frame, theta, out)
        weight = tau if spec[BY_RECORDS] else tau * math.sqrt(total)
        clock[WEIGHT] += weight
        share, at = weight / clock[WEIGHT], int(clock[SEGMENT])
        for j in range(d):
            state[1, j] += share * (out[j] - state[1, j])
            segments[at, j] += tau * out[j]
        segments[at, d] += tau
        if clock[WIDTH] == 0.0:
            clock[WIDTH] = tau
        if segments[at, d] >= clock[WIDTH]:
            _end_segment(segments, clock)


@reordered
def learn(spec, box, state, segments, clock, frame, posterior, summary, seen, X, y, calibration, words):
    """Learn the rows of X in order. Returns the number of rows learned before the words ran out.

    Parameters
    ----------
    spec, box, state, segments, clock, frame, posterior, summary
        The model; see `Arrays`. One by one, because numba takes a tuple of arrays apart slowly.
    seen
        (1,) int64, the number of records learned; incremented for each.
    X, y
        (n, p) features and (n,) targets.
    calibration
        (n, c), one row for each record, or (1, c) (see `samplers`).
    words
        Random words; the first entry is the position.
    """
    arrays = Arrays(spec, box, state, segments, clock, frame, posterior, summary)
    theta = state[0]
    d, p = theta.shape[0], X.shape[1]
    room, side = np.empty(d + 1), np.empty(d)
    g, row, target = room[:d], np.empty((1, p)), np.empty(1)
    mechanism = int(spec[MECHANISM])
    each = 1 if calibration.shape[0] > 1 else 0
    asking = summary.shape[0] > 0
    lowest, highest = frame[p, ORIGIN] - frame[p, UNIT], frame[p, ORIGIN] + frame[p, UNIT]
    at = np.int64(words[0])
    done = 0
    while done < X.shape[0]:
        start, r = at, done * each
        value = min(max(y[done], lowest), highest)
        column = next_question(clock, frame, summary) if asking else GRADIENT
        if column != GRADIENT:
            value = X[done, column] if column < p else (value - frame[p, ORIGIN]) / frame[p, UNIT]
            slot = int(frame[column, SLOT])
            low, high = summary[slot, ls.LOW], summary[slot, ls.HIGH]
            keep = calibration[r, KEEP]
            answer = respond(low <= value < high, keep, words)
            if answer < 0:
                break
            at = np.int64(words[0])
            seen[0] += 1
            take_bit(arrays, column, low, high, answer == 1, keep)
        else:
            for j in range(p):
                row[0, j] = (X[done, j] - frame[j, CENTRE]) / frame[j, SCALE]
            target[0] = (value - frame[p, CENTRE]) / frame[p, SCALE]
            if spec[LOSS] == SOFTMAX:
                gradient_of_classes(spec, theta, row, target, 0, g)
            else:
                gradient(spec, theta, row, target, 0, room)
            at = noise(mechanism, calibration, r, g, side, words, at)
            if at > words.shape[0] or not use_words(words, start, at):
                break
            seen[0] += 1
            _step(spec, box, state, segments, clock, frame, g, calibration[r, INFORMATION], side)
            if asking:
                after(arrays, calibration[r, KEEP])
        done += 1
    room[:] = row[:] = target[:] = 0.0
    return done


@reordered
def absorb(arrays, seen, g, information, keep):
    """One step with a gradient that was randomised elsewhere.

    Parameters
    ----------
    arrays, seen
        As for `learn`.
    g
        (d,) the noisy gradient.
    information, keep
        Those of its calibration (see `samplers`).
    """
    seen[0] += 1
    out = np.empty(g.shape[0])
    _step(arrays.spec, arrays.box, arrays.state, arrays.segments, arrays.clock, arrays.frame, g, information, out)
    if arrays.summary.shape[0] > 0:
        after(arrays, keep)
