"""One randomised answer about one number: the mechanism of private validation, its argument and its variance.

Question. A record is asked for a number v in [-1, 1], such as its scaled error. v is rounded at random to one of m
levels that are evenly spaced from -1 to 1, so that the mean stays v: m = 2 for a number that is often near an end, and
m = 3 for one that is often near 0. The level is told with probability t = e^eps/(e^eps + m - 1); otherwise each of the
other levels is told with the same probability. The answer is a times the level that was told, with
a = (e^eps + m - 1)/(e^eps - 1).

Assumption: which record is asked, what it is asked, and m depend on public numbers and on earlier private outputs only.

Neighbours: replace one record.

Trust: nobody if a person answers on their own side; here the process that calls `learn_one`, which sees the record and
forgets it, as for gradients.

Claim. The answer keeps eps-DP for its record, against everyone who sees every answer. With a budget of mu, eps is the
logit of Phi(mu/2), and the answer keeps mu-GDP; with (eps, delta), the delta is not used.

Proof. The record enters only by the level L that it is rounded to. For each level and each answer, the probability of
the answer is t or (1 - t)/(m - 1), and their ratio is e^eps. L itself is drawn from v, so the law of the answer is a
mixture of these laws, with weights that depend on the record; the ratio of two such mixtures is at most the same.
eps-DP implies mu-GDP for mu = 2 Phi^-1(e^eps/(1 + e^eps)) (`GaussianDP.from_pure`). In floating point: t is rounded
down to a multiple of 2^-53, after it was lowered by a relative 2^-50, and it is compared with a uniform multiple of
2^-53; so its probability is exactly t. One of the other levels is chosen by a word of its own, with equal
probabilities. The rounding to a level may be of any precision, because it is done before the mechanism.

Share and budget. With `share`, a record that is asked gives no gradient: it enters by one answer, with its whole
budget, and budgets of disjoint records do not add. Which records are asked is a public function of their number. With a
budget of its own, the answer is given beside the gradient, and both together keep the sum of the two budgets by basic
composition, which holds if the second is chosen after the first was seen (Dwork, Roth 2014, Theorem 3.16; Dong, Roth,
Su 2022, Corollary 2 for mu). The sum is what the record is said to spend, and what a cap counts.

Variance of an answer. With w = |v|: for m = 2, a^2 - v^2. For m = 3,
a^2 (w (e^eps + 1) + (1 - w) 2)/(e^eps + 2) - v^2. At eps = 1 and v = 0: 4.7 for two levels, 3.2 for three, 8 for
Laplace noise of the same budget. At eps = 4: 1.08, 0.04 and 0.5. At |v| = 1 and eps = 1 two levels are better: 3.7 and
4.9. So an error is asked for with two levels, and the difference of two errors of numbers, which is small
for most records, with three.

Variance of the comparison with a constant, by n answers at eps = 1, in units of the largest error B: errors of model
and constant from n/2 answers each, (2 + 2) 4.7/4 = 4.7; the difference from n answers with the range [-B/2, B/2] and
three levels, about 4/4 = 1, and with [-1, 1] for classes about 4.3, because a third of these differences are 1. So
numbers are asked for the difference, and classes for both errors, one of which is wanted anyway. At eps = 4: 1.1, 0.1
and 0.4.

Source: Warner 1965 (two levels); Kairouz, Oh, Viswanath 2016 (several); Blum, Kalai, Langford 1999 (progressive
validation).
"""

from __future__ import annotations

import numpy as np

from streamdp.privacy.entropy import Entropy, FreshWords, SeededEntropy

_GRID = 2.0**53
_MOST = 1 - 2.0**-40


def truthful(keep: np.ndarray, levels: int) -> np.ndarray:
    """Return the probabilities (n,) that a level is told truly, as multiples of 2^-53.

    Parameters
    ----------
    keep
        (n,) probabilities of a true bit, from `mechanisms.response.truth`: e^eps/(1 + e^eps).
    levels
        2 or 3.
    """
    t = keep / (keep + (levels - 1) * (1 - keep)) * (1 - 2.0**-50)
    found: np.ndarray = np.floor(np.minimum(t, _MOST) * _GRID) / _GRID
    return found


def factor(keep: np.ndarray, levels: int) -> np.ndarray:
    """Return the largest answers a (n,): the number that makes answers unbiased.

    Parameters
    ----------
    keep, levels
        As for `truthful`.
    """
    t = truthful(keep, levels)
    found: np.ndarray = (levels - 1) / (levels * t - 1)
    return found


def answer(values: np.ndarray, keep: np.ndarray, levels: int, words: np.ndarray) -> np.ndarray:
    """Return unbiased randomised answers (n,) about numbers.

    Parameters
    ----------
    values
        (n,) numbers in [-1, 1]. They are overwritten with zeros.
    keep, levels
        As for `truthful`; keep must be above 1/2.
    words
        (n, 3) random words, of `draw`. They are overwritten with zeros.
    """
    try:
        uniform = (words[:, :2] >> np.uint64(11)) * 2.0**-53
        place = (values + 1) * ((levels - 1) / 2)
        level = np.minimum(np.floor(place), levels - 2)
        level += uniform[:, 0] < place - level
        other = (level + 1 + (words[:, 2] & np.uint64(1)) * (levels - 2)) % levels
        told = np.where(uniform[:, 1] < truthful(keep, levels), level, other)
        for raw in (uniform, place, level, other):
            raw[:] = 0
        found: np.ndarray = factor(keep, levels) * (told * (2 / (levels - 1)) - 1)
        return found
    finally:
        values[:] = 0
        words[:] = 0


def draw(rng: Entropy | SeededEntropy | FreshWords, count: int) -> np.ndarray:
    """Return unused random words (count,) of a generator. The caller overwrites them after use.

    Parameters
    ----------
    rng
        The generator. Hold its lock.
    count
        How many.
    """
    if isinstance(rng, FreshWords):
        return rng.draw(count)
    out, filled = np.empty(count, dtype=np.uint64), 0
    while filled < count:
        at = rng.position
        taken = rng.words[at : at + count - filled]
        if not len(taken):
            rng.refill()
            continue
        rng.words[0] = at + len(taken)  # first: an exception between these lines wastes words, and uses none twice
        if taken.all():  # a word that is zero may have been used
            out[filled : filled + len(taken)] = taken
            filled += len(taken)
        taken[:] = 0
    return out
