"""Exact convolution smoothing: checked by Monte Carlo and quadrature, and each of its constants by search."""

import math

import numpy as np
import pytest
from scipy import stats

from streamdp.errors import ConfigError
from streamdp.optim.losses import LOSSES, Hinge, Loss, Quantile
from streamdp.optim.smoothing import ball_cdf, constants, smoothed_gradients

SMOOTHED = [Quantile(), Quantile(tau=0.9), Hinge(), Quantile(clip=0.6, tau=0.8), Hinge(clip=0.5), Hinge(clip=3.0)]


def records(loss: Loss, n: int, p: int, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    X = rng.standard_normal((n, p)) * np.exp(rng.uniform(-2, 2, (n, 1)))
    y = rng.integers(0, 2, n).astype(float) if isinstance(loss, Hinge) else rng.standard_normal(n)
    return X, y


def in_the_ball(n: int, d: int, rng: np.random.Generator) -> np.ndarray:
    z = rng.standard_normal((n, d))
    return np.asarray(z / np.linalg.norm(z, axis=1, keepdims=True) * rng.random((n, 1)) ** (1 / d))


@pytest.mark.parametrize("loss", SMOOTHED, ids=repr)
@pytest.mark.parametrize(("p", "intercept"), [(1, False), (3, True), (8, False)])
def test_it_is_the_average_over_the_ball(loss: Loss, p: int, intercept: bool) -> None:
    """The average of the library's own subgradients at 20,000 points; 6 standard errors, false alarm 1e-6 in all."""
    rng = np.random.default_rng(p)
    X, y = records(loss, 12, p, rng)
    d, radius, points = p + intercept, 0.7, 20_000
    theta = rng.standard_normal(d)
    exact = smoothed_gradients(loss, intercept, theta, X, y, radius)
    around = theta + radius * in_the_ball(points, d, rng)
    rows = np.column_stack([X, np.ones(12)]) if intercept else X
    for x, target, row in zip(rows, y, exact, strict=True):
        # one record's subgradient is a (clipped) slope times x; the slope has two values, computed by the loss
        kink = target if isinstance(loss, Quantile) else 2 * target - 1
        after = around @ x > kink
        ends = [loss.gradient(x * (kink + s) / (x @ x), x, float(target)) for s in (-1e-6, 1e-6)]
        share = after.mean()
        expected = (1 - share) * ends[0] + share * ends[1]
        error = np.abs(ends[1] - ends[0]) * math.sqrt(max(share * (1 - share), 1e-4) / points)
        assert np.all(np.abs(row - expected) <= 6 * error + 1e-12)


@pytest.mark.parametrize("d", [1, 2, 3, 7, 40])
@pytest.mark.slow
def test_the_distribution_of_one_coordinate(d: int) -> None:
    """Kolmogorov-Smirnov at 1e-7 accepts it, and rejects another dimension and another radius."""
    b = in_the_ball(60_000, d, np.random.default_rng(d))[:, 0]
    assert stats.kstest(b, lambda t: ball_cdf(t, d)).pvalue > 1e-7
    assert stats.kstest(b, lambda t: ball_cdf(t, 2 * d + 1)).pvalue < 1e-7
    assert stats.kstest(b, lambda t: ball_cdf(t / 1.1, d)).pvalue < 1e-7


@pytest.mark.parametrize("loss", SMOOTHED, ids=repr)
@pytest.mark.slow
def test_no_gradient_is_longer_than_the_bound_or_changes_faster_than_the_constant(loss: Loss) -> None:
    """A search over records, points and radii; it comes close to the constant."""
    rng = np.random.default_rng(3)
    fastest = 0.0
    for _ in range(300):
        p, radius, intercept = int(rng.integers(1, 7)), float(np.exp(rng.uniform(-4, 1))), bool(rng.integers(2))
        X, y = records(loss, 50, p, rng)
        d = p + intercept
        rows = np.column_stack([X, np.ones(50)]) if intercept else X
        pick, target = rows[0], (y[0] if isinstance(loss, Quantile) else 2 * y[0] - 1)
        theta = pick * (target / (pick @ pick))  # at the kink of the first record
        step = rng.standard_normal(d) * radius * 1e-3
        if rng.random() < 0.5:
            step = pick * (radius * 1e-3 / np.linalg.norm(pick))
        a, b = (smoothed_gradients(loss, intercept, t, X, y, radius) for t in (theta - step, theta + step))
        assert np.linalg.norm(a, axis=1).max() <= loss.bound * (1 + 1e-12)
        speed = np.linalg.norm(a - b, axis=1).max() / (2 * np.linalg.norm(step))
        share = speed * radius / (loss.bound * constants(d)[1])
        assert share <= 1 + 1e-9
        fastest = max(fastest, share)
    assert fastest > 0.4


@pytest.mark.parametrize("loss", [Quantile(tau=0.3), Hinge()], ids=repr)
@pytest.mark.slow
def test_it_is_the_gradient_of_a_loss_at_most_radius_times_bound_above(loss: Loss) -> None:
    """The smoothed loss by quadrature over B; its difference quotient is the smoothed gradient."""
    rng = np.random.default_rng(8)
    for _ in range(40):
        d, radius = int(rng.integers(1, 9)), float(np.exp(rng.uniform(-2, 1)))
        X, y = records(loss, 1, d, rng)
        x, target, theta = X[0], float(y[0]), rng.standard_normal(d)
        direction = x / np.linalg.norm(x)
        edges = np.sin(np.linspace(-math.pi / 2, math.pi / 2, 20_001))
        mass, middle = np.diff(ball_cdf(edges, d)), 0.5 * (edges[1:] + edges[:-1])

        def smoothed(at: np.ndarray) -> float:
            u = at @ x + np.linalg.norm(x) * radius * middle  # noqa: B023
            losses = np.maximum(0, 1 - (2 * target - 1) * u)  # noqa: B023
            if isinstance(loss, Quantile):
                losses = np.where(target < u, (1 - loss.tau) * (u - target), loss.tau * (target - u))  # noqa: B023
            return float(mass @ losses) * loss.weight(x)  # noqa: B023

        value = smoothed(theta)
        exact = loss.value(theta, x, target)
        assert -1e-7 <= value - exact <= constants(d)[0] * radius * loss.bound + 1e-7
        h = 1e-3 * radius
        slope = (smoothed(theta + h * direction) - smoothed(theta - h * direction)) / (2 * h)
        gradient = smoothed_gradients(loss, False, theta, X, y, radius)[0]
        assert gradient @ direction == pytest.approx(slope, abs=2e-3 * loss.bound)


@pytest.mark.parametrize("d", [1, 2, 5, 100])
def test_the_constants_are_those_of_the_distribution_and_below_the_general_ones(d: int) -> None:
    price, smoothness = constants(d)
    edges = np.linspace(-1, 1, 200_001)
    mass = np.diff(ball_cdf(edges, d))
    assert price == pytest.approx(float(mass @ np.abs(0.5 * (edges[1:] + edges[:-1]))), rel=1e-6)
    assert smoothness == pytest.approx(2 * float(mass.max()) * 100_000, rel=1e-6)
    assert price < 1
    assert smoothness <= math.sqrt(d)
    assert price * smoothness < 1


def test_far_from_the_kink_and_for_a_small_radius_it_is_the_subgradient() -> None:
    rng = np.random.default_rng(2)
    for loss in SMOOTHED:
        X, y = records(loss, 200, 4, rng)
        theta = rng.standard_normal(5)
        small = smoothed_gradients(loss, True, theta, X, y, 1e-9)
        plain = [loss.gradient(theta, np.append(x, 1.0), float(t)) for x, t in zip(X, y, strict=True)]
        np.testing.assert_allclose(small, plain, atol=1e-12)


def test_what_cannot_be_smoothed_or_computed() -> None:
    X, y, theta = np.ones((2, 2)), np.zeros(2), np.zeros(2)
    for name, kind in LOSSES.items():
        if name not in ("quantile", "hinge"):
            with pytest.raises(ConfigError, match="smooth"):
                smoothed_gradients(kind(), False, theta, X, y, 1.0)
    for radius in (0.0, -1.0, math.inf, math.nan):
        with pytest.raises(ConfigError, match="radius"):
            smoothed_gradients(Hinge(), False, theta, X, y, radius)
    with pytest.raises(ConfigError, match="shape"):
        smoothed_gradients(Hinge(), True, theta, X, y, 1.0)
    wild = np.array([[1e200, 1.0], [0.0, 0.0], [1e-200, 0.0], [math.inf, 0.0], [math.nan, 0.0], [1.0, 0.0]])
    for loss in SMOOTHED:
        rows = smoothed_gradients(loss, False, np.array([0.3, -0.2]), wild, np.ones(6), 0.1)
        assert not rows[:5].any()
        assert 0 < np.linalg.norm(rows[5]) <= loss.bound
