"""Compiled loops of local means: which intervals a report names, and the fast Hadamard transform.

Words come from `entropy` as an array whose first entry is the position. A loop that runs out of words stops before the
row that it cannot finish, returns the number of finished rows, and is called again with more words.
"""

from __future__ import annotations

import numpy as np

from streamdp.privacy.samplers import compiled, use_words

_HALF, _LOW = np.uint64(32), np.uint64(0xFFFFFFFF)


@compiled
def name_intervals(truth: np.ndarray, picks: int, keep: np.uint64, out: np.ndarray, words: np.ndarray) -> int:
    """Write the intervals that reports name. Returns the number of finished rows.

    The true interval is among them if the next word is below `keep`. The rest is a uniform choice of the other t - 1
    (Floyd 1987); draws that would make it uneven are rejected (Lemire 2019).

    Parameters
    ----------
    truth
        (n,) true intervals.
    picks
        The number of intervals in a report.
    keep
        2^64 times the probability of naming the true interval.
    out
        (n, t) uint8, zeros before; ones are written for named intervals.
    words
        Random words.
    """
    t = out.shape[1]
    at, end = np.int64(words[0]), words.shape[0]
    for i in range(truth.shape[0]):
        start = at
        if at >= end:
            return i
        kept = words[at] < keep
        at += 1
        more = picks - 1 if kept else picks
        for last in range(t - 1 - more, t - 1):
            choices = np.uint64(last + 1)
            while True:
                if at >= end:
                    out[i, :] = 0
                    return i
                product = (words[at] >> _HALF) * choices
                at += 1
                low = product & _LOW
                if low >= choices or low >= ((_LOW - choices) + np.uint64(1)) % choices:
                    break
            j = np.int64(product >> _HALF)
            place = j if j < truth[i] else j + 1  # the others, with the true one left out
            if out[i, place] == 1:
                place = np.int64(last if last < truth[i] else last + 1)
            out[i, place] = 1
        if kept:
            out[i, truth[i]] = 1
        if not use_words(words, start, at):
            out[i, :] = 0
            return i
    return len(truth)


@compiled
def transform(V: np.ndarray) -> None:
    """Multiply rows by the orthonormal Hadamard matrix, in place.

    Parameters
    ----------
    V
        (n, D), D a power of two.
    """
    D = V.shape[1]
    scale = 1.0 / np.sqrt(D)
    for i in range(V.shape[0]):
        half = 1
        while half < D:
            for begin in range(0, D, 2 * half):
                for j in range(begin, begin + half):
                    a, b = V[i, j], V[i, j + half]
                    V[i, j], V[i, j + half] = a + b, a - b
            half *= 2
        for j in range(D):
            V[i, j] *= scale
