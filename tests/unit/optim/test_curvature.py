"""Gradient and curvature as one vector: the formula, its bounds by search, and the kernels' care with memory."""

import math
from typing import Any

import numpy as np
import pytest
from scipy.optimize import minimize

from streamdp import Hinge, Huber, Logistic, Poisson, Quantile, Softmax, Squared
from streamdp.errors import ConfigError
from streamdp.optim.curvature import Curvature, has_curvature
from streamdp.optim.curvature_loops import accumulate, accumulate_averages
from streamdp.optim.loops import INTERCEPT
from streamdp.optim.losses import Loss
from tests.support.sizes import some

LOSSES = [
    Logistic(),
    Huber(),
    Huber(c=0.5),
    Huber(c=2.0),
    Squared(),
    Squared(c=2.0),
    Poisson(),
    Poisson(c=2.0),
    Softmax(),
]
OUTPUTS = {Softmax(): 3}
each = pytest.mark.parametrize(("loss", "plain"), [*((loss, False) for loss in LOSSES), (Logistic(), True)], ids=repr)
SLACK = 1e-9


def vectors(curvature: Curvature, theta: np.ndarray, X: np.ndarray, y: np.ndarray, intercept: bool) -> np.ndarray:
    spec = curvature.loss.spec()
    spec[INTERCEPT] = intercept
    return curvature.vectors(spec, theta, X, y)


def curvature_of(loss: Loss, columns: int, plain: bool = False) -> Curvature:
    return Curvature(loss, columns, OUTPUTS.get(loss, 1), plain=plain)


def written_out(curvature: Curvature, theta: np.ndarray, x: np.ndarray, y: float) -> np.ndarray:
    """By the formulas of the docstring; x includes the intercept."""
    loss, q = curvature.loss, len(x)
    size = float(np.linalg.norm(x))
    w = min(1.0, math.sqrt(2) / size, math.sqrt(2 * q) / size**2) if size else 1.0
    u = float(x @ theta[:q])
    if isinstance(loss, Huber):
        mean = math.exp(u - 1) if isinstance(loss, Poisson) else u  # at the level 1
        r = (y - mean) * (min(1, 3 / mean) if isinstance(loss, Poisson) else 1) / theta[-1]
        a = -float(np.clip(r, -loss.c, loss.c))
        g = np.append(w * a * x, (loss.kappa - a**2) * w / 2)
        h, last = min(1.0, loss.c / max(abs(r), 1e-300)), [w * r**2 * (abs(r) < loss.c)]
        h *= float(np.clip(mean, 0.5, 2)) / 2 if isinstance(loss, Poisson) else 1.0
    elif isinstance(loss, Softmax):
        predictors = theta.reshape(-1, q) @ x
        p = np.exp(predictors - predictors.max())
        g = w * np.outer(p / p.sum() - (np.arange(len(p)) == y), x).ravel()
        h, last = 1.0, []
    else:
        p = 1 / (1 + math.exp(-u))
        g, h, last = w * (p - y) * x, 1.0 if curvature.plain else 4 * p * (1 - p), []
    M = w * h * np.outer(x, x)
    svec = [M[j, k] * (1 if j == k else math.sqrt(2)) for j in range(q) for k in range(j, q)]
    assert np.linalg.norm(svec) == pytest.approx(np.linalg.norm(M))
    return np.concatenate((g, curvature.factor * np.array(svec + last)))


@each
@pytest.mark.parametrize("intercept", [False, True])
@pytest.mark.slow
def test_vectors_are_what_the_docstring_says(loss: Loss, plain: bool, intercept: bool) -> None:
    rng = np.random.default_rng(2)
    for columns in (1, 2, 6):
        curvature = curvature_of(loss, columns + intercept, plain)
        X = rng.normal(size=(200, columns)) * 10 ** rng.uniform(-2, 2, (200, 1))
        theta = np.append(
            rng.normal(size=columns + intercept) / 3, [0.7] * (curvature.parameters - columns - intercept)
        )
        y = rng.integers(0, 2, 200).astype(float) if loss.of_classes else rng.normal(size=200) * 2
        found = vectors(curvature, theta, X, y, intercept)
        for row, x, target in zip(found, X, y, strict=True):
            full = np.append(x, 1.0) if intercept else x
            np.testing.assert_allclose(row, written_out(curvature, theta, full, target), atol=1e-12)


@each
def test_a_record_that_overflows_counts_as_zeros(loss: Loss, plain: bool) -> None:
    curvature = curvature_of(loss, 3, plain)
    theta = np.ones(curvature.parameters)
    X = np.array([[1e160, 1.0], [1e308, -1e308], [1e308, 1e308]])
    y = np.zeros(3)
    if isinstance(loss, Huber):
        X, y = np.vstack([X, [[0.0, 0.0]]]), np.append(y, -1.7e308)
        theta[-1] = 0.1
    assert not vectors(curvature, theta, X, y, True).any()


def largest(curvature: Curvature, intercept: bool, tries: int, seed: int = 0) -> tuple[float, float]:
    """(norm, distance): the largest found among pairs of records, by local searches from random starts.

    The records lie in a plane that, with an intercept, includes the axis of the constant. A pair has its own theta,
    which gives the two predictors that the search asks for.
    """
    loss, q = curvature.loss, curvature.columns
    huber = isinstance(loss, Huber)
    rng = np.random.default_rng(seed)
    longest = 0.0

    def pair(z: np.ndarray) -> np.ndarray:
        sizes = np.exp(np.clip(z[:2], -3, 5))
        X = np.zeros((2, q))
        if intercept:
            X[:, 0], X[:, -1] = sizes * np.sign(z[4:6]), 1.0
        else:
            X[:, 0], X[:, 1 % q] = sizes * np.cos(z[4:6]), sizes * np.sin(z[4:6])
        y = (z[6:8] > 0).astype(float)
        theta = np.zeros(q)
        theta[[0, -1] if intercept else [0, 1 % q]] = np.linalg.lstsq(
            X[:, [0, -1] if intercept else [0, 1 % q]], np.clip(z[2:4], -40, 40), rcond=None
        )[0]
        if isinstance(loss, Softmax):
            theta = np.concatenate([0 * theta, theta, 0 * theta])
        if huber:
            means, residuals = X @ theta, np.sinh(np.clip(z[2:4], -40, 40))
            if isinstance(loss, Poisson):  # whose curvature depends on the predictor, beside the residual
                means, residuals = np.exp(np.minimum(means, 300) - 1), np.sinh(np.clip(z[6:8], -40, 40))
                residuals /= np.minimum(1, 3 / means)
            theta, y = np.append(theta, 1.0), means + residuals
        rows = X[:, :-1] if intercept else X
        return vectors(curvature, theta, np.ascontiguousarray(rows), y, intercept)

    def distance(z: np.ndarray) -> float:
        nonlocal longest
        found = pair(z)
        longest = max(longest, *np.linalg.norm(found, axis=1).tolist())
        return -float(np.linalg.norm(found[0] - found[1]))

    best = 0.0
    for _ in range(tries):
        starts = rng.normal(size=(80, 8)) * [1, 1, 3, 3, 3, 3, 1, 1]
        start = min(starts, key=distance)
        found = minimize(distance, start, method="Nelder-Mead", options={"maxiter": 500, "xatol": 1e-7, "fatol": 1e-9})
        best = max(best, -float(found.fun))
    return longest, best


@each
@pytest.mark.parametrize("intercept", some([False, True], 1))
@pytest.mark.parametrize("columns", [3, *(pytest.param(n, marks=pytest.mark.campaign) for n in (1, 2, 6, 21))])
@pytest.mark.slow
def test_no_vector_is_longer_and_no_two_are_further_apart_than_claimed(
    loss: Loss, plain: bool, intercept: bool, columns: int
) -> None:
    curvature = curvature_of(loss, columns + intercept, plain)
    norm, distance = largest(curvature, intercept, tries=2)
    print(f"{loss} q={columns + intercept}: {norm / curvature.bound:.3f}, {distance / curvature.sensitivity:.3f}")
    assert norm <= curvature.bound * (1 + SLACK)
    assert distance <= curvature.sensitivity * (1 + SLACK)


@each
@pytest.mark.campaign
def test_a_claim_that_is_5_percent_too_small_would_be_noticed(loss: Loss, plain: bool) -> None:
    """With two columns and no intercept the bounds are nearly reached, and .949 of that of softmax."""
    curvature = curvature_of(loss, 2, plain)
    _, distance = largest(curvature, False, tries=24 if isinstance(loss, Poisson) else 8, seed=1)
    assert distance > (0.94 if curvature.of_columns else 0.955) * curvature.sensitivity


@each
def test_the_parts_alone_have_the_sensitivities_of_the_proof(loss: Loss, plain: bool) -> None:
    """Gradient: sqrt(8 c^2 + (c^2 - kappa)^2 / 4), or 2 sqrt2. Curvature: sqrt(2 Q^2 + c^4) / lambda, or sqrt2 Q."""
    rng = np.random.default_rng(3)
    q, n = 3, 4000
    curvature = curvature_of(loss, q, plain)
    d = curvature.parameters
    X = rng.normal(size=(n, q)) * 10 ** rng.uniform(-1, 1.5, (n, 1))
    theta = np.append(rng.normal(size=q), [1.0] * (d - q))
    y = rng.integers(0, 2, n).astype(float)
    gradients, curved = 2 * math.sqrt(2), math.sqrt(4 * q)
    if isinstance(loss, Softmax):
        gradients, theta = 4.0, 5 * theta
    if isinstance(loss, Huber):
        y = X @ theta[:q] + rng.normal(size=n) * 10 ** rng.uniform(-1, 1, n)
        gradients = math.sqrt(8 * loss.c**2 + (loss.c**2 - loss.kappa) ** 2 / 4)
        curved = math.sqrt(4 * q + loss.c**4)
    found = vectors(curvature, theta, X, y, False)
    for part, most in ((found[:, :d], gradients), (found[:, d:] / curvature.factor, curved)):
        apart = np.max(np.linalg.norm(part[:, None, :] - part[None, ::20, :], axis=2))
        assert 0.6 * most < apart <= most


def test_the_polynomials_of_the_proof() -> None:
    """On fine grids: P <= 8, F <= 3.9, the logistic bound, and Huber's step 3 for every K up to 2 + sqrt2."""
    b = np.linspace(0, 1.05, 1_000_001)
    assert np.max(2 * (2 - b) ** 2 + 48 * b**2 * (1 - b) ** 2) <= 8
    a = np.linspace(0, 1, 1_000_001)
    assert np.max(a**2 * (3 + 48 * (1 - a) ** 2)) <= 3.9
    assert 3.54 < np.max(a**2 * (2 + 48 * (1 - a) ** 2)) <= 3.55
    t = np.linspace(0, 1, 10_001)
    for k in (0.1, 0.5, 1, 2, 3, 2 + math.sqrt(2)):
        assert np.max(4 * (1 + t) + 2 * k * (1 - t**2)) <= 8 + k + 1e-12


@pytest.mark.parametrize("cells", [2.0**20, 2.0**53])  # where vector instructions round, and where they cannot
def test_sums_do_not_depend_on_order(cells: float) -> None:
    for loss in LOSSES:
        curvature = curvature_of(loss, 4)
        rng = np.random.default_rng(1)
        X, y = rng.normal(size=(60, 3)), rng.integers(0, 2, 60).astype(float)
        spec, theta = loss.spec(), np.full(curvature.parameters, 0.5)
        spec[INTERCEPT] = 1.0
        sums = []
        for rows in (slice(None), slice(None, None, -1)):
            total = np.zeros(curvature.size, dtype=np.int64)
            at = np.ascontiguousarray(X[rows]), np.ascontiguousarray(y[rows])
            accumulate(spec, theta, *at, cells, total, curvature.factor)
            sums.append(total)
        averages = np.zeros_like(total)
        accumulate_averages(curvature.factor, spec, theta, *at, np.arange(len(X) + 1), cells, averages)
        assert np.array_equal(averages, total)
        assert np.array_equal(*sums)
        exact = np.rint(curvature.vectors(spec, theta, X, y) * cells).astype(np.int64).sum(axis=0)
        assert np.array_equal(sums[0], exact)


OTHERS = [
    Softmax(clip=1.0),
    Hinge(),
    Quantile(),
    Huber(clip=1.0),
    Logistic(clip=1.0),
    Squared(clip=1.0),
    Poisson(clip=1.0),
]


@pytest.mark.parametrize("loss", OTHERS)
def test_other_losses_have_none(loss: Any) -> None:
    assert not has_curvature(loss)
    with pytest.raises(ConfigError, match="no curvature"):
        Curvature(loss, 3)
