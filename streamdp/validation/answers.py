"""One randomised answer about one number: the mechanism of private validation, and its variance.

A record is asked for a number v in [-1, 1], such as its scaled error. v is rounded at random to -1 or 1, so that the
mean stays v. The answer names this end with probability t = e^eps/(1 + e^eps), else the other one. The released value
is the answer times a = 1/(2 t - 1), so its mean is v and its variance a^2 - v^2.

Neighbours: replace one record. Trust: nobody if a person answers on their own side; here the process that calls
`learn_one`. Claim: the answer keeps eps-DP for its record, against everyone who sees every answer; mu-GDP with t =
Phi(mu/2); with (eps, delta), the delta is not used.

Proof, shares and budgets of their own, comparison with a constant: docs/proofs/validation.md.
"""

from __future__ import annotations

import numpy as np

from streamdp.privacy.entropy import uniform

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
        points = uniform(words)
        upper = 2 * points[:, 0] - 1 < values
        answered = upper == (points[:, 1] < truthful(keep))
        points[:] = upper[:] = 0
        found: np.ndarray = factor(keep) * (2.0 * answered - 1)
        return found
    finally:
        values[:] = 0
        words[:] = 0
