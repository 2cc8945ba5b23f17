"""Coefficients that know the noise of their estimate: the mean of a normal prior around the model without columns.

Everything here is computed from noisy sums and public numbers, so it is post-processing and spends nothing. It is about
accuracy only. The prior, and that of what each group has of its own: docs/proofs/curvature.md, the steps.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

_VARIANCES = np.geomspace(0.05, 2.0, 25)[:, None] ** 2


def shrunk(found: np.ndarray, covariance: np.ndarray, own: Sequence[int] = ()) -> tuple[np.ndarray, np.ndarray]:
    """Return the posterior means (q,) and their covariance (q, q), as new arrays.

    `found` (q,) is t-hat: the slopes, and last the intercept. `covariance` (q, q) is that of its noise, and `own` are
    the slopes that each group has of its own.
    """
    first, others = np.array(own, dtype=int), np.setdiff1d(np.arange(len(found) - 1), own)
    for slopes in (first, others):
        noises, axes = np.linalg.eigh(covariance[np.ix_(slopes, slopes)])
        along, totals = axes.T @ found[slopes], _VARIANCES + np.maximum(noises, 0.0)
        chances = -(np.log(totals) + along**2 / totals).sum(axis=1) / 2
        chances = np.exp(chances - chances.max())
        chances /= chances.sum()
        moves = covariance[:, slopes] @ axes
        found = found - moves @ (chances @ (along / totals))
        covariance = covariance - (moves * (chances @ (1 / totals))) @ moves.T
    return found, covariance
