"""Compiled loops of the shuffle protocol: noisy counts, their bits, and a permutation.

Words come from `entropy` as an array whose first entry is the position. A loop that runs out of words stops before the
cell that it cannot finish, returns the number of finished cells, and is called again with more words.
"""

from __future__ import annotations

import numpy as np

from streamdp.optim.curvature_loops import joint
from streamdp.optim.loops import gradient, gradient_of_classes
from streamdp.privacy.samplers import compiled, use_words

_PAIRS = np.uint64(0x5555555555555555)
_FOURS = np.uint64(0x3333333333333333)
_BYTES = np.uint64(0x0F0F0F0F0F0F0F0F)
_SUM = np.uint64(0x0101010101010101)
_ONE, _TWO, _FOUR, _TOP = np.uint64(1), np.uint64(2), np.uint64(4), np.uint64(56)
_HALF, _LOW = np.uint64(32), np.uint64(0xFFFFFFFF)


@compiled
def _ones(word: np.uint64) -> np.int64:
    """The number of ones in a word."""
    word -= (word >> _ONE) & _PAIRS
    word = (word & _FOURS) + ((word >> _TWO) & _FOURS)
    word = (word + (word >> _FOUR)) & _BYTES
    return np.int64((word * _SUM) >> _TOP)


@compiled
def _noisy_count(place: float, noise: int, words: np.ndarray, at: np.int64) -> np.int64:
    """A place rounded at random, plus the ones among `noise` fair bits, from the words at `at` and after it."""
    whole, rest = noise // 64, noise % 64
    floor = np.floor(place)
    total = np.int64(floor) + (1 if words[at] < np.uint64((place - floor) * 2.0**64) else 0)
    for k in range(at + 1, at + 1 + whole):
        total += _ones(words[k])
    if rest:
        total += _ones(words[at + 1 + whole] & ((_ONE << np.uint64(rest)) - _ONE))
    return total


@compiled
def noisy_counts(places: np.ndarray, noise: int, out: np.ndarray, words: np.ndarray) -> int:
    """Write each place, rounded at random, plus the ones among fair bits. Returns the number of finished cells.

    A place is rounded up if the next word is below its fraction of 2^64. That is exact for fractions that are multiples
    of 2^-64; other fractions are rounded down to one.

    Parameters
    ----------
    places
        (m,), at least 0.
    noise
        The number of fair bits for each place.
    out
        (m,) int64, the result.
    words
        Random words.
    """
    need = 1 + (noise + 63) // 64
    at = np.int64(words[0])
    for i in range(places.shape[0]):
        if at + need > words.shape[0]:
            return i
        total = _noisy_count(places[i], noise, words, at)
        if not use_words(words, at, at + need):
            return i
        at += need
        out[i] = total
    return len(places)


@compiled
def _add_counts(g: np.ndarray, bound: float, places: int, noise: int, ones: np.ndarray, words: np.ndarray) -> bool:
    """Add to ones (d + 1,) the counts of one gradient g (d,), on 0 to `places`, and one person to the last entry.

    Returns False, and adds nothing, if `words` run out.

    Raises `ArithmeticError` if g is longer than the bound, because it would not be protected.
    """
    d = g.shape[0]
    each = 1 + (noise + 63) // 64
    start = np.int64(words[0])
    if start + d * each > words.shape[0]:
        return False
    square = 0.0
    for j in range(d):
        g[j] /= bound
        square += g[j] * g[j]
    if not square <= 1 + 2e-9:
        raise ArithmeticError("a gradient is longer than the loss's bound")
    for j in range(d):
        place = min(max((g[j] + 1.0) * (places / 2), 0.0), float(places))
        g[j] = _noisy_count(place, noise, words, start + j * each)  # exact: far below 2^53
    if not use_words(words, start, start + d * each):
        return False
    for j in range(d):
        ones[j] += np.int64(g[j])
    ones[d] += 1
    return True


@compiled
def count_ones(
    spec: np.ndarray,
    theta: np.ndarray,
    X: np.ndarray,
    y: np.ndarray,
    bound: float,
    places: int,
    noise: int,
    ones: np.ndarray,
    words: np.ndarray,
) -> int:
    """Add the `noisy_counts` of the gradients of all records, for losses of one linear predictor.

    Returns the number of finished rows.

    Parameters
    ----------
    spec, theta
        The model (see `loops`), and the point (d,) of the gradients.
    X, y
        (n, p) and (n,).
    bound
        The largest l2 norm of a gradient.
    places, noise
        g and b of `shuffled_sum.VectorSum`.
    ones
        (d + 1,) int64, to which the counts are added; the last entry counts the rows.
    words
        Random words.

    Raises `ArithmeticError` if a gradient is longer than the bound.
    """
    room = np.empty(ones.shape[0])
    done = 0
    for i in range(X.shape[0]):
        gradient(spec, theta, X, y, i, room)
        if not _add_counts(room[: ones.shape[0] - 1], bound, places, noise, ones, words):
            break
        done += 1
    room[:] = 0.0
    return done


@compiled
def count_ones_of_classes(
    spec: np.ndarray,
    theta: np.ndarray,
    X: np.ndarray,
    y: np.ndarray,
    bound: float,
    places: int,
    noise: int,
    ones: np.ndarray,
    words: np.ndarray,
) -> int:
    """As `count_ones`, for the multinomial loss."""
    room = np.empty(ones.shape[0] - 1)
    done = 0
    for i in range(X.shape[0]):
        gradient_of_classes(spec, theta, X, y, i, room)
        if not _add_counts(room, bound, places, noise, ones, words):
            break
        done += 1
    room[:] = 0.0
    return done


@compiled
def count_ones_of_joint(
    factor: float,
    spec: np.ndarray,
    theta: np.ndarray,
    X: np.ndarray,
    y: np.ndarray,
    bound: float,
    places: int,
    noise: int,
    ones: np.ndarray,
    words: np.ndarray,
) -> int:
    """As `count_ones`, for gradients with their curvature.

    Parameters
    ----------
    factor
        lambda (see `curvature`).
    spec, theta, X, y, bound, places, noise, words
        As for `count_ones`; theta has the length of a gradient.
    ones
        (size + 1,) int64, to which the counts are added; the last entry counts the rows.
    """
    room = np.empty(ones.shape[0] - 1)
    done = 0
    for i in range(X.shape[0]):
        joint(spec, theta, X, y, i, factor, room)
        if not _add_counts(room, bound, places, noise, ones, words):
            break
        done += 1
    room[:] = 0.0
    return done


@compiled
def write_ones(counts: np.ndarray, out: np.ndarray) -> None:
    """Write packed bits of which the first counts[i] are ones.

    Parameters
    ----------
    counts
        (m,) numbers of ones.
    out
        (m, w) uint8, zeros before; the result.
    """
    for i in range(counts.shape[0]):
        whole, rest = counts[i] // 8, counts[i] % 8
        for k in range(whole):
            out[i, k] = 255
        if rest:
            out[i, whole] = 256 - (1 << (8 - rest))


@compiled
def permute(items: np.ndarray, last: int, words: np.ndarray) -> int:
    """Fisher-Yates: swap each of items[last], ..., items[1] with one of the items up to it, all equally likely.

    The draw is the upper half of a word times the number of choices (at most 2^32), over 2^32; draws that would make it
    uneven are rejected (Lemire 2019). Returns the position at which `words` ran out; 0 at the end.

    Parameters
    ----------
    items
        (n,), permuted in place.
    last
        The position at which to start, n - 1 at first.
    words
        Random words.
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
        if not use_words(words, start, at):
            return i
        j = np.int64(product >> _HALF)
        items[i], items[j] = items[j], items[i]
    return 0
