"""Randomised response: one bit about a record, answered truthfully with a probability that its budget sets.

Claim. The noisy bit keeps the budget of its record, for any two records and any question that does not depend on them.

Proof. The answer is the true bit with probability p, else the other one.

* epsilon: p = e^epsilon / (1 + e^epsilon). Both answers have probabilities p or 1 - p, whose ratio is e^epsilon. An
  (epsilon, delta) budget is kept with a delta of 0.
* mu: p = Phi(mu / 2). The trade-off function of the two laws is linear between (0, 1), (1 - p, 1 - p) and (1, 0).
  G_mu(1 - p) = Phi(Phi^-1(p) - mu) = Phi(-mu / 2) = 1 - p, so G_mu meets the three points. It is convex, so it lies
  below the chords: mu-GDP.

p is reduced by a relative 2^-50, more than the error of its arithmetic, and is at most 1 - 2^-50.

Source: Warner 1965; Dong, Roth, Su 2022 for the trade-off functions.
"""

from __future__ import annotations

import numpy as np
import scipy

from streamdp.privacy import samplers
from streamdp.privacy.entropy import Entropy, SeededEntropy
from streamdp.privacy.guarantees import Budget, GaussianDP

_ROUNDING = 2.0**-50


def truth(budget: Budget, amounts: np.ndarray) -> np.ndarray:
    """Return the probabilities (n,) of a true answer, from 1/2 to 1 - 2^-50, for amounts (n,) of epsilon or mu."""
    p: np.ndarray = (
        scipy.special.ndtr(np.asarray(amounts) / 2)
        if isinstance(budget, GaussianDP)
        else scipy.special.expit(np.asarray(amounts))
    )
    return np.asarray(np.maximum(0.5, np.minimum(p * (1 - _ROUNDING), 1 - _ROUNDING)))


def respond(bit: bool, keep: float, rng: Entropy | SeededEntropy) -> bool:
    """Return a noisy bit, which is the true one with the probability `keep`, from `truth`."""
    with rng.lock:
        while (answer := samplers.respond(bit, keep, rng.words)) < 0:
            rng.refill()
    return bool(answer)
