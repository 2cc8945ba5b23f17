"""Coefficients that know the noise of their estimate: the mean of a normal prior around the model without columns.

Let t be coefficients over sigma, in units in which columns have a spread of about 1, and t-hat = t + e their estimate
with normal noise e of a known covariance. The prior is t ~ N(0, tau^2 I) for the slopes, flat for the intercept, with
ln tau uniform on a grid from ln .05 to ln 2. With C the block of the slopes, the answer for the slopes is the mean of
t-hat - C (tau^2 I + C)^-1 t-hat over the posterior of tau. The intercept moves by what the noise of the slopes says
about its own. So an estimate that is all noise becomes about that of a constant, and one with little noise stays.

What each group has of its own (`per` in a schema) has a tau of its own, smaller than that of what all groups share. It
comes first, with a flat prior for all others, whose covariance is then the posterior one. So few records of a group, or
groups that hardly differ, give about the common model.

Everything here is computed from noisy sums and public numbers, so it is post-processing and spends nothing. It is about
accuracy only.

Source: Efron and Morris, "Stein's estimation rule and its competitors", 1973.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

_VARIANCES = np.geomspace(0.05, 2.0, 25)[:, None] ** 2


def shrunk(found: np.ndarray, covariance: np.ndarray, own: Sequence[int] = (), shared: bool = True) -> np.ndarray:
    """Return the posterior means (q,), as a new array, for t-hat `found` (q,): the slopes, and last the intercept.

    `covariance` (q, q) is that of its noise, and `own` are the slopes that each group has of its own. If not `shared`,
    only these have a prior.
    """
    first, others = np.array(own, dtype=int), np.setdiff1d(np.arange(len(found) - 1), own)
    for slopes in (first, others) if shared else (first,):
        noises, axes = np.linalg.eigh(covariance[np.ix_(slopes, slopes)])
        along, totals = axes.T @ found[slopes], _VARIANCES + np.maximum(noises, 0.0)
        chances = -(np.log(totals) + along**2 / totals).sum(axis=1) / 2
        chances = np.exp(chances - chances.max())
        chances /= chances.sum()
        moves = covariance[:, slopes] @ axes
        found = found - moves @ (chances @ (along / totals))
        covariance = covariance - (moves * (chances @ (1 / totals))) @ moves.T
    return found
