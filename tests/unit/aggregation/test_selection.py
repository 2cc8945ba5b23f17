"""Neighbouring data sets searched for: what is claimed of scores, distances and means is never passed."""

import math
from collections.abc import Callable

import numpy as np
import pytest

from streamdp.aggregation.selection import WeightedMean, near_counts
from streamdp.privacy.entropy import SeededEntropy

TAU = 1.0
Pair = tuple[np.ndarray, np.ndarray]


def far_pairs_of_others(points: np.ndarray) -> int:
    """F: the far ordered pairs among all but the first."""
    others = points[1:]
    return len(others) ** 2 - int(near_counts(others, TAU).sum())


def weights_of(kind: WeightedMean, points: np.ndarray, seed: int = 0) -> np.ndarray:
    return kind.weights(points, TAU, near_counts(points, TAU), SeededEntropy(seed))


def climb(start: Pair, value: Callable[[np.ndarray, np.ndarray], float], rng: np.random.Generator, moves: int) -> float:
    """The best value on a walk: a user, or some, go elsewhere; in both data sets, or the first user in one of them."""
    best, pair = value(*start), start
    n, d = start[0].shape
    for _ in range(moves):
        a, b = pair[0].copy(), pair[1].copy()
        some = rng.integers(1, n, size=rng.integers(1, 4))
        match rng.integers(4):
            case 0:  # to a place on a grid, where distances are exactly tau and 2 tau
                a[some] = b[some] = rng.integers(-6, 7, size=d) * TAU / 2
            case 1:  # to another user
                a[some] = b[some] = a[rng.integers(n)]
            case 2:
                a[some] = b[some] = a[some] + rng.standard_normal((len(some), d)) * TAU / 4
            case _:
                side = (a, b)[rng.integers(2)]
                side[0] = rng.choice([side[rng.integers(n)], rng.integers(-6, 7, size=d) * TAU / 2])
        found = value(a, b)
        if found >= best:
            best, pair = found, (a, b)
    return best


def random_pair(n: int, d: int, rng: np.random.Generator) -> Pair:
    a = rng.integers(-4, 5, size=(n, d)) * TAU / 2
    a[rng.random(n) < rng.random()] = 0.0
    b = a.copy()
    b[0] = rng.integers(-4, 5, size=d) * TAU / 2
    return a, b


def test_a_score_moves_by_less_than_two_and_by_more_than_the_papers_one() -> None:
    def change(a: np.ndarray, b: np.ndarray) -> float:
        return abs(near_counts(a, TAU).mean() - near_counts(b, TAU).mean())

    n, rng = 40, np.random.default_rng(1)
    a = np.zeros((n, 1))
    b = a.copy()
    b[0] = 9.0
    assert change(a, b) == pytest.approx(2 * (n - 1) / n)
    found = [climb(random_pair(n, 2, rng), change, rng, 400) for _ in range(6)]
    assert 1.9 < max([*found, change(a, b)]) <= 2 * (n - 1) / n + 1e-12


@pytest.mark.slow
def test_how_far_apart_two_users_are_who_both_may_count() -> None:
    """2 tau is reached in one data set."""
    n, rng, most = 24, np.random.default_rng(3), 2.0

    def diameter(a: np.ndarray, b: np.ndarray) -> float:
        kept = a[weights_of(WeightedMean(n, 0.0), a) > 0]
        return float(np.linalg.norm(kept[:, None] - kept[None], axis=2).max()) if len(kept) else 0.0

    ends = np.zeros((n, 1))
    ends[1], ends[2] = most / 2, -most / 2
    found = [climb(random_pair(n, 1 + i % 2, rng), diameter, rng, 200) for i in range(4)]
    assert 0.95 * most < max([*found, diameter(ends, ends)]) <= most + 1e-9


def moved(kind: WeightedMean, a: np.ndarray, b: np.ndarray, seed: int = 0) -> float:
    """How far apart the two means are, both draws from the same words, in units of the bound."""
    means = []
    for points in (a, b):
        weights = weights_of(kind, points, seed)
        means.append(weights @ points / weights.sum())
    return float(np.linalg.norm(means[0] - means[1])) / (TAU * kind.sensitivity)


def spread_out(n: int, group: float, apart: float, first: tuple[float, float]) -> Pair:
    """Three places on a line, tau apart: a share `group` of users on the left, `apart` on the right, far from them."""
    a = np.zeros((n, 1))
    a[1 : 1 + round(group * n)] = -TAU
    a[n - round(apart * n) :] = TAU
    b = a.copy()
    a[0], b[0] = first
    return a, b


@pytest.mark.slow
def test_a_user_moves_the_weighted_mean_by_no_more_than_the_bound() -> None:
    """Searched for with F as low as the others' far pairs are. Without far pairs 0.98 of the bound is found, with 3 %
    of them 0.76, with 8 % 0.62, with 15 % 0.45."""

    def part(a: np.ndarray, b: np.ndarray, least: float = 0.0) -> float:
        far = far_pairs_of_others(a)
        kind = WeightedMean(len(a), far)
        return moved(kind, a, b) if far >= least * len(a) ** 2 and math.isfinite(kind.sensitivity) else 0.0

    rng = np.random.default_rng(4)
    shares, firsts = (0.0, 0.02, 0.12, 0.19, 0.25), ((-TAU, TAU), (-TAU, 9.0), (0.0, -TAU), (-2 * TAU, TAU))
    placed = [spread_out(n, g, s, first) for n in (60, 61, 120) for g in shares for s in shares for first in firsts]
    found = [climb(random_pair(n, d, rng), part, rng, 200) for n in (12, 25, 40) for d in (1, 2)]
    found += [climb(spread_out(40, g, 0.3, (-TAU, 9.0)), part, rng, 200) for g in (0.05, 0.1, 0.2)]
    assert max(found) <= 1
    assert 0.95 < max(part(*pair) for pair in placed) <= 1
    assert 0.6 < max(part(*pair, least=0.03) for pair in placed) <= 1


def argued(kind: WeightedMean, a: np.ndarray, b: np.ndarray) -> float:
    """What the proof bounds, without regard to directions, over the bound: the steps 2 and 3 for these data."""
    n, weights = len(a), [weights_of(kind, points) for points in (a, b)]
    far = [n - near_counts(points, TAU) for points in (a, b)]
    common = float(np.minimum(*weights)[1:].sum())
    total = sum(w[0] * (1 + d[0] / common) for w, d in zip(weights, far, strict=True))
    total += np.sum(np.abs(weights[0] - weights[1])[1:] * (1 + np.minimum(*far)[1:] / common))
    return float(total) / common / kind.sensitivity


def test_every_step_of_the_proof_is_as_tight_as_it_can_be() -> None:
    """Users who each lose a weight, or gain one, and the first who has a whole one in both data sets or in one."""
    n = 200
    parting = []
    for group in range(1, 60):
        a, b = spread_out(n, group / n, group / n, (-TAU, TAU))
        kind = WeightedMean(n, far_pairs_of_others(a))
        if math.isfinite(kind.sensitivity):
            parting.append(argued(kind, a, b))
            assert moved(kind, a, b) <= parting[-1] <= 1
    assert max(parting) > 0.97
    # Everybody has one other far: half of them on axes, the others opposite. The first is near all, or far from all.
    axes = np.eye((n - 1) // 2) * 0.7 * TAU
    a = np.vstack([np.zeros_like(axes[0]), axes, -axes, np.zeros_like(axes[0])])
    b = a.copy()
    b[0] = 9.0
    assert argued(WeightedMean(n, far_pairs_of_others(a)), a, b) <= 1
    many = WeightedMean(n, n * n / 8)
    assert many.full == 1
    weights = [weights_of(many, points) for points in (a, b)]
    assert np.abs(weights[0] - weights[1])[1:].sum() > 1.9
    assert 0.5 < argued(many, a, b) <= 1


def test_no_weight_is_lost_without_outliers_and_far_users_have_none() -> None:
    kind = WeightedMean(50, 500.0)
    points = np.zeros((50, 2))
    assert np.array_equal(weights_of(kind, points), np.ones(50))
    points[:5] = 9.0
    weights = weights_of(kind, points)
    assert not weights[:5].any()
    assert (weights[5:] > 0.8).all()
    for far in (0.0, 100.0, 2000.0):
        assert WeightedMean(100, far).sensitivity > WeightedMean(200, far).sensitivity
        assert WeightedMean(100, far).sensitivity < WeightedMean(100, far + 100).sensitivity
    assert math.isinf(WeightedMean(100, 100 * 50).sensitivity)
    assert math.isinf(WeightedMean(1, 0.0).sensitivity)
