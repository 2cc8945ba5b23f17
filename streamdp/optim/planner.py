"""How many records for which error, before any are collected.

The averaged iterate obeys sqrt(n)(bar_n - theta*) -> N(0, A^-1 S A^-1) with A the Hessian of the expected loss at
theta* and S = E[gradient gradient'] + E[noise noise'] (Shi et al. 2025, Corollary 1), so its root mean squared error
sqrt(E||bar_n - theta*||^2) is sqrt(tr(A^-1 S A^-1) / n) once n is large. A and S depend on the data's law, which is
not known before; the plan uses the papers' reference model: d features, independent standard normal, an intercept,
all coefficients 1, and for regression normal noise of standard deviation 2. Scaled like that, real data of the same d
needs a similar order of records, not the same number; at small n the true error is larger than the plan's.
"""

from __future__ import annotations

import math

import numpy as np
from scipy.special import ndtri

from streamdp.data import datasets
from streamdp.errors import ConfigError
from streamdp.optim.losses import Huber, Logistic, Loss, Quantile, loss_for
from streamdp.privacy.guarantees import Budget, parse_budget
from streamdp.privacy.mechanisms import mechanism_for

_SAMPLES = 400_000
_SIGMA = 2.0
_MAX_D = 200


def reference_theta(loss: Loss, d: int) -> np.ndarray:
    """theta* of the reference model in the estimators' order: d coefficients, the intercept, Huber's scale.

    Raises `ConfigError` for a loss whose minimiser on the reference model is not known in closed form.
    """
    theta = np.ones(d + 1)
    match loss:
        case Huber(clip=None):
            return np.append(theta, _SIGMA)
        case Logistic(clip=None):
            return theta
        case Quantile(clip=None, tau=tau):
            theta[-1] += _SIGMA * float(ndtri(tau))
            return theta
    raise ConfigError(f"plan: there is a reference model for huber, logistic and quantile without clip, not for {loss}")


def reference_sample(loss: Loss, n: int, d: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """n records of the reference model: X (n, d) without the intercept's column, y (n,)."""
    if isinstance(loss, Logistic):
        return datasets.logistic(n, d, seed=seed)
    return datasets.linear(n, d, seed=seed, sigma=_SIGMA)


def asymptotic_variance(loss: str | Loss, d: int, budget: Budget | str, mechanism: str = "auto") -> np.ndarray:
    """A^-1 S A^-1 on the reference model, by a fixed simulation of 400,000 records: a square matrix.

    A comes from central differences of the mean gradient with common records, S from the gradients at theta* and the
    mechanism's variance, which is isotropic up to the direction that PrivUnit keeps. Raises `ConfigError` for d > 200.
    """
    from streamdp.optim import loops

    loss, budget = loss_for(loss), parse_budget(budget)
    if not 1 <= d <= _MAX_D:
        raise ConfigError(f"d: expected 1 to {_MAX_D}, which is what the simulation has room for, got {d}")
    theta = reference_theta(loss, d)
    X, y = reference_sample(loss, _SAMPLES, d, seed=0)
    spec = loss.spec()
    spec[loops.INTERCEPT] = 1
    G = np.empty((len(X), len(theta)))

    def mean_gradient(at: np.ndarray) -> np.ndarray:
        loops.gradients(spec, at, X, y, G)
        return G.mean(axis=0)

    h = 0.05
    moves = h * np.eye(len(theta))
    hessian = np.array([(mean_gradient(theta + e) - mean_gradient(theta - e)) / (2 * h) for e in moves])
    hessian = (hessian + hessian.T) / 2
    mean_gradient(theta)
    second = G.T @ G / len(G)
    # For every mechanism E[answer answer'] is known in total; PrivUnit's share along g is a little larger than the
    # others, and averages out over directions: isotropy is exact for the additive ones and close for PrivUnit.
    kind = mechanism_for(mechanism, budget)
    noise = kind(budget, loss.bound, loss.sensitivity).variance(len(theta))
    if kind.name == "privunit":  # E||noise||^2 = C0^2/m^2 - ||g||^2 at the length of each gradient
        noise += loss.bound**2 - float(np.trace(second))
    inverse = np.linalg.inv(hessian)
    return inverse @ (second + np.eye(len(theta)) * noise / len(theta)) @ inverse


def plan_error(loss: str | Loss, d: int, budget: Budget | str, records: int, mechanism: str = "auto") -> float:
    """The root mean squared error of theta after `records` records; see the module's text for what it assumes."""
    if records < 1:
        raise ConfigError(f"records: expected at least 1, got {records}")
    return math.sqrt(float(np.trace(asymptotic_variance(loss, d, budget, mechanism))) / records)


def plan_records(loss: str | Loss, d: int, budget: Budget | str, error: float, mechanism: str = "auto") -> int:
    """The number of records for a root mean squared error of `error` > 0."""
    if not 0 < error < math.inf:
        raise ConfigError(f"error: expected a positive finite number, got {error}")
    return math.ceil(float(np.trace(asymptotic_variance(loss, d, budget, mechanism))) / error**2)
