"""Coefficients that know the noise of their estimate: the mean of a normal prior around the model without columns.

Let t be coefficients over sigma, in units in which columns have a spread of about 1, and t-hat = t + e their estimate
with normal noise e of a known covariance. The prior is t ~ N(0, tau^2 I) for the slopes, flat for the intercept, with
ln tau uniform on a grid from ln .05 to ln 2. With C the block of the slopes, the answer for the slopes is the mean of
t-hat - C (tau^2 I + C)^-1 t-hat over the posterior of tau. The intercept moves by what the noise of the slopes says
about its own. So an estimate that is all noise becomes about that of a constant, and one with little noise stays.

Everything here is computed from noisy sums and public numbers, so it is post-processing and spends nothing. It is about
accuracy only.

Source: Efron and Morris, "Stein's estimation rule and its competitors", 1973.
"""

from __future__ import annotations

import numpy as np

_VARIANCES = np.geomspace(0.05, 2.0, 25)[:, None] ** 2


def shrunk(found: np.ndarray, covariance: np.ndarray) -> np.ndarray:
    """Return the posterior means (q,), as a new array, for t-hat `found` (q,): the slopes, and last the intercept.

    `covariance` (q, q) is that of its noise.
    """
    noises, axes = np.linalg.eigh(covariance[:-1, :-1])
    along, totals = axes.T @ found[:-1], _VARIANCES + np.maximum(noises, 0.0)
    chances = -(np.log(totals) + along**2 / totals).sum(axis=1) / 2
    chances = np.exp(chances - chances.max())
    out: np.ndarray = found - covariance[:, :-1] @ (axes @ (chances @ (along / totals) / chances.sum()))
    return out
