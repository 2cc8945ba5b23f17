"""Counts of near vectors are those of the plain double loop, bit by bit, and come within seconds."""

import time

import numpy as np
import pytest

from streamdp.aggregation.selection import near_counts


def plain(points: np.ndarray, distance: float) -> np.ndarray:
    """The definition: squares of differences, added in the order of the coordinates."""
    squares = np.zeros((len(points), len(points)))
    for column in points.T:
        squares += (column[:, None] - column[None, :]) ** 2
    return np.count_nonzero(squares <= distance * distance, axis=1)


def data(kind: str, n: int, d: int, rng: np.random.Generator) -> np.ndarray:
    if kind == "grid":  # many pairs at the distance exactly, and points that are equal
        return rng.integers(-2, 3, size=(n, d)).astype(float)
    if kind == "thirds":  # as many, where no number is exact
        return rng.integers(-2, 3, size=(n, d)) / 3
    points = rng.standard_normal((n, d))
    if kind == "sphere":  # all at one radius: nothing is decided without a sum
        return points / np.linalg.norm(points, axis=1, keepdims=True)
    if kind == "far":  # a centre that is large against the distances
        return 1e6 + points
    return points * (10.0 ** rng.integers(-3, 3, size=(n, 1)))


@pytest.mark.parametrize("kind", ["grid", "thirds", "sphere", "far", "scales"])
@pytest.mark.parametrize(("n", "d"), [(1, 3), (2, 1), (31, 2), (33, 1), (64, 17), (300, 5), (150, 60)])
def test_as_the_plain_double_loop(kind: str, n: int, d: int) -> None:
    rng = np.random.default_rng(n + d)
    points = data(kind, n, d, rng)
    before = points.copy()
    pairs = np.linalg.norm(points[:, None] - points[None], axis=2)
    distances = [1.0, 1e-3, 1e3, *np.quantile(pairs[pairs > 0], [0.0, 0.2, 0.5, 0.9, 1.0])] if n > 1 else [1.0]
    for distance in distances:
        assert np.array_equal(near_counts(points, float(distance)), plain(points, float(distance)))
    assert np.array_equal(points, before)


def test_a_user_moves_each_count_by_one_at_most() -> None:
    """What the privacy argument asks of the relation: it is symmetric, and about two users only."""
    rng = np.random.default_rng(1)
    for _ in range(200):
        points = data("thirds", 40, 2, rng)
        other = points.copy()
        other[0] = rng.integers(-2, 3, size=2) / 3
        a, b = near_counts(points, 2 / 3), near_counts(other, 2 / 3)
        assert np.abs(a - b)[1:].max() <= 1
        assert abs(int(a.sum()) - int(b.sum())) <= 2 * 39
        assert a.sum() % 2 == 40 % 2  # pairs are counted from both ends, users once


def test_ties_are_decided_by_the_definition() -> None:
    points = np.array([[0.0, 0.0], [3.0, 4.0], [6.0, 8.0]])
    assert near_counts(points, 5.0).tolist() == [2, 3, 2]
    assert near_counts(points, np.nextafter(5.0, 0.0)).tolist() == [1, 1, 1]


def test_strange_numbers_are_near_nobody_else() -> None:
    points = np.zeros((40, 2))
    points[7] = np.nan
    points[20, 1] = 1e200  # its square leaves the doubles
    with np.errstate(over="ignore"):
        counts = near_counts(points, 1.0)
    assert counts[7] == counts[20] == 1
    assert set(np.delete(counts, [7, 20])) == {38}


@pytest.mark.campaign
@pytest.mark.parametrize(("kind", "distance"), [("normal", 10.0), ("sphere", 1.6), ("sphere", 1.4), ("normal", 60.0)])
def test_ten_thousand_users_in_seconds(kind: str, distance: float) -> None:
    """50 coordinates; on a sphere no pair is decided by its radii. 1 to 3 s on one core."""
    points = np.random.default_rng(0).standard_normal((10_000, 50))
    if kind == "sphere":
        points /= np.linalg.norm(points, axis=1, keepdims=True)
    near_counts(points[:100], distance)
    start = time.process_time()
    counts = near_counts(points, distance)
    assert time.process_time() - start < 15
    some = points[:200]
    squares = np.zeros((200, 10_000))
    for k in range(50):
        squares += (some[:, k, None] - points[None, :, k]) ** 2
    assert np.array_equal(counts[:200], np.count_nonzero(squares <= distance * distance, axis=1))
