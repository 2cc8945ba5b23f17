"""An attack on the reports of an estimator, and the most that its claim allows: for `notebooks/08_audit_a_claim`.

Two records whose gradients lie as far apart as the loss allows are reported many times, each through the public path
`estimator.randomizer(x, y)`. The attacker knows both records and everything but the noise, and guesses from one report
which of the two it is about. The likelihood ratio of Gaussian noise and of PrivUnit is monotone in the report's part
along the difference of the gradients, so no attack is better than a threshold on it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.special import ndtr, ndtri

from streamdp import LDPSGDRegressor
from streamdp.privacy.guarantees import GaussianDP, PureDP, amount, parse_budget, with_amount
from tests.support.audit import epsilon_lower_bound, mu_lower_bound

RECORD, OTHER = ({"a": 1.0, "b": 1.0}, 1e6), ({"a": 1.0, "b": 1.0}, -1e6)
"""Norm sqrt(2) and targets far away on both sides: the longest gradients of Huber's loss, with opposite signs."""


@dataclass(frozen=True)
class Attack:
    """Scores of the reports about each of two records (n,), and the budget that is claimed for them."""

    claim: GaussianDP | PureDP
    own: np.ndarray
    other: np.ndarray

    @property
    def found(self) -> float:
        """What the reports spend at least: the claim's mu or epsilon, wrong with probability 0.001."""
        bound = mu_lower_bound if isinstance(self.claim, GaussianDP) else epsilon_lower_bound
        return bound(self.own, self.other)

    def powers(self, alarms: np.ndarray) -> np.ndarray:
        """How often the attacker recognises the record, at these shares of false alarms."""
        thresholds = np.quantile(self.other, 1 - alarms)
        return np.mean(self.own[:, None] >= thresholds, axis=0)


def most(claim: GaussianDP | PureDP, alarms: np.ndarray) -> np.ndarray:
    """How often the best attacker recognises a record at most, by the claim, at these shares of false alarms."""
    if isinstance(claim, GaussianDP):
        return np.asarray(ndtr(ndtri(alarms) + claim.mu))
    power = np.exp(claim.epsilon)
    return np.minimum(power * alarms, 1 - (1 - alarms) / power)


def attack(claim: str, reports: int, *, half_noise: bool = False, seed: int = 0) -> Attack:
    """Report both records so many times; with half_noise by a learner that claims half of what it spends."""
    claimed: Any = parse_budget(claim)
    spent = with_amount(claimed, 2 * amount(claimed)) if half_noise else claimed
    model = LDPSGDRegressor(features=["a", "b"], intercept=False, budget=spent, seed=seed)
    randomizer = model.randomizer
    theta = model.state_dict()["state"][0]
    gradients = [model.learner.problem.loss.gradient(theta, np.array([*x.values()]), y) for x, y in (RECORD, OTHER)]
    along = gradients[0] - gradients[1]
    own, other = (np.array([randomizer(x, y).gradient @ along for _ in range(reports)]) for x, y in (RECORD, OTHER))
    return Attack(claimed, own, other)
