"""Randomised response: one bit about a record, answered truthfully with a probability that its budget sets.

The answer is the true bit with the probability e^epsilon / (1 + e^epsilon) or Phi(mu / 2), less a relative 2^-50.
Claim: the noisy bit keeps the budget of its record, for any two records and any question that does not depend on them.
Proof: docs/proofs/noise.md. Source: Warner 1965; Dong, Roth, Su 2022 for the trade-off functions.
"""

import math

import numpy as np
import scipy

from streamdp.privacy import samplers
from streamdp.privacy.entropy import Rng
from streamdp.privacy.guarantees import Budget, GaussianDP, amount

_ROUNDING = 2.0**-50


def truth(budget: Budget, amounts: np.ndarray) -> np.ndarray:
    """Return the probabilities (n,) of a true answer, from 1/2 to 1 - 2^-50, for amounts (n,) of epsilon or mu."""
    p: np.ndarray = (
        scipy.special.ndtr(np.asarray(amounts) / 2)
        if isinstance(budget, GaussianDP)
        else scipy.special.expit(np.asarray(amounts))
    )
    return np.asarray(np.maximum(0.5, np.minimum(p * (1 - _ROUNDING), 1 - _ROUNDING)))


def chance_of_truth(budget: Budget) -> float:
    """Return the probability of a true answer that spends `budget`."""
    return float(truth(budget, np.array([amount(budget)]))[0])


def epsilon_of(budget: Budget) -> float:
    """The largest epsilon whose reports keep a budget: of a mu, log(p / (1 - p)) with p = Phi(mu / 2).

    The trade-off function of an epsilon-DP report lies above that of randomised response with the same epsilon, which
    is mu-GDP. A delta is not used.
    """
    p = chance_of_truth(budget)
    return math.log(p / (1 - p))


def respond(bit: bool, keep: float, rng: Rng) -> bool:
    """Return a noisy bit, which is the true one with the probability `keep`, from `truth`."""
    with rng.lock:
        while (answer := samplers.respond(bit, keep, rng.words)) < 0:
            rng.refill()
    return bool(answer)
