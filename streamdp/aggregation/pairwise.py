"""The number of vectors near each of n vectors, exactly, without a table of all pairs.

Two vectors are near if the sum of the squares of their coordinates' differences, added in the order of the coordinates
in doubles, is at most distance^2. That relation is symmetric in every bit. Rounding changes the distance by a relative
(d + 2) 2^-54 at most, which `ConcentratedMean.sensitivity` covers.

Most pairs need no sum. With r_i the distance of vector i from the mean of all, a pair is near where r_i + r_j is well
below the distance and far where |r_i - r_j| is well above it; "well" is a relative 1e-9 of all three numbers, which
rounding cannot change. Of the vectors before a block of 32 in the order of r, those that are surely near to the whole
block, or surely far from it, come first: two binary searches for each block. The other pairs are summed for one vector
and one block at a time, with memory for one block.
"""

from __future__ import annotations

import numpy as np

from streamdp.aggregation.user_kernels import count_near, radii

_WELL = 1e-9


def near_counts(points: np.ndarray, distance: float) -> np.ndarray:
    """For each of the points (n, d) the number of points within a positive distance of it, (n,), itself included.

    It takes about n^2 d / 2 steps at worst and n memory. No copy of the points is left in memory.

    >>> near_counts(np.array([[0.0], [1.0], [3.0]]), 1.0)
    array([2, 2, 1])
    """
    points = np.ascontiguousarray(points, dtype=float)
    distances = np.zeros(len(points))
    radii(points, points.mean(axis=0), distances)
    order = np.argsort(distances, kind="stable")
    counts = np.ones(len(points), dtype=np.int64)
    count_near(points, order, distances[order], distance, _WELL, counts)
    return counts
