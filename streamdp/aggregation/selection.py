"""Which of n vectors count in a mean if outliers are left out, and how much one user can change the mean.

`concentrated_mean` defines the terms: D and D' differ in user 1, C is the other n - 1 users, near is within tau, and a
query is good if at most `far` ordered pairs of C are not near. The paper's random selection of users, which needs
several times the noise, is in studies/selected_mean.py.

Near vectors are counted exactly, without a table of all pairs. Two vectors are near if the sum of the squares of their
coordinates' differences, added in the order of the coordinates in doubles, is at most distance^2. That relation is
symmetric in every bit. Rounding changes the distance by a relative (d + 2) 2^-54 at most, which
`ConcentratedMean.sensitivity` covers. With r_i the distance of vector i from the mean of all, a pair is near where r_i
+ r_j is well below the distance, and far where |r_i - r_j| is well above it; "well" is a relative 1e-9 of all three
numbers, which rounding cannot change. Only the other pairs are summed, in blocks of 32 in the order of r.
"""

import math
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import scipy

from streamdp.aggregation.user_kernels import count_near
from streamdp.privacy.entropy import Rng

_WELL = 1e-9


def near_counts(points: np.ndarray, distance: float) -> np.ndarray:
    """For each of the points (n, d) the number of points within a positive distance of it, (n,), itself included.

    It takes about n^2 d / 2 steps at worst and n memory. No copy of the points is left in memory.

    >>> near_counts(np.array([[0.0], [1.0], [3.0]]), 1.0)
    array([2, 2, 1])
    """
    points = np.ascontiguousarray(points, dtype=float)
    distances = scipy.spatial.distance.cdist(points, points.mean(axis=0, keepdims=True))[:, 0]
    order = np.argsort(distances, kind="stable")
    counts = np.ones(len(points), dtype=np.int64)
    count_near(points, order, distances[order], distance, _WELL, counts)
    return counts


@dataclass(frozen=True)
class WeightedMean:
    """Deterministic weights w(d), d the number of users far from a user: 1 up to `full`, 0 from `zero`, linear between.

    The mean is sum w_i x_i / sum w_i. Its sensitivity at a good query, and where `full` has the least bound:
    docs/proofs/concentrated_mean.md.

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
