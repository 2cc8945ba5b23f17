"""Compiled loops of the shuffle protocol: noisy counts, their bits, and a permutation.

As in `kernels`, words come from `entropy` as an array whose first entry is the position; a loop that runs out of words
stops before the cell that it cannot finish, says how far it came, and is called again with more.
"""

from __future__ import annotations

import numpy as np

from streamdp.kernels import _compiled, _use

_PAIRS = np.uint64(0x5555555555555555)
_FOURS = np.uint64(0x3333333333333333)
_BYTES = np.uint64(0x0F0F0F0F0F0F0F0F)
_SUM = np.uint64(0x0101010101010101)
_ONE, _TWO, _FOUR, _TOP = np.uint64(1), np.uint64(2), np.uint64(4), np.uint64(56)
_HALF, _LOW = np.uint64(32), np.uint64(0xFFFFFFFF)


@_compiled
def _ones(word: np.uint64) -> np.int64:
    """The number of ones in a word."""
    word -= (word >> _ONE) & _PAIRS
    word = (word & _FOURS) + ((word >> _TWO) & _FOURS)
    word = (word + (word >> _FOUR)) & _BYTES
    return np.int64((word * _SUM) >> _TOP)


@_compiled
def noisy_counts(places: np.ndarray, noise: int, out: np.ndarray, words: np.ndarray) -> int:
    """Write into out (m,) each place (m,) rounded at random, plus the ones among `noise` fair bits.

    A place is rounded up where the next word is below its fraction of 2^64, which is exact for fractions that are
    multiples of 2^-64; others lose what is below. Returns how many cells were done before `words` ran out.
    """
    whole, rest = noise // 64, noise % 64
    mask = (_ONE << np.uint64(rest)) - _ONE
    need = 1 + whole + (1 if rest else 0)
    at = np.int64(words[0])
    for i in range(places.shape[0]):
        if at + need > words.shape[0]:
            return i
        floor = np.floor(places[i])
        up = words[at] < np.uint64((places[i] - floor) * 2.0**64)
        total = np.int64(floor) + (1 if up else 0)
        for k in range(at + 1, at + 1 + whole):
            total += _ones(words[k])
        if rest:
            total += _ones(words[at + 1 + whole] & mask)
        if not _use(words, at, at + need):
            return i
        at += need
        out[i] = total
    return places.shape[0]


@_compiled
def write_ones(counts: np.ndarray, out: np.ndarray) -> None:
    """Row i of out (m, w), zeros so far, becomes packed bits of which the first counts[i] (m,) are ones."""
    for i in range(counts.shape[0]):
        whole, rest = counts[i] // 8, counts[i] % 8
        for k in range(whole):
            out[i, k] = 255
        if rest:
            out[i, whole] = 256 - (1 << (8 - rest))


@_compiled
def permute(items: np.ndarray, last: int, words: np.ndarray) -> int:
    """Fisher-Yates: swap each of items[last], ..., items[1] with one of those up to it, all equally likely.

    The draw is the upper half of a word times the number of choices (at most 2^32), over 2^32, with the draws rejected
    that would make it uneven (Lemire 2019). Returns the position at which `words` ran out, or 0 when done.
    """
    at = np.int64(words[0])
    for i in range(last, 0, -1):
        choices = np.uint64(i + 1)
        start = at
        while True:
            if at >= words.shape[0]:
                return i
            product = (words[at] >> _HALF) * choices
            at += 1
            low = product & _LOW
            if low >= choices or low >= ((_LOW - choices) + _ONE) % choices:
                break
        if not _use(words, start, at):
            return i
        j = np.int64(product >> _HALF)
        items[i], items[j] = items[j], items[i]
    return 0
