"""Noisy numbers of columns that are often alike, nearer to their mean, by the known noise.

Everything here is computed from noisy numbers and public ones, so it spends nothing. It is about accuracy only.
"""

import numpy as np

_ROUNDS = 3  # with many, `likely` laws are a few values, and a number between two of them is not seen


def alike(values: np.ndarray, variance: float) -> tuple[np.ndarray, float]:
    """Return noisy `values` (k,), nearer to their mean, and what is left of the `variance` of their noise.

    Their differences from the mean are kept by the share of their squares that is no noise (James and Stein 1961).
    """
    if len(values) < 4:
        return values, variance
    mean = float(np.mean(values))
    share = kept(variance * (len(values) - 3), values - mean)
    return mean + share * (values - mean), min(1.0, share + 1 / len(values)) * variance


def kept(noise: float, values: np.ndarray) -> float:
    """The share of `values` that the sum of the squares of their `noise` leaves."""
    total = float(np.sum(values**2))
    return max(0.0, 1 - noise / total) if total > 0 and noise > 0 else 1.0


def likely(values: np.ndarray, variances: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the posterior means (k,) of numbers of at least 0, from noisy `values` (k,), and their variances (k,).

    `variances` (k,) are those of the noise. The prior comes near to the likeliest distribution (Kiefer and Wolfowitz
    1956; Jiang and Zhang 2009) on these values, so a few that are far from the others do not change these.
    """
    if len(values) < 4 or not variances.any():
        return np.maximum(values, 0.0), variances
    step = float(np.sqrt(np.min(variances))) / 2
    grid = step * np.unique(np.maximum(np.round(values / step), 0.0))
    chances = -((values[:, None] - grid) ** 2) / (2 * variances[:, None])
    chances = np.exp(chances - chances.max(axis=1, keepdims=True))
    prior = np.full(len(grid), 1 / len(grid))
    for _ in range(_ROUNDS):
        posterior = chances * prior
        posterior /= posterior.sum(axis=1, keepdims=True)
        prior = posterior.mean(axis=0)
    means = posterior @ grid
    return means, np.maximum(posterior @ grid**2 - means**2, 0.0)
