"""Asi and Liu's own selection of users, by coins: `streamdp.aggregation.selection` has weights in its place.

`planned(..., selection=SelectedMean)` of `ConcentratedMean` makes a mean with it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from scipy.stats import binom

from streamdp.aggregation.selection import WeightedMean, near_counts
from streamdp.privacy.entropy import Rng, draw


@dataclass(frozen=True)
class SelectedMean(WeightedMean):
    """The paper's selection: the mean of randomly selected users.

    User i is selected with probability p(f_i), f_i the number of users within 2 tau of it. p is 0 up to n/2, 1 from
    2n/3, and linear between.

    Sensitivity at a good query:
    1. Some x in C has at most far / (n - 1) users of C far from it, so K = n - 1 - floor(far / (n - 1)) within tau,
       itself included: H. Any two of H are within 2 tau; K >= 2n/3, so all of H are selected in D and in D'.
    2. One user moves f_i by 1 and p_i by 6/n at most. So ||p - p'||_1 <= 1 + 6 = 7 in general (the paper says 2), and
       of C only n - 1 - K users have a p that can move. Let both draws compare p_i to the same random number: then at
       most k users of C are selected in one draw only, but for a probability of `failure`, k being the quantile of
       Bin(n - 1 - K, 6/n), which dominates the sum of those coins.
    3. As in `WeightedMean`, with 2 tau for tau: two users that can be selected in D have more than n/2 users within
       2 tau each, so they are within 4 tau. With m the mean of the U >= K selected in both draws, each is within
       r = 2 tau (1 + (n - 1) / (2 U)) of m, and the two means are within r (k + 2) / U.
    A draw outside of that coupling has a probability of `failure` for each query, which counts against delta like zeta.

    `far` is the largest number of far ordered pairs of C at a good query, `failure` in (0, 1).
    """

    @property
    def core(self) -> int:
        """K of step 1."""
        return self.users - 1 - math.floor(self.far / max(1, self.users - 1))

    @property
    def differing(self) -> int:
        """k of step 2."""
        chance = min(1.0, 6 / self.users * (1 + 1e-9))
        return int(binom.isf(self.failure, self.users - 1 - self.core, chance))

    @property
    def sensitivity(self) -> float:
        """The l2 sensitivity of the mean at a good query, as a multiple of tau; inf if the proof does not apply."""
        if self.far > (self.users / 3 - 1) * (self.users - 1):
            return math.inf
        return (2 + (self.users - 1) / self.core) * (self.differing + 2) / self.core

    @cached_property
    def chances(self) -> np.ndarray:
        """p(f) (n + 1,) in units of 2^-64, rounded down; what would be 1 is 2^64 - 1."""
        n = self.users
        return np.array([min(max(0, (6 * f - 3 * n) * 2**64 // n), 2**64 - 1) for f in range(n + 1)], dtype=np.uint64)

    def weights(self, points: np.ndarray, distance: float, near: np.ndarray, rng: Rng) -> np.ndarray:
        """See `WeightedMean.weights`."""
        chances = self.chances[near_counts(points, 2 * distance)]
        with rng.lock:
            words = draw(rng, self.users)
        return np.where((chances > 0) & (words <= chances), 1.0, 0.0)
