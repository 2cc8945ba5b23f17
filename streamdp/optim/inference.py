"""Confidence intervals from one pass: random scaling.

Source: Lee, Liao, Seo, Shin, "Fast and robust online inference with stochastic gradient descent via random scaling",
AAAI 2022. With bar_s the average of the first s iterates,

    V_n = n^-2 sum_{s=1}^n s^2 (bar_s - bar_n)(bar_s - bar_n)'

the statistic (bar_n - theta*)_j / sqrt(V_jj / n) converges to a law without unknowns, W(1) / sqrt(int (W(r) - r
W(1))^2 dr) for a Brownian motion W.

State. Only the diagonal of V is kept, by a weighted Welford update: the mean m of bar_s under weights s^2, and the sum
M of weighted squared deviations from it. Then sum s^2 (bar_s - bar_n)^2 = M + (sum s^2)(m - bar_n)^2. This is O(d).

Clock of information. If iterate i has the weight tau_i (see `steps`), time is T_s = tau_1 + ... + tau_s in place of s,
and tau_s T_s^2 in place of s^2: the noise of step i in theta has a variance proportional to tau_i, so the sum of
tau_i (theta_i - theta*) is a Brownian motion in T.

Assumption. The steps are eta i^-alpha with 1/2 < alpha < 1 (Shi et al. 2025, Corollary 1). At alpha = 1/2 the limit is
not proved; `benchmarks/theory.md` has the coverage measured.

Privacy. The iterates are private, so the interval is post-processing and spends nothing.
"""

from __future__ import annotations

import numpy as np

from streamdp.errors import ConfigError

# Quantiles of |W(1)| / sqrt(int bridge^2): Abadir and Paruolo, Econometrica 1997, Table I (as used by Lee et al. 2022).
CRITICAL_VALUES = {0.80: 3.875, 0.90: 5.323, 0.95: 6.747, 0.98: 8.613, 0.99: 10.054}


def random_scaling_interval(
    mean: np.ndarray, weighted_mean: np.ndarray, weighted_squares: np.ndarray, time: float, squares: float, level: float
) -> np.ndarray:
    """The lower and upper ends (d, 2) of the confidence intervals of the coordinates of theta*.

    Parameters
    ----------
    mean
        (d,) bar_n.
    weighted_mean, weighted_squares
        (d,) m and M.
    time, squares
        T_n and the sum of tau_s T_s^2; n and 1 + 4 + ... + n^2 if all iterates have the weight 1.
    level
        A key of `CRITICAL_VALUES`.

    Raises `ConfigError` if there is no critical value for the level.
    """
    if level not in CRITICAL_VALUES:
        raise ConfigError(f"level: expected one of {sorted(CRITICAL_VALUES)}, got {level}")
    v = (weighted_squares + squares * (weighted_mean - mean) ** 2) / time**2
    half = CRITICAL_VALUES[level] * np.sqrt(v / time)
    return np.column_stack([mean - half, mean + half])
