"""Confidence intervals from one pass: random scaling.

Source: Lee, Liao, Seo, Shin, "Fast and robust online inference with stochastic gradient descent via random scaling",
AAAI 2022. With bar_s the average of the first s iterates,

    V_n = n^-2 sum_{s=1}^n s^2 (bar_s - bar_n)(bar_s - bar_n)'

makes (bar_n - theta*)_j / sqrt(V_jj / n) converge to a law free of unknowns, W(1) / sqrt(int (W(r) - r W(1))^2 dr)
for a Brownian motion W. Only the diagonal is kept, by a weighted Welford update: the mean m of bar_s under weights
s^2 and the sum M of weighted squared deviations from it, so sum s^2 (bar_s - bar_n)^2 = M + (sum s^2)(m - bar_n)^2:
O(d) state. The iterates are private, so the interval is post-processing and spends nothing.
"""

from __future__ import annotations

import numpy as np

from streamdp.errors import ConfigError

# Quantiles of |W(1)| / sqrt(int bridge^2): Abadir and Paruolo, Econometrica 1997, Table I (as used by Lee et al. 2022).
CRITICAL_VALUES = {0.80: 3.875, 0.90: 5.323, 0.95: 6.747, 0.98: 8.613, 0.99: 10.054}


def random_scaling_interval(
    mean: np.ndarray, weighted_mean: np.ndarray, weighted_squares: np.ndarray, n: int, level: float
) -> np.ndarray:
    """The (d, 2) array of lower and upper ends; `level` is one of 0.80, 0.90, 0.95, 0.98, 0.99.

    Raises `ConfigError` for another level: the critical values are tabulated.
    """
    if level not in CRITICAL_VALUES:
        raise ConfigError(f"level: expected one of {sorted(CRITICAL_VALUES)}, got {level}")
    squares = n * (n + 1) * (2 * n + 1) / 6
    v = (weighted_squares + squares * (weighted_mean - mean) ** 2) / n**2
    half = CRITICAL_VALUES[level] * np.sqrt(v / n)
    return np.column_stack([mean - half, mean + half])
