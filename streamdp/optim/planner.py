"""Planning: the number of records for an error, and the error for a number of records, before any are collected.

Limit. The averaged iterate obeys sqrt(n)(bar_n - theta*) -> N(0, A^-1 S A^-1), with A the Hessian of the expected loss
at theta* and S = E[gradient gradient'] + E[noise noise'] (Shi et al. 2025, Corollary 1, for steps eta i^-alpha with
1/2 < alpha < 1). So for large n its root mean squared error sqrt(E||bar_n - theta*||^2) is sqrt(tr(A^-1 S A^-1) / n).

Reference model. A and S depend on the law of the data, which is not known in advance. The plan uses the papers'
reference model: d independent standard normal features, an intercept, all coefficients 1, and for regression normal
noise of standard deviation 2. Real data of the same d and scale needs a similar order of records, not the same number.
At small n the true error is larger than the planned one.
"""

import math
from functools import lru_cache

import numpy as np
import scipy

from streamdp import datasets
from streamdp.data.records import MOST_RECORDS
from streamdp.errors import ConfigError
from streamdp.optim.losses import Huber, Logistic, Loss, Poisson, Quantile, loss_for, weighted_by_norm
from streamdp.privacy.guarantees import Budget, parse_budget
from streamdp.privacy.mechanisms import mechanism_for

_SAMPLES, _VALUES = 400_000, 8_000_000
_SIGMA = 2.0
_MAX_D = 200


def _reference_theta(loss: Loss, d: int) -> np.ndarray:
    """theta* of the reference model in the estimators' order: d coefficients, the intercept, Huber's scale.

    Raises `ConfigError` if the minimiser of the loss on the reference model has no closed form.
    """
    theta = np.ones(d + 1)
    match loss:
        case Huber(clip=None) if not isinstance(loss, Poisson):
            return np.append(theta, _SIGMA / math.sqrt(loss.kappa) if loss.grows else _SIGMA)
        case Logistic(clip=None):
            return theta
        case Quantile(clip=None, tau=tau):
            theta[-1] += _SIGMA * float(scipy.special.ndtri(tau))
            return theta
    raise ConfigError(f"plan: expected huber, squared, logistic or quantile without clip, got {loss}")


def _reference_sample(loss: Loss, n: int, d: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Records of the reference model: X (n, d) without the intercept's column, y (n,)."""
    if isinstance(loss, Logistic):
        return datasets.logistic(n, d, seed=seed)
    return datasets.linear(n, d, seed=seed, sigma=_SIGMA)


@lru_cache(maxsize=32)
def _reference_moments(loss: Loss, d: int) -> tuple[np.ndarray, np.ndarray]:
    """A and E[gradient gradient'] at theta* of the reference model, which no budget changes."""
    from streamdp.optim import loops

    theta = _reference_theta(loss, d)
    X, y = _reference_sample(loss, min(_SAMPLES, _VALUES // d), d, seed=0)
    spec = loss.spec()
    spec[loops.INTERCEPT] = 1
    G = np.empty((len(X), len(theta)))

    def mean_gradient(at: np.ndarray) -> np.ndarray:
        loops.gradients(spec, at, X, y, G)
        return np.asarray(G.mean(axis=0))

    h, evenly, across = 0.05, np.zeros(len(theta)), np.zeros(len(theta))
    evenly[:d], across[:d] = d**-0.5, np.linspace(-1, 1, d) if d > 1 else 0.0
    across /= max(float(np.linalg.norm(across)), 1e-9)
    moves = np.array([evenly, *np.eye(len(theta))[d:], across])
    slopes = np.array([(mean_gradient(theta + h * e) - mean_gradient(theta - h * e)) / (2 * h) for e in moves])
    shared = moves[:-1].T @ (slopes[:-1] @ moves[:-1].T) @ moves[:-1]
    apart = np.diag(np.arange(len(theta)) < d) - np.outer(evenly, evenly)
    hessian = (shared + shared.T) / 2 + (slopes[-1] @ across) * apart
    mean_gradient(theta)
    second = G.T @ G / len(G)
    return hessian, second


def asymptotic_variance(loss: str | Loss, d: int, budget: Budget | str, mechanism: str = "auto") -> np.ndarray:
    """A^-1 S A^-1 on the reference model of d features, 1 to 200, by a fixed simulation of 400,000 records.

    For more than 20 features it is of 8,000,000/d records. A is a central difference of the mean gradient over common
    records. The columns of the reference model are exchangeable. So A is known from few directions: one in which all
    coefficients change alike, one in which their sum stays, and those of the other parameters. S is the second moment
    of the gradients at theta* plus the variance of the mechanism (see `mechanisms.mechanism_for`) at the budget of one
    record, spread evenly over all directions.

    The loss is `huber`, `squared`, `logistic` or `quantile`, without `clip`, with the weight by norm if it names no
    other. Raises `ConfigError` if there is no reference model for the loss or d is out of range, `BudgetError` if the
    budget is not valid for the mechanism.
    """
    loss, budget = weighted_by_norm(loss_for(loss)), parse_budget(budget)  # as the estimators do
    if not 1 <= d <= _MAX_D:
        raise ConfigError(f"d: expected 1 to {_MAX_D}, the limit of the simulation, got {d}")
    hessian, second = _reference_moments(loss, d)
    size = len(second)
    # The trace of E[noise noise'] is known for every mechanism. Additive noise is isotropic. PrivUnit has a little more
    # noise along g, which nearly averages out over the directions of g.
    kind = mechanism_for(mechanism, budget)
    noise = kind(budget, loss.bound, loss.sensitivity).variance(size)
    if kind.name == "privunit":  # E||noise||^2 = C0^2/m^2 - ||g||^2 at the length of each gradient
        noise += loss.bound**2 - float(np.trace(second))
    inverse = np.linalg.inv(hessian)
    return inverse @ (second + np.eye(size) * noise / size) @ inverse


def plan_error(loss: str | Loss, d: int, budget: Budget | str, records: int, mechanism: str = "auto") -> float:
    """The root mean squared error of theta after a number of records (see the module's text for the assumptions).

    The loss, d, budget and mechanism are those of `asymptotic_variance`, with the same errors. Raises `ConfigError` if
    `records` is below 1.
    """
    if records < 1:
        raise ConfigError(f"records: expected at least 1, got {records}")
    return math.sqrt(float(np.trace(asymptotic_variance(loss, d, budget, mechanism))) / records)


def plan_records(loss: str | Loss, d: int, budget: Budget | str, error: float, mechanism: str = "auto") -> int:
    """The number of records for a root mean squared error of theta, positive and finite.

    The loss, d, budget and mechanism are those of `asymptotic_variance`, with the same errors. Raises `ConfigError` if
    the error is out of range, or so small that more than 10^18 records reach it.
    """
    if not 0 < error < math.inf:
        raise ConfigError(f"error: expected a positive finite number, got {error}")
    needed = float(np.trace(asymptotic_variance(loss, d, budget, mechanism))) / error / error
    if needed > MOST_RECORDS:
        raise ConfigError(f"error: more than 10^18 records reach {error:g}; expected a larger error or budget")
    return math.ceil(needed)
