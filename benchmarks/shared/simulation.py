"""The simulations of Shi et al. 2025 with their expected losses: normal features, all coefficients 1."""

from __future__ import annotations

import numpy as np
from scipy.optimize import minimize_scalar
from scipy.special import expit
from scipy.stats import norm

from streamdp import datasets
from streamdp.optim.losses import Huber

SIGMA = 2.0  # of the noise in y


def expected_huber(off: np.ndarray, sigma: float) -> np.ndarray:
    """E[sigma rho_c(r) + kappa sigma / 2] for r = (SIGMA Z - off) / sigma, Z standard normal."""
    loss = Huber()
    c, s, m = loss.c, SIGMA / sigma, -off / sigma
    low, high = (-c - m) / s, (c - m) / s
    inside = norm.cdf(high) - norm.cdf(low)
    first = norm.pdf(low) - norm.pdf(high)  # E[Z; inside]
    second = inside + low * norm.pdf(low) - high * norm.pdf(high)  # E[Z^2; inside]
    square = m**2 * inside + 2 * m * s * first + s**2 * second
    above = m * norm.sf(high) + s * norm.pdf(high)  # E[r; r > c]
    below = -m * norm.cdf(low) + s * norm.pdf(low)  # E[-r; r < -c]
    rho = square / 2 + c * (above + below) - c**2 / 2 * (1 - inside)
    return np.asarray(sigma * (rho + loss.kappa / 2))


class Simulation:
    """Records of a known distribution, with their expected loss."""

    def __init__(self, loss: str, d: int) -> None:
        self.loss, self.d = loss, d
        self.truth = np.ones(d + 1 + (loss == "huber"))
        if loss == "huber":
            self.truth[-1] = SIGMA
        X = np.random.default_rng(99).standard_normal((40_000, d))
        self._X = np.hstack([X, np.ones((len(X), 1))])

    def draw(self, n: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
        """n records."""
        make = datasets.linear if self.loss == "huber" else datasets.logistic
        return make(n, self.d, seed=seed)

    def excess(self, theta: np.ndarray) -> float:
        """E f(theta) - E f(theta*) of the loss without weights: exact for each of 40,000 x."""
        if self.loss == "logistic":
            u, v = self._X @ theta, self._X @ self.truth
            return float(np.mean(np.logaddexp(0, u) - np.logaddexp(0, v) - expit(v) * (u - v)))
        off = self._X @ (theta - self.truth)[:-1]
        least = expected_huber(np.zeros(1), SIGMA)
        return float(np.mean(expected_huber(off, float(theta[-1])) - least))

    @property
    def constant(self) -> float:
        """The excess of the best constant; all coefficients are 1, so its intercept is 1 or near it."""

        def of(value: float, place: int) -> float:
            theta = np.zeros(len(self.truth))
            theta[self.d] = 1.0
            theta[place] = value
            return self.excess(theta)

        bounds = (0.5, 20.0) if self.loss == "huber" else (-1.0, 2.0)
        return float(minimize_scalar(lambda v: of(v, -1), bounds=bounds, method="bounded").fun)

    def public(self, X: np.ndarray, y: np.ndarray) -> np.ndarray:
        """The estimate without privacy: maximum likelihood, or Huber's with its scale."""
        X = np.hstack([X, np.ones((len(X), 1))])
        theta, sigma, loss = np.zeros(X.shape[1]), 2 * SIGMA, Huber()
        for _ in range(30):
            if self.loss == "logistic":
                p = expit(X @ theta)
                theta += np.linalg.solve((X * (p * (1 - p))[:, None]).T @ X, X.T @ (y - p))
            else:
                r = (y - X @ theta) / sigma
                h = np.minimum(1, loss.c / np.maximum(np.abs(r), 1e-9))
                theta += sigma * np.linalg.solve((X * h[:, None]).T @ X, X.T @ np.clip(r, -loss.c, loss.c))
                sigma *= float(np.sqrt(np.mean(np.minimum(r**2, loss.c**2)) / loss.kappa))
        return np.append(theta, sigma) if self.loss == "huber" else theta
