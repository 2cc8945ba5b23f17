"""Coefficients that know the noise of their estimate: the mean of a normal prior around the model without columns.

Everything here is computed from noisy sums and public numbers, so it is post-processing and spends nothing. It is about
accuracy only. The prior, and that of what each group has of its own: docs/proofs/curvature.md, the steps.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from streamdp.scaling.pooling import alike, kept, likely

_VARIANCES = np.geomspace(0.05, 2.0, 25)[:, None] ** 2


def shrunk(found: np.ndarray, covariance: np.ndarray, own: Sequence[int] = ()) -> tuple[np.ndarray, np.ndarray]:
    """Return the posterior means (q,) and their covariance (q, q), as new arrays.

    `found` (q,) is t-hat: the slopes, and last the intercept. `covariance` (q, q) is that of its noise, and `own` are
    the slopes that each group has of its own.
    """
    first, others = np.array(own, dtype=int), np.setdiff1d(np.arange(len(found) - 1), own)
    for slopes in (first, others):
        noises, axes = np.linalg.eigh(covariance[np.ix_(slopes, slopes)])
        along = axes.T @ found[slopes]
        scaled, inverse = inverse_totals(along, noises)
        moves = covariance[:, slopes] @ axes
        found = found - moves @ scaled
        covariance = covariance - (moves * inverse) @ moves.T
    return found, covariance


def pooled(
    matrix: np.ndarray, variance: float, apart: Sequence[Sequence[int]], slopes: np.ndarray, own: Sequence[int] = ()
) -> tuple[np.ndarray, np.ndarray]:
    """Return a noisy mean of products of columns (q, q), nearer to columns that are alike, and what noise is left.

    The noise of `matrix` has this `variance` on the entries of its svec; its last column is that of the intercept. The
    diagonal goes to its mean, and that of the columns `own`, which groups have of their own, to another one. The means
    in the last column go to 0, and the products of different columns to those of independent columns with these means,
    each by the share of their squares that is noise (Ledoit and Wolf 2004, with a noise that is known; few entries by
    less, as of James and Stein 1961). Columns that are `apart` are 0 or their slope in `slopes` (k,), and only one of
    them is not 0: their products are 0, in `matrix`, too; their means and squares show one share, which is `likely`.
    What is left are variances (q, q).
    """
    q, k, found = len(matrix), len(matrix) - 1, matrix.copy()
    others = np.setdiff1d(np.arange(k), np.concatenate([[], *apart]))
    zeros = sum(len(columns) * (len(columns) - 1) / 2 for columns in apart)
    means = np.zeros(k)
    means[others] = kept(variance * (len(others) - 2) / 2, matrix[others, k]) * matrix[others, k]
    alone = np.outer(means, means) / max(float(matrix[k, k]), math.sqrt(variance), 1e-9)
    products = matrix[:k, :k] - alone
    np.fill_diagonal(products, 0.0)
    share = kept(variance * (k * (k - 1) / 2 - zeros - 2), products)
    found[:k, :k] = alone + share * products
    grouped = np.isin(others, own)
    for like in (others[grouped], others[~grouped]):
        found[like, like], _ = alike(np.diag(matrix)[like], variance)
    found[others, k] = found[k, others] = means[others]
    left = np.full((q, q), min(1.0, share + 1 / q) * variance)
    levels = np.setdiff1d(np.arange(k), others)
    slope = slopes[levels]
    shares, known = likely(
        (np.diag(matrix)[levels] + 2 * matrix[levels, k] / slope) / (slope**2 + 2), variance / slope**2 / (slope**2 + 2)
    )
    for columns in map(list, apart):
        found[np.ix_(columns, columns)] = left[np.ix_(columns, columns)] = 0.0
    for rows, across, times in ((levels, levels, slope**2), (levels, k, slope), (k, levels, slope)):
        found[rows, across], left[rows, across] = times * shares, times**2 * known
    return found, left


def inverse_totals(along: np.ndarray, noises: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the posterior means (k,) of t-hat / (tau^2 + v) and of 1 / (tau^2 + v), for estimates `along` (k,).

    `noises` (k,) are their variances v; they are independent.
    """
    chances, totals = _posterior(along, noises)
    return chances @ (along / totals), chances @ (1 / totals)


def pulls(along: np.ndarray, noises: np.ndarray) -> np.ndarray:
    """Return the inverse variances (k,) of a normal prior that shrinks each estimate by as much as `shrunk` does.

    That is by E tau^2 / (tau^2 + v). The arguments are those of `inverse_totals`.
    """
    chances, totals = _posterior(along, noises)
    return (chances @ (1 / totals)) / (chances @ (_VARIANCES / totals))


def _posterior(along: np.ndarray, noises: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The chances of the values of tau^2, and tau^2 + v (number of them, k)."""
    totals = _VARIANCES + np.maximum(noises, 0.0)
    chances = -(np.log(totals) + along**2 / totals).sum(axis=1) / 2
    chances = np.exp(chances - chances.max())
    return chances / chances.sum(), totals
