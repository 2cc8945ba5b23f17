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

from streamdp.privacy.samplers import compiled

_BLOCK = 32  # vectors of a block; its copy fits the first-level cache for d up to a hundred
_CHECK = 16  # coordinates after which the loop tests whether the whole block is far already
_WELL = 1e-9


def near_counts(points: np.ndarray, distance: float) -> np.ndarray:
    """For each vector the number of vectors within a distance of it, (n,), itself included.

    It takes about n^2 d / 2 steps at worst and n memory. No copy of the points is left in memory.

    Parameters
    ----------
    points
        (n, d).
    distance
        Positive.

    >>> near_counts(np.array([[0.0], [1.0], [3.0]]), 1.0)
    array([2, 2, 1])
    """
    points = np.ascontiguousarray(points, dtype=float)
    radii = np.zeros(len(points))
    _radii(points, points.mean(axis=0), radii)
    order = np.argsort(radii, kind="stable")
    counts = np.ones(len(points), dtype=np.int64)
    _count(points, order, radii[order], float(distance), counts)
    return counts


@compiled
def _radii(points: np.ndarray, centre: np.ndarray, out: np.ndarray) -> None:
    for i in range(points.shape[0]):
        square = 0.0
        for k in range(points.shape[1]):
            square += (points[i, k] - centre[k]) ** 2
        out[i] = np.sqrt(square)


@compiled
def _first(radii: np.ndarray, limit: float) -> int:
    """The number of sorted radii below the limit; 0 if the limit is NaN."""
    low, high = 0, radii.shape[0]
    while low < high:
        middle = (low + high) // 2
        if radii[middle] < limit:
            low = middle + 1
        else:
            high = middle
    return low


@compiled
def _count(  # noqa: C901 - one compiled loop
    points: np.ndarray, order: np.ndarray, radii: np.ndarray, distance: float, counts: np.ndarray
) -> None:
    """Add to counts (n,) the number of other near vectors; `order` (n,) sorts the points by `radii` (n,), sorted."""
    n, d = points.shape
    limit = distance * distance
    surely, hardly = distance * (1 - _WELL), distance * (1 + _WELL)
    tile = np.empty((d, _BLOCK))
    squares, found = np.empty(_BLOCK), np.empty(_BLOCK, dtype=np.int64)
    sure = np.zeros(n + 1, dtype=np.int64)  # sure[i] is added to what the points before i find
    for begin in range(0, n, _BLOCK):
        size = min(_BLOCK, n - begin)
        near_end = _first(radii[:begin], surely - radii[begin + size - 1])
        far_end = _first(radii[:begin], radii[begin] * (1 - 2 * _WELL) - hardly)
        sure[near_end] += size
        found[:] = near_end
        for k in range(d):
            for j in range(size):
                tile[k, j] = points[order[begin + j], k]
            for j in range(size, _BLOCK):
                tile[k, j] = np.inf
        for i in range(max(near_end, far_end), begin + size - 1):
            first = max(0, i + 1 - begin)  # each pair once
            row = order[i]
            for j in range(_BLOCK):
                squares[j] = 0.0
            for start in range(0, d, _CHECK):
                for k in range(start, min(start + _CHECK, d)):
                    x = points[row, k]
                    for j in range(_BLOCK):
                        difference = tile[k, j] - x
                        squares[j] += difference * difference
                least = squares[first]
                for j in range(first, size):
                    least = min(least, squares[j])
                if least > limit:
                    break
            near = 0
            for j in range(first, _BLOCK):
                one = 1 if squares[j] <= limit else 0
                near += one
                found[j] += one
            counts[row] += near
        for j in range(size):
            counts[order[begin + j]] += found[j]
    before = 0
    for i in range(n - 1, -1, -1):
        before += sure[i + 1]
        counts[order[i]] += before
    tile[...] = 0.0
    squares[...] = 0.0
