"""Privacy audits by attack: a lower bound on the privacy loss, from samples of two neighbouring inputs.

The attacker sees one score per run and distinguishes the inputs by a threshold. The threshold is chosen on a quarter of
the runs and tested on the others, so the Clopper-Pearson limits hold as for a threshold that was fixed beforehand.

A bound above the truth is a false alarm. Its probability is at most `FALSE_ALARM`; no test may allow more.
"""

from collections.abc import Callable

import numpy as np
from scipy.special import ndtri
from scipy.stats import beta

from streamdp.privacy.guarantees import ApproxDP, Budget, GaussianDP, PureDP

FALSE_ALARM = 1e-6
_CANDIDATES = 2000


def epsilon_lower_bound(
    scores_a: np.ndarray, scores_b: np.ndarray, delta: float = 0.0, false_alarm: float = FALSE_ALARM
) -> float:
    """A lower bound on the mechanism's epsilon: P(epsilon < this) <= false_alarm, for (epsilon, delta)-DP.

    For every event, P_a <= e^eps P_b + delta; so eps >= log((P_a - delta) / P_b), with P_a at its lower and P_b at its
    upper Clopper-Pearson limit. Events are {score >= t} and {score < t}, and a and b may change places. At least 0.

    Parameters
    ----------
    scores_a, scores_b
        (n,) independent scores of the two inputs; best a monotone function of the likelihood ratio.
    delta
        The delta that the claim allows.
    false_alarm
        The probability that the bound is above the truth; at most `FALSE_ALARM`.
    """

    def loss(p_low: np.ndarray, q_high: np.ndarray) -> np.ndarray:
        return np.log(np.maximum(p_low - delta, 1e-300) / q_high)

    return _attack(scores_a, scores_b, loss, false_alarm)


def mu_lower_bound(scores_a: np.ndarray, scores_b: np.ndarray, false_alarm: float = FALSE_ALARM) -> float:
    """A lower bound on mu, for mu-GDP: a test of level q has power at most Phi(Phi^-1(q) + mu)."""

    def loss(p_low: np.ndarray, q_high: np.ndarray) -> np.ndarray:
        return ndtri(np.maximum(p_low, 1e-300)) - ndtri(np.minimum(q_high, 1 - 1e-16))

    return _attack(scores_a, scores_b, loss, false_alarm)


def lower_bound(budget: Budget, a: np.ndarray, b: np.ndarray) -> float:
    """The bound for the kind of the budget: epsilon, epsilon at delta, or mu."""
    match budget:
        case PureDP():
            return epsilon_lower_bound(a, b)
        case ApproxDP(_, delta):
            return epsilon_lower_bound(a, b, delta)
        case GaussianDP():
            return mu_lower_bound(a, b)
    raise AssertionError(budget)


def _attack(
    scores_a: np.ndarray, scores_b: np.ndarray, loss: Callable[[np.ndarray, np.ndarray], np.ndarray], false_alarm: float
) -> float:
    if not 0 < false_alarm <= FALSE_ALARM:
        raise ValueError(f"false_alarm is at most {FALSE_ALARM:g}, got {false_alarm:g}")
    risk = false_alarm / 2  # one limit for each of the two probabilities
    a, b = np.asarray(scores_a, dtype=float), np.asarray(scores_b, dtype=float)
    if not (np.isfinite(a).all() and np.isfinite(b).all()):
        raise ValueError("scores must be finite")
    (train_a, test_a), (train_b, test_b) = (
        (np.sort(scores[::4]), np.sort(np.delete(scores, np.s_[::4]))) for scores in (a, b)
    )
    pooled = np.sort(np.concatenate([train_a, train_b]))
    at = np.unique(np.concatenate([np.linspace(0, 1, _CANDIDATES), np.geomspace(1e-6, 0.01, 200)]))
    at = np.unique(np.concatenate([at, 1 - at]))
    thresholds = np.unique(pooled[(at * (len(pooled) - 1)).astype(int)])

    def losses(t: np.ndarray, x: np.ndarray, y: np.ndarray) -> list[np.ndarray]:
        n, m = len(x), len(y)
        over_x, over_y = n - np.searchsorted(x, t), m - np.searchsorted(y, t)
        events = [(over_x, n, over_y, m), (over_y, m, over_x, n)]
        events += [(n - over_x, n, m - over_y, m), (m - over_y, m, n - over_x, n)]
        return [loss(_lower(k, size, risk), _upper(c, other, risk)) for k, size, c, other in events]

    trained = losses(thresholds, train_a, train_b)
    event = int(np.argmax([np.max(values) for values in trained]))
    best = thresholds[[int(np.argmax(trained[event]))]]
    return max(0.0, float(losses(best, test_a, test_b)[event][0]))


def _lower(k: np.ndarray, n: int, risk: float) -> np.ndarray:
    return np.where(k == 0, 0.0, beta.ppf(risk, np.maximum(k, 1), n - k + 1))


def _upper(k: np.ndarray, n: int, risk: float) -> np.ndarray:
    return np.where(k == n, 1.0, beta.ppf(1 - risk, k + 1, np.maximum(n - k, 1)))
