"""One randomised answer about one number: the mechanism of private validation, its argument and its variance.

Question. A record is asked for a number v in [-1, 1], such as its scaled error. v is rounded at random to -1 or 1, so
that the mean stays v. The end is told truly with probability t = e^eps/(1 + e^eps), else the other one. The answer is
what was told times a = 1/(2 t - 1) = (e^eps + 1)/(e^eps - 1), so its mean is v.

Assumption: which record is asked, and what it is asked, depend on public numbers and on earlier private outputs only.

Neighbours: replace one record.

Trust: nobody if a person answers on their own side; here the process that calls `learn_one`, which sees the record and
forgets it, as for gradients.

Claim. The answer keeps eps-DP for its record, against everyone who sees every answer. With a budget of mu, t is
Phi(mu/2), and the answer keeps mu-GDP; with (eps, delta), the delta is not used.

Proof. The record enters only by the end that v is rounded to, and that is answered by randomised response
(`mechanisms.response` has the proof for each kind of budget). The law of the answer is a mixture of the two laws of
randomised response, with weights that depend on the record. Privacy is closed under such mixtures, because rounding v
is a step before the mechanism. In floating point: t is lowered by `response.truth` by a relative 2^-50, rounded down to
a multiple of 2^-53, and compared with a uniform multiple of 2^-53, so its probability is exactly t. The rounding of v
may be of any precision.

Share and budget. With `share`, a record that is asked gives no gradient: it enters by one answer, with its whole
budget, and budgets of disjoint records do not add. Which records are asked is a public function of their number. With a
budget of its own, the answer is given beside the gradient, and both together keep the sum of the two budgets by basic
composition, which holds if the second is chosen after the first was seen (Dwork, Roth 2014, Theorem 3.16; Dong, Roth,
Su 2022, Corollary 2 for mu). The sum is what the record is said to spend, and what a cap counts.

Variance of an answer: a^2 - v^2. At eps = 1 it is 4.7 - v^2, and 8 for Laplace noise of the same budget; at eps = 4 it
is 1.08 - v^2, and 0.5. The answers are bounded, which the proof in `drift` needs.

Comparison with a constant. Records are asked for the error of the model or for that of the constant, both with the
range [0, B]: at eps = 1 the difference has the variance 1.2 B^2 (1/n + 1/m) from n and m answers. The difference of
both errors of one record lies in [-B, B]: from 2 n answers about it, it would have 4.7 B^2/(2 n), the same as with
n = m, and the error itself would not be known. Cut to [-B/2, B/2] it would have a quarter of that and a bias: in
simulations with heavy tails its 95 % intervals hardly ever held the true difference.

Source: Warner 1965; Duchi, Jordan, Wainwright 2018; Blum, Kalai, Langford 1999 (progressive validation).
"""

from __future__ import annotations

import numpy as np

from streamdp.privacy.entropy import Entropy, FreshWords, SeededEntropy

_GRID = 2.0**53


def truthful(keep: np.ndarray) -> np.ndarray:
    """Return the probabilities (n,) of a true answer, `keep` of `mechanisms.response.truth`, as multiples of 2^-53."""
    found: np.ndarray = np.floor(keep * _GRID) / _GRID
    return found


def factor(keep: np.ndarray) -> np.ndarray:
    """Return the largest answers a (n,), which make answers unbiased, for `keep` above 1/2 as in `truthful`."""
    found: np.ndarray = 1 / (2 * truthful(keep) - 1)
    return found


def answer(values: np.ndarray, keep: np.ndarray, words: np.ndarray) -> np.ndarray:
    """Return unbiased randomised answers (n,) about values (n,) in [-1, 1], for `keep` as in `factor`.

    The values, and the random words (n, 2), of `draw`, are overwritten with zeros.
    """
    try:
        uniform = (words >> np.uint64(11)) * 2.0**-53
        upper = 2 * uniform[:, 0] - 1 < values
        told = upper == (uniform[:, 1] < truthful(keep))
        uniform[:] = upper[:] = 0
        found: np.ndarray = factor(keep) * (2.0 * told - 1)
        return found
    finally:
        values[:] = 0
        words[:] = 0


def draw(rng: Entropy | SeededEntropy | FreshWords, count: int) -> np.ndarray:
    """Return unused random words (count,) of a generator, `rng`, whose lock is held.

    The caller overwrites them after use.
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
