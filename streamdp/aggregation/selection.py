"""Which of n vectors count in a mean if outliers are left out, and how much one user can change the mean.

`concentrated_mean` defines the terms: D and D' differ in user 1, C is the other n - 1 users, near is within tau, and a
query is good if at most `far` ordered pairs of C are not near. The paper's random selection of users, which needs
several times the noise, is in studies/selected_mean.py.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from streamdp.privacy.entropy import Rng


@dataclass(frozen=True)
class WeightedMean:
    """Deterministic weights w(d), d the number of users far from a user: 1 up to `full`, 0 from `zero`, linear between.

    The mean is sum w_i x_i / sum w_i. Sensitivity at a good query, F <= `far` being the far pairs of C:
    1. zero < n/2 + 1, so two users with positive weights in D have more than n/2 users near each, and share one: any
       two of D are within 2 tau, and any two of D'.
    2. u_i = min(w_i, w'_i) for i in C, U = sum u_i, m the u-weighted mean. A user of positive weight in D, with d users
       of D far from it, is within tau of the others and within 2 tau of those of the d that count in m, so it is within
       tau (1 + d / U) of m.
    3. mean - m = sum (w_i - u_i)(x_i - m) / sum w_i, with u_1 = 0; likewise for D'. The sums of weights are at least U,
       so the two means are within (tau / U) (2 A + B): A for the first user in D or D', at most the largest w(d) (1 +
       d / U); B = sum_C |w_i - w'_i| (1 + d_i / U), d_i taken where i weighs more.
    4. w(d) (1 + d / U) grows up to `full` and is concave from there on, with its peak at (zero - U) / 2.
    5. With f_i the users of C that are far from i in C (sum f_i = F), i has f_i or f_i + 1 users far in D and in D'.
       Its weight changes by at most 1 / (zero - full), only where f_i >= full, so for N = min(n - 1, F / full) users at
       most, and d_i is f_i, as it weighs more there: B <= (N + F / U) / (zero - full).
    6. u_i >= w(f_i + 1) >= 1 - f_i / (zero - 1), so U >= n - 1 - F / (zero - 1); A, B and the bound fall with U. `full`
    is where the bound is least. Without outliers (F = 0) it is 2 tau / (n - 1), about, which a user at one end and then
    at the other reaches. Nothing is drawn, so nothing can fail. Nearness is within tau, as in FriendlyCore (Tsfadia et
    al. 2022), in which two kept users share a near user; the paper uses 2 tau.

    `far` is the largest number of far ordered pairs of C at a good query. `failure` is 0: there is no failure.
    """

    users: int
    far: float
    failure: float = 0.0

    @property
    def zero(self) -> int:
        """The least number of far users that gives weight 0: n/2, rounded up."""
        return (self.users + 1) // 2

    @cached_property
    def full(self) -> int:
        """The largest number of far users that gives weight 1: of eleven candidates that with the least bound."""
        return min((max(1, self.zero * twentieths // 20) for twentieths in range(11)), key=self._moved)

    @property
    def sensitivity(self) -> float:
        """The l2 sensitivity of the mean at a good query, as a multiple of tau."""
        return self._moved(self.full)

    def _moved(self, full: int) -> float:
        """The bound for this ramp."""
        if self.zero <= full:
            return math.inf
        common = self.users - 1 - self.far / (self.zero - 1)
        if common <= 0:
            return math.inf
        peak, width = max(full, (self.zero - common) / 2), self.zero - full
        first = (self.zero - peak) / width * (1 + peak / common)
        others = (min(self.users - 1, self.far / full) + self.far / common) / width
        return (2 * first + others) / common

    def weights(self, points: np.ndarray, distance: float, near: np.ndarray, rng: Rng) -> np.ndarray:
        """The weights (n,) of the users, from 0 to 1, for points (n, d), one of each user.

        `near` (n,) is the number of users within the distance tau of each user, itself included.
        """
        return np.clip((self.zero - (self.users - near)) / (self.zero - self.full), 0.0, 1.0)
