"""Noisy numbers of columns that are often alike, nearer to their mean, by the known noise.

Everything here is computed from noisy numbers and public ones, so it spends nothing. It is about accuracy only.
"""

import numpy as np


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
